"""Which model trains on which point, and which models may serve as references of which target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plmia.errors import ReferencesError, SignalsError, some

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class MembershipDesign:
    """Which model trained on which point.

    Parameters
    ----------
    matrix : bool array [models, points]
        True where the model (row) trained on the point (column).
    """

    matrix: BoolArray

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or self.matrix.dtype != np.bool_:
            raise SignalsError(
                f"membership has shape {self.matrix.shape} and type {self.matrix.dtype}, "
                "a bool array [models, points] is needed: store one row a model, True where it trained on the point"
            )

    def splits(self) -> list[IntArray]:
        """Group the models whose rows are equal or complementary.

        One row of a group gives away every other row of it, so no member of a group may be a reference of
        another. In the default design each group is a complementary pair.

        Returns
        -------
        list of int arrays
            The models of each group, in order of their first model.
        """
        groups: dict[bytes, list[int]] = {}
        for model, row in enumerate(self.matrix):
            groups.setdefault(np.packbits(row ^ row[0]).tobytes(), []).append(model)
        return [np.array(models, dtype=np.intp) for models in groups.values()]


@dataclass(frozen=True)
class ReferencePlan:
    """Which models are the references of each target.

    The splits stand in one random order that all targets share; a target takes the first ``wanted`` models of
    it, passing over its own split. Hence a smaller budget is always a part of a larger one, and the references of
    two targets differ by at most one split.

    Parameters
    ----------
    order : list of int arrays
        Splits of the design in random order, larger ones first.
    wanted : int or None
        How many references each target gets; None for all that are eligible.
    """

    order: list[IntArray]
    wanted: int | None

    @classmethod
    def draw(cls, design: MembershipDesign, wanted: int | None, rng: np.random.Generator) -> ReferencePlan:
        """Put the splits into a random order, whole pairs before single models."""
        splits = design.splits()
        shuffled = [splits[i] for i in rng.permutation(len(splits))]
        return cls(sorted(shuffled, key=len, reverse=True), wanted)

    def split_of(self, target: int) -> int:
        """Position in ``order`` of the split that holds ``target``."""
        return next(i for i, models in enumerate(self.order) if target in models)

    def references_of(self, target: int) -> list[int]:
        """Positions in ``order`` of the splits that serve ``target``; raises if they cannot add up to ``wanted``."""
        own = self.split_of(target)
        others = [i for i in range(len(self.order)) if i != own]
        eligible = sum(len(self.order[i]) for i in others)
        if self.wanted is None:
            if not others:
                raise ReferencesError(
                    f"target {target} has no eligible reference: every other model trained on the same split or its "
                    "complement; add models trained on other splits"
                )
            return others
        if self.wanted > eligible:
            raise ReferencesError(
                f"{self.wanted} references were asked for, target {target} has {eligible} eligible ones "
                f"(model {some(self.order[own])} shares its split or the complement): "
                f"ask for at most {eligible}"
            )
        return self._fill(others)

    def _fill(self, others: list[int]) -> list[int]:
        assert self.wanted is not None  # noqa: S101 - the caller checked; this tells the type checker
        chosen: list[int] = []
        missing = self.wanted
        for i in others:
            if len(self.order[i]) <= missing:
                chosen.append(i)
                missing -= len(self.order[i])
        if missing:
            fewer = f"{self.wanted - missing} or " if self.wanted > missing else ""
            raise ReferencesError(
                f"{self.wanted} references cannot be made of whole complementary pairs: "
                f"ask for {fewer}{self.wanted + 1}"
            )
        return chosen
