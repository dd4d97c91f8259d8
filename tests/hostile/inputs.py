"""Hostile input: mutants of the bytes of every file that plmia reads, and files that no tool writes."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import itertools
import json
import math
import os
import re
import shutil
import socket
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from tests.contract.test_importer_contract import WRITERS, drawn
from tests.e2e.test_bad_input import READERS
from tests.hostile.campaign import (
    Arrays,
    Campaign,
    Finding,
    command,
    fresh,
    judged,
    of_people,
    reporting,
    results_of,
    scored,
    simulated,
    tried,
)
from tests.hostile.expected import (
    arrays_in,
    check_compare,
    check_design,
    check_gate,
    check_plan,
    check_report,
    check_scored,
    flags,
)

import plmia
from plmia.auditing.given_target import as_target
from plmia.auditing.members import read_members
from plmia.data import archives
from plmia.data.dataset import LabelledData, read_data
from plmia.data.designs import audit_design
from plmia.data.table_files import MISSING, read_frame
from plmia.results.saved import _self_digest
from plmia.signals.store import SignalStore, sealed, store_key, write_stack
from plmia.training.recipes.named import parse_recipe
from plmia.training.recipes.recipe import views_for

Rng = np.random.Generator
ATTACK = ("--attack", "attack-r", "--attack", "attack-p", "--quiet")
GATE = ("--max-tpr", "0.9", "--at-fpr", "0.1", "--json")
COMPARE = ("--attack", "attack-r", "--attack", "attack-p", "--json")
WARDS = ("--by", "ward")


# Mutants -------------------------------------------------------------------------------------------------------------


def mutant(good: bytes, rng: Rng) -> tuple[str, bytes]:  # noqa: C901 - one branch per kind of damage
    """Damage bytes in one to three ways; return how, too."""
    changed, ways = bytearray(good), []
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        n = max(len(changed), 1)
        at, length = int(rng.integers(n)), int(rng.integers(1, 1 + min(n, 64)))
        way = str(rng.choice(["flip", "byte", "cut", "delete", "insert", "zeros", "repeat", "swap", "digit", "text"]))
        ways.append(f"{way} {at}+{length}")
        part = changed[at : at + length]
        if way == "flip" and changed:
            changed[at] ^= 1 << int(rng.integers(8))
        elif way == "byte" and changed:
            changed[at] = int(rng.integers(256))
        elif way == "cut":
            del changed[at:]
        elif way == "delete":
            del changed[at : at + length]
        elif way == "insert":
            changed[at:at] = rng.bytes(length)
        elif way == "zeros":
            changed[at : at + length] = bytes(len(part))
        elif way == "repeat":
            changed[at:at] = part
        elif way == "swap":
            other = int(rng.integers(n))
            changed[other : other + len(part)], changed[at : at + length] = part, changed[other : other + len(part)]
        else:
            places = [k for k, byte in enumerate(changed) if (0x30 <= byte <= 0x39) == (way == "digit")]
            if places:
                nasty = b"0123456789" if way == "digit" else b"\"',;\n\r\t{}[]()-+.eEnaN\xff\x00 "
                changed[int(rng.choice(places))] = int(rng.choice(list(nasty)))
    return ", ".join(ways), bytes(changed)


def mutants(path: Path, count: int, rng: Rng, check: Callable[[str, bytes], Finding]) -> Iterator[Finding]:
    """Put mutants of a file in its place, one after another; it is whole again at the end."""
    good = path.read_bytes()
    try:
        for _ in range(count):
            how, bad = mutant(good, rng)
            path.write_bytes(bad)
            yield check(f"{path.name}: {how}", bad)
    finally:
        path.write_bytes(good)


def _table(path: Path, rng: Rng, rows: int = 40) -> Path:
    """Write a table with numbers, text, missing values and a label."""
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "dose": rng.normal(size=rows).round(3),
            "sex": rng.choice(["f", "m", "other one"], rows),
            "ill": np.arange(rows) % 2,
        }
    )
    frame.loc[3, "dose"] = np.nan
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return path


def _own_run(folder: Path, seed: int = 0, people: bool = False) -> Path:
    """Run of the user's own script with all models recorded."""
    words: list[object] = ["design", "--records", 48, "--references", 4, "-o", fresh(folder), "--quiet"]
    if people:
        np.save(folder.with_suffix(".npy"), of_people(seed)["groups"])
        words += ["--groups", folder.with_suffix(".npy")]
    result = command(*words)
    assert result.exit_code == 0, result.output
    run, arrays = plmia.Run(folder), _own_arrays(folder, seed)
    for model in run.models:
        run.record(model, confidence=arrays["signals"][model], labels=arrays["labels"])
    return folder


def _own_arrays(folder: Path, seed: int = 0) -> Arrays:
    """Signals that the script records, and members as NumPy reads them from the design."""
    design = arrays_in(folder / "design.npz")
    members = np.unpackbits(design["membership"], axis=1, count=int(design["n_points"])).astype(bool)
    signals = np.random.default_rng(seed).normal(size=members.shape) + 1.5 * members
    # Used only where people are judged.
    return {"signals": signals, "membership": members, "labels": np.arange(48) % 3, "groups": of_people(seed)["groups"]}


