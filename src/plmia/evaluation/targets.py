"""Attack targets one after another, each with its own references and population."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np

from plmia.attacks.alignment import Alignment, align
from plmia.attacks.attack import Attack
from plmia.attacks.groups import Groups, GroupStatistic, LearnedOverGroup, OneRow, size_ranges
from plmia.attacks.scoring import Grouping, GroupScores, Refused, Scores, Tick, score_groups, score_unchecked
from plmia.attacks.view import (
    AttackView,
    Features,
    KnownSums,
    Mode,
    References,
    SumName,
    Truth,
    feature_of,
    first_out,
    leave_one_out,
    midpoint,
)
from plmia.data import memory
from plmia.data.arrays import BoolArray, Counts, IntArray, Labels
from plmia.data.designs import ReferencePlan, count_split_groups, counts_depend_on, even_counts
from plmia.errors import Note, PlmiaError, PopulationError, ReferencesError, SignalsError
from plmia.evaluation.metrics import TargetMetrics, evaluate
from plmia.evaluation.tables import Tabular
from plmia.signals.signals import Signals

Unit = Literal["record", "group"]
Align = Literal["auto", "always", "never"]
ONE_GROUP = "all records belong to one group: give the group of each record, or none"
# References that play the target, from which is learned what the records of a group say together.
MOST_PLAYED = 4


@dataclass(frozen=True)
class Setup:
    """Settings of attacks on targets.

    Parameters
    ----------
    mode : {"online", "offline"}
        Whether statistics may use IN references.
    references : int, optional
        References per target; by default all that are eligible. With 0, only attacks without references can run.
    population : int, optional
        Size of Z; by default a quarter of the target's non-members, at least 100, at most half of them. Without
        references half of them, since signals can then be predicted from known non-members only.
    seed : int
        Seed of references, populations and all other random choices.
    unit : {"record", "group"}, optional
        What is judged: single records, or groups by all of their records (all of one person, say). By default groups
        where the signals have some that hold several records, and the targets trained on whole groups.
    group_statistic : GroupStatistic
        How the statistics of a group's records become one.
    align : {"auto", "always", "never"}
        Whether the references' signals are moved to the target's scale (see `plmia.attacks.alignment`): where the
        target is clearly unlike them, wherever that makes its signals more likely, or never.
    """

    mode: Mode = "online"
    references: int | None = None
    population: int | None = None
    seed: int = 0
    unit: Unit | None = None
    group_statistic: GroupStatistic = field(default_factory=LearnedOverGroup)
    align: Align = "auto"

    def __post_init__(self) -> None:
        if self.align not in get_args(Align):
            raise PlmiaError(f"align {self.align!r} is unknown: take {', '.join(get_args(Align))}")
        if self.unit not in (None, *get_args(Unit)):
            raise PlmiaError(f"unit {self.unit!r} is unknown: take {' or '.join(get_args(Unit))}")
        if not isinstance(self.group_statistic, GroupStatistic):
            raise PlmiaError(f"{self.group_statistic!r} is not a group statistic: take a value of plmia.attacks.groups")

    def judges_groups(self, signals: Signals, targets: Sequence[int]) -> bool:
        """Whether groups are judged in these signals; raises where they cannot be, though that was asked for."""
        if self.unit == "record" or (self.unit is None and (signals.groups is None or self.references == 0)):
            return False
        if signals.groups is None:
            raise SignalsError("the unit is 'group', but the records have no groups: give groups, or judge records")
        if self.references == 0:
            raise ReferencesError(
                "groups are judged by what references in the role of the target show, and there are 0 references: "
                "judge records"
            )
        if len(np.unique(signals.groups)) < 2:
            raise SignalsError(ONE_GROUP)
        for target, row in zip(targets, signals.rows(targets, "target"), strict=True):
            cut, n_groups = count_split_groups(signals.design.matrix[row], signals.groups)
            if cut and self.unit is None:
                return False
            if cut:
                raise SignalsError(
                    f"{cut:,} of {n_groups:,} groups are partly members of target {target} and partly not, so they "
                    "cannot be judged as a whole: keep groups together when models are trained, or judge records"
                )
        return self.unit == "group" or len(np.unique(signals.groups)) < signals.n_points


@dataclass(frozen=True, eq=False)
class OneRecord:
    """An attack on one record of each group, where groups are judged: what a single record gives away."""

    scores: Scores
    truth: Truth
    population: IntArray


@dataclass(frozen=True, repr=False)
class AttackResult(Tabular):
    """One attack on one target."""

    target: int  # number of the attacked model (see `Signals.models`)
    scores: Scores
    truth: Truth
    population: IntArray  # the population Z
    # Numbers of the reference models, in the order of the view's. If some were dropped at random (see ``notes``),
    # another model may replace one of these at some points.
    references: IntArray
    left_out: IntArray  # models that are excluded as references: they trained on the target's set or its complement
    view: AttackView
    notes: tuple[Note, ...] = ()  # on the references of this target
    # Where groups are judged: the groups, which scores, truth and population then refer to, and the same attack on one
    # record of each. The view is always that of the records.
    groups: Groups | None = None
    one_record: OneRecord | None = None
    # Whether a group was judged by one record, since references could not show what all of them say together.
    by_one_record: bool = False
    # How the view's references were moved to the target's scale, and the view before that; None if they were not.
    alignment: Alignment | None = None
    unaligned: AttackView | None = None

    @property
    def labels(self) -> Labels | None:
        """Class of each judged record; None where groups are judged."""
        return self.view.labels if self.groups is None else None

    @property
    def n_compared(self) -> int:
        """Known non-members behind the coarsest p-value: of groups, those of the smallest range of sizes."""
        return min(self._compared)

    @property
    def n_finest(self) -> int:
        """Known non-members behind the finest p-value: of groups, those of the largest range of sizes."""
        return max(self._compared)

    @property
    def _compared(self) -> list[int]:
        """Known non-members of each range of sizes; of records, all."""
        if self.groups is None:
            return [len(self.population)]
        sizes = self.groups.size[self.population]
        return [int(n) for n in np.bincount(np.searchsorted(size_ranges(sizes), sizes, side="right"))]

    def metrics(self) -> TargetMetrics:
        """Return metrics on the evaluated records or groups."""
        queries, members = self.truth.queries, self.truth.members
        return evaluate(self.scores.score[queries], members[queries], target=self.target)

    def columns(self) -> dict[str, list[Any]]:
        """Return one row per evaluated record: index, member, score, log10_p and log10_p_conformal."""
        queries, names = self.truth.queries, ("score", "log10_p", "log10_p_conformal")
        arrays = {"member": self.truth.members} | {name: vars(self.scores)[name] for name in names}
        return {"index": queries.tolist()} | {name: array[queries].tolist() for name, array in arrays.items()}

    def __repr__(self) -> str:
        return f"AttackResult({self.scores.attack!r} on target {self.target}, AUC {self.metrics().auc:.3f})"

    def _repr_html_(self) -> str:
        return f"<p><strong>{html.escape(self.scores.attack)}</strong></p>{self.metrics()._repr_html_()}"


def attack_targets(
    signals: Signals,
    attacks: Sequence[Attack],
    targets: Sequence[int],
    setup: Setup,
    tick: Tick = lambda _: None,
    refused: Refused | None = None,
    features: Features | None = None,
) -> Iterator[AttackResult]:
    """Run each attack on each target in turn.

    Sums over references are updated from one target to the next. Targets come in an order that suits this, not in the
    order of ``targets``.

    Parameters
    ----------
    signals : Signals
        Signals of targets and references.
    attacks : sequence of Attack
        Attacks to run.
    targets : sequence of int
        Models to attack, by number (see `Signals.models`).
    setup : Setup
        Settings.
    tick : callable
        Called with numbers of finished records; their sum is ``len(targets) * len(attacks) * n_points``.
    refused : callable, optional
        Called with each attack that lacks references, or whose population statistic is constant, on a target; it has
        no result there. By default that raises.
    features : Features, optional
        The records as numbers, for attacks that predict signals from them.
    """
    signals = signals.standardised()
    row_of = dict(zip(targets, signals.rows(targets, "target"), strict=True))
    groups = None
    if setup.judges_groups(signals, targets) and signals.groups is not None:
        groups = Groups.of(signals.groups)
    alone_of_group = _one_of_each_group(signals, setup.seed)
    for target, row in row_of.items():  # drawn later, for one target at a time; what cannot work fails now
        _population_size(signals, target, row, setup, alone_of_group)
    plan = ReferencePlan.draw(
        signals.design, setup.references, np.random.default_rng([setup.seed, 0]), np.array(signals.models)
    )
    alone = setup.references == 0
    for served in _unserved(signals, targets) if alone else _serve(signals, attacks, plan, targets, setup, groups):
        row = row_of[served.target]
        truth, population = _truth(signals, served.target, row, setup, alone_of_group)
        known = population if groups is None else groups.records(groups.of_record[population])
        view = AttackView(
            memory.copied(signals.values[row], np.float64),
            served.references,
            known,
            signals.labels,
            setup.mode,
            served.known,
            features,
            groups=None if groups is None else groups.of_record,
        )
        given = view
        view, alignment = aligned(view, truth, setup, served.target, groups)
        unaligned = None if alignment is None else given
        split = plan.order[plan.split_of(served.target)]
        left_out = split[split != served.target][: 0 if alone else None]
        about = served.models, left_out, view, served.notes
        # The population is drawn from non-members, and `_serve` has compared their counts with those of members.
        if groups is None:
            for scores in score_unchecked(attacks, view, setup.seed, tick, refused):
                found = AttackResult(served.target, scores, truth, population, *about)
                yield replace(found, alignment=alignment, unaligned=unaligned)
            continue
        for result in _judge_groups(served.target, truth, population, groups, attacks, setup, tick, refused, about):
            yield replace(result, alignment=alignment, unaligned=unaligned)


def aligned(
    view: AttackView, truth: Truth, setup: Setup, target: int, groups: Groups | None = None
) -> tuple[AttackView, Alignment | None]:
    """Move the references to the target's scale, if the setup and the signals ask for it."""
    if setup.align == "never" or not len(view.references):
        return view, None
    together = None if groups is None else groups.of_record
    rng = np.random.default_rng([setup.seed, 6, target])
    found = align(view, _share_of_members(view, truth), rng, together, only_if_unlike=setup.align == "auto")
    return found or (view, None)


