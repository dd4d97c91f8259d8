"""References that train by another recipe than the target: who trains what, what is refused, and what is said."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import plmia
from plmia.auditing.given_target import GivenTarget
from plmia.auditing.run import AuditPlan, open_store
from plmia.data.arrays import Array
from plmia.data.dataset import LabelledData
from plmia.errors import Note, PlmiaError, PlmiaWarning, RecipeError, StoreError
from plmia.results.saved import SavedRun
from plmia.signals.store import SignalStore
from plmia.training.engines import Inline, LocalProcesses
from plmia.training.recipes.function import Function
from plmia.training.recipes.recipe import Recipe, Trained, views_for
from plmia.training.recipes.scikit import Sklearn
from plmia.training.train import default_engine, seed_of
from plmia.training.views import View

N = 120
Y = np.arange(N) % 3
X = np.random.default_rng(0).normal(Y[:, None], 1.0, (N, 4))
# Asked for by the test, and said before training.
OTHER_KIND = pytest.mark.filterwarnings("ignore:The references come from another kind:plmia.errors.PlmiaWarning")
GIVEN = np.random.default_rng(1).permutation(N) < N // 2


@dataclass(frozen=True)
class Leaky(Recipe):
    """Trains nothing: members are more confident by ``leak``, all records by ``shift``. Notes its seeds."""

    leak: float = 6.0
    shift: float = 0.0
    weights: bool = True
    mirrors: bool = False
    calls: list[int] = field(default_factory=list, compare=False)
    name: ClassVar[str] = "leaky"

    @property
    def description(self) -> str:
        return f"leaky?leak={self.leak:g}"

    @property
    def keeps_weights(self) -> bool:
        return self.weights

    @property
    def augments(self) -> bool:
        return self.mirrors

    def to_json(self) -> dict[str, Any]:
        return {"recipe": self.name, "leak": self.leak}

    def check(self, data: LabelledData) -> None:
        if self.leak < 0:
            raise RecipeError("a leak is not negative")

    def notes(self, data: LabelledData) -> list[Note]:
        return [Note("recipe-preprocessing", "info", f"leak {self.leak:g} is prepared")]

    def preprocessing(self, data: LabelledData) -> str:
        return f"prepared for {self.leak:g}" if self.leak > 10 else ""

    def train(
        self, data: LabelledData, members: Any, seeds: Sequence[int], views: Sequence[View], keep_weights: bool = False
    ) -> list[Trained]:
        found = []
        for row, seed in zip(members, seeds, strict=True):
            self.calls.append(seed)
            noise = np.random.default_rng(seed).normal(self.shift, 1, (data.n_points, len(views)))
            weights: dict[str, Array] | None = {"leak": np.array([self.leak])} if keep_weights else None
            conf = (noise + self.leak * row[:, None]).astype(np.float32)
            found.append(Trained(conf, 0.75 + self.leak / 100, 0.5 + self.leak / 100, weights=weights))
        return found


def audit(model: Any, folder: Path, **more: Any) -> plmia.Audit:
    given = {"references": 8, "engine": Inline(), "attacks": [plmia.PL_MIA, plmia.RMIA], "progress": False} | more
    return plmia.audit(model, given.pop("X", X), given.pop("y", Y), folder=folder, **given)


def seeds_of(*models: int) -> list[int]:
    return [seed_of(0, model, 0) for model in models]


def leaks_of(folder: Path) -> list[float]:
    """The leak in the provenance of each model."""
    records = SignalStore.open(folder / "signals").finished()
    return [records[model]["recipe"]["leak"] for model in sorted(records)]


# Who trains what -----------------------------------------------------------------------------------------------------


def test_the_target_has_its_recipe_and_the_references_theirs(tmp_path: Path) -> None:
    target, others = Leaky(6), Leaky(2)
    found = audit(target, tmp_path / "run", reference_recipe=others)
    assert (target.calls, others.calls) == (seeds_of(0), seeds_of(*range(1, 9)))
    assert leaks_of(tmp_path / "run") == [6, *[2] * 8]
    about = found.result.about
    assert (about.recipe, about.reference_recipe) == ("leaky?leak=6", "leaky?leak=2")
    assert about.two_recipes
    assert about.accuracy is not None
    assert about.accuracy.target.members == pytest.approx(0.81)
    assert about.accuracy.target.non_members == pytest.approx(0.56)
    assert about.accuracy.references.members == pytest.approx(0.77)
    written = json.loads((tmp_path / "run/metrics.json").read_text())["about"]
    assert written["reference_recipe"] == "leaky?leak=2"
    assert written["audit"]["reference_recipe"] == {"recipe": "leaky", "leak": 2}
    assert SavedRun(tmp_path / "run").result.about == about
    assert {note.text for note in found.result.notes if note.code == "recipe-preprocessing"} == {
        "Leak 6 is prepared.",
        "Leak 2 is prepared.",
    }


@OTHER_KIND
def test_processes_train_by_both_recipes(tmp_path: Path) -> None:
    for name, engine in (("here", Inline()), ("there", LocalProcesses(2))):
        audit(GaussianNB(), tmp_path / name, reference_recipe=LogisticRegression(), references=4, engine=engine)
    here, there = (SignalStore.open(tmp_path / name / "signals") for name in ("here", "there"))
    np.testing.assert_array_equal(here.read(), there.read())
    kinds = [there.finished()[model]["recipe"]["class"].rpartition(".")[2] for model in range(5)]
    assert kinds == ["GaussianNB", *["LogisticRegression"] * 4]


def test_an_interrupted_audit_resumes_with_both_recipes(tmp_path: Path) -> None:
    class Stops(Leaky):
        def train(self, *given: Any, **more: Any) -> list[Trained]:
            if len(self.calls) == 3:
                raise ZeroDivisionError
            return super().train(*given, **more)

    audit(Leaky(6), tmp_path / "whole", reference_recipe=Leaky(2))
    with pytest.raises(PlmiaError, match="model 4 failed"):
        audit(Leaky(6), tmp_path / "run", reference_recipe=Stops(2))
    target, others = Leaky(6), Leaky(2)
    audit(target, tmp_path / "run", reference_recipe=others)
    assert (target.calls, others.calls) == ([], seeds_of(*range(4, 9)))
    for name in ("signals/signals.npy", "signals/store.json", "metrics.json", "scores.npz"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_given_target_is_queried_by_its_recipe_and_references_train_by_theirs(tmp_path: Path) -> None:
    class Queries(Leaky):
        def query_given(self, model: Any, data: LabelledData, members: Any, views: Any) -> Trained:
            assert model == {"any": "thing"}
            return self.train(data, members[None], [7], views)[0]

    target, others = Queries(6), Leaky(2)
    given = {"target": GivenTarget(GIVEN, model={"any": "thing"}), "reference_recipe": others}
    found = audit(target, tmp_path / "run", **given)
    assert (target.calls, others.calls) == ([7], seeds_of(*range(1, 9)))
    assert found.result.about.given_target
    page = unescape((tmp_path / "run/report.html").read_text(encoding="utf-8"))
    assert "target: leaky?leak=6 (as stated); references: leaky?leak=2" in page


@OTHER_KIND
def test_the_references_of_a_service_are_trees() -> None:
    """A model of which only predictions are known, with LightGBM's trees as its references."""
    pytest.importorskip("lightgbm")
    fitted = LogisticRegression(C=100).fit(X[GIVEN], Y[GIVEN])
    found = plmia.audit(
        LogisticRegression(),
        X,
        Y,
        reference_recipe="gbdt?rounds=5",
        target=fitted.predict_proba(X),
        members=GIVEN,
        references=4,
        attacks=["rmia"],
        engine=Inline(),
        progress=False,
    )
    assert found.result.about.reference_recipe == "gbdt?rounds=5"


