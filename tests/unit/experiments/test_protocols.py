"""Trainings of the CIFAR-100 networks compared: which models are targets and references, and the committed results."""

import json

import numpy as np
import pytest
from experiments import protocols, write_docs
from experiments.whole import WHOLE

from plmia.data.designs import audit_design
from plmia.signals.signals import Signals


@pytest.mark.parametrize(
    ("models", "targets", "references"), [(8, [1, 3, 5, 7], 4), (4, [3], 2), (12, [1, 3, 5, 7, 9, 11], 4)]
)
def test_targets_have_references_in_pairs_without_their_complement(models, targets, references):
    # Model 0 has no partner, and neither has the last of an even number of models.
    design = audit_design(100, 14, np.random.default_rng(0))
    signals = Signals(np.random.default_rng(1).normal(size=(15, 100, 1)), design)
    some = protocols.some_of(signals, list(range(models)))
    assert protocols.targets_of(some, 4) == (targets, references)
    for target in targets:
        chosen = protocols.with_references(some, target, references)
        assert chosen.n_models == references + 1
        assert (chosen.values[0] == some.values[target]).all()
        rows = chosen.design.matrix
        assert (rows[1::2] == ~rows[2::2]).all()
        assert not (rows[1:] == rows[0]).all(axis=1).any()


def test_committed_results_are_in_the_page_and_report_no_model_that_influenced_the_design():
    found = protocols.measured()
    assert found
    page = write_docs.page()
    assert protocols.table() in page
    sets = [one for one in WHOLE.values() if one.data.startswith("CIFAR-100")]
    first = {one.data.partition(", ")[2]: one.first_target for one in sets}
    for training, row in found.items():
        assert min(row["targets"]) >= first[training]
        own, base = row["means"][protocols.OURS]
        assert own is not None
        assert (base is None) == (min(row["targets"]) < first[""]), "models before it influenced the design"
        assert set(row["difference"]) == {attack for attack, (_, before) in row["means"].items() if before is not None}
        for attack, ((auc, *_), _) in row["means"].items():
            assert f"{auc:.1f} / " in page, attack
    assert json.loads(protocols.RESULT.read_text(encoding="utf-8")) == list(found.values())


def test_what_the_page_says_of_the_trainings():
    found = protocols.measured()
    (rmia, rmia_base), (plain, base), (ours, _) = (
        found["no augmentation"]["means"][attack] for attack in ("rmia", "pl-mia", protocols.OURS)
    )
    for i, metric in enumerate(protocols.METRICS):
        assert rmia[i] < rmia_base[i], metric
        assert base[i] < plain[i] < ours[i], metric
    copies = found["JPEG 75"]
    assert copies["held_out"][0] < copies["held_out"][1]
    assert all(after[0] > before[0] for after, before in copies["means"].values() if before)
