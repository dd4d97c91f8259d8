"""Runs for a training script of one's own: what is recorded is what is scored, and misfits are one sentence."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import plmia
from plmia import MembershipDesign, PlmiaError, Run, SignalStore
from plmia.errors import DataError, ReferencesError, SignalsError, StoreError
from plmia.training.own_script import DESIGN_FILE, STORE

Array = npt.NDArray[Any]
RECORDS, CLASSES, VIEWS = 30, 3, 2


def make(folder: Path, references: int = 4, **options: Any) -> Run:
    return plmia.design(RECORDS, references=references, folder=folder, **options)


def draw(seed: int = 0) -> tuple[Array, Array]:
    """Logits [records, views, classes] and labels."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(RECORDS, VIEWS, CLASSES)) * 3, np.arange(RECORDS) % CLASSES


def naive(logits: Array, labels: Array) -> Array:
    """log p - log(1 - p) of the true label, number by number [records, views]."""
    out = np.empty(logits.shape[:2])
    for record, view in np.ndindex(*out.shape):
        weights = [math.exp(z) for z in logits[record, view]]
        own = weights[labels[record]] / sum(weights)
        out[record, view] = math.log(own) - math.log(1 - own)
    return out


def stored(run: Run) -> Array:
    return SignalStore.open(run.folder / STORE).read()


# The design ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pairs", "halves", "exact"])
def test_members_are_those_of_an_audit_with_the_same_seed(kind: Any, tmp_path: Path) -> None:
    run = make(tmp_path / "run", design=kind, seed=3)
    expected = plmia.data.designs.audit_design(RECORDS, 4, np.random.default_rng(3), None, kind).matrix
    assert (run.models, run.n_records, run.recorded(), run.missing()) == (range(5), RECORDS, [], [0, 1, 2, 3, 4])
    for model in run.models:
        assert run.members(model).tolist() == [i for i in range(RECORDS) if expected[model, i]]
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run" / DESIGN_FILE).stat().st_mode & 0o777 == 0o600