# Identity ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [None, Leaky(6)])
def test_without_another_recipe_stores_stay_what_they_were(others: Recipe | None, tmp_path: Path) -> None:
    plan = AuditPlan(LabelledData(X, Y), Leaky(6), 8, (View(),), reference_recipe=others)
    assert plan.reference_recipe is None
    # Stores that exist have this key.
    assert open_store(plan, tmp_path / "run").key == "ac0f7c62aa755d5eba57dfabc01de4c10f5b55f5a32c24e621642ad4a374f3ec"


def test_both_ways_to_prepare_the_data_are_part_of_the_identity() -> None:
    data = LabelledData(X, Y)

    def prepared(*leaks: float) -> tuple[Any, Any]:
        about = AuditPlan(data, Leaky(leaks[0]), 8, (View(),), reference_recipe=Leaky(leaks[1])).about()
        return about.get("preprocessing"), about.get("reference_preprocessing")

    assert prepared(11, 12) == ("prepared for 11", "prepared for 12")
    assert prepared(1, 12) == (None, "prepared for 12")
    assert prepared(11, 2) == ("prepared for 11", None)


@OTHER_KIND
@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (Leaky(2), Leaky(3), "references: recipe option leak: 2 there, 3 here"),
        (None, Leaky(3), "references: recipe option leak: 6 there, 3 here"),
        (Leaky(2), None, "references: recipe option leak: 2 there, 6 here"),
        (Leaky(2), "sklearn:GaussianNB", "references: recipe leaky there, sklearn:GaussianNB here"),
    ],
)
def test_references_of_another_recipe_are_never_reused(before: Any, after: Any, says: str, tmp_path: Path) -> None:
    audit(Leaky(6), tmp_path / "run", reference_recipe=before)
    with pytest.raises(StoreError, match=says):
        audit(Leaky(6), tmp_path / "run", reference_recipe=after)
    assert leaks_of(tmp_path / "run") == [6, *[2 if before else 6] * 8]


