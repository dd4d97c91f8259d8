"""Training on a machine that has numpy and torch alone, and merging what it made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plmia import SignalStore
from plmia.signals.store import sealed
from plmia.training.recipes.named import parse_recipe, recipe_from_json

if os.environ.get("CI") != "true":
    pytest.importorskip("torch", reason="the recipe is torch's")

COMMAND = [sys.executable, "-c", "from plmia.cli.main import main; main(prog_name='plmia')"]
# Whatever the other machine lacks cannot be imported.
BARE = """
import sys
for name in ("scipy", "sklearn", "click", "rich", "lightgbm", "ray", "threadpoolctl"):
    sys.modules[name] = None
from plmia.training.remote_worker import main
main()
"""
OPTIONS = ["--recipe", "mlp?widths=16&epochs=3&batch=32", "--references", "4", "--seed", "5"]


def write_data(folder):
    rng = np.random.default_rng(0)
    y = np.arange(301) % 3
    np.savez(folder / "data.npz", X=rng.normal(size=(301, 6)) + y[:, None], y=y)
    return folder / "data.npz"


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Stacks of all models, trained once."""
    folder = tmp_path_factory.mktemp("trained")
    write_data(folder)
    run(
        [
            sys.executable,
            "-c",
            BARE,
            "--data",
            str(folder / "data.npz"),
            *OPTIONS,
            "--last",
            "1",
            "-o",
            str(folder / "s"),
        ]
    )
    run([sys.executable, "-c", BARE, "--data", str(folder / "data.npz"), *OPTIONS, "-o", str(folder / "s")])
    return folder / "s"


@pytest.fixture
def stacks(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "stacks"))


def run(words, **more):
    result = subprocess.run(words, capture_output=True, text=True, check=False, **more)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_models_trained_elsewhere_equal_those_trained_here(tmp_path: Path, data: Path):
    bare = [sys.executable, "-c", BARE, "--data", str(data), *OPTIONS, "-o", str(tmp_path / "stacks")]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    assert "model 1" in run([*bare, "--last", "1"], env=one_thread)
    assert "model 1" not in run(bare, env=one_thread), "finished models are not trained again"
    audit = [*COMMAND, "audit", "--data", str(data), *OPTIONS, "--attack", "attack-r", "--quiet"]
    run([*audit, "--merge", str(tmp_path / "stacks"), "-o", str(tmp_path / "merged")])
    run([*audit, "--workers", "1", "-o", str(tmp_path / "here")])
    merged, here = (SignalStore.open(tmp_path / name / "signals") for name in ("merged", "here"))
    assert merged.key == here.key
    np.testing.assert_array_equal(merged.read(), here.read())


def test_a_target_and_references_of_another_recipe_are_merged(tmp_path: Path, data: Path):
    options = [*OPTIONS, "--references-recipe", "mlp?widths=8&epochs=2&batch=32"]
    bare = [sys.executable, "-c", BARE, "--data", str(data), *options, "-o", str(tmp_path / "stacks")]
    run([*bare, "--last", "1"])
    assert "model 0" not in run(bare), "finished models are not trained again"
    audit = [*COMMAND, "audit", "--data", str(data), "--attack", "attack-r", "--quiet"]
    run([*audit, *options, "--merge", str(tmp_path / "stacks"), "-o", str(tmp_path / "merged")])
    run([*audit, *options, "--workers", "1", "-o", str(tmp_path / "here")])
    merged, here = (SignalStore.open(tmp_path / name / "signals") for name in ("merged", "here"))
    assert merged.key == here.key
    np.testing.assert_allclose(merged.read(), here.read(), rtol=1e-5, atol=1e-5)
    widths = [merged.finished()[model]["recipe"]["widths"] for model in range(5)]
    assert widths == [[16], [8], [8], [8], [8]]
    # With one recipe, this is another audit.
    refused = [*audit, *OPTIONS, "--merge", str(tmp_path / "stacks"), "-o", str(tmp_path / "one")]
    assert subprocess.run(refused, capture_output=True, check=False).returncode == 2


def test_stacks_of_another_audit_are_refused(tmp_path: Path, data: Path):
    run([sys.executable, "-c", BARE, "--data", str(data), *OPTIONS, "-o", str(tmp_path / "stacks")])
    other = [*COMMAND, "audit", "--data", str(data), *OPTIONS[:-1], "6", "--merge", str(tmp_path / "stacks")]
    result = subprocess.run([*other, "-o", str(tmp_path / "run")], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "text",
    ["mlp?widths=64,32&epochs=3", "gbdt?depth=5", "wide-resnet?depth=10", "sklearn:RandomForestClassifier?max_depth=3"],
)
def test_a_recipe_survives_json(tmp_path: Path, text: str):
    recipe = parse_recipe(text)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe.to_json()), encoding="utf-8")
    assert parse_recipe(str(path)) == recipe == recipe_from_json(recipe.to_json())


@pytest.mark.parametrize(
    ("junk", "edited"),
    [
        ({"train_accuracy": 7}, False),
        ({"seconds": "long"}, False),
        ({"losses": ["low"]}, False),
        ({"versions": {"numpy": "\ud800"}}, False),
        ({"note": "x" * (1 << 20)}, False),
        ({"train_accuracy": 0.75}, True),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
def test_junk_provenance_is_not_merged(tmp_path: Path, data: Path, stacks: Path, junk: dict, edited: bool):
    """Neither of a stack that its writer made so, nor of one that was edited; once it is right, it is taken in."""
    path = max(stacks.glob("stack-*.json"))
    good = path.read_bytes()
    about = json.loads(good)
    about["provenance"][-1] |= junk
    bare = {name: value for name, value in about.items() if name not in ("schema", "digest")}
    path.write_bytes(json.dumps(about).encode() if edited else sealed(bare))
    audit = [*COMMAND, "audit", "--data", str(data), *OPTIONS, "--attack", "attack-r", "--quiet"]
    audit += ["--merge", str(stacks), "-o", str(tmp_path / "run")]
    result = subprocess.run(audit, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert path.name in result.stderr
    assert len(result.stderr.splitlines()) == 1
    store = SignalStore.open(tmp_path / "run" / "signals")
    assert store.finished() == {}
    path.write_bytes(good)
    assert store.import_npy(stacks) == list(range(5))


def test_a_merge_from_a_folder_whose_name_is_not_unicode(tmp_path: Path, data: Path, stacks: Path):
    odd = tmp_path / os.fsdecode(b"stacks\xff")
    try:
        stacks.rename(odd)
    except OSError:
        pytest.skip("the file system refuses such names")
    audit = [*COMMAND, "audit", "--data", str(data), *OPTIONS, "--attack", "attack-r", "--merge", str(odd)]
    done = subprocess.run([*audit, "-o", str(tmp_path / "run")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").exists()
