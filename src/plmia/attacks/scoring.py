"""Scoring: run attacks on one target, from the statistic through the calibration to scores and p-values.

Statistics are evaluated block by block and share the sums of a block, so memory beyond the results is bounded by the
block. Two things are kept for all records: sums that a fit needs (for a variance that all records share), until the
statistics that read them are done, and the statistic in every view, if a calibration compares pairs one by one.
"""

from __future__ import annotations

import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from plmia.attacks.attack import Attack
from plmia.attacks.calibration import (
    Comparison,
    PopulationPolicy,
    ViewAggregation,
    pairwise_scores,
    require_like_queries,
)
from plmia.attacks.cauchy_sum import SignedLog
from plmia.attacks.groups import Groups, GroupStatistic, OneRow, Played, SizeScale, size_ranges
from plmia.attacks.statistics import Fitted, Statistic
from plmia.attacks.view import AttackView, Block, References, SumName
from plmia.data import memory
from plmia.data.arrays import BoolArray, FloatArray, IntArray, read_only
from plmia.data.threads import in_order
from plmia.data.user_code import PASSED_ON, described
from plmia.errors import AttackError, PlmiaError, PopulationError, ReferencesError, some
from plmia.numerics import count_below

Tick = Callable[[int], None]
Refused = Callable[[str, PlmiaError], None]
"""Called with the name of an attack that lacks references or a population with some spread, and the error."""
Lacking = ReferencesError | PopulationError
"""Error of an attack that lacks references or a population; it need not stop the others."""
LACKING = ReferencesError, PopulationError


@dataclass(frozen=True)
class Scores:
    """Result of one attack, by name, on one target: one value per record in every array.

    The score of a Cauchy combination is arcsinh of the paper's Score_PL, which keeps the order and stays finite. Its
    own p-value is the combined one, which is only nominal: its null law is an approximation that fails on real data.
    The conformal p-value, (1 + #{z: phi_z >= phi_q}) / (|Z| + 1), is valid whenever the query is exchangeable with the
    population.
    """

    attack: str
    score: FloatArray  # larger means member
    log10_p: FloatArray  # of the attack's own p-value: the conformal one if it combines none
    log10_p_conformal: FloatArray
    statistic: FloatArray  # the pointwise statistic phi, aggregated over views
    has_combined_p: bool = False
    fit: Mapping[str, object] | None = None  # what the statistic estimated from all points; see `Fitted.summary`


@dataclass
class StatisticValues:
    """A fitted statistic at all records, as far as calibrations need it."""

    attack: Attack  # the first that uses it, for messages
    fitted: Fitted
    per_point: dict[ViewAggregation, FloatArray]  # [points]
    per_view: FloatArray | None  # [points, views], if pairs are compared
    users: Mapping[ViewAggregation, Attack]  # the first that aggregates views in this way, for messages
    bad: list[int] = field(default_factory=list)  # points where it is not finite

    @classmethod
    def fit(cls, attacks: Sequence[Attack], view: AttackView) -> StatisticValues:
        """Fit the statistic that these attacks share."""
        with _naming(attacks[0], attacks[0].statistic.source), np.errstate(all="ignore"):
            fitted = attacks[0].statistic.fit(view)
        per_point = {attack.views: memory.empty(view.n_points) for attack in attacks}
        pairs = any(attack.compares_pairs for attack in attacks)
        users = {attack.views: attack for attack in reversed(attacks)}
        return cls(attacks[0], fitted, per_point, memory.empty(view.target.shape) if pairs else None, users)

    def put(self, block: Block) -> None:
        """Evaluate the statistic at the records of ``block``."""
        # Floating-point warnings are off: the result is checked below, and one sentence names the points.
        with _naming(self.attack, self.attack.statistic.source), np.errstate(all="ignore"):
            phi = read_only(np.asarray(self.fitted(block), dtype=np.float64))
        if phi.shape != block.target.shape:
            raise AttackError(
                f"the statistic of {self.attack.name} has shape {phi.shape}, {block.target.shape} [records, views] is "
                "needed: return one value per record and view"
            )
        self.bad += (np.flatnonzero(~np.isfinite(phi).all(axis=1)) + block.points.start).tolist()
        for views, values in self.per_point.items():
            with _naming(self.users[views], views):
                values[block.points] = views.points(phi)
        if self.per_view is not None:
            self.per_view[block.points] = phi


