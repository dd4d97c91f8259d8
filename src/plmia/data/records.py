"""Records of any kind, by number: map-style datasets of PyTorch, or any other object with `len` and an index.

A record is an input, or an (input, target) pair. It may hold tensors, arrays, numbers, texts, and tuples, lists and
dictionaries of them. Records are identified by their contents, so a dataset is read once when an audit starts.
"""

from __future__ import annotations

import hashlib
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.data.arrays import Array, IntArray
from plmia.data.tables import is_frame
from plmia.data.user_code import PASSED_ON, described, lacks_memory
from plmia.errors import DataError, Note

Keys = npt.NDArray[np.uint8]

# Records that are read a second time, to find datasets that change their records at random.
_READ_TWICE = 64
_KEY_BYTES = 16


def is_records(values: Any) -> bool:
    """Whether values are read record by record: they have `len` and an index, and are no arrays, lists or texts."""
    if isinstance(values, np.ndarray | list | tuple | str | bytes | Mapping | Records) or is_frame(values):
        return False
    if _is_channels_first(values):
        return True
    array = hasattr(values, "__array__") or hasattr(values, "__array_interface__")
    return not array and hasattr(values, "__len__") and hasattr(values, "__getitem__")


def _is_channels_first(values: Any) -> bool:
    """Whether values are a tensor [records, channels, height, width, ...]: modules get its records unchanged.

    Tensors of images are taken so unless their last axis alone has the size of channels.
    """
    torch = sys.modules.get("torch")  # whoever has a tensor has imported it
    if torch is None or not isinstance(values, torch.Tensor) or values.ndim < 4:
        return False
    return bool(values.ndim > 4 or values.shape[3] > 4 or values.shape[1] <= 4)


@dataclass(frozen=True, eq=False)
class Records:
    """A map-style dataset that was read once.

    Parameters
    ----------
    dataset : object with `len` and an index
        The user's own object.
    paired : bool
        Whether a record is an (input, target) pair.
    keys : uint8 array [records, 2, bytes]
        Digests of the first part of each pair and of the whole record; both of the record if it is not a pair.
    """

    dataset: Any
    paired: bool
    keys: Keys

    @classmethod
    def read(cls, dataset: Any, y: Any = None) -> tuple[Records, Any]:
        """Read a dataset; return it with its labels, which are ``y`` or, without, the targets of the pairs.

        Labels are None if targets are not single numbers or texts. If ``y`` is given, the records are pairs only if
        their second parts are the same labels.
        """
        if len(dataset) == 0:
            raise DataError("X has no records: give a dataset with some")
        keys, labels = np.empty((len(dataset), 2, _KEY_BYTES), np.uint8), list[Any]()
        pairs = True
        for record in range(len(dataset)):
            item = _item(dataset, record)
            keys[record] = _key(item, record)
            pairs = pairs and _is_pair(item)
            if pairs:
                labels.append(_label(item[1]))
        found = labels if pairs and not any(label is None for label in labels) else None
        if y is not None:
            pairs = found is not None and np.array_equal(np.asarray(found), np.asarray(y))
        return cls(dataset, pairs, keys), found if y is None else y

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, record: int) -> Any:
        """Return a record as the dataset does."""
        return _item(self.dataset, record)

    def split(self, record: int) -> tuple[Any, Any]:
        """Return the input and the target of a record; without a target, None."""
        item = self[record]
        return (item[0], item[1]) if self.paired else (item, None)

    def rows(self, chosen: Array | None = None) -> Selected:
        """Some of the records, by a bool mask [records] or by number; all by default."""
        every = np.arange(len(self))
        return Selected(self, every if chosen is None else every[chosen])

    @cached_property
    def steady(self) -> bool:
        """Whether a record has the same contents each time it is read; checked for some of them."""
        chosen = np.unique(np.linspace(0, len(self) - 1, _READ_TWICE).astype(int)).tolist()
        return all(np.array_equal(_key(self[record], record), self.keys[record]) for record in chosen)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all records; a new one for each audit if they change when they are read again."""
        if not self.steady:
            return f"once-{uuid.uuid4().hex}"
        return hashlib.sha256(np.ascontiguousarray(self.keys[:, 1]).data).hexdigest()

    def row_keys(self) -> Keys:
        """One row of bytes per record, equal where the inputs are equal."""
        return self.keys[:, 0 if self.paired else 1]

    def notes(self) -> tuple[Note, ...]:
        """Note that records change when they are read again, if they do."""
        if self.steady:
            return ()
        text = (
            "Records of the dataset change each time they are read, by random augmentation for example. So answers of "
            "a model vary, and finished models will not be reused by another run. Augment in training only: "
            "plmia.Torch(transform=…)."
        )
        return (Note("records-vary", "caution", text),)


@dataclass(frozen=True, eq=False)
class Selected:
    """Some records of a dataset, which are a map-style dataset themselves."""

    records: Records
    numbers: IntArray

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, record: int) -> Any:
        """Return a record as the user's dataset does."""
        return self.records[int(self.numbers[record])]


def _item(dataset: Any, record: int) -> Any:
    try:
        return dataset[record]
    except PASSED_ON:
        raise
    except BaseException as error:  # the user's code may raise anything
        if lacks_memory(error):
            raise
        raise DataError(f"record {record} of X cannot be read ({described(error)}): correct the dataset") from error


def _is_pair(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2


def _label(value: Any) -> Any:
    """A target that is a single number or text; None for all others."""
    if isinstance(value, str | bool | int | float | np.generic):
        return value
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return None


# Contents -------------------------------------------------------------------------------------------------------------


def _key(item: Any, record: int) -> Keys:
    """Digests of the first part of a pair and of the whole record, [2, bytes]."""
    parts = list(item) if _is_pair(item) else [item]
    digests = [hashlib.blake2b(b"".join(_contents(part, record)), digest_size=_KEY_BYTES).digest() for part in parts]
    whole = hashlib.blake2b(b"".join(digests), digest_size=_KEY_BYTES).digest()
    return np.frombuffer((digests[0] if len(parts) == 2 else whole) + whole, np.uint8).reshape(2, _KEY_BYTES)


def _contents(value: Any, record: int) -> list[bytes]:
    """Bytes that differ between values of different types, shapes or contents."""
    if value is None or isinstance(value, str | bytes | bool | int | float | complex):
        return [f"{type(value).__name__} {value!r}\0".encode(errors="surrogatepass")]
    if isinstance(value, Mapping):
        return [b"{", *(part for pair in value.items() for part in _contents(pair, record)), b"}"]
    if isinstance(value, tuple | list):
        return [b"(", *(part for entry in value for part in _contents(entry, record)), b")"]
    array = array_of(value)
    if array is None:
        raise DataError(
            f"record {record} of X holds a {type(value).__name__}: return tensors, arrays, numbers, texts, and tuples "
            "or dictionaries of them"
        )
    if array.dtype == object:
        return [f"objects {array.shape}\0".encode(), *_contents(array.ravel().tolist(), record)]
    little = array.dtype.newbyteorder("<")
    return [f"array {little.str} {array.shape}\0".encode(), np.ascontiguousarray(array, little).tobytes()]


def array_of(value: Any) -> Array | None:
    """Array of a NumPy value, a tensor or an image; None for other objects."""
    if hasattr(value, "detach"):  # a tensor; NumPy has no bfloat16
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    if isinstance(value, np.generic | np.ndarray) or hasattr(value, "__array__"):
        return np.asarray(value)
    return np.asarray(value) if hasattr(value, "__array_interface__") else None
