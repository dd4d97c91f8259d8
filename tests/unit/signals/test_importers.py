"""Importing what other tools leave: every format against a loop over models, files that are damaged, bounded memory."""

from __future__ import annotations

import math
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from plmia import PlmiaError, import_signals, read_signals
from plmia.errors import OutputError, SignalsError
from plmia.signals.importers import IMPORTERS, Imported, find_models, write_signals

Array = npt.NDArray[Any]
MODELS, POINTS, VIEWS, CLASSES = 12, 23, 3, 4


def draw(seed: int = 0) -> tuple[Array, Array, Array]:
    """Logits [models, points, views, classes], membership and labels; the models are no pairs."""
    rng = np.random.default_rng(seed)
    logits = 4 * rng.normal(size=(MODELS, POINTS, VIEWS, CLASSES))
    return logits.astype(np.float32), rng.random((MODELS, POINTS)) < 0.5, rng.integers(0, CLASSES, POINTS)


def naive(logits: Array, labels: Array) -> Array:
    """Compute logit(p_y) number by number, in double precision; [models, points, views]."""
    out = np.empty(logits.shape[:3])
    for model, point, view in np.ndindex(*out.shape):
        weights = [math.exp(float(z)) for z in logits[model, point, view]]
        own = weights[labels[point]] / sum(weights)
        out[model, point, view] = math.log(own) - math.log(1 - own)
    return out


def save(path: Path, array: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def lira(folder: Path, logits: Array, membership: Array, labels: Array | None, epoch: str = "0000000100") -> Path:
    for model, (answers, members) in enumerate(zip(logits, membership, strict=True)):
        run = folder / f"experiment-{model}_{len(logits)}"
        save(run / "keep.npy", members)
        save(run / "logits" / f"{epoch}.npy", answers)
    if labels is not None:
        save(folder / "y_train.npy", labels)
    return folder


def check(imported: Imported, path: Path, expected: Array, membership: Array, labels: Array | None) -> None:
    signals = read_signals(path)
    assert signals.values.dtype == np.float32
    np.testing.assert_allclose(signals.values, expected, rtol=2e-6, atol=2e-6)
    assert np.array_equal(signals.design.matrix, membership)
    assert (signals.labels is None) == (labels is None)
    assert labels is None or np.array_equal(np.asarray(signals.labels), labels)
    assert (imported.n_models, imported.n_points, imported.n_views) == expected.shape


# Formats -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "kind", "epoch"),
    [
        (lambda z: z[:, :, None], "lira", "0000000100"),  # as LiRA's code writes it
        (lambda z: z, "lira", "0000000100"),
        (lambda z: z[:, :, 0], "lira", "0000000100"),
        (lambda z: z[:, :, None], "rmia", "0000000100_0003"),  # as RMIA's does
    ],
)
def test_lira_equals_a_loop(shape: Callable[[Array], Array], kind: str, epoch: str, tmp_path: Path) -> None:
    """Twelve models: by name, experiment-10 would stand before experiment-2."""
    logits, membership, labels = draw()
    given = shape(logits)
    folder = lira(tmp_path / "exp", given, membership, labels, epoch)
    imported = import_signals(kind, folder, tmp_path / "s.npz")
    expected = naive(logits if given.ndim > 3 else logits[:, :, :1], labels)
    check(imported, tmp_path / "s.npz", expected, membership, labels)
    assert (imported.n_classes, imported.n_pairs, imported.notes) == (CLASSES, 0, ())


@pytest.mark.parametrize("place", ["exp/labels.npy", "labels.npy", "y_train.npy"])
def test_lira_finds_labels_beside_and_above(place: str, tmp_path: Path) -> None:
    logits, membership, labels = draw()
    lira(tmp_path / "exp", logits, membership, None)
    save(tmp_path / place, labels.astype(np.uint8)[:, None])
    imported = import_signals("lira", tmp_path / "exp", tmp_path / "s.npz")
    check(imported, tmp_path / "s.npz", naive(logits, labels), membership, labels)