def evaluate_statistics(attacks: Sequence[Attack], view: AttackView) -> dict[Statistic, StatisticValues | Lacking]:
    """Evaluate the statistics of all attacks block by block; sums over references are computed once."""
    # Statistics that read the sums of a fit have a pass of their own, after which these sums are freed. A statistic
    # that lacks references does not stop the others: its error is in its place.
    kept = frozenset[SumName]().union(*(attack.statistic.fit_uses() for attack in attacks))
    readers = [attack for attack in attacks if (attack.statistic.uses | attack.statistic.fit_uses()) & kept]
    others = [attack for attack in attacks if attack not in readers]
    return {**_one_pass(readers, view.with_sums(kept)), **_one_pass(others, view)}


def _one_pass(attacks: Sequence[Attack], view: AttackView) -> dict[Statistic, StatisticValues | Lacking]:
    fitted, refused = _fit_each(attacks, view)

    def put(block: Block) -> dict[Statistic, Lacking]:
        """Evaluate all statistics at one block, and return the errors of those that lack references there."""
        lacking: dict[Statistic, Lacking] = {}
        for statistic in [each for each in fitted if each not in refused]:
            try:
                fitted[statistic].put(block)
            except ReferencesError as error:
                lacking[statistic] = error
        return lacking

    # Code of users need not expect threads.
    parts = [part for statistic, values in fitted.items() for part in (statistic.source, *values.users)]
    each = in_order if all(map(_is_own, parts)) else map
    for lacking in each(put, view.blocks()):
        refused = {**lacking, **refused}
    for statistic, values in fitted.items():
        if values.bad and statistic not in refused:
            where = f"record {some(sorted(values.bad))}"
            raise AttackError(f"the statistic of {values.attack.name} is not finite at {where}: check the signals")
    return {**fitted, **refused}


def _fit_each(
    attacks: Sequence[Attack], view: AttackView
) -> tuple[dict[Statistic, StatisticValues], dict[Statistic, Lacking]]:
    """Fit the statistics of all attacks, each once; the second part has the errors of those that lack references."""
    users: dict[Statistic, list[Attack]] = {}
    for attack in attacks:
        users.setdefault(attack.statistic, []).append(attack)
    fitted: dict[Statistic, StatisticValues] = {}
    refused: dict[Statistic, Lacking] = {}
    for statistic, alike in users.items():
        try:
            fitted[statistic] = StatisticValues.fit(alike, view)
        except LACKING as error:
            refused[statistic] = error
    return fitted, refused


def _is_own(part: object) -> bool:
    """Whether a part of an attack belongs to this package, rather than to a user."""
    return type(part).__module__.startswith("plmia.")


@contextmanager
def _naming(attack: Attack, *parts: object) -> Iterator[None]:
    """Turn an error in a user's own part into one sentence with its file and line; other errors pass."""
    try:
        yield
    except PASSED_ON:
        raise
    except BaseException as error:
        if isinstance(error, PlmiaError) or all(map(_is_own, parts)):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        here = str(Path(__file__).parent)
        where = next((frame for frame in frames if not frame.filename.startswith(here)), frames[-1])
        raise AttackError(
            f"attack {attack.name} does not run: {described(error)} "
            f"({where.filename}, line {where.lineno}): correct it there"
        ) from error


def score(attack: Attack, view: AttackView, rng: np.random.Generator, tick: Tick = lambda _: None) -> Scores:
    """Score every record of ``view``; ``rng`` draws fresh populations, ``tick`` gets numbers of finished records."""
    require_like_queries(view)
    values = evaluate_statistics([attack], view)[attack.statistic]
    if isinstance(values, Lacking):
        raise values
    return _calibrate(attack, values, view, rng, tick)


def score_all(
    attacks: Sequence[Attack],
    view: AttackView,
    seed: int = 0,
    tick: Tick = lambda _: None,
    refused: Refused | None = None,
) -> Iterator[Scores]:
    """Score every record with each attack; a statistic that several attacks share is computed once.

    Each attack has its own random generator, so its result does not depend on the other attacks. Results come one at a
    time, so that they need not be in memory together. An attack that lacks references, or whose population statistic
    is constant, raises; with ``refused``, that is called instead and the others go on. A population with other numbers
    of references than the other records always raises `PopulationError`.
    """
    require_like_queries(view)
    yield from score_unchecked(attacks, view, seed, tick, refused)