def test_the_same_design_again_changes_nothing_and_another_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "run")
    before = (tmp_path / "run" / DESIGN_FILE).read_bytes()
    make(tmp_path / "run")
    make(tmp_path / "again")
    assert before == (tmp_path / "run" / DESIGN_FILE).read_bytes() == (tmp_path / "again" / DESIGN_FILE).read_bytes()
    others: list[dict[str, Any]] = [{"seed": 1}, {"design": "halves"}, {"groups": np.arange(RECORDS) // 2}]
    for other in others:
        with pytest.raises(StoreError, match=rf"\(other {next(iter(other))}"):
            make(tmp_path / "run", **other)
    assert before == (tmp_path / "run" / DESIGN_FILE).read_bytes()


def test_more_references_extend_a_run(tmp_path: Path) -> None:
    logits, labels = draw()
    run = make(tmp_path / "run")
    run.record(1, logits=logits, labels=labels)
    before = [run.members(model).tolist() for model in run.models]
    longer = make(tmp_path / "run", references=8)
    assert [longer.members(model).tolist() for model in run.models] == before
    assert (len(longer.models), longer.recorded()) == (9, [1])
    longer.record(8, logits=logits, labels=labels)
    run.record(2, logits=logits, labels=labels)  # by a job that began before
    assert Run(tmp_path / "run").recorded() == [1, 2, 8]
    assert len(make(tmp_path / "run", references=6).models) == 9  # it never shrinks
    with pytest.raises(StoreError, match="design"):
        make(tmp_path / "run", references=8, design="exact")


def test_data_give_labels_and_groups(tmp_path: Path) -> None:
    logits, labels = draw()
    groups = np.arange(RECORDS) // 3
    np.savez(tmp_path / "data.npz", X=np.random.default_rng(0).normal(size=(RECORDS, 2)), y=labels, groups=groups)
    run = plmia.design(tmp_path / "data.npz", references=4, folder=tmp_path / "run")
    assert run.labels is not None
    assert run.groups is not None
    assert (run.labels.tolist(), run.groups.tolist()) == (labels.tolist(), groups.tolist())
    for model in run.models:
        members = set(run.members(model).tolist())
        assert all(len({3 * g, 3 * g + 1, 3 * g + 2} & members) in (0, 3) for g in range(RECORDS // 3))
    run.record(0, logits=logits)  # labels are known
    signals = SignalStore.open(run.folder / STORE).signals([0])
    np.testing.assert_allclose(signals.values[0], naive(logits, labels), rtol=1e-5, atol=1e-6)
    assert signals.groups is not None
    assert signals.groups.tolist() == groups.tolist()


def test_columns_of_a_csv_give_labels_and_groups(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    rows = [f"{i % 7},{'yes' if i % 3 else 'no'},p{i // 2}" for i in range(RECORDS)]
    (tmp_path / "data.csv").write_text("\n".join(["age,again,patient", *rows]))
    columns = {"label": "again", "group": "patient"}
    with pytest.warns(plmia.PlmiaWarning, match="copies"):
        run = plmia.design(tmp_path / "data.csv", **columns, references=4, folder=tmp_path / "run")
    assert run.labels is not None
    assert run.labels.tolist() == [int(i % 3 > 0) for i in range(RECORDS)]
    for model in run.models:
        assert {row ^ 1 for row in run.members(model).tolist()} == set(run.members(model).tolist())
    with pytest.raises(SignalsError, match="leave labels out"):
        run.record(0, logits=np.zeros((RECORDS, 2)), labels=["yes"] * RECORDS)


def test_a_design_of_ones_own(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).random((4, RECORDS)) < 0.5
    run = plmia.design(design=MembershipDesign(matrix), folder=tmp_path / "run")
    np.testing.assert_array_equal(run.design.matrix, matrix)
    for records, references in ((RECORDS + 1, None), (None, 5)):
        with pytest.raises(DataError, match="one row per model"):
            plmia.design(
                records, references=references, design=MembershipDesign(matrix), folder=tmp_path / str(references)
            )


def test_designs_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither"):
        plmia.design(folder=tmp_path / "run")
    with pytest.raises(ReferencesError, match="5 references"):
        make(tmp_path / "run", references=5)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(StoreError, match="not a run"):
        make(tmp_path / "full")
    with pytest.raises(StoreError, match="not a run"):
        Run(tmp_path / "nothing")
    assert not (tmp_path / "run").exists()


def test_damage_of_the_design_is_found(tmp_path: Path) -> None:
    run = make(tmp_path / "run", groups=np.arange(RECORDS) // 2)
    path = run.folder / DESIGN_FILE
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        path.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])
        with contextlib.suppress(StoreError):  # unless it is a byte that nobody reads, such as a date in the archive
            np.testing.assert_array_equal(Run(run.folder).design.matrix, run.design.matrix)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match=DESIGN_FILE):
        Run(run.folder)


# Recording -----------------------------------------------------------------------------------------------------------


def test_every_kind_of_answer_equals_a_loop(tmp_path: Path) -> None:
    logits, labels = draw()
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    run = make(tmp_path / "run")
    run.record(0, logits=logits, labels=labels)
    run.record(1, probabilities=probabilities, labels=labels.astype(float))
    run.record(2, confidence=naive(logits, labels))
    for values in stored(run):
        np.testing.assert_allclose(values, naive(logits, labels), rtol=1e-5, atol=1e-5)
    one = make(tmp_path / "one view")
    one.record(0, logits=logits[:, 0].tolist(), labels=labels.tolist())
    one.record(1, confidence=naive(logits, labels)[:, 0])
    for values in stored(one):
        np.testing.assert_allclose(values, naive(logits, labels)[:, :1], rtol=1e-5, atol=1e-5)
    own = make(tmp_path / "signal")
    own.record(0, signal=probabilities[:, :, 0])
    np.testing.assert_allclose(stored(own)[0], probabilities[:, :, 0], rtol=1e-6)
    assert SignalStore.open(own.folder / STORE).about["signal"] == "signal"


def test_accuracies_are_those_of_a_loop(tmp_path: Path) -> None:
    logits, labels = draw()
    run = make(tmp_path / "run")
    run.record(3, logits=logits, labels=labels)
    members = set(run.members(3).tolist())
    right = [int(np.argmax(logits[i, 0])) == labels[i] for i in range(RECORDS)]
    record = SignalStore.open(run.folder / STORE).finished()[3]
    assert record["train_accuracy"] == pytest.approx(np.mean([right[i] for i in members]))
    assert record["test_accuracy"] == pytest.approx(np.mean([right[i] for i in range(RECORDS) if i not in members]))
    assert "given" not in record


def test_tensors_are_taken_as_they_are(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    logits, labels = draw()
    run = make(tmp_path / "run")
    run.record(0, logits=torch.tensor(logits, requires_grad=True), labels=torch.tensor(labels))
    run.record(1, logits=torch.tensor(logits).bfloat16(), labels=torch.tensor(labels))
    values = stored(run)
    np.testing.assert_allclose(values[0], naive(logits, labels), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(values[1], naive(logits, labels), atol=0.1)
    subset = torch.utils.data.Subset(torch.arange(RECORDS), run.members(1))
    assert [int(row) for row in subset] == run.members(1).tolist()


def test_the_same_again_changes_nothing_and_other_answers_need_replace(tmp_path: Path) -> None:
    logits, labels = draw()
    run = make(tmp_path / "run")
    for model in (0, 1):
        run.record(model, logits=logits, labels=labels)
    before = {path: path.read_bytes() for path in sorted(run.folder.rglob("*")) if path.is_file()}
    Run(run.folder).record(0, logits=logits)
    assert {path: path.read_bytes() for path in sorted(run.folder.rglob("*")) if path.is_file()} == before
    with pytest.raises(StoreError, match=r"missing\(\).*replace=True"):
        run.record(0, logits=logits + np.eye(CLASSES)[0], labels=labels)
    np.testing.assert_array_equal(stored(run)[0], stored(run)[1])
    run.record(0, logits=-logits, replace=True)
    np.testing.assert_allclose(stored(run)[0], naive(-logits, labels), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(stored(run)[1], naive(logits, labels), rtol=1e-5, atol=1e-5)
    assert SignalStore.open(run.folder / STORE).verify() == []


def test_replacing_repairs_damaged_signals(tmp_path: Path) -> None:
    logits, labels = draw()
    run = make(tmp_path / "run")
    run.record(0, logits=logits, labels=labels)
    store = SignalStore.open(run.folder / STORE)
    with (run.folder / STORE / "signals.npy").open("r+b") as file:
        file.seek(200)
        file.write(b"????")
    assert store.verify()
    run.record(0, logits=logits, replace=True)
    assert store.verify() == []


MISFITS: dict[str, tuple[Any, type[PlmiaError], str]] = {
    "no model": (lambda run, z, y: run.record(5, logits=z, labels=y), StoreError, "0 to 4"),
    "text": (lambda run, z, y: run.record("1", logits=z, labels=y), StoreError, "'1'"),
    "negative": (lambda run, z, y: run.members(-1), StoreError, "-1"),
    "nothing": (lambda run, z, y: run.record(1, labels=y), SignalsError, "0 kinds"),
    "two kinds": (lambda run, z, y: run.record(1, logits=z, signal=y), SignalsError, "logits, signal"),
    "fewer records": (lambda run, z, y: run.record(1, logits=z[:-1], labels=y), SignalsError, "30 records"),
    "one column": (lambda run, z, y: run.record(1, logits=z[..., :1], labels=y), SignalsError, "1 columns"),
    "a label too many": (lambda run, z, y: run.record(1, logits=z[..., :2], labels=y), SignalsError, "up to 2"),
    "a flat array": (lambda run, z, y: run.record(1, logits=z[:, 0, 0], labels=y), SignalsError, "shape"),
    "other labels": (lambda run, z, y: run.record(1, logits=z, labels=y[::-1]), SignalsError, "record 0: 2 instead"),
    "members alone": (
        lambda run, z, y: run.record(1, logits=z[run.members(1), 0], labels=y),
        SignalsError,
        r"\(15, 3\).*not only those that the model trained on",
    ),
    "text labels": (lambda run, z, y: run.record(1, logits=z, labels=y.astype(str)), SignalsError, "whole numbers"),
    "fewer labels": (lambda run, z, y: run.record(1, logits=z, labels=y[:3]), SignalsError, r"\[30\]"),
    "one view": (lambda run, z, y: run.record(1, logits=z[:, 0], labels=y), SignalsError, "1 views instead of 2"),
    "another kind": (lambda run, z, y: run.record(1, signal=z[..., 0]), SignalsError, "signal per record instead"),
    "probabilities": (
        lambda run, z, y: run.record(1, logits=np.exp(z) / np.exp(z).sum(axis=2, keepdims=True), labels=y),
        SignalsError,
        "probabilities=",
    ),
    "logits": (lambda run, z, y: run.record(1, probabilities=z, labels=y), PlmiaError, "must lie in"),
    "a share": (lambda run, z, y: run.record(1, confidence=np.full(z.shape[:2], 0.3)), SignalsError, "probabilities"),
    "text answers": (lambda run, z, y: run.record(1, logits=z.astype(str)), SignalsError, "real numbers"),
    "NaN": (lambda run, z, y: run.record(1, logits=np.where(z > 5, np.nan, z), labels=y), StoreError, "nan"),
    "infinite": (lambda run, z, y: run.record(1, confidence=1e300 * z[..., 0]), StoreError, "inf"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_answers_that_do_not_fit_are_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    record, error, fact = MISFITS[case]
    logits, labels = draw()
    run = make(tmp_path / "run")
    run.record(0, logits=logits, labels=labels)
    with pytest.raises(error, match=fact) as raised:
        record(run, logits, labels)
    assert "\n" not in str(raised.value)
    assert run.recorded() == [0]


def test_logits_need_labels_from_somewhere(tmp_path: Path) -> None:
    logits, labels = draw()
    run = make(tmp_path / "run")
    with pytest.raises(SignalsError, match="labels="):
        run.record(0, logits=logits)
    with pytest.raises(SignalsError, match=r"np\.unique"):
        run.record(0, logits=logits, labels=labels.astype(str))
    run.record(1, logits=logits, labels=labels)
    run.record(0, logits=logits)
    assert run.recorded() == [0, 1]
    other = make(tmp_path / "other")
    other.record(0, confidence=naive(logits, labels))
    with pytest.raises(SignalsError, match="with all models or with none"):
        other.record(1, logits=logits, labels=labels)


def test_a_store_that_a_killed_job_left_empty_fixes_nothing(tmp_path: Path) -> None:
    logits, labels = draw()
    run = make(tmp_path / "run")
    run._open(1, labels[::-1].copy(), "signal", 0)  # as a job that was killed before its first model was complete
    assert (run.recorded(), run.labels) == ([], None)
    run.record(0, logits=logits, labels=labels)
    assert run.recorded() == [0]
    assert stored(run).shape == (1, RECORDS, VIEWS)


# Copies --------------------------------------------------------------------------------------------------------------


def test_copies_are_merged(tmp_path: Path) -> None:
    logits, labels = draw()
    here, there = make(tmp_path / "here"), make(tmp_path / "there")
    here.record(0, logits=logits, labels=labels)
    there.record(0, logits=logits, labels=labels)
    there.record(3, logits=-logits, labels=labels)
    assert here.merge(tmp_path / "there") == [3]
    assert here.merge(there) == []
    np.testing.assert_allclose(stored(here)[1], naive(-logits, labels), rtol=1e-5, atol=1e-5)
    assert here.recorded() == [0, 3]
    empty = make(tmp_path / "empty")
    assert empty.merge(there) == [0, 3]
    with pytest.raises(StoreError, match="no recorded model"):
        here.merge(make(tmp_path / "nothing"))
    with pytest.raises(StoreError, match="not a copy"):
        here.merge(make(tmp_path / "other", seed=1))
    there.record(4, logits=logits, labels=labels)
    here.record(4, logits=-logits, labels=labels)
    with pytest.raises(StoreError, match="model 4"):
        here.merge(there)


def test_run_needs_numpy_only() -> None:
    code = "import sys, plmia; plmia.Run; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "numpy" in loaded
    assert loaded.isdisjoint({"scipy", "sklearn", "torch", "pandas", "narwhals", "click", "rich", "pyarrow"})


def test_frames_and_arrays_give_the_design_of_their_data(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    frame = pandas.DataFrame(X, columns=["a", "b"]).assign(y=y)
    plain = plmia.design(60, references=4, folder=tmp_path / "plain")
    arrays = plmia.design(X, references=4, folder=tmp_path / "array")
    named = plmia.design(frame, label="y", references=4, folder=tmp_path / "frame")
    for run in (arrays, named):
        np.testing.assert_array_equal(run.design.matrix, plain.design.matrix)
    assert arrays.labels is None
    np.testing.assert_array_equal(named.labels, y)
    with pytest.raises(DataError, match="label"):
        plmia.design(60, label="y", references=4, folder=tmp_path / "number")
    with pytest.raises(DataError, match="another order"):
        plmia.design(frame, groups=pandas.Series(y).sample(frac=1, random_state=0), folder=tmp_path / "shuffled")