def test_lira_takes_scores_where_only_they_were_kept(tmp_path: Path) -> None:
    """With logits and no labels there is no other way, either."""
    logits, membership, labels = draw()
    folder = lira(tmp_path / "exp", logits, membership, None)
    scores = naive(logits, labels)
    for model, values in enumerate(scores):
        save(folder / f"experiment-{model}_{MODELS}" / "scores" / "0000000100.npy", values)
    check(import_signals("lira", folder, tmp_path / "s.npz"), tmp_path / "s.npz", scores, membership, None)
    for file in folder.glob("*/logits/*.npy"):
        file.unlink()
    save(folder / "y_train.npy", labels)
    imported = import_signals("lira", folder, tmp_path / "s.npz")
    check(imported, tmp_path / "s.npz", scores, membership, labels)
    assert imported.n_classes == len(np.unique(labels))


def test_lira_takes_the_last_epoch_and_says_where_models_differ(tmp_path: Path) -> None:
    logits, membership, labels = draw()
    folder = lira(tmp_path / "exp", 0 * logits, membership, labels, "0000000090")
    lira(folder, logits, membership, labels, "0000000100")
    save(folder / f"experiment-3_{MODELS}" / "logits" / "0000000101.npy", 2 * logits[3])
    (folder / f"experiment-4_{MODELS}" / "logits" / "notes.npy").write_text("no epoch")
    expected = naive(logits, labels)
    expected[3] = naive(2 * logits[3:4], labels)[0]
    imported = import_signals("lira", folder, tmp_path / "s.npz")
    check(imported, tmp_path / "s.npz", expected, membership, labels)
    assert len(imported.notes) == 1
    assert "100 to 101" in imported.notes[0]


def test_lira_may_have_queried_only_the_first_points(tmp_path: Path) -> None:
    """As LiRA's own code does: keep.npy and y_train.npy are then longer."""
    logits, membership, labels = draw()
    folder = lira(tmp_path / "exp", logits[:, :5], membership, labels)
    imported = import_signals("lira", folder, tmp_path / "s.npz")
    check(imported, tmp_path / "s.npz", naive(logits[:, :5], labels), membership[:, :5], labels[:5])
    assert "the first 5 are used" in imported.notes[0]


def lira_pytorch(folder: Path, name: str, values: Array, membership: Array) -> Path:
    for model, (answers, members) in enumerate(zip(values, membership, strict=True)):
        save(folder / str(model) / "keep.npy", members)
        save(folder / str(model) / f"{name}.npy", answers)
        (folder / str(model) / "model.pt").touch()
    (folder / "figures").mkdir()
    return folder


@pytest.mark.parametrize("place", ["exp/labels.npy", "y_train.npy"])
@pytest.mark.parametrize("queries", [True, False])
def test_lira_pytorch_equals_a_loop(place: str, queries: bool, tmp_path: Path) -> None:
    """Twelve models: by name, 10 would stand before 2."""
    logits, membership, labels = draw()
    given = logits if queries else logits[:, :, 0]
    folder = lira_pytorch(tmp_path / "exp", "logits", given, membership)
    with pytest.raises(SignalsError, match=r"labels\.npy"):
        find_models("lira-pytorch", folder)
    save(tmp_path / place, labels)
    imported = import_signals("lira-pytorch", folder, tmp_path / "s.npz")
    check(imported, tmp_path / "s.npz", naive(logits if queries else logits[:, :, :1], labels), membership, labels)
    assert imported.notes == ()
    save(folder / "extra" / "keep.npy", membership[0])
    with pytest.raises(SignalsError, match="extra"):
        find_models("lira-pytorch", folder)


def test_lira_pytorch_takes_scores_without_labels(tmp_path: Path) -> None:
    logits, membership, labels = draw()
    scores = naive(logits, labels)
    folder = lira_pytorch(tmp_path / "exp", "scores", scores, membership)
    check(import_signals("lira-pytorch", folder, tmp_path / "s.npz"), tmp_path / "s.npz", scores, membership, None)
    with pytest.raises(SignalsError, match="lira-pytorch"):
        find_models("lira", folder)


def privacy_meter(folder: Path, probabilities: Array, membership: Array) -> Path:
    save(folder / "signals" / "rmia_signals.npy", probabilities)
    save(folder / "signals" / "rmia_signals_pop.npy", probabilities[:2])
    save(folder / "models" / "memberships.npy", membership)
    return folder


