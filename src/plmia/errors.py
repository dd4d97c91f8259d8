"""Messages to users: named errors, notes with codes, and how numbers and names are written in both.

An error message states what is wrong, the value, the limit, and what to do. A note has a code and a severity:

- ``info``: has no consequence;
- ``caution``: weakens what the audit can exclude. A leak that was found stays; "no leak found" becomes "inconclusive";
- ``invalid``: the numbers cannot be interpreted.

The verdict, the gate and the colour of the report depend on codes and severities, never on wording.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

# All but control characters, lone surrogates and non-characters: SVG excludes these, and UTF-8 has no surrogates.
_UNWRITABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# What controls a terminal: control characters but tabs and line breaks, and marks that change the direction of text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

# Smaller rates need more records than there are, and their inverse may overflow.
LEAST_RATE = 1e-15
# Counts from here on are written as powers of ten.
_HUGE = 10**21


class PlmiaError(ValueError):
    """Input that plmia cannot work with; the command prints it as one sentence and exits with 2."""


class SignalsError(PlmiaError):
    """A signals file, or the arrays in it, that cannot be read or do not fit together."""


class ReferencesError(PlmiaError):
    """Too few reference models, or records without the IN or OUT references an estimator needs."""


class PopulationError(PlmiaError):
    """A population that is too small, degenerate, or overlaps what it must not overlap."""


class AttackError(PlmiaError):
    """An attack that does not exist, cannot be loaded, or does not fit the data."""


class DataError(PlmiaError):
    """A data set that cannot be read or does not fit together."""


class RecipeError(PlmiaError):
    """A recipe that does not exist, or does not fit the data."""


class TrainingError(PlmiaError):
    """Training that could not continue; finished models are kept."""

    def __init__(self, sentence: str, trace: str = "") -> None:
        super().__init__(sentence)
        self.trace = trace  # traceback of the user's own code, if that raised the error


class StoreError(PlmiaError):
    """A store that is damaged, foreign, or belongs to another audit."""


class OutputError(PlmiaError):
    """A result that cannot be written."""


class MemoryLimitError(PlmiaError):
    """A memory limit that is not a size, or within which a command cannot work."""


class PlmiaWarning(UserWarning):
    """What a user should know while something runs; the command prints it as one line."""


def some(indices: Sequence[int] | npt.NDArray[np.intp], most: int = 5) -> str:
    """Name up to ``most`` indices and count the rest: ``"3, 17, 20 and 4 more"``."""
    named = ", ".join(str(int(i)) for i in indices[:most])
    rest = len(indices) - most
    return f"{named} and {rest:,} more" if rest > 0 else named


def shown(name: str) -> str:
    """Name of a file as text that can be written anywhere: bytes that are not UTF-8 become replacement characters."""
    # Python represents such bytes by lone surrogates.
    return re.sub("[\ud800-\udfff]", "\ufffd", name)


def writable(text: str) -> str:
    """Return the text with U+FFFD for every character that cannot be written, such as a lone surrogate."""
    return _UNWRITABLE.sub("\ufffd", text)


def visible(text: str) -> str:
    """Return the text with escapes for characters that control a terminal, such as the one that begins a colour.

    Names in files of the audited party could otherwise hide or replace a part of what is printed.
    """
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def sentence(text: str) -> str:
    """Return the text with a capital letter at its start and a full stop at its end."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def after_colon(text: str) -> str:
    """Return a sentence that continues another one: its first letter small, unless an abbreviation begins it."""
    return text if text[:2].isupper() else f"{text[:1].lower()}{text[1:]}"


def percent(rate: float | None) -> str:
    """Write a measured share in per cent: one decimal from 1 % on, two digits below, a dash for None."""
    if rate is None:
        return "–"
    value = 100 * rate
    return f"{value:.1f} %" if value >= 1 or value == 0 else f"{value:.2g} %"


def round_percent(rate: float) -> str:
    """Write a chosen share in per cent, without needless digits: 10 %, 0.1 %."""
    return f"{100 * rate:.10g} %"


