"""Distribution of pairwise p-values of members and non-members (`fig:pvalue_distribution`)."""

from __future__ import annotations

import numpy as np

from plmia.evaluation.diagnostics.p_values import pairwise_p_values

from .charts import histogram
from .measure import CONFORMAL, attacks_called, of_result, results
from .outcome import FAILS, HOLDS, PARTLY, Claim, Outcome, Rows, Value
from .setting import Setting

BINS = 20


def run(setting: Setting) -> Outcome:
    """Count p-values in twentieths of [0, 1], and measure how far those of non-members are from uniform."""
    source = setting.source("cifar10_wrn")
    shares: dict[str, dict[str, list[list[float]]]] = {}
    distances: dict[str, list[tuple[float, float]]] = {}
    conformal: dict[str, list[float | None]] = {}
    for result in results(source, attacks_called("pl-mia", "pl-mia-eb")):
        rng = np.random.default_rng([source.seed, 5, result.target])
        found = pairwise_p_values(result.scores.statistic, result.population, result.truth, rng)
        by_group = shares.setdefault(result.scores.attack, {"members": [], "non-members": []})
        for name, counts in (("members", found.members), ("non-members", found.non_members)):
            by_group[name].append((BINS * np.array(counts) / sum(counts)).tolist())
        pair = (found.distance or 0.0, found.distance_by_query or 0.0)
        distances.setdefault(result.scores.attack, []).append(pair)
        conformal.setdefault(result.scores.attack, []).append(of_result(result)[CONFORMAL])
    ours: Rows = {
        (f"{attack}, {group}", f"{i / BINS:.2f}-{(i + 1) / BINS:.2f}"): {
            "density": Value.over([row[i] for row in rows])
        }
        for attack, by_group in shares.items()
        for group, rows in by_group.items()
        for i in range(BINS)
    }
    # A density below 1 % is a share in percent.
    ours |= {
        (f"{attack}, non-members", "conformal, at most 0.01"): {"density": Value.over(v)}
        for attack, v in conformal.items()
    }
    means = {group: np.mean(rows, axis=0).tolist() for group, rows in shares["pl-mia"].items()}
    drawn = histogram(
        "figure-3",
        [i / BINS for i in range(BINS + 1)],
        means,
        "pairwise p-value",
        "Density of pairwise p-values of members and non-members; the dashed line is the uniform law.",
    )
    return Outcome("figure-3", (source,), ours, (), (drawn,), _claims(means, distances["pl-mia"]))


def _claims(means: dict[str, list[float]], distances: list[tuple[float, float]]) -> tuple[Claim, ...]:
    others, members = means["non-members"], means["members"]
    apart, by_query = np.mean(distances, axis=0)
    inner = others[1:-1]
    verdict = HOLDS if apart < 0.05 and min(inner) > 0.5 and max(inner) < 1.5 else PARTLY if apart < 0.1 else FAILS
    low = members[0] / others[0]
    return (
        Claim(
            "uniform",
            verdict,
            f"Densities of the twentieths range from {min(others):.2f} to {max(others):.2f} (first {others[0]:.2f}, "
            f"last {others[-1]:.2f}); Kolmogorov distance from uniform {apart:.3f} [close: below 0.05, all but the "
            f"first and last between 0.5 and 1.5; in part: below 0.1]. This is the distribution over all queries: "
            f"p-values of one query share its statistic and are at {by_query:.2f} from uniform on average.",
        ),
        Claim(
            "members",
            HOLDS if low > 1 else FAILS,
            f"In the first twentieth members have {low:.2f} times the density of non-members.",
        ),
    )
