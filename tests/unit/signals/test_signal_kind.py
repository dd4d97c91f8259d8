"""Signals of any scale: attacks see them in units of their own spread, confidences as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plmia.attacks.attack import ATTACKS
from plmia.data.designs import MembershipDesign
from plmia.errors import SignalsError
from plmia.evaluation.diagnostics.signals import require_plausible
from plmia.evaluation.targets import Setup, attack_targets
from plmia.results.result import About
from plmia.signals.signals import Signals, read_signals
from plmia.signals.store import SignalStore


def own(signals, scale=1.0, shift=0.0):
    values = (signals.values.astype(np.float64) * scale + shift).astype(np.float32)
    return replace(signals, values=values, kind="signal", labels=None)


def aucs(signals):
    found = attack_targets(signals, list(ATTACKS.values()), [0], Setup())
    return {result.scores.attack: result.metrics().auc for result in found}


def test_standardised_equals_a_naive_computation():
    rng = np.random.default_rng(1)
    values = rng.gamma(2.0, 300.0, (5, 40, 2)).astype(np.float32)
    signals = Signals(values, MembershipDesign(rng.random((5, 40)) < 0.5), kind="signal")
    low, centre, high = np.percentile(values.astype(float), [25, 50, 75])
    expected = (values.astype(float) - centre) / ((high - low) / 1.349)
    np.testing.assert_allclose(signals.standardised().values, expected, rtol=1e-6, atol=1e-6)
    plain = replace(signals, kind="confidence")
    assert plain.standardised() is plain


@pytest.mark.parametrize("values", [np.zeros((4, 20, 1)), np.r_[np.ones(79), 5.0].reshape(4, 20, 1)])
def test_standardised_stays_finite_without_spread(values):
    signals = Signals(values.astype(np.float32), MembershipDesign(np.eye(4, 20, dtype=bool)), kind="signal")
    assert np.isfinite(signals.standardised().values).all()


def test_attacks_do_not_depend_on_the_scale_of_a_signal(simulate_signals):
    signals = simulate_signals(0)
    first = aucs(own(signals))
    assert first["rmia"] > 0.55
    for scale, shift in ((1e-5, 0.0), (1e4, -3e4)):
        again = aucs(own(signals, scale, shift))
        assert again == pytest.approx(first, abs=2e-3)


def test_a_confidence_keeps_its_scale(simulate_signals):
    signals = simulate_signals(0)
    scaled = replace(signals, values=100 * signals.values)
    assert aucs(scaled)["rmia"] != pytest.approx(aucs(signals)["rmia"], abs=2e-3)


def test_a_file_of_signals_between_0_and_1_is_read_as_signals(signals_file):
    rng = np.random.default_rng(0)
    path = signals_file(replace={"signals": rng.random((16, 120)).astype("float32")})
    with pytest.raises(SignalsError, match="probabilities"):
        read_signals(path)
    assert read_signals(path, "signal").kind == "signal"


def test_losses_given_as_signals_are_refused(simulate_signals):
    signals = own(simulate_signals(0), -1.0)
    with pytest.raises(SignalsError, match="larger for members") as caught:
        require_plausible(signals)
    assert "label" not in str(caught.value)


@pytest.mark.parametrize("about", [{}, {"signal": "signal"}])
def test_a_store_knows_the_kind_of_its_signals(tmp_path, simulate_signals, about):
    signals = simulate_signals(0)
    store = SignalStore.create(tmp_path / "s", about, signals.design, ["identity"] * signals.n_views)
    store.append(range(signals.n_models), signals.values.astype(np.float32), [{}] * signals.n_models)
    read = SignalStore.open(tmp_path / "s").signals()
    assert read.kind == ("signal" if about else "confidence")
    described = About.of(read, [0], Setup())
    assert described.signal == (None if not about else "signal")
    assert (described.accuracy is None) == bool(about)