def mutants_of_signals(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Signals in an npz: the same results or a refusal."""
    out, people = folder / "out", of_people(0, people=200)
    kinds = [(np.savez, simulated(0), ()), (np.savez_compressed, simulated(1), ()), (np.savez, people, WARDS)]
    for number, (save, arrays, more) in enumerate(kinds):
        file = folder / f"signals{number}.npz"
        save(file, **arrays)
        good = scored(file, out, *ATTACK, *more)
        words: list[object] = ["score", file, "-o", out, *ATTACK, *more]
        yield from mutants(file, count // 3, rng, lambda case, _, w=words, g=good: judged(case, w, _same(out, g)))


def _same(out: Path, good: dict[str, Any]) -> Callable[[Any], bool]:
    return lambda _: results_of(out) == good


def mutants_inside_signals(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Damaged arrays in an npz whose checksums fit: what NumPy reads is what was scored, or a refusal."""
    plain = of_people(0)
    del plain["ward"]  # which is read only where subgroups are compared
    kinds: list[tuple[Arrays, tuple[str, ...]]] = [(simulated(0), ()), (plain, ()), (of_people(0, people=200), WARDS)]
    file, out = folder / "signals.npz", folder / "out"
    for number in range(count):
        arrays, more = kinds[number % 3]
        name = str(rng.choice(list(arrays)))
        stream = io.BytesIO()
        np.save(stream, arrays[name])
        raw = stream.getvalue()
        # Half of the damage is to the header.
        end = 128 if rng.random() < 0.5 else len(raw)
        how, bad = mutant(raw[:end], rng)
        _write_npz(file, arrays | {name: bad + raw[end:]})
        words: list[object] = ["score", file, "-o", fresh(out), *ATTACK, "--scale", "logit", *more]
        yield judged(f"{name}: {how}", words, lambda _: _are_scored(out, arrays_in(file)))


def mutants_of_data(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Data in an npz: the same design, which holds the digest of the data, or a refusal."""
    file, run = folder / "data.npz", folder / "run"
    X = rng.normal(size=(40, 3)).round(3)
    np.savez(file, X=X, y=np.arange(40) % 2, groups=np.arange(40) // 2, feature_names=np.array(["a", "b", "c"]))
    words = ["design", "--data", file, "--references", 2, "-o", run, "--quiet"]
    assert command(*words).exit_code == 0
    good = (run / "design.npz").read_bytes()

    def check(case: str, _: bytes) -> Finding:
        fresh(run)
        return judged(case, words, lambda _: _design_of(run, folder) == _design_of_bytes(good, folder))

    yield from mutants(file, count, rng, check)


def _design_of(run: Path, folder: Path) -> dict[str, bytes]:
    return _design_of_bytes((run / "design.npz").read_bytes(), folder)


def _design_of_bytes(design: bytes, folder: Path) -> dict[str, bytes]:
    """Arrays of a design but for notes, which may name parts of a file that are not used."""
    with np.load(io.BytesIO(design)) as archive:
        return {name: archive[name].tobytes() for name in archive.files if name != "notes"}


def mutants_of_tables(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Tables in CSV: what Python's own csv module reads, cell by cell, or a refusal."""
    file = _table(folder / "table.csv", rng)

    def check(case: str, bad: bytes) -> Finding:
        return tried(case, lambda: read_frame(file)[0], lambda frame: _is_read_alike(frame, bad))

    yield from mutants(file, count, rng, check)


def _is_read_alike(frame: pd.DataFrame, raw: bytes) -> bool:
    text = raw.decode("utf-8-sig")
    for separator in ",;\t|":
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if row]
        if len(rows) == len(frame) + 1 and len(rows[0]) == frame.shape[1]:
            return all(_are_alike(frame.iloc[i, j], rows[i + 1][j]) for i, j in np.ndindex(*frame.shape))
    return False


def _are_alike(value: Any, cell: str) -> bool:
    text = cell.strip()
    if text in MISSING:
        return bool(pd.isna(value))
    if isinstance(value, bool | np.bool_):
        return text.lower() == str(value).lower()
    if isinstance(value, int | float | np.number):
        return float(text) == float(value)
    if isinstance(value, pd.Timestamp):
        return pd.Timestamp(text) == value
    return value == text


def mutants_of_parquet(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Tables in Parquet: what pyarrow reads, or a refusal."""
    file = _table(folder / "table.parquet", rng)

    def check(case: str, bad: bytes) -> Finding:
        return tried(case, lambda: read_frame(file)[0], lambda frame: frame.equals(pq.read_table(file).to_pandas()))

    yield from mutants(file, count, rng, check)


def mutants_of_predictions(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Predictions of an existing model: the confidences of what NumPy or csv reads, or a refusal."""
    labels, members = np.arange(30) % 2, np.arange(30) % 3 == 0
    data, recipe = LabelledData(rng.normal(size=(30, 2)), labels), parse_recipe("sklearn:GaussianNB")
    views = views_for(recipe, data, None)
    p = rng.dirichlet([1, 1], size=30)
    np.savez(folder / "p.npz", probabilities=p)
    np.save(folder / "p.npy", p)
    pd.DataFrame(p.round(6), columns=["0", "1"]).to_csv(folder / "p.csv", index=False)

    def is_right(conf: Any, file: Path) -> bool:
        found = p if file.suffix == ".npz" else np.load(file) if file.suffix == ".npy" else _numbers(file)
        if file.suffix == ".npy" and not -1e-5 <= found.min() <= found.max() <= 1 + 1e-5:
            expected = found[np.arange(30), labels] - found[np.arange(30), 1 - labels]  # logits
            return bool(np.allclose(conf[:, 0], expected, rtol=1e-4, atol=1e-3))
        found = np.clip(found, 0, 1)  # a probability of -1e-100 is one of 0
        q = found[np.arange(30), labels] / found.sum(axis=1)
        with np.errstate(divide="ignore"):
            expected = np.log(q) - np.log1p(-q)
        usual = np.abs(expected) < 30  # beyond, digits of 1 - p are lost here
        return bool(np.allclose(conf[usual, 0], expected[usual], atol=1e-3))

    for name in ("p.npz", "p.npy", "p.csv"):
        file = folder / name

        def ask(file: Path = file) -> Any:
            target = as_target(file, members, data)
            assert target is not None
            assert target.source is not None
            return target.source.ask(data, members, views, recipe).trained.conf

        assert is_right(ask(), file)
        check = lambda case, _, f=file, ask=ask: tried(case, ask, lambda conf: is_right(conf, f))  # noqa: E731
        yield from mutants(file, count // 3, rng, check)


def mutants_of_archives(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """An archive without a published checksum, which holds its own: the records of the undamaged one, or a refusal."""
    file, X, y = folder / "dataset_purchase.tgz", rng.integers(0, 2, (60, 600)), np.arange(60) % 100 + 1
    lines = "".join(f"{label},{','.join(map(str, row))}\n" for label, row in zip(y, X, strict=True)).encode()
    with tarfile.open(file, "w:gz") as tar:
        info = tarfile.TarInfo("dataset_purchase")
        info.size = len(lines)
        tar.addfile(info, io.BytesIO(lines))
    purchase = next(published for published in archives.PUBLISHED if published.md5 is None)
    small = (replace(purchase, n_points={"train": 60}),)

    def is_right(data: Any) -> bool:
        return bool((data.X == X).all() and (data.y == y - 1).all())

    with mock.patch.object(archives, "PUBLISHED", small):
        assert is_right(archives.read_archive(file))
        yield from mutants(file, count, rng, lambda case, _: tried(case, lambda: archives.read_archive(file), is_right))


def mutants_of_members(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Files that name the members of a target: what NumPy or Python reads, or a refusal."""
    members = rng.permutation(np.arange(30) < 12)
    np.save(folder / "flags.npy", members)
    np.save(folder / "rows.npy", np.flatnonzero(members))
    (folder / "flags.csv").write_text("\n".join(["member", *map(str, members.astype(int))]))
    (folder / "rows.txt").write_text("\n".join(map(str, np.flatnonzero(members))))
    for name in ("flags.npy", "rows.npy", "flags.csv", "rows.txt"):
        file = folder / name
        act = functools.partial(read_members, file, 30, None)
        is_right = functools.partial(_are_members, file)
        assert is_right(act())
        assert (act()[0] == members).all()
        check = lambda case, _, act=act, right=is_right: tried(case, act, right)  # noqa: E731
        yield from mutants(file, count // 4, rng, check)


def _are_members(file: Path, found: Any) -> bool:
    """Whether members of 30 records are those of a file with one flag per record, or with row numbers."""
    if file.suffix == ".npy":
        values = np.load(file)
    else:
        lines = [line.strip().strip('"') for line in file.read_text("utf-8-sig").splitlines() if line.strip()]
        heading = len(lines) == 31 or re.match(r"[a-zA-Z].*[a-zA-Z]", lines[0]) is not None
        values = np.array([int(line) for line in lines[heading:]])
    if len(values) == 30 and set(np.unique(values).tolist()) <= {0, 1}:
        return bool((found[0] == (values == 1)).all())
    return bool((np.flatnonzero(found[0]) == np.sort(values)).all())


def mutants_of_groups(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Groups of a design: those that NumPy reads, never split by the design, or a refusal."""
    file, run = folder / "groups.npy", folder / "run"
    np.save(file, np.arange(40) // 2)
    words = ["design", "--records", 40, "--groups", file, "--references", 2, "-o", run, "--quiet"]

    def is_right(_: Any) -> bool:
        design, groups = arrays_in(run / "design.npz"), np.load(file)
        members = np.unpackbits(design["membership"], axis=1, count=40).astype(int)
        whole = all(np.ptp(members[:, groups == group], axis=1).max() == 0 for group in np.unique(groups))
        return whole and bool((design["groups"] == groups).all())

    def check(case: str, _: bytes) -> Finding:
        fresh(run)
        return judged(case, words, is_right)

    assert check("", b"").outcome == "right"
    yield from mutants(file, count, rng, check)


def _numbers(path: Path) -> Any:
    """Two columns of probabilities in a CSV; a column of identifiers, such as 007, is not used, so the other counts."""
    rows = [row for row in csv.reader(io.StringIO(path.read_text(), newline="")) if row][1:]
    cells = [[None if re.fullmatch(r"\s*[+-]?(0\d+|\d{19,})\s*", cell) else cell for cell in row] for row in rows]
    columns = [pd.to_numeric(pd.Series(c), errors="coerce").to_numpy(float) for c in zip(*cells, strict=True)]
    kept = [column for column in columns if not np.isnan(column).any()]
    return np.stack(columns if len(kept) == 2 else [1 - kept[0], kept[0]][:: 1 if kept[0] is columns[1] else -1], 1)


def mutants_of_stores(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Stores of signals: the same results or a refusal, whichever file is damaged."""
    out = folder / "out"
    for people in (False, True):
        run = _own_run(folder / "run", people=people)
        store = run / "signals"
        words: list[object] = ["score", store, "-o", out, *ATTACK]
        good = scored(store, out, *ATTACK, arrays=_own_arrays(run))
        check = lambda case, _, w=words, g=good: judged(case, w, _same(out, g))  # noqa: E731
        files = sorted(path for path in store.rglob("*") if path.is_file())
        for file in files:
            yield from mutants(file, count // (2 * len(files)), rng, check)


def mutants_of_designs(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """design.npz of a run, and a design of the user's own as npy."""
    out = folder / "out"
    for people in (False, True):
        run = _own_run(folder / "run", people=people)
        good = scored(run, out, *ATTACK, arrays=_own_arrays(run))
        words: list[object] = ["score", run, "-o", out, *ATTACK]
        check_run = lambda case, _, w=words, g=good: judged(case, w, _same(out, g))  # noqa: E731
        yield from mutants(run / "design.npz", count // 4, rng, check_run)
    own, made = folder / "own.npy", folder / "made"
    np.save(own, simulated(1)["membership"])
    words = ["design", "--records", 48, "--design", own, "-o", made, "--quiet"]

    def check(case: str, _: bytes) -> Finding:
        fresh(made)
        return judged(case, words, lambda _: np.array_equal(plmia.Run(made).design.matrix, flags(np.load(own))))

    yield from mutants(own, count // 2, rng, check)


def mutants_of_stacks(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Stacks of another machine: the same signals in the store, or a refusal."""
    design = audit_design(30, 4, np.random.default_rng(0))
    signals = rng.normal(size=(5, 30, 1)).astype(np.float32)
    key = store_key({"seed": 0}, design, ["a"])
    stacks = folder / "stacks"
    for models in ([0], [1, 2], [3, 4]):
        write_stack(stacks, models, signals[models], [{"seed": k} for k in models], key=key)
    SignalStore.create(folder / "empty", {"seed": 0}, design, ["a"])

    def merged() -> SignalStore:
        shutil.copytree(folder / "empty", fresh(folder / "store"))
        store = SignalStore.open(folder / "store")
        store.import_npy(stacks)
        return store

    files = sorted(stacks.iterdir())
    for file in files:
        yield from mutants(
            file,
            count // len(files),
            rng,
            lambda case, _: tried(case, merged, lambda store: np.array_equal(store.read(range(5)), signals)),
        )


def mutants_of_imports(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Files of other tools: the signals and members that NumPy or csv reads from them, or a refusal."""
    confidences, membership = drawn()
    npz = folder / "signals.npz"
    for name, write in WRITERS.items():
        source = folder / name
        write(source, confidences, membership)
        files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
        words: list[object] = ["import", name, source, "-o", npz, "--quiet"]
        assert command(*words).exit_code == 0
        assert _is_imported(name, source, npz)
        is_right = lambda _, n=name, s=source: _is_imported(n, s, npz)  # noqa: E731
        for file in files:
            n = max(count // (len(WRITERS) * len(files)), 1)
            yield from mutants(file, n, rng, lambda case, _, w=words, r=is_right: judged(case, w, r))
            fresh(npz)


def _is_imported(name: str, source: Path, npz: Path) -> bool:
    """Whether a signals file holds what NumPy or the csv module reads from the files of another tool."""
    found = arrays_in(npz)
    signals, members = _OTHER_TOOLS[name](source)
    count = signals.shape[1]
    stored = found["membership"]
    if stored.shape != members.shape:
        stored = np.unpackbits(stored, axis=1, count=count)
    # Beyond 15, digits of a probability are lost.
    limit = 15.0 if name in ("privacy-meter", "arrays") else np.inf
    held = found["signals"].reshape(signals.shape)
    usual = np.abs(signals) < limit
    alike = np.allclose(held[usual], signals[usual], rtol=1e-5, atol=1e-5)
    extreme = np.array_equal(np.sign(held[~usual]), np.sign(signals[~usual])) and (np.abs(held[~usual]) > 14).all()
    return bool(alike and extreme and np.array_equal(stored != 0, members != 0))


def _of_models(pattern: str, scores: str) -> Callable[[Path], tuple[Any, Any]]:
    def read(folder: Path) -> tuple[Any, Any]:
        places = sorted(folder.glob(pattern), key=lambda path: int(re.findall(r"\d+", path.name)[0]))
        signals = [np.asarray(np.load(place / scores), float).reshape(-1) for place in places]
        return np.stack(signals), np.stack([flags(np.load(place / "keep.npy")) for place in places])

    return read


def _logits(probabilities: Any) -> Any:
    p = np.asarray(probabilities, float)
    with np.errstate(divide="ignore"):
        return np.log(p) - np.log1p(-p)


def _of_table(path: Path) -> tuple[Any, Any]:
    text = path.read_text(encoding="utf-8-sig")
    separator = max(",;\t|", key=text.partition("\n")[0].count)
    header, *rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if row]
    columns = [[cell.strip() for cell in header].index(name) for name in ("model", "record", "member", "signal")]
    model, record, member, signal = zip(*([row[k].strip() for k in columns] for row in rows), strict=True)
    (models, m), (records, r) = (np.unique(np.array(c, float), return_inverse=True) for c in (model, record))
    signals, members = np.full((len(models), len(records)), np.nan), np.zeros((len(models), len(records)), bool)
    signals[m, r], members[m, r] = np.array(signal, float), [word.lower() in _TRUE for word in member]
    return signals, members


_TRUE = ("1", "1.0", "true", "t", "yes", "y", "in", "member")
# How NumPy and the csv module read what the other tools write.
_OTHER_TOOLS: dict[str, Callable[[Path], tuple[Any, Any]]] = {
    "lira": _of_models("experiment-*", "scores/0000000010.npy"),
    "rmia": _of_models("experiment-*", "scores/0000000010.npy"),
    "lira-pytorch": _of_models("[0-9]*", "scores.npy"),
    "privacy-meter": lambda f: (
        _logits(np.load(f / "signals" / "rmia_signals.npy")).T,
        flags(np.load(f / "models" / "memberships.npy")),
    ),
    "arrays": lambda f: (_logits(np.load(f / "probabilities.npy")), flags(np.load(f / "membership.npy"))),
    "table": _of_table,
}


def mutants_of_results(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """metrics.json, scores.npz and tables: gate, compare and report find damage or do not depend on it."""
    tables = "metrics.json", "scores.npz", "records.csv"
    kinds = [(simulated(0), (), tables), (of_people(0, people=200), WARDS, (*tables, "people.csv"))]
    for arrays, more, names in kinds:
        np.savez(folder / "signals.npz", **arrays)
        scored(folder / "signals.npz", folder / "out", *ATTACK, *more)
        yield from _mutants_of_results(folder / "out", names, count // 2, rng)


def _mutants_of_results(out: Path, names: tuple[str, ...], count: int, rng: Rng) -> Iterator[Finding]:
    calls: list[list[object]] = [["gate", out, *GATE], ["compare", out, *COMPARE], ["report", out]]
    for call in calls:
        said = command(*call)
        _check_printed(call, said, out)
        page = (out / "report.html").read_bytes() if call[0] == "report" else b""
        assert said.exit_code in (0, 3), said.output

        def is_right(result: Any, call: list[object] = call, said: Any = said, page: bytes = page) -> bool:
            same = (result.exit_code, result.stdout) == (said.exit_code, said.stdout)
            return same and (call[0] != "report" or (out / "report.html").read_bytes() == page)

        for name in names:
            n = count // (3 * len(names))
            yield from mutants(out / name, n, rng, lambda case, _, c=call, r=is_right: judged(f"{c[0]} {case}", c, r))


def _check_printed(words: list[object], said: Any, out: Path) -> bool:
    """Compare what gate, compare or report printed or wrote with the scores of a run, which is whole."""
    files = {"scores.npz": (out / "scores.npz").read_bytes()}
    if words[0] == "gate":
        check_gate(said.stdout, said.exit_code, files)
    elif words[0] == "compare":
        check_compare(said.stdout, files)
    else:
        check_report(out, files)
    return True


def mutants_of_recipes(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Recipes in JSON: the options that Python's json reads, or a refusal."""
    for name in ("gbdt?depth=5", "sklearn:LogisticRegression?C=10"):
        file = folder / f"{name.partition('?')[0].replace(':', '-')}.json"
        file.write_text(json.dumps(parse_recipe(name).to_json(), indent=1))

        def check(case: str, bad: bytes, file: Path = file) -> Finding:
            return tried(case, lambda: parse_recipe(str(file)).to_json(), lambda made: _holds(made, json.loads(bad)))

        yield from mutants(file, count // 2, rng, check)


def _holds(made: dict[str, Any], given: dict[str, Any]) -> bool:
    """Whether a recipe has all options of a JSON; those that the JSON lacks have defaults."""
    return all(made.get(key) == value for key, value in given.items())


# Monsters ------------------------------------------------------------------------------------------------------------


def _header(text: str, version: bytes = b"\x01\x00", body: bytes = b"") -> bytes:
    raw = text.encode("latin-1") + b"\n"
    size = struct.pack("<H" if version[0] == 1 else "<I", len(raw))
    return b"\x93NUMPY" + version + size + raw + body


HEADERS = {
    "code": "__import__('os').system('touch pwned')",
    "code in a shape": "{'descr': '<f8', 'fortran_order': False, 'shape': (__import__('os').getpid(),)}",
    "huge": "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 1000000)}",
    "overflow": "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}",
    "negative": "{'descr': '<f4', 'fortran_order': False, 'shape': (-8, 48)}",
    "true as a size": "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 48)}",
    "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (8, 48)}",
    "structured": "{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (8,)}",
    "no type": "{'fortran_order': False, 'shape': (8, 48)}",
    "deep": "(" * 150 + ")" * 150,
    "unclosed": "{'descr': '<f4",
    "unclosed text": "'''",
    "empty": "",
    "void": "{'descr': '|V0', 'fortran_order': False, 'shape': (8, 48)}",
    "zero width": "{'descr': '<U0', 'fortran_order': False, 'shape': (8, 48)}",
    "dates": "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (8, 48)}",
    "long type": "{'descr': '<f99', 'fortran_order': False, 'shape': (8, 48)}",
}


def _strange_arrays(like: Any) -> dict[str, Any]:
    """Arrays in place of a good one; raw bytes are files that NumPy would not write."""
    rng = np.random.default_rng(0)
    array = np.asarray(like)
    whole = array.astype(np.int64) if array.dtype.kind in "biuf" else np.arange(array.size).reshape(array.shape)
    found: dict[str, Any] = {
        "0-d": array.reshape(-1)[0],
        "0-d nan": np.float64(np.nan),
        "empty": np.atleast_1d(array)[:0],
        "no axis of length": np.empty((0,) * max(array.ndim, 1)),
        "one more axis": array[..., None, None, None, None],
        "one axis": array.reshape(-1),
        "30 axes": array.reshape((1,) * (30 - array.ndim) + array.shape),
        "half": array[: len(array) // 2] if array.ndim else array,
        "twice": np.concatenate([array, array]) if array.ndim else array,
        "text": np.full(array.shape, "high"),
        "bytes": np.full(array.shape, b"high"),
        "surrogates": np.full(array.shape, "\ud800"),
        "complex": whole + 1j,
        "dates": whole.astype("datetime64[s]"),
        "structured": np.zeros(array.shape, [("a", "f4"), ("b", "i8")]),
        "fortran": np.asfortranarray(array),
        "other byte order": array.astype(array.dtype.newbyteorder(">")),
        "half floats": whole.astype(np.float16),
        "long floats": whole.astype(np.longdouble),
        "flags": whole % 2 == 0,
        "bytes of numbers": whole.astype(np.uint8),
        "negative": -whole - 1,
        "2**63": np.full(array.shape, 2**63, np.uint64),
        "least integer": np.full(array.shape, -(2**63)),
        "random integers": rng.integers(-(2**63), 2**63 - 1, array.shape),
        "nothing but zeros": np.zeros(array.shape),
    }
    for value in (math.nan, math.inf, -math.inf, 1e100, -1e38, 2e6, 5e-324, -0.0, 1.7e308, -1e200):
        spoilt = whole.astype(np.float64)
        spoilt.reshape(-1)[-1:] = value
        found[f"one {value}"] = spoilt
        found[f"all {value}"] = np.full(array.shape, value)
    for name, text in HEADERS.items():
        for version in (b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"):
            found[f"header: {name} {version[0]}"] = _header(text, version, array.tobytes())
    return found


def _write_npz(path: Path, arrays: dict[str, Any]) -> None:
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, array in arrays.items():
            raw = array
            if not isinstance(array, bytes):
                stream = io.BytesIO()
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
                raw = stream.getvalue()
            archive.writestr(f"{name}.npy", raw)


def monsters_in_signals(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Signals files with one strange array, or two: what was scored is what the file holds, or a refusal."""
    more = {"n_points": np.array(48)}
    file, out = folder / "signals.npz", folder / "out"
    singles = [
        (arrays, name, how, bad, scale)
        for arrays in (simulated(0) | {"groups": np.arange(48) // 2} | more, of_people(0) | more)
        for name in arrays
        for how, bad in _strange_arrays(arrays[name]).items()
        for scale in ("logit", "signal")
    ]
    for arrays, name, how, bad, scale in _chosen(singles, count, rng):
        given = arrays | {name: bad}
        _write_npz(file, given)
        yield judged(
            f"{name}: {how}, {scale}",
            ["score", file, "-o", fresh(out), *ATTACK, "--scale", scale, *(WARDS if "ward" in arrays else ())],
            lambda _, given=given, scale=scale: _are_scored(out, given, scale),
        )


def _chosen(cases: list[Any], count: int, rng: Rng) -> list[Any]:
    """Return all cases, or ``count`` random ones if these are fewer."""
    return cases if count >= len(cases) else [cases[k] for k in rng.choice(len(cases), count, replace=False)]


def _are_scored(out: Path, given: Arrays, scale: str = "logit", rows: dict[int, int] | None = None) -> bool:
    """Whether there are results, and they are those of these arrays."""
    found = results_of(out)
    if found is None:
        return False
    plain = {name: np.load(io.BytesIO(value)) if isinstance(value, bytes) else value for name, value in given.items()}
    check_scored(found, plain, scale, rows)
    return True


def monsters_in_data(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Data files with one strange array: the data that NumPy reads, or a refusal."""
    arrays: Arrays = {"X": rng.normal(size=(40, 3)).round(3), "y": np.arange(40) % 2, "groups": np.arange(40) // 2}
    arrays |= {"n_features": np.array(3), "texts": np.full(40, "a"), "class_names": np.array(["a", "b"])}
    arrays["feature_names"] = np.array(["a", "b", "c"])
    file = folder / "data.npz"
    singles = [(name, how, bad) for name in arrays for how, bad in _strange_arrays(arrays[name]).items()]
    for name, how, bad in _chosen(singles, count, rng):
        _write_npz(file, arrays | {name: bad})
        expected = arrays["X"] if name != "X" else bad
        yield tried(
            f"{name}: {how}",
            lambda: read_data(file),
            lambda data, x=expected: _are_equal(np.asarray(data.X).reshape(-1), np.asarray(x).reshape(-1)),
        )


def _are_equal(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


def _strange_values() -> list[Any]:
    deep: Any = 0
    for _ in range(500):
        deep = [deep]
    return [
        None,
        True,
        -1,
        0,
        2**70,
        1e100,
        -1e-300,
        "",
        "a" * 300,
        "\ud800",
        "../../etc",
        "=cmd",
        [],
        {},
        [None],
        {"": {}},
        deep,
        [[1, 2], 3],
    ]


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values within a JSON."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from _leaves(entry, (*path, key))


def _replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = _replaced(copied[path[0]], path[1:], new)
    return copied


def monsters_in_json(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """store.json, records, stacks and metrics.json with strange values and digests that fit: no traceback.

    Whoever writes digests anew may write any results; signals and members stay as they are, or are refused.
    """
    run, out = _own_run(folder / "run", people=True), folder / "out"
    store = run / "signals"
    good = scored(store, out, *ATTACK, arrays=_own_arrays(run))
    record = next((store / "records").iterdir())
    files: list[tuple[Path, list[object], Callable[[Any], bool]]] = [
        (store / "store.json", ["score", store, "-o", folder / "again", *ATTACK], _same(folder / "again", good)),
        (record, ["score", store, "-o", folder / "again", *ATTACK], lambda _: _same_scores(folder / "again", good)),
    ]
    people = folder / "people"
    np.savez(folder / "people.npz", **of_people(0, people=200))
    scored(folder / "people.npz", people, *ATTACK, *WARDS)
    for made in (out, people):
        calls: list[list[object]] = [["gate", made, *GATE], ["compare", made, *COMPARE], ["report", made]]
        is_printed = lambda said, call, made=made: _check_printed(call, said, made)  # noqa: E731
        files += [(made / "metrics.json", call, functools.partial(is_printed, call=call)) for call in calls]
    texts = {path: path.read_text() for path, _, _ in files}
    cases = []
    for path, words, is_right in files:  # equally many of each, of which metrics.json is the longest
        leaves = list(itertools.product(_leaves(json.loads(texts[path])), _strange_values()))
        cases += [(path, words, is_right, *leaf) for leaf in _chosen(leaves, count // len(files), rng)]
    for path, words, is_right, where, value in cases:
        changed = _replaced(json.loads(texts[path]), where, value)
        path.write_text(_resealed(path, changed), encoding="utf-8", errors="surrogatepass")
        for made in (folder / "again", path.parent / "figures", path.parent / "report.html"):
            fresh(made)
        yield judged(f"{words[0]} {path.name} {where}: {str(value)[:40]!a}", words, is_right)
        path.write_text(texts[path])


def _same_scores(out: Path, good: dict[str, Any]) -> bool:
    found = results_of(out)
    return found is not None and found["scores.npz"] == good["scores.npz"]


def _resealed(path: Path, contents: Any) -> str:
    if isinstance(contents, dict) and path.name == "metrics.json" and isinstance(contents.get("digests"), dict):
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            contents["digests"]["self"] = _self_digest(contents)
    elif isinstance(contents, dict) and path.parent.name == "records":
        fields = {key: value for key, value in contents.items() if key not in ("schema", "digest")}
        if contents.get("schema") == 2:
            return sealed(fields).decode()
    return json.dumps(contents)


def hostile_merges(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Stacks with numbers, shapes and keys that do not fit, and digests that do: finished models stay as they are."""
    design = audit_design(30, 4, np.random.default_rng(0))
    signals = rng.normal(size=(5, 30, 1)).astype(np.float32)
    key = store_key({"seed": 0}, design, ["a"])
    store = SignalStore.create(folder / "half", {"seed": 0}, design, ["a"])
    store.append([0, 1], signals[:2], [{"seed": 0}, {"seed": 1}])
    stack = write_stack(folder / "stacks", [2, 3], signals[2:4], [{"seed": 2}, {"seed": 3}], key=key)
    about = json.loads(stack.with_suffix(".json").read_text())
    strange = [*_strange_values(), [0, 1], [2], [3, 2], [2, 2], [2, 9], [2, 10**30], [2.0, 3.0], [30, 2, 1], [2, 30, 1]]
    strange += [[{"seed": 2}], [{"seed": -1}, {}], [{"losses": [1e400]}, {}], [{"versions": {"a": "\n"}}, {}], "f" * 64]
    cases = [(where, value) for where in _leaves(about) if where and where[0] != "digest" for value in strange]
    cases += [((), value) for value in strange]
    finished = store.read([0, 1])
    for where, value in _chosen(cases, count, rng):
        changed = _replaced(about, where, value)
        text = json.dumps(changed)
        if isinstance(changed, dict) and changed.get("schema") == 2:
            fields = {name: entry for name, entry in changed.items() if name not in ("schema", "digest")}
            with contextlib.suppress(ValueError):
                text = sealed(fields).decode()
        stack.with_suffix(".json").write_text(text, encoding="utf-8", errors="surrogatepass")
        shutil.copytree(folder / "half", fresh(folder / "store"))
        merged = SignalStore.open(folder / "store")
        found = tried(
            f"{where}: {str(value)[:40]!a}",
            lambda m=merged: m.import_npy(folder / "stacks"),
            # Whoever seals a stack decides which row belongs to which model.
            lambda _, m=merged, c=changed: np.array_equal(m.read(c["models"]), signals[2:4]),
        )
        if not np.array_equal(merged.read([0, 1]), finished) or merged.verify():
            found = Finding(found.case, "lost", "models 0 and 1 changed")
        yield found


def strange_paths(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Pipes, devices, sockets, links and names in place of every kind of file that the command reads."""
    np.savez(folder / "data.npz", X=np.eye(8), y=np.arange(8) % 2)
    np.save(folder / "members.npy", np.arange(8) % 2 == 0)
    np.savez(folder / "good.npz", **simulated(0))
    scored(folder / "good.npz", folder / "run", *ATTACK)
    names = {"GOOD": folder / "good.npz", "RUN": folder / "run", "DATA": folder / "data.npz"}
    names |= {"MEMBERS": folder / "members.npy", "OUT": folder / "out"}
    cases = list(itertools.product(READERS, _PATHS))
    for number, (reader, kind) in enumerate(_chosen(cases, count, rng)):
        words: list[object] = []
        for word in READERS[reader]:
            before, here, end = word.partition("PIPE")
            if here:
                suffix, colon, rest = end.partition(":")
                path = _PATHS[kind](folder / f"strange{number}{suffix}")
                words.append(f"{before}{path}{colon}{rest}")
            else:
                words.append(names.get(word, word))
        yield judged(f"{reader}: {kind}", words, lambda _: False)
        fresh(folder / "out")


def _linked(target: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path.symlink_to(target)
        return path

    return make


def _made(make: Callable[[Path], object]) -> Callable[[Path], Path]:
    def at(path: Path) -> Path:
        make(path)
        return path

    return at


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # the address of a socket is short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


_PATHS: dict[str, Callable[[Path], Path]] = {
    "a pipe": _made(lambda path: os.mkfifo(path)),
    "a socket": _made(_socket),
    "/dev/zero": _linked("/dev/zero"),
    "/dev/null": _linked("/dev/null"),
    "/dev/full": _linked("/dev/full"),
    "/proc/self/mem": _linked("/proc/self/mem"),
    "a loop of links": lambda path: _linked(path.name)(path),
    "a link to nothing": _linked("nothing"),
    "a folder": _made(Path.mkdir),
    "an empty file": _made(Path.touch),
    "300 characters": lambda path: path.with_name("a" * 300 + path.suffix),
    "deep": lambda path: path.parent / "/".join(["a" * 100] * 60) / path.name,
    "not UTF-8": lambda path: path.with_name("\udcff\udcfe" + path.suffix),
    "two lines": lambda path: path.with_name("two\nlines" + path.suffix),
    "brackets": lambda path: path.with_name("[red]x" + path.suffix),
    "zeros": _made(lambda path: path.write_bytes(bytes(4096))),
    "a pickle": _made(lambda path: path.write_bytes(b"\x80\x04\x95\x1e\x00cos\nsystem\n(S'touch pwned'\ntR.")),
    "deep JSON": _made(lambda path: path.write_text("[" * 100_000)),
    "an encrypted zip": _made(lambda path: path.write_bytes(_encrypted())),
    "two arrays of one name": _made(lambda path: path.write_bytes(_twice())),
    "a zip bomb": _made(lambda path: path.write_bytes(_bomb())),
}


def _encrypted() -> bytes:
    stream = io.BytesIO()
    _write_npz(stream, {"signals": np.eye(3), "X": np.eye(3)})  # type: ignore[arg-type]
    raw = bytearray(stream.getvalue())
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = raw.find(magic)
        while start >= 0:
            raw[start + at] |= 1
            start = raw.find(magic, start + 4)
    return bytes(raw)


def _twice() -> bytes:
    """Arrays of usual names, each of which is there twice with different values."""
    stream = io.BytesIO()
    good = simulated(0) | {"X": np.eye(8), "y": np.arange(8) % 2, "probabilities": np.full((8, 2), 0.5)}
    with zipfile.ZipFile(stream, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, array in good.items():
            for value in (array, array[::-1]):
                with archive.open(f"{name}.npy", "w") as file:
                    np.save(file, value)
    return stream.getvalue()


def _bomb() -> bytes:
    """Zeros, whose header claims more than there are."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("signals", "membership", "X", "y", "probabilities"):
            header = _header("{'descr': '<f8', 'fortran_order': False, 'shape': (100000, 100000)}")
            archive.writestr(f"{name}.npy", header + bytes(1 << 20))
    return stream.getvalue()


# Options -------------------------------------------------------------------------------------------------------------

_VALUES = (
    *("", "0", "1", "-1", "2", "7", "1.5", "nan", "inf", "-inf", "1e400", "1e-400", "0x10", "²", "٣", "1_0", " 1 "),
    *(
        "99999999999999999999",
        "all",
        "auto",
        "\x01",
        "a" * 5000,
        "\udcff",
        "--",
        "-",
        "=cmd",
        "[red]",
        "%s",
        "{}",
        "../..",
    ),
    *(
        "/",
        ".",
        "a,b",
        "a=b",
        "lira",
        "attack-p",
        "attack-r",
        "rmia",
        "0.5",
        "0.05",
        "5%",
        "True",
        "None",
        "[]",
        "null",
    ),
    *("'", '"', "\n", "1;2"),
)
# Numbers at and beyond the ends of every type.
_EXTREME = (
    *(
        "9" * 400,
        "-" + "9" * 400,
        "1" + "0" * 399,
        "0." + "0" * 399 + "1",
        "1." + "9" * 400,
        "1e400",
        "-1e400",
        "1e-400",
    ),
    *("inf", "-inf", "nan", "-nan", "0", "-0", "-0.0", "-1", "-1e-9", "1e-320", "1e11", "1e308", "1e309", "2147483648"),
    *(
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775809",
        "18446744073709551616",
        "4.9e-324",
        "1e999999",
    ),
)
_SCORE = [
    *("--target", "--attack", "--mode", "--align", "--references", "--population", "--unit", "--by", "--prior"),
    *("--data", "--trainings", "--scale", "--merge", "--memory", "--seed", "--verbose", "--json", "--show-records"),
    "--nonsense",
]
_OTHERS = {
    "gate": ["--max-tpr", "--at-fpr", "--attack", "--confidence", "--accept", "--junit", "--verbose", "--quiet"],
    "compare": ["--attack", "--names", "--confidence", "--at-fpr", "--seed", "--memory", "--json", "--verbose", "-o"],
    "report": ["--data", "--label", "--title", "--signals", "--scale", "--attack", "--target", "--show-records"],
    "plan": ["--budget", "--fpr", "--view-cost", "--align", "--scale", "--seed", "--attack", "--target", "--mode"],
    "design": ["--records", "--references", "--design", "--groups", "--seed", "--label", "--group", "--drop"],
    "screen": ["--target", "--id", "--attack", "--population", "--scale", "--seed", "--target-kind", "--show-records"],
    "audit": ["--references", "--population", "--trainings", "--prior", "--seed", "--workers", "--design", "--views"],
    "import": ["--column"],
}
_OTHERS["audit"] += ["--by", "--unit", "--mode", "--align", "--attack", "--title", "--label", "--group", "--members"]
# Options that hold numbers, and those of recipes.
_NUMBERS = {
    "score": ["--target", "--references", "--population", "--prior", "--trainings", "--memory", "--seed"],
    "gate": ["--max-tpr", "--at-fpr", "--confidence"],
    "compare": ["--confidence", "--at-fpr", "--seed", "--memory"],
    "report": ["--target", "--memory"],
    "plan": ["--budget", "--fpr", "--view-cost", "--target", "--seed"],
    "design": ["--records", "--references", "--seed"],
    "screen": ["--target", "--population", "--seed"],
    "audit": ["--references", "--population", "--trainings", "--prior", "--seed", "--workers", "--gpus"],
    "demo": ["--references", "--seed"],
}
# Values that are accepted.
_FLAGS = ("--verbose", "--json", "--quiet", "--show-records")
_USUAL = {
    "--target": ("all", "0", "1", "7"),
    "--attack": ("attack-r", "attack-p", "rmia", "lira"),
    "--mode": ("online", "offline"),
    "--align": ("auto", "always", "never"),
    "--references": ("2", "4", "6"),
    "--population": ("5", "10"),
    "--unit": ("record", "group"),
    "--by": ("ward",),
    "--prior": ("0.1", "0.5"),
    "--trainings": ("0", "3"),
    "--scale": ("logit", "signal", "auto"),
    "--memory": ("1GB", "512MB"),
    "--seed": ("1", "7"),
    "--max-tpr": ("0.5", "0.95", "0.99"),
    "--at-fpr": ("0.1", "0.2"),
    "--confidence": ("0.9", "0.5"),
    "--accept": ("few-non-members", "tied-scores"),
    "--budget": ("16", "2h"),
    "--fpr": ("0.01", "0.1"),
    "--view-cost": ("0", "0.5"),
    "--records": ("20", "99"),
    "--design": ("pairs", "exact", "independent"),
    "--workers": ("1",),
    "--title": ("x",),
    "--names": ("a", "run"),
    "--column": ("signal=signal", "record=record"),
    "-o": ("made.json",),
    "--junit": ("made.xml",),
}
_UNITS = {"--memory": ("", "GB", "MB"), "--budget": ("", "h", "s", "flop", "PFLOP")}
_RECIPES = ["epochs", "widths", "lr", "batch", "depth", "trees", "library", "C", "penalty", "n_estimators", "x", ""]
_RECIPE = """
import numpy as np
def train(X, y, seed):
    return X.mean(axis=0)
def query(model, X, y):
    p = 1 / (1 + np.exp(-(X @ model)))
    return np.stack([1 - p, p], axis=1)
"""


def _drawn(rng: Rng, values: Any) -> str:
    return str(values[int(rng.integers(len(values)))])


def _last(words: list[object], option: str, default: str) -> str:
    """Value of an option, of which the last counts."""
    found = [str(words[k + 1]) for k, word in enumerate(words[:-1]) if word == option]
    return found[-1] if found else default


class _Commands:
    """Commands with good input, to which options are added, and what their results must be."""

    def __init__(self, folder: Path, people: bool) -> None:
        folder.mkdir()
        self.folder, self.out, self.run, self.made = folder, folder / "out", folder / "run", folder / "made"
        self.signals, self.arrays = folder / "signals.npz", of_people(0, people=200) if people else simulated(0)
        np.savez(self.signals, **self.arrays)
        scored(self.signals, self.run, *ATTACK, *(WARDS if people else ()))
        rng = np.random.default_rng(0)
        self.data = {"X": rng.normal(size=(60, 2)).round(3), "y": np.arange(60) % 2}
        self.data |= {"groups": np.arange(60) // 2} if people else {}
        np.savez(folder / "data.npz", **self.data)
        (folder / "mine.py").write_text(_RECIPE)
        (folder / "table.csv").write_text("model,record,member,signal\n0,0,1,1\n0,1,0,2\n1,0,0,1\n1,1,1,2\n")
        recipe = f"function:{folder / 'mine.py'}"
        self.first: dict[str, list[object]] = {
            "score": [self.signals, "-o", self.out, *ATTACK],
            "gate": [self.run, *GATE],
            "compare": [self.run, *COMPARE],
            "report": [self.run],
            "plan": [self.signals, "--attack", "attack-p", "--json"],
            "design": ["--records", 48, "--references", 2, "-o", self.made, "--quiet"],
            "screen": [self.signals, "-o", self.made, "--quiet"],
            "audit": ["--data", folder / "data.npz", "--recipe", recipe, "--references", 2, "--workers", 1, "--quiet"],
            "demo": ["-o", self.made, "--references", 4, "--quiet"],
            "import": ["table", folder / "table.csv", "-o", folder / "imported.npz", "--quiet"],
        }
        self.first["audit"] += ["-o", self.made, "--attack", "attack-r", "--attack", "attack-p"]

    def tried(self, name: str, given: list[object]) -> Finding:
        """Run a command with further options, without what an earlier one wrote."""
        report = (self.run / "figures", self.run / "report.html", self.run / ".published")
        for path in (self.out, self.made, self.folder / "imported.npz", *report):
            fresh(path)
        words = [name, *self.first[name], *given]
        return judged(f"{name} {[str(word)[:60] for word in given]!a}", words, lambda said: self.is_right(words, said))

    def is_right(self, words: list[object], said: Any) -> bool:
        """Compare a result with a second calculation."""
        name, scale = str(words[0]), _last(words, "--scale", "logit")
        if name == "score":
            return _are_scored(self.out, self.arrays, scale)
        if name == "screen":
            (target,) = json.loads((self.made / "metrics.json").read_text())["about"]["targets"]
            rows = {target: int(_last(words, "--target", "0"))}
            return _are_scored(self.made, self.arrays, scale, rows)
        if name == "audit":
            return _are_scored(self.made, self.trained())
        if name == "demo":
            return results_of(self.made) is not None
        if name == "design":
            size = (int(_last(words, option, "")) for option in ("--records", "--references"))
            check_design(self.made / "design.npz", *size, _last(words, "--design", "pairs"))
            return True
        if name == "import":
            return _is_imported("table", self.folder / "table.csv", self.folder / "imported.npz")
        if name == "plan":
            return self.is_planned(words, said)
        results_of(self.run)
        if name != "report" and not said.stdout:  # --quiet
            said = command(*(word for word in words if word != "--quiet"))
        if name == "compare" and (file := _last(words, "-o", "")):
            check_compare(Path(file).read_text(), {"scores.npz": (self.run / "scores.npz").read_bytes()})
            return True
        return _check_printed(words, said, self.run)

    def trained(self) -> Arrays:
        """Signals of the models of an audit, which are trained here once more."""
        members = np.load(self.made / "signals" / "membership.npy")
        members = members if members.dtype == bool else np.unpackbits(members, axis=1, count=60) != 0
        X, y = self.data["X"], self.data["y"]
        margin = np.stack([X @ X[own].mean(axis=0) for own in members])
        found = {"signals": np.where(y == 1, margin, -margin), "membership": members, "labels": y}
        return found | {name: self.data[name] for name in ("groups",) if name in self.data}

    def is_planned(self, words: list[object], said: Any) -> bool:
        """Whether the plan found the AUC that the same attack has in results that were checked."""
        same = [[key, _last(words, key, "")] for key in ("--target", "--seed", "--scale", "--align", "--mode")]
        options = [word for pair in same if pair[1] for word in pair]
        attack = _last(words, "--attack", "")
        command("score", self.signals, "-o", fresh(self.out), "--attack", attack, *options, "--quiet")
        _are_scored(self.out, self.arrays, _last(words, "--scale", "logit"))
        metrics = json.loads((self.out / "metrics.json").read_text())
        check_plan(said.stdout, metrics["attacks"][attack]["auc"]["mean"])
        return True


def options(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Random options, and numbers at the ends of every type: the result of a second calculation, or a refusal."""
    both = [_Commands(folder / name, name == "people") for name in ("records", "people")]
    known = {"score": _SCORE, **_OTHERS}
    numbers = [(name, option) for name, found in _NUMBERS.items() for option in found]
    for number in range(count):
        commands = both[int(rng.integers(2))]
        if number % 4 == 0:
            yield commands.tried("score", _drawn_options(rng, _SCORE))
        elif number % 4 == 1:  # each in turn
            name = list(_OTHERS)[number // 4 % len(_OTHERS)]
            yield commands.tried(name, _drawn_options(rng, known[name]))
        elif number % 4 == 2:
            name, option = numbers[int(rng.integers(len(numbers)))]
            yield commands.tried(name, [option, _drawn(rng, _EXTREME) + _drawn(rng, _UNITS.get(option, ("",)))])
        else:
            key, values = _drawn(rng, _RECIPES), rng.random() < 0.5
            value = "".join(_drawn(rng, _VALUES) for _ in range(2)) if values else _drawn(rng, _EXTREME)
            names = ["gbdt", "sklearn:LogisticRegression", "mlp", "wide-resnet", "sklearn:", "nothing", "function:x.py"]
            text = f"{_drawn(rng, names)}?{key}={value}"
            yield tried(f"recipe {text[:100]!a}", lambda t=text: parse_recipe(t), lambda made, v=value: _takes(made, v))


def _drawn_options(rng: Rng, known: list[str]) -> list[object]:
    words: list[object] = []
    usual = rng.random() < 0.5
    for _ in range(int(rng.integers(1, 4))):
        option = _drawn(rng, known)
        if usual and option in _FLAGS:
            words.append(option)
        else:
            words += [option, _drawn(rng, _USUAL.get(option, _VALUES) if usual else _VALUES)]
    return words


def _takes(made: Any, value: str) -> bool:
    """Whether a number that was given as an option of a recipe is one of the recipe's numbers."""
    try:
        expected = float(value)
    except ValueError:
        return True  # text, which the recipe may read in its own way
    texts = json.dumps(made.to_json())
    found = [float(text) for text in re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", texts)]
    return expected in found or value.strip() in texts


CAMPAIGNS: dict[str, tuple[Campaign, int]] = {
    "mutants of signals": (reporting(mutants_of_signals), 600),
    "mutants inside signals": (reporting(mutants_inside_signals), 600),
    "mutants of data": (reporting(mutants_of_data), 600),
    "mutants of CSV tables": (reporting(mutants_of_tables), 600),
    "mutants of Parquet tables": (reporting(mutants_of_parquet), 400),
    "mutants of predictions": (reporting(mutants_of_predictions), 600),
    "mutants of archives": (reporting(mutants_of_archives), 400),
    "mutants of members": (reporting(mutants_of_members), 400),
    "mutants of groups": (reporting(mutants_of_groups), 200),
    "mutants of stores": (reporting(mutants_of_stores), 800),
    "mutants of designs": (reporting(mutants_of_designs), 600),
    "mutants of stacks": (reporting(mutants_of_stacks), 600),
    "mutants of other tools' files": (reporting(mutants_of_imports), 600),
    "mutants of results": (reporting(mutants_of_results), 600),
    "mutants of recipes": (reporting(mutants_of_recipes), 400),
    "strange arrays in signals": (reporting(monsters_in_signals), 400),
    "strange arrays in data": (reporting(monsters_in_data), 300),
    "strange values in JSON": (reporting(monsters_in_json), 400),
    "hostile stacks": (reporting(hostile_merges), 200),
    "strange paths": (reporting(strange_paths), 200),
    "options": (reporting(options), 400),
}
