"""From probabilities and logits to confidences: exact, clipped by one rule, refused where they could be either."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest

from plmia.errors import RecipeError
from plmia.training.recipes.confidences import conf_from_answers, conf_from_logits, conf_from_probabilities

Floats = npt.NDArray[np.float64]


def exact(p: Floats, labels: Any) -> list[float]:
    """Logit of the true label's share, with 60 digits: log p_y - log of the sum of the others."""
    with mpmath.workdps(60):
        found = []
        for row, label in zip(p, labels, strict=True):
            rest = mpmath.fsum(mpmath.mpf(float(v)) for c, v in enumerate(row) if c != label)
            found.append(float(mpmath.log(mpmath.mpf(float(row[label]))) - mpmath.log(rest)))
        return found


@pytest.mark.parametrize("n_classes", [2, 3, 10, 100])
def test_probabilities_keep_all_their_digits(n_classes: int) -> None:
    """Also where the true label is all but certain, and 1 - p has none left."""
    rng = np.random.default_rng(n_classes)
    logits, labels = rng.normal(0, 12, (300, n_classes)), rng.integers(0, n_classes, 300)
    logits[np.arange(150), labels[:150]] += 60
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    found = conf_from_probabilities(p, labels)
    assert found.n_clipped == 0
    assert found.conf.max() > 40
    assert found.conf.min() < -20
    np.testing.assert_allclose(found.conf, exact(p, labels), rtol=1e-14, atol=1e-14)


def test_a_zero_becomes_half_of_the_smallest_share_seen() -> None:
    """A forest of ten trees: shares are tenths."""
    p = np.array([[1.0, 0.0, 0.0], [0.0, 0.3, 0.7], [0.2, 0.7, 0.1], [0.5, 0.4, 0.1], [0.0, 0.0, 1.0]])
    labels = np.array([0, 0, 2, 1, 2])
    found = conf_from_probabilities(p, labels)
    assert found.n_clipped == 3
    expected = [np.log(1 / 0.05), np.log(0.05), np.log(0.1 / 0.9), np.log(0.4 / 0.6), np.log(1 / 0.05)]
    np.testing.assert_allclose(found.conf, expected, rtol=1e-12)
    # The share of a class that is nobody's true label counts as well: it is part of what the others share.
    found = conf_from_probabilities(np.array([[1.0, 0.0], [0.98, 0.02]]), np.array([0, 0]))
    assert found.n_clipped == 1
    np.testing.assert_allclose(found.conf, [np.log(1 / 0.01), np.log(0.98 / 0.02)], rtol=1e-12)


def test_clipping_never_passes_what_was_seen() -> None:
    rng = np.random.default_rng(0)
    votes = rng.multinomial(20, [0.9, 0.05, 0.05], size=500) / 20
    labels = rng.integers(0, 3, 500)
    found = conf_from_probabilities(votes, labels)
    zero = (votes[np.arange(500), labels] == 0) | (votes[np.arange(500), labels] == 1)
    assert found.n_clipped == zero.sum() > 100
    assert np.abs(found.conf[zero]).min() > np.abs(found.conf[~zero]).max()
    assert np.unique(np.abs(found.conf[zero]).round(9)).size == 1
    np.testing.assert_allclose(np.abs(found.conf[zero]), np.log(1 / 0.025), rtol=1e-12)


def test_rounding_beyond_one_is_forgiven() -> None:
    p = np.array([[1 + 1e-7, -1e-9], [0.4, 0.6]])
    found = conf_from_probabilities(p, np.array([0, 1]))
    assert found.n_clipped == 1
    np.testing.assert_allclose(found.conf, [np.log(1 / 0.2), np.log(0.6 / 0.4)])
    np.testing.assert_array_equal(conf_from_answers(p, np.array([0, 1])).conf, found.conf)


def test_rows_that_miss_one_by_rounding_are_renormalised_and_counted() -> None:
    """GaussianNB in 32 bits: at a few records of large log-likelihoods tied classes get 1 each."""
    p = np.tile([0.5, 0.3, 0.2], (200, 1))
    p[1] *= 1 + 4e-3  # half precision
    p[2] = [1.0, 1.0, 0.0]
    p[3] = [0.0, 0.7, 0.7]
    p[4] += 1e-9  # nothing that anybody would call a deviation
    labels = np.zeros(200, int)
    for found in (conf_from_probabilities(p, labels), conf_from_answers(p, labels)):
        assert found.n_renormalised == 3
        assert found.sum_error == pytest.approx(1.0)
        assert found.n_clipped == 1
        np.testing.assert_allclose(found.conf[[0, 1, 2]], [0.0, 0.0, 0.0], atol=1e-12)
        # 0 becomes half of the smallest share, 1/2, that any row has once it adds up to 1.
        np.testing.assert_allclose(found.conf[3], np.log(0.25), rtol=1e-12)
    assert conf_from_probabilities(p[5:], labels[5:]).n_renormalised == 0


