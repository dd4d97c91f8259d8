"""Signal of a record beyond what the record itself explains, for targets without references."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.special import ndtri

from plmia.attacks.statistics import GivenValues, Statistic
from plmia.attacks.view import AttackView, Features
from plmia.data.arrays import FloatArray, Floats, IntArray
from plmia.errors import AttackError, PopulationError

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor

# Fewer known non-members per fold leave nothing to learn from.
_LEAST_PER_FOLD = 4
# Trees take this many categories.
_MOST_CATEGORIES = 255
# Each split of a tree considers this many columns at random where there are more, so that wide data take no hours.
_MOST_COLUMNS = 500
# A smaller excess counts as this one, so that its logarithm is bounded.
SMALLEST_EXCESS = 1e-3


@dataclass(frozen=True)
class ConditionalExcess(Statistic):
    """Standardised excess of the target's signal over that of a non-member with the same features.

    Signals are mapped to normal scores, and gradient-boosted trees predict their mean and their spread from the record.
    All of this is fitted on the population, known non-members, alone. Cross-fitting keeps records that shape the
    prediction and records that are judged exchangeable: every record, in the population or not, is assigned to a fold
    at random, and is predicted by what was fitted on the population outside its fold. So no record is predicted by
    trees that saw it, and the excess of an evaluated non-member has the same law as that of a population record.

    What is exact: given the population, evaluated records are judged by fixed functions and independent draws of
    folds, so rates, intervals and bounds on epsilon hold as for any score. Two records of one fold are exchangeable.
    What is approximate: records of different folds are predicted by different trees, so conformal p-values over the
    whole population are valid up to the difference between the trees of two folds. Simulated audits show none.

    Parameters
    ----------
    folds : int
        Number of folds, at least 3: trees are fitted without each pair of folds.
    seed : int
        Seed of the folds.
    """

    folds: int = 5
    seed: int = 0
    reads_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.folds < 3:
            raise AttackError(f"{self.folds} folds cannot be cross-fitted: take at least 3")

    def fit(self, view: AttackView) -> GivenValues:
        """Cross-fit the trees on the population, and predict every record."""
        features = require_features(view, self.folds)
        rng = np.random.default_rng(self.seed)
        folds = assign_folds(view.n_points, view.population, self.folds, rng)
        excess = _Records(view.target.mean(axis=1), features, self.seed).excess(folds, view.population, self.folds)
        return GivenValues(np.repeat(excess[:, None], view.n_views, axis=1), view.n_points)

    def least_references(self, n_views: int) -> int:
        """Return 0."""
        del n_views
        return 0


def require_features(view: AttackView, folds: int) -> Features:
    """Return the features of the records, if there are any and the population is large enough for the folds.

    Raises `AttackError` without features, and `PopulationError` if there are too few known non-members.
    """
    if view.features is None:
        raise AttackError("the attack predicts signals from the records: give the data (X, --data)")
    least = _LEAST_PER_FOLD * folds
    if len(view.population) < least:
        raise PopulationError(
            f"the population has {len(view.population)} records, {least} are needed to predict signals from "
            "records: give more known non-members"
        )
    return view.features


def require_spread(signal: FloatArray) -> None:
    """Raise `PopulationError` if all signals [n] of known non-members are the same."""
    if not np.ptp(signal) > 0:
        raise PopulationError("all known non-members have the same signal, so it has no spread: check the signals")


def assign_folds(
    n_points: int, population: IntArray, folds: int, rng: np.random.Generator, groups: IntArray | None = None
) -> IntArray:
    """Assign every record to a fold at random [records]; population and others are spread evenly over the folds.

    Records of one of the ``groups`` [records] share a fold.
    """
    number = np.arange(n_points) if groups is None else np.unique(groups, return_inverse=True)[1]
    known = np.zeros(int(number.max(initial=-1)) + 1, bool)
    known[number[population]] = True
    assigned = np.empty(len(known), dtype=np.intp)
    for units in (np.flatnonzero(known), np.flatnonzero(~known)):
        assigned[rng.permutation(units)] = np.arange(len(units)) % folds
    return assigned[number]


@dataclass(frozen=True, eq=False)
class NormalScores:
    """Increasing map of signals that makes the given ones standard Gaussian: neither scale nor outliers matter.

    Signals between two given ones are interpolated. Beyond the ends the map is linear, with the slope of a Gaussian
    that has the same quartiles.
    """

    at: FloatArray  # different signals, in order
    score: FloatArray
    slope: float

    @classmethod
    def of(cls, signal: FloatArray) -> NormalScores:
        """Make the map of given signals [n]; raise `PopulationError` if all are the same."""
        require_spread(signal)
        at, counts = np.unique(signal, return_counts=True)
        low, high = np.quantile(signal, (0.25, 0.75))
        deviation = (high - low) / (2 * ndtri(0.75)) or signal.std()
        return cls(at, ndtri((np.cumsum(counts) - counts / 2) / len(signal)), float(1 / deviation))

    def __call__(self, signal: FloatArray) -> FloatArray:
        """Return the scores of signals."""
        beyond = signal - np.clip(signal, self.at[0], self.at[-1])
        return np.interp(signal, self.at, self.score) + self.slope * beyond


@dataclass(frozen=True, eq=False)
class _Excess:
    """Score of a signal minus its prediction from the record, by known non-members outside two folds."""

    signal: FloatArray  # [points]
    columns: Floats  # [points, columns]
    scores: NormalScores
    mean: HistGradientBoostingRegressor

    def __call__(self, points: IntArray) -> FloatArray:
        """Return the excess of some points."""
        expected: FloatArray = self.mean.predict(self.columns[points])
        return self.scores(self.signal[points]) - expected


def few_categories(features: Features) -> list[int] | None:
    """Columns that trees may take as categories; they take the numbers of more as ordered."""
    found = [k for k in features.categories if np.nan_to_num(features.columns[:, k]).max() < _MOST_CATEGORIES]
    return found or None


def without_bare_columns(columns: Floats) -> Floats:
    """Copy of columns in which one without any value is constant instead: trees refuse it, and it tells nothing."""
    return np.where(np.isnan(columns).all(axis=0), 0.0, columns)


class _Records:
    """Features of all points as trees read them, and their signals [points], averaged over views."""

    def __init__(self, signal: FloatArray, features: Features, seed: int) -> None:
        self._signal, self._features, self._seed = signal, features, seed
        self._columns = features.columns

    def excess(self, folds: IntArray, population: IntArray, n_folds: int) -> FloatArray:
        """Return the standardised excess of every point [points], by non-members outside its fold."""
        fold_of = folds[population]
        without = {pair: self._without(population[~np.isin(fold_of, pair)]) for pair in combinations(range(n_folds), 2)}
        excess = np.empty(len(folds))
        for fold in range(n_folds):
            own, rest = np.flatnonzero(folds == fold), population[fold_of != fold]
            by_other = {sum(pair) - fold: made for pair, made in without.items() if fold in pair}
            # The excess of records that the trees saw would be too small.
            seen = np.concatenate([np.abs(made(rest[folds[rest] == other])) for other, made in by_other.items()])
            order = np.concatenate([rest[folds[rest] == other] for other in by_other])
            spread = self._fitted(order, np.log(np.maximum(seen, SMALLEST_EXCESS)))
            scale = np.exp(spread.predict(self._columns[own]))
            excess[own] = np.mean([made(own) for made in by_other.values()], axis=0) / scale
        return excess

    def _without(self, known: IntArray) -> _Excess:
        scores = NormalScores.of(self._signal[known])
        return _Excess(self._signal, self._columns, scores, self._fitted(known, scores(self._signal[known])))

    def _fitted(self, points: IntArray, values: FloatArray) -> HistGradientBoostingRegressor:
        return trees_of(self._features, points, values, self._seed)


def trees_of(
    features: Features, points: IntArray, values: FloatArray, seed: int, **loss: Any
) -> HistGradientBoostingRegressor:
    """Fit trees that predict ``values`` [points] from the records; ``loss`` are parameters of the trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    trees = HistGradientBoostingRegressor(
        max_iter=200,
        early_stopping=True,
        max_features=min(1.0, _MOST_COLUMNS / features.columns.shape[1]),
        categorical_features=few_categories(features),
        random_state=seed,
        **loss,
    )
    return trees.fit(without_bare_columns(features.columns[points]), values)
