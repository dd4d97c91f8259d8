"""Comparisons of runs err as often as they say, and find a defence that works.

Every test has fixed seeds. A bound on a number of rejections is the 99.99 % quantile of what a valid test gives, so a
valid test fails here by chance once in 10,000 seeds.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from plmia.attacks.scoring import Scores
from plmia.results.comparison import Run, compare_runs

REPEATS, LEVEL = 300, 0.05


class Drawn:
    """Results of a run, drawn from the Gaussian model: what `SavedRun` would read."""

    attacks = ("a",)
    folder = "drawn"

    def __init__(self, members, truths):
        self.result = SimpleNamespace(about=SimpleNamespace(data_digest=None, people=False))
        self.targets = list(range(len(truths)))
        self.labels = None
        self._members, self._scores = members, truths

    def members(self, target):
        return self._members[target]

    def queries(self, target):
        return np.arange(self._members[target].size)

    def scores(self, attack, target):
        score = self._scores[target]
        return Scores(attack, score, score, score, score)

    def roc(self, attack, target):
        from plmia.evaluation.metrics import roc_curve

        return roc_curve(self._scores[target], self._members[target])


def draw(rng, shifts, *, common, targets=1, queries=600):
    """Two runs; ``common`` is the share of the scores' variance that belongs to the record, 0 for other records."""
    members = [rng.permutation(np.arange(queries) < queries // 2) for _ in range(targets)]
    records = [rng.normal(size=queries) for _ in range(targets)]
    runs = []
    for number, shift in enumerate(shifts):
        if not common and number:
            members = [rng.permutation(row) for row in members]
        scores = [
            shift * row + np.sqrt(common) * record + np.sqrt(1 - common) * rng.normal(size=queries)
            for row, record in zip(members, records, strict=True)
        ]
        runs.append(Run(str(number), Drawn(members, scores)))
    return runs


def p_values(shifts, seed, **how):
    """p-values [repeats] of AUC and of TPR at 5 %, before any adjustment, and the method that gave them."""
    found, methods = [], set()
    for repeat in range(REPEATS):
        rng = np.random.default_rng([seed, repeat])
        (pair,) = compare_runs(draw(rng, shifts, **how), rng, fprs=[0.05]).pairs
        found.append([row.change.p_value for row in pair.rows])
        methods.add(pair.method)
    assert len(methods) == 1
    return (*np.transpose(found), methods.pop())


CASES = [
    ("paired records", {"common": 0.7}),
    ("unpaired records", {"common": 0.0}),
    ("paired targets", {"common": 0.7, "targets": 4, "queries": 300}),
    ("unpaired targets", {"common": 0.0, "targets": 4, "queries": 300}),
]


@pytest.mark.parametrize(("method", "how"), CASES)
def test_runs_of_the_same_law_are_told_apart_no_more_often_than_said(method, how):
    auc, tpr, used = p_values((1.0, 1.0), 1, **how)
    assert used == method
    most = stats.binom.ppf(1 - 1e-4, REPEATS, LEVEL)
    assert np.count_nonzero(auc < LEVEL) <= most
    assert np.count_nonzero(tpr < LEVEL) <= most
    # The p-value of the AUC is not only small rarely enough, it is uniform.
    assert stats.kstest(auc, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(("method", "how"), CASES)
def test_a_defence_that_works_is_found(method, how):
    auc, _, used = p_values((2.0, 1.0), 2, **how)
    assert used == method
    assert np.count_nonzero(auc < LEVEL) > 0.95 * REPEATS


def test_pairs_find_what_independent_runs_do_not():
    """The same small difference: records in common take out most of the noise."""
    (paired, _, _), (unpaired, _, _) = (p_values((1.0, 0.85), 3, common=common) for common in (0.9, 0.0))
    assert np.count_nonzero(paired < LEVEL) > 2 * np.count_nonzero(unpaired < LEVEL)


def test_no_more_than_one_family_in_twenty_has_a_false_alarm():
    """Adjusted together: rows of two further runs, both of the first one's law."""
    alarms = 0
    for repeat in range(REPEATS):
        rng = np.random.default_rng([4, repeat])
        found = compare_runs(draw(rng, (1.0, 1.0, 1.0), common=0.7), rng, fprs=[0.05])
        alarms += any(row.shown for pair in found.pairs for row in pair.rows)
    assert alarms <= stats.binom.ppf(1 - 1e-4, REPEATS, LEVEL)
