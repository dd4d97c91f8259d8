"""Which records are exposed: false discovery rates over all evaluated points, and a table of them.

Among many records some conformal p-values are small by chance. The procedure of Benjamini and Hochberg (1995) bounds
the expected share of non-members among the records it names. Conformal p-values with a common population depend on each
other, but positively (on each one of the true null hypotheses: PRDS), and then the bound holds as it is: Benjamini and
Yekutieli (2001) in general, Bates, Candes, Lei, Romano and Sesia (2023) for conformal p-values. It speaks of the mean
over draws of the population and of the non-members, not of the one audit at hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from plmia.attacks.moments import IntArray
from plmia.attacks.scoring import Scores
from plmia.data.files import replacing
from plmia.errors import OutputError, PlmiaError
from plmia.evaluation.metrics import BoolArray, FloatArray
from plmia.evaluation.tables import Tabular, html_table

# Rows that are turned into text at a time.
_ROWS = 1 << 16
# Rows that a notebook shows.
_SHOWN = 10


def q_values(log10_p: FloatArray) -> FloatArray:
    """Smallest false discovery rate [n] at which each hypothesis is rejected (Benjamini and Hochberg).

    Parameters
    ----------
    log10_p : float array [n]
        log10 of the p-values of all hypotheses, of members and non-members alike.
    """
    return np.minimum(1.0, 10.0 ** _log10_q(log10_p))


def discoveries(log10_p: FloatArray, fdr: float) -> BoolArray:
    """Hypotheses [n] that Benjamini and Hochberg reject at a false discovery rate of ``fdr``."""
    if not 0 < fdr < 1:
        raise PlmiaError(f"the false discovery rate is {fdr}: it must lie strictly between 0 and 1 (10 % is 0.1)")
    # A few roundings up: p n / j may be the same fraction as fdr, and came here by way of logarithms.
    rounding = 4 * np.spacing(max(1.0, -math.log10(fdr), math.log10(max(1, len(log10_p)))))
    rejected: BoolArray = _log10_q(log10_p) <= math.log10(fdr) + rounding
    return rejected


def _log10_q(log10_p: FloatArray) -> FloatArray:
    """log10 of min over j >= rank of p_(j) n / j: ties get the value of the last of them."""
    n = len(log10_p)
    order = np.argsort(log10_p)
    q = log10_p[order] + np.log10(n / np.arange(1, n + 1))
    out = np.empty(n)
    out[order] = np.minimum.accumulate(q[::-1])[::-1]
    return out


@dataclass(frozen=True)
class Exposure:
    """Records named at a false discovery rate, compared with the truth.

    Parameters
    ----------
    fdr : float
        The rate that holds on average.
    n_discoveries, n_true : int
        How many evaluated points are named, and how many of them are members.
    least : int
        The smallest number of discoveries that the population's size allows, 1 at best: no p-value is below
        1 / (|Z| + 1), so fewer than Q / (fdr (|Z| + 1)) of Q points are never named. More than Q: none can be.
    """

    fdr: float
    n_discoveries: int
    n_true: int
    least: int

    @property
    def realised_fdr(self) -> float:
        """Share of non-members among the named, 0 where nobody is (the false discovery proportion)."""
        return (self.n_discoveries - self.n_true) / max(1, self.n_discoveries)

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        return vars(self) | {"realised_fdr": self.realised_fdr}


def exposure(scores: Scores, queries: IntArray, members: BoolArray, fdr: float, population: int) -> Exposure:
    """Name records at a false discovery rate and compare with the truth.

    Parameters
    ----------
    scores : Scores
        Of every point; their conformal p-values are used.
    queries : int array [queries]
        The evaluated points, all of which are hypotheses.
    members : bool array [points]
        Who is a member.
    fdr : float
        The false discovery rate.
    population : int
        How many known non-members the p-values count.
    """
    named = discoveries(scores.log10_p_conformal[queries], fdr)
    least = least_named(len(queries), population, fdr)
    return Exposure(fdr, int(np.count_nonzero(named)), int(np.count_nonzero(named & members[queries])), least)


def least_named(evaluated: int, population: int, fdr: float) -> int:
    """Fewest of ``evaluated`` points that can be named: no p-value is below 1 / (|Z| + 1)."""
    return max(1, math.ceil(round(evaluated / (fdr * (population + 1)), 9)))


@dataclass(frozen=True)
class Naming:
    """Why nobody was named: the split into population and evaluated points names many at once, or none.

    Parameters
    ----------
    fdr : float
        The false discovery rate.
    members, non_members, population : int
        Evaluated members and non-members, and known non-members.
    standing : int
        Members above every evaluated non-member: about so many could be named.
    """

    fdr: float
    members: int
    non_members: int
    population: int
    standing: int

    @property
    def evaluated(self) -> int:
        """How many points are hypotheses."""
        return self.members + self.non_members

    @property
    def least(self) -> int:
        """Fewer than this are never named; may be more than there are."""
        return least_named(self.evaluated, self.population, self.fdr)

    @property
    def larger(self) -> int | None:
        """The smallest population that lets those who stand out be named, of at most half the non-members."""
        outsiders = self.non_members + self.population
        sizes = range(self.population + 1, outsiders // 2 + 1)
        return next((size for size in sizes if self._least_with(size) <= self.standing), None)

    @property
    def reason(self) -> str:
        """Why nobody was named, in a few words."""
        if self.larger is not None:
            return f"the population ({self.population:,}) is too small"
        if self._hopeless:
            return f"the audit is too small ({self.evaluated:,} evaluated records)"
        return "too few records stand out from the non-members"

    @property
    def remedy(self) -> str:
        """What would change it, where something would."""
        if self.larger is not None:
            return f"Try --population {self.larger}."
        return "Audit with more records." if self._hopeless else ""

    @property
    def _hopeless(self) -> bool:
        """Whether half the non-members as a population could not name even all members."""
        return self._least_with((self.non_members + self.population) // 2) > self.members

    def _least_with(self, population: int) -> int:
        return least_named(self.evaluated + self.population - population, population, self.fdr)

    def __str__(self) -> str:
        return (
            f"No individual record can be named as a member at {100 * self.fdr:g} % FDR: {self.reason}. This is not "
            f"evidence of safety. {self.remedy}"
        ).rstrip()

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        numbers = {"least": self.least, "standing": self.standing, "population": self.larger}
        return numbers | {"text": str(self), "reason": self.reason, "remedy": self.remedy}


@dataclass(frozen=True)
class Record:
    """One row of the table; see `RecordTable`."""

    index: int
    label: int | None
    score: float
    p: float
    q: float
    rank: int
    group: int | None = None
    member: bool | None = None


@dataclass(frozen=True, eq=False)
class RecordTable(Tabular):
    """Evaluated points, the most exposed first; `record_table` makes one.

    Parameters
    ----------
    index : int array [queries]
        Which point.
    label : int array [queries] or None
        Its class, where classes are known.
    score, p, q : float arrays [queries]
        Score, conformal p-value, and the smallest false discovery rate at which the point is named.
    rank : int array [queries]
        By p-value, then by score; 1 is the most exposed, equals share the smallest rank.
    group : int array [queries] or None
        The group it belongs to, where points come in groups: the patient, say.
    member : bool array [queries] or None
        Whether the target trained on it, where that is told.
    """

    index: IntArray
    label: npt.NDArray[np.integer] | None
    score: FloatArray
    p: FloatArray
    q: FloatArray
    rank: IntArray
    group: IntArray | None = None
    member: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, n: int | None = None) -> list[Record]:
        """Return the first ``n`` rows, all by default."""
        return [Record(*row) for row in self._slice(slice(n))]

    def columns(self) -> dict[str, list[Any]]:
        """Return all rows as columns; without ``label``, ``group`` or ``member`` where these are not known."""
        names = ("index", "label", "score", "p", "q", "rank", "group", "member")
        found = {name: getattr(self, name) for name in names}
        return {name: column.tolist() for name, column in found.items() if column is not None}

    def _repr_html_(self) -> str:
        shown = {name: column[:_SHOWN] for name, column in self.columns().items()}
        return html_table(f"{min(_SHOWN, len(self))} most exposed of {len(self):,} records", shown)

    def write_csv(self, path: Path) -> None:
        """Write all rows, whole or not at all, into a file that only its owner may read."""
        try:
            with replacing(path) as file:
                self.write_lines(file)
        except OSError as error:
            raise OutputError(f"cannot write {path} ({error.strerror}): make room or use another folder") from error

    def write_lines(self, file: BinaryIO) -> None:
        """Write all rows as CSV."""
        last = [name for name in ("group", "member") if getattr(self, name) is not None]
        file.write(f"{','.join(['index', 'label', 'score', 'p', 'q', 'rank', *last])}\n".encode())
        for start in range(0, len(self), _ROWS):
            file.writelines(_line(row).encode() for row in self._slice(slice(start, start + _ROWS)))

    def _slice(self, part: slice) -> Iterator[tuple[Any, ...]]:
        index = self.index[part].tolist()
        label, group, member = (
            [None] * len(index) if column is None else column[part].tolist()
            for column in (self.label, self.group, self.member)
        )
        others = (column[part].tolist() for column in (self.score, self.p, self.q, self.rank))
        return zip(index, label, *others, group, member, strict=True)


def _line(row: tuple[Any, ...]) -> str:
    index, label, score, p, q, rank, group, member = row
    last = "".join(f",{int(value)}" for value in (group, member) if value is not None)
    return f"{index},{'' if label is None else label},{score!r},{p:.6g},{q:.6g},{rank}{last}\n"


def record_table(
    scores: Scores,
    population: IntArray,
    queries: IntArray,
    labels: npt.NDArray[np.integer] | None = None,
    groups: IntArray | None = None,
    members: BoolArray | None = None,
) -> RecordTable:
    """Build the table of evaluated points.

    Parameters
    ----------
    scores : Scores
        Of every point.
    population : int array [population]
        The population Z, whose points are known not to be members and so are no hypotheses.
    queries : int array [queries]
        The points to list; none of the population.
    labels, groups : int arrays [points], optional
        Class of each point, and its group.
    members : bool array [points], optional
        Who is a member.
    """
    known = np.zeros(len(scores.score), bool)
    known[population] = True
    if known[queries].any():
        raise PlmiaError("some queries are of the population, who are known not to be members: leave them out")
    log10_p, score = scores.log10_p_conformal[queries], scores.score[queries]
    order = np.lexsort((queries, -score, log10_p))
    p, s = log10_p[order], score[order]
    new = np.concatenate([[True], (p[1:] != p[:-1]) | (s[1:] != s[:-1])])[: len(order)]
    rank = np.maximum.accumulate(np.where(new, np.arange(1, len(order) + 1), 0))
    chosen = queries[order]
    return RecordTable(
        index=chosen,
        label=None if labels is None else labels[chosen],
        score=s,
        p=10.0**p,
        q=q_values(p),
        rank=rank,
        group=None if groups is None else groups[chosen],
        member=None if members is None else members[chosen],
    )
