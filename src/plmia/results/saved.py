"""Results of an earlier run, read from its folder and verified.

`metrics.json` holds the SHA-256 of scores.npz, of the tables of records and people, and of itself. All are compared
when results are opened, so that numbers of two runs are never mixed and an edited or damaged file is noticed. The
digests are not a signature: whoever may write to the folder can write other results. So every value is checked before
it is used: those of metrics.json by `RunResult.from_json`, and the arrays of scores.npz (checksum, type, length, range)
when they are read.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import secrets
import weakref
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from plmia.attacks.scoring import Scores
from plmia.data import memory
from plmia.data.arrays import Array, BoolArray, FloatArray, IntArray, Labels
from plmia.data.files import PAGE, open_parts, read_regular
from plmia.data.npz import read_member
from plmia.errors import Note, OutputError, after_colon, doubts, round_percent, visible
from plmia.evaluation.metrics import FPRS, Roc, fpr_key, roc_curve
from plmia.evaluation.records import RecordTable, people_table, record_table
from plmia.evaluation.subgroups import VARIES
from plmia.evaluation.tables import Tabular, html_cells, text_table
from plmia.results.json_types import encode
from plmia.results.result import DEFAULT_ATTACK, SCHEMA, Mean, MeanTpr, RunResult, TargetSummary, Verdict
from plmia.results.wording import Status

# First rows of a short table, which has as many in all.
MAIN_ATTACKS = (DEFAULT_ATTACK, "pl-mia", "lira-fixed", "rmia", "attack-p")
AGAIN = "run plmia score or plmia audit again"

# Arrays of an attack on a target.
SCORE_ARRAYS = ("score", "log10_p", "log10_p_conformal", "statistic")
# Longest header of an npy file.
_HEADER_BYTES = 4096
_ENTRY_DEPTH = 4  # of an entry of ``per_target`` in metrics.json


class Overview(Tabular):
    """The result of a run as people look at it: single numbers, a data frame, a short text, HTML for notebooks."""

    folder: Path
    result: RunResult

    @property
    def verdict(self) -> Verdict:
        """What the audit found; ``verdict.text`` has it in words."""
        return self.result.verdict

    @property
    def status(self) -> Status:
        """The verdict in one word, such as "leak"."""
        return self.result.verdict.status

    @property
    def notes(self) -> tuple[Note, ...]:
        """What a reader must know beside the numbers."""
        return self.result.notes

    def auc(self, attack: str | None = None) -> float:
        """Area under the ROC curve, mean over targets; by default of pl-mia-eb, or else of the verdict's attack."""
        return self.result.attacks[self.attack_name(attack)].auc.mean

    def tpr(self, fpr: float, attack: str | None = None) -> float:
        """True-positive rate at a false-positive rate of at most ``fpr`` (0, 0.0001, 0.001 or 0.01), as for `auc`.

        A rate that the evaluated non-members do not resolve raises `OutputError`; `to_frame` has no number there.
        """
        given: tuple[Any, Any] = (fpr, attack)
        if isinstance(given[0], str) or isinstance(given[1], int | float):
            raise OutputError(
                f"tpr({fpr!r}, {attack!r}) has its arguments in another order: the rate comes first, tpr(0.01, 'rmia')"
            )
        found = self.result.attacks[self.attack_name(attack)]
        rates = found.tpr
        if fpr not in rates:
            raise OutputError(f"there is no TPR at an FPR of {fpr:g}: take one of {', '.join(map(fpr_key, rates))}")
        if not rates[fpr].resolved:
            fewest = min(entry.n_non_members for entry in found.per_target)
            raise OutputError(
                f"an FPR of {fpr_key(fpr)} needs {rates[fpr].needed_non_members:,.0f} evaluated non-members, there are "
                f"{fewest:,}: take a larger FPR, or audit more records"
            )
        return rates[fpr].mean

    def columns(self) -> dict[str, list[Any]]:
        """One row per attack and target, with AUC and TPRs as fractions and the ends of their intervals.

        Columns are ``attack``, ``target``, ``auc``, ``auc_low``, ``auc_high``, and for each false-positive rate
        ``tpr_0.01``, ``tpr_0.01_low``, ``tpr_0.01_high``; empty where there are too few non-members.
        """
        attacks = self.result.attacks.items()
        rows = [_row(name, entry) for name, attack in attacks for entry in attack.per_target]
        return {column: [row[column] for row in rows] for column in rows[0]}

    def attack_name(self, attack: str | None = None) -> str:
        """Return the name of an attack of these results, by default that of pl-mia-eb or of the verdict."""
        if attack is None:
            return DEFAULT_ATTACK if DEFAULT_ATTACK in self.result.attacks else self.result.verdict.attack
        if attack not in self.result.attacks:
            known = ", ".join(self.result.attacks)
            raise OutputError(f"{attack!r} is not among the results in {self.folder}: take one of {known}")
        return attack

    def _table(self, attacks: Sequence[str]) -> list[list[str]]:
        """Head and one row per attack, in per cent; columns without any value are left out."""
        found = [(name, self.result.attacks[name]) for name in attacks]
        rates = [fpr for fpr in reversed(FPRS) if any(attack.tpr[fpr].resolved for _, attack in found)]
        head = ["attack", "AUC", *(f"TPR at {round_percent(fpr)}" for fpr in rates)]
        return [head, *([name, _per_cent(a.auc), *(_per_cent(a.tpr[fpr]) for fpr in rates)] for name, a in found)]

    def __repr__(self) -> str:
        result = self.result
        verdict = f"{type(self).__name__}({str(self.folder)!r}): {result.verdict.text}"
        table = text_table(self._table(main_attacks(result.attacks, result.verdict.attack)))
        notes = (f"- {note.text}" for note in unquoted_doubts(result.verdict, result.notes))
        return visible("\n".join([verdict, *notes, table, self._where]))

    @property
    def _where(self) -> str:
        """Where the report is, or how to write it."""
        page = self.folder / PAGE
        return f"Report: {page}" if page.exists() else f"plmia.report({str(self.folder)!r}) writes the report."

    def _repr_html_(self) -> str:
        """Verdict, doubts and a table, as HTML without scripts or anything from elsewhere."""
        head, *rows = self._table(list(self.result.attacks))
        best = self.result.verdict.attack
        body = "".join(f"<tr>{html_cells('th' if row[0] == best else 'td', row)}</tr>" for row in rows)
        unquoted = unquoted_doubts(self.result.verdict, self.result.notes)
        cautions = "".join(f"<p>{html.escape(note.text)}</p>" for note in unquoted)
        return (
            f"<div><p><strong>{html.escape(self.result.verdict.text)}</strong></p>{cautions}"
            f"<table><thead><tr>{html_cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"
            "<p>Per cent of the members found at a false-positive rate; "
            f"<code>{html.escape(str(self.folder))}</code></p><p>{html.escape(self._where)}</p></div>"
        )