@pytest.mark.parametrize(
    "row",
    [[0.0, 0.0], [0.1, 0.1], [0.9, 0.8]],
    ids=["nothing", "less than any rounding", "too many rows"],
)
def test_what_rounding_does_not_explain_is_refused(row: list[float]) -> None:
    p = np.full((100, 2), 0.5)
    p[7 if sum(row) < 1 else slice(0, 6)] = row
    with pytest.raises(RecipeError, match=f"add up to {sum(row):.4g}"):
        conf_from_probabilities(p, np.zeros(100, int))
    with pytest.raises(RecipeError, match=f"add up to {sum(row):.4g}"):
        conf_from_answers(p, np.zeros(100, int))


@pytest.mark.parametrize(
    ("p", "says"),
    [
        (np.ones(4) / 2, r"\(4,\).*\[4, 2\]"),
        (np.ones((3, 2)) / 2, r"\(3, 2\).*\[4, 2\]"),
        (np.ones((4, 1)), r"\(4, 1\).*\[4, 2\]"),
        (np.array([[0.5, 0.5]] * 3 + [[-0.1, 1.1]]), r"-0.1 to 1.1.*\[0, 1\]"),
        (np.array([[0.5, 0.5]] * 3 + [[0.2, 0.2]]), r"\b3\b.* 0\.4\b"),
        (np.zeros((4, 2)), r"\b0\b.* 0\b"),
    ],
)
def test_what_are_no_probabilities_is_refused(p: Floats, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        conf_from_probabilities(p, np.array([0, 1, 0, 1]))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_that_diverged_has_no_confidence(bad: float) -> None:
    labels = np.array([0, 1, 1])
    answers = np.array([[0.5, 0.5], [bad, 0.2], [0.1, 0.9]])
    for conf in (
        conf_from_probabilities(answers, labels).conf,
        conf_from_answers(answers, labels).conf,
        conf_from_answers(20 * answers - 7, labels).conf,
        conf_from_logits(answers, labels),
    ):
        assert conf.shape == (3,)
        assert np.isnan(conf).all()


# Logits or probabilities ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_logits_and_their_probabilities_say_the_same(dtype: str) -> None:
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(0, 2, (200, 5)), rng.integers(0, 5, 200)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    from_logits = conf_from_answers(logits, labels)
    assert from_logits.n_clipped == 0
    np.testing.assert_allclose(from_logits.conf, exact(p, labels), rtol=1e-10, atol=1e-12)
    from_p = conf_from_answers(p.astype(dtype), labels)
    assert from_p.n_clipped == 0
    np.testing.assert_allclose(
        from_p.conf, from_logits.conf, atol={"float64": 1e-12, "float32": 1e-5, "float16": 2e-2}[dtype]
    )


def test_logits_never_saturate() -> None:
    found = conf_from_answers([[900.0, 0.0], [0.0, 900.0]], np.array([0, 0]))
    assert found.conf.tolist() == [900.0, -900.0]
    assert found.n_clipped == 0


def test_answers_that_could_be_either_are_refused() -> None:
    """Outputs of a sigmoid: taken for logits, they would hide nearly everything."""
    sigmoids = np.array([[0.9, 0.8, 0.1], [0.2, 0.7, 0.6]])
    with pytest.raises(RecipeError, match=r"\[0, 1\].* 1\.8 .*\b0\b"):
        conf_from_answers(sigmoids, np.array([0, 1]))


def test_a_model_that_knows_nothing_may_say_so() -> None:
    np.testing.assert_allclose(conf_from_answers(np.zeros((2, 4)), np.array([0, 3])).conf, -np.log(3))


@pytest.mark.parametrize("answers", [np.zeros(3), np.zeros((2, 2)), np.zeros((3, 1)), np.zeros((3, 2, 2)), 5.0])
def test_answers_of_another_shape_are_refused(answers: Any) -> None:
    with pytest.raises(RecipeError, match=r"query.*\[3, 2\]"):
        conf_from_answers(answers, np.array([0, 1, 1]))


def test_percentages_are_no_logits() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(3), 50)
    labels = np.zeros(50, int)
    with pytest.raises(RecipeError, match="100"):
        conf_from_answers(100 * p, labels)
    conf_from_answers(np.log(p), labels)


@pytest.mark.parametrize(("column", "value"), [(0, 7.3), (1, -0.4), (1, 0.2)])
def test_one_wrong_probability_does_not_turn_the_others_into_logits(column: int, value: float) -> None:
    p = np.random.default_rng(0).dirichlet([1, 1], size=12)
    p[5] = [0.5, 0.5]
    p[5, column] = value
    with pytest.raises(RecipeError, match="record 5"):
        conf_from_answers(p, np.arange(12) % 2)
