"""Run attacks on one target: statistic, calibration, score and p-values of every point."""

from __future__ import annotations

import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from plmia.attacks.attack import Attack
from plmia.attacks.calibration import NoCalibration, Views, pairwise_scores
from plmia.attacks.cauchy_sum import SignedLog
from plmia.attacks.moments import FloatArray, IntArray
from plmia.attacks.population import Comparison, Policy, require_like_queries
from plmia.attacks.statistics import Statistic
from plmia.attacks.view import AttackView, Mode
from plmia.errors import AttackError, PlmiaError, PopulationError, ReferencesError, some
from plmia.numerics import count_below

Tick = Callable[[int], None]
Refused = Callable[[str, PlmiaError], None]
"""Told the name of an attack that lacks references or a population with some spread, and what it lacks."""


@dataclass(frozen=True)
class Scores:
    """Result of one attack on one target.

    Parameters
    ----------
    attack : str
        The attack's name.
    score : float64 array [points]
        Larger means member. Of a Cauchy combination it is arcsinh of the paper's Score_PL, which keeps its order and
        stays finite.
    log10_p : float64 array [points]
        log10 of the attack's own p-value: of a Cauchy combination the combined one, which is only nominal (its null
        law is an approximation that real data break); of any other the conformal one.
    log10_p_conformal : float64 array [points]
        log10 of (1 + #{z: phi_z >= phi_q}) / (|Z| + 1): valid whenever the query is exchangeable with the population.
    statistic : float64 array [points]
        The pointwise statistic phi, the attack's views put together.
    """

    attack: str
    score: FloatArray
    log10_p: FloatArray
    log10_p_conformal: FloatArray
    statistic: FloatArray

    @property
    def has_combined_p(self) -> bool:
        """Whether ``log10_p`` is a combined p-value, which is only nominal, rather than the conformal one."""
        return self.log10_p is not self.log10_p_conformal


def score(attack: Attack, view: AttackView, rng: np.random.Generator, tick: Tick = lambda _: None) -> Scores:
    """Score every point of ``view``.

    Parameters
    ----------
    attack : Attack
        What to run.
    view : AttackView
        What it may see.
    rng : numpy Generator
        Draws fresh populations, where the attack's policy asks for them.
    tick : callable
        Told how many points are done.
    """
    require_like_queries(view)
    return _calibrate(attack, evaluate_statistic(attack, view), view, rng, tick)


def score_all(
    attacks: Sequence[Attack],
    view: AttackView,
    seed: int = 0,
    tick: Tick = lambda _: None,
    refused: Refused | None = None,
) -> Iterator[Scores]:
    """Score every point with each attack; a statistic that several share is computed once.

    Each attack draws from a generator of its own, so its result does not depend on which others run. Results come one
    at a time, so that all of them need never be in memory together. An attack that lacks references, or whose
    statistic is the same all over the population, raises; given ``refused``, that is told of it and the others go on.
    A population with other numbers of references than the other points raises `PopulationError` in any case.
    """
    require_like_queries(view)
    yield from score_unchecked(attacks, view, seed, tick, refused)


def score_unchecked(
    attacks: Sequence[Attack],
    view: AttackView,
    seed: int = 0,
    tick: Tick = lambda _: None,
    refused: Refused | None = None,
) -> Iterator[Scores]:
    """Do what `score_all` does for callers who have compared the numbers of references themselves."""
    attacks = [_in_mode(attack, view.mode) for attack in attacks]
    statistics: dict[Statistic, FloatArray | ReferencesError] = {}
    conformal: dict[tuple[Statistic, Views, Policy], FloatArray] = {}
    for i, attack in enumerate(attacks):
        if attack.statistic not in statistics:
            _evaluate_alike(attack, attacks[i:], view, statistics)
        later = {other.statistic for other in attacks[i + 1 :]}
        phi = statistics[attack.statistic]
        same = (attack.statistic, attack.views, attack.population)
        rng = np.random.default_rng([seed, zlib.crc32(attack.name.encode())])
        try:
            if isinstance(phi, ReferencesError):
                raise phi
            scores = _calibrate(attack, phi, view, rng, tick, conformal.get(same))
        except (ReferencesError, PopulationError) as error:
            if refused is None:
                raise
            refused(attack.name, error)
            tick(view.n_points)
            continue
        except Exception as error:
            _blame(attack, error, attack.calibration, attack.views, attack.population)
            raise
        conformal[same] = scores.log10_p_conformal
        if attack.statistic not in later:
            del statistics[attack.statistic]
            conformal = {key: value for key, value in conformal.items() if key[0] in later}
        yield scores
        del phi, scores


def _in_mode(attack: Attack, mode: Mode) -> Attack:
    """Return the attack with a statistic that equals all those which amount to the same in this mode."""
    in_mode = getattr(attack.statistic, "in_mode", None)
    return attack if in_mode is None else replace(attack, statistic=in_mode(mode))