def score_unchecked(
    attacks: Sequence[Attack],
    view: AttackView,
    seed: int = 0,
    tick: Tick = lambda _: None,
    refused: Refused | None = None,
) -> Iterator[Scores]:
    """Do what `score_all` does, for callers that have compared the numbers of references themselves."""
    attacks = [attack.in_mode(view.mode) for attack in attacks]
    yield from _calibrate_all(attacks, evaluate_statistics(attacks, view), view, seed, tick, refused)


def _calibrate_all(
    attacks: Sequence[Attack],
    statistics: Mapping[Statistic, StatisticValues | Lacking],
    view: AttackView,
    seed: int,
    tick: Tick,
    refused: Refused | None,
) -> Iterator[Scores]:
    """Calibrate the statistics of all attacks; what no later attack needs is freed."""
    conformal: dict[tuple[Statistic, ViewAggregation, PopulationPolicy], FloatArray] = {}
    for i, attack in enumerate(attacks):
        values = statistics[attack.statistic]
        same = (attack.statistic, attack.views, attack.population)
        try:
            if isinstance(values, Lacking):
                raise values
            scores = _calibrate(attack, values, view, _rng_of(attack, seed), tick, conformal.get(same))
        except LACKING as error:
            if refused is None:
                raise
            refused(attack.name, error)
            tick(view.n_points)
            continue
        conformal[same] = scores.log10_p_conformal
        later = {other.statistic for other in attacks[i + 1 :]}
        statistics = {statistic: kept for statistic, kept in statistics.items() if statistic in later}
        conformal = {key: kept for key, kept in conformal.items() if key[0] in later}
        yield scores
        del values, scores


def _rng_of(attack: Attack, seed: int) -> np.random.Generator:
    """Return the attack's own generator, so that its result does not depend on the other attacks."""
    return np.random.default_rng([seed, zlib.crc32(attack.name.encode())])


@dataclass(frozen=True, eq=False)
class Grouping:
    """What turns the scores of records into scores of groups."""

    groups: Groups
    population: IntArray  # groups known not to be members
    statistic: GroupStatistic
    one_row: OneRow  # the record of each group that represents it where single records are scored
    played: Sequence[tuple[AttackView, BoolArray]] = ()  # references that play the target, and their member groups


@dataclass(frozen=True, eq=False)
class GroupScores:
    """Scores of one attack: of groups, and of one record per group."""

    groups: Scores  # one value per group
    records: Scores  # one value per record; only records that represent their group are compared
    learned: bool  # whether references could play the target; otherwise one record per group is judged


def score_groups(
    attacks: Sequence[Attack],
    view: AttackView,
    grouping: Grouping,
    seed: int = 0,
    tick: Tick = lambda _: None,
    refused: Refused | None = None,
) -> Iterator[GroupScores]:
    """Score every group with each attack; as `score_unchecked`, whose arguments it has."""
    attacks = [attack.in_mode(view.mode) for attack in attacks]
    statistics = evaluate_statistics(attacks, view)
    n = max(1, len(view.references))
    played = [
        (evaluate_statistics(attacks, seen), members, len(seen.references) / n) for seen, members in grouping.played
    ]
    groups, seeds = grouping.groups, grouping.one_row.chosen(grouping.groups)
    empty = References(
        np.zeros((0, len(groups), view.n_views)), np.array([], np.intp), np.zeros((0, len(groups)), bool)
    )
    whole = AttackView(np.zeros((len(groups), view.n_views)), empty, grouping.population, None, view.mode)
    single = replace(view, population=np.sort(seeds[grouping.population]))
    for attack in attacks:
        values = statistics[attack.statistic]
        try:
            if isinstance(values, Lacking):
                raise values
            rehearsed = [
                Played(found.per_point[attack.views], members, share)
                for each, members, share in played
                if isinstance(found := each[attack.statistic], StatisticValues)
            ]
            grouped = _grouped(attack, values, rehearsed, grouping)
            conformal = within_sizes(grouped.per_point[attack.views], groups.size, grouping.population)
            of_groups = _calibrate(attack, grouped, whole, _rng_of(attack, seed), lambda _: None, conformal)
            of_records = _calibrate(attack, values, single, _rng_of(attack, seed), tick)
        except LACKING as error:
            if refused is None:
                raise
            refused(attack.name, error)
            tick(view.n_points)
            continue
        yield GroupScores(of_groups, of_records, bool(rehearsed))


