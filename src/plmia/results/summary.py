"""Run-level summary, the contents of metrics.json: all attacks on all targets, checks, verdict and notes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from plmia.errors import Note, PlmiaError, Severity
from plmia.evaluation.decisions import CHECK_FAILS_BELOW, Analytic, SelfCheck, self_check
from plmia.evaluation.diagnostics import (
    EnoughReferences,
    PopulationSize,
    UnlikeReferences,
    population_size,
    unlike_references,
)
from plmia.evaluation.diagnostics.gaussianity import Gaussianity, gaussianity, metrics_by_group
from plmia.evaluation.intervals import mean_rate, over_targets
from plmia.evaluation.metrics import fpr_key, summarise
from plmia.evaluation.tables import DEFAULT
from plmia.evaluation.targets import AttackResult
from plmia.results.assessment import LEVELS, Assessment, assess
from plmia.results.result import SCHEMA
from plmia.results.verdict import LEAST_REFERENCES, Verdict, reach_verdict

T = TypeVar("T")

# From this share of tied scores on, an attack hardly tells records apart.
MANY_TIED = 0.9
# At this level the table shows how many known non-members the attacks' own p-values flag.
CHECK_LEVEL = 0.01


class Summary:
    """What is said of all attacks on all targets, collected one result at a time.

    Parameters
    ----------
    attacks : sequence of str
        Their names.
    n_targets : int
        How many targets will be attacked: intervals that hold for all results at once are made for so many.
    """

    def __init__(self, attacks: Sequence[str], n_targets: int = 1) -> None:
        self._assessments: dict[str, list[Assessment]] = {name: [] for name in attacks}
        self._compared = len(attacks) * n_targets
        self._sizes: set[int] = set()
        self._references: set[int] = set()
        self._left_out: dict[int, list[int]] = {}
        self._sizes_of: dict[int, PopulationSize] = {}
        self._likeness: dict[int, UnlikeReferences | None] = {}
        self._gaussianity: Gaussianity | None = None
        self._by_group: dict[str, list[dict[str, Any] | None]] = {}
        self._power: EnoughReferences | None = None
        self._fits: dict[tuple[str, int], dict[str, Any]] = {}
        self._skipped: dict[str, str] = {}
        self._told: list[Note] = []

    @property
    def attacks(self) -> list[str]:
        """Names of the attacks that were not left out."""
        return list(self._assessments)

    def leave_out(self, attack: str, reason: str) -> None:
        """Leave an attack out of everything that is said, but for the reason; the others' intervals stay as wide."""
        self._assessments.pop(attack, None)
        self._skipped.setdefault(attack, reason)

    def add(self, result: AttackResult) -> Assessment:
        """Take in one result; return what is said of it."""
        assessment = assess(result, self._compared)
        self._assessments[result.scores.attack].append(assessment)
        self._sizes.add(len(result.population))
        self._references.add(len(result.references))
        if result.target not in self._left_out:
            self._left_out[result.target] = [int(model) for model in result.left_out]
            self._sizes_of[result.target] = population_size(len(result.population))
            self._likeness[result.target] = if_possible(lambda: unlike_references(result.view))
            self.add_notes(result.notes)
        self._group(result)
        return assessment

    def _group(self, result: AttackResult) -> None:
        """Measure the attack by Gaussianity of the points; of the first target only, since every signal is sorted."""
        if self._gaussianity is None:
            self._gaussianity = gaussianity(result.view.references)
            self._grouped = result.target
        if result.target == self._grouped:
            groups = metrics_by_group(self._gaussianity, result.scores, result.truth, result.target)
            self._by_group[result.scores.attack] = [group.to_json() if group else None for group in groups]

    def add_fit(self, attack: str, target: int, fit: dict[str, Any] | None) -> None:
        """Take in what an attack's statistic estimated over points, if it did."""
        if fit is not None:
            self._fits[attack, target] = fit

    def add_power(self, power: EnoughReferences | None) -> None:
        """Take in how the number of references bears on the power, if that could be measured."""
        self._power = power

    def add_notes(self, notes: Iterable[Note]) -> None:
        """Take in what is known beside the results; a note that is there already is not taken twice."""
        self._told += [note for note in notes if note not in self._told]

    @property
    def best_attack(self) -> str:
        """Name of the attack that finds most."""
        return reach_verdict(self._assessments).attack

    @property
    def verdict(self) -> Verdict:
        """What the run found, in the light of all notes."""
        return reach_verdict(self._assessments).with_notes(self.notes())

    def notes(self) -> list[Note]:
        """What a reader must know beside the numbers."""
        return [
            *reach_verdict(self._assessments).notes(),
            *self._told,
            *self._reference_notes(),
            *self._attack_notes(),
            *self._size_notes(),
        ]

    def _reference_notes(self) -> Iterator[Note]:
        """Are the references many enough, like the target, and which models were excluded."""
        if (fewest := min(self._references)) < LEAST_REFERENCES:
            yield Note(
                "few-references",
                "caution",
                f"{fewest} reference{'s are' if fewest != 1 else ' is'} too few to exclude a leak. Train at least "
                f"{LEAST_REFERENCES}; 16 or more find clearly more.",
            )
        unlike = {target: check.warning for target, check in sorted(self._likeness.items()) if check and check.warning}
        if unlike:
            first, more = next(iter(unlike)), len(unlike) - 1
            others = f" and {more} more" if more else ""
            which = f"Target {first}{others}: " if len(self._likeness) > 1 else ""
            text = f"{which}{unlike[first]}"
            yield Note("unlike-references", "caution", text)
        if self._power and self._power.warning:
            yield Note("more-references", "info", self._power.warning)
        pairs = {target: models for target, models in self._left_out.items() if models}
        if pairs:
            target, models = min(pairs.items())
            more = len(pairs) - 1
            others = f" ({more} other target{'s' * (more > 1)} likewise)" if more else ""
            who, their = (
                (f"Models {', '.join(map(str, models))} are excluded as references", "their training sets are")
                if len(models) > 1
                else (f"Model {models[0]} is excluded as a reference", "its training set is")
            )
            yield Note(
                "excluded-references",
                "info",
                f"{who} for target {target}: {their} the target's or its complement and would reveal membership"
                f"{others}.",
            )

    def _attack_notes(self) -> Iterator[Note]:
        """Which attacks could not run, tell little, or have p-values that do not hold."""
        severity: Severity
        if self._skipped:
            first, *others = dict.fromkeys(self._skipped.values())
            more = " The other reasons are under `skipped` in metrics.json." if others else ""
            # Without the strongest attack an audit could have missed what that finds.
            severity = "caution" if DEFAULT in self._skipped else "info"
            text = f"Attacks left out: {', '.join(self._skipped)}. {_sentence(first)}{more}"
            yield Note("attacks-left-out", severity, text)
        tied = {name: min(a.tied for a in group) for name, group in self._assessments.items()}
        names = [name for name, share in tied.items() if share > MANY_TIED]
        if names:
            # Where another attack tells records apart, the tied ones cost nothing.
            severity = "caution" if len(names) == len(tied) else "info"
            yield Note(
                "tied-scores",
                severity,
                f"The scores of {', '.join(names)} take few values: {100 * min(tied[name] for name in names):.0f} % of "
                "the records share theirs with a tenth of all. Such an attack hardly tells records apart.",
            )
        wrong = {name: found for name in self._assessments if (found := self._refuted(name)) is not None}
        if wrong:
            flagged = "; ".join(_flagged_share(level, wrong) for level in dict.fromkeys(f[0] for f in wrong.values()))
            yield Note(
                "combined-p-value",
                "info",
                f"The combined p-value of {', '.join(wrong)} is miscalibrated here ({flagged}). Decisions use the "
                "conformal p-value.",
            )

    def _size_notes(self) -> Iterator[Note]:
        """Which rates the evaluated non-members and the population cannot show."""
        everyone = [a.metrics for group in self._assessments.values() for a in group]
        fewest = min(everyone, key=lambda m: m.n_non_members)
        poor = [point for point in fewest.operating if not point.resolved]
        if poor:
            rates = ", ".join(f"{100 * point.fpr:g} % (needs {point.needed:,})" for point in reversed(poor))
            yield Note(
                "rates-unresolved",
                "info",
                f"{fewest.n_non_members:,} evaluated non-members are too few for a TPR at an FPR of {rates}.",
            )
        if (warning := self._sizes_of[min(self._sizes_of)].warning) is not None:
            yield Note("population-size", "info", warning)

    def _flagged(self, attack: str, level: float) -> SelfCheck | None:
        """How many known non-members of all targets the attack's combined p-value flags, if it has one."""
        checks = [a.decision(Analytic.name, level).check for a in self._assessments[attack]]
        made = [check for check in checks if check is not None]
        return self_check(sum(c.flagged for c in made), sum(c.population for c in made), level) if made else None

    def _refuted(self, attack: str) -> tuple[float, float] | None:
        """Level at which the known non-members refute the paper's threshold, and the share of them that it flags.

        The level is `CHECK_LEVEL` if it is refuted there. Trying several levels is paid for.
        """
        for level in sorted(LEVELS, key=lambda level: level != CHECK_LEVEL):
            check = self._flagged(attack, level)
            if check is not None and check.p_value * len(LEVELS) < CHECK_FAILS_BELOW:
                return level, check.flagged / check.population
        return None

    def to_json(self, about: dict[str, Any]) -> dict[str, Any]:
        """Build the contents of metrics.json.

        Parameters
        ----------
        about : dict
            What was run: joins the keys ``schema``, ``verdict``, ``attacks`` and ``notes``.
        """
        for group in self._assessments.values():
            group.sort(key=lambda a: a.metrics.target)
        attacks = {name: self._attack_json(name) for name in self._assessments}
        about = about | {"references": sorted(self._references), "population": sorted(self._sizes)}
        self.add_notes(_about_notes(about))
        contents = {
            "schema": SCHEMA,
            "verdict": self.verdict.to_json(),
            "about": about,
            "attacks": attacks,
            "skipped": self._skipped,
            "diagnostics": self._diagnostics(),
            "notes": [note.to_json() for note in self.notes()],
        }
        # What a reader of the file would get: lists, not tuples.
        plain: dict[str, Any] = json.loads(json.dumps(contents, allow_nan=False))
        return plain

    def _diagnostics(self) -> dict[str, Any]:
        """Checks that belong to no single attack."""
        return {
            "references": self._power.to_json() if self._power else None,
            "gaussianity": {"target": self._grouped} | self._gaussianity.to_json() if self._gaussianity else None,
            "targets": {
                str(target): {
                    "unlike_references": check.to_json() if check else None,
                    "population": self._sizes_of[target].to_json(),
                }
                for target, check in sorted(self._likeness.items())
            },
        }

    def _attack_json(self, name: str) -> dict[str, Any]:
        group = self._assessments[name]
        entries = [assessment.to_json() for assessment in group]
        for entry in entries:
            if entry["target"] == self._grouped:
                entry["diagnostics"]["gaussianity_groups"] = self._by_group[name]
            if (fit := self._fits.get((name, entry["target"]))) is not None:
                entry["diagnostics"]["fit"] = fit
        summary = summarise([assessment.metrics for assessment in group])
        entry = summary.to_json() | {"per_target": entries}
        entry |= over_all(entries)
        if len(group) > 1:
            entry["auc"]["interval"] = over_targets([a.metrics.auc for a in group]).to_json()
            for point in summary.operating:
                if point.resolved:
                    rates = mean_rate([a.metrics.tpr_at(point.fpr) for a in group])
                    entry["tpr"][fpr_key(point.fpr)]["interval"] = rates.to_json()
        entry["own_p_value_on_population"] = self._own_p_value(name)
        return entry

    def _own_p_value(self, name: str) -> dict[str, Any]:
        """Whether the known non-members refute the attack's combined p-value; nulls if it has none."""
        check, refuted = self._flagged(name, CHECK_LEVEL), self._refuted(name)
        level, share = refuted or (CHECK_LEVEL, check.flagged / check.population if check else None)
        return {"level": level, "flagged": share, "check_failed": refuted is not None}


