"""Measure the speed and the memory of scoring: ``make bench`` (``make bench ARGS=--quick`` for a short run).

Results are ratios of two CPU times measured alternately within one run, each the minimum over some repetitions. Such
ratios are also valid on a busy machine (nothing here uses more than one thread). The baselines are plain vectorised
versions of the published algorithms, written here from their formulas. The script prints one table per section, the
stated targets and whether they were met, and a short table in Markdown. It writes everything to
``bench-out/scoring.json`` and the short table to ``bench-out/scoring.md``, which scripts/update_readme.py reads.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
from scipy.stats import norm

import plmia
from plmia.attacks.attack import ATTACKS
from plmia.attacks.cauchy_sum import cauchy_mean, cauchy_mean_exact
from plmia.attacks.scoring import score_all
from plmia.attacks.view import AttackView, Feature, Powers, Probabilities, References, leave_one_out, midpoint, sum_over
from plmia.data.designs import MembershipDesign
from plmia.evaluation.targets import Setup, attack_targets
from plmia.signals.signals import Signals

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.intp]
# The paper's attacks; empirical_bayes.py measures the cost of empirical Bayes.
EIGHT = [attack for attack in ATTACKS.values() if attack.name != "pl-mia-eb"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measured problems."""

    points: int = 50_000
    references: tuple[int, ...] = (64, 254)
    queries: int = 1_000_000
    population: int = 100_000
    exact_queries: int = 200
    # The published code compares all queries with all of Z at once in 6 GB; these sizes fit into 1.3 GB.
    queries_a_block: int = 10_000
    per_point_sample: int = 5_000
    scaling_points: tuple[int, ...] = (12_500, 25_000, 50_000, 100_000)
    scaling_models: tuple[int, ...] = (32, 64, 128, 256)
    scaling_views: tuple[int, ...] = (1, 2, 4, 8)
    scaling_population: tuple[int, ...] = (3_125, 6_250, 12_500, 25_000)
    targets_models: int = 64
    targets_points: int = 20_000
    slow_repetitions: int = 3
    fast_repetitions: int = 9


QUICK = Sizes(
    points=10_000,
    queries=200_000,
    population=20_000,
    exact_queries=100,
    queries_a_block=5_000,
    per_point_sample=1_000,
    scaling_points=(5_000, 10_000, 20_000, 40_000),
    scaling_models=(16, 32, 64, 128),
    scaling_population=(1_250, 2_500, 5_000, 10_000),
    targets_models=32,
    targets_points=5_000,
    slow_repetitions=2,
    fast_repetitions=5,
)


@dataclass
class Report:
    """Results of the sections."""

    results: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    targets: list[tuple[str, str, bool]] = field(default_factory=list)
    summary: list[tuple[str, str, str]] = field(default_factory=list)

    def table(self, section: str, title: str, rows: list[dict[str, Any]]) -> None:
        """Store and print the rows of a section."""
        self.results[section] = rows
        print(f"\n{title}")
        print_table(rows)

    def target(self, what: str, found: str, met: bool) -> None:
        """Record whether a target was met."""
        self.targets.append((what, found, met))


# Signals ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Laws:
    """The Gaussian model: distributions of OUT and IN signals per point, [points]."""

    mean: FloatArray
    std: FloatArray
    eta: FloatArray
    rho: FloatArray

    @classmethod
    def draw(cls, n: int, rng: np.random.Generator) -> Laws:
        """Confidences around 3 +- 4; mu_in = mu_out + eta s_out, s_in = rho s_out."""
        return cls(
            rng.normal(3.0, 4.0, n),
            rng.lognormal(0.0, 0.4, n),
            np.abs(rng.normal(0.8, 0.6, n)),
            rng.lognormal(-0.1, 0.2, n),
        )

    def sample(self, inside: npt.NDArray[np.bool_], rng: np.random.Generator) -> FloatArray:
        """Signals [points] of one model that trained on the points ``inside``."""
        return self.at(inside, rng.standard_normal(len(inside)))

    def at(self, inside: npt.NDArray[np.bool_], noise: FloatArray) -> FloatArray:
        """Signals [points] at a given number of standard deviations from their mean."""
        return self.mean + self.std * (inside * self.eta + np.where(inside, self.rho, 1.0) * noise)

    def likelihood_ratio(self, x: FloatArray) -> FloatArray:
        """Gaussian log likelihood ratio [points] under the true distributions."""
        inside = norm.logpdf(x, self.mean + self.eta * self.std, self.rho * self.std)
        return np.asarray(inside - norm.logpdf(x, self.mean, self.std))