@OTHER_KIND
def test_a_change_of_the_references_code_is_named(tmp_path: Path) -> None:
    def fit(X: Any, y: Any, seed: int) -> Any:
        return GaussianNB().fit(X, y)

    def query(model: Any, X: Any, y: Any) -> Any:
        return np.log(model.predict_proba(X))

    audit(Leaky(6), tmp_path / "run", reference_recipe=Function.of(fit, query, key="one"))
    with pytest.raises(StoreError, match=r"references: the code of .* changed"):
        audit(Leaky(6), tmp_path / "run", reference_recipe=Function.of(fit, query, key="two"))


# Refusals before training --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"reference_recipe": LinearRegression()}, RecipeError, "leaky returns the confidence.*sklearn returns a sig"),
        ({"reference_recipe": Leaky(-1)}, RecipeError, "a leak is not negative"),
        ({"reference_recipe": "mlpp"}, RecipeError, "there is no recipe 'mlpp'"),
        ({"trainings": 8}, PlmiaError, "^8 trainings were requested, but only model 0"),
        ({"keep_models": True, "reference_recipe": Leaky(2, weights=False)}, RecipeError, "'leaky' cannot be kept"),
        ({"views": [View(mirror=True)]}, RecipeError, "view mirror is for images"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(change: Any, kind: Any, says: str, tmp_path: Path) -> None:
    target, others = Leaky(6), Leaky(2)
    with pytest.raises(kind, match=says):
        audit(target, tmp_path / "run", **({"reference_recipe": others} | change))
    assert target.calls == others.calls == []


def test_a_regressor_has_no_classifiers_as_references(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"sklearn returns a signal of its own.*leaky returns the confidence"):
        audit(LinearRegression(), tmp_path / "run", y=X[:, 0] + 0.5, reference_recipe=Leaky(2))


@OTHER_KIND
def test_functions_without_classes_are_references_of_a_regressor(tmp_path: Path) -> None:
    def mean(X: Any, y: Any, seed: int) -> Any:
        return y.mean() + seed % 7

    def signal(model: Any, X: Any, y: Any) -> Any:
        return -np.abs(model - y)

    found = audit(
        LinearRegression(), tmp_path / "run", y=X[:, 0] + 0.5, reference_recipe=(mean, signal), attacks=["pl-mia-eb"]
    )
    assert found.result.about.signal == "signal"


def test_models_are_not_attacked_in_turn(tmp_path: Path) -> None:
    found = audit(Leaky(6), tmp_path / "run", reference_recipe=Leaky(2))
    assert found.result.trainings is None
    assert audit(Leaky(6), tmp_path / "one").result.trainings is not None


def test_several_views_need_two_recipes_that_augment() -> None:
    images = LabelledData(np.zeros((20, 8, 8, 3), np.uint8), np.arange(20) % 2)
    many, one = Leaky(mirrors=True), Leaky(mirrors=False)
    assert len(views_for(many, images)) == len(views_for(many, images, many)) > 1
    assert len(views_for(many, images, one)) == len(views_for(one, images, many)) == 1


def test_a_recipe_that_cannot_be_sent_keeps_both_in_this_process() -> None:
    lock = threading.Lock()
    local = Function.of(lambda X, y, seed: lock, lambda model, X, y: 0)
    with pytest.warns(PlmiaWarning, match="in this process"):
        assert default_engine(Sklearn(GaussianNB()), 2, reference_recipe=local) == Inline()
    assert default_engine(Sklearn(GaussianNB()), 2, reference_recipe=Leaky()) == LocalProcesses(2)


# Weights -------------------------------------------------------------------------------------------------------------


def test_weights_of_both_recipes_are_kept(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    audit(Leaky(6), tmp_path / "run", reference_recipe=Leaky(2), keep_models=True)
    kept = [numpy.load_file(path)["leak"][0] for path in sorted((tmp_path / "run/models").iterdir())]
    assert kept == [6, *[2] * 8]


def test_a_given_target_needs_no_weights(tmp_path: Path) -> None:
    pytest.importorskip("safetensors.numpy")
    conf = np.random.default_rng(2).normal(6 * GIVEN, 1)
    given = {"target": GivenTarget(GIVEN, conf), "keep_models": True}
    audit(Leaky(6, weights=False), tmp_path / "run", reference_recipe=Leaky(2), **given)
    assert len(list((tmp_path / "run/models").iterdir())) == 8


# What is said --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shift", "align", "likeness"),
    [
        (0.0, "never", "on known non-members do not clearly differ from those of its references (p = "),
        (9.0, "never", "on known non-members differ from those of its references (p = "),
        (9.0, "auto", "were moved to the target's scale; their rank correlation with the target is "),
    ],
)
def test_the_report_names_both_recipes_and_how_they_match(
    shift: float, align: str, likeness: str, tmp_path: Path
) -> None:
    given = {"reference_recipe": Leaky(2), "attacks": [plmia.PL_MIA], "align": align}
    found = audit(Leaky(6, shift), tmp_path / "run", **given)
    page = re.sub("<[^>]*>", "", unescape((tmp_path / "run/report.html").read_text(encoding="utf-8")))
    assert "target: leaky?leak=6; references: leaky?leak=2" in page
    assert "8 models trained by another recipe than the target" in page
    assert "9 models trained, 8 of them by the references' recipe" in page
    assert "trained in the same way" not in page
    assert likeness in page
    unlike = [note.text for note in found.result.notes if note.code == "unlike-references"]
    assert bool(unlike) == ((shift, align) == (9.0, "never"))
    assert all("--align never" in text for text in unlike)


def test_useless_references_do_not_clear_a_target(tmp_path: Path) -> None:
    """References that answer otherwise than the target, and agree with nobody, must not lead to a clean verdict."""
    given = {"reference_recipe": Leaky(0.001), "attacks": [plmia.PL_MIA]}
    found = audit(Leaky(0.0, 6.0), tmp_path / "run", **given)
    codes = {note.code for note in found.result.notes if note.severity == "caution"}
    assert codes & {"answers-unlike-references", "references-match-poorly", "unlike-references"}
    assert found.result.verdict.status != "no_leak_shown"


@pytest.mark.parametrize(
    ("others", "doubted"),
    [
        (LogisticRegression(C=1e-4, max_iter=200), False),
        (make_pipeline(StandardScaler(), LogisticRegression(C=1e-4, max_iter=200)), False),
        (GaussianNB(), True),
    ],
)
def test_references_of_another_kind_do_not_clear_a_target(others: Any, doubted: bool, tmp_path: Path) -> None:
    """Whatever they find, and however well they match: they may not show what membership changes in the target."""
    target = LogisticRegression(C=1e-4, max_iter=100)
    with pytest.warns(PlmiaWarning, match="another kind") if doubted else nullcontext():
        found = audit(target, tmp_path / "run", reference_recipe=others, attacks=[plmia.PL_MIA])
    assert ("other-kind" in found.result.verdict.doubts) == doubted
    assert not (doubted and found.result.verdict.status == "no_leak_shown")


def test_references_that_fit_their_members_otherwise_do_not_clear_a_target(tmp_path: Path) -> None:
    records = {"X": np.random.default_rng(3).normal(size=(800, 1)), "y": np.arange(800) % 3}
    found = audit(Leaky(0.0), tmp_path / "run", reference_recipe=Leaky(2), references=16, **records)
    assert "fit-unlike-references" in found.result.verdict.doubts
    assert found.result.verdict.status == "inconclusive"


def test_references_that_learned_less_do_not_clear_a_target(tmp_path: Path) -> None:
    """Alignment moves their signals to the target's scale; that they are right less often stays a doubt."""
    given = {"reference_recipe": Leaky(0.5), "attacks": [plmia.PL_MIA], "references": 16}
    found = audit(Leaky(10.0, 6.0), tmp_path / "run", **given)
    assert found.result.about.accuracy.references.members < found.result.about.accuracy.target.members
    assert "fit-unlike-references" in found.result.verdict.doubts


def test_a_report_on_one_recipe_stays_as_it_was(tmp_path: Path) -> None:
    audit(Leaky(6), tmp_path / "run")
    page = unescape((tmp_path / "run/report.html").read_text(encoding="utf-8"))
    assert "8 models trained in the same way" in page
    assert "Likeness" not in page
    assert "reference_recipe" not in (tmp_path / "run/metrics.json").read_text()


def test_too_few_references_leave_the_match_open(tmp_path: Path) -> None:
    audit(Leaky(6), tmp_path / "run", reference_recipe=Leaky(2), references=2, attacks=["rmia"])
    page = unescape((tmp_path / "run/report.html").read_text(encoding="utf-8"))
    assert "whether the references match the target could not be checked" in page


# Scored again --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [3, "all", [0, 5]])
def test_a_reference_is_not_taken_for_a_target_silently(target: Any, tmp_path: Path) -> None:
    audit(Leaky(6), tmp_path / "run", reference_recipe=Leaky(2))
    options = {"attacks": ["rmia"], "progress": False}
    for source in (tmp_path / "run", tmp_path / "run/signals"):
        scored = plmia.score(source, tmp_path / "out", target=target, **options)
        (note,) = (note for note in scored.result.notes if note.code == "other-recipe")
        assert note.severity == "caution"
        assert "other-recipe" in scored.result.verdict.doubts
        scored = plmia.score(source, tmp_path / "out", target=0, **options)
        assert not [note for note in scored.result.notes if note.code == "other-recipe"]
    again = plmia.score(tmp_path / "run", target=3, **options)
    assert "other-recipe" in {note.code for note in again.result.notes}
    again = plmia.score(tmp_path / "run", **options)
    assert "other-recipe" not in {note.code for note in again.result.notes}
    assert again.result.about.reference_recipe == "leaky?leak=2"


def test_models_of_one_recipe_may_all_be_targets(tmp_path: Path) -> None:
    audit(Leaky(6), tmp_path / "run", trainings=0)
    scored = plmia.score(tmp_path / "run", target="all", attacks=["rmia"], progress=False)
    assert "other-recipe" not in {note.code for note in scored.result.notes}


def test_scoring_does_not_attack_references_in_turn(tmp_path: Path) -> None:
    audit(Leaky(6), tmp_path / "run", reference_recipe=Leaky(2))
    with pytest.raises(PlmiaError, match="8 trainings were requested, but only model 0"):
        plmia.score(tmp_path / "run", trainings=8, progress=False)


def test_plans_and_screenings_of_a_reference_say_so(tmp_path: Path) -> None:
    audit(Leaky(6), tmp_path / "run", reference_recipe=Leaky(2))
    plans = [plmia.plan(tmp_path / "run", target=k, attack="rmia", fpr=0.1, progress=False) for k in (0, 3)]
    said = "Model 3 was trained by the references' recipe"
    assert [any(said in word for word in plan.words) for plan in plans] == [False, True]
    with pytest.warns(PlmiaWarning, match=said):
        screened = [plmia.screen(tmp_path / "run", target=k, progress=False).result.notes for k in (0, 3)]
    assert [any(note.code == "other-recipe" for note in notes) for notes in screened] == [False, True]


@dataclass(frozen=True)
class Difficult(Recipe):
    """Trains nothing: all models find the same records difficult."""

    shift: float = 0.0
    name: ClassVar[str] = "difficult"

    def to_json(self) -> dict[str, Any]:
        return {"recipe": self.name, "shift": self.shift}

    def train(
        self, data: LabelledData, members: Any, seeds: Sequence[int], views: Sequence[View], keep_weights: bool = False
    ) -> list[Trained]:
        found = []
        for row, seed in zip(members, seeds, strict=True):
            conf = 2 * data.X[:, 0] + row + self.shift + np.random.default_rng(seed).normal(0, 1, data.n_points)
            found.append(Trained(conf[:, None].astype(np.float32)))
        return found


def test_answers_that_differ_only_in_scale_are_no_reason_for_doubt(tmp_path: Path) -> None:
    """The target is right nearly everywhere, its references at half of the records, by the same difficulty."""
    data = {"X": np.random.default_rng(2).normal(0, 1, (800, 1)), "y": np.arange(800) % 2}
    given, codes = {"reference_recipe": Difficult(), "references": 16, "attacks": [plmia.PL_MIA]}, {}
    for align in ("auto", "never"):
        found = audit(Difficult(6.0), tmp_path / align, align=align, **data, **given)
        codes[align] = {note.code for note in found.result.notes}
    assert "answers-unlike-references" in codes["never"] - codes["auto"]
    assert "references-aligned" in codes["auto"] - codes["never"]