def _about_notes(about: dict[str, Any]) -> Iterator[Note]:
    """What follows from what was run."""
    if "groups" in about:
        yield Note(
            "groups",
            "info",
            f"The records form {about['groups']:,} groups. One record of each group, drawn at random, was evaluated, "
            "since records of one group are not independent evidence.",
        )
    if clipped := about["signals"].get("clipped", 0):
        yield Note(
            "clipped-probabilities",
            "info",
            f"{clipped:,} signals were probabilities of exactly 0 or 1 and were clipped. Store logits where you can.",
        )


def if_possible(check: Callable[[], T]) -> T | None:
    """Make a check; one that needs more data than there are is left out, and must not end the run."""
    try:
        return check()
    except PlmiaError:
        return None


def over_all(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over targets of what decisions, false discoveries and epsilon come to; see each target for the rest."""
    first = entries[0]
    return {
        "decisions": {
            rule: {level: _decision([entry["decisions"][rule][level] for entry in entries]) for level in levels}
            for rule, levels in first["decisions"].items()
        },
        "conformal": {
            rate: {level: _mean([entry["conformal"][rate][level] for entry in entries]) for level in levels}
            for rate, levels in first["conformal"].items()
            if isinstance(levels, dict)
        },
        "fdr": {
            fdr: {key: _mean([entry["fdr"][fdr][key] for entry in entries]) for key in found}
            for fdr, found in first["fdr"].items()
        },
        "epsilon": {
            "low": _mean([entry["epsilon"]["low"] for entry in entries]),
            "one_run_low": _mean([entry["epsilon"]["one_run"]["low"] for entry in entries]),
            "delta": first["epsilon"]["delta"],
        },
    }


def _decision(each: list[dict[str, Any]]) -> dict[str, Any]:
    refused = [one["refused"] for one in each if one["refused"]]
    rates = {key: _mean([one[key] for one in each]) for key in ("fpr_realised", "tpr")}
    return {"level": each[0]["level"]} | rates | {"targets_refused": len(refused), "refused": (refused or [None])[0]}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _flagged_share(level: float, wrong: dict[str, tuple[float, float]]) -> str:
    """What share of the known non-members the attacks refuted at a level flag: from the least to the most."""
    shares = sorted({f"{100 * share:.1f}" for at, share in wrong.values() if at == level}, key=float)
    most = f" to {shares[-1]}" if len(shares) > 1 else ""
    return f"it flags {shares[0]}{most} % of the known non-members at a nominal {100 * level:g} %"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."