def draw_signals(
    models: int, points: int, views: int = 1, dtype: npt.DTypeLike = np.float32, paired: bool = True
) -> Signals:
    """Signals of models trained on random halves; by default model 2k + 1 trains on the complement of model 2k."""
    rng = np.random.default_rng([models, points, views])
    laws = Laws.draw(points, rng)
    membership = np.empty((models, points), dtype=bool)
    values = np.empty((models, points, views), dtype=dtype)
    for model in range(models):
        if paired and model % 2:
            membership[model] = ~membership[model - 1]
        else:
            membership[model] = rng.permutation(points) < points // 2
        common = rng.standard_normal(points)
        for view in range(views):
            noise = np.sqrt(0.8) * common + np.sqrt(0.2) * rng.standard_normal(points)
            values[model, :, view] = laws.at(membership[model], noise)
    return Signals(values, MembershipDesign(membership))


def references_of_first(signals: Signals) -> References:
    """All models except the first pair: the first model is the target."""
    return References(signals.values[2:], np.arange(signals.n_models - 2), signals.design.matrix[2:])


def view_of_first(signals: Signals, population: IntArray) -> AttackView:
    """View of attacks on the first model."""
    return AttackView(signals.values[0].astype(np.float64), references_of_first(signals), population)


def outsiders_of_first(signals: Signals) -> IntArray:
    """All points that the first model did not train on."""
    return np.flatnonzero(~signals.design.matrix[0])


def all_eight(signals: Signals, population: IntArray) -> None:
    """Run all attacks on the first model; each result is dropped before the next attack."""
    for _ in score_all(EIGHT, view_of_first(signals, population)):
        pass


# The published algorithms, naive but vectorised ---------------------------------------------------------------------


def naive_rmia(signals: Signals, population: IntArray, queries_a_block: int) -> FloatArray:
    """Share of the population whose ratio p_target / mean p_reference a query exceeds twofold, over all pairs."""
    p = 1.0 / (1.0 + np.exp(-signals.values[:, :, 0]))
    ratio = p[0] / p[2:].mean(axis=0)
    score = np.empty(signals.n_points)
    for start in range(0, signals.n_points, queries_a_block):
        block = slice(start, start + queries_a_block)
        score[block] = np.average(ratio[block, None] / ratio[population] >= 2.0, axis=1)
    return score


def naive_lira(signals: Signals) -> FloatArray:
    """Gaussian log likelihood ratio as published: a loop gathers each point's signals, the rest is vectorised."""
    conf, inside = signals.values[2:, :, 0], signals.design.matrix[2:]
    sides = []
    for mask in (inside, ~inside):
        gathered = [conf[mask[:, point], point] for point in range(signals.n_points)]
        least = min(map(len, gathered))
        side = np.array([x[:least] for x in gathered])
        sides.append(norm.logpdf(signals.values[0, :, 0], np.median(side, axis=1), np.std(side, axis=1) + 1e-30))
    ratio: FloatArray = sides[0] - sides[1]
    return ratio