def _share_of_members(view: AttackView, truth: Truth) -> float:
    """Return the share of members among the records outside the population: all that alignment uses of the truth."""
    queries = np.ones(view.n_points, bool)
    queries[view.population] = False
    return float(truth.members[queries].mean())


def _judge_groups(
    target: int,
    truth: Truth,
    population: IntArray,
    groups: Groups,
    attacks: Sequence[Attack],
    setup: Setup,
    tick: Tick,
    refused: Refused | None,
    about: tuple[IntArray, IntArray, AttackView, tuple[Note, ...]],
) -> Iterator[AttackResult]:
    """Attack groups; ``truth`` and ``population`` are of the records that represent them."""
    models, left_out, view, notes = about
    known, queries = (np.sort(groups.of_record[records]) for records in (population, truth.queries))
    of_groups = Truth(truth.members[groups.first], queries)
    for scores in group_scores(target, known, groups, attacks, view, setup, tick, refused):
        single = OneRecord(scores.records, truth, population)
        how = groups, single, not scores.learned
        yield AttackResult(target, scores.groups, of_groups, known, models, left_out, view, notes, *how)


def group_scores(
    target: int,
    known: IntArray,
    groups: Groups,
    attacks: Sequence[Attack],
    view: AttackView,
    setup: Setup,
    tick: Tick = lambda _: None,
    refused: Refused | None = None,
) -> Iterator[GroupScores]:
    """Score groups with each attack; ``known`` groups are non-members, and their records the view's population."""
    rng = np.random.default_rng([setup.seed, 5, target])
    played = list(islice(_played(view, groups, len(known), rng), MOST_PLAYED))
    grouping = Grouping(groups, known, setup.group_statistic, OneRow(setup.seed), played)
    yield from score_groups(attacks, view, grouping, setup.seed, tick, refused)


