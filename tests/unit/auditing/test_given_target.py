"""Given targets made of what users have, and doubts about them that are known before training and after it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import plmia
from plmia.auditing.given_target import GivenTarget, as_target
from plmia.auditing.matching import RecordIds
from plmia.data.dataset import LabelledData
from plmia.data.designs import MembershipDesign, audit_design
from plmia.errors import DataError
from plmia.evaluation.diagnostics.signals import unlike_records
from plmia.signals.signals import Signals
from plmia.training.recipes.recipe import Recipe, Trained
from plmia.training.records import TrainingRecord
from plmia.training.views import View

N = 200
RNG = np.random.default_rng(0)
Y = np.arange(N) % 3
X = RNG.normal(Y[:, None], 1.0, (N, 2))
MEMBERS = RNG.permutation(N) < 100
DATA = LabelledData(X, Y)
FITTED = LogisticRegression().fit(X[MEMBERS], Y[MEMBERS])
P = FITTED.predict_proba(X)


@dataclass(frozen=True)
class Centres(Recipe):
    """Queries any array of centres; trains nothing."""

    name: ClassVar[str] = "centres"

    def to_json(self) -> dict[str, Any]:
        return {"recipe": self.name}

    def train(self, *_: Any, **__: Any) -> list[Trained]:
        raise NotImplementedError

    def query_given(self, model: Any, data: LabelledData, members: Any, views: Any) -> Trained:
        conf = -np.abs(data.X[:, 0] - model.centre)
        return Trained(np.stack([conf] * len(views), axis=1).astype(np.float32), 1.0, 0.5)


class Centre:
    """A model that only the recipe can query."""

    centre = 0.5


def conf_of(target: Any, **options: Any) -> Any:
    given = as_target(target, MEMBERS, DATA, **options)
    assert given is not None
    return given.ask(DATA, (View(),), Centres()).trained.conf[:, 0]


def test_arrays_frames_models_and_files_are_targets(tmp_path: Path) -> None:
    expected = conf_of(FITTED)
    names = pd.DataFrame(P, columns=["0", "1", "2"])
    names.to_csv(tmp_path / "p.csv", index=False)
    own = P[np.arange(N), Y]
    for target in (P, P.tolist(), names, names[["2", "0", "1"]], str(tmp_path / "p.csv"), tmp_path / "p.csv"):
        np.testing.assert_allclose(conf_of(target), expected, rtol=1e-4)
    for target in (own, pd.Series(own), own.tolist()):
        np.testing.assert_allclose(conf_of(target, kind="probabilities"), expected, rtol=1e-4)
    ids = RecordIds.of("id", np.arange(N))
    np.testing.assert_allclose(conf_of(names[::-1].assign(id=np.arange(N)[::-1]), ids=ids), expected, rtol=1e-4)
    with pytest.raises(DataError, match="'id'"):
        conf_of(P, ids=ids)


def test_a_model_without_probabilities_is_queried_by_the_recipe() -> None:
    np.testing.assert_allclose(conf_of(Centre()), -np.abs(X[:, 0] - 0.5), rtol=1e-5)


def test_a_target_needs_members_once() -> None:
    given = GivenTarget(MEMBERS, model=FITTED)
    assert as_target(None, None, DATA) is None
    assert as_target(given, None, DATA) is given
    for target, members, fact in ((given, MEMBERS, "twice"), (FITTED, None, "members"), (None, MEMBERS, "target")):
        with pytest.raises(DataError, match=fact):
            as_target(target, members, DATA)
    with pytest.raises(DataError, match="one of"):
        GivenTarget(MEMBERS, conf=P[:, 0], model=FITTED)


def test_a_target_without_any_skill_is_noted_before_training(tmp_path: Path) -> None:
    design = audit_design(N, 4, np.random.default_rng(0))
    codes = []
    for target in (P, P[RNG.permutation(N)], P[:, [1, 2, 0]]):
        given = as_target(target, MEMBERS, DATA)
        assert given is not None
        answers = given.ask(DATA, (View(),), Centres()).trained
        codes.append([note.code for note in given.doubts(answers, design, DATA, "confidence")])
    assert codes == [[], ["target-at-chance"], ["target-at-chance"]]


@pytest.mark.parametrize(("accuracies", "severity"), [((0.9, 0.8), "caution"), ((0.5, 0.2), "info")])
def test_a_target_at_chance_is_a_caution_if_its_references_are_better(
    accuracies: tuple[float, float], severity: str
) -> None:
    given, design = as_target(P[RNG.permutation(N)], MEMBERS, DATA), audit_design(N, 4, np.random.default_rng(0))
    assert given is not None
    answers = given.ask(DATA, (View(),), Centres()).trained
    notes = given.doubts(answers, design, DATA, "confidence")
    # One reference that is no better than the target is reason enough to be silent.
    pairs = [(0.9, 0.8), (0.9, 0.8), (0.9, 0.8), accuracies]
    records = {k + 1: TrainingRecord(train_accuracy=a, test_accuracy=b) for k, (a, b) in enumerate(pairs)}
    signals = Signals(np.zeros((5, N, 1), np.float32), design)
    found = given.weighed(notes, signals, records, DATA)
    assert [(note.code, note.severity) for note in found] == [("target-at-chance", severity)]


def test_inverted_members_of_a_signal_are_noticed() -> None:
    data = LabelledData(X)
    design = audit_design(N, 4, np.random.default_rng(0))
    signal = RNG.normal(size=N) + 100 + 3 * MEMBERS
    for members, codes in ((MEMBERS, []), (~MEMBERS, ["members-swapped"])):
        given = GivenTarget(members, signal)
        answers = Trained(signal[:, None].astype(np.float32))
        assert [note.code for note in given.doubts(answers, design, data, "signal")] == codes


# Compared with references --------------------------------------------------------------------------------------------


def naive_unlike_records(values: Any) -> tuple[float, list[float]]:
    """Spearman's correlation of each model with the mean ranks of the references, without itself."""
    from scipy.stats import rankdata

    ranks = [rankdata(row) for row in values]
    found = []
    for model in range(len(values)):
        others = [ranks[k] for k in range(1, len(values)) if k != model]
        found.append(float(np.corrcoef(ranks[model], np.mean(others, axis=0))[0, 1]))
    return found[0], found[1:]