def unquoted_doubts(verdict: Verdict, notes: Iterable[Note]) -> list[Note]:
    """Doubts that the text of the verdict does not contain already."""
    said = verdict.text
    return [note for note in doubts(notes) if note.text not in said and after_colon(note.text) not in said]


def results_folder(run: str | os.PathLike[str] | Overview) -> Path:
    """Return the folder of results that are given by their path, or as what `audit` or `score` returned."""
    if isinstance(run, Overview):
        return run.folder
    if isinstance(run, str | os.PathLike):
        return Path(run)
    raise OutputError(
        f"a {type(run).__name__} was given where one path is needed: give a path, or what audit or score returned"
    )


def main_attacks(names: Iterable[str], best: str) -> list[str]:
    """At most five of the attacks, the usual ones first; the verdict's, ``best``, is among them."""
    known = list(names)
    ordered = list(dict.fromkeys([*(name for name in MAIN_ATTACKS if name in known), *known]))
    shown = ordered[: len(MAIN_ATTACKS)]
    return shown if best in shown else [*shown[:-1], best]


def _row(attack: str, entry: TargetSummary) -> dict[str, str | float | None]:
    ends = entry.auc_interval
    row: dict[str, str | float | None] = {"attack": attack, "target": entry.target, "auc": entry.auc}
    row |= {"auc_low": ends.low if ends else None, "auc_high": ends.high if ends else None}
    for fpr, point in entry.tpr.items():
        interval = point.interval
        values = (point.tpr, interval.low, interval.high) if point.resolved else (None, None, None)
        name = f"tpr_{fpr_key(fpr)}"
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
    return row


def _per_cent(value: Mean | MeanTpr) -> str:
    return "–" if isinstance(value, MeanTpr) and not value.resolved else f"{100 * value.mean:.2f}"