def count_text(n: int) -> str:
    """Write a whole number of any size: all digits, or the power of ten below it if it is very large."""
    return f"{n:,}" if abs(n) < _HUGE else f"more than 10^{math.floor(math.log10(n))}"


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None, *, cutoff: float = 0.6) -> str:
    """Suggest the known name nearest to a misspelt one; ``otherwise``, by default all known names, if none is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    if near:
        return f"did you mean {near[0]!r}?"
    return otherwise if otherwise is not None else f"known are {', '.join(names)}"


# Without an index, pip installs torch with all libraries of CUDA, several gigabytes.
CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"


def install_hint(extra: str) -> str:
    """Command that installs an extra of plmia: from the checkout that this package runs from, or as published."""
    checkout = Path(__file__).resolve().parents[2]
    published = not (checkout / "pyproject.toml").is_file()
    command = f"pip install 'plmia[{extra}]'" if published else f"pip install -e '{checkout}[{extra}]'"
    return f"{command} (without a GPU, first the CPU build: {CPU_TORCH})" if extra == "torch" else command


def require_rate(name: str, value: float, error: type[PlmiaError] = PlmiaError) -> None:
    """Raise unless a rate, such as a false-positive rate or a confidence level, lies between 0 and 1."""
    if not 0 < value < 1:
        raise error(f"{name} is {value}, but must lie between 0 and 1: 0.01 stands for 1 %")
    if value < LEAST_RATE:
        raise error(f"{name} is {value:g}, below {LEAST_RATE:g}, which no audit resolves: give a larger one")


def require_members(value: object, contract: type, error: type[PlmiaError] = PlmiaError) -> None:
    """Raise unless an object has every public member of a protocol; a class that inherits from it has the defaults."""
    members = sorted(name for name in {*vars(contract), *contract.__annotations__} if not name.startswith("_"))
    if missing := [name for name in members if not hasattr(value, name)]:
        raise error(
            f"{type(value).__name__} lacks {', '.join(missing)}: inherit the defaults from "
            f"{contract.__module__}.{contract.__name__}, or define every member"
        )


Severity = Literal["info", "caution", "invalid"]

# Every code and its meaning. `plmia gate --accept CODE` takes those whose note is a caution or invalid.
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
    "fit-unlike-references": "the target fits its members clearly less or more than its references fit theirs",
    "fixed-member-law": "offline, only attacks were run that assume by fixed constants how members differ",
    "group-column": "a column that looks like the group of each record, or equals it, among the features",
    "groups": "one record of each group was evaluated",
    "hard-labels": "all probabilities of a given target are 0 or 1, so they may be labels",
    "identifier-columns": "columns whose values all are distinct, as those of an identifier",
    "images-flattened": "the conditional attack reads images as rows of pixels",
    "likeness-unchecked": "too few references to check well whether a given target is like them",
    "members-counted": "row numbers of a given target's members that may have been counted from 1",
    "members-swapped": "non-members look more like members than the members do",
    "missing-groups": "records without a group, each of which is its own group",
    "models-not-reused": "training code that cannot be recognised, so that another run trains all models again",
    "more-references": "more references would probably find more",
    "other-kind": "the references are models of another kind than the target",
    "other-recipe": "an attacked model was trained by another recipe than the target of the audit",
    "other-share": "the target trained on another share of the records than its references",
    "population-size": "the population is too small for some false-positive rates",
    "probabilities-renormalised": "class probabilities missed a sum of 1 by rounding and were renormalised",
    "rates-unresolved": "too few evaluated non-members for some false-positive rates",
    "recipe-preprocessing": "the recipe converts the data before training",
    "records-tell-members": "members can be told from non-members by their records alone, without the model",
    "records-unlike-references": "a given target's signals do not follow those of its references from record to record",
    "records-unnamed": "no single record can be identified with this population",
    "records-vary": "records of a dataset change each time they are read",
    "references-aligned": "the references' signals were moved to the scale of a target that is unlike them",
    "references-match-poorly": "the references tell little about the target, even on its scale",
    "screening": "one model was screened without references, which can show a leak but not its absence",
    "signal-is-loss": "the function that returns signals is called loss, which is lower for members",
    "split-copies": "copies of a record are on both sides of a split",
    "people-by-one-record": "too few references to judge people by all of their records",
    "subgroup-exposed": "a subgroup is more exposed than the others",
    "subgroups-not-compared": "subgroups that could not be compared",
    "trainings-not-compared": "not every model could be the target in turn",
    "subgroup-varies": "people have records in several subgroups",
    "split-groups": "groups hold members and non-members of the target",
    "table-read": "how a CSV file was read: separator, missing values, types that are not obvious",
    "target-at-chance": "a given target is right no more often than the most frequent class",
    "target-columns": "columns of a given target's predictions that were taken in order, or not used",
    "targets-summarised": "decisions by all rules and diagnostics of the first targets only, since there are many",
    "texts-replaced": "characters of texts or names that cannot be written are shown as U+FFFD",
    "tied-scores": "most scores of an attack are tied",
    "threshold-unbounded": "too few non-members for a lower end above 0 at the verdict's false-positive rate",
    "undeclared-files": "training read files that the recipe does not declare",
    "unfinished-models": "some models of the store are not trained yet, so that fewer references were used",
    "unlike-references": "the target is unlike its references",
    "unused-arrays": "arrays of a file that were not read",
    "unverified-records": "training records of an earlier version, whose contents cannot be verified",
    "unverified-results": "results of an earlier version, which kept no digests",
    "weak-attacks": "only attacks that use no references were run",
    "wide-interval": "the interval does not exclude a leak worth worrying about",
}
# Codes about the number of evaluated records: more records would help if nothing else is in doubt.
SIZE = ("few-non-members", "wide-interval")
# Cautions about what was given: labels in place of probabilities, or answers that may be of other records.
INPUT = ("hard-labels", "target-at-chance", "records-unlike-references")
# Cautions about references that are unlike the target. They can show a leak, but not its absence.
UNLIKE = (
    "other-kind",
    "references-match-poorly",
    "fit-unlike-references",
    "answers-unlike-references",
    "unlike-references",
)


@dataclass(frozen=True)
class Note:
    """One remark or warning for the reader.

    Parameters
    ----------
    code : str
        A key of `CODES`, which stays the same when the wording changes.
    severity : {"info", "caution", "invalid"}
        Its consequence; see the module.
    text : str
        One or two sentences: what happened, the value, the limit, the remedy.
    """

    code: str
    severity: Severity
    text: str

    def __post_init__(self) -> None:
        if self.code not in CODES or self.severity not in get_args(Severity):
            raise ValueError(f"there is no note {self.code!r} of severity {self.severity!r}")
        object.__setattr__(self, "text", sentence(self.text))

    def to_json(self) -> dict[str, str]:
        """Return the entry in ``metrics.json``."""
        return asdict(self)


def doubts(notes: Iterable[Note]) -> list[Note]:
    """Notes that the verdict depends on: invalid ones first, then those about the input, those about the size last."""
    found = [note for note in notes if note.severity != "info"]
    return sorted(found, key=lambda note: (note.severity != "invalid", note.code not in INPUT, note.code in SIZE))