def _played(
    view: AttackView, groups: Groups, n_population: int, rng: np.random.Generator
) -> Iterator[tuple[AttackView, BoolArray]]:
    """Yield references in the role of the target, in random order, with the others, and their member groups."""
    references = view.references
    for i in rng.permutation(len(references)):
        members = references.in_mask[i]
        if count_split_groups(members, groups.of_record)[0]:
            continue
        same = (references.in_mask == members).all(axis=1)
        others = np.flatnonzero(~same & ~(references.in_mask != members).all(axis=1))
        seen = References(references.signals, references.rows[others], references.in_mask[others])
        if len(others) and counts_depend_on(members[groups.first], seen.n_in[groups.first]):
            keep_in, keep_out = even_counts(members, seen.n_in, len(seen), groups.first)
            if int(keep_out.min()) < 1 or (view.mode == "online" and int(keep_in.min()) < 1):
                continue
            seen = seen.balanced(keep_in, keep_out, rng, groups=groups.of_record)
        of_groups = members[groups.first]
        outsiders = np.flatnonzero(~of_groups)
        if not 0 < len(outsiders) < len(groups):
            continue
        known = groups.records(rng.choice(outsiders, min(n_population, len(outsiders)), replace=False))
        target = references.signals[references.rows[i]].astype(np.float64)
        played = AttackView(
            target, seen, known, view.labels, view.mode, features=view.features, groups=groups.of_record
        )
        yield played, of_groups