def _evaluate_alike(
    attack: Attack,
    attacks: Sequence[Attack],
    view: AttackView,
    statistics: dict[Statistic, FloatArray | ReferencesError],
) -> None:
    """Evaluate the attack's statistic and all those that read the same sums, then free the sums: they are larger."""
    statistics[attack.statistic] = _if_references(attack, view)
    uses: frozenset[str] = getattr(attack.statistic, "uses", frozenset())
    for other in attacks:
        if uses and getattr(other.statistic, "uses", None) == uses and other.statistic not in statistics:
            statistics[other.statistic] = _if_references(other, view)
    view.forget(uses)


def _if_references(attack: Attack, view: AttackView) -> FloatArray | ReferencesError:
    """Return the attack's statistic, or what it lacks: that must not stop the others that are evaluated with it."""
    try:
        return evaluate_statistic(attack, view)
    except ReferencesError as error:
        return error


def _blame(attack: Attack, error: Exception, *parts: object) -> None:
    """Raise what went wrong in one sentence, if one of the parts is the user's own; else the fault is here."""
    if isinstance(error, PlmiaError) or all(type(part).__module__.startswith("plmia.") for part in parts):
        return
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(__file__).parent)
    where = next((frame for frame in frames if not frame.filename.startswith(here)), frames[-1])
    raise AttackError(
        f"attack {attack.name} does not run: {type(error).__name__}: {error} "
        f"({where.filename}, line {where.lineno}): correct it there"
    ) from error


def evaluate_statistic(attack: Attack, view: AttackView) -> FloatArray:
    """Return the attack's statistic [points, views], checked: one finite number a point and view."""
    try:
        with np.errstate(all="ignore"):  # what comes out is checked below, and one sentence says what is wrong
            phi = np.asarray(attack.statistic(view), dtype=np.float64)
    except Exception as error:
        _blame(attack, error, attack.statistic)
        raise
    if phi.shape != view.target.shape:
        raise AttackError(
            f"the statistic of {attack.name} has shape {phi.shape}, {view.target.shape} [points, views] is needed: "
            "return one number a point and view"
        )
    bad = np.flatnonzero(~np.isfinite(phi).all(axis=1))
    if len(bad):
        raise AttackError(f"the statistic of {attack.name} is not finite at point {some(bad)}: check the signals there")
    return phi


def _calibrate(
    attack: Attack,
    phi: FloatArray,
    view: AttackView,
    rng: np.random.Generator,
    tick: Tick,
    conformal: FloatArray | None = None,
) -> Scores:
    summary = attack.views.points(phi)
    columns: dict[str, FloatArray] = {} if conformal is None else {"conformal": conformal}

    def put(name: str, queries: IntArray, values: FloatArray) -> None:
        if name not in columns:  # only now: until here the memory serves the calibration
            columns[name] = np.empty(view.n_points)
        columns[name][queries] = values

    for comparison in attack.population.comparisons(view, rng):
        queries = comparison.queries
        raw = _raw_scores(attack, phi, summary, comparison, comparison.size(), tick)
        if isinstance(raw, SignedLog):
            put("score", queries, raw.asinh())
            put("log10_p", queries, raw.log10_p())
        else:
            put("score", queries, raw)
        del raw
        if conformal is None:
            rivals = comparison.population if comparison.shared else view.population
            put("conformal", queries, conformal_log10_p(summary, queries, rivals))
    own = columns.get("log10_p", columns["conformal"])
    return Scores(attack.name, columns["score"], own, columns["conformal"], summary)


def _raw_scores(
    attack: Attack,
    phi: FloatArray,
    summary: FloatArray,
    comparison: Comparison,
    size: npt.NDArray[np.integer],
    tick: Tick,
) -> FloatArray | SignedLog:
    queries, population = comparison.queries, comparison.population
    if isinstance(attack.calibration, NoCalibration) or (comparison.shared and attack.views.linear):
        everyone = len(queries) == len(summary) and bool(np.all(np.diff(queries) == 1))
        raw = attack.calibration.shared(
            summary if everyone else summary[queries], summary[population] if comparison.shared else summary[:0], size
        )
        tick(len(queries))
        return raw
    return pairwise_scores(attack.calibration, attack.views, phi, queries, population, size, tick)


def conformal_log10_p(phi: FloatArray, queries: IntArray, population: IntArray) -> FloatArray:
    """log10 conformal p-values of queries against a population; a query in the population is not its own rival.

    Parameters
    ----------
    phi : float array [points]
        The statistic.
    queries : int array [queries]
        Points.
    population : int array [population]
        Known non-members.
    """
    known = np.zeros(len(phi), bool)
    known[population] = True
    count = len(population) + 1 - known[queries].astype(np.int32)
    log10_p = (count - count_below(phi[population], phi[queries])) / count
    np.log10(log10_p, out=log10_p)
    return log10_p
