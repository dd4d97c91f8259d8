"""Exposed records: false discovery rates over all evaluated records, and the table behind records.csv.

Among many records some conformal p-values are small by chance. The procedure of Benjamini and Hochberg (1995) bounds
the expected share of non-members among the records it names. Conformal p-values with a common population depend on each
other, but positively (PRDS on the true null hypotheses), so the bound holds: Benjamini and Yekutieli (2001) in general,
Bates, Candes, Lei, Romano and Sesia (2023) for conformal p-values. The bound is on the mean over draws of the
population and of the non-members, not on one audit.

The procedure is our own rather than `scipy.stats.false_discovery_control`: p-values are given as logarithms, and
importing scipy.stats takes as long as scoring a small run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np

from plmia.attacks.scoring import Scores
from plmia.data import memory
from plmia.data.arrays import Array, BoolArray, FloatArray, IntArray, Labels
from plmia.data.threads import in_order
from plmia.errors import PlmiaError, require_rate, round_percent, visible
from plmia.evaluation.number_text import Texts, joined, shortest, six_digits, whole
from plmia.evaluation.tables import Tabular, cell_text, html_table, text_table

_ROWS = 1 << 13  # converted to text at a time
_SHOWN = 10  # rows in a notebook, and of the short text


def q_values(log10_p: FloatArray) -> FloatArray:
    """Smallest false discovery rate [n] at which each hypothesis is rejected, from log10 of all p-values [n]."""
    return np.minimum(1.0, 10.0 ** _log10_q(log10_p))


def discoveries(log10_p: FloatArray, fdr: float) -> BoolArray:
    """Hypotheses [n] that Benjamini and Hochberg reject at a false discovery rate of ``fdr``."""
    return _discovered(_log10_q(log10_p), fdr)


def _discovered(log10_q: FloatArray, fdr: float) -> BoolArray:
    require_rate("the false discovery rate", fdr)
    # A few roundings up: p n / j may be the same fraction as fdr but was computed from logarithms.
    rounding = 4 * np.spacing(max(1.0, -math.log10(fdr), math.log10(max(1, len(log10_q)))))
    rejected: BoolArray = log10_q <= math.log10(fdr) + rounding
    return rejected


def _log10_q(log10_p: FloatArray) -> FloatArray:
    """log10 of min over j >= rank of p_(j) n / j; ties get the value of the last of them."""
    n = len(log10_p)
    rising = bool((log10_p[1:] >= log10_p[:-1]).all())
    order = slice(None) if rising else np.argsort(log10_p)
    q = n / np.arange(1, n + 1)
    np.log10(q, out=q)
    q += log10_p[order]
    np.minimum.accumulate(q[::-1], out=q[::-1])
    if rising:
        return q
    out = np.empty(n)
    out[order] = q
    return out


@dataclass(frozen=True)
class Exposure:
    """Records named at a false discovery rate, compared with the truth."""

    fdr: float  # bound on the expected share of non-members among the named
    n_discoveries: int  # evaluated points that are named
    n_true: int  # members among them
    least: int  # see `min_named`; if it exceeds the number of evaluated points, none can be named

    @property
    def realised_fdr(self) -> float:
        """Share of non-members among the named, 0 if none is named (the false discovery proportion)."""
        return (self.n_discoveries - self.n_true) / max(1, self.n_discoveries)

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        return vars(self) | {"realised_fdr": self.realised_fdr}


def exposure(scores: Scores, queries: IntArray, members: BoolArray, fdr: float, population: int) -> Exposure:
    """Name some of the records ``queries`` at a false discovery rate and compare with ``members`` [records]."""
    return exposures(scores, queries, members, (fdr,), population)[fdr]


def exposures(
    scores: Scores, queries: IntArray, members: BoolArray, fdrs: Iterable[float], population: int
) -> dict[float, Exposure]:
    """Do what `exposure` does at several false discovery rates, after one sort."""
    log10_p, truth = scores.log10_p_conformal[queries], members[queries]
    # Sorting the values takes a third of the time of finding their order. Equal p-values have the same q-value.
    ordered = np.sort(log10_p)
    log10_q, found = _log10_q(ordered), {}
    for fdr in fdrs:
        n_named, least = int(np.count_nonzero(_discovered(log10_q, fdr))), min_named(len(queries), population, fdr)
        n_true = int(np.count_nonzero((log10_p <= ordered[n_named - 1]) & truth)) if n_named else 0
        found[fdr] = Exposure(fdr, n_named, n_true, least)
    return found


def min_named(evaluated: int, population: int, fdr: float) -> int:
    """Smallest possible number of named records above 0: no p-value is below 1 / (|Z| + 1)."""
    return max(1, math.ceil(round(evaluated / (fdr * (population + 1)), 9)))


@dataclass(frozen=True)
class Naming:
    """Why no record was named: with this split into population and queries, many are named at once or none."""

    fdr: float
    members: int  # evaluated ones
    non_members: int  # evaluated ones
    population: int
    standing: int  # members above every evaluated non-member: about this many could be named
    share: float = 1.0  # of the population behind the finest p-value: people are compared within ranges of sizes
    noun: tuple[str, str] = ("record", "records")  # what is judged, one and several

    @property
    def evaluated(self) -> int:
        """Number of evaluated records."""
        return self.members + self.non_members

    @property
    def least(self) -> int:
        """Smallest number that can be named; it may exceed `evaluated`."""
        return min_named(self.evaluated, int(self.share * self.population), self.fdr)

    @property
    def larger(self) -> int | None:
        """Smallest population, of at most half the non-members, with which `standing` records could be named."""
        outsiders = self.non_members + self.population
        sizes = range(self.population + 1, outsiders // 2 + 1)
        return next((size for size in sizes if self._min_with(size) <= self.standing), None)

    @property
    def reason(self) -> str:
        """The reason in a few words."""
        if self.larger is not None:
            return f"the population ({self.population:,}) is too small"
        if self._too_small:
            return f"the audit is too small ({self.evaluated:,} evaluated {self.noun[1]})"
        return f"too few {self.noun[1]} stand out from the non-members"

    @property
    def remedy(self) -> str:
        """What the user can do, or an empty string."""
        if self.larger is not None:
            return f"Try a population of {self.larger}."
        return f"Audit with more {self.noun[1]}." if self._too_small else ""

    @property
    def _too_small(self) -> bool:
        """Whether not even all members could be named with half of the non-members as the population."""
        return self._min_with((self.non_members + self.population) // 2) > self.members

    def _min_with(self, population: int) -> int:
        return min_named(self.evaluated + self.population - population, int(self.share * population), self.fdr)

    def __str__(self) -> str:
        return (
            f"No individual {self.noun[0]} can be named as a member at {round_percent(self.fdr)} FDR: {self.reason}. "
            f"This is not evidence of safety. {self.remedy}"
        ).rstrip()


@dataclass(frozen=True, eq=False)
class RecordTable(Tabular):
    """Evaluated records, the most exposed first; `record_table` makes one.

    ``records[:3]`` are the three most exposed, ``records.to_frame()`` is a data frame of pandas or polars, and
    ``records.columns()`` are plain lists.
    """

    index: IntArray
    label: Labels | None
    score: FloatArray
    p: FloatArray  # conformal
    q: FloatArray  # smallest false discovery rate at which the point is named
    rank: IntArray  # by p-value, then by score: 1 is the most exposed, equal points share the smallest rank
    group: Labels | None = None
    member: BoolArray | None = None
    records: IntArray | None = None  # number of records of each person, and the first of them; None for single records
    first_record: IntArray | None = None

    def __len__(self) -> int:
        return len(self.index)

    def columns(self) -> dict[str, list[Any]]:
        """Return all rows as columns, without ``label``, ``group`` or ``member`` if these are not known."""
        return {name: column.tolist() for name, column in vars(self).items() if column is not None}

    def __getitem__(self, rows: slice) -> RecordTable:
        """Return some rows, as in ``records[:3]``."""
        if not isinstance(rows, slice):
            raise TypeError(f"records[{rows!r}] is not a slice: take rows with records[:3], or use to_frame()")
        return replace(self, **{name: array[rows] for name, array in vars(self).items() if array is not None})

    @property
    def shown_records(self) -> IntArray:
        """A record [rows] of each row: the record itself, or the first of a person."""
        return self.index if self.first_record is None else self.first_record

    @property
    def _caption(self) -> str:
        noun = "records" if self.records is None else "people"
        return f"{min(_SHOWN, len(self))} most exposed of {len(self):,} {noun}"

    def __repr__(self) -> str:
        columns = self[:_SHOWN].columns()
        rows = [[cell_text(value) for value in row] for row in zip(*columns.values(), strict=True)]
        return visible(f"{self._caption}; to_frame() has all\n{text_table([list(columns), *rows], left=0)}")

    def _repr_html_(self) -> str:
        return html_table(self._caption, self[:_SHOWN].columns())

    def write_lines(self, file: BinaryIO) -> None:
        """Write all rows as CSV; the label of a record is empty if classes are not known."""
        empty_label = "label" if self.records is None else ""
        columns = {name: array for name, array in vars(self).items() if array is not None or name == empty_label}
        file.write(f"{','.join(columns)}\n".encode())

        def written(start: int) -> bytes:
            cells: list[Texts | bytes] = []
            for name, array in columns.items():
                cells += [b"" if array is None else _texts(name, array[start : start + _ROWS]), b","]
            return joined([*cells[:-1], b"\n"])

        for some_lines in in_order(written, range(0, len(self), _ROWS)):
            file.write(some_lines)
            memory.release()


def _texts(name: str, column: Array) -> Texts:
    """Return values as Python writes them; rates with six digits, of which equal ones in a row are written once."""
    if name not in ("p", "q"):
        return shortest(column) if column.dtype.kind == "f" else whole(column)
    first = np.flatnonzero(np.append(True, column[1:] != column[:-1]))
    return np.repeat(six_digits(column[first]), np.diff(first, append=len(column)), axis=0)


def people_table(table: RecordTable, size: IntArray, first: IntArray, groups: Labels | None = None) -> RecordTable:
    """Return the table of people from that of groups; arrays [groups], ``groups`` only if it may be shown."""
    at = table.index
    group = None if groups is None else groups[first[at]]
    return replace(table, label=None, group=group, records=size[at], first_record=first[at])


def record_table(
    scores: Scores,
    population: IntArray,
    queries: IntArray,
    labels: Labels | None = None,
    groups: Labels | None = None,
    members: BoolArray | None = None,
) -> RecordTable:
    """Build the table of the records ``queries``; labels, groups and members [records] are columns if given."""
    known = np.zeros(len(scores.score), bool)
    known[population] = True
    if known[queries].any():
        raise PlmiaError("some queries belong to the population of known non-members: remove them")
    # Each column is computed from the order alone and kept where `memory` keeps it, so that few are in memory at once.
    order = _exposed_first(scores, queries)
    index = memory.copied(queries[order])
    del order
    p = scores.log10_p_conformal[index]
    q = memory.copied(q_values(p))
    memory.release()
    s = scores.score[index]
    new = np.ones(len(index), bool)
    new[1:] = (p[1:] != p[:-1]) | (s[1:] != s[:-1])
    p, s = memory.copied(10.0**p), memory.copied(s)
    rank = memory.zeros(len(index), np.int64)
    rank[new] = np.flatnonzero(new) + 1
    np.maximum.accumulate(rank, out=rank)
    memory.release()
    label, group = (None if of_point is None else memory.copied(of_point[index]) for of_point in (labels, groups))
    member = None if members is None else members[index]
    memory.release()
    return RecordTable(index, label, s, p, q, rank, group, member)


def _exposed_first(scores: Scores, queries: IntArray) -> IntArray:
    """Order [queries] by p-value, then by score, then by record."""
    log10_p, score = scores.log10_p_conformal[queries], scores.score[queries]
    np.negative(score, out=score)
    memory.release()
    # Usually p-values follow scores. Then one sort that need not be stable is enough, which is twice as fast.
    order = np.argsort(score)
    tied = score[order[1:]] == score[order[:-1]]
    rise = np.diff(log10_p[order])
    if (rise < 0).any() or (rise[tied] != 0).any():
        return np.lexsort((queries, score, log10_p))
    ties = np.flatnonzero(np.append(tied, False) | np.append(False, tied))
    run = np.append(0, np.cumsum(~tied))[ties]
    order[ties] = order[ties][np.lexsort((queries[order[ties]], run))]
    return order
