"""Whole audits from Python: three lines, targets that exist already, folders that are gone on with, early refusals."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from rich.console import Console
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.compose import make_column_transformer
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import plmia
from plmia.auditing import progress
from plmia.auditing.given_target import GivenTarget
from plmia.auditing.progress import Meter
from plmia.auditing.run import AuditPlan, _Accuracies, open_store, run_audit, score_run, train_run
from plmia.data.dataset import LabelledData
from plmia.data.designs import MembershipDesign
from plmia.errors import (
    DataError,
    OutputError,
    PlmiaError,
    PlmiaWarning,
    PopulationError,
    RecipeError,
    ReferencesError,
    StoreError,
    TrainingError,
)
from plmia.signals.store import SignalStore
from plmia.training.engines import Inline, LocalProcesses
from plmia.training.recipes.function import Function
from plmia.training.recipes.gbdt import GBDT
from plmia.training.recipes.recipe import Recipe, Trained
from plmia.training.recipes.scikit import Sklearn
from plmia.training.train import default_engine, shared_data
from plmia.training.views import View

N = 120
RNG = np.random.default_rng(0)
Y = np.arange(N) % 3
X = RNG.normal(Y[:, None], 1.0, (N, 4))


@dataclass(frozen=True)
class Leaky(Recipe):
    """Trains nothing: members are more confident by ``leak``. Notes the seeds it is asked for."""

    leak: float = 6.0
    calls: list[int] = field(default_factory=list, compare=False)
    name: ClassVar[str] = "leaky"
    stack: ClassVar[int] = 1

    def to_json(self) -> dict[str, Any]:
        return {"recipe": self.name, "leak": self.leak}

    def check(self, data: LabelledData) -> None:
        if data.is_images:
            raise RecipeError("leaky is for tables")

    def train(
        self, data: LabelledData, members: Any, seeds: Sequence[int], views: Sequence[View], keep_weights: bool = False
    ) -> list[Trained]:
        self.calls.extend(seeds)
        noise = [np.random.default_rng(seed).normal(0, 1, (data.n_points, len(views))) for seed in seeds]
        return [
            Trained((rest + self.leak * row[:, None]).astype(np.float32), 1.0, 0.5)
            for row, rest in zip(members, noise, strict=True)
        ]


def contents(folder: Path) -> dict[str, str]:
    """Digest of every file below, but for times in records."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def audit(model: Any, folder: Path, **more: Any) -> plmia.Audit:
    given = {"X": X, "y": Y, "references": 8, "engine": Inline(), "attacks": [plmia.PL_MIA, plmia.RMIA]} | more
    return plmia.audit(model, given.pop("X"), given.pop("y"), folder=folder, **given)


# Three lines ---------------------------------------------------------------------------------------------------------


def test_three_lines_in_a_script_are_enough(tmp_path: Path, without_progress: Callable[[str], str]) -> None:
    """Nothing guards the script's main part: processes must not run it again."""
    (tmp_path / "script.py").write_text(
        "import plmia, sklearn.datasets, sklearn.tree\n"
        "X, y = sklearn.datasets.load_digits(return_X_y=True)\n"
        "print(plmia.audit(sklearn.tree.DecisionTreeClassifier(), X, y, references=4).auc('rmia'))\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, env=environment, timeout=120
    )
    assert without_progress(done.stderr) == ""
    assert done.stdout.count("\n") == 1
    assert float(done.stdout) > 0.55


def test_the_result_is_what_the_folder_says(tmp_path: Path) -> None:
    found = audit(DecisionTreeClassifier(), tmp_path / "run")
    assert found.folder == tmp_path / "run"
    contents = found.result.to_json()
    assert contents == json.loads((tmp_path / "run/metrics.json").read_text())
    assert found.auc() == contents["attacks"]["pl-mia"]["auc"]["mean"]
    assert found.auc("rmia") == contents["attacks"]["rmia"]["auc"]["mean"]
    assert found.tpr(0) == contents["attacks"]["pl-mia"]["tpr"]["0"]["mean"]
    for fpr, key, needed in [(1e-4, "0.0001", "10,000"), (0.001, "0.001", "1,000"), (0.01, "0.01", "100")]:
        assert not contents["attacks"]["pl-mia"]["tpr"][key]["resolved"]
        with pytest.raises(OutputError, match=rf"{key} needs {needed} .* 30"):
            found.tpr(fpr)
    about = contents["about"]
    assert about["audit"]["data"] == LabelledData(X, Y).digest
    digest = SignalStore.open(tmp_path / "run/signals").fingerprint()
    assert about["signals"] == {"sha256": digest, "models": 9, "points": N, "views": 1}
    assert about["train_accuracy"] == 1.0
    assert 0.3 < about["test_accuracy"] < 1
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "figures",
        "metrics.json",
        "records.csv",
        "report.html",
        "scores.npz",
        "signals",
        "trainings.csv",
    ]


