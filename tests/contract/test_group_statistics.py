"""One suite over all group statistics: what `GroupStatistic` promises, alone and in a whole attack."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from plmia import ATTACKS, Setup, Signals, attack_targets
from plmia.attacks.groups import (
    Groups,
    GroupStatistic,
    LearnedOverGroup,
    MaxOverGroup,
    OneRow,
    PlainGroupStatistic,
    Played,
    SumOverGroup,
)
from plmia.data.arrays import FloatArray
from plmia.data.designs import complementary_pairs

PEOPLE = 90


@dataclass(frozen=True)
class MeanOverGroup(PlainGroupStatistic):
    """A user's own: nothing but the call is needed."""

    def __call__(self, phi: FloatArray, groups: Groups) -> FloatArray:
        return groups.sum(phi) / groups.size


STATISTICS: list[GroupStatistic] = [
    OneRow(),
    OneRow(4),
    MaxOverGroup(),
    SumOverGroup(),
    LearnedOverGroup(),
    MeanOverGroup(),
]


def _groups(seed: int = 0) -> Groups:
    rng = np.random.default_rng(seed)
    return Groups.of(rng.permutation(np.repeat(5 * np.arange(PEOPLE), rng.integers(1, 6, PEOPLE))))


def _played(groups: Groups, seed: int) -> list[Played]:
    rng = np.random.default_rng(seed)
    members = [rng.permutation(PEOPLE) < PEOPLE // 2 for _ in range(3)]
    shape = len(groups.of_record)
    return [Played(rng.standard_t(2, shape) + 2 * each[groups.of_record], each) for each in members]


def _signals(seed: int = 0, views: int = 2) -> Signals:
    rng, groups = np.random.default_rng(seed), _groups(seed).of_record
    design = complementary_pairs(len(groups), 6, rng, groups)
    values = rng.normal(size=(*design.matrix.shape, views)) + 1.5 * design.matrix[:, :, None]
    return Signals(values.astype(np.float32), design, groups=groups)


@pytest.mark.parametrize("statistic", STATISTICS, ids=repr)
class TestGroupStatistic:
    def test_it_is_one_finite_value_per_group(self, statistic: GroupStatistic) -> None:
        groups = _groups()
        for played in (_played(groups, 1), _played(groups, 1)[:1], []):
            value = statistic.fit(played, groups)(_played(groups, 2)[0].phi, groups)
            assert value.shape == (PEOPLE,)
            assert value.dtype == np.float64
            assert np.isfinite(value).all()

    def test_a_value_depends_on_the_records_of_its_group_only(self, statistic: GroupStatistic) -> None:
        groups = _groups()
        fitted, phi = statistic.fit(_played(groups, 1), groups), _played(groups, 2)[0].phi
        for group in range(0, PEOPLE, 10):
            elsewhere = np.where(groups.of_record == group, phi, phi[::-1] - 3)
            assert fitted(elsewhere, groups)[group] == pytest.approx(fitted(phi, groups)[group], rel=1e-12)

    def test_larger_records_never_lower_a_group(self, statistic: GroupStatistic) -> None:
        groups = _groups()
        fitted, phi = statistic.fit(_played(groups, 1), groups), _played(groups, 2)[0].phi
        more = phi + np.random.default_rng(3).exponential(size=len(phi))
        assert (fitted(more, groups) >= fitted(phi, groups)).all()

    def test_the_same_input_gives_the_same_value_and_is_not_changed(self, statistic: GroupStatistic) -> None:
        groups, played = _groups(), _played(_groups(), 1)
        phi = _played(groups, 2)[0].phi
        kept = phi.copy()
        values = [statistic.fit(played, groups)(phi, groups) for _ in range(2)]
        assert values[0].tobytes() == values[1].tobytes()
        assert phi.tobytes() == kept.tobytes()

    @pytest.mark.parametrize("mode", ["online", "offline"])
    def test_attacks_judge_people_with_it(self, statistic: GroupStatistic, mode: str) -> None:
        setup = Setup("online" if mode == "online" else "offline", group_statistic=statistic)
        attacks = [ATTACKS[name] for name in ("attack-r", "rmia", "lira-fixed", "pl-mia", "pl-mia-pooled")]
        for result in attack_targets(_signals(), attacks, [0, 5], setup):
            scores = result.scores
            for array in (scores.score, scores.log10_p, scores.log10_p_conformal):
                assert array.shape == (PEOPLE,)
                assert np.isfinite(array).all()
            assert (scores.log10_p_conformal <= 0).all()
            assert not result.by_one_record
            assert result.metrics().auc > 0.5

    def test_the_names_of_groups_do_not_matter(self, statistic: GroupStatistic) -> None:
        signals = _signals()
        assert signals.groups is not None
        names = np.sort(np.random.default_rng(1).choice(10_000, PEOPLE, replace=False))
        renamed = replace(signals, groups=names[signals.groups])
        (first,), (second,) = (
            attack_targets(each, [ATTACKS["rmia"]], [0], Setup(group_statistic=statistic))
            for each in (signals, renamed)
        )
        assert first.scores.score.tobytes() == second.scores.score.tobytes()
        assert np.array_equal(first.population, second.population)