def test_ranks_are_compared_record_by_record() -> None:
    values = np.round(RNG.normal(size=80) + RNG.normal(size=(5, 80)), 1).astype(np.float32)  # with ties
    design = MembershipDesign(RNG.random((5, 80)) < 0.5)
    found = unlike_records(Signals(values[:, :, None], design))
    own, theirs = naive_unlike_records(values)
    assert found.target == pytest.approx(own)
    assert found.references == pytest.approx((min(theirs), max(theirs)))
    assert found.warning is None


def test_records_in_another_order_and_negated_signals_are_unlike() -> None:
    values = (3 * RNG.normal(size=300) + RNG.normal(size=(6, 300))).astype(np.float32)
    design = MembershipDesign(RNG.random((6, 300)) < 0.5)
    for changed in (values[0][::-1], -values[0], np.zeros(300)):
        other = np.concatenate([np.asarray(changed, np.float32)[None], values[1:]])
        warning = unlike_records(Signals(other[:, :, None], design)).warning
        assert warning is not None
        assert "right and sure at" in warning
        kind = Signals(other[:, :, None], design, kind="signal")
        assert "right and sure" not in (unlike_records(kind).warning or "right and sure")


def test_predictions_are_kept_by_content(tmp_path: Path) -> None:
    """The same predictions in another format continue the audit; others do not."""
    options = {"references": 4, "attacks": ["rmia"], "engine": plmia.Inline(), "progress": False}
    folder = tmp_path / "run"
    first = plmia.audit(LogisticRegression(), X, Y, target=P, members=MEMBERS, folder=folder, **options)
    pd.DataFrame(P, columns=["0", "1", "2"]).to_parquet(tmp_path / "p.parquet")
    np.save(tmp_path / "m.npy", MEMBERS)
    paths = {"target": tmp_path / "p.parquet", "members": tmp_path / "m.npy"}
    assert plmia.audit(LogisticRegression(), X, Y, folder=folder, **paths, **options).result == first.result
    with pytest.raises(plmia.PlmiaError, match="target"):
        plmia.audit(LogisticRegression(), X, Y, target=P[::-1], members=MEMBERS, folder=folder, **options)