def test_leaks_are_found_and_their_absence_too(tmp_path: Path) -> None:
    assert audit(Leaky(leak=8.0), tmp_path / "a").auc() > 0.95
    assert 0.3 < audit(Leaky(leak=0.0), tmp_path / "b").auc() < 0.7


def test_a_folder_is_made_where_none_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = plmia.audit(Leaky(), X, Y, references=4, engine=Inline())
    assert found.folder.parent == tmp_path
    assert (found.folder / "scores.npz").exists()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (GaussianNB(), "sklearn"),
        ("sklearn:GaussianNB", "sklearn"),
        (Sklearn(GaussianNB()), "sklearn"),
        ("gbdt?rounds=3", "gbdt"),
        (GBDT(rounds=3), "gbdt"),
    ],
)
def test_a_model_is_an_object_a_recipe_or_a_name(model: Any, name: str, tmp_path: Path) -> None:
    if name == "gbdt":
        pytest.importorskip("lightgbm")
    found = audit(model, tmp_path / "run", references=4)
    assert found.result.to_json()["about"]["audit"]["recipe"]["recipe"] == name


def test_a_class_is_not_an_object(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"GaussianNB is a class: give an object, GaussianNB\(\)"):
        audit(GaussianNB, tmp_path / "run")


# Going on ------------------------------------------------------------------------------------------------------------


