"""The store gives back what was put in, names what is damaged or foreign, and loses nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmia.data.designs import MembershipDesign
from plmia.errors import StoreError
from plmia.signals import store as store_module
from plmia.signals.store import CHUNK_POINTS, SignalStore, sealed, store_key, write_groups, write_stack

N_MODELS, N_POINTS, VIEWS = 6, 2 * CHUNK_POINTS + 1000, ("identity", "mirror")
ABOUT: dict[str, Any] = {"data": "abc", "seed": 0, "recipe": {"name": "mlp", "lr": 0.1, "widths": (64, 32)}}
LABELS = np.arange(N_POINTS) % 7


def design_of(n_models: int, n_points: int = N_POINTS) -> MembershipDesign:
    """The first rows are the same for any number of models."""
    return MembershipDesign(np.stack([np.random.default_rng(m).random(n_points) < 0.5 for m in range(n_models)]))


def values_of(models: Any) -> np.ndarray:
    return np.stack(
        [np.random.default_rng(100 + m).standard_normal((N_POINTS, len(VIEWS)), dtype=np.float32) for m in models]
    )


def provenance_of(models: Any) -> list[dict[str, Any]]:
    return [{"seed": m, "n_clipped": m} for m in models]


def append(store: SignalStore, models: Any) -> None:
    store.append(models, values_of(models), provenance_of(models))


def create(path: Path, n_models: int = N_MODELS, **changed: Any) -> SignalStore:
    return SignalStore.create(path, ABOUT | changed, design_of(n_models), VIEWS, LABELS)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def store(tmp_path: Path) -> SignalStore:
    return create(tmp_path / "signals")


@pytest.fixture
def filled(store: SignalStore) -> SignalStore:
    append(store, [0])
    append(store, [1, 2, 3])
    append(store, [4, 5])
    return store


def path_of(store: SignalStore) -> Path:
    return Path(str(store.folder))


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def resealed(contents: dict[str, Any]) -> bytes:
    """JSON with the digest that its writer would have given it."""
    return sealed({name: value for name, value in contents.items() if name not in ("schema", "digest")})


def unsealed(contents: dict[str, Any]) -> bytes:
    """JSON as earlier versions wrote it, without a digest."""
    return json.dumps({name: value for name, value in contents.items() if name != "digest"} | {"schema": 1}).encode()


def offset_of(model: int, point: int) -> int:
    return 128 + (model * N_POINTS + point) * len(VIEWS) * 4


# Round trip


def test_models_come_back_as_they_were_put_in(store: SignalStore) -> None:
    assert store.missing() == list(range(N_MODELS))
    append(store, [3])
    append(store, [5, 0, 2])  # a stack in any order
    assert list(store.finished()) == [0, 2, 3, 5]
    assert store.finished()[5] == {"seed": 5, "n_clipped": 5}
    assert store.missing() == [1, 4]
    np.testing.assert_array_equal(store.read(), values_of([0, 2, 3, 5]))
    np.testing.assert_array_equal(store.read(models=[5, 2]), values_of([5, 2]))
    assert store.verify() == store.problems() == []


def test_a_store_is_opened_as_it_was_made(filled: SignalStore) -> None:
    opened = SignalStore.open(path_of(filled))
    assert opened.shape == (N_MODELS, N_POINTS, len(VIEWS))
    assert opened.key == filled.key == store_key(ABOUT, filled.design, VIEWS, LABELS)
    assert opened.about == ABOUT | {"recipe": {"name": "mlp", "lr": 0.1, "widths": [64, 32]}}
    assert opened.layout.views == VIEWS
    np.testing.assert_array_equal(opened.design.matrix, filled.design.matrix)
    np.testing.assert_array_equal(opened.labels, LABELS)
    np.testing.assert_array_equal(opened.read(), values_of(range(N_MODELS)))


def test_signals_npy_is_an_ordinary_npy_file_whose_unwritten_models_take_no_space(store: SignalStore) -> None:
    append(store, [4])
    path = path_of(store) / "signals.npy"
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    assert array.shape == store.shape
    np.testing.assert_array_equal(array[4], values_of([4])[0])
    if sys.platform == "linux":
        assert path.stat().st_blocks * 512 < path.stat().st_size / 2


def test_signals_are_mapped_not_copied(filled: SignalStore) -> None:
    signals = filled.signals()
    np.testing.assert_array_equal(signals.values, values_of(range(N_MODELS)))
    np.testing.assert_array_equal(signals.design.matrix, design_of(N_MODELS).matrix)
    np.testing.assert_array_equal(signals.labels, LABELS)
    assert signals.n_clipped == sum(range(N_MODELS))
    base: Any = signals.values
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert not signals.values.flags.writeable


@pytest.mark.parametrize("models", [None, [2, 3], [3, 0]])
def test_signals_of_some_models_have_their_design(store: SignalStore, models: list[int] | None) -> None:
    append(store, [0, 2, 3])
    signals = store.signals(models)
    np.testing.assert_array_equal(signals.values, values_of(models or [0, 2, 3]))
    np.testing.assert_array_equal(signals.design.matrix, design_of(N_MODELS).matrix[models or [0, 2, 3]])
    assert signals.n_clipped == sum(models or [0, 2, 3])
    assert signals.models == tuple(models or [0, 2, 3])


def test_a_fingerprint_tells_which_models_their_signals_and_their_membership(
    store: SignalStore, tmp_path: Path
) -> None:
    append(store, [0, 2, 3])
    seen = {store.fingerprint(), store.fingerprint([0, 2]), store.fingerprint([2, 3]), store.fingerprint([0])}
    assert len(seen) == 4
    assert store.fingerprint() == store.fingerprint(store.signals().models) == store.fingerprint([0, 2, 3])
    before = store.fingerprint([0])
    append(store, [1])
    assert store.fingerprint([0]) == before, "other models make no difference"
    assert store.fingerprint() not in seen
    matrix = design_of(N_MODELS).matrix.copy()
    matrix[0, 7] = ~matrix[0, 7]
    others = {
        "signals": (ABOUT, design_of(N_MODELS), LABELS, values_of([5])),
        "membership": (ABOUT, MembershipDesign(matrix), LABELS, values_of([0])),
        "labels": (ABOUT, design_of(N_MODELS), LABELS[::-1].copy(), values_of([0])),
        "groups": (ABOUT | {"groups": "0" * 64}, design_of(N_MODELS), LABELS, values_of([0])),
        "nothing": (ABOUT, design_of(N_MODELS), LABELS, values_of([0])),
    }
    for what, (about, design, labels, values) in others.items():
        other = SignalStore.create(tmp_path / "other" / what, about, design, VIEWS, labels)
        other.append([0], values, provenance_of([0]))
        assert (other.fingerprint() == before) == (what == "nothing"), what


def test_provenance_becomes_plain_json(store: SignalStore) -> None:
    given = {"accuracy": np.float32(0.5), "losses": (1.0, float("nan")), "n": np.int64(3), "per_class": np.arange(2)}
    store.append([0], values_of([0]), [given])
    assert store.finished()[0] == {"accuracy": 0.5, "losses": [1.0, None], "n": 3, "per_class": [0, 1]}


def test_a_model_may_be_appended_twice_but_not_changed(filled: SignalStore) -> None:
    before = contents(path_of(filled))
    append(filled, [2])
    append(filled, [0, 1, 2, 3, 4, 5])
    assert contents(path_of(filled)) == before
    with pytest.raises(StoreError, match=r"model 2 .* other signals: .*000001-000003\.json .*model 1, 2, 3"):
        filled.append([2], values_of([3]), [{}])
    assert contents(path_of(filled)) == before


def test_the_new_models_of_a_stack_are_added_to_those_that_are_there(store: SignalStore) -> None:
    append(store, [1])
    append(store, [0, 1, 2])
    assert list(store.finished()) == [0, 1, 2]
    assert store.verify() == []


# SHA-256 (its start) of each file of a small store: what is on disk stays readable for ever.
FORMAT = {
    "labels.npy": "efbb4bafd41c2d85",
    "membership.npy": "bcaaeae95addad60",
    "records/000000-000001.json": "f082cdaea50708bb",
    "signals.npy": "b9a30ce397392b87",
    "stacks/stack-000002.json": "38dbe0b3daac5618",
    "stacks/stack-000002.npy": "fa4b2de251a5a566",
    "store.json": "a495d55751164e27",
}


def test_the_format_on_disk_does_not_change(tmp_path: Path) -> None:
    design = MembershipDesign(np.arange(33).reshape(3, 11) % 2 == 0)
    values = np.linspace(-4, 4, 66, dtype=np.float32).reshape(3, 11, 2)
    about = {"seed": 0, "recipe": {"lr": 0.1}}
    store = SignalStore.create(tmp_path / "store", about, design, ["a", "b"], np.arange(11) % 3)
    store.append([1, 0], values[[1, 0]], [{"seed": 1, "losses": [0.5, None]}, {"seed": 0}])
    write_stack(tmp_path / "store" / "stacks", [2], values[2:], [{"seconds": 1.5}], key=store.key)
    assert {name: digest[:16] for name, digest in contents(tmp_path / "store").items()} == FORMAT


# Bad input


@pytest.mark.parametrize(
    ("models", "change", "message"),
    [
        ([0, 1], lambda v: v[:1], "signals of 2 models have shape"),
        ([0, 1], lambda v: v[:, :-1], "is made for"),
        ([0, 1], lambda v: v[:, :, :1], "is made for"),
        ([0, 1], lambda v: v.astype(np.float64), "float64: float32"),
        ([0, N_MODELS], lambda v: v, "is made for"),
        ([0, -1], lambda v: v, "numbered from 0"),
        ([1, 1], lambda v: v, "each once"),
        ([], lambda v: v, "at least one"),
        ([0, 1.5], lambda v: v, "whole numbers"),
    ],
)
def test_what_does_not_fit_is_refused(
    store: SignalStore, models: Any, change: Callable[..., Any], message: str
) -> None:
    with pytest.raises(StoreError, match=message):
        store.append(models, change(values_of([0, 1])), [{}, {}])
    assert store.finished() == {}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_diverged_model_does_not_get_in(store: SignalStore, value: float) -> None:
    values = values_of([2, 3])
    values[1, 17, 1] = value
    with pytest.raises(StoreError, match=rf"model 3 .*{value} .*\b17, view 1"):
        store.append([2, 3], values, [{}, {}])
    assert store.finished() == {}


@pytest.mark.parametrize("provenance", [[{}], [{}, {"x": object()}], [{}, {"x": {3: 4}}], [{}, {"x": [b"bytes"]}]])
def test_provenance_that_is_not_json_is_refused(store: SignalStore, provenance: Any) -> None:
    with pytest.raises(StoreError, match=r"provenances|provenance of model 1\.x"):
        store.append([0, 1], values_of([0, 1]), provenance)
    assert store.finished() == {}


@pytest.mark.parametrize("models", [[N_MODELS], [-1], [], [0.5]])
def test_reading_what_cannot_be_there_is_refused(filled: SignalStore, models: Any) -> None:
    with pytest.raises(StoreError, match=r"no model|whole numbers"):
        filled.read(models)


def test_reading_a_model_that_is_not_finished_is_refused(store: SignalStore) -> None:
    with pytest.raises(StoreError, match="no finished model"):
        store.read()
    append(store, [0])
    with pytest.raises(StoreError, match=r"model 1 of .* is not finished"):
        store.read([0, 1])


@pytest.mark.parametrize(
    ("design", "views", "labels", "message"),
    [
        (design_of(2).matrix[:0], VIEWS, None, "0 models"),
        (design_of(2).matrix, (), None, "at least one"),
        (design_of(2).matrix, ("a", "a"), None, "own name"),
        (design_of(2).matrix, VIEWS, LABELS[:-1], "per record"),
        (design_of(2).matrix, VIEWS, LABELS * 0.5, "per record"),
    ],
)
def test_a_store_of_nonsense_is_not_made(tmp_path: Path, design: Any, views: Any, labels: Any, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        SignalStore.create(tmp_path / "signals", ABOUT, MembershipDesign(design), views, labels)
    assert list(tmp_path.iterdir()) == []


# Another audit


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"seed": 1}, r"\(seed: 0 there, 1 here\)"),
        ({"seed": 0.0}, r"\(seed: 0 there, 0\.0 here\)"),
        ({"recipe": {"name": "mlp", "lr": 0.2, "widths": [64, 32]}}, r"\(recipe\.lr: 0\.1 there, 0\.2 here\)"),
        ({"recipe": {"name": "mlp", "lr": 0.1}}, r"\(recipe\.widths: only there\)"),
        ({"epochs": 3, "seed": 2}, r"\(epochs: only here; seed: 0 there, 2 here\)"),
    ],
)
def test_a_folder_of_another_audit_is_refused_and_left_alone(
    filled: SignalStore, changed: dict[str, Any], difference: str
) -> None:
    before = contents(path_of(filled))
    with pytest.raises(StoreError, match=rf"belongs to another audit {difference}"):
        create(path_of(filled), **changed)
    assert contents(path_of(filled)) == before


def test_of_many_differences_a_few_are_named(filled: SignalStore) -> None:
    with pytest.raises(StoreError, match=r"\(a: only here; b: only here; c: only here; and 2 more\)"):
        create(path_of(filled), a=1, b=1, c=1, d=1, e=1)


@pytest.mark.parametrize("change", ["about", "design", "labels"])
def test_a_store_in_which_no_model_finished_is_started_anew(store: SignalStore, change: str) -> None:
    path, design = path_of(store), design_of(N_MODELS)
    about = ABOUT | ({"seed": 1} if change == "about" else {})
    other = MembershipDesign(~design.matrix) if change == "design" else design
    labels = LABELS[::-1].copy() if change == "labels" else LABELS
    with pytest.raises(StoreError):
        SignalStore.create(path, about, other, VIEWS, labels, restart=False)
    anew = SignalStore.create(path, about, other, VIEWS, labels)
    assert (anew.key == store.key) == (change == "design")
    np.testing.assert_array_equal(anew.design.matrix, other.matrix)
    append(anew, [1])
    assert anew.verify() == []
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    if change != "design":
        before = contents(path)
        with pytest.raises(StoreError, match="for another audit meanwhile"):
            append(store, [0])
        assert contents(path) == before


def test_other_views_labels_and_points_are_another_audit(filled: SignalStore) -> None:
    path, design = path_of(filled), design_of(N_MODELS)
    with pytest.raises(StoreError, match=r"views: .* there"):
        SignalStore.create(path, ABOUT, design, VIEWS[:1], LABELS)
    with pytest.raises(StoreError, match=r"labels: .* there"):
        SignalStore.create(path, ABOUT, design, VIEWS, LABELS[::-1])
    with pytest.raises(StoreError, match=f"n_points: {N_POINTS} there, 9 here"):
        SignalStore.create(path, ABOUT, design_of(N_MODELS, 9), VIEWS, LABELS[:9])


def test_another_design_is_refused_and_named(filled: SignalStore) -> None:
    before = contents(path_of(filled))
    matrix = design_of(N_MODELS + 2).matrix.copy()
    matrix[3, 7] ^= True
    with pytest.raises(StoreError, match=r"another design .*model 3"):
        SignalStore.create(path_of(filled), ABOUT, MembershipDesign(matrix), VIEWS, LABELS)
    with pytest.raises(StoreError, match=r"made for .* records"):
        filled.extend(design_of(N_MODELS, 9))
    assert contents(path_of(filled)) == before


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("my only copy")
    for path in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(StoreError, match="is not a store"):
            create(path)
    assert (tmp_path / "thesis.tex").read_text() == "my only copy"
    with pytest.raises(StoreError, match=r"is not a store \(it has no store\.json\)"):
        SignalStore.open(tmp_path)


def test_an_empty_folder_and_a_deep_one_will_do(tmp_path: Path) -> None:
    assert create(tmp_path).missing() == create(tmp_path / "records" / "x").missing() == list(range(N_MODELS))


# Growing


def test_more_models_find_room_and_the_finished_ones_stay(filled: SignalStore) -> None:
    longer = filled.extend(design_of(N_MODELS + 3))
    assert longer.missing() == [6, 7, 8]
    assert longer.key == filled.key
    append(filled, [5])  # a writer that was started before goes on
    append(longer, [7])
    opened = SignalStore.open(path_of(filled))
    assert opened.verify() == []
    np.testing.assert_array_equal(opened.read(), values_of([0, 1, 2, 3, 4, 5, 7]))
    np.testing.assert_array_equal(opened.design.matrix, design_of(N_MODELS + 3).matrix)
    assert np.load(path_of(filled) / "signals.npy", mmap_mode="r").shape == longer.shape


def test_a_reader_from_before_an_extension_is_told_to_open_the_store_again(filled: SignalStore) -> None:
    append(filled.extend(design_of(N_MODELS + 3)), [7])
    (problem,) = filled.problems()
    assert "claims model 7, the store has 6 models: open the store again" in problem
    assert filled.missing() == []
    np.testing.assert_array_equal(filled.read(range(N_MODELS)), values_of(range(N_MODELS)))
    with pytest.raises(StoreError, match="open the store again"):
        filled.signals()


def test_create_extends_and_passes_over_what_was_not_asked_for(filled: SignalStore) -> None:
    path = path_of(filled)
    longer = create(path, N_MODELS + 2)
    append(longer, [6])
    assert longer.missing() == [7]
    before = contents(path)
    shorter = create(path, 3)
    assert shorter.shape[0] == 3
    assert list(shorter.finished()) == [0, 1, 2]
    assert shorter.missing() == []
    np.testing.assert_array_equal(shorter.signals().values, values_of([0, 1, 2]))
    with pytest.raises(StoreError, match="there is no model 3"):
        shorter.read([3])
    assert contents(path) == before


# Damage


@pytest.mark.parametrize("point", [0, CHUNK_POINTS, N_POINTS - 1])
def test_one_flipped_bit_is_found_and_named(filled: SignalStore, point: int) -> None:
    flip(path_of(filled) / "signals.npy", offset_of(2, point) + 2)
    first = point // CHUNK_POINTS * CHUNK_POINTS
    last = min(first + CHUNK_POINTS, N_POINTS) - 1
    named = (
        rf"model 2, records {first} to {last} .*remove {path_of(filled)}/records/000001-000003\.json .*model 1, 2, 3"
    )
    for read in (filled.read, filled.signals, lambda: filled.read([2])):
        with pytest.raises(StoreError, match=named):
            read()
    (problem,) = filled.verify()
    assert "model 2" in problem
    np.testing.assert_array_equal(filled.read([1, 3]), values_of([1, 3]))


def test_the_remedy_for_damage_works(filled: SignalStore) -> None:
    flip(path_of(filled) / "signals.npy", offset_of(2, 0))
    (path_of(filled) / "records" / "000001-000003.json").unlink()
    assert filled.missing() == [1, 2, 3]
    append(filled, [1])
    append(filled, [2, 3])
    assert filled.verify() == []
    np.testing.assert_array_equal(filled.read(), values_of(range(N_MODELS)))


def test_a_truncated_file_is_named_and_mended(filled: SignalStore) -> None:
    path = path_of(filled)
    os.truncate(path / "signals.npy", offset_of(4, 10))
    for read in (filled.read, filled.signals):
        with pytest.raises(StoreError, match=r"cut off at model 4, record 10: remove /.*/records/000004-000005\.json"):
            read()
    header, *models = filled.verify()
    assert "damaged header or was cut off" in header
    assert ["at model 4, record 10:" in models[0], "at model 5, record 0:" in models[1], len(models)] == [True, True, 2]
    np.testing.assert_array_equal(filled.read([0, 1, 2, 3]), values_of(range(4)))
    (path / "records" / "000004-000005.json").unlink()
    np.testing.assert_array_equal(filled.signals().values, values_of(range(4)))
    again = create(path)
    assert again.missing() == [4, 5]
    assert again.verify() == []
    append(again, [4, 5])
    np.testing.assert_array_equal(again.signals().values, values_of(range(N_MODELS)))


def test_a_damaged_header_is_named_and_mended(filled: SignalStore) -> None:
    flip(path_of(filled) / "signals.npy", 60)
    assert ["header" in problem for problem in filled.verify()] == [True]
    np.testing.assert_array_equal(filled.read(), values_of(range(N_MODELS)))
    assert create(path_of(filled)).verify() == []


def test_a_foreign_record_is_named_and_never_counts(filled: SignalStore, tmp_path: Path) -> None:
    other = create(tmp_path / "other", seed=1)
    append(other, [0])
    (path_of(filled) / "records" / "000000.json").replace(tmp_path / "kept.json")
    copied = path_of(filled) / "records" / "000000.json"
    copied.write_bytes((path_of(other) / "records" / "000000.json").read_bytes())
    assert filled.missing() == [0]
    for found in (filled.problems(), filled.verify()):
        assert ["000000.json belongs to another audit" in problem for problem in found] == [True]
    for read in (filled.read, filled.signals, lambda: filled.read([0])):
        with pytest.raises(StoreError, match=r"000000\.json belongs to another audit"):
            read()
    append(filled, [0])  # trained anew, it takes the place of the foreign one
    assert filled.verify() == []


def test_a_record_does_not_vouch_for_the_signals_of_another_store(filled: SignalStore, tmp_path: Path) -> None:
    same = create(tmp_path / "same")
    records = path_of(same) / "records"
    (records / "000000.json").write_bytes((path_of(filled) / "records" / "000000.json").read_bytes())
    with pytest.raises(StoreError, match="model 0, records 0 to"):
        same.read()


BAD_RECORDS: dict[str, Callable[[bytes, dict[str, Any]], bytes | dict[str, Any] | list[Any]]] = {
    "empty": lambda data, _: b"",
    "truncated": lambda data, _: data[: len(data) // 2],
    "not text": lambda data, _: b"\xff\xfe\x00",
    "deep": lambda data, _: b"[" * 100_000,
    "list": lambda _, record: [record],
    "no key": lambda _, record: {"models": record["models"]},
    "no models": lambda _, record: record | {"models": []},
    "numbers": lambda _, record: record | {"models": [1, 2, 3]},
    "out of range": lambda _, record: record | {"models": [record["models"][0], record["models"][1] | {"model": 99}]},
    "negative": lambda _, record: record | {"models": [record["models"][0] | {"model": -1}]},
    "truth": lambda _, record: record | {"models": [record["models"][0] | {"model": True}]},
    "fewer models": lambda _, record: record | {"models": record["models"][:2]},
    "twice": lambda _, record: record | {"models": [record["models"][i] for i in (0, 0, 2)]},
    "few checksums": lambda _, record: record | {"models": [m | {"chunks": m["chunks"][:1]} for m in record["models"]]},
    "no checksums": lambda _, record: record | {"models": [m | {"chunks": [0, 0, 0]} for m in record["models"]]},
    "no provenance": lambda _, record: record | {"models": [m | {"provenance": None} for m in record["models"]]},
}


JUNK: dict[str, Any] = {
    "seed as text": {"seed": "12"},
    "negative seed": {"seed": -1},
    "true as a number": {"attempt": True},
    "negative seconds": {"seconds": -1.0},
    "endless seconds": {"seconds": 1e300},
    "seconds as a list": {"seconds": [1.0]},
    "negative operations": {"operations": -1.0},
    "operations as text": {"operations": "1e15"},
    "accuracy in per cent": {"train_accuracy": 98.5},
    "accuracy as text": {"test_accuracy": "0.5"},
    "more clipped than there are": {"n_clipped": 2 * N_POINTS + 1},
    "fractional count": {"n_clipped": 1.5},
    "losses as text": {"losses": ["low", "lower"]},
    "nested losses": {"losses": [[1.0], [2.0, 3.0]]},
    "loss beyond floats": {"losses": [10**400]},
    "versions as a list": {"versions": ["3.11"]},
    "versions of numbers": {"versions": {"python": 3}},
    "versions with a control character": {"versions": {"python": "3\x1b[2J"}},
    "long version": {"versions": {"python": "3" * 1000}},
    "recipe as text": {"recipe": "mlp"},
    "given as text": {"given": "yes"},
    "lone surrogate": {"note": "\ud800"},
    "surrogate in a name": {"\udcff": 1},
    "too large": {"note": "x" * (1 << 20)},
    "too deep": {"note": json.loads("[" * 200 + "]" * 200)},
    "no object": ["seed", 1],
    "a negative deviation": {"sum_error": -1.0},
    "more renormalised rows than signals": {"n_renormalised": 10**9},
    "names with line breaks": {"undeclared_files": ["a\nb"]},
}


@pytest.mark.parametrize("write", [resealed, unsealed, lambda record: json.dumps(record).encode()])
@pytest.mark.parametrize("kind", [*BAD_RECORDS, *JUNK])
def test_a_damaged_record_is_named_and_its_models_are_missing(
    filled: SignalStore, kind: str, write: Callable[[dict[str, Any]], bytes]
) -> None:
    path = path_of(filled) / "records" / "000001-000003.json"
    record = json.loads(path.read_text())
    if kind in JUNK:
        record["models"][1]["provenance"] = JUNK[kind]
        bad = record
    else:
        bad = BAD_RECORDS[kind](path.read_bytes(), record)
    path.write_bytes(
        bad if isinstance(bad, bytes) else write(bad) if isinstance(bad, dict) else json.dumps(bad).encode()
    )
    assert filled.missing() == [1, 2, 3]
    assert ["records/000001-000003.json" in problem for problem in filled.problems()] == [True]
    for read in (filled.read, filled.signals, lambda: filled.read([2])):
        with pytest.raises(StoreError, match=r"records/000001-000003\.json"):
            read()
    np.testing.assert_array_equal(filled.read([0, 4, 5]), values_of([0, 4, 5]))
    append(filled, [1, 2, 3])
    assert filled.verify() == []
    np.testing.assert_array_equal(filled.signals().values, values_of(range(N_MODELS)))


def test_a_damaged_record_that_was_made_up_for_does_not_stand_in_the_way(filled: SignalStore) -> None:
    (path_of(filled) / "records" / "000001-000003.json").write_bytes(b"")
    append(filled, [1, 2])
    with pytest.raises(StoreError, match="not JSON"):
        filled.signals()
    append(filled, [3])
    np.testing.assert_array_equal(filled.signals().values, values_of(range(N_MODELS)))
    assert len(filled.problems()) == 1


def test_files_that_are_no_records_are_named_or_passed_over(filled: SignalStore) -> None:
    records = path_of(filled) / "records"
    (records / "000000 (1).json").write_bytes((records / "000000.json").read_bytes())
    (records / ".DS_Store").write_bytes(b"x")
    (records / "000099.json").write_bytes((records / "000000.json").read_bytes())
    assert sorted(p.rpartition("/")[2][:15] for p in filled.problems()) == ["000000 (1).json", "000099.json cla"]
    assert filled.missing() == []


def test_records_that_contradict_each_other_are_named(filled: SignalStore) -> None:
    records = path_of(filled) / "records"
    record = json.loads((records / "000001-000003.json").read_text())
    entry = record["models"][1] | {"chunks": ["0" * 64] * 3}
    (records / "000002.json").write_bytes(resealed(record | {"models": [entry]}))
    assert ["different checksums for model 2" in problem for problem in filled.problems()] == [True]
    np.testing.assert_array_equal(filled.read([2]), values_of([2]))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"seconds": 12.5', b'"seconds": 12.4'),
        (b'"test_accuracy": 0.75', b'"test_accuracy": 0.85'),
        (b'"n_clipped": 2', b'"n_clipped": 3'),
        (b'"seed": 2', b'"seed": 3'),
        (b'"mood": "good"', b'"mood": "goof"'),
        (b'"schema": 2', b'"schema": 3'),
        (b'"digest": "', b'"digesu": "'),
    ],
)
def test_an_edited_record_does_not_count_and_its_model_is_trained_anew(
    store: SignalStore, before: bytes, after: bytes
) -> None:
    made = {"seed": 2, "seconds": 12.5, "test_accuracy": 0.75, "n_clipped": 2, "mood": "good"}
    store.append([2], values_of([2]), [made])
    append(store, [0])
    path = path_of(store) / "records" / "000002.json"
    data = path.read_bytes()
    assert data.count(before) == 1
    path.write_bytes(data.replace(before, after))
    assert 2 in store.missing()
    with pytest.raises(StoreError, match=r"records/000002\.json"):
        store.signals()
    store.append([2], values_of([2]), [made])
    assert path.read_bytes() == data
    assert store.problems() == store.unverified() == []


def test_no_flipped_bit_of_a_record_goes_unnoticed(store: SignalStore) -> None:
    store.append(
        [2], values_of([2]), [{"seed": 2, "seconds": 12.5, "losses": [0.5, 0.25], "versions": {"numpy": "2.4"}}]
    )
    made, path = store.finished()[2], path_of(store) / "records" / "000002.json"
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        # JSON has several ways to write the same; other contents must not pass.
        assert store.finished() in ({}, {2: made}), bit


def test_records_of_earlier_versions_are_read_and_said_to_be_unverified(filled: SignalStore) -> None:
    path = path_of(filled) / "records" / "000001-000003.json"
    assert filled.unverified() == []
    path.write_bytes(unsealed(json.loads(path.read_bytes())))
    assert filled.unverified() == [1, 2, 3]
    assert filled.problems() == filled.verify() == filled.missing() == []
    np.testing.assert_array_equal(filled.signals().values, values_of(range(N_MODELS)))


@pytest.mark.parametrize("kind", JUNK)
def test_junk_is_not_appended(store: SignalStore, kind: str) -> None:
    before = contents(path_of(store))
    with pytest.raises(StoreError, match="model 1"):
        store.append([0, 1], values_of([0, 1]), [{}, JUNK[kind]])
    assert contents(path_of(store)) == before


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("store.json", lambda data: data[:-5], "not JSON"),
        ("store.json", lambda data: data.replace(b'"seed": 0', b'"seed": 1'), "was changed"),
        ("store.json", lambda data: data.replace(b'"schema": 1', b'"schema": 2'), "schema 2"),
        ("store.json", lambda data: data.replace(b'"n_models": 6', b'"n_models": -6'), "n_models is -6"),
        ("store.json", lambda data: data.replace(b'"n_models": 6', b'"n_models": "6"'), "n_models is a str"),
        ("store.json", lambda data: data.replace(b'"n_models": 6', b'"models": 6'), "n_models"),
        ("store.json", lambda data: data.replace(b'"n_models": 6', b'"n_models": 6000000000000'), "membership.*bytes"),
        ("store.json", lambda data: data.replace(b'"n_models": 6', b'"n_models": 5'), "membership.*checksum"),
        ("membership.npy", lambda data: data[:-1], "membership.*bytes"),
        ("membership.npy", lambda data: data[:-1] + bytes([data[-1] ^ 8]), "membership.*checksum"),
        ("labels.npy", lambda data: data[:200] + b"\x05" + data[201:], "labels.*checksum"),
        ("labels.npy", lambda data: data.replace(b"<i8", b"|O "), "labels.*header"),
        ("labels.npy", lambda data: b"", "labels.*bytes"),
    ],
)
def test_a_damaged_store_is_not_opened(
    filled: SignalStore, name: str, change: Callable[[bytes], bytes], message: str
) -> None:
    path = path_of(filled) / name
    data = path.read_bytes()
    path.write_bytes(change(data))
    assert path.read_bytes() != data
    with pytest.raises(StoreError, match=message):
        SignalStore.open(path_of(filled))


def test_a_missing_file_is_named(filled: SignalStore) -> None:
    (path_of(filled) / "labels.npy").unlink()
    with pytest.raises(StoreError, match=r"/labels\.npy is missing: restore it from a copy"):
        SignalStore.open(path_of(filled))
    (path_of(filled) / "signals.npy").unlink()
    for use in (filled.read, filled.verify, filled.signals, lambda: append(filled, [0])):
        with pytest.raises(StoreError, match=r"/signals\.npy is missing: restore it from a copy"):
            use()


# A full disk


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_full_disk_is_called_that_and_loses_nothing(
    store: SignalStore, monkeypatch: pytest.MonkeyPatch, code: int, call: str, after: int
) -> None:
    append(store, [0])
    calls = 0
    real = getattr(os, call)

    def fail(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(code, os.strerror(code))
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        expected = "Input/output error" if code == errno.EIO else "the disk is full, model 1, 2 of"
        with pytest.raises(StoreError, match=expected):
            append(store, [1, 2])
    assert calls == after + 1
    assert [path.name for path in (path_of(store) / "records").iterdir()] == ["000000.json"]
    assert list(store.finished()) == [0]
    assert store.verify() == []
    append(store, [1, 2])
    np.testing.assert_array_equal(store.read(), values_of([0, 1, 2]))


def test_a_disk_that_is_full_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(StoreError, match="the disk is full"):
        create(tmp_path / "signals")
    assert list(tmp_path.iterdir()) == []


def test_groups_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="the disk is full"):
        write_groups(tmp_path, np.arange(3))
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_dead_writers_are_swept_and_nothing_else(store: SignalStore) -> None:
    path = path_of(store)
    old = [path / "records" / ".000001.json.77-0123abcd.tmp", path / ".store.json.77-0123abcd.tmp"]
    kept = [path / "records" / ".000002.json.78-0123abcd.tmp", path / ".notes.tmp", path.parent / ".signals.tmp"]
    unfinished = path.parent / f".{path.name}.77-0123abcd.tmp"
    (unfinished / "records").mkdir(parents=True)
    for file in (*old, *kept):
        file.write_bytes(b"x")
    for file in (*old, kept[1], kept[2], unfinished):
        os.utime(file, (time.time() - 7200,) * 2)
    append(create(path), [0])
    assert not any(file.exists() for file in old)
    assert all(file.exists() for file in kept)
    assert unfinished.exists()  # nothing was made, so nothing was looked for
    create(path.parent / "other")
    assert unfinished.exists()  # it may belong to a store of another name
    assert store.missing() == [1, 2, 3, 4, 5]
    path.rename(path.parent / "moved")
    create(path)
    assert not unfinished.exists()


def test_two_processes_make_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is done when this one has seen that there is no store, and looks whether the folder is free."""
    path, real = tmp_path / "signals", store_module._require_free

    def after_the_other(folder: Path) -> None:
        monkeypatch.setattr(store_module, "_require_free", real)
        append(create(path), [0])
        real(folder)

    monkeypatch.setattr(store_module, "_require_free", after_the_other)
    append(create(path), [1])
    assert list(SignalStore.open(path).finished()) == [0, 1]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["signals"]


