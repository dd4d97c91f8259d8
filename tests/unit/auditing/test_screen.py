"""`plmia.screen`: its two doors give the same result, and what cannot be screened is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.tree import DecisionTreeRegressor

import plmia
from plmia.auditing.screen import features_of
from plmia.data.designs import MembershipDesign
from plmia.errors import AttackError, DataError, PlmiaError, PlmiaWarning, ReferencesError, SignalsError
from plmia.results.saved import SavedRun

N = 600
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 4)).astype("float32")
Y = RNG.integers(0, 3, size=N)
MEMBERS = RNG.random(N) < 0.5
HARD = 2.0 * X[:, 0] + Y
LEAK = (HARD + RNG.normal(size=N) + 1.5 * MEMBERS).astype("float32")
SAFE = (HARD + RNG.normal(size=N)).astype("float32")


def signals_of(conf: Any, **more: Any) -> plmia.Signals:
    return plmia.Signals(conf[None, :, None], MembershipDesign(MEMBERS[None]), **more)


def given(conf: Any) -> plmia.GivenTarget:
    return plmia.GivenTarget(MEMBERS, conf=conf)


def test_signals_with_x_and_a_given_target_give_the_same_numbers(tmp_path: Path) -> None:
    first = plmia.screen(X, Y, target=given(LEAK), folder=tmp_path / "a", progress=False)
    second = plmia.screen(signals_of(LEAK, labels=Y), X=X, folder=tmp_path / "b", progress=False)
    assert list(first.result.attacks) == ["attack-p", "attack-p-conditional"]
    assert first.result.attacks == second.result.attacks
    assert first.result.verdict == second.result.verdict


def test_a_leak_is_shown_and_its_absence_never(tmp_path: Path) -> None:
    leak = plmia.screen(X, Y, target=given(LEAK), folder=tmp_path / "leak", progress=False).result
    safe = plmia.screen(X, Y, target=given(SAFE), folder=tmp_path / "safe", progress=False).result
    assert leak.verdict.status == "leak"
    assert safe.verdict.status == "inconclusive"
    for result in (leak, safe):
        assert "screening" in result.verdict.doubts
        assert "cannot show its absence" in result.verdict.text
        assert result.about.references == (0,)
        assert result.about.screening
    conditional, plain = (leak.attacks[name].auc.mean for name in ("attack-p-conditional", "attack-p"))
    assert conditional > plain + 0.05


def test_one_model_of_several_is_screened_alone(tmp_path: Path) -> None:
    conf = np.stack([SAFE, LEAK, SAFE])[:, :, None]
    rows = np.stack([~MEMBERS, MEMBERS, RNG.random(N) < 0.5])
    many = plmia.Signals(conf, MembershipDesign(rows), Y, models=(4, 7, 9))
    found = plmia.screen(many, target=7, folder=tmp_path / "many", progress=False).result
    alone = plmia.screen(signals_of(LEAK, labels=Y, models=(7,)), target=7, folder=tmp_path / "one", progress=False)
    assert found.attacks == alone.result.attacks
    assert list(found.attacks) == ["attack-p"]
    assert found.about.targets == (7,)
    assert found.about.signals.models == 1
    with pytest.raises(SignalsError, match="target 0"):
        plmia.screen(many, folder=tmp_path / "none", progress=False)


def test_half_of_the_non_members_are_the_population(tmp_path: Path) -> None:
    found = plmia.screen(X, Y, target=given(LEAK), folder=tmp_path, progress=False).result
    assert found.about.population == (int((~MEMBERS).sum()) // 2,)


def test_a_table_with_text_and_missing_values(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"x": X[:, 0], "town": np.where(Y == 1, "Ulm", "Bonn"), "when": pd.Timestamp("2020-01-01"), "z": X[:, 1]}
    )
    frame.loc[::7, "x"] = np.nan
    frame.loc[::11, "town"] = None
    features = features_of(plmia.LabelledData(frame, np.array(["a", "b", "c"])[Y]))
    assert features.categories == (1, 4)
    assert np.isnan(features.columns[::11, 1]).all()
    assert set(np.unique(features.columns[1::11, 1])) == {0.0, 1.0}
    found = plmia.screen(frame, np.array(["a", "b", "c"])[Y], target=given(LEAK), folder=tmp_path, progress=False)
    assert found.result.attacks["attack-p-conditional"].auc.mean > found.result.attacks["attack-p"].auc.mean


def test_values_to_predict_are_a_number_and_not_a_category() -> None:
    features = features_of(plmia.LabelledData(X, RNG.normal(size=N)))
    assert features.columns.shape == (N, 5)
    assert features.categories == ()


def test_images_are_read_as_rows_with_a_note(tmp_path: Path) -> None:
    images = np.tile(X[:, :, None], (1, 1, 2))
    with pytest.warns(PlmiaWarning, match="rows of pixels"):
        found = plmia.screen(images, Y, target=given(LEAK), folder=tmp_path, progress=False)
    assert "images-flattened" in {note.code for note in found.result.notes}
    assert "attack-p-conditional" in found.result.attacks


def test_records_that_trees_cannot_read_leave_the_conditional_attack_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plmia.auditing.screen.MOST_VALUES", 2_399)
    with pytest.warns(PlmiaWarning, match="2,400"):
        found = plmia.screen(X, Y, target=given(LEAK), folder=tmp_path, progress=False).result
    assert list(found.attacks) == ["attack-p"]
    assert "attacks-left-out" in {note.code for note in found.notes}


def test_a_small_population_leaves_the_conditional_attack_out(tmp_path: Path) -> None:
    found = plmia.screen(X, Y, target=given(LEAK), population=12, folder=tmp_path / "a", progress=False).result
    assert list(found.attacks) == ["attack-p"]
    assert "12 records" in found.skipped["attack-p-conditional"]
    with pytest.raises(PlmiaError, match="12 records"):
        plmia.screen(
            X,
            Y,
            target=given(LEAK),
            population=12,
            attacks=["attack-p-conditional"],
            folder=tmp_path / "b",
            progress=False,
        )


def test_groups_are_judged_once_each(tmp_path: Path) -> None:
    groups = np.repeat(np.arange(N // 2), 2)
    members = np.repeat(RNG.random(N // 2) < 0.5, 2)
    target = plmia.GivenTarget(members, conf=SAFE)
    found = plmia.screen(X, Y, groups=groups, target=target, folder=tmp_path, progress=False).result
    assert found.about.groups == N // 2
    entry = found.attacks["attack-p-conditional"].per_target[0]
    assert entry.n_members == members.sum() // 2
    few = members.copy()
    few[: -N // 3] |= True
    target = plmia.GivenTarget(few, conf=SAFE)
    found = plmia.screen(X, Y, groups=groups, target=target, folder=tmp_path / "few", progress=False).result
    (text,) = (note.text for note in found.notes if note.code == "few-non-members")
    assert re.search(r"(?i)audit about [\d,]+ people", text)


def test_groups_that_are_cut_are_a_caution(tmp_path: Path) -> None:
    groups = np.repeat(np.arange(N // 2), 2)
    with pytest.warns(PlmiaWarning, match="groups hold members and non-members"):
        found = plmia.screen(X, Y, groups=groups, target=given(LEAK), folder=tmp_path, progress=False).result
    assert {note.code: note.severity for note in found.notes}["split-groups"] == "caution"
    assert found.about.groups == N // 2


def test_a_dozen_records_can_be_screened_by_their_rank(tmp_path: Path) -> None:
    target = plmia.GivenTarget(np.arange(12) < 6, conf=LEAK[:12])
    found = plmia.screen(X[:12], np.arange(12) % 2, target=target, folder=tmp_path, progress=False).result
    assert list(found.attacks) == ["attack-p"]
    assert found.verdict.status == "inconclusive"


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        plmia.screen(X, Y, target=given(LEAK), folder=tmp_path / name, progress=False)
    for file in ("metrics.json", "scores.npz", "records.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_figures_that_need_references_say_so(tmp_path: Path) -> None:
    found = plmia.screen(X, Y, target=given(LEAK), folder=tmp_path, progress=False)
    page = found.report.read_text()
    assert page.count("A screening has no references") == 3
    assert "0 models trained in the same way" not in page
    assert {"roc", "scores", "fpr"} <= set(found.figures())
    assert SavedRun(tmp_path).result == found.result


def test_what_is_refused(tmp_path: Path) -> None:
    def attempt(*arguments: Any, **options: Any) -> None:
        plmia.screen(*arguments, folder=tmp_path, progress=False, **options)

    with pytest.raises(AttackError, match=r"lira.*plmia score"):
        attempt(X, Y, target=given(LEAK), attacks=["attack-p", "lira"])
    with pytest.raises(AttackError, match="give the data"):
        attempt(signals_of(LEAK), attacks=["attack-p-conditional"])
    with pytest.raises(DataError, match="first argument"):
        attempt(X, Y, target=given(LEAK), X=X)
    with pytest.raises(DataError, match=r"599.*600"):
        attempt(signals_of(LEAK), X=X[1:], y=Y[1:])
    with pytest.raises(DataError, match="record 0 has the label"):
        attempt(signals_of(LEAK, labels=Y), X=X, y=(Y + 1) % 3)
    with pytest.raises(SignalsError, match="trained on all"):
        attempt(replace(signals_of(LEAK), design=MembershipDesign(np.ones((1, N), bool))))
    with pytest.raises(ReferencesError, match="plmia screen"):
        plmia.score(signals_of(LEAK), tmp_path, progress=False)
    with pytest.raises(ReferencesError, match="plmia screen"):
        plmia.score(signals_of(LEAK), tmp_path, references=0, progress=False)


def test_members_of_another_source_make_a_screening_invalid(tmp_path: Path) -> None:
    """The model leaks nothing; its members are merely other records, and easier ones."""
    other = X + MEMBERS[:, None].astype("float32")
    conf = (2.0 * other[:, 0] + RNG.normal(size=N)).astype("float32")
    with pytest.warns(PlmiaWarning, match="records alone"):
        found = plmia.screen(other, Y, target=given(conf), folder=tmp_path, progress=False).result
    assert found.attacks["attack-p"].auc.mean > 0.6
    assert found.verdict.status == "invalid"
    assert found.verdict.doubts[0] == "records-tell-members"


@pytest.mark.parametrize("whole", [False, True])
def test_predicted_values_are_screened_as_the_regressor(tmp_path: Path, whole: bool) -> None:
    y = np.rint(10 * HARD).astype(int) if whole else HARD + 100.0
    model = DecisionTreeRegressor(random_state=0).fit(X[MEMBERS], y[MEMBERS])
    options: dict[str, Any] = {"members": MEMBERS, "progress": False}
    first = plmia.screen(X, y, target=model, folder=tmp_path / "a", **options).result
    kind = "values" if whole else "auto"
    target = {"target": model.predict(X), "target_kind": kind}
    second = plmia.screen(X, y, folder=tmp_path / "b", **target, **options).result
    assert first.attacks == second.attacks
    assert first.verdict.status == "leak"


def test_a_module_is_refused_and_its_logits_are_taken(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(4, 3)
    options: dict[str, Any] = {"members": MEMBERS, "folder": tmp_path, "progress": False}
    with pytest.raises(DataError, match="logits") as error:
        plmia.screen(X, Y, target=module, **options)
    assert "plmia.Torch" not in str(error.value)
    assert plmia.screen(X, Y, target=module(torch.from_numpy(X)), **options).result.about.screening