def _population_size(signals: Signals, target: int, row: int, setup: Setup, alone: IntArray) -> int:
    """Return the size of the population among the points ``alone``, one of each group; raise if there can be none."""
    members = signals.design.matrix[row]
    if len(alone) < 2:
        raise SignalsError(ONE_GROUP)
    outsiders = len(alone) - int(np.count_nonzero(members if len(alone) == len(members) else members[alone]))
    if outsiders in (0, len(alone)):
        raise SignalsError(
            f"model {target} trained on {'all' if not outsiders else 'none'} of the {len(members)} records: "
            "a target needs both members and non-members"
        )
    size = setup.population
    if size is None:
        most = outsiders // 2
        size = most if setup.references == 0 else min(max(outsiders // 4, 100), most)
    if outsiders < 4:
        raise PopulationError(
            f"target {target} has {outsiders} non-members, 4 are needed for population and evaluation: "
            "give more records"
        )
    if not 2 <= size < outsiders:
        raise PopulationError(
            f"a population of {size} was requested, target {target} has {outsiders} non-members: "
            f"take from 2 to {outsiders - 1}, so that some remain for evaluation"
        )
    return size


def _truth(signals: Signals, target: int, row: int, setup: Setup, alone: IntArray) -> tuple[Truth, IntArray]:
    """Split the target's points ``alone``, one of each group, into population and queries."""
    members = signals.design.matrix[row]
    size = _population_size(signals, target, row, setup, alone)
    outsiders = alone[~members[alone]]
    rng = np.random.default_rng([setup.seed, 1, target])
    population = np.sort(rng.choice(outsiders, size, replace=False))
    del outsiders
    known = np.zeros(len(members), bool)
    known[population] = True
    return Truth(members, memory.copied(alone[~known[alone]])), population


def _one_of_each_group(signals: Signals, seed: int) -> IntArray:
    """Return the points to evaluate: all, or one drawn from each group, since intervals assume independent points."""
    if signals.groups is None:
        return memory.copied(np.arange(signals.n_points))
    return np.sort(OneRow(seed).chosen(Groups.of(signals.groups)))


@dataclass(frozen=True)
class _Served:
    """A target, its references, the numbers of these models, sums over them if known, and notes on them."""

    target: int
    references: References
    models: IntArray
    known: KnownSums | None = None
    notes: tuple[Note, ...] = ()


def _unserved(signals: Signals, targets: Iterable[int]) -> Iterator[_Served]:
    """Yield each target without references."""
    nobody = np.array([], dtype=np.intp)
    references = References(signals.values, nobody, np.zeros((0, signals.n_points), bool))
    for target in targets:
        yield _Served(target, references, nobody)


def _serve(
    signals: Signals,
    attacks: Sequence[Attack],
    plan: ReferencePlan,
    targets: Sequence[int],
    setup: Setup,
    groups: Groups | None,
) -> Iterator[_Served]:
    """Yield each target with its references, whose numbers do not reveal membership if that is possible."""
    units = _one_of_each_group(signals, setup.seed)
    revealed = _revealed(signals, plan, targets, units)
    for chosen, known, group in _shared_sums(signals, attacks, plan, [t for t in targets if t not in revealed]):
        references = _references(signals, plan, chosen)
        for target in group:
            yield _Served(target, references, np.array(signals.models)[references.rows], known)
    for target in targets:
        if target in revealed:
            yield _balance(signals, plan, target, units, setup, groups)


def _revealed(signals: Signals, plan: ReferencePlan, targets: Iterable[int], units: IntArray) -> set[int]:
    """Return targets whose members have other numbers of eligible or chosen IN references than their non-members."""
    membership = signals.design.matrix
    everyone = len(units) == signals.n_points
    total = memory.count_rows(membership)
    last: tuple[list[int], Counts] | None = None
    found = set()
    for target in sorted(set(targets)):
        split = signals.rows(plan.order[plan.split_of(target)])
        members = membership[signals.rows([target])[0]]
        counts: list[Counts] = [total - memory.count_rows(membership, split)]
        chosen = plan.references_of(target)
        if len(chosen) < len(plan.order) - 1:
            if last is None or last[0] != chosen:  # many targets have the same references
                rows = signals.rows(np.concatenate([plan.order[i] for i in chosen]))
                last = (chosen, memory.count_rows(membership, rows))
            counts.append(last[1])
        if not everyone:
            members, counts = members[units], [count[units] for count in counts]
        if any(counts_depend_on(members, count) for count in counts):
            found.add(target)
    return found


def _balance(
    signals: Signals, plan: ReferencePlan, target: int, units: IntArray, setup: Setup, groups: Groups | None
) -> _Served:
    """Drop references at random so that all points have equally many; note this, or that it is not possible.

    Where groups are judged, their records keep the same references: only a model of the whole group plays the target.
    """
    # All eligible references are balanced before some are chosen: those that are not chosen replace dropped ones.
    chosen = plan.references_of(target)
    plain = _references(signals, plan, chosen)
    spare = [plan.order[i] for i in range(len(plan.order)) if i not in {*chosen, plan.split_of(target)}]
    rows = np.concatenate([plain.rows, *map(signals.rows, spare)])
    references, dropped = References(signals.values, rows, memory.rows_of(signals.design.matrix, rows)), 0
    members = signals.design.matrix[signals.rows([target])[0]]
    rng = np.random.default_rng([setup.seed, 4, target])
    for _ in ("all eligible references", "the chosen ones"):
        if counts_depend_on(members[units], references.n_in[units]):
            keep_in, keep_out = even_counts(members, references.n_in, len(references), units)
            n_in, n_out = int(keep_in.min()), int(keep_out.min())
            if n_out < 1 or (n_in < 1 and setup.mode == "online"):
                return _Served(target, plain, np.array(signals.models)[plain.rows], notes=(_reveals(n_in, n_out),))
            dropped += len(references) - int(keep_in[0] + keep_out[0])
            together = None if groups is None else groups.of_record
            references = references.balanced(keep_in, keep_out, rng, len(plain), together)
        references = references.first(len(plain))
    note = Note(
        "counts-rebalanced",
        "info",
        f"{dropped} of {len(rows)} references {'was' if dropped == 1 else 'were'} dropped at random at each record, so "
        "that the numbers of IN and OUT references do not reveal membership",
    )
    return _Served(target, references, np.array(signals.models)[rows[: len(references)]], notes=(note,))


def _reveals(n_in: int, n_out: int) -> Note:
    return Note(
        "counts-reveal-membership",
        "invalid",
        "Members have other numbers of IN and OUT references than non-members, so scores may show the design instead "
        f"of a leak. Train more references: balanced, some records would keep {n_in} IN and {n_out} OUT.",
    )


def _references(signals: Signals, plan: ReferencePlan, chosen: Iterable[int]) -> References:
    """Return references in the order of their splits, so that complementary pairs stay together."""
    splits = sorted((plan.order[i] for i in chosen), key=lambda models: int(models[0]))
    rows = signals.rows(np.concatenate(splits))
    return References(signals.values, rows, memory.rows_of(signals.design.matrix, rows))


def _shared_sums(
    signals: Signals, attacks: Sequence[Attack], plan: ReferencePlan, targets: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], KnownSums | None, list[int]]]:
    """Yield targets grouped by their references, with the sums over these if several targets share them."""
    served: dict[tuple[int, ...], list[int]] = {}
    for target in targets:
        served.setdefault(tuple(sorted(plan.references_of(target))), []).append(target)
    union = sorted(set().union(*served))
    leaf_of = {chosen: set(union) - set(chosen) for chosen in served}
    uses = frozenset[SumName]().union(*(attack.statistic.uses for attack in attacks))
    wanted = sorted(uses)
    if len(served) < 2 or any(len(leaf) != 1 for leaf in leaf_of.values()):
        for chosen, group in served.items():
            references, known = _references(signals, plan, chosen), None
            if len(group) > 1:
                known = KnownSums(first_out(references)).with_sums(references, wanted)
            yield chosen, known, group
        return
    by_leaf = {union.index(leaf.pop()): chosen for chosen, leaf in leaf_of.items()}
    models = _references(signals, plan, union)
    centre = midpoint(models)
    features = [feature_of(name, centre) for name in wanted]
    parts = [np.flatnonzero(np.isin(models.rows, signals.rows(plan.order[i]))) for i in union]
    for leaf, sums in leave_one_out(models, parts, sorted(by_leaf), features):
        known = KnownSums(centre, dict(zip(wanted, sums, strict=True)))
        yield by_leaf[leaf], known, served[by_leaf[leaf]]
