"""Trainings of the CIFAR-100 networks compared: which models are targets and references, and the committed results."""

import json

import numpy as np
import pytest
from experiments import protocols, write_docs

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
    assert all(min(row["targets"]) >= 1 for row in found.values())
    page = write_docs.page()
    assert protocols.table() in page
    for row in found.values():
        for attack, ((auc, *_), _) in row["means"].items():
            assert f"{auc:.1f} / " in page, attack
    assert json.loads(protocols.RESULT.read_text(encoding="utf-8")) == list(found.values())