def test_other_folders_and_files_are_not_taken_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").touch()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in ("folder", "file"):
        with pytest.raises(StoreError, match=f"{name} exists and is not a store"):
            create(tmp_path / name)
    assert create(tmp_path / "empty").missing() == list(range(N_MODELS))


# Behind a URL


@pytest.fixture
def remote(filled: SignalStore) -> Any:
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    files.put(str(path_of(filled)), "/bucket/signals", recursive=True)
    yield files
    files.rm("/bucket", recursive=True)


def test_a_store_can_be_read_from_an_object_store(remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SignalStore.open("memory://bucket/signals")
    np.testing.assert_array_equal(store.read(), values_of(range(N_MODELS)))
    np.testing.assert_array_equal(store.signals().values, values_of(range(N_MODELS)))
    assert store.verify() == []
    asked = []
    real = type(remote).cat_ranges

    def cat_ranges(self: Any, paths: list[str], starts: list[int], ends: list[int], **more: Any) -> Any:
        asked.extend(
            (end - start) for path, start, end in zip(paths, starts, ends, strict=True) if "signals.npy" in path
        )
        return real(self, paths, starts, ends, **more)

    monkeypatch.setattr(type(remote), "cat_ranges", cat_ranges)
    np.testing.assert_array_equal(store.read([3]), values_of([3]))
    assert asked == [N_POINTS * len(VIEWS) * 4]


def test_a_remote_store_is_checked_like_a_local_one(remote: Any) -> None:
    store = SignalStore.open("memory://bucket/signals/")
    data = remote.cat("/bucket/signals/signals.npy")
    remote.pipe("/bucket/signals/signals.npy", data[: offset_of(5, 7)])
    with pytest.raises(StoreError, match=r"memory://bucket/signals/signals\.npy is cut off at model 5, record 7:"):
        store.read()
    with pytest.raises(StoreError, match="can only be read"):
        append(store, [0])
    with pytest.raises(StoreError, match="can only be read"):
        SignalStore.create("memory://bucket/new", ABOUT, design_of(2), VIEWS)
    remote.rm("/bucket/signals/records", recursive=True)
    assert store.missing() == list(range(N_MODELS))
    remote.rm("/bucket/signals/signals.npy")
    with pytest.raises(StoreError, match=r"signals\.npy is missing"):
        store.verify()


def test_addresses_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(StoreError, match="nonsense://bucket cannot be read"):
        SignalStore.open("nonsense://bucket")
    with pytest.raises(StoreError, match="is not a store"):
        SignalStore.open("memory://bucket/nothing")
    for module in [name for name in sys.modules if name.startswith("fsspec")]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StoreError, match=r"memory://bucket cannot be read .*install fsspec"):
        SignalStore.open("memory://bucket")


