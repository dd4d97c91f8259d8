"""Notes: what a reader must know beside the numbers, each with a code and a severity that decide what follows from it.

The verdict, the gate and the colour of the report depend on codes and severities, never on wording:

- ``info``: good to know, changes nothing;
- ``caution``: weakens what the audit can exclude. A shown leak stays shown; "no leak shown" becomes "inconclusive";
- ``invalid``: the numbers do not mean what they say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Severity = Literal["info", "caution", "invalid"]

# Every code, and what it says. `plmia gate --accept CODE` takes those whose note is a caution or invalid.
CODES: dict[str, str] = {
    "answers-unlike-references": "a given target is right more or less often than its references",
    "attacks-left-out": "attacks that could not run",
    "clipped-probabilities": "probabilities of exactly 0 or 1 were clipped",
    "combined-p-value": "the paper's combined p-value is miscalibrated; conformal p-values are used instead",
    "counts-rebalanced": "references were dropped at random so that their numbers do not reveal membership",
    "counts-reveal-membership": "the numbers of IN and OUT references reveal membership",
    "earlier-version": "a note of an earlier version of plmia",
    "excluded-references": "models that were excluded as references, since they would reveal membership",
    "few-non-members": "too few evaluated non-members for a true-positive rate at the verdict's false-positive rate",
    "few-references": "too few references for the attacks to have power",
    "groups": "one record of each group was evaluated",
    "likeness-unchecked": "too few references to check well whether a given target is like them",
    "members-swapped": "non-members look more like members than the members do",
    "more-references": "more references would probably find more",
    "other-share": "the target trained on another share of the records than its references",
    "population-size": "the population is too small for some false-positive rates",
    "probabilities-renormalised": "class probabilities missed a sum of 1 by rounding and were renormalised",
    "rates-unresolved": "too few evaluated non-members for some false-positive rates",
    "recipe-preprocessing": "the recipe converts the data before training",
    "records-unnamed": "no single record can be identified with this population",
    "split-copies": "copies of a record are on both sides of a split",
    "split-groups": "groups hold members and non-members of the target",
    "texts-replaced": "characters of texts or names that cannot be written are shown as U+FFFD",
    "tied-scores": "most scores of an attack are tied",
    "undeclared-files": "training read files that the recipe does not declare",
    "unfinished-models": "some models of the store are not trained yet, so that fewer references were used",
    "unlike-references": "the target is unlike its references",
    "unused-arrays": "arrays of a file that were not read",
    "unverified-records": "training records of an earlier version, whose contents cannot be verified",
    "unverified-results": "results of an earlier version, which kept no digests",
    "weak-attacks": "only attacks that use no references were run",
    "wide-interval": "the interval does not exclude a leak worth worrying about",
}
# About the number of evaluated records: more records would help, where nothing else is in doubt.
SIZE = ("few-non-members", "wide-interval")


@dataclass(frozen=True)
class Note:
    """One thing that a reader must know.

    Parameters
    ----------
    code : str
        A key of `CODES`; stays the same when the wording changes.
    severity : {"info", "caution", "invalid"}
        What follows from it; see the module.
    text : str
        One or two sentences: what happened, the value, the limit, the remedy.
    """

    code: str
    severity: Severity
    text: str

    def __post_init__(self) -> None:
        if self.code not in CODES or self.severity not in get_args(Severity):
            raise ValueError(f"there is no note {self.code!r} of severity {self.severity!r}")
        object.__setattr__(self, "text", _sentence(self.text))

    def to_json(self) -> dict[str, str]:
        """Return the entry in ``metrics.json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Note:
        """Read an entry of ``metrics.json``."""
        return cls(value["code"], value["severity"], value["text"])


def doubts(notes: Iterable[Note]) -> list[Note]:
    """Notes that the verdict depends on: invalid ones first, those about the audit's size last."""
    found = [note for note in notes if note.severity != "info"]
    return sorted(found, key=lambda note: (note.severity != "invalid", note.code in SIZE))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
