"""`plmia screen` from the shell: files, exit codes, and what the other commands say of a screening."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

Run = Callable[..., click.testing.Result]
N = 1_500


@pytest.fixture
def files(tmp_path: Path) -> Callable[[float], tuple[Path, Path]]:
    """Write the signals of one model and its data; members are ``shift`` more confident."""

    def write(shift: float) -> tuple[Path, Path]:
        rng = np.random.default_rng(5)
        X, y, members = rng.normal(size=(N, 3)), rng.integers(0, 2, size=N), rng.random(N) < 0.5
        conf = 3 * X[:, 0] + y + rng.normal(size=N) + shift * members
        np.savez(tmp_path / "signals.npz", signals=conf[None], membership=members[None], labels=y)
        np.savez(tmp_path / "data.npz", X=X, y=y)
        return tmp_path / "signals.npz", tmp_path / "data.npz"

    return write


def test_a_leak_is_shown_from_one_model(files: Any, command: Run, tmp_path: Path) -> None:
    signals, data = files(2.0)
    out = tmp_path / "out"
    found = command("screen", signals, "--data", data, "-o", out)
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("A leak was shown")
    assert found.stdout.count("cannot show its absence") == 1
    assert "no references" in found.stdout
    assert "attack-p-conditional" in found.stdout
    for name in ("metrics.json", "scores.npz", "records.csv", "report.html"):
        assert stat.S_IMODE((out / name).stat().st_mode) == 0o600
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["about"]["references"] == [0]
    assert metrics["verdict"]["status"] == "leak"
    assert command("report", out).exit_code == 0


def test_quantile_regression_runs_if_it_is_named(files: Any, command: Run, tmp_path: Path) -> None:
    signals, data = files(2.0)
    found = command(
        "screen", signals, "--data", data, "-o", tmp_path / "out", "--attack", "quantile-regression", "--json"
    )
    assert found.exit_code == 0, found.output
    metrics = json.loads(found.stdout)
    assert list(metrics["attacks"]) == ["quantile-regression"]
    assert metrics["attacks"]["quantile-regression"]["auc"]["mean"] > 0.7
    assert metrics["verdict"]["status"] == "leak"


def test_without_a_leak_it_is_inconclusive(files: Any, command: Run, tmp_path: Path) -> None:
    signals, data = files(0.0)
    found = command("screen", signals, "--data", data, "-o", tmp_path / "out", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["verdict"]["status"] == "inconclusive"


def test_the_gate_fails_a_shown_leak_and_decides_nothing_else(files: Any, command: Run, tmp_path: Path) -> None:
    limits = ("--max-tpr", 0.05, "--at-fpr", 0.01)
    for shift, code, word in ((2.0, 3, "FAIL"), (0.0, 2, "UNDECIDED")):
        signals, data = files(shift)
        out = tmp_path / f"out-{shift}"
        assert command("screen", signals, "--data", data, "-o", out, "--quiet").exit_code == 0
        decided = command("gate", out, *limits)
        assert decided.exit_code == code
        assert decided.output.startswith(word)
    lenient = command("gate", tmp_path / "out-2.0", "--max-tpr", 0.99, "--at-fpr", 0.01)
    assert lenient.exit_code == 2
    assert "--accept" not in command("gate", tmp_path / "out-0.0", *limits).stdout
    accepted = command("gate", tmp_path / "out-0.0", *limits, "--accept", "screening")
    assert accepted.exit_code == 2
    assert "references" in accepted.output


def test_two_screenings_can_be_compared(files: Any, command: Run, tmp_path: Path) -> None:
    for shift in (2.0, 0.0):
        signals, data = files(shift)
        assert command("screen", signals, "--data", data, "-o", tmp_path / f"{shift}", "--quiet").exit_code == 0
    compared = command("compare", tmp_path / "2.0", tmp_path / "0.0")
    assert compared.exit_code == 0, compared.output
    assert "attack-p-conditional" in compared.stdout


def test_a_model_is_given_by_its_predictions(files: Any, command: Run, tmp_path: Path) -> None:
    signals, data = files(2.0)
    with np.load(signals) as arrays:
        conf, members, y = arrays["signals"][0], arrays["membership"][0], arrays["labels"]
    p = 1 / (1 + np.exp(-np.where(y == 1, conf, -conf)))
    lines = ["p_0,p_1", *(f"{1 - one!r},{one!r}" for one in p.tolist())]
    (tmp_path / "predictions.csv").write_text("\n".join(lines))
    (tmp_path / "members.csv").write_text("\n".join(["member", *map(str, members.astype(int))]))
    given = ("--data", data, "--target", tmp_path / "predictions.csv", "--members", tmp_path / "members.csv")
    found = command("screen", *given, "-o", tmp_path / "given", "--json")
    assert found.exit_code == 0, found.output
    plain = command("screen", signals, "--data", data, "-o", tmp_path / "plain", "--json")
    first, second = (json.loads(one.stdout)["attacks"] for one in (found, plain))
    for name in ("attack-p", "attack-p-conditional"):
        assert first[name]["auc"]["mean"] == pytest.approx(second[name]["auc"]["mean"], abs=1e-4)
    page = (tmp_path / "given" / "report.html").read_text()
    assert "an existing model" in page
    assert "References&#39; accuracy" not in page


def test_a_csv_with_text_missing_values_and_a_column_of_members(command: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    x, town, members = rng.normal(size=N), rng.choice(["Ulm", "Bonn", ""], size=N), rng.random(N) < 0.5
    ill = np.where(rng.random(N) < 0.5, "yes", "no")
    logit = 2 * x + 2.0 * (town == "Ulm") + rng.normal(size=N) + 2.0 * members
    p = 1 / (1 + np.exp(-logit))  # of the true label
    (tmp_path / "patients.csv").write_text(
        "\n".join(
            [
                "x,town,ill,split",
                *(f"{a:.4f},{b},{c},{int(d)}" for a, b, c, d in zip(x, town, ill, members, strict=True)),
            ]
        )
    )
    rows = (f"{a!r},{1 - a!r}" if c == "no" else f"{1 - a!r},{a!r}" for a, c in zip(p.tolist(), ill, strict=True))
    (tmp_path / "predictions.csv").write_text("\n".join(["no,yes", *rows]))
    data = ("--data", tmp_path / "patients.csv", "--label", "ill", "--members", "split")
    found = command("screen", *data, "--target", tmp_path / "predictions.csv", "-o", tmp_path / "out", "--json")
    assert found.exit_code == 0, found.output
    metrics = json.loads(found.stdout)
    assert metrics["verdict"]["status"] == "leak"
    assert metrics["about"]["class_names"] == ["no", "yes"]
    assert "records-tell-members" not in {note["code"] for note in metrics["notes"]}  # the split is not a feature
    conditional, plain = (metrics["attacks"][name]["auc"]["mean"] for name in ("attack-p-conditional", "attack-p"))
    assert conditional > plain + 0.05


@pytest.mark.parametrize("verb", ["score", "plan"])
def test_verbs_that_need_references_point_to_the_screening(verb: str, files: Any, command: Run, tmp_path: Path) -> None:
    signals, _ = files(1.0)
    options = ("-o", tmp_path / "out") if verb == "score" else ()
    found = command(verb, signals, *options)
    assert found.exit_code == 2
    assert "plmia screen" in found.output
    assert "Traceback" not in found.output


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--attack", "rmia"), "rmia"),
        (("--attack", "attack-p-conditional"), "--data"),
        (("--target", "3"), "target 3"),
        (("--target", "p.csv"), "p.csv"),
        (("--members", "m.csv"), "members"),
        (("--population", "5000"), "5000"),
    ],
)
def test_bad_input_is_one_sentence(
    options: tuple[str, ...], named: str, files: Any, command: Run, tmp_path: Path
) -> None:
    signals, _ = files(1.0)
    found = command("screen", signals, "-o", tmp_path / "out", *options)
    assert found.exit_code == 2
    assert named in found.output
    assert "Traceback" not in found.output
    assert len(found.output.strip().splitlines()) == 1
    assert not (tmp_path / "out" / "metrics.json").exists()


def test_neither_signals_nor_data_is_a_usage_error(command: Run, tmp_path: Path) -> None:
    found = command("screen", "-o", tmp_path / "out")
    assert found.exit_code == 2
    assert "--members" in found.output


def test_data_without_a_model_is_one_sentence(files: Any, command: Run, tmp_path: Path) -> None:
    _, data = files(1.0)
    found = command("screen", "--data", data, "-o", tmp_path / "out")
    assert found.exit_code == 2
    assert "target" in found.output


def test_the_help_states_the_defaults_of_a_screening(command: Run) -> None:
    words = " ".join(command("screen", "--help").output.split())
    assert "half of them by default" in words
    assert "a quarter of them" not in words
    assert "the references they need" not in words