# Signals from another machine


def test_stacks_of_another_machine_are_merged(store: SignalStore, tmp_path: Path) -> None:
    key = store_key(ABOUT, store.design, VIEWS, LABELS)
    written = write_stack(tmp_path / "stacks", [3, 1], values_of([3, 1]), provenance_of([3, 1]), key=key)
    np.testing.assert_array_equal(np.load(written, allow_pickle=False), values_of([1, 3]))
    write_stack(tmp_path / "stacks", [0], values_of([0]), provenance_of([0]), key=key)
    (tmp_path / "stacks" / "stack-000004.npy").write_bytes(b"its writer was killed")
    assert store.import_npy(tmp_path / "stacks") == [0, 1, 3]
    assert store.import_npy(tmp_path / "stacks") == [0, 1, 3]
    assert store.missing() == [2, 4, 5]
    assert store.verify() == []
    np.testing.assert_array_equal(store.read(), values_of([0, 1, 3]))
    assert store.finished()[3] == {"seed": 3, "n_clipped": 3}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("npy", lambda data: data[:-1], "is damaged: an npy file"),
        ("npy", lambda data: data[:500] + b"\x00" + data[501:], "SHA-256"),
        ("npy", lambda data: data.replace(b"<f4", b"|O4"), "another header"),
    ],
)
def test_a_damaged_or_foreign_stack_is_named_and_not_merged(
    store: SignalStore, tmp_path: Path, name: str, change: Callable[[bytes], bytes], message: str
) -> None:
    folder = tmp_path / "stacks"
    write_stack(folder, [0], values_of([0]), [{}], key=store.key)
    path = write_stack(folder, [1, 2], values_of([1, 2]), [{}, {}], key=store.key).with_suffix(f".{name}")
    data = path.read_bytes()
    path.write_bytes(change(data))
    assert path.read_bytes() != data
    with pytest.raises(StoreError, match=message):
        store.import_npy(folder)
    assert list(store.finished()) == [0]
    path.write_bytes(data)
    assert store.import_npy(folder) == [0, 1, 2]


