"""Mean, median and votes over the views of a point (`tab:aug_agg_cifar10`)."""

from __future__ import annotations

from dataclasses import replace

from plmia.attacks.attack import PL_MIA
from plmia.attacks.calibration import MeanOfViews, MedianOfViews, ViewAggregation, VotesOfViews

from .charts import dots
from .measure import AUC, BEYOND, MAIN, Measured, attacks_called, difference, in_words, measure, verdict_above
from .outcome import Claim, Outcome, Rows
from .setting import Setting

VIEWS: dict[str, ViewAggregation] = {"votes": VotesOfViews(), "median": MedianOfViews(), "mean": MeanOfViews()}
# Median and votes visit every pair of a query and a population point, so the population is kept small.
POPULATION = 1000


def run(setting: Setting) -> Outcome:
    """Measure PL-MIA with each view aggregation."""
    source = setting.source("cifar10_wrn")
    population = min(POPULATION, source.signals.n_points // 8)
    attacks = [replace(PL_MIA, name=f"pl-mia, {name} of views", views=views) for name, views in VIEWS.items()]
    found = measure(source, [*attacks, *attacks_called("pl-mia-eb")], population=population)
    ours: Rows = {(name,): measured.cells() for name, measured in found.items()}
    drawn = dots("table-s3", ours, (AUC, "TPR@0.1%"), source.about.get("data"))
    notes = (f"Our numbers use |Z| = {population:,}: median and votes need every pair.",)
    return Outcome("table-s3", (source,), ours, BEYOND, (drawn,), (_claim(found),), notes)


def _claim(found: dict[str, Measured]) -> Claim:
    words, signs = [], []
    for other in ("votes", "median"):
        for metric in (*MAIN, "TPR@0.1%"):
            d = difference(found["pl-mia, mean of views"], found[f"pl-mia, {other} of views"], metric)
            words.append(in_words(f"mean against {other}, {metric}", d))
            signs.append(d)
    return Claim("mean", verdict_above(signs), f"{'; '.join(words)}.")
