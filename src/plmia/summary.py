"""What is said of a whole run, as metrics.json has it: all attacks on all targets, checks, verdict and notes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from plmia.assessment import Assessment, assess
from plmia.decisions import Analytic
from plmia.diagnostics import (
    EnoughReferences,
    PopulationSize,
    UnlikeReferences,
    population_size,
    unlike_references,
)
from plmia.errors import PlmiaError
from plmia.evaluation import AttackResult
from plmia.gaussianity import Gaussianity, gaussianity, metrics_by_group
from plmia.intervals import over_targets
from plmia.metrics import fpr_key, summarise
from plmia.verdict import Verdict, reach_verdict

T = TypeVar("T")

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

    def add_power(self, power: EnoughReferences | None) -> None:
        """Take in how the number of references bears on the power, if that could be measured."""
        self._power = power

    @property
    def verdict(self) -> Verdict:
        """What the run found."""
        return reach_verdict(self._assessments)

    def notes(self) -> list[str]:
        """What a reader must know beside the numbers, in plain words."""
        notes = []
        pairs = {target: models for target, models in self._left_out.items() if models}
        if pairs:
            target, models = min(pairs.items())
            others = f" (and likewise for {len(pairs) - 1} other targets)" if len(pairs) > 1 else ""
            which = ", ".join(map(str, models))
            notes.append(
                f"Model {which} is no reference of target {target}: it trained on the target's set or the complement, "
                f"so it would give the answer away{others}."
            )
        everyone = [a.metrics for group in self._assessments.values() for a in group]
        fewest = min(everyone, key=lambda m: m.n_non_members)
        poor = [point for point in fewest.operating if not point.resolved]
        if poor:
            rates = ", ".join(f"{100 * point.fpr:g} % (needs {point.needed:,})" for point in reversed(poor))
            notes.append(
                f"With {fewest.n_non_members:,} evaluated non-members there is no TPR at an FPR of {rates}: "
                "the table leaves it out, metrics.json marks it."
            )
        warned = [check.warning for _, check in sorted(self._likeness.items()) if check]
        warned.append(self._sizes_of[min(self._sizes_of)].warning)
        warned.append(self._power.warning if self._power else None)
        notes += [_sentence(warning) for warning in warned if warning]
        wrong = [name for name in self._assessments if self._refuted(name)]
        if wrong:
            most = max(share for name in wrong if (share := self._flagged(name)) is not None)
            notes.append(
                f"The combined p-value of {', '.join(wrong)} is nominal only: at {100 * CHECK_LEVEL:g} % it flags "
                f"{100 * most:.1f} % of the known non-members, so its threshold is not used. All decisions are by the "
                "conformal p-value (log10_p_conformal)."
            )
        return notes

    def _flagged(self, attack: str) -> float | None:
        """Share of known non-members that the attack's combined p-value flags at `CHECK_LEVEL`, if it has one."""
        checks = [a.decision(Analytic.name, CHECK_LEVEL).check for a in self._assessments[attack]]
        shares = [check.flagged / check.population for check in checks if check is not None]
        return float(np.mean(shares)) if shares else None

    def _refuted(self, attack: str) -> bool:
        """Whether the known non-members refute the paper's threshold at some level, for some target."""
        return any(d.rule == Analytic.name for a in self._assessments[attack] for d in a.failed_checks)

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
        notes = self.notes()
        clipped = about["signals"].get("clipped", 0)
        if clipped:
            notes.append(
                f"{clipped:,} signals were probabilities of exactly 0 or 1 and were clipped, so what is beyond is "
                "unknown: store logits where you can."
            )
        contents = {
            "schema": 1,
            "verdict": self.verdict.to_json(),
            "about": about,
            "attacks": attacks,
            "diagnostics": self._diagnostics(),
            "notes": notes,
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
        summary = summarise([assessment.metrics for assessment in group])
        entry = summary.to_json() | {"per_target": entries}
        entry |= {key: mean_of([e[key] for e in entries]) for key in ("decisions", "conformal", "fdr", "epsilon")}
        if len(group) > 1:
            entry["auc"]["interval"] = over_targets([a.metrics.auc for a in group]).to_json()
            for point in summary.operating:
                rates = [a.metrics.tpr_at(point.fpr).tpr for a in group]
                entry["tpr"][fpr_key(point.fpr)]["interval"] = over_targets(rates).to_json()
        refuted = self._refuted(name)
        entry["own_p_value_on_population"] = {
            "level": CHECK_LEVEL,
            "flagged": self._flagged(name),
            "check_failed": refuted,
        }
        return entry


def if_possible(check: Callable[[], T]) -> T | None:
    """Make a check; one that needs more data than there are is left out, and must not end the run."""
    try:
        return check()
    except PlmiaError:
        return None


def mean_of(values: list[Any]) -> Any:
    """Mean over targets of numbers inside equal structures; a truth must hold for all; other things must agree."""
    first = values[0]
    if isinstance(first, dict):
        return {key: mean_of([value[key] for value in values if value is not None]) for key in first}
    known = [value for value in values if value is not None]
    if known and isinstance(known[0], bool):
        return all(known)
    if known and isinstance(known[0], int | float):
        return float(np.mean(known))
    return first if all(value == first for value in values) else None


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."
