"""Scores of the example signals against `expected.json`, which `scripts/make_golden.py` computed by slow, plain code.

Tolerances: the package adds up float16 signals in float32, 32 terms at a time, so means and variances carry a relative
error of some 1e-6; a likelihood ratio, and the Cauchy score that grows with its square, up to ten times that. Votes,
ranks, conformal p-values, AUC and TPR are counts. They are equal unless two statistics are closer to each other than
that error, which none of the expected points is; over all points a handful of the 750,000 pairs may change sides.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from plmia import ATTACKS, AttackView, MembershipDesign, Setup, attack_targets, evaluate, read_signals
from plmia.attacks.scoring import score_all
from plmia.attacks.view import References

EXPECTED: dict[str, Any] = json.loads((Path(__file__).parent / "expected.json").read_text(encoding="utf-8"))
FILE = Path(__file__).parents[2] / "examples" / EXPECTED["source"]
COUNTED = {"attack-p", "attack-r", "rmia", "pl-mia-plus"}

Floats = npt.NDArray[np.float64]
Results = dict[str, dict[str, Any]]


def _results(mode: Any) -> Results:
    signals = read_signals(FILE)
    rows = np.arange(2, signals.n_models)
    members = signals.design.matrix[EXPECTED["target"]]
    population = np.array(EXPECTED["population"])
    view = AttackView(
        signals.values[EXPECTED["target"]].astype(np.float64),
        References(signals.values, rows, signals.design.matrix[rows]),
        population,
        mode=mode,
    )
    queries = np.setdiff1d(np.arange(signals.n_points), population)
    results: Results = {}
    for scores in score_all(list(ATTACKS.values()), view):
        metrics = evaluate(scores.score[queries], members[queries], target=0)
        results[scores.attack] = {
            "score": scores.score[EXPECTED["points"]],
            "log10_p": scores.log10_p[EXPECTED["points"]],
            "log10_p_conformal": scores.log10_p_conformal[EXPECTED["points"]],
            "auc": metrics.auc,
            "tpr": {f"{fpr:g}": metrics.tpr_at(fpr).tpr for fpr in metrics.fprs},
        }
    return results


@pytest.fixture(scope="module", params=["online", "offline"])
def both(request: pytest.FixtureRequest) -> tuple[Results, Results]:
    """What was computed, and what is expected."""
    return _results(request.param), EXPECTED[request.param]


def test_the_expected_attacks_are_all_attacks() -> None:
    assert set(EXPECTED["online"]) == set(EXPECTED["offline"])
    assert set(EXPECTED["online"]) <= set(ATTACKS)
    assert len(EXPECTED["online"]) == 8


@pytest.mark.parametrize("name", EXPECTED["online"])
def test_scores(name: str, both: tuple[Results, Results]) -> None:
    got, expected = (side[name]["score"] for side in both)
    if name in COUNTED:
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    else:
        np.testing.assert_allclose(got, expected, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("name", EXPECTED["online"])
def test_p_values(name: str, both: tuple[Results, Results]) -> None:
    got, expected = (side[name] for side in both)
    np.testing.assert_allclose(got["log10_p"], expected["log10_p"], rtol=3e-5, atol=3e-5)
    np.testing.assert_allclose(got["log10_p_conformal"], expected["log10_p_conformal"], atol=1e-12)


@pytest.mark.parametrize("name", EXPECTED["online"])
def test_metrics(name: str, both: tuple[Results, Results]) -> None:
    got, expected = (side[name] for side in both)
    assert got["auc"] == pytest.approx(expected["auc"], abs=1e-5)
    assert got["tpr"] == pytest.approx(expected["tpr"], abs=1e-12)


def test_the_same_seed_still_draws_the_same_population() -> None:
    """Results of an earlier version can be repeated only as long as this holds."""
    (result,) = attack_targets(read_signals(FILE), [ATTACKS["attack-p"]], [EXPECTED["target"]], Setup())
    assert result.population.tolist() == EXPECTED["population"]


def test_the_example_is_in_complementary_pairs() -> None:
    design: MembershipDesign = read_signals(FILE).design
    assert [pair.tolist() for pair in design.splits()] == [[2 * k, 2 * k + 1] for k in range(17)]