@pytest.mark.parametrize("kind", ["privacy-meter", "rmia"])
@pytest.mark.parametrize("labelled", [False, True])
def test_privacy_meter_equals_a_loop(kind: str, labelled: bool, tmp_path: Path) -> None:
    """Its signals are [points, models], its memberships [models, points]; models may have been trained and not used."""
    logits, membership, labels = draw()
    expected = naive(logits[:, :, :1], labels)
    folder = privacy_meter(tmp_path / "log", 1 / (1 + np.exp(-expected[:10, :, 0].T)), membership)
    if labelled:
        save(folder / "labels.npy", labels)
    imported = import_signals(kind, folder, tmp_path / "s.npz")
    check(imported, tmp_path / "s.npz", expected[:10], membership[:10], labels if labelled else None)
    assert "10 of 12 models" in imported.notes[0]


def test_probabilities_that_float32_rounds_are_clipped_and_counted(tmp_path: Path) -> None:
    probabilities = np.full((POINTS, 2), 0.5, np.float32)
    probabilities[3] = [1.0, 0.0]
    members = np.arange(POINTS) < 4
    folder = privacy_meter(tmp_path / "log", probabilities, np.stack([members, ~members]))
    imported = import_signals("privacy-meter", folder, tmp_path / "s.npz")
    values = read_signals(tmp_path / "s.npz", "logit").values[:, :, 0]
    assert values[0, 3] == pytest.approx(24 * math.log(2), rel=1e-6)
    assert values[1, 3] == pytest.approx(-149 * math.log(2), rel=1e-6)
    assert np.count_nonzero(values) == 2
    assert imported.n_pairs == 1
    assert "2 of 46 probabilities" in imported.notes[0]