class SavedRun(Overview):
    """Results that `plmia score` or `plmia audit` wrote; arrays are read when they are asked for, and checked then.

    Parameters
    ----------
    folder : path or Audit
        The folder of the results, or what `audit` or `score` returned.
    written : RunResult, optional
        The result that a run just wrote there; metrics.json is then not read back.

    Attributes
    ----------
    result : RunResult
        The content of metrics.json.
    attacks, targets : list of str, list of int
        Names of the attacks, and numbers of the attacked models.
    verified : bool
        Whether all files are those of one run, as it wrote them. False for results of versions that kept no digests;
        results that contradict their digests raise `OutputError`.
    """

    def __init__(self, folder: str | Path | Overview, written: RunResult | None = None) -> None:
        self.folder = folder = results_folder(folder)
        try:
            files = open_parts(folder)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and os.path.isfile(folder / "signals" / "store.json"):  # noqa: PTH113
                raise OutputError(
                    f"{folder} has models but no results: if an audit is unfinished, run the same command again, else "
                    "plmia score"
                ) from error
            raise OutputError(
                f"{folder} has no results ({error.strerror}: {Path(error.filename or folder).name}): "
                "give the output folder of plmia audit or plmia score"
            ) from error
        weakref.finalize(self, _close, tuple(files.values()))
        try:
            text = files["metrics.json"].read() if written is None else metrics_text(written)
            if written is None:
                metrics = _read_metrics(text)
                self.result, self.verified = RunResult.from_json(metrics), _verified(metrics, files)
            else:
                self.result, self.verified = written, True
            # The file stays open: its table of contents is long where there are many targets.
            self._archive = zipfile.ZipFile(files["scores.npz"])
            self._entries = _entries(self._archive, self.result)
        except OSError as error:
            raise OutputError(f"the results in {folder} cannot be read ({error.strerror or error}): {AGAIN}") from error
        except (ValueError, RecursionError, MemoryError, zipfile.BadZipFile, NotImplementedError) as error:
            why = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise OutputError(f"the results in {folder} are damaged ({why}): {AGAIN}") from error
        self.attacks: list[str] = list(self.result.attacks)
        self.targets: list[int] = list(self.result.about.targets)
        self._points, self._units = self.result.about.signals.points, self.result.about.units
        self._text = hashlib.sha256(text).digest()

    def require_verified(self) -> None:
        """Raise `OutputError` for results of a version that kept no digests, since they may have been changed."""
        if not self.verified:
            raise OutputError(self.unverified)

    @property
    def unverified(self) -> str:
        """Message about results that are not verified."""
        return (
            f"the results in {self.folder} cannot be verified, since an earlier version of plmia wrote them without "
            f"digests: {AGAIN} with this version"
        )

    def still_there(self) -> bool:
        """Whether the folder holds these results and not those of another run; call it under the folder's lock."""
        try:
            return hashlib.sha256(read_regular(self.folder / "metrics.json")).digest() == self._text
        except OSError:
            return False

    @cached_property
    def labels(self) -> Labels | None:
        """Class of each record [records], where classes are known."""
        return self._read("labels", "iu", self._points) if "labels" in self._entries else None

    @cached_property
    def groups(self) -> IntArray | None:
        """Group of each record [records], where records form groups and the run was asked to show records."""
        return self._read("groups", "iu", self._points) if "groups" in self._entries else None

    def population(self, target: int) -> IntArray:
        """The population Z of one target."""
        return self.split(target)[0]

    def queries(self, target: int) -> IntArray:
        """The evaluated records of one target."""
        return self.split(target)[1]

    def members(self, target: int) -> BoolArray:
        """Which records [records] the target trained on."""
        return self.split(target)[2]

    def split(self, target: int) -> tuple[IntArray, IntArray, BoolArray]:
        """Population and evaluated records of a target, and which records [records] are its members."""
        self._require_target(target)
        members = self._read(f"members/{target}", "b", self._units)
        population, queries = (self._read(f"{kind}/{target}", "iu") for kind in ("population", "queries"))
        seen = np.zeros(self._units, bool)
        for part in (population, queries):
            if len(part) and not 0 <= part.min() <= part.max() < self._units:
                raise self._damaged(f"population or queries of target {target} reach beyond {self._units:,} records")
            before = int(np.count_nonzero(seen))
            seen[part] = True
            if int(np.count_nonzero(seen)) != before + len(part):
                raise self._damaged(f"population and queries of target {target} share a record or name one twice")
        if members[population].any():
            raise self._damaged(f"the population of target {target} holds members")
        found = int(members[queries].sum()), int((~members[queries]).sum())
        for attack in self.result.attacks.values():
            entry = attack.on(target)
            if found != (entry.n_members, entry.n_non_members):
                raise self._damaged(f"target {target} has other numbers of members and non-members in metrics.json")
        return population, queries, members

    def scores(self, attack: str, target: int) -> Scores:
        """Scores of every record by one attack on one target."""
        score, own, conformal, statistic = (self._array(attack, target, key) for key in SCORE_ARRAYS)
        return Scores(attack, score, own, conformal, statistic, not np.array_equal(own, conformal))

    def roc(self, attack: str, target: int) -> Roc:
        """ROC curve on the evaluated records."""
        _, queries, members = self.split(target)
        return roc_curve(self._array(attack, target, "score")[queries], members[queries])

    def records(self, attack: str | None = None, target: int | None = None) -> RecordTable:
        """Evaluated records or people, the most exposed first; by default the verdict's attack on the first target."""
        attack = self.result.verdict.attack if attack is None else attack
        target = self.targets[0] if target is None else target
        population, queries, members = self.split(target)
        scores = self.scores(attack, target)
        if not self.result.about.people:
            return record_table(scores, population, queries, self.labels, self.groups, members)
        table = record_table(scores, population, queries, members=members)
        return people_table(table, *self.people, self.groups)

    @cached_property
    def columns_by(self) -> dict[str, IntArray]:
        """Codes [records or people] of each column by which subgroups were formed; `about.by` has their names."""
        found = {}
        for k, (name, values) in enumerate((self.result.about.by or {}).items()):
            found[name] = codes = self._read(f"by/{k}", "i", self._units)
            if len(codes) and not VARIES <= codes.min() <= codes.max() < len(values):
                raise self._damaged(f"the codes of column {name[:40]!r} reach beyond its {len(values)} values")
        return found

    @cached_property
    def people(self) -> tuple[IntArray, IntArray]:
        """Number of records and first record of each person [people], where people were judged."""
        size, first = (self._read(f"people/{name}", "iu", self._units) for name in ("records", "first_record"))
        if size.min() < 1 or size.sum() != self._points or not 0 <= first.min() <= first.max() < self._points:
            raise self._damaged("people have other records than the run")
        return size, first

    def _array(self, attack: str, target: int, key: str) -> FloatArray:
        """One array [points] of one attack on one target."""
        self._require_target(target)
        values = self._read(f"{self.attack_name(attack)}/{target}/{key}", "f", self._units)
        if not np.isfinite(values).all() or (key.startswith("log10_p") and values.max() > 0):
            raise self._damaged(f"{attack}/{target}/{key} holds values that are not {key.partition('_')[0]} values")
        return values

    def _require_target(self, target: int) -> None:
        if target not in self.targets:
            known = ", ".join(map(str, self.targets))
            raise OutputError(f"target {target} is not among the results in {self.folder}: take one of {known}")

    def _read(self, name: str, kinds: str, length: int | None = None) -> Array:
        """Read one array [length] whose type is of one of ``kinds``."""
        entry = self._entries[name]
        try:
            # As plmia writes them. No entry can unpack to more than it takes in the file.
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > _HEADER_BYTES + 8 * self._points:
                raise zipfile.BadZipFile("it is compressed or too long")
            with cast("zipfile.ZipExtFile", self._archive.open(entry)) as member:
                array = read_member(self.folder / "scores.npz", name, member, OutputError)
        except Exception as error:  # whatever zipfile and NumPy's reader of headers raise
            raise self._damaged(f"{name!r} cannot be read: {error}") from error
        if array.dtype.kind not in kinds or array.ndim != 1 or (length is not None and len(array) != length):
            raise self._damaged(f"{name!r} has type {array.dtype} and shape {array.shape}")
        return memory.copied(array) if memory.limit_in_bytes() is not None else array

    def _damaged(self, what: str) -> OutputError:
        return OutputError(f"{self.folder / 'scores.npz'} is damaged ({what}): {AGAIN}")


