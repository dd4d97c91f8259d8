"""From a CSV file to a report with one command, and the same numbers from data frames.

Adult and Diabetes are looked for in the folder that the environment variable PLMIA_DATA names, or else in `shared/data`
beside the repository, as arrays that hold their raw columns; a table of the same kind is always there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

import plmia
from plmia.training.engines import Inline

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pytest.importorskip("pyarrow")
pytest.importorskip("lightgbm")
pytestmark = pytest.mark.filterwarnings("ignore::plmia.errors.PlmiaWarning")

Run = Callable[..., click.testing.Result]
LABELS = {"adult": ["<=50K", ">50K"], "diabetes130": ["NO", ">30", "<30"]}
ROWS = 1500


def made_up() -> Any:
    """Patients with several rows each, categories, missing values and labels as text."""
    rng = np.random.default_rng(0)
    ward, age = rng.choice(["?", "A", "B", "ICU"], ROWS), rng.integers(18, 90, ROWS)
    sick = age / 90 + (ward == "ICU") + rng.normal(0, 0.5, ROWS) > 0.9
    return pandas.DataFrame(
        {
            "patient_nbr": rng.integers(10**6, 10**6 + ROWS // 2, ROWS),
            "age": age,
            "dose": np.where(rng.random(ROWS) < 0.1, "", rng.normal(5, 1, ROWS).round(2)),
            "ward": ward,
            "seen": [f"20{k:02d}-05-01" for k in rng.integers(10, 24, ROWS)],
            "label": np.where(sick, ">30", "NO"),
        }
    )


def raw(name: str, repository: Path) -> Any:
    """The first rows of a set with its original texts; `?` marks missing values."""
    if name == "made up":
        return made_up()
    folder = Path(os.environ.get("PLMIA_DATA", repository.parent / "shared" / "data"))
    path = next((place for place in (folder / f"{name}.npz", folder.parent / f"{name}.npz") if place.exists()), None)
    if path is None:
        pytest.skip(f"{name}.npz is not at hand")
    with np.load(path) as held:
        order = np.argsort(held["patient"], kind="stable")[:ROWS] if "patient" in held else slice(ROWS)
        columns = {"patient_nbr": held["patient"][order]} if "patient" in held else {}
        columns |= {str(title): held["X_num_raw"][order, k] for k, title in enumerate(held["num_names"])}
        for k, title in enumerate(held["cat_names"]):
            columns[str(title)] = np.array(str(held["cat_vocab"][k]).split("|"))[held["X_cat_raw"][order, k]]
        return pandas.DataFrame(columns | {"label": np.array(LABELS[name])[held["y"][order]]})


@pytest.mark.parametrize("name", ["made up", "adult", "diabetes130"])
def test_one_command_from_a_csv_to_a_report(name: str, command: Run, repository: Path, tmp_path: Path) -> None:
    frame = raw(name, repository)
    frame.to_csv(tmp_path / "raw.csv", index=False)
    group = ["--group", "patient_nbr"] if "patient_nbr" in frame else []
    options = ["--recipe", "gbdt?rounds=10", "--references", "4", "--attack", "lira-fixed", "--workers", "1"]
    given = ["audit", "--data", tmp_path / "raw.csv", "--label", "label", *group, *options, "-o", tmp_path / "run"]
    done = command(*given, "--show-records")
    assert done.exit_code == 0, done.output
    assert "written as '?'" in done.output
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["about"]["class_names"] == sorted(frame["label"].unique())
    assert metrics["about"].get("groups") == (frame["patient_nbr"].nunique() if group else None)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "% of records)" in page
    assert "age = " in page or "age missing" in page

    # As users read the file themselves; text that is no number stays text in both libraries.
    again = pandas.read_csv(tmp_path / "raw.csv", na_values=["?", ""], keep_default_na=False)
    again = again.assign(**{c: pandas.to_datetime(again[c]) for c in again.columns if c == "seen"})
    names: dict[str, Any] = {"label": "label", "group": "patient_nbr" if group else None}
    for table in (again, polars.from_pandas(again), polars.from_pandas(again).to_arrow()):
        found = plmia.audit(
            "gbdt?rounds=10", table, references=4, attacks=["lira-fixed"], engine=Inline(), progress=False, **names
        )
        assert found.auc("lira-fixed") == metrics["attacks"]["lira-fixed"]["auc"]["mean"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["--label", "patient_nbr, age, dose, ward, seen, label"]),
        (["--label", "labels"], ["'labels'", "did you mean 'label'?"]),
        (["--label", "label", "--group", "patient"], ["'patient'", "did you mean 'patient_nbr'?"]),
        (["--label", "label", "--drop", "wards"], ["'wards'", "did you mean 'ward'?"]),
        (["--label", "patient_nbr"], ["'patient_nbr'", "1 record"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options: list[str], words: list[str], command: Run, tmp_path: Path) -> None:
    made_up().to_csv(tmp_path / "raw.csv", index=False)
    done = command("audit", "--data", tmp_path / "raw.csv", "--recipe", "gbdt", "-o", tmp_path / "run", *options)
    assert done.exit_code == 2
    assert done.output.count("\n") == 1
    assert all(word in done.output for word in words), done.output
    assert not (tmp_path / "run").exists()
