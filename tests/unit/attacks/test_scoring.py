"""Running attacks on one view: checks of the statistic, conformal p-values, independence of the other attacks."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import ClassVar

import numpy as np
import pytest

from plmia.attacks.attack import ATTACKS, Attack
from plmia.attacks.calibration import (
    BinaryVote,
    CauchyCombination,
    FreshPopulation,
    MeanOfViews,
    MedianOfViews,
    NoCalibration,
    VotesOfViews,
    WithinClass,
)
from plmia.attacks.scoring import conformal_log10_p, score, score_all
from plmia.attacks.statistics import (
    BayesLR,
    Fitted,
    FunctionOfView,
    GaussianLR,
    Loss,
    PointwiseStatistic,
    Statistic,
    evaluate,
)
from plmia.attacks.view import AttackView, Block, Features
from plmia.errors import AttackError, PopulationError

FRESH = Attack("fresh", GaussianLR(), CauchyCombination(), population=FreshPopulation(7))
FRESH_VOTES = Attack("fresh votes", BayesLR(), BinaryVote(), VotesOfViews(), FreshPopulation(5))
CLASSES = Attack("classes", Loss(), CauchyCombination(), MedianOfViews(), WithinClass())
ALL = [*ATTACKS.values(), FRESH, FRESH_VOTES, CLASSES]


@pytest.fixture
def view(make_references, make_view):
    return make_view(make_references(10, 50, 2), population=20, labels=np.arange(50) % 3)


def naive_conformal(phi, queries, population):
    found = []
    for query in queries:
        rivals = [z for z in population if z != query]
        found.append((1 + sum(phi[z] >= phi[query] for z in rivals)) / (1 + len(rivals)))
    return found


@pytest.mark.parametrize("levels", [None, 4])
def test_conformal_p_values_match_the_definition(levels):
    rng = np.random.default_rng(0)
    phi = rng.normal(size=40) if levels is None else rng.integers(0, levels, 40).astype(float)
    population, queries = rng.permutation(40)[:15], rng.permutation(40)[:30]
    assert len(np.intersect1d(population, queries)) > 3
    found = conformal_log10_p(phi, queries, population)
    assert 10**found == pytest.approx(naive_conformal(phi, queries, population), rel=1e-12)


def test_members_of_the_population_have_the_p_values_of_fresh_null_points():
    phi = np.random.default_rng(0).normal(size=20)
    p = 10 ** conformal_log10_p(phi, np.arange(20), np.arange(20))
    assert sorted(p) == pytest.approx(np.arange(1, 21) / 20)


@pytest.mark.parametrize("attack", [FRESH, CLASSES, *ATTACKS.values()], ids=lambda a: a.name)
def test_results_carry_conformal_p_values_of_the_statistic(view, attack):
    found = score(attack, view, np.random.default_rng(0))
    summary = attack.views.points(evaluate(attack.statistic, view))
    for query in range(50):
        z = view.population
        if attack is CLASSES:
            z = [x for x in z if view.labels[x] == view.labels[query]]
        exact = naive_conformal(summary, [query], z)[0]
        assert 10 ** found.log10_p_conformal[query] == pytest.approx(exact, rel=1e-12)
    own = isinstance(attack.calibration, CauchyCombination)
    assert np.array_equal(found.log10_p, found.log10_p_conformal) != own
    assert (found.log10_p <= 0).all()
    assert found.attack == attack.name


def test_scoring_all_equals_scoring_one_by_one(view):
    for found, attack in zip(score_all(ALL, view, seed=5), ALL, strict=True):
        rng = np.random.default_rng([5, zlib.crc32(attack.name.encode())])
        alone = score(attack, view, rng)
        for name in ("score", "log10_p", "log10_p_conformal"):
            assert getattr(found, name).tobytes() == getattr(alone, name).tobytes()


def test_a_result_does_not_depend_on_which_others_run(view):
    together = {scores.attack: scores.score.tobytes() for scores in score_all(ALL, view, seed=5)}
    backwards = {scores.attack: scores.score.tobytes() for scores in score_all(ALL[::-1], view, seed=5)}
    alone = {attack.name: next(score_all([attack], view, seed=5)).score.tobytes() for attack in ALL}
    assert together == backwards == alone
    assert next(score_all([FRESH], view, seed=6)).score.tobytes() != together["fresh"]


def test_a_shared_statistic_is_computed_once(view):
    calls = []

    @dataclass(frozen=True)
    class Counted:
        number: int

        def __call__(self, view):
            calls.append(self.number)
            return view.target

    attacks = [
        Attack("a", Counted(1), NoCalibration()),
        Attack("b", Counted(2), NoCalibration()),
        Attack("c", Counted(1), BinaryVote()),
    ]
    assert [scores.attack for scores in score_all(attacks, view)] == ["a", "b", "c"]
    assert calls == [1, 2]


@pytest.mark.parametrize("n_views", [1, 2, 3])
def test_blocks_do_not_change_a_byte(make_references, make_view, monkeypatch, n_views):
    view = make_view(make_references(12, 90, n_views, dtype=np.float32), population=30, labels=np.arange(90) % 3)
    attacks = [attack for attack in ALL if attack.name != "pl-mia-eb"]  # its products of matrices round differently
    whole = [(found.score.tobytes(), found.log10_p.tobytes()) for found in score_all(attacks, view)]
    monkeypatch.setattr("plmia.attacks.view.POINTS_PER_BLOCK", 16)
    assert [(found.score.tobytes(), found.log10_p.tobytes()) for found in score_all(attacks, view)] == whole


def test_the_fit_happens_once_and_travels_with_the_scores(view):
    fits, blocks = [], []

    @dataclass(frozen=True)
    class Shifted(Statistic):
        def fit(self, view):
            fits.append(view.n_points)
            return Difference(float(view.target.mean()))

    @dataclass(frozen=True)
    class Difference(Fitted):
        mean: float

        def __call__(self, block):
            blocks.append(block.points)
            return block.target - self.mean

        def summary(self):
            return {"mean": self.mean}

    attacks = [Attack("a", Shifted(), NoCalibration()), Attack("b", Shifted(), BinaryVote()), ATTACKS["lira"]]
    a, b, lira = score_all(attacks, view)
    assert (fits, blocks) == ([50], [slice(0, 50)])
    assert a.fit == b.fit == {"mean": view.target.mean()}
    assert lira.fit is None
    assert a.score == pytest.approx((view.target - view.target.mean()).mean(axis=1))


def test_a_function_of_the_view_is_a_statistic(view):
    attack = Attack("mine", lambda view: view.target - view.target.mean(axis=0), NoCalibration())
    assert isinstance(attack.statistic, FunctionOfView)
    (found,) = score_all([attack], view)
    assert found.score == pytest.approx((view.target - view.target.mean(axis=0)).mean(axis=1))


def test_a_policy_that_is_shared_in_name_only_is_refused(view):
    class Wrong(FreshPopulation):
        shared = True

    attack = Attack("mine", Loss(), BinaryVote(), population=Wrong(5))
    with pytest.raises(AttackError, match="mine"):
        list(score_all([attack], view))


@pytest.mark.parametrize("attack", ALL, ids=lambda a: a.name)
def test_progress_adds_up_to_the_points(view, attack):
    steps = []
    score(attack, view, np.random.default_rng(0), steps.append)
    assert sum(steps) == 50


def test_an_attack_whose_population_has_no_spread_does_not_stop_the_others(view, given_statistic):
    flat = Attack("flat", given_statistic(np.ones((50, 2))), CauchyCombination())
    attacks = [flat, Attack("loss", Loss(), CauchyCombination())]
    with pytest.raises(PopulationError, match="same statistic"):
        list(score_all(attacks, view))
    steps, told = [], []
    found = score_all(attacks, view, tick=steps.append, refused=lambda name, error: told.append((name, type(error))))
    assert [scores.attack for scores in found] == ["loss"]
    assert told == [("flat", PopulationError)]
    assert sum(steps) == 2 * 50


@pytest.mark.parametrize("shape", [(50,), (50, 1), (49, 2), (2, 50), ()])
def test_a_statistic_of_another_shape_is_refused(view, given_statistic, shape):
    attack = Attack("mine", given_statistic(np.zeros(shape)), NoCalibration())
    with pytest.raises(AttackError, match=r"\bmine has shape \(.*\), \(50, 2\)"):
        list(score_all([attack], view))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_statistic_that_is_not_finite_is_refused(view, given_statistic, value):
    phi = np.zeros((50, 2))
    phi[[3, 17], [0, 1]] = value
    with pytest.raises(AttackError, match=r"\bmine is not finite .*\b3, 17\b"):
        list(score_all([Attack("mine", given_statistic(phi), NoCalibration())], view))


def test_a_statistic_that_fails_is_named_with_its_line(view):
    @dataclass(frozen=True)
    class Broken:
        def __call__(self, view):
            return view.target + np.ones(7)

    with pytest.raises(AttackError, match=r"attack mine does not run: ValueError: .*test_scoring.py, line \d+"):
        list(score_all([Attack("mine", Broken(), NoCalibration())], view))


def bytes_of(attack: Attack, view: AttackView) -> list[bytes]:
    (found,) = score_all([attack], view)
    return [array.tobytes() for array in (found.score, found.log10_p, found.log10_p_conformal, found.statistic)]


def require_refused(mine: Attack, view: AttackView, fact: str) -> None:
    """Refuse an attack with its name, file and line; others that share the view or a statistic stay as they are."""
    others = [ATTACKS["attack-p"], ATTACKS["lira"]]
    before = [bytes_of(other, view) for other in others]
    with pytest.raises(AttackError, match=rf"attack mine .*{fact}.*test_scoring.py, line \d+"):
        list(score_all([mine, *others], view))
    assert [bytes_of(other, view) for other in others] == before


VIEW_ARRAYS = [
    *("target", "population", "labels", "groups", "features.columns", "known.centre"),
    *("references.signals", "references.rows", "references.in_mask", "references.n_in"),
]


@pytest.mark.parametrize("name", VIEW_ARRAYS)
def test_a_function_that_writes_into_the_view_is_refused(view, name):
    more = {"groups": np.arange(50), "features": Features(np.ones((50, 1)))}
    view = replace(view, **more).with_sums({"confidence"})

    def write(view: AttackView) -> object:
        attrgetter(name)(view)[...] = 0
        return view.target

    require_refused(Attack("mine", write, NoCalibration()), view, "read-only")


BLOCK_ARRAYS = [
    *("target", "centre", "references.in_mask", "confidence_sums.outside", "confidence_sums.n_in"),
    *("probability_sums.outside", "in_moments.mean", "out_moments.mean", "out_moments.variance"),
]


@dataclass(frozen=True)
class WritesIntoBlock(PointwiseStatistic):
    name: str

    def __call__(self, block: Block) -> object:
        array = attrgetter(self.name)(block)
        array -= array
        return block.target


@pytest.mark.parametrize("name", BLOCK_ARRAYS)
def test_a_statistic_that_writes_into_a_block_is_refused(view, name):
    fact = "(read-only|numpy boolean subtract)"
    require_refused(Attack("mine", WritesIntoBlock(name), NoCalibration()), view, fact)


class WritesIntoQueries(BinaryVote):
    def shared(self, query, population, size):
        query -= 1
        return super().shared(query, population, size)


class WritesIntoPhi(MeanOfViews):
    def points(self, phi):
        phi -= 1
        return super().points(phi)


@pytest.mark.parametrize(
    "mine",
    [Attack("mine", Loss(), WritesIntoQueries()), Attack("mine", Loss(), BinaryVote(), WritesIntoPhi())],
    ids=["calibration", "views"],
)
def test_a_part_that_writes_into_a_shared_statistic_is_refused(view, mine):
    require_refused(mine, view, "read-only")


class WithoutTextError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


ODD_ERRORS = [SystemExit(0), BaseException("no"), WithoutTextError(), RuntimeError("no"), StopIteration()]


def raising(error: BaseException) -> Callable[..., object]:
    def call(*_: object) -> object:
        raise error

    return call


@pytest.mark.parametrize("error", ODD_ERRORS, ids=lambda e: type(e).__name__)
def test_whatever_an_attack_raises_is_one_sentence(view, error):
    name = type(error).__name__
    require_refused(Attack("mine", raising(error), NoCalibration()), view, name)
    calibration = type("Calibration", (BinaryVote,), {"shared": raising(error), "__module__": "mine"})()
    require_refused(Attack("mine", Loss(), calibration), view, name)
    views = type("Views", (MeanOfViews,), {"points": raising(error), "__module__": "mine"})()
    require_refused(Attack("mine", Loss(), BinaryVote(), views), view, name)
    summary = {"__call__": lambda self, block: block.target, "summary": raising(error), "__module__": "mine"}
    require_refused(Attack("mine", type("Own", (PointwiseStatistic,), summary)(), BinaryVote()), view, name)


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_an_interruption_passes_through_an_attack(view, error):
    with pytest.raises(error):
        list(score_all([Attack("mine", raising(error()), NoCalibration())], view))


def test_an_aggregation_that_fails_is_named_with_its_own_attack(view):
    views = type("Views", (MeanOfViews,), {"points": raising(RuntimeError("no")), "__module__": "mine"})()
    with pytest.raises(AttackError, match="attack second does not run"):
        list(score_all([Attack("first", Loss(), BinaryVote()), Attack("second", Loss(), BinaryVote(), views)], view))


class RecordingLoss(Loss):
    """A statistic of a user that notes in which threads it runs."""

    seen: ClassVar[set[int]] = set()

    def __call__(self, block):
        self.seen.add(threading.get_ident())
        return super().__call__(block)


class RecordingMean(MeanOfViews):
    """A view aggregation of a user that notes in which threads it runs."""

    seen: ClassVar[set[int]] = set()

    def points(self, phi):
        self.seen.add(threading.get_ident())
        return super().points(phi)


@pytest.mark.parametrize(
    "attack",
    [
        Attack("mine", RecordingLoss(), NoCalibration()),
        Attack("mine", Loss(), NoCalibration(), RecordingMean()),
    ],
)
def test_parts_of_users_run_in_one_thread(make_references, make_view, monkeypatch, attack):
    monkeypatch.setattr("plmia.data.threads.n_processors", lambda: 3)
    monkeypatch.setattr("plmia.attacks.view.POINTS_PER_BLOCK", 5)
    seen = RecordingLoss.seen if isinstance(attack.statistic, RecordingLoss) else RecordingMean.seen
    score(attack, make_view(make_references(10, 50, 2), population=20), np.random.default_rng(0))
    assert seen == {threading.get_ident()}