@pytest.mark.parametrize("dtype", ["float16", ">f4", "float64"])
@pytest.mark.parametrize("views", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_logits_equal_a_loop(dtype: str, views: bool, order: Any, tmp_path: Path) -> None:
    logits, membership, labels = draw()
    logits = logits.astype(dtype)
    save(tmp_path / "in" / "logits.npy", np.asarray(logits if views else logits[:, :, 0], order=order))
    save(tmp_path / "in" / "membership.npy", np.asarray(membership.astype(np.int8), order=order))
    save(tmp_path / "in" / "labels.npy", labels)
    imported = import_signals("arrays", tmp_path / "in", tmp_path / "s.npz")
    check(imported, tmp_path / "s.npz", naive(logits if views else logits[:, :, :1], labels), membership, labels)


@pytest.mark.parametrize("views", [True, False])
def test_arrays_of_probabilities_equal_a_loop(views: bool, tmp_path: Path) -> None:
    logits, membership, labels = draw()
    expected = naive(logits, labels) if views else naive(logits[:, :, :1], labels)
    probabilities = 1 / (1 + np.exp(-expected))
    save(tmp_path / "in" / "probabilities.npy", probabilities if views else probabilities[:, :, 0])
    save(tmp_path / "in" / "membership.npy", membership)
    imported = import_signals("arrays", tmp_path / "in", tmp_path / "s.npz")
    check(imported, tmp_path / "s.npz", expected, membership, None)


def test_logits_that_a_softmax_would_round_stay_apart(tmp_path: Path) -> None:
    save(tmp_path / "logits.npy", np.array([[[500.0, 0.0], [501.0, 0.0]]]))
    save(tmp_path / "membership.npy", np.array([[True, False]]))
    save(tmp_path / "labels.npy", np.array([0, 0]))
    import_signals("arrays", tmp_path, tmp_path / "s.npz")
    assert read_signals(tmp_path / "s.npz").values.ravel().tolist() == [500.0, 501.0]


def test_pairs_are_counted_wherever_they_stand(tmp_path: Path) -> None:
    logits, membership, labels = draw()
    membership[1:4] = [membership[0], ~membership[0], ~membership[0]]
    membership[4] = membership[0]
    membership[11] = ~membership[7]
    imported = import_signals("lira", lira(tmp_path / "exp", logits, membership, labels), tmp_path / "s.npz")
    assert imported.n_pairs == 3


# Blocks, bytes, memory -----------------------------------------------------------------------------------------------


def test_blocks_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does where they begin in the name of a bad value."""
    logits, membership, labels = draw()
    folder = lira(tmp_path / "exp", logits, membership, labels)
    import_signals("lira", folder, tmp_path / "whole.npz")
    monkeypatch.setattr("plmia.signals.importers._BLOCK", 2 * VIEWS * CLASSES)
    import_signals("lira", folder, tmp_path / "blocks.npz")
    assert (tmp_path / "blocks.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    logits[5, 6, 2, 1] = np.nan
    lira(folder, logits, membership, labels)
    with pytest.raises(SignalsError, match=r"0000000100.npy of experiment-5_12 .* nan .*\b6, view 2, class 1"):
        import_signals("lira", folder, tmp_path / "blocks.npz")


def test_one_model_is_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plmia.signals.importers._BLOCK", 1 << 12)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(16, 20_000, 1, 5)).astype(np.float32)
    folder = lira(tmp_path / "exp", logits, rng.random((16, 20_000)) < 0.5, rng.integers(0, 5, 20_000))
    whole = logits.nbytes
    del logits
    tracemalloc.start()
    import_signals("lira", folder, tmp_path / "s.npz")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Signals of one model, membership twice, labels and blocks; the logits are 6.4 MB and all signals 1.3 MB.
    assert peak < 0.3 * whole


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="counts resident pages as Linux shows them")
def test_what_was_read_of_mapped_files_is_given_back(tmp_path: Path) -> None:
    folder = lira(tmp_path / "exp", *draw())
    found = find_models("lira", folder)

    def resident() -> int:
        text = Path("/proc/self/smaps").read_text()
        sizes = re.findall(rf"{folder}/\S*/logits/.*\n(?:.*\n)*?Rss: +(\d+) kB", text)
        assert len(sizes) == MODELS
        return sum(map(int, sizes))

    assert sum(float(output.values.sum()) for output in found.outputs) != 0
    assert resident() > 0
    write_signals(found, tmp_path / "s.npz")
    assert resident() == 0


def test_every_model_is_ticked(tmp_path: Path) -> None:
    ticks = []
    folder = lira(tmp_path / "exp", *draw())
    found = find_models("lira", folder)
    write_signals(found, tmp_path / "s.npz", lambda steps, name: ticks.append((steps, name)))
    assert ticks == [(1, f"experiment-{model}_12") for model in range(12)]


# Untrusted files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["y_train.npy", "experiment-1_12/keep.npy", "experiment-1_12/logits/0000000100.npy"])
def test_every_damaged_byte_of_a_header_is_an_error_or_harmless(name: str, tmp_path: Path) -> None:
    folder = lira(tmp_path / "exp", *draw())
    path = folder / name
    good = path.read_bytes()
    for place in range(128):
        for value in (0, 32, good[place] ^ 1, ord("O"), ord("9")):
            path.write_bytes(good[:place] + bytes([value]) + good[place + 1 :])
            try:
                import_signals("lira", folder, tmp_path / "s.npz")
            except PlmiaError as error:
                assert str(tmp_path) in str(error) or "record" in str(error)  # noqa: PT017
    for length in (0, 5, 60, 127, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(SignalsError, match=path.name):
            import_signals("lira", folder, tmp_path / "s.npz")
    path.write_bytes(good + b"\0")
    with pytest.raises(SignalsError, match=r"longer than its header says"):
        import_signals("lira", folder, tmp_path / "s.npz")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    folder = lira(tmp_path / "exp", *draw())
    for name in ("y_train.npy", "experiment-1_12/keep.npy", "experiment-1_12/logits/0000000100.npy"):
        good = (folder / name).read_bytes()
        np.save(folder / name, np.array([Bomb()], dtype=object), allow_pickle=True)
        with pytest.raises(SignalsError, match=r"holds pickled objects, which could run code and are never loaded"):
            import_signals("lira", folder, tmp_path / "s.npz")
        (folder / name).write_bytes(good)
    assert not (tmp_path / "exploded").exists()


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lira(tmp_path / "exp", *draw())

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("plmia.signals.importers._confidences", full)
    with pytest.raises(OutputError, match=r"cannot be written \(No space left on device\)"):
        import_signals("lira", folder, tmp_path / "a" / "b" / "s.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exp"]


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(SignalsError, match=rf"importer .no-such-format.: choose from {', '.join(IMPORTERS)}"):
        import_signals("no-such-format", tmp_path, tmp_path / "s.npz")