def _entries(archive: zipfile.ZipFile, result: RunResult) -> dict[str, zipfile.ZipInfo]:
    """Entries of scores.npz by array: those of the run's attacks and targets, and no others."""
    found = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
    if len(found) < len(archive.infolist()):
        raise ValueError("scores.npz holds two arrays of one name")

    def names(attacks: Iterable[str]) -> set[str]:
        targets = result.about.targets
        return {f"{attack}/{target}/{key}" for attack in attacks for target in targets for key in SCORE_ARRAYS}

    split = {f"{kind}/{target}" for kind in ("population", "queries", "members") for target in result.about.targets}
    people = {"people/first_record", "people/records"} if result.about.people else set()
    columns = {f"by/{k}" for k in range(len(result.about.by or {}))}
    needed = split | people | columns | names(result.attacks)
    allowed = needed | {"labels", "groups"} | names(result.skipped)
    if not needed <= found.keys() <= allowed:
        name = min(needed ^ (found.keys() - (allowed - needed)))
        raise ValueError(f"scores.npz {'lacks' if name in needed else 'holds an unknown'} array {name!r}")
    return found


def _close(files: Iterable[BinaryIO]) -> None:
    for file in files:
        file.close()


# The digests ---------------------------------------------------------------------------------------------------------


def seal(result: RunResult, parts: Mapping[str, str]) -> RunResult:
    """Return the result with the digests of the other files, ``parts``, and of metrics.json itself."""
    sha = hashlib.sha256()
    for part in _json_parts(replace(result, digests=parts), indent=None, sort_keys=True, separators=(",", ":")):
        sha.update(part.encode("ascii"))
    return replace(result, digests={**parts, "self": sha.hexdigest()})