def _grouped(attack: Attack, values: StatisticValues, played: Sequence[Played], grouping: Grouping) -> StatisticValues:
    """Return the statistic of groups, in the same form as that of records."""
    groups, statistic = grouping.groups, grouping.statistic if played else grouping.one_row
    fitted, scale = statistic.fit(played, groups), None
    if statistic.scaled:
        known = [(fitted(each.phi, groups)[~each.members], groups.size[~each.members]) for each in played]
        scale = SizeScale.learn(*(np.concatenate(part) for part in zip(*known, strict=True)))

    def of_groups(phi: FloatArray) -> FloatArray:
        value = fitted(phi, groups)
        return value if scale is None else scale(value, groups.size)

    per_view = values.per_view
    if per_view is not None:
        per_view = np.stack([of_groups(column) for column in per_view.T], axis=1)
    return replace(values, per_point={attack.views: of_groups(values.per_point[attack.views])}, per_view=per_view)


def _calibrate(
    attack: Attack,
    values: StatisticValues,
    view: AttackView,
    rng: np.random.Generator,
    tick: Tick,
    conformal: FloatArray | None = None,
) -> Scores:
    phi = values.per_point[attack.views]
    columns: dict[str, FloatArray] = {} if conformal is None else {"conformal": conformal}

    def put(name: str, queries: IntArray, column: FloatArray) -> None:
        if name not in columns:  # not earlier: until here the calibration needs the memory
            columns[name] = memory.empty(view.n_points)
        if everyone(queries, view.n_points):
            columns[name][:] = column
        else:
            columns[name][queries] = column
        memory.release()

    with _naming(attack, attack.calibration, attack.views, attack.population):
        for comparison in attack.population.comparisons(view, rng):
            queries = comparison.queries
            raw = _raw_scores(attack, values, comparison, tick)
            if isinstance(raw, SignedLog):
                put("score", queries, raw.asinh())
                put("log10_p", queries, raw.log10_p())
            else:
                put("score", queries, raw)
            del raw
            if conformal is None:
                rivals = comparison.population if comparison.shared else view.population
                put("conformal", queries, conformal_log10_p(phi, queries, rivals))
    own = columns.get("log10_p", columns["conformal"])
    combined = "log10_p" in columns
    with _naming(attack, attack.statistic.source):
        fit = values.fitted.summary()
    return Scores(attack.name, columns["score"], own, columns["conformal"], phi, combined, fit)


def _raw_scores(attack: Attack, values: StatisticValues, comparison: Comparison, tick: Tick) -> FloatArray | SignedLog:
    queries, population, size = comparison.queries, comparison.population, comparison.size()
    # Attacks share statistics, and a calibration or an aggregation may be a user's.
    phi, per_view = read_only(values.per_point[attack.views]), values.per_view
    if attack.calibration.compares and not (comparison.shared and attack.views.linear):
        if per_view is None:
            raise AttackError(f"the population policy of {attack.name} is not `shared`: a query has its own population")
        return pairwise_scores(attack.calibration, attack.views, read_only(per_view), queries, population, size, tick)
    memory.release()
    raw = attack.calibration.shared(
        phi if everyone(queries, len(phi)) else phi[queries], phi[population] if comparison.shared else phi[:0], size
    )
    tick(len(queries))
    return raw


def everyone(queries: IntArray, n: int) -> bool:
    """Whether ``queries`` are all of ``n`` records, in order."""
    return len(queries) == n and bool((queries[1:] > queries[:-1]).all())


def within_sizes(phi: FloatArray, size: IntArray, population: IntArray) -> FloatArray:
    """Return log10 conformal p-values [groups], each among the known non-members of its own range of sizes."""
    edges = size_ranges(size[population])
    which = np.searchsorted(edges, size, side="right")
    log10_p = np.empty(len(phi))
    for k in range(len(edges) + 1):
        own = np.flatnonzero(which == k)
        log10_p[own] = conformal_log10_p(phi, own, population[which[population] == k])
    return log10_p


def conformal_log10_p(phi: FloatArray, queries: IntArray, population: IntArray) -> FloatArray:
    """Return log10 conformal p-values [queries] from phi [records]; a query is not compared with itself."""
    known = np.zeros(len(phi), bool)
    known[population] = True
    all_of_them = everyone(queries, len(phi))
    count = len(population) + 1 - (known if all_of_them else known[queries]).astype(np.int32)
    log10_p = (count - count_below(phi[population], phi if all_of_them else phi[queries])) / count
    np.log10(log10_p, out=log10_p)
    return log10_p