def test_the_same_again_trains_nothing_and_writes_the_same(tmp_path: Path) -> None:
    recipe = Leaky()
    audit(recipe, tmp_path / "run")
    before = contents(tmp_path)
    assert len(recipe.calls) == 9
    audit(recipe, tmp_path / "run")
    assert len(recipe.calls) == 9
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"X": X + 1e-9}, "the data changed"),
        ({"y": np.roll(Y, 1)}, "the data changed"),
        ({"groups": np.arange(N) // 2}, "the data changed"),
        ({"model": Leaky(leak=2.0)}, "recipe option leak: 6.0 there, 2.0 here"),
        ({"model": GaussianNB()}, "recipe leaky there, sklearn:GaussianNB here"),
        ({"seed": 1}, "seed 0 there, 1 here"),
        ({"views": [View(), View(scale=0.1)]}, "views identity there, identity;"),
        (
            {"target": GivenTarget(np.arange(N) < 60, np.arange(60.0, 60 - N, -1))},
            "target trained there, of your own here",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_audit_is_refused_and_nothing_is_lost(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    recipe = Leaky()
    audit(recipe, tmp_path / "run")
    before = contents(tmp_path)
    with pytest.raises(StoreError) as error:
        audit(change.pop("model", recipe), tmp_path / "run", **change)
    assert f"{tmp_path}/run/signals belongs to another audit" in str(error.value)
    assert named in str(error.value)
    assert "was not changed" in str(error.value)
    assert contents(tmp_path) == before


def test_more_references_extend_the_folder_and_fewer_use_a_part(tmp_path: Path) -> None:
    recipe, whole = Leaky(), Leaky()
    audit(whole, tmp_path / "whole", references=12)
    audit(recipe, tmp_path / "run", references=8)
    small = (tmp_path / "run/metrics.json").read_bytes()
    audit(recipe, tmp_path / "run", references=12)
    assert recipe.calls == whole.calls
    for name in ("metrics.json", "scores.npz", "signals/signals.npy"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    audit(recipe, tmp_path / "run", references=8)
    assert (tmp_path / "run/metrics.json").read_bytes() == small
    assert len(recipe.calls) == 13


def test_attacks_and_mode_may_change(tmp_path: Path) -> None:
    recipe = Leaky()
    audit(recipe, tmp_path / "run")
    found = audit(recipe, tmp_path / "run", attacks=[plmia.LIRA], mode="offline", population=10)
    assert list(found.result.attacks) == ["lira"]
    assert found.result.about.mode == "offline"
    assert len(recipe.calls) == 9


def test_rows_of_a_group_go_together(tmp_path: Path) -> None:
    groups = np.arange(N) // 4
    audit(Leaky(), tmp_path / "run", groups=groups)
    matrix = SignalStore.open(tmp_path / "run/signals").design.matrix
    by_group = matrix.reshape(9, -1, 4)
    assert (by_group == by_group[:, :, :1]).all()
    assert matrix.any(axis=1).all()
    assert not matrix.all(axis=1).any()


@pytest.mark.parametrize("kind", ["pairs", "halves", "exact"])
def test_designs_by_kind(kind: Any, tmp_path: Path) -> None:
    assert audit(Leaky(), tmp_path / "run", design=kind, references=24).auc() > 0.95
    matrix = SignalStore.open(tmp_path / "run/signals").design.matrix
    assert (matrix[0].sum(), matrix.shape) == (N // 2, (25, N))
    assert (matrix[1::2] == ~matrix[2::2]).all() == (kind == "pairs")
    assert (matrix[1:].sum(axis=0) == 12).all() == (kind != "halves")
    for other in {"pairs", "halves", "exact"} - {kind}:
        with pytest.raises(StoreError, match=f"design {kind} there, {other} here"):
            audit(Leaky(), tmp_path / "run", design=other, references=24)


def test_a_design_of_ones_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    matrix = rng.random((9, N)) < 0.5
    matrix[1:5] = [[True], [False], [True], [False]] ^ matrix[1:2]
    audit(Leaky(), tmp_path / "run", design=MembershipDesign(matrix))
    np.testing.assert_array_equal(SignalStore.open(tmp_path / "run/signals").design.matrix, matrix)
    with pytest.raises(DataError, match=r"design has shape \(9, 120\) .* need \(7, 120\)"):
        audit(Leaky(), tmp_path / "other", design=MembershipDesign(matrix), references=6)
    matrix[2, 5] ^= True
    with pytest.raises(StoreError, match="design of your own there, another here"):
        audit(Leaky(), tmp_path / "run", design=MembershipDesign(matrix))


def test_a_design_of_ones_own_that_reveals_membership_is_balanced_or_refused(tmp_path: Path) -> None:
    """Exactly half of the models per record, the target among them: what is left is checked before training."""
    rng = np.random.default_rng(0)
    found = audit(Leaky(), tmp_path / "run", design=plmia.exact_k_per_point(N, 9, 4, rng), references=8)
    assert found.result.about.references == (7,)
    with pytest.raises(ReferencesError, match=r"would have 0 IN or OUT references, the attacks need 2"):
        audit(Leaky(), tmp_path / "other", design=plmia.exact_k_per_point(N, 4, 1, rng), references=3)
    assert not (tmp_path / "other").exists()


# Targets that exist already ------------------------------------------------------------------------------------------

GIVEN = np.random.default_rng(5).permutation(N) < 60
PAIRED = np.arange(N) // 2
NOISE = np.random.default_rng(6).normal(0, 1, N)


class Unsure(GaussianNB):  # type: ignore[misc]
    """Answers NaN at one point."""

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of all points but one."""
        return np.where(np.arange(len(X))[:, None] == 7, np.nan, super().predict_proba(X))


def test_a_targets_signals_can_be_given(tmp_path: Path) -> None:
    conf = np.random.default_rng(6).normal(0, 1, N) + 6 * GIVEN
    recipe = Leaky()
    found = audit(recipe, tmp_path / "run", target=GivenTarget(GIVEN, conf))
    assert len(recipe.calls) == 8
    assert found.auc() > 0.9
    store = SignalStore.open(tmp_path / "run/signals")
    np.testing.assert_array_equal(store.read([0])[0, :, 0], conf.astype(np.float32))
    np.testing.assert_array_equal(store.design.matrix[0], GIVEN)
    assert store.finished()[0]["given"] is True
    # The references are those of an audit that trains its target.
    audit(Leaky(), tmp_path / "other")
    np.testing.assert_array_equal(
        store.design.matrix[1:], SignalStore.open(tmp_path / "other/signals").design.matrix[1:]
    )
    # The same again goes on; another target does not.
    assert audit(recipe, tmp_path / "run", target=GivenTarget(GIVEN, conf)).result == found.result
    for other in (GivenTarget(GIVEN, conf + 1), GivenTarget(np.roll(GIVEN, 1), conf)):
        with pytest.raises(StoreError, match="target "):
            audit(recipe, tmp_path / "run", target=other)


def test_a_targets_model_can_be_given(tmp_path: Path) -> None:
    fitted = DecisionTreeClassifier(random_state=0).fit(X[GIVEN].astype(np.float32), Y[GIVEN])
    found = audit(DecisionTreeClassifier(), tmp_path / "run", target=GivenTarget(GIVEN, model=fitted))
    assert found.auc("rmia") > 0.6
    store = SignalStore.open(tmp_path / "run/signals")
    p = fitted.predict_proba(X.astype(np.float32))[np.arange(N), Y]
    assert ((store.read([0])[0, :, 0] > 0) == (p > 0.5)).all()
    assert len(store.finished()) == 9


IDS = (20_000_000 + np.arange(N))[:, None]


class ById(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Knows its members by their ids, in steps that differ from id to id; refuses what is no integer."""

    def fit(self, X: Any, y: Any) -> ById:
        assert X.dtype == np.int64
        self.classes_, self.known_ = np.unique(y), dict(zip(X[:, 0].tolist(), y.tolist(), strict=True))
        return self

    def predict_proba(self, X: Any) -> Any:
        assert X.dtype == np.int64
        p = np.full((len(X), 3), 0.2)
        for row, key in zip(p, X[:, 0].tolist(), strict=True):
            row[self.known_.get(key, key % 3)] += 0.2 + (key - 20_000_000) / 1000
        return p / p.sum(axis=1, keepdims=True)


def test_a_given_model_is_asked_for_x_as_it_was_given(tmp_path: Path) -> None:
    members = np.arange(N) % 4 < 2
    fitted = ById().fit(IDS[members], Y[members])
    found = audit(ById(), tmp_path / "run", X=IDS, target=GivenTarget(members, model=fitted))
    conf = plmia.SignalStore.open(tmp_path / "run/signals").signals().values[0]
    assert len(np.unique(conf)) == N
    assert found.result.about.given_target


class Rounded(DecisionTreeClassifier):  # type: ignore[misc]
    """Adds up to a little more than 1 at the first three points."""

    def predict_proba(self, X: Any) -> Any:
        p = super().predict_proba(X)
        p[:3] *= 0.996
        return p


@pytest.mark.parametrize("given", [False, True], ids=["trained", "given"])
def test_renormalised_rows_are_counted_and_said(given: bool, tmp_path: Path) -> None:
    members = np.arange(N) % 4 < 2
    kind, rows = (Rounded(max_depth=3), 3 * 9)
    target = None
    if given:
        kind, rows = DecisionTreeClassifier(max_depth=3), 3
        target = GivenTarget(members, model=Rounded(max_depth=3).fit(X[members], Y[members]))
    found = audit(kind, tmp_path / "run", target=target)
    (note,) = (note for note in map(str, found.result.notes) if "renormalised" in note)
    assert f"rows: {rows}, largest deviation: 0.004" in note
    records = plmia.SignalStore.open(tmp_path / "run/signals").finished()
    assert [records[model]["n_renormalised"] for model in range(3)] == ([3, 0, 0] if given else [3, 3, 3])
    assert records[0]["sum_error"] == pytest.approx(0.004)


def test_what_a_recipe_does_to_the_data_stands_in_the_notes(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="120 distinct values of column 0 become 61"):  # before training, too
        found = audit("mlp?epochs=1&widths=4", tmp_path / "run", X=IDS)
    assert any("120 distinct values of column 0 become 61" in str(note) for note in found.result.notes)


def test_a_pandas_frame_is_audited_as_a_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b", "c", "d"])
    chosen = make_column_transformer((StandardScaler(), ["a", "d"]))
    members = np.arange(N) % 4 < 2
    way = make_pipeline(chosen, DecisionTreeClassifier(max_depth=3))
    target = GivenTarget(members, model=clone(way).fit(frame[members], Y[members]))
    found = audit(way, tmp_path / "run", X=frame, target=target, engine=plmia.LocalProcesses(2))
    array = audit(
        make_pipeline(make_column_transformer((StandardScaler(), [0, 3])), DecisionTreeClassifier(max_depth=3)),
        tmp_path / "array",
        X=X,
        target=GivenTarget(members, conf=plmia.SignalStore.open(tmp_path / "run/signals").signals().values[0]),
    )
    assert found.auc("rmia") == array.auc("rmia")


def test_a_targets_signals_in_several_views(tmp_path: Path) -> None:
    views = [View(), View(scale=0.1)]
    conf = np.random.default_rng(6).normal(0, 1, (N, 2))
    audit(Leaky(), tmp_path / "run", views=views, target=GivenTarget(GIVEN, conf))
    np.testing.assert_array_equal(SignalStore.open(tmp_path / "run/signals").read([0])[0], conf.astype(np.float32))


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (lambda: GivenTarget(GIVEN), ".conf. or its model"),
        (lambda: GivenTarget(GIVEN, np.zeros(N), GaussianNB()), ".conf. or its model"),
        (lambda: GivenTarget(GIVEN.astype(int), np.zeros(N)), "members have shape .120,. and type int64: a bool"),
        (lambda: GivenTarget(GIVEN[:-1], np.zeros(N)), r"members have shape \(119,\)"),
        (lambda: GivenTarget(GIVEN.tolist(), np.zeros(N + 1)), r"\(121,\).*120 records"),
        (lambda: GivenTarget(GIVEN, np.zeros((N, 3))), r"\(120, 3\).* 1 view"),
        (lambda: GivenTarget(GIVEN, np.where(np.arange(N) == 7, np.nan, 0)), "nan at record 7"),
        (lambda: GivenTarget(GIVEN, model=GaussianNB()), "GaussianNB.*fitted"),
        (lambda: GivenTarget(GIVEN, model="forest"), "leaky cannot query.*str"),
        (
            lambda: GivenTarget(GIVEN, model=GaussianNB().fit(X[:, :2], Y)),
            "predict_proba of GaussianNB raised ",
        ),
        (lambda: GivenTarget(GIVEN, model=GaussianNB().fit(X[:, :2], Y)), "X has 4 features, .*; give a model"),
        (
            lambda: GivenTarget(GIVEN, model=Unsure().fit(X, Y)),
            "predict_proba returned NaN for record 7 of the given target",
        ),
        (
            lambda: GivenTarget(GIVEN, np.linspace(0, 1, N)),
            r"conf.*\[0, 1\], like probabilities",
        ),
        (lambda: GivenTarget(GIVEN, np.full(len(GIVEN), 3.0)), "signals are the same at all records"),
        (lambda: GivenTarget(np.zeros(N, bool), NOISE), "trained on none of the 120 records"),
        (lambda: GivenTarget(np.ones(N, bool), NOISE), "trained on all of the 120 records"),
        (lambda: GivenTarget(np.arange(N) > 2, NOISE), "the target has 3 non-members, 4 are needed to compare with"),
        (lambda: GivenTarget(GIVEN & (Y > 0), NOISE), r"model 0 trains on none of the \d+ records of class 0"),
    ],
)
def test_impossible_targets_are_refused_before_training(target: Any, says: str, tmp_path: Path) -> None:
    recipe = Leaky()
    with pytest.raises(PlmiaError, match=says):
        audit(recipe, tmp_path / "run", target=target())
    assert recipe.calls == []
    assert not (tmp_path / "run").exists()


def test_members_must_not_count_split_groups(tmp_path: Path) -> None:
    recipe, members = Leaky(), np.arange(N) < 61
    members[:4] = [True, False, False, True]
    with pytest.raises(DataError, match="3 of the 60 groups"):
        audit(recipe, tmp_path / "run", target=GivenTarget(members, NOISE), groups=PAIRED)
    assert recipe.calls == []
    few = np.isin(PAIRED, [0, 1, 2], invert=True)
    with pytest.raises(PopulationError, match="the target has 3 non-members"):
        audit(recipe, tmp_path / "run", target=GivenTarget(few, NOISE), groups=PAIRED)


def codes(notes: Any) -> list[str]:
    return [note.code for note in notes]


@pytest.mark.parametrize("groups", [None, PAIRED])
def test_inverted_members_stop_the_audit_before_training(groups: Any, tmp_path: Path) -> None:
    members = np.random.default_rng(5).permutation(N // 2)[PAIRED] < 30
    given = GivenTarget(~members, NOISE - 3 + 6 * members)
    recipe = Leaky()
    with pytest.raises(DataError, match=r"100\.0 %.*inverted"):
        audit(recipe, tmp_path / "run", target=given, groups=groups, attacks=[plmia.PL_MIA])
    assert recipe.calls == []
    assert not (tmp_path / "run").exists()


def test_points_of_one_group_are_one_piece_of_evidence() -> None:
    """A difference that 120 points would show is none of 12 groups of 10."""
    tens = np.arange(N) // 10
    members = tens % 2 == 0
    given = GivenTarget(members, np.where(members & (np.arange(N) % 10 < 5), -2.0, 2.0) + NOISE / 9)
    plans = [AuditPlan(LabelledData(X, Y, groups), Leaky(), 8, (View(),), target=given) for groups in (tens, None)]
    assert ["members-swapped" in codes(plan.notes()) for plan in plans] == [False, True]


def test_another_share_of_members_is_said_and_can_be_had(tmp_path: Path) -> None:
    members = np.random.default_rng(5).permutation(N) < 90
    given = GivenTarget(members, NOISE + 6 * members)
    with pytest.warns(UserWarning, match=r"75 % of the records, its references on 50 %"):
        found = audit(Leaky(), tmp_path / "run", target=given, references=16, design="pairs")
    assert "other-share" in found.result.verdict.doubts
    assert "Train 11 or more references" in found.result.notes[codes(found.result.notes).index("other-share")].text
    found = audit(Leaky(), tmp_path / "other", target=given, references=16)
    assert "other-share" not in found.result.verdict.doubts
    matrix = SignalStore.open(tmp_path / "other/signals").design.matrix
    np.testing.assert_array_equal(matrix[0], members)
    assert (matrix[1:].sum(axis=0) == 12).all()
    assert set(matrix[1:].sum(axis=1)) == {90}
    assert audit(Leaky(), tmp_path / "other", target=given, references=16).result == found.result


@pytest.mark.parametrize(
    ("share", "references", "k"),
    [(0.5, 16, None), (0.54, 16, None), (0.56, 16, 9), (0.9, 32, 28), (0.9, 16, 14), (0.02, 16, 2), (0.75, 3, None)],
)
def test_references_train_on_the_share_of_a_given_target(share: float, references: int, k: int | None) -> None:
    members = np.arange(200) < 200 * share
    given = GivenTarget(members, np.zeros(200))
    assert given.matching_references(references, 2, None) == k
    pairs = np.arange(200) // 2
    assert given.matching_references(references, 2, pairs) == k


@pytest.mark.parametrize(("share", "least"), [(0.6, 1), (0.6, 2), (0.75, 2), (0.3, 4)])
def test_the_named_number_of_references_allows_the_share_of_the_target(share: float, least: int) -> None:
    members = np.arange(200) < 200 * share
    given = GivenTarget(members, np.zeros(200))
    needed = given._matching_from(share, least, None)
    assert needed is not None
    for n in range(needed, 65):
        k = given.matching_references(n, least, None)
        assert k is not None
        assert k / n == pytest.approx(share, abs=0.05)
    k = given.matching_references(needed - 1, least, None)
    assert k is None or abs(k / (needed - 1) - share) > 0.05
    assert GivenTarget(np.arange(200) < 190, np.zeros(200))._matching_from(0.95, least, None) is None


@pytest.mark.parametrize(("references", "severity"), [(2, "caution"), (4, "info"), (16, None)])
def test_too_few_references_to_know_a_given_target_are_said(
    references: int, severity: str | None, tmp_path: Path
) -> None:
    given = GivenTarget(GIVEN, NOISE + 6 * GIVEN)
    found = audit(Leaky(), tmp_path / "run", target=given, references=references, attacks=[plmia.RMIA])
    said = [note.severity for note in found.result.notes if note.code == "likeness-unchecked"]
    assert said == ([severity] if severity else [])


@pytest.mark.parametrize("given", ["model", "conf", None])
def test_the_accuracy_of_the_target_stands_beside_that_of_its_references(given: str | None, tmp_path: Path) -> None:
    fitted = DecisionTreeClassifier(random_state=0).fit(X[GIVEN], Y[GIVEN])
    target = None
    if given is not None:
        target = GivenTarget(GIVEN, model=fitted) if given == "model" else GivenTarget(GIVEN, NOISE + 6 * GIVEN)
    found = audit(DecisionTreeClassifier(), tmp_path / "run", target=target, references=4).result.about.accuracy
    assert found is not None
    assert found.measure == ("true label above one half" if given == "conf" else "accuracy")
    expected = asdict(found.target)
    if given == "model":
        expected = {"members": fitted.score(X[GIVEN], Y[GIVEN]), "non_members": fitted.score(X[~GIVEN], Y[~GIVEN])}
    elif given == "conf":
        right = np.asarray(NOISE + 6 * GIVEN) > 0
        expected = {"members": right[GIVEN].mean(), "non_members": right[~GIVEN].mean()}
    assert asdict(found.target) == pytest.approx(expected)
    assert (found.references.members or 0) > (found.references.non_members or 0)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Target's accuracy" in page or "Target&#39;s accuracy" in page


def test_a_target_of_another_kind_is_unlike_its_references(tmp_path: Path) -> None:
    """References are right and sure at all members and half of the others, the target everywhere."""
    given = GivenTarget(GIVEN, NOISE + 6)
    found = audit(Leaky(), tmp_path / "run", target=given, references=16, attacks=[plmia.PL_MIA])
    assert "answers-unlike-references" in found.result.verdict.doubts
    assert "100.0 % of its members and 100.0 % of its non-members" in repr(found)


# Refusals and warnings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"y": np.zeros(N, int)}, DataError, "only '0'"),
        ({"y": Y[:-1]}, DataError, "X has 120 records, y has 119"),
        (
            {"references": 7},
            ReferencesError,
            "7 references .* complementary pairs: request 6 or 8",
        ),
        ({"references": 0}, ReferencesError, "0 references"),
        ({"X": X.reshape(N, 2, 2)}, RecipeError, "leaky is for tables"),
        ({"views": [View(mirror=True)]}, RecipeError, "view mirror is for images"),
        ({"population": 60}, PopulationError, "population of 60 was asked for, the target has 60 non-mem"),
        ({"population": 1}, PopulationError, "a population of 1 was asked for"),
        ({"references": 2}, ReferencesError, "would have 1 IN or OUT references, the attacks need 2: ask for more"),
        ({"design": "halves", "references": 3}, ReferencesError, "would have 0 IN or OUT references"),
        ({"groups": np.zeros(N, int)}, DataError, "group 0, at least 2"),
    ],
)
def test_bad_input_is_refused_before_training(change: Any, kind: Any, says: str, tmp_path: Path) -> None:
    recipe = Leaky()
    with pytest.raises(kind, match=says):
        audit(recipe, tmp_path / "run", **change)
    assert recipe.calls == []
    assert not (tmp_path / "run").exists()


def test_attacks_that_were_not_asked_for_and_lack_references_are_left_out(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="left out: lira, pl-mia-plus, pl-mia, pl-mia-pooled"):
        found = audit(Leaky(), tmp_path / "run", references=2, attacks=None)
    assert list(found.result.attacks) == ["attack-p", "attack-r", "rmia", "pl-mia-eb"]
    assert set(found.result.skipped) == {"lira", "lira-fixed", "pl-mia-plus", "pl-mia", "pl-mia-pooled"}
    assert (tmp_path / "run/report.html").exists()


def test_a_class_that_some_model_would_not_see_is_named(tmp_path: Path) -> None:
    y = np.where(np.arange(N) < 2, 2, Y % 2)
    with pytest.raises(DataError, match=r"model \d+ trains on none of the 2 records of class 2"):
        audit(Leaky(), tmp_path / "run", y=y)


def test_copies_on_both_sides_are_counted(tmp_path: Path) -> None:
    copied = X.copy()
    copied[60:65] = copied[:5]
    with pytest.warns(UserWarning, match="^10 of 120 records have exact copies on the other side"):
        found = audit(Leaky(), tmp_path / "run", X=copied)
    assert [note.severity for note in found.result.notes if note.code == "split-copies"] == ["caution"]
    together = np.arange(N)
    together[60:65] = together[:5]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        audit(Leaky(), tmp_path / "grouped", X=copied, groups=together)


def test_a_file_in_place_of_the_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(OutputError, match="run is a file"):
        audit(Leaky(), tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


# Engines -------------------------------------------------------------------------------------------------------------


def test_processes_are_the_default_and_this_one_where_they_will_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Sklearn(GaussianNB())
    assert default_engine(recipe, 3) == LocalProcesses(3)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert default_engine(recipe) == LocalProcesses(cores or 1)
    own = Function.of(lambda X, y, seed: 0, lambda model, X, y: 0, key="k")
    assert default_engine(own, 3) == LocalProcesses(3)
    # What the script itself defines travels with its code.
    monkeypatch.setattr(Leaky, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Leaky", Leaky, raising=False)
    assert default_engine(Leaky(), 3) == LocalProcesses(3)
    lock = threading.Lock()
    with pytest.warns(PlmiaWarning, match=r"in this process.*lock.*Inline\(\)") as warned:
        assert default_engine(Function.of(lambda X, y, seed: lock, lambda model, X, y: 0), 3) == Inline()
    assert len(warned) == 1
    # Where the system does not say which cores are ours, the number that is asked for counts as well.
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    assert default_engine(recipe, 3) == LocalProcesses(3)
    assert default_engine(recipe) == LocalProcesses(os.cpu_count() or 1)


def test_processes_and_this_one_give_the_same(tmp_path: Path) -> None:
    plan = AuditPlan(LabelledData(X, Y), Sklearn(GaussianNB()), 4, (View(),))
    for name, engine in [("here", Inline()), ("there", LocalProcesses(2))]:
        run_audit(plan, tmp_path / name, engine)
    for name in ("metrics.json", "scores.npz", "signals/signals.npy"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    assert not list((tmp_path / "there").glob(".data-*"))


def test_weights_of_a_stack_are_kept(tmp_path: Path) -> None:
    mlp = pytest.importorskip("plmia.training.recipes.mlp").MLP
    numpy = pytest.importorskip("safetensors.numpy")
    recipe = mlp(widths=(4,), epochs=1, device="cpu")
    plan = AuditPlan(LabelledData(X, Y), recipe, 4, (View(),))
    run_audit(plan, tmp_path / "run", Inline(), keep_models=True)
    files = sorted((tmp_path / "run/models").iterdir())
    assert [file.name for file in files] == [f"{model:06d}.safetensors" for model in range(5)]
    shapes = {name: array.shape for name, array in numpy.load_file(files[2]).items()}
    assert shapes == {
        "layer0.weight": (4, 4),
        "layer0.bias": (4,),
        "layer1.weight": (3, 4),
        "layer1.bias": (3,),
    }


# Progress ------------------------------------------------------------------------------------------------------------


def test_time_left_does_not_count_what_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress, "LINE_SECONDS", 10.0)
    console = Console(file=io.StringIO(), force_terminal=False, width=100, _environ={})
    with Meter("training", 65, True, console) as meter:
        accuracies = _Accuracies(meter)
        meter.skip(60)
        for model in range(60, 62):
            clock.now += 6
            accuracies.report(model, Trained(np.zeros((1, 1), np.float32), 1.0, 0.5 + 0.1 * (model - 60)))
    assert isinstance(console.file, io.StringIO)
    expected = "training (accuracy 100.0 % train, 55.0 % held out): 95 %, about 0:00:18 left\n"
    assert console.file.getvalue() == expected


def test_a_damaged_record_is_known_before_it_is_replaced(tmp_path: Path) -> None:
    plan = AuditPlan(LabelledData(X, Y), Leaky(), 4, (View(),))
    run_audit(plan, tmp_path, Inline())
    (tmp_path / "signals/records/000002.json").write_text("{}")
    (problem,) = open_store(plan, tmp_path).problems()
    assert "000002.json" in problem


def test_an_audit_that_still_trains_is_not_replaced(tmp_path: Path) -> None:
    data = LabelledData(X, Y)
    plans = [AuditPlan(data, Leaky(leak=leak), 4, (View(),)) for leak in (6.0, 2.0)]
    open_store(plans[0], tmp_path)
    with shared_data(data, tmp_path, LocalProcesses(1)), pytest.raises(StoreError, match="belongs to another audit"):
        open_store(plans[1], tmp_path)
    assert open_store(plans[1], tmp_path).about["recipe"]["leak"] == 2.0


@pytest.mark.parametrize("model", [0, 5])
def test_a_model_that_goes_missing_before_scoring_is_not_passed_over(tmp_path: Path, model: int) -> None:
    plan = AuditPlan(LabelledData(X, Y), Leaky(), 8, (View(),))
    store = train_run(plan, tmp_path / "run", Inline())
    (tmp_path / f"run/signals/records/{model:06d}.json").unlink()
    with pytest.raises(StoreError, match=rf"model {model} .* is not finished: run the audit again"):
        score_run(plan, store, tmp_path / "run")
    assert not (tmp_path / "run/metrics.json").exists()


# Recipes of users' own -----------------------------------------------------------------------------------------------


class Bare:
    """A recipe that does not inherit from `Recipe`, as users write them."""

    name: ClassVar[str] = "bare"
    stack: ClassVar[int] = 1

    def to_json(self) -> dict[str, Any]:
        return {"recipe": self.name}

    def check(self, data: LabelledData) -> None:
        del data

    def train(self, data: Any, members: Any, seeds: Any, views: Any, keep_weights: bool = False) -> list[Trained]:
        return Leaky().train(data, members, seeds, views, keep_weights)


def test_a_recipe_that_does_not_inherit_must_have_every_member(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"Bare lacks .*notes.*Recipe"):
        audit(Bare(), tmp_path / "run")
    assert not (tmp_path / "run").exists()

    class Whole(Bare, Recipe):
        pass

    assert audit(Whole(), tmp_path / "run").auc("rmia") > 0.9


class Reader(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Reads a file that nobody declared."""

    def fit(self, X: Any, y: Any) -> Reader:
        np.load("secret.npy")
        self.fitted_ = GaussianNB().fit(X, y)
        self.classes_ = self.fitted_.classes_
        return self

    def predict_proba(self, X: Any) -> Any:
        return self.fitted_.predict_proba(X)


def test_files_that_a_classifier_reads_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("secret.npy", np.zeros(3))
    found = audit(Reader(), tmp_path / "run", engine=Inline())
    (note,) = (note for note in found.result.notes if note.code == "undeclared-files")
    assert note.severity == "caution"
    assert "secret.npy" in note.text
    declared = audit(Sklearn(Reader(), files=["secret.npy"]), tmp_path / "declared", engine=Inline())
    assert "undeclared-files" not in [note.code for note in declared.result.notes]


def test_a_declared_file_that_changes_during_training_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.zeros(3))
    calls = []

    def train(X: Any, y: Any, seed: int) -> Any:
        calls.append(seed)
        if len(calls) == 3:
            np.save("rows.npy", np.ones(4))
        return GaussianNB().fit(X, y)

    def query(model: Any, X: Any, y: Any) -> Any:
        return model.predict_proba(X)

    recipe = Function.of(train, query, key="mine", files=["rows.npy"])
    with pytest.raises(TrainingError, match=r"rows\.npy"):
        audit(recipe, tmp_path / "run", engine=Inline())
    assert len(SignalStore.open(tmp_path / "run/signals").finished()) == 2


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_the_store_is_private_also_in_a_folder_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    before = os.umask(0)
    try:
        audit(Leaky(), tmp_path / "run", groups=PAIRED)
    finally:
        os.umask(before)
    open_to_others = [path for path in (tmp_path / "run").rglob("*") if path.stat().st_mode & 0o077]
    assert open_to_others == []
