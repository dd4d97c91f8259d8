"""Audits of data frames and CSV files: columns by name, equal numbers from every library, names in the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

import plmia
from plmia.auditing.audited_data import Columns, audited_data, group_column
from plmia.data.dataset import LabelledData
from plmia.errors import DataError, RecipeError
from plmia.training.engines import Inline, LocalProcesses
from plmia.training.views import View

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pytest.importorskip("pyarrow")

# Notes on copies and missing values.
pytestmark = pytest.mark.filterwarnings("ignore::plmia.errors.PlmiaWarning")

N = 240


def patients() -> Any:
    """Several rows per patient, categories, missing values, and labels that depend on age and ward."""
    rng = np.random.default_rng(0)
    age, ward = rng.integers(18, 90, N).astype(float), rng.choice(["A", "B", "ICU"], N)
    sick = age / 90 + (ward == "ICU") + rng.normal(0, 0.4, N) > 0.8
    age[rng.random(N) < 0.1] = np.nan
    return pandas.DataFrame(
        {
            "patient": [f"P{k:03d}" for k in rng.integers(0, 120, N)],
            "age": age,
            "ward": np.where(rng.random(N) < 0.1, None, ward),
            "weight": rng.normal(75, 12, N).round(1),
            "readmitted": np.where(sick, "yes", "no"),
        }
    )


PIPELINE = make_pipeline(
    make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["ward"]),
        (SimpleImputer(), ["weight", "age"]),
    ),
    DecisionTreeClassifier(),
)


def audit(X: Any, y: Any = "readmitted", **more: Any) -> plmia.Audit:
    options = {"references": 4, "engine": Inline(), "attacks": ["rmia"], "progress": False} | more
    return plmia.audit(PIPELINE, X, y, **options)


def signals(found: plmia.Audit) -> Any:
    return [np.load(path) for path in sorted(Path(found.folder, "signals").rglob("*.npy")) if "label" not in path.name]


@pytest.mark.parametrize(
    ("form", "engine"),
    [
        ("polars", LocalProcesses(2)),
        ("polars", Inline()),
        ("pyarrow", Inline()),
        ("csv", Inline()),
        ("values", Inline()),
        ("parquet", Inline()),
    ],
)
def test_every_form_gives_the_same_numbers(form: str, engine: Any, tmp_path: Path) -> None:
    frame = patients()
    first = audit(frame, groups="patient", folder=tmp_path / "pandas")
    table: Any = frame
    named: dict[str, Any] = {"label": "readmitted", "group": "patient"}
    if form == "polars":
        table = polars.from_pandas(frame)
    elif form == "pyarrow":
        table = polars.from_pandas(frame).to_arrow()
    elif form == "csv":
        table = tmp_path / "patients.csv"
        frame.to_csv(table, index=False, na_rep="?")
    elif form == "parquet":
        table = tmp_path / "patients.parquet"
        frame.to_parquet(table)
    else:
        table, named = frame.drop(columns=["readmitted", "patient"]), {"groups": list(frame["patient"])}
    second = audit(
        table, frame["readmitted"] if form == "values" else None, engine=engine, folder=tmp_path / "other", **named
    )
    assert second.auc("rmia") == first.auc("rmia")
    for one, other in zip(signals(first), signals(second), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_pipeline_by_names_equals_the_array_encoded_by_hand(tmp_path: Path) -> None:
    frame = patients()
    # A missing ward is a category of its own to scikit-learn's encoder.
    wards = [(frame["ward"] == ward).to_numpy() for ward in ("A", "B", "ICU")]
    encoded = np.stack([*wards, frame["ward"].isna(), frame["weight"], frame["age"]], axis=1).astype(float)
    by_hand = make_pipeline(SimpleImputer(), DecisionTreeClassifier())
    options: dict[str, Any] = {"references": 4, "engine": Inline(), "attacks": ["rmia"], "progress": False}
    y = frame["readmitted"] == "yes"
    array = plmia.audit(by_hand, encoded, y, groups=frame["patient"], folder=tmp_path / "array", **options)
    table = audit(frame, groups="patient", folder=tmp_path / "table")
    for one, other in zip(signals(array), signals(table), strict=True):
        np.testing.assert_array_equal(one, other)


def test_names_reach_the_results_and_the_report(tmp_path: Path) -> None:
    frame = patients()
    found = audit(
        frame, groups="patient", unit="record", folder=tmp_path / "run", show_records=True, title="Ward study"
    )
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "<h1>Ward study</h1>" in page
    assert '"classes":{"0":"no","1":"yes"}' in page
    assert '"group":["P' in page
    assert "weight = " in page
    about = json.loads((tmp_path / "run" / "metrics.json").read_text())["about"]
    assert about["class_names"] == ["no", "yes"]
    plmia.report(found)
    assert '"classes":{"0":"no","1":"yes"}' in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_names_and_texts_may_be_given(tmp_path: Path) -> None:
    rng, y = np.random.default_rng(0), np.arange(120) % 2
    names: dict[str, Any] = {"class_names": ["well", "ill"], "feature_names": ["left", "right"]}
    options: dict[str, Any] = {"references": 4, "engine": Inline(), "show_records": True, "attacks": ["rmia"]}
    X = rng.normal(y[:, None], 1, (120, 2))
    plmia.audit(DecisionTreeClassifier(), X, y, folder=tmp_path / "a", **names, **options)
    page = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert '"0":"well"' in page
    assert "left = " in page
    texts = [f"note {i}" for i in range(120)]
    plmia.audit(DecisionTreeClassifier(), X, y, folder=tmp_path / "b", texts=texts, **options)
    assert '"text":"note ' in (tmp_path / "b" / "report.html").read_text(encoding="utf-8")


def test_the_report_of_a_table_file_is_written_again(tmp_path: Path) -> None:
    frame = patients()
    frame.to_csv(tmp_path / "patients.csv", index=False)
    found = audit(tmp_path / "patients.csv", None, label="readmitted", group="patient", folder=tmp_path / "run")
    plmia.report(found, data=tmp_path / "patients.csv", label="readmitted", group="patient", show_records=True)
    assert "weight = " in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    with pytest.raises(DataError, match="digest"):
        plmia.report(found, data=tmp_path / "patients.csv", label="readmitted")


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"y": "readmited"}, DataError, "did you mean 'readmitted'"),
        ({"groups": "patien"}, DataError, "did you mean 'patient'"),
        ({"drop": ["wieght"]}, DataError, "did you mean 'weight'"),
        ({"label": "ward"}, DataError, "both y and label"),
        ({"X": np.zeros((N, 2))}, DataError, "no named columns"),
        ({"X": LabelledData(np.zeros((N, 2)), np.arange(N) % 2)}, DataError, "own labels"),
        ({"views": [View(scale=0.1)]}, RecipeError, "view noise.* is for arrays, but the data are a table"),
        ({"y": None}, RecipeError, "no labels"),
    ],
)
def test_wrong_columns_are_refused_before_training(change: Any, kind: Any, words: str, tmp_path: Path) -> None:
    given = {"X": patients(), "folder": tmp_path / "run"} | change
    with pytest.raises(kind, match=words):
        audit(given.pop("X"), **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ["y", "groups", "members"])
def test_values_with_the_index_in_another_order_are_refused(what: str) -> None:
    frame = patients()
    y = pandas.Series(np.arange(N) % 2)
    given = {"y": y, "groups": pandas.Series(np.arange(N) // 2), "members": pandas.Series(np.arange(N) < N // 2)}
    given[what] = given[what].sample(frac=1, random_state=0)
    fitted = DecisionTreeClassifier().fit(np.arange(2 * N).reshape(N, 2), y)
    with pytest.raises(DataError, match=rf"{what}.*\.loc\[X\.index\]"):
        plmia.audit(DecisionTreeClassifier(), frame, **given, target=fitted, references=4, progress=False)


def test_doubled_columns_are_named() -> None:
    frame = patients()
    doubled = pandas.concat([frame, frame[["age"]]], axis=1)
    with pytest.raises(DataError, match="2 columns of X are named 'age'"):
        plmia.audit(DecisionTreeClassifier(), doubled, "ward", references=4, progress=False)


def repeated(n: int = N) -> Any:
    """A table with a number of the patient and a text about the stay, both of several rows per patient."""
    rng = np.random.default_rng(0)
    frame = patients().assign(patient_id=rng.integers(1000, 1100, n), stay=np.arange(n) // 7)
    frame["note"] = [f"came on day {k} and was sent home" for k in range(n)]
    return frame


@pytest.mark.parametrize("copy", ["readmitted", "flag", "code"])
def test_a_column_that_gives_the_label_away_is_refused_before_training(copy: str) -> None:
    frame = patients()
    y = frame["readmitted"]
    frame["flag"], frame["code"] = y == "yes", np.where(y == "yes", 7.5, -1.0)
    others = {"readmitted", "flag", "code"} - {copy}
    with pytest.raises(DataError, match=f"column '{copy}' of X") as error:
        audit(frame, y, drop=sorted(others))
    assert f"drop='{copy}'" in str(error.value)
    assert audited_data(frame, y, columns=Columns(drop=("readmitted", "flag", "code"))).data.n_classes == 2
    # A column that is wrong once is a feature.
    frame.loc[N - 1, copy] = frame.loc[int(np.argmax(y != y[N - 1])), copy]
    assert copy in audited_data(frame, y, columns=Columns(drop=sorted(others))).data.X.names


def test_a_column_that_equals_values_to_predict_is_refused() -> None:
    frame = patients().drop(columns="age")
    with pytest.raises(DataError, match="column 'weight' of X equals y"):
        audited_data(frame, frame["weight"].to_numpy(), values=True)
    # All weights and all identifiers may be distinct: that alone gives nothing away.
    assert audited_data(frame, np.random.default_rng(0).normal(size=N), values=True).data.y is not None


@pytest.mark.parametrize(("columns", "named"), [(["patient"], "patient"), (["patient_id"], "patient_id"), ([], None)])
def test_a_forgotten_group_is_noted(columns: list[str], named: str | None) -> None:
    frame = repeated()[["age", "ward", "weight", "stay", "note", "readmitted", *columns]]
    data = audited_data(frame, "readmitted").data
    note = group_column(data, None)
    assert (note is not None) == (named is not None)
    if note is not None:
        assert (note.code, note.severity) == ("group-column", "info")
        assert f"--group {named} (" in note.text


def test_members_that_cut_no_patient_are_a_caution_without_groups() -> None:
    frame = repeated()
    data = audited_data(frame, "readmitted", columns=Columns(drop=["patient"])).data
    whole = frame["patient_id"].to_numpy() % 2 == 0
    note = group_column(data, None, whole)
    assert note is not None
    assert note.severity == "caution"
    assert "'patient_id'" in note.text
    assert group_column(data, None, np.random.default_rng(1).random(N) < 0.5) is None
    assert group_column(data, np.arange(N), whole) is None
    plan = {"references": 4, "engine": Inline(), "progress": False, "attacks": ["rmia"]}
    conf = np.random.default_rng(0).normal(whole, 1, N)
    found = plmia.audit(PIPELINE, frame, "readmitted", target=plmia.GivenTarget(whole, conf), **plan)
    assert "group-column" in {note.code for note in found.result.notes if note.severity == "caution"}
    screened = plmia.screen(frame, "readmitted", target=plmia.GivenTarget(whole, conf), progress=False)
    assert "group-column" in {note.code for note in screened.result.notes if note.severity == "caution"}


def test_groups_that_stay_among_the_features_are_a_caution() -> None:
    frame = patients()
    given = audited_data(frame, "readmitted", frame["patient"]).data
    note = group_column(given, given.groups)
    assert note is not None
    assert (note.code, note.severity) == ("group-column", "caution")
    named = audited_data(frame, "readmitted", "patient").data
    assert group_column(named, named.groups) is None


@pytest.mark.parametrize("given", [{"y": ["readmitted"]}, {"y": "readmitted", "groups": ["patient"]}])
def test_a_list_of_one_name_is_refused_with_the_name(given: dict[str, Any]) -> None:
    name = "groups='patient'" if "groups" in given else "y='readmitted'"
    with pytest.raises(DataError, match=name):
        audited_data(patients(), **given)


def test_a_frame_without_a_label_is_refused_with_how_to_name_one() -> None:
    with pytest.raises(RecipeError, match=r"plmia\.audit\(model, X, 'COLUMN'\)"):
        audit(patients(), None)


def test_columns_may_be_named_by_whole_numbers() -> None:
    """Whole numbers name columns, not rows, in whatever order they are."""
    values = np.random.default_rng(0).normal(size=(4, 4))
    frame = pandas.DataFrame(values, columns=[2, 0, 3, 1])
    data = LabelledData.of_table(frame, np.arange(4) % 2)
    np.testing.assert_array_equal(data.rows().to_numpy(), values)
    chosen = LabelledData.of_table(frame.assign(y=[0, 1, 0, 1]), "y", drop=["0"])
    np.testing.assert_array_equal(chosen.rows().to_numpy(), values[:, [0, 2, 3]])


@pytest.mark.parametrize("text", [b"", b"\n", b"\xef\xbb\xbf\n \n"])
def test_an_empty_file_is_named(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(text)
    with pytest.raises(DataError, match=r"data\.csv is empty"):
        plmia.audit(DecisionTreeClassifier(), tmp_path / "data.csv", label="y")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("patients.txt", r"patients\.txt is not a table by its name.*\.csv"),
        ("patients.npz", r"patients\.npz is not a CSV or Parquet file.*own labels"),
        ("patients.xlsx", r"patients\.xlsx is a spreadsheet.*CSV"),
    ],
)
def test_columns_of_a_file_that_is_no_table_are_refused_with_its_name(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("y,a\nno,1\nyes,2\n", encoding="utf-8")
    with pytest.raises(DataError, match=words):
        audited_data(tmp_path / name, "y")


def test_a_misspelt_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no .*patients\.cvs"):
        audited_data(tmp_path / "patients.cvs", "y")
