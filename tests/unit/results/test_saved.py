"""Results read back: nothing that was damaged, edited, mixed up or made up passes, and nothing ends in a traceback."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmia.attacks.attack import ATTACKS
from plmia.cli.terminal import show_result
from plmia.errors import OutputError, PlmiaError
from plmia.evaluation.targets import Setup
from plmia.reporting import Extras, figures, write_report
from plmia.results.folder import run_attacks
from plmia.results.result import RunResult
from plmia.results.saved import SavedRun, seal
from plmia.signals.signals import Signals

NAMES = ("rmia", "pl-mia", "pl-mia-eb")
# More places and other seeds were tried by hand; drawing takes long.
SEED, PLACES = 3, 100
Edit = Callable[[dict[str, Any]], object]


def score(signals: Signals, folder: Path, seed: int = 0) -> RunResult:
    attacks = [ATTACKS[name] for name in NAMES]
    return run_attacks(signals, attacks, [0, 3], Setup(population=100, seed=seed), folder)


@pytest.fixture(scope="module")
def signals(simulate_signals: Callable[..., Signals]) -> Signals:
    return simulate_signals(0, models=18, points=700)


@pytest.fixture(scope="module")
def folder(signals: Signals, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results")
    score(signals, path)
    return path


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "run")
    return tmp_path / "run"


def metrics_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return found


def unsealed(folder: Path, change: Edit = lambda _: None) -> None:
    """Write results as schema 1 has them, without digests: what is left are the checks of the values themselves."""
    metrics = metrics_of(folder)
    metrics["schema"] = 1
    del metrics["digests"]
    change(metrics)
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")


def test_what_was_written_is_verified_and_read_back(folder: Path) -> None:
    saved = SavedRun(folder)
    assert saved.verified
    assert saved.result.schema == 2
    parts = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("scores.npz", "records.csv")}
    assert saved.result.digests is not None
    assert {name: saved.result.digests[name] for name in parts} == parts
    assert seal(saved.result, parts) == saved.result, "the digest of metrics.json does not depend on an earlier one"


def test_a_result_that_was_just_written_is_not_read_back(copied: Path, signals: Signals) -> None:
    written = SavedRun(copied).result
    whole = (copied / "metrics.json").read_bytes()
    (copied / "metrics.json").write_text("not JSON", encoding="utf-8")
    saved = SavedRun(copied, written)
    assert saved.verified
    assert not saved.still_there(), "the folder holds something else by now"
    with pytest.raises(OutputError, match="another run"):
        write_report(saved, Extras(signals=signals))
    (copied / "metrics.json").write_bytes(whole)
    assert saved.still_there()
    assert saved.records().columns() == SavedRun(copied).records().columns()


def test_the_digest_of_metrics_json_is_the_documented_one(folder: Path) -> None:
    metrics = metrics_of(folder)
    digest = metrics["digests"].pop("self")
    text = json.dumps(metrics, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == digest


def replace_auc(metrics: dict[str, Any]) -> None:
    metrics["attacks"]["pl-mia"]["auc"]["mean"] = 0.19


def replace_digest(metrics: dict[str, Any]) -> None:
    metrics["digests"]["scores.npz"] = "0" * 64


@pytest.mark.parametrize(
    "change",
    [
        replace_auc,
        replace_digest,
        lambda metrics: metrics["verdict"].update(text="No leak was shown."),
        lambda metrics: metrics.pop("digests"),
        lambda metrics: metrics["digests"].pop("self"),
        lambda metrics: metrics["digests"].update(self=None),
        lambda metrics: metrics.update(more=1),
    ],
)
def test_an_edited_metrics_json_is_refused(copied: Path, change: Edit) -> None:
    metrics = metrics_of(copied)
    change(metrics)
    (copied / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    with pytest.raises(OutputError, match="damaged"):
        SavedRun(copied)


def test_files_of_another_run_are_refused(copied: Path, signals: Signals, tmp_path: Path) -> None:
    score(signals, tmp_path / "other", seed=1)
    for name in ("scores.npz", "records.csv", "metrics.json"):
        shutil.copytree(copied, tmp_path / f"mixed {name}")
        shutil.copy(tmp_path / "other" / name, tmp_path / f"mixed {name}" / name)
        with pytest.raises(OutputError, match="is not the one that metrics"):
            SavedRun(tmp_path / f"mixed {name}")
    (copied / "records.csv").unlink()
    assert SavedRun(copied).verified, "nothing reads records.csv, and its owner may not want to keep it"


def test_results_of_schema_1_are_read_but_not_verified(copied: Path, folder: Path) -> None:
    unsealed(copied, lambda metrics: metrics.update(notes=["A sentence."]))
    saved = SavedRun(copied)
    assert not saved.verified
    assert saved.auc("pl-mia") == SavedRun(folder).auc("pl-mia")
    with pytest.raises(OutputError, match="cannot be verified"):
        saved.require_verified()
    assert "Not verified" in write_report(copied).read_text(encoding="utf-8")


# Damage --------------------------------------------------------------------------------------------------------------


def everything(saved: SavedRun) -> dict[str, bytes]:
    """All arrays that can be read."""
    found = {} if saved.labels is None else {"labels": saved.labels.tobytes()}
    for target in saved.targets:
        for name in ("population", "queries", "members"):
            found[f"{name}/{target}"] = getattr(saved, name)(target).tobytes()
        for attack in saved.attacks:
            scores = saved.scores(attack, target)
            parts = (scores.score, scores.log10_p, scores.log10_p_conformal, scores.statistic)
            found[f"{attack}/{target}"] = b"".join(part.tobytes() for part in parts)
    return found


@pytest.mark.parametrize("kept", [True, False], ids=["with digests", "without digests"])
def test_one_flipped_bit_of_the_scores_changes_no_number(copied: Path, kept: bool) -> None:
    if not kept:
        unsealed(copied)
    path = copied / "scores.npz"
    whole, expected = path.read_bytes(), everything(SavedRun(copied))
    assert max(entry.file_size for entry in zipfile.ZipFile(path).infolist()) > 4096
    rng = np.random.default_rng(0)
    directory = whole.index(b"PK\x01\x02")
    # Headers are a small part of the file, and the part where a bit means most.
    at = [*rng.integers(0, len(whole), 200), *rng.integers(directory, len(whole), 200), *rng.integers(0, 400, 200)]
    refused = 0
    for place in at:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            assert everything(SavedRun(copied)) == expected, place
        except OutputError:
            refused += 1
    assert refused == len(at) if kept else refused > len(at) // 2


def test_a_cut_off_file_is_refused(copied: Path) -> None:
    for name in ("scores.npz", "metrics.json", "records.csv"):
        whole = (copied / name).read_bytes()
        for length in (0, 1, len(whole) // 2, len(whole) - 2):
            (copied / name).write_bytes(whole[:length])
            with pytest.raises(OutputError, match="damaged"):
                SavedRun(copied)
        (copied / name).write_bytes(whole)
    assert SavedRun(copied).verified


def arrays_of(folder: Path) -> dict[str, Any]:
    with np.load(folder / "scores.npz") as archive:
        return {name: archive[name] for name in archive.files}


def two_in_one(arrays: dict[str, Any]) -> None:
    arrays["queries/0"][0] = arrays["queries/0"][1]


def of_both(arrays: dict[str, Any]) -> None:
    arrays["queries/0"][0] = arrays["population/0"][0]


def beyond(arrays: dict[str, Any]) -> None:
    arrays["queries/0"][0] = 700


def below(arrays: dict[str, Any]) -> None:
    arrays["population/0"][0] = -1


def a_member(arrays: dict[str, Any]) -> None:
    arrays["members/0"][arrays["population/0"][0]] = True


def one_fewer(arrays: dict[str, Any]) -> None:
    arrays["queries/0"] = arrays["queries/0"][1:]


def not_finite(arrays: dict[str, Any]) -> None:
    arrays["rmia/0/score"][5] = np.nan


def above_one(arrays: dict[str, Any]) -> None:
    arrays["rmia/0/log10_p_conformal"][5] = 0.1


def too_short(arrays: dict[str, Any]) -> None:
    arrays["rmia/0/score"] = arrays["rmia/0/score"][:-1]


def of_texts(arrays: dict[str, Any]) -> None:
    arrays["rmia/0/score"] = np.array(["a"] * 700)


def a_table(arrays: dict[str, Any]) -> None:
    arrays["rmia/0/score"] = arrays["rmia/0/score"][:, None]


def whole_labels(arrays: dict[str, Any]) -> None:
    arrays["labels"] = arrays["labels"].astype(float)


def missing(arrays: dict[str, Any]) -> None:
    del arrays["rmia/0/score"]


def unknown(arrays: dict[str, Any]) -> None:
    arrays["labelz"] = arrays.pop("labels")


CHANGES = [two_in_one, of_both, beyond, below, a_member, one_fewer, not_finite, above_one, too_short, of_texts, a_table]
CHANGES += [whole_labels, missing, unknown]


@pytest.mark.parametrize("change", CHANGES)
def test_arrays_that_cannot_be_are_refused(copied: Path, change: Edit) -> None:
    """Their checksums are right: somebody wrote them so."""
    unsealed(copied)
    arrays = arrays_of(copied)
    change(arrays)
    np.savez(copied / "scores.npz", **arrays)
    with pytest.raises(OutputError, match="damaged"):
        SavedRun(copied).records("rmia", 0)


def test_hostile_archives_are_refused(copied: Path) -> None:
    unsealed(copied)
    arrays = arrays_of(copied)
    np.savez_compressed(copied / "scores.npz", **arrays)
    with pytest.raises(OutputError, match="compressed"):
        SavedRun(copied).records()
    np.savez(copied / "scores.npz", **arrays)
    with zipfile.ZipFile(copied / "scores.npz", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("labels.npy", b"")
    with pytest.raises(OutputError, match="two arrays of one name"):
        SavedRun(copied)
    arrays["rmia/0/score"] = np.array([{"a": 1}] * 700)
    np.savez(copied / "scores.npz", **arrays)
    with pytest.raises(OutputError, match="damaged"):
        SavedRun(copied).scores("rmia", 0)


# The schema ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '"text"',
        "[" * 100_000,
        '{"a":' * 100_000,
        "\ufeff{}",
        "{}" * 2,
        '{"schema": NaN}',
        '{"schema": 1e400}',
        '{"schema": ' + "9" * 5000 + "}",
        '{"schema": 1, "schema": 2}',
        '{"schema": 3}',
        '{"schema": true}',
    ],
    ids=lambda text: text[:12],
)
def test_other_json_is_one_sentence(copied: Path, text: str) -> None:
    (copied / "metrics.json").write_text(text, encoding="utf-8")
    with pytest.raises(OutputError, match="damaged") as caught:
        SavedRun(copied)
    assert len(str(caught.value)) < 400
    (copied / "metrics.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OutputError, match="damaged"):
        SavedRun(copied)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a JSON value has parts; of lists only the ends."""
    yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*path, key))
    elif isinstance(value, list) and value:
        for i in {0, len(value) - 1}:
            yield from places(value[i], (*path, i))