def _self_digest(metrics: Mapping[str, Any]) -> str:
    """SHA-256 of metrics.json without ``digests.self``: sorted keys, no spaces, ASCII."""
    digests = {name: digest for name, digest in metrics["digests"].items() if name != "self"}
    text = json.dumps(dict(metrics) | {"digests": digests}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def metrics_text(result: RunResult) -> bytes:
    """Return metrics.json as it is written."""
    return b"".join(metrics_parts(result))


def metrics_parts(result: RunResult) -> Iterator[bytes]:
    """Yield metrics.json in parts: with many targets, the whole text takes much memory."""
    for part in _json_parts(result, indent=1):
        yield part.encode()
    yield b"\n"


def _json_parts(result: RunResult, *, indent: int | None, **options: Any) -> Iterator[str]:
    """Yield what `json.dumps` returns for a result, one entry of ``per_target`` at a time."""
    place = secrets.token_hex(16)
    text = json.dumps(result.outline(place), indent=indent, allow_nan=False, **options)
    entries = [attack.per_target for attack in result.attacks.values()]
    # The text of an entry lies four levels deep.
    line = "\n" + _ENTRY_DEPTH * (indent or 0) * " " if indent else ""
    first, *rest = re.split(f'"{place}([0-9]+)"', text)
    yield first
    for which, after in zip(rest[::2], rest[1::2], strict=True):
        for i, entry in enumerate(entries[int(which)]):
            told = json.dumps(encode(entry), indent=indent, allow_nan=False, **options)
            yield ("," + line if i else "") + (told.replace("\n", line) if line else told)
        yield after


def sha256_of(file: BinaryIO) -> str:
    """SHA-256 of all bytes of an open file."""
    file.flush()
    file.seek(0)
    return hashlib.file_digest(cast("Any", file), "sha256").hexdigest()


def _read_metrics(text: bytes) -> dict[str, Any]:
    """Parse metrics.json; ValueError or RecursionError if it is not strict JSON."""
    found = json.loads(text.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    return cast("dict[str, Any]", found)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in one object of metrics.json")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"metrics.json holds {name}")


def _verified(metrics: Mapping[str, Any], files: Mapping[str, BinaryIO]) -> bool:
    """Compare all digests; False where there are none to compare, ValueError where one differs."""
    digests = metrics.get("digests")
    if digests is None and metrics["schema"] < SCHEMA:
        return False
    if digests is None:
        raise ValueError("metrics.json holds no digests")
    tables = ["records.csv"]
    tables += ["people.csv"] if metrics["about"].get("unit") == "group" else []
    tables += ["trainings.csv"] if metrics.get("trainings") else []
    if not {"self", "scores.npz", *tables} <= digests.keys():
        raise ValueError("metrics.json does not hold the digests of all files")
    if digests["self"] != _self_digest(metrics):
        raise ValueError("metrics.json was changed after it was written")
    for name in ("scores.npz", *tables):
        if name in files and sha256_of(files[name]) != digests[name]:
            raise ValueError(f"{name} is not the one that metrics.json was written with")
    return True
