"""`plmia import`: from another tool's folder to scores, the same bytes each time, one sentence for every bad folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

Run = Callable[..., click.testing.Result]
Arrays = dict[str, Any]
Change = Callable[[Path], object]

MODELS, POINTS, CLASSES = 16, 120, 5
KINDS = ("lira", "lira-pytorch", "rmia", "privacy-meter", "arrays", "table")


def save(path: Path, array: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def logits_of(arrays: Arrays) -> Any:
    """Class logits [models, points, 1, views, classes] with the confidences of a simulated signals file."""
    confidences = arrays["signals"].astype(np.float64)
    # The other classes share the rest evenly: z_y - log((C - 1) exp(0)) is the confidence.
    logits = np.zeros((*confidences.shape, CLASSES))
    own = confidences + np.log(CLASSES - 1)
    np.put_along_axis(logits, np.broadcast_to(arrays["labels"][:, None], own.shape)[..., None], own[..., None], -1)
    return logits[:, :, None]


@pytest.fixture
def folders(simulate: Callable[..., Arrays], tmp_path: Path) -> dict[str, Path]:
    """The same simulated audit as each tool would leave it."""
    arrays = simulate(0, models=MODELS, points=POINTS)
    logits, membership, labels = logits_of(arrays), arrays["membership"], arrays["labels"]
    probabilities = 1 / (1 + np.exp(-arrays["signals"][:, :, 0].astype(np.float64)))
    for model in range(MODELS):
        run = tmp_path / "lira" / f"experiment-{model}_{MODELS}"
        save(run / "keep.npy", membership[model])
        save(run / "logits" / "0000000100.npy", logits[model])
    save(tmp_path / "lira" / "y_train.npy", labels)
    save(tmp_path / "privacy-meter" / "signals" / "rmia_signals.npy", probabilities.T)
    save(tmp_path / "privacy-meter" / "models" / "memberships.npy", membership)
    save(tmp_path / "arrays" / "logits.npy", logits[:, :, 0])
    save(tmp_path / "arrays" / "membership.npy", membership)
    save(tmp_path / "arrays" / "labels.npy", labels)
    shutil.copytree(tmp_path / "lira", tmp_path / "rmia")
    for model in range(MODELS):
        save(tmp_path / "lira-pytorch" / str(model) / "keep.npy", membership[model])
        save(tmp_path / "lira-pytorch" / str(model) / "logits.npy", logits[model, :, 0])
    save(tmp_path / "lira-pytorch" / "labels.npy", labels)
    rows = [f"{m},{p},{membership[m, p]},{arrays['signals'][m, p, 0]}" for m, p in np.ndindex(MODELS, POINTS)]
    (tmp_path / "table").write_text("\n".join(["model,record,member,signal", *rows]))
    return {name: tmp_path / name for name in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_imported_signals_score_like_the_originals(
    kind: str, folders: dict[str, Path], command: Run, tmp_path: Path, simulate: Callable[..., Arrays]
) -> None:
    result = command("import", kind, folders[kind], "-o", tmp_path / "in" / "signals.npz")
    assert result.exit_code == 0, result.stderr
    labels = "no labels" if kind in ("privacy-meter", "table") else f"{CLASSES} classes"
    assert result.stdout.splitlines() == [
        f"16 models, 120 records, 1 view, {labels}, 8 complementary pairs",
        f"Next: plmia score {tmp_path / 'in' / 'signals.npz'} -o out",
    ]
    np.savez(tmp_path / "original.npz", **simulate(0, models=MODELS, points=POINTS))
    metrics = []
    for file in (tmp_path / "in" / "signals.npz", tmp_path / "original.npz"):
        scored = command("score", file, "-o", tmp_path / "out", "--json", "--attack", "lira", "--attack", "rmia")
        assert scored.exit_code == 0, scored.stderr
        metrics.append(json.loads(scored.stdout)["attacks"])
    for name in ("lira", "rmia"):
        assert metrics[0][name]["auc"]["mean"] == pytest.approx(metrics[1][name]["auc"]["mean"], abs=1e-3)


def test_the_same_folder_gives_the_same_bytes(folders: dict[str, Path], command: Run, tmp_path: Path) -> None:
    for kind, folder in folders.items():
        written = []
        for name in ("first.npz", "again.npz", "again.npz"):
            result = command("import", kind, folder, "-o", tmp_path / name, "--quiet")
            assert (result.exit_code, result.output) == (0, "")
            written.append((tmp_path / name).read_bytes())
        assert written[0] == written[1] == written[2]


def test_notes_and_odd_names_are_shown(folders: dict[str, Path], command: Run, tmp_path: Path) -> None:
    np.save(folders["arrays"] / "membership.npy", np.tri(MODELS, POINTS, dtype=bool))
    result = command("import", "arrays", folders["arrays"], "-o", tmp_path / "my [x] signals.npz")
    assert result.stdout.splitlines() == [
        "16 models, 120 records, 1 view, 5 classes, no complementary pairs",
        f"Next: plmia score '{tmp_path}/my [x] signals.npz' -o out",
    ]


def test_a_missing_suffix_is_added_and_said(folders: dict[str, Path], command: Run, tmp_path: Path) -> None:
    result = command("import", "arrays", folders["arrays"], "-o", tmp_path / "run.v2")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, f"The suffix .npz was added: {tmp_path}/run.v2.npz")
    assert result.stdout.splitlines()[-1] == f"Next: plmia score {tmp_path}/run.v2.npz -o out"
    assert (tmp_path / "run.v2.npz").is_file()
    assert not (tmp_path / "run.v2").exists()


def test_columns_of_a_table_and_names_of_its_records(command: Run, tmp_path: Path) -> None:
    rows = [f"{m};p{r};{(m + r) % 2};{m * 10 + r - 5}" for r in range(6) for m in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(["run;patient;in_train;score", *rows]))
    renamed = ("--column", "model=run", "--column", "record=patient", "--column", "member=in_train")
    result = command("import", "table", tmp_path / "t.csv", *renamed, "-o", tmp_path / "s.npz")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "signal=" in result.stderr
    result = command("import", "table", tmp_path / "t.csv", *renamed, "--column", "signal=score", "-o", tmp_path / "s")
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "s.npz") as arrays:
        assert arrays["texts"].tolist() == [f"p{r}" for r in range(6)]
        assert arrays["signals"][:, :, 0].tolist() == [[m * 10 + r - 5 for r in range(6)] for m in range(4)]
        assert "model_names" not in arrays
    for options in (("--column", "modell=run"), ("--column", "model"), ("--column", "=x")):
        result = command("import", "table", tmp_path / "t.csv", *options, "-o", tmp_path / "s.npz")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "ROLE=NAME" in result.stderr
    result = command("import", "lira", tmp_path, "--column", "model=run", "-o", tmp_path / "s.npz")
    assert (result.exit_code, "--column" in result.stderr) == (2, True)


# Bad input -----------------------------------------------------------------------------------------------------------


def put(name: str, change: Callable[[Any], Any]) -> Change:
    """Change an array of the folder."""
    return lambda folder: np.save(folder / name, change(np.load(folder / name)))


def having(values: Any, where: tuple[int, ...], value: float) -> Any:
    values = values.copy()
    values[where] = value
    return values


def cut(name: str) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100])


def drop(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def softmax(logits: Any) -> Any:
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


def only_losses(folder: Path) -> None:
    (folder / "signals" / "rmia_signals.npy").rename(folder / "signals" / "loss_signals.npy")


def all_classes(folder: Path) -> None:
    (folder / "probabilities.npy").write_bytes((folder / "logits.npy").read_bytes())
    put("probabilities.npy", lambda z: softmax(z[:, :, 0]))(folder)
    (folder / "logits.npy").unlink()


SEVEN = f"experiment-7_{MODELS}"
LOGITS = f"{SEVEN}/logits/0000000100.npy"
SIGNALS = "signals/rmia_signals.npy"
MEMBERS = "models/memberships.npy"

CASES: list[tuple[str, Change, str]] = [
    ("lira", lambda folder: shutil.rmtree(folder), "there is no folder"),
    ("lira", lambda folder: [shutil.rmtree(run) for run in folder.glob("exp*")], "holds no folders experiment-*"),
    ("lira", drop(f"{SEVEN}/keep.npy"), f"{SEVEN}/keep.npy of {SEVEN}: write it again"),
    ("lira", drop(LOGITS), f"{SEVEN} has no file such as logits/"),
    ("lira", cut(LOGITS), f"0000000100.npy of {SEVEN} is damaged, truncated"),
    ("lira", cut(f"{SEVEN}/keep.npy"), f"keep.npy of {SEVEN} is damaged, truncated"),
    ("lira", lambda folder: (folder / LOGITS).write_text("<html>"), f"0000000100.npy of {SEVEN} is damaged, truncated"),
    ("lira", lambda folder: ((folder / LOGITS).unlink(), (folder / LOGITS).mkdir()), f"of {SEVEN} cannot be read"),
    ("lira", drop("y_train.npy"), "experiment-0_16 has logits, but there is no labels.npy or y_train.npy"),
    ("lira", put("y_train.npy", lambda y: y + 3), "but"),
    ("lira", put("y_train.npy", lambda y: y - 3), "labels must be 0 or more"),
    ("lira", put("y_train.npy", lambda y: y.astype(float)), "integers [records]"),
    ("lira", put("y_train.npy", lambda y: y[:50]), "there are 50 labels and 120 records"),
    ("lira", put(LOGITS, lambda z: having(z, (3, 0, 0, 1), np.nan)), f"{SEVEN} holds nan at record 3, view 0, class 1"),
    ("lira", put(LOGITS, lambda z: having(z, (9, 0, 0, 4), np.inf)), f"{SEVEN} holds inf at record 9, view 0, class 4"),
    ("lira", put(LOGITS, lambda z: having(z, (9, 0, 0, 4), 1e300)), "at most 3e38"),
    ("lira", put(LOGITS, lambda z: z[:50]), f"query {SEVEN} again"),
    ("lira", put(LOGITS, lambda z: z[..., :4]), f"query {SEVEN} again"),
    ("lira", put(LOGITS, lambda z: z[..., :1]), "2 are needed"),
    ("lira", put(LOGITS, lambda z: np.repeat(z, 2, axis=1)), "floats [records, views, classes]"),
    ("lira", put(LOGITS, lambda z: z[0, 0, 0, 0]), "floats [records, views, classes]"),
    ("lira", put(LOGITS, lambda z: z[:0]), "no empty axis"),
    ("lira", put(LOGITS, lambda z: z.astype(int)), "type int64"),
    ("lira", put(LOGITS, softmax), f"holds probabilities, not logits, for {SEVEN}"),
    ("lira", put(f"{SEVEN}/keep.npy", lambda k: k[:50]), "both need the same records"),
    ("lira", put(f"{SEVEN}/keep.npy", lambda k: k + 1), f"keep.npy of {SEVEN} holds other values than 0 and 1"),
    ("lira", put(f"{SEVEN}/keep.npy", lambda k: k.astype(float)), "booleans [records]"),
    ("lira", put(f"{SEVEN}/keep.npy", lambda k: k[None]), "booleans [records]"),
    ("lira-pytorch", lambda folder: shutil.rmtree(folder), "there is no folder"),
    ("lira-pytorch", lambda folder: [shutil.rmtree(run) for run in folder.glob("[0-9]*")], "--savedir"),
    ("lira-pytorch", drop("7/keep.npy"), "7/keep.npy of 7: write it again"),
    ("lira-pytorch", drop("7/logits.npy"), "7/scores.npy of 7: write it again"),
    ("lira-pytorch", drop("labels.npy"), "no labels.npy"),
    ("lira-pytorch", cut("7/logits.npy"), "7/logits.npy of 7 is damaged, truncated"),
    ("lira-pytorch", put("7/logits.npy", lambda z: z[:50]), "query 7 again"),
    ("lira-pytorch", put("7/logits.npy", lambda z: having(z, (3, 0, 1), np.nan)), "7 holds nan at record 3, view 0"),
    ("table", lambda folder: folder.unlink(), "there is no file"),
    ("table", lambda folder: folder.write_bytes(b""), "no column 'model'"),
    ("rmia", lambda folder: [shutil.rmtree(run) for run in folder.glob("exp*")], "holds no folders experiment-*"),
    ("privacy-meter", drop(SIGNALS), "there is no"),
    ("privacy-meter", drop(MEMBERS), "memberships.npy of this run: write it again"),
    ("privacy-meter", only_losses, "only signals/loss_signals.npy"),
    ("privacy-meter", cut(SIGNALS), "rmia_signals.npy of this run is damaged, truncated"),
    ("privacy-meter", put(SIGNALS, lambda p: p[:50]), "data_size"),
    ("privacy-meter", put(SIGNALS, lambda p: p.T), "[records, models] and [models, records]"),
    ("privacy-meter", put(MEMBERS, lambda m: m[:5]), "[records, models] and [models, records]"),
    ("privacy-meter", put(SIGNALS, lambda p: having(p, (2, 6), np.nan)), "of model 6 holds nan at record 2, view 0"),
    ("privacy-meter", put(SIGNALS, lambda p: -np.log(p)), "must lie in [0, 1]"),
    ("arrays", drop("logits.npy"), "neither logits.npy nor probabilities.npy"),
    ("arrays", drop("membership.npy"), "there is no"),
    ("arrays", drop("labels.npy"), "but no labels.npy"),
    ("arrays", put("logits.npy", lambda z: z[:5]), "of the same models and records"),
    ("arrays", put("logits.npy", lambda z: z[0]), "of the same models and records"),
    ("arrays", put("labels.npy", lambda y: y[:5]), "there are 5 labels and 120 records"),
    ("arrays", put("logits.npy", lambda z: having(z, (4, 2, 0, 1), -np.inf)), "of model 4 holds -inf at record 2"),
    ("arrays", put("logits.npy", softmax), "holds probabilities, not logits"),
    ("arrays", all_classes, "holds probabilities of all classes"),
]


@pytest.mark.parametrize(("kind", "change", "sentence"), CASES)
def test_a_bad_folder_is_refused_in_one_sentence(
    kind: str, change: Change, sentence: str, folders: dict[str, Path], command: Run, tmp_path: Path
) -> None:
    """What was written before stays, and no folder is made."""
    path = tmp_path / "signals.npz"
    path.write_bytes(b"before")
    change(folders[kind])
    before = sorted(tmp_path.rglob("*"))
    for output in (path, tmp_path / "new" / "er" / "signals.npz"):
        result = command("import", kind, folders[kind], "-o", output)
        assert (result.exit_code, result.stdout) == (2, ""), result.output
        assert result.stderr.startswith("plmia: ")
        assert result.stderr.count("\n") == 1
        assert sentence in result.stderr
        assert path.read_bytes() == b"before"
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("folder.npz", "is a folder"),
        ("/", "is a folder"),
        ("file/signals.npz", "cannot be written"),
        ("x" * 300 + ".npz", "cannot be written"),
    ],
)
def test_a_bad_output_is_refused(
    output: str, sentence: str, folders: dict[str, Path], command: Run, tmp_path: Path
) -> None:
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    result = command("import", "arrays", folders["arrays"], "-o", tmp_path / output)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert sentence in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_name_that_is_too_long_is_no_traceback(command: Run, tmp_path: Path) -> None:
    result = command("import", "lira", tmp_path / ("x" * 300), "-o", tmp_path / "s.npz")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


def test_an_unknown_format_is_refused_with_the_known_ones(command: Run, tmp_path: Path) -> None:
    result = command("import", "csv", tmp_path, "-o", tmp_path / "s.npz")
    assert result.exit_code == 2
    assert "'lira', 'lira-pytorch', 'rmia', 'privacy-meter', 'arrays', 'table'" in result.stderr


def test_ctrl_c_leaves_nothing(
    folders: dict[str, Path], command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("plmia.signals.importers._confidences", interrupted)
    before = sorted(tmp_path.rglob("*"))
    result = command("import", "arrays", folders["arrays"], "-o", tmp_path / "new" / "s.npz")
    assert (result.exit_code, result.stdout) == (130, "")
    assert sorted(tmp_path.rglob("*")) == before
