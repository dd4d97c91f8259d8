"""PL-MIA on the most, the middle and the least Gaussian third of the queries (`tab:plmia_gaussian_robust`)."""

from __future__ import annotations

import numpy as np

from plmia.evaluation.diagnostics.gaussianity import GROUPS, gaussianity, groups

from .charts import dots
from .measure import AUC, CONFORMAL, Measured, attacks_called, difference, in_words, metrics_of, results, verdict_above
from .outcome import Claim, Keys, Outcome, Rows
from .setting import Setting


def run(setting: Setting) -> Outcome:
    """Group the queries of each target by their references' Gaussianity."""
    source = setting.source("cifar10_wrn")
    found: dict[Keys, Measured] = {}
    harder: list[list[float]] = []
    for result in results(source, attacks_called("pl-mia", "pl-mia-eb")):
        tested = gaussianity(result.view.references)
        queries = result.truth.queries
        group = groups(tested.score[queries])
        for k, name in reversed(list(enumerate(GROUPS))):
            chosen = queries[group == k]
            members = result.truth.members[chosen]
            one = metrics_of(result.scores.score[chosen], members, result.scores.log10_p_conformal[chosen])
            keys = (name,) if result.scores.attack == "pl-mia" else (f"{name}, {result.scores.attack}",)
            found.setdefault(keys, Measured()).add(one)
        harder.append([float(np.median(result.view.target[queries[group == k], 0])) for k in range(len(GROUPS))])
    ours: Rows = {keys: measured.cells() for keys, measured in found.items()}
    drawn = dots("table-s4", ours, (AUC, "TPR@1%"), source.about.get("data"))
    note = "Median confidence of the target, least to most Gaussian third: " + ", ".join(
        f"{value:.2f}" for value in np.mean(harder, axis=0)
    )
    claims = (_claim(found),)
    return Outcome("table-s4", (source,), ours, (CONFORMAL,), (drawn,), claims, (f"{note}.",))


def _claim(found: dict[Keys, Measured]) -> Claim:
    most, middle, least = (found[name,] for name in reversed(GROUPS))
    drops = {metric: difference(most, least, metric) for metric in (AUC, "TPR@1%", "TPR@0.1%")}
    middles = difference(middle, least, AUC)
    verdict = verdict_above(list(drops.values()))
    words = "; ".join(in_words(f"most against least Gaussian, {metric}", d) for metric, d in drops.items())
    return Claim("groups", verdict, f"{words}; {in_words('middle against least, AUC', middles)}.")