@pytest.mark.parametrize("write", [resealed, unsealed])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"key": "0" * 64}, "belongs to another audit"),
        ({"models": [1, 99]}, "is made for"),
        ({"models": [1, 2, 3]}, "3 models, 2 rows"),
        ({"models": "12"}, "is damaged"),
        ({"models": [1, True]}, "is damaged"),
        ({"shape": [2, N_POINTS]}, "is damaged"),
        ({"shape": [2, N_POINTS + 1, 2]}, "an npy file"),
        ({"shape": [2_000_000_000_000, N_POINTS, 2]}, "2000000000000 rows"),
        ({"provenance": [{}]}, "1 provenances"),
        ({"provenance": [3, {}]}, "model 1"),
        *(({"provenance": [{}, junk]}, "model 2") for junk in JUNK.values()),
    ],
)
def test_a_stack_whose_json_is_wrong_is_not_merged(
    store: SignalStore, tmp_path: Path, write: Callable[..., bytes], changed: dict[str, Any], message: str
) -> None:
    folder = tmp_path / "stacks"
    path = write_stack(folder, [1, 2], values_of([1, 2]), [{}, {}], key=store.key).with_suffix(".json")
    write_stack(folder, [4], values_of([4]), [{}], key=store.key)
    about = json.loads(path.read_bytes())
    path.write_bytes(write(about | changed))
    before = contents(path_of(store))
    with pytest.raises(StoreError, match=rf"(?s){message}"):
        store.import_npy(folder)
    assert contents(path_of(store)) == before
    path.write_bytes(write(about))
    assert store.import_npy(folder) == [1, 2, 4]


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d.replace(b'"seconds": 1.5', b'"seconds": 1.4')])
def test_an_edited_or_cut_stack_is_refused_before_any_other_is_merged(
    store: SignalStore, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    write_stack(tmp_path / "stacks", [0], values_of([0]), [{}], key=store.key)
    path = write_stack(tmp_path / "stacks", [1], values_of([1]), [{"seconds": 1.5}], key=store.key).with_suffix(".json")
    data = path.read_bytes()
    assert change(data) != data
    path.write_bytes(change(data))
    with pytest.raises(StoreError, match=r"stack-000001\.json"):
        store.import_npy(tmp_path / "stacks")
    assert not store.finished()


def test_a_folder_without_stacks_is_refused(store: SignalStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no finished stack"):
        store.import_npy(tmp_path / "nothing")
    with pytest.raises(StoreError, match="diverged"):
        write_stack(tmp_path, [0], values_of([0]) * np.float32(np.nan), [{}], key=store.key)


# Object storage


@pytest.fixture(params=["memory", "file"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An address, and the file system behind it with its path there."""
    fsspec = pytest.importorskip("fsspec")
    address = "memory://bucket/run" if request.param == "memory" else f"{(tmp_path / 'bucket' / 'run').as_uri()}"
    files, root = fsspec.core.url_to_fs(address)
    yield address, files, root
    if files.exists(root):
        files.rm(root, recursive=True)


def test_stacks_at_an_address_are_merged(store: SignalStore, bucket: Any) -> None:
    address, files, root = bucket
    place = f"{address}/stacks/"
    with pytest.raises(StoreError, match="no finished stack"):
        store.import_npy(place)
    written = write_stack(place, [3, 1], values_of([3, 1]), provenance_of([3, 1]), key=store.key)
    assert written == f"{address}/stacks/stack-000001-000003.npy"
    write_stack(place, [0], values_of([0]), provenance_of([0]), key=store.key)
    files.pipe(f"{root}/stacks/stack-000004.npy", b"its writer was killed")
    assert store_module.stack_names(place) == ["stack-000000.json", "stack-000001-000003.json"]
    assert store.import_npy(place) == [0, 1, 3]
    assert store.verify() == []
    np.testing.assert_array_equal(store.read(), values_of([0, 1, 3]))
    assert store.finished()[3] == {"seed": 3, "n_clipped": 3}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("npy", lambda data: data[:-1], "is damaged: an npy file"),
        ("npy", lambda data: data[:500] + b"\x00" + data[501:], "SHA-256"),
        ("npy", None, r"stack-000001\.npy is missing"),
        ("json", lambda data: data[:-1], "is damaged"),
        ("json", lambda data: data.replace(b'"seconds": 1.5', b'"seconds": 1.4'), "was changed"),
    ],
)
def test_a_damaged_stack_at_an_address_is_refused(
    store: SignalStore, bucket: Any, name: str, change: Callable[[bytes], bytes] | None, message: str
) -> None:
    address, files, root = bucket
    write_stack(address, [1], values_of([1]), [{"seconds": 1.5}], key=store.key)
    path = f"{root}/stack-000001.{name}"
    data = files.cat(path)
    if change is None:
        files.rm(path)
    else:
        assert change(data) != data
        files.pipe(path, change(data))
    with pytest.raises(StoreError, match=message):
        store.import_npy(address)
    assert not store.finished()
    files.pipe(path, data)
    assert store.import_npy(address) == [1]


def test_stacks_of_another_audit_at_an_address_are_refused(store: SignalStore, bucket: Any) -> None:
    write_stack(bucket[0], [1], values_of([1]), [{}], key="0" * 64)
    with pytest.raises(StoreError, match="belongs to another audit"):
        store.import_npy(bucket[0])
    assert not store.finished()


def test_a_published_store_is_read_again_and_grows(store: SignalStore, bucket: Any) -> None:
    address = bucket[0]
    append(store, [0, 2])
    store.publish(address)
    there = SignalStore.open(address)
    assert (there.key, there.missing(), there.verify()) == (store.key, [1, 3, 4, 5], [])
    np.testing.assert_array_equal(there.read(), values_of([0, 2]))
    np.testing.assert_array_equal(there.labels, LABELS)
    assert there.fingerprint() == store.fingerprint()
    longer = store.extend(design_of(N_MODELS + 2))
    append(longer, [1, N_MODELS])
    longer.publish(address)
    there = SignalStore.open(address)
    assert there.verify() == []
    np.testing.assert_array_equal(there.read(), values_of([0, 1, 2, N_MODELS]))
    with pytest.raises(StoreError, match=r"can only be read: give a local folder, .* SignalStore\.publish"):
        append(there, [3])


def test_what_an_address_of_this_machine_holds_is_for_its_owner(filled: SignalStore, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    address = (tmp_path / "new" / "run").as_uri()
    before = os.umask(0)
    try:
        filled.publish(address)
        filled.publish(address)
        write_stack(f"{address}/stacks", [1], values_of([1]), [{}], key=filled.key)
    finally:
        os.umask(before)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "new", *(tmp_path / "new").rglob("*")]}
    assert len(found) > 8
    assert {path: oct(mode) for path, mode in found.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}


def test_an_interrupted_copy_is_not_a_store(filled: SignalStore, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    address, files, _ = bucket
    put = type(files).put_file
    done: list[str] = []

    def failing(self: Any, local: str, remote: str, **more: Any) -> Any:
        if len(done) == 5:
            raise RuntimeError("connection lost")
        done.append(remote)
        return put(self, local, remote, **more)

    monkeypatch.setattr(type(files), "put_file", failing)
    with pytest.raises(StoreError, match=r"could not be written \(RuntimeError: connection lost\): .*run again"):
        filled.publish(address)
    assert len(done) == 5
    with pytest.raises(StoreError, match="is not a store"):
        SignalStore.open(address)
    monkeypatch.undo()
    filled.publish(address)
    np.testing.assert_array_equal(SignalStore.open(address).read(), values_of(range(N_MODELS)))


def test_a_store_of_another_audit_at_an_address_is_not_replaced(
    filled: SignalStore, bucket: Any, tmp_path: Path
) -> None:
    filled.publish(bucket[0])
    other = create(tmp_path / "other", seed=1)
    append(other, [0])
    with pytest.raises(StoreError, match="holds the store of another audit and was not changed: give another address"):
        other.publish(bucket[0])
    assert SignalStore.open(bucket[0]).key == filled.key


def test_a_damaged_store_is_not_published(filled: SignalStore, bucket: Any) -> None:
    address, files, root = bucket
    with (path_of(filled) / "signals.npy").open("r+b") as file:
        file.seek(offset_of(2, 0))
        file.write(b"\x00\x00\x00\x01")
    with pytest.raises(StoreError, match="model 2"):
        filled.publish(address)
    assert not files.exists(root)


def test_a_store_is_published_to_an_address_only(filled: SignalStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder of this machine: give an address"):
        filled.publish(str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_the_store_needs_numpy_alone() -> None:
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"scipy", "sklearn", "rich", "click", "fsspec", "torch"}:
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import numpy as np, tempfile
from plmia.data.designs import MembershipDesign
from plmia.signals.store import SignalStore, write_stack
with tempfile.TemporaryDirectory() as folder:
    store = SignalStore.create(folder + "/s", {}, MembershipDesign(np.eye(2, 9, dtype=bool)), ["identity"])
    write_stack(folder + "/t", [1], np.ones((1, 9, 1), np.float32), [{}], key=store.key)
    print(store.import_npy(folder + "/t"), store.read().sum())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[1] 9.0\n", "")