def naive_lira_loop(signals: Signals, n: int) -> FloatArray:
    """The same with all computations in the loop over points, for the first n."""
    conf, inside = signals.values[2:, :, 0], signals.design.matrix[2:]
    score = np.empty(n)
    for point in range(n):
        x, x_in, x_out = signals.values[0, point, 0], conf[inside[:, point], point], conf[~inside[:, point], point]
        score[point] = norm.logpdf(x, np.median(x_in), np.std(x_in)) - norm.logpdf(x, np.median(x_out), np.std(x_out))
    return score


# Measuring ----------------------------------------------------------------------------------------------------------


def fastest(contenders: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Smallest CPU seconds of each candidate, run alternately."""
    least = dict.fromkeys(contenders, float("inf"))
    for _ in range(repetitions):
        for name, run in contenders.items():
            start = time.process_time()
            run()
            least[name] = min(least[name], time.process_time() - start)
    return least


def peak_bytes(run: Callable[[], object]) -> int:
    """Peak memory of ``run``, minus the memory used before."""
    run()  # exclude imports and caches of libraries
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak - before


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Slope of log seconds against log size, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def progress(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


def print_table(rows: list[dict[str, Any]]) -> None:
    def shown(value: object) -> str:
        return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

    cells = [list(rows[0]), *([shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        pairs = zip(line, widths, rows[0].values(), strict=True)
        print("  " + "  ".join(c.ljust(w) if isinstance(v, str) else c.rjust(w) for c, w, v in pairs).rstrip())


# Sections -----------------------------------------------------------------------------------------------------------


def against_published(sizes: Sizes, report: Report) -> None:
    """All eight attacks against the published RMIA and LiRA."""
    rows: list[dict[str, Any]] = []
    for n in sizes.references:
        progress(f"eight attacks against the published algorithms, {n} references")
        signals = draw_signals(n + 2, sizes.points)
        z = outsiders_of_first(signals)
        check_yardsticks(signals, z)
        large, cached = sizes.queries_a_block, max(1, 1_000_000 // len(z))
        ours, rmia, rmia_cached = (
            "all eight attacks",
            f"RMIA, {large:,} queries per block",
            "RMIA, blocks fit the cache",
        )
        rmia_medium = f"RMIA, {large // 10:,} queries per block"
        lira, lira_loop = "LiRA, a loop gathers signals", "LiRA, all in the loop (scaled up)"
        least = fastest(
            {
                ours: partial(all_eight, signals, z),
                rmia: partial(naive_rmia, signals, z, large),
                rmia_medium: partial(naive_rmia, signals, z, large // 10),
                rmia_cached: partial(naive_rmia, signals, z, cached),
                lira: partial(naive_lira, signals),
                lira_loop: partial(naive_lira_loop, signals, sizes.per_point_sample),
            },
            sizes.slow_repetitions,
        )
        least[lira_loop] *= sizes.points / sizes.per_point_sample
        ratio = {what: seconds / least[ours] for what, seconds in least.items()}
        rows += [{"references": n, "what": k, "CPU s": least[k], "x all eight": ratio[k]} for k in least]
        report.target(
            f"all eight attacks at least 20 x faster than RMIA alone, {n} references",
            f"{ratio[rmia]:.1f} x with {large:,} queries per block ({ratio[rmia_medium]:.1f} x with {large // 10:,}, "
            f"{ratio[rmia_cached]:.1f} x with blocks that fit the cache)",
            ratio[rmia] >= 20,
        )
        report.target(
            f"all eight attacks faster than LiRA alone, {n} references",
            f"{ratio[lira]:.1f} x ({ratio[lira_loop]:.0f} x with all in the loop)",
            ratio[lira] > 1,
        )
        report.summary += [
            (
                f"RMIA by all pairs ({large:,} / {large // 10:,} / {cached} queries per block), {n} references",
                f"{ratio[rmia]:.0f} / {ratio[rmia_medium]:.0f} / {ratio[rmia_cached]:.0f}",
                "at least 20",
            ),
            (f"LiRA as published, {n} references", f"{ratio[lira]:.1f}", "above 1"),
        ]
    report.table(
        "published", f"1. One target, {sizes.points:,} points, |Z| = {sizes.points // 2:,}, 1 view, float32", rows
    )


def check_yardsticks(signals: Signals, population: IntArray) -> None:
    """Check that the baselines compute the same values as plmia."""
    view = view_of_first(signals, population)
    rmia, lira = score_all([ATTACKS["rmia"], ATTACKS["lira"]], view)
    size = len(population) - np.isin(np.arange(signals.n_points), population)
    wins = naive_rmia(signals, population, 1_000) * len(population)
    assert np.abs(wins - rmia.score * size).mean() <= 1e-4 * len(population)  # float32 ratios may tie
    assert np.corrcoef(naive_lira(signals), lira.score)[0, 1] > 0.9  # a median there, a mean here


def memory(sizes: Sizes, report: Report) -> None:
    """Peak memory of all eight attacks, if the caller processes one result at a time."""
    rows: list[dict[str, Any]] = []
    for n in sizes.references:
        progress(f"memory, {n} references")
        signals = draw_signals(n + 2, sizes.points)
        z = outsiders_of_first(signals)
        for name, run in {
            "score_all": partial(all_eight, signals, z),
            "attack_targets and metrics": partial(attack_and_measure, signals, n // 2, len(z) - 1),
        }.items():
            peak = peak_bytes(run)
            rows.append(
                {
                    "references": n,
                    "what": name,
                    "peak MB": peak / 1e6,
                    "x signals": peak / signals.values.nbytes,
                    "x signals and membership": peak / (signals.values.nbytes + signals.design.matrix.nbytes),
                }
            )
        alone, whole = rows[-2]["x signals"], rows[-1]["x signals"]
        report.target(
            f"peak extra memory at most 0.5 x the signals, {n} references",
            f"{alone:.2f} x ({whole:.2f} x through attack_targets, with a copy of the membership, and metrics)",
            alone <= 0.5,
        )
        report.summary.append((f"peak extra memory / signals, {n} references", f"{alone:.2f}", "at most 0.5"))
    report.table("memory", f"2. Peak extra memory of all eight attacks, {sizes.points:,} points, float32", rows)


def attack_and_measure(signals: Signals, target: int, population: int) -> None:
    for result in attack_targets(signals, EIGHT, [target], Setup(population=population)):
        result.metrics()


def one_pass(sizes: Sizes, report: Report) -> None:
    """The Gaussian statistic's sums against one sum of the signals."""
    rows: list[dict[str, Any]] = []
    few, many = sizes.references
    cases = [
        (few, 1, np.float32, True),
        (many, 1, np.float32, True),
        (few, 4, np.float32, True),
        (many, 4, np.float32, True),
        (few, 1, np.float32, False),
        (many, 1, np.float32, False),
        (few, 1, np.float64, True),
        (few, 1, np.float16, True),
    ]
    for n, views, dtype, paired in cases:
        name = np.dtype(dtype).name
        progress(f"one pass, {n} references, {views} view{'s' * (views > 1)}, {name}")
        signals = draw_signals(n + 2, sizes.points, views, dtype, paired)
        with np.errstate(over="ignore"):  # a sum of float16
            least = fastest(
                {"pass": partial(gaussian_pass, signals), "sum": signals.values[2:].sum}, sizes.fast_repetitions
            )
        rows.append(
            {
                "references": n,
                "views": views,
                "type": name,
                "design": "pairs" if paired else "random",
                "pass CPU s": least["pass"],
                "sum CPU s": least["sum"],
                "pass / sum": least["pass"] / least["sum"],
            }
        )
    ratios = [row["pass / sum"] for row in rows[:4]]
    report.target(
        "the Gaussian statistic's pass over the signals at most 8 x one signals.sum() (pairs, float32)",
        f"{min(ratios):.1f} to {max(ratios):.1f} x; the aim of 4 x is {'met' if max(ratios) <= 4 else 'missed'}",
        max(ratios) <= 8,
    )
    report.summary.append(
        ("Gaussian pass / signals.sum(), pairs", f"{min(ratios):.1f} to {max(ratios):.1f}", "at most 8, aim 4")
    )
    report.table("one_pass", f"3. The Gaussian statistic's pass over {sizes.points:,} points", rows)


def gaussian_pass(signals: Signals) -> object:
    return view_of_first(signals, np.arange(2)).whole().confidence_sums


def fast_cauchy_sum(sizes: Sizes, report: Report) -> None:
    """Many queries against a large population."""
    progress("fast Cauchy sum")
    rng = np.random.default_rng(0)
    statistics = []
    for n, members in ((sizes.population, 0.0), (sizes.queries, 0.5)):
        laws = Laws.draw(n, rng)
        statistics.append(laws.likelihood_ratio(laws.sample(rng.random(n) < members, rng)))
    z, q = (phi / (np.sqrt(2) * statistics[0].std(ddof=1)) for phi in statistics)
    sample = np.argsort(q)[np.linspace(0, len(q) - 1, sizes.exact_queries).astype(np.intp)]

    def exact() -> FloatArray:
        return np.concatenate([cauchy_mean_exact(q[i : i + 1, None] - z).log_abs for i in sample])

    least = fastest({"fast": lambda: cauchy_mean(q, z), "exact": exact}, sizes.slow_repetitions)
    truth, found = exact(), cauchy_mean(q, z).log_abs[sample]
    error = float(np.max(np.abs(found - truth) / np.maximum(1.0, np.abs(truth))))
    in_full = least["exact"] * len(q) / len(sample)
    row = {
        "queries": len(q),
        "population": len(z),
        "fast CPU s": least["fast"],
        "exact CPU s (scaled up)": in_full,
        "exact / fast": in_full / least["fast"],
        "error of log score": error,
    }
    report.target(
        f"{len(q):,} queries x {len(z):,} population points in a few seconds",
        f"{least['fast']:.2f} s; the exact sum would take {in_full / 60:.0f} minutes",
        least["fast"] <= 5,
    )
    report.target("relative error of the log score at most 1e-9", f"{error:.1e}", error <= 1e-9)
    report.summary += [
        (f"exact / fast Cauchy sum, {len(q):,} x {len(z):,}", f"{in_full / least['fast']:,.0f}", ""),
        ("its largest error of the log score", f"{error:.0e}", "at most 1e-9"),
    ]
    report.table("cauchy_sum", f"4. Fast Cauchy sum, the exact one timed on {len(sample)} queries", [row])


def scaling(sizes: Sizes, report: Report) -> None:
    """Growth of the time of all eight attacks."""
    usual_points, usual_models = sizes.points // 2, 64
    series: dict[str, list[tuple[int, Signals, int]]] = {
        "points": [(n, draw_signals(usual_models + 2, n), 6_250) for n in sizes.scaling_points],
        "models": [(n, draw_signals(n + 2, usual_points), 6_250) for n in sizes.scaling_models],
        "views": [(n, draw_signals(usual_models + 2, usual_points, n), 6_250) for n in sizes.scaling_views],
    }
    large = draw_signals(usual_models + 2, sizes.points)
    series["population"] = [(n, large, n) for n in sizes.scaling_population]
    rows = []
    for name, cases in series.items():
        progress(f"scaling with {name}")
        contenders = {}
        for n, signals, population in cases:
            z = outsiders_of_first(signals)
            z = z[:: max(1, len(z) // population)][:population]
            contenders[str(n)] = partial(all_eight, signals, z)
        seconds = list(fastest(contenders, sizes.fast_repetitions).values())
        grown = [n for n, _, _ in cases]
        slope = exponent(grown, seconds)
        rows.append(
            {
                "growing": name,
                "sizes": " ".join(f"{n:,}" for n in grown),
                "CPU s": " ".join(f"{s:.3f}" for s in seconds),
                "exponent": round(slope, 2),
            }
        )
    report.summary.append(
        (
            "exponent of the time of all eight attacks",
            ", ".join(f"{row['growing']} {row['exponent']:.2f}" for row in rows),
            "",
        )
    )
    report.table("scaling", "5. Time of all eight attacks, proportional to size ^ exponent", rows)


def all_targets(sizes: Sizes, report: Report) -> None:
    """Every model as the target in turn."""
    progress("all targets in turn")
    signals = draw_signals(sizes.targets_models, sizes.targets_points)
    everyone = range(sizes.targets_models)
    models = References(signals.values, np.arange(signals.n_models), signals.design.matrix)
    features: list[Feature] = [Powers(midpoint(models)), Probabilities()]
    pairs = [np.array([2 * k, 2 * k + 1]) for k in range(signals.n_models // 2)]

    def attack(targets: Sequence[int]) -> None:
        for _ in attack_targets(signals, EIGHT, targets, Setup()):
            pass

    def sums_once() -> None:
        references = references_of_first(signals)
        for feature in features:
            sum_over(references, feature)

    def sums_for_all() -> None:
        for _ in leave_one_out(models, pairs, range(len(pairs)), features):
            pass

    least = fastest(
        {
            "one": partial(attack, everyone[:1]),
            "all": partial(attack, everyone),
            "sums once": sums_once,
            "sums for all": sums_for_all,
        },
        sizes.slow_repetitions,
    )
    rows = [
        {
            "what": "all eight attacks",
            "alone CPU s": least["one"],
            "in turn, CPU s a target": least["all"] / len(everyone),
            "in turn / alone": least["all"] / len(everyone) / least["one"],
        },
        {
            "what": "sums over the references",
            "alone CPU s": least["sums once"],
            "in turn, CPU s a target": least["sums for all"] / len(everyone),
            "in turn / alone": least["sums for all"] / len(everyone) / least["sums once"],
        },
    ]
    report.summary += [
        (f"time per target, all {len(everyone)} in turn / one alone", f"{rows[0]['in turn / alone']:.2f}", ""),
        ("the same, sums over the references only", f"{rows[1]['in turn / alone']:.2f}", ""),
    ]
    report.table(
        "all_targets", f"6. All targets in turn, {sizes.targets_models} models x {sizes.targets_points:,} points", rows
    )


SECTIONS = [against_published, memory, one_pass, fast_cauchy_sum, scaling, all_targets]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under half a minute")
    parser.add_argument("--only", type=int, action="append", metavar="SECTION", help="number of a section; repeatable")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), help="folder of the JSON file")
    options = parser.parse_args()
    sizes, report = QUICK if options.quick else Sizes(), Report()
    start = time.perf_counter()
    for number, section in enumerate(SECTIONS, 1):
        if not options.only or number in options.only:
            section(sizes, report)

    print("\nTargets" + (", stated for the full sizes: a quick run does not judge them" if options.quick else ""))
    for what, found, met in report.targets:
        print(f"  {'' if options.quick else 'met     ' if met else 'MISSED  '}{what}: {found}")
    lines = ["| measured (RMIA, LiRA: time over that of the paper's eight attacks) | value | target |", "|---|---|---|"]
    table = "\n".join(lines + [f"| {' | '.join(cells)} |" for cells in report.summary])
    print(f"\n{table}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scoring.md").write_text(table + "\n")
    path = options.out / "scoring.json"
    content = {
        "quick": options.quick,
        "seconds": round(time.perf_counter() - start, 1),
        "versions": {
            "plmia": plmia.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        "results": report.results,
        "targets": [
            {"target": what, "found": found, "met": None if options.quick else bool(met)}
            for what, found, met in report.targets
        ],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    print(f"\nWrote {path} after {content['seconds']} s.")


if __name__ == "__main__":
    main()
