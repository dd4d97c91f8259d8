"""The records of a store: what makes a model count, and how the models that do not count are found and named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plmia.errors import StoreError, some
from plmia.provenance import problem_of
from plmia.store_files import Folder, LocalFolder, locked, reading, temporary_beside
from plmia.store_layout import SEALED_SCHEMA, Layout, digest, sealed, typed, unsealed

_RECORD_NAME = re.compile(r"([0-9]{6,18})(?:-([0-9]{6,18}))?\.json")
Tell = Callable[[dict[str, Any], dict[str, Any]], Iterable[str]]
# Of how many differences a message tells.
MOST_TOLD = 3
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ModelRecord:
    """What makes a model count as finished.

    Parameters
    ----------
    model : int
        Number of the model.
    chunks : tuple of str
        SHA-256 of its signals, for each chunk of points.
    provenance : dict
        How it was made, as the caller described it.
    file : str
        File of the record, relative to the store.
    together : tuple of int
        The models that this file covers: they were finished at once.
    verified : bool
        Whether the file has a digest that covers the provenance; those of earlier versions have none.
    """

    model: int
    chunks: tuple[str, ...]
    provenance: dict[str, Any]
    file: str
    together: tuple[int, ...]
    verified: bool = True


@dataclass(frozen=True)
class BadRecord:
    """A record that does not count: which models its name claims (first and last), and what is wrong."""

    first: int
    last: int
    problem: str

    def hides(self, there: Container[int]) -> bool:
        """Whether it claims a model that is not ``there`` otherwise."""
        return any(model not in there for model in range(self.first, self.last + 1))


def record_name(models: Sequence[int]) -> str:
    """File of the record of models in increasing order: `000012.json`, `000012-000027.json` for several."""
    ends = [models[0]] if len(models) == 1 else [models[0], models[-1]]
    return "-".join(f"{model:06d}" for model in ends) + ".json"


def record_json(layout: Layout, records: Sequence[ModelRecord]) -> bytes:
    """Contents of one file that commits these models at once."""
    models = [{"model": r.model, "chunks": r.chunks, "provenance": r.provenance} for r in records]
    return sealed({"key": layout.key, "models": models})


def scan(
    folder: Folder, layout: Layout, among: Collection[int] | None = None
) -> tuple[dict[int, ModelRecord], list[BadRecord]]:
    """Read the records of a store.

    Parameters
    ----------
    folder : Folder
        The store.
    layout : Layout
        Its layout.
    among : collection of int, optional
        Only files whose name claims one of these models, so that an append need not read all.

    Returns
    -------
    dict, list
        The record of each finished model in increasing order, and the files that do not count.
    """
    names, bad = [], []
    with reading(f"{folder}/records"):
        for name in folder.names("records"):
            claim = _claim(name)
            if claim is None:
                if name.endswith(".json") and not name.startswith("."):
                    bad.append(BadRecord(0, -1, f"{folder}/records/{name} is not the name of a record: remove it"))
            elif among is None or any(claim[0] <= model <= claim[1] for model in among):
                names.append(name)
        contents = folder.read([f"records/{name}" for name in names])
    good: dict[int, ModelRecord] = {}
    for name, data in zip(names, contents, strict=True):
        try:
            records = _parse_record(f"{folder}/records/{name}", layout, name, data)
            _require_agreement(folder, good, records)
        except StoreError as error:
            bad.append(BadRecord(*(_claim(name) or (0, -1)), str(error)))
        else:
            good.update((record.model, record) for record in records)
    return dict(sorted(good.items())), bad


def read_layout(folder: Folder) -> Layout:
    """Read store.json; what has none is no store."""
    try:
        with reading(f"{folder}/store.json"):
            return Layout.from_json(f"{folder}/store.json", folder.read(["store.json"])[0])
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise StoreError(f"{folder} is not a store (it has no store.json): give the folder of one") from error
        raise


def require_same(path: Path, there: Layout, here: Layout, tell: Tell) -> None:
    """Require that two layouts are of the same audit; ``tell`` says in words where they differ."""
    found = list(dict.fromkeys(line.removeprefix("about.") for line in tell(there.identity, here.identity)))
    if found:
        rest = f"; and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
        raise StoreError(
            f"{path} belongs to another audit ({'; '.join(found[:MOST_TOLD])}{rest}): choose another folder, or go "
            "back to the settings it was made with; nothing in it was changed"
        )


def require_key(folder: Folder, layout: Layout) -> None:
    """Require that the store is still the one that was opened."""
    if read_layout(folder).key != layout.key:
        raise StoreError(f"{folder} was started anew for another audit meanwhile: choose another folder, and run again")


def set_aside(path: Path) -> bool:
    """Remove the store in a local folder if no model finished in it; whether that was so.

    Under its lock, and by renaming: whoever appends meanwhile either comes first, and then the store stays, or finds
    that the store is another.
    """
    with locked(path / "signals.npy"):
        if any(not name.startswith(".") for name in LocalFolder(path).names("records")):
            return False
        aside = temporary_beside(path)
        path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
    return True


def damage(
    folder: Folder, layout: Layout, record: ModelRecord, data: bytes | memoryview, start: int, stop: int
) -> Iterator[str]:
    """Say which chunks of points ``start`` to ``stop`` of a model are not what its record says."""
    point = layout.model_bytes // layout.n_points
    for chunk, first, end in layout.chunks(start, stop):
        if digest(memoryview(data)[(first - start) * point : (end - start) * point]) != record.chunks[chunk]:
            yield (
                f"{folder}/signals.npy is damaged at model {record.model}, points {first} to {end - 1} "
                f"(the checksum differs): {_remedy(folder, record)}"
            )


def cut_off(folder: Folder, layout: Layout, records: Iterable[ModelRecord], stop: int) -> Iterator[str]:
    """Say for which models signals.npy ends before point ``stop``."""
    size = folder.size("signals.npy")
    for record in records:
        begin, end = layout.span(record.model, 0, stop)
        if end > size:
            point = max(size - begin, 0) // (layout.model_bytes // layout.n_points)
            yield f"{folder}/signals.npy is cut off at model {record.model}, point {point}: {_remedy(folder, record)}"


def raise_first(problems: Iterable[str]) -> None:
    """Raise the first problem, if there is any."""
    for problem in problems:
        raise StoreError(problem)


def is_there(folder: Folder, there: ModelRecord | None, digests: tuple[str, ...]) -> bool:
    """Whether a model is finished with the signals of these digests; raises if it is with others."""
    if there is not None and there.chunks != digests:
        raise StoreError(
            f"model {there.model} of {folder} is finished with other signals: to replace it, remove "
            f"{folder}/{there.file} first (it covers model {some(there.together)})"
        )
    return there is not None


def _remedy(folder: Folder, record: ModelRecord) -> str:
    return f"remove {folder}/{record.file} and run again, only model {some(record.together)} is trained anew"


def _claim(name: str) -> tuple[int, int] | None:
    match = _RECORD_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2] or match[1]))


def _parse_record(what: str, layout: Layout, name: str, data: bytes) -> list[ModelRecord]:
    remedy = "it does not count, and the audit, when it is run in this folder, trains its models anew"
    found = unsealed(what, data, remedy)
    if found.get("key") != layout.key:
        raise StoreError(
            f"{what} belongs to another audit (key {str(found.get('key'))[:12]}, this store has {layout.key[:12]}): "
            + remedy
        )
    try:
        entries = typed(found, "models", list)
        models = tuple(typed(entry, "model", int) for entry in entries)
        chunks = [tuple(typed(entry, "chunks", list)) for entry in entries]
        provenance = [typed(entry, "provenance", dict) for entry in entries]
    except (KeyError, TypeError) as error:
        raise StoreError(f"{what} is damaged ({error}): {remedy}") from error
    outside = [model for model in models if not 0 <= model < layout.n_models]
    if outside:
        raise StoreError(
            f"{what} claims model {some(outside)}, the store has {layout.n_models} models: open it again if it was "
            "extended meanwhile, else remove that file"
        )
    if not models or sorted(set(models)) != list(models) or record_name(models) != name:
        raise StoreError(f"{what} claims model {some(models)}, which does not fit its name: {remedy}")
    n_chunks = -(-layout.n_points // layout.chunk)
    if any(len(c) != n_chunks or not all(isinstance(d, str) and _DIGEST.fullmatch(d) for d in c) for c in chunks):
        raise StoreError(f"{what} is damaged (not {n_chunks} checksums for each model): {remedy}")
    for model, entry in zip(models, provenance, strict=True):
        problem = problem_of(entry, layout.n_points * len(layout.views))
        if problem is not None:
            raise StoreError(f"{what} cannot be right (model {model}: {problem}): {remedy}")
    verified = found["schema"] == SEALED_SCHEMA
    return [
        ModelRecord(m, c, p, f"records/{name}", models, verified)
        for m, c, p in zip(models, chunks, provenance, strict=True)
    ]


def _require_agreement(folder: Folder, good: Mapping[int, ModelRecord], records: Sequence[ModelRecord]) -> None:
    for record in records:
        other = good.get(record.model)
        if other is not None and other.chunks != record.chunks:
            raise StoreError(
                f"{folder}/{record.file} and {folder}/{other.file} have different checksums for model {record.model}: "
                "remove the wrong one, verify() tells which"
            )