WRONG: list[Any] = [None, True, -1, 0, 1.5, 10**400, "a", "\ud800", "0.5", [], [1], [[]], {}, {"a": {}}, {"1": None}]


def test_whatever_stands_in_metrics_json_readers_say_it_in_one_sentence(
    copied: Path, signals: Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values of every other kind at every place, without digests: what passes the schema can be shown and drawn."""
    original = metrics_of(copied)
    rng = np.random.default_rng(SEED)
    every = [place for place in places(original) if place]
    # One of many places that are alike: the same path but for the attack, the target, the rule and the level.
    alike = {tuple("*" if isinstance(k, int) or "." in k or k in NAMES else k for k in place): place for place in every}
    assert len(alike) > 200
    passed = 0
    for number in rng.permutation(len(alike))[:PLACES]:
        place = list(alike.values())[number]
        metrics = copy.deepcopy(original) | {"schema": 1}
        del metrics["digests"]
        if place[0] == "digests":
            continue
        parent: Any = metrics
        for key in place[:-1]:
            parent = parent[key]
        if isinstance(parent, dict) and rng.random() < 0.25:
            del parent[place[-1]]
        else:
            parent[place[-1]] = WRONG[int(rng.integers(len(WRONG)))]
        try:
            (copied / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
            saved = SavedRun(copied)
        except OutputError:
            continue
        passed += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # values may be too large to draw
                show_result(saved.result, copied, verbose=True)
                assert saved._repr_html_()
                assert saved.columns()
                figures(saved, Extras(signals=signals))
                if number % 8 == 0:
                    write_report(saved, Extras(signals=signals))
        except PlmiaError:
            pass
        except Exception as error:
            raise AssertionError(
                f"{place} as {parent.get(place[-1]) if isinstance(parent, dict) else parent!r}"
            ) from error
    assert passed > PLACES // 10
    capsys.readouterr()


def test_a_name_or_number_of_another_run_is_found(folder: Path) -> None:
    for change in (
        lambda metrics: metrics["verdict"].update(attack="lira"),
        lambda metrics: metrics["about"].update(targets=[0]),
        lambda metrics: metrics["about"].update(targets=[0, 0]),
        lambda metrics: metrics["attacks"]["rmia"]["per_target"].pop(),
        lambda metrics: metrics["verdict"].update(interval=None),
        lambda metrics: metrics.update(notes=[{"code": "made-up", "severity": "info", "text": "a"}]),
        lambda metrics: metrics.update(notes=[{"code": "groups", "severity": "awful", "text": "a"}]),
    ):
        metrics = metrics_of(folder)
        change(metrics)
        with pytest.raises(ValueError, match=r"."):
            RunResult.from_json(metrics)
