"""Identity of the user's code and values: a digest of everything that decides what they compute.

A function is identified by its compiled code, since that is what runs. Its source is not enough: it may have been
edited after the import, some sessions do not keep it, and two lambdas on one line share it. The digest covers defaults,
closure, attributes, and every global that the function or a function inside it reads: helper functions, classes with
all their methods and bases, what is used of the user's modules, arrays and tables by their contents. Code of Python and
of installed packages is identified by its name. Other objects are identified by the state that pickle would save.

What cannot be read has no identity: locks, open files, code that calls ``eval``. It gets a key that is used once.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from plmia.data.user_code import PASSED_ON, described
from plmia.errors import Note, RecipeError

# Python refuses to print numbers that are much longer.
_MAX_BITS = 10_000
# Start of the key of code that cannot be recognised.
ONCE = "once-"
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range)
# Set by Python or by abc for each class anew, and without a meaning for its methods.
_NOT_OF_THE_CLASS = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"),
    *("__annotate__", "__annotate_func__", "__annotations_cache__", "__slotnames__", "__classcell__"),
    *("_value2member_map_", "_hashable_values_", "_unhashable_values_", "_unhashable_values_map_"),
}
# With these, code can reach what its names do not show.
_DYNAMIC = {"eval", "exec", "globals", "__import__"}
_BY_NAME = frozenset({"getattr", "vars", "__dict__", "attrgetter"})
_READS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}


class NoIdentityError(RecipeError):
    """Code or a value whose contents cannot be compared with those of another run."""


@dataclass(frozen=True)
class Identity:
    """A key that is equal for equal code and values; where they cannot be read, a new key each time and the reason."""

    key: str
    unread: str = ""

    def notes(self, remedy: str) -> list[Note]:
        """Note that finished models will not be reused, if that is so, and how to change that."""
        if not self.unread:
            return []
        text = f"another run cannot reuse the finished models of this audit: {self.unread}. {remedy}"
        return [Note("models-not-reused", "info", text)]


def identify(name: str, value: Any) -> Identity:
    """Identity of a value, called ``name`` in messages, and of all code that it refers to."""
    try:
        return Identity(_hex(name, value))
    except NoIdentityError as error:
        return Identity(used_once(), str(error))


def used_once() -> str:
    """Make a key that equals no other."""
    return f"{ONCE}{uuid.uuid4().hex}"


def _hex(name: str, value: Any) -> str:
    try:
        return _Walk().of(value, name).hex()
    except NoIdentityError:
        raise
    except PASSED_ON:
        raise
    except BaseException as error:  # objects may raise anything when they are read
        raise NoIdentityError(f"{name!r} cannot be read ({described(error)})") from error


def text_of(name: str, value: Any) -> str:
    """Text that distinguishes a value called ``name`` in every process: readable where it can be, else a digest."""
    if type(value) in (np.ndarray, np.memmap) and value.dtype.kind in "biufcSU":  # its repr leaves out the middle
        digest = hashlib.sha256(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data).hexdigest()
        return f"array {value.dtype.str} {value.shape} {digest}"
    if isinstance(value, type | FunctionType) and _importable(value):
        return repr(value) if isinstance(value, type) else _title(value)
    return repr(value) if _is_plain(value) else _hex(name, value)


def _is_plain(value: Any) -> bool:
    """Whether the repr of a value shows all of it."""
    if isinstance(value, list | tuple | dict) and type(value) in (list, tuple, dict):
        return all(map(_is_plain, [*value, *value.values()] if isinstance(value, dict) else value))
    if type(value) is int:
        return value.bit_length() <= _MAX_BITS
    return type(value) in _PLAIN or isinstance(value, np.number | np.bool_ | np.str_)


def is_own(module: str | None) -> bool:
    """Whether a module belongs to the user and may change between runs, unlike Python itself and installed packages."""
    top = (module or "").partition(".")[0]
    if top in ("plmia", "__main__"):
        return top != "plmia"
    file = _file_of(module or "")
    if file is None:
        return top not in sys.stdlib_module_names
    installed = not {"site-packages", "dist-packages"}.isdisjoint(file.parts)
    return not (installed or file.is_relative_to(sysconfig.get_path("stdlib")))


def _file_of(module: str) -> Path | None:
    """File of a module; of one that is not imported yet, of the package that it belongs to."""
    if module in sys.modules:
        file = getattr(sys.modules[module], "__file__", None)
    else:
        spec = importlib.util.find_spec(module.partition(".")[0]) if module else None
        file = spec.origin if spec is not None and spec.has_location else None
    return None if file is None else Path(file)


class _Walk:
    """One walk through values; each node is a digest of its kind and of the digests of its parts."""

    def __init__(self) -> None:
        self._done: dict[object, bytes] = {}
        self._open: dict[object, int] = {}  # what the walk is inside of, numbered in the order of visits
        self._n_visited = 0
        self._kept: list[Any] = []  # so that no new object gets the id of one that was visited

    def of(self, value: Any, where: str) -> bytes:
        """Digest of a value; ``where`` names it in messages."""
        if type(value) in _PLAIN:
            text = hex(value) if type(value) is int else repr(value)  # the repr of a large int is refused
            return _node(f"{type(value).__name__} {text}")
        self._kept.append(value)
        # Constants are not counted: Python and pickle decide whether equal ones are one object.
        counted = not isinstance(value, tuple | frozenset | CodeType)
        return self._visit(id(value), lambda: self._compound(value, where), counted)

    def _visit(self, key: object, digest: Callable[[], bytes], counted: bool = True) -> bytes:
        """Compute a digest once; inside itself, the number of what it refers back to."""
        if key in self._open:
            return _node(f"cycle {self._open[key]}")
        if key not in self._done:
            self._n_visited += counted
            self._open[key] = self._n_visited
            try:
                self._done[key] = digest()
            finally:
                del self._open[key]
        return self._done[key]

    def _all(self, values: Iterable[Any], where: str) -> Iterator[bytes]:
        return (self.of(value, where) for value in values)

    def _compound(self, value: Any, where: str) -> bytes:
        """Digest of a value with parts, by its type."""
        kind = type(value)
        if kind in (list, tuple):
            return _node(kind.__name__, *self._all(value, where))
        if kind in (set, frozenset):
            return _node(kind.__name__, *sorted(self._all(value, where)))
        if kind in (dict, MappingProxyType):
            return _node("dict", *(part for key in value for part in self._pair(key, value[key], where)))
        if kind in (np.ndarray, np.memmap):
            return self._array(value, where)
        if (torch := sys.modules.get("torch")) and kind is torch.Tensor and value.layout is torch.strided:
            bits = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            return _node(
                f"tensor {value.dtype} {value.device} {value.requires_grad} {value.shape}", self._array(bits, where)
            )
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, ModuleType):
            return self._module(value, _BY_NAME)
        if isinstance(value, type):
            return _node(f"code {_title(value)}") if _importable(value) else self._class(value)
        if isinstance(value, FunctionType):
            return _node(f"code {_title(value)}") if _importable(value) else self._function(value)
        return self._wrapper(value, where) or self._object(value, where)

    def _pair(self, key: Any, value: Any, where: str) -> tuple[bytes, bytes]:
        return self.of(key, where), self.of(value, key if isinstance(key, str) else where)

    def _array(self, array: np.ndarray[Any, Any], where: str) -> bytes:
        shape = f"array {array.dtype!r} {array.shape}"
        if array.dtype.hasobject or array.dtype.kind == "T":
            return _node(shape, *self._all(array.ravel().tolist(), where))
        return _node(shape, hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest())

    def _wrapper(self, value: Any, where: str) -> bytes | None:
        """Digest of what Python wraps around functions and values; None for other objects."""
        match value:
            case CellType():
                parts = _contents(value)
            case MethodType():
                parts = [value.__func__, value.__self__]
            case BuiltinFunctionType() | MethodDescriptorType() if is_own(_home(value)):
                raise NoIdentityError(f"{where!r} is compiled code of your own, whose contents cannot be read")
            case BuiltinFunctionType():
                bound = value.__self__
                parts = [value.__qualname__, bound.__name__ if isinstance(bound, ModuleType) else bound]
            case staticmethod() | classmethod():
                parts = [value.__func__]
            case property():
                parts = [value.fget, value.fset, value.fdel]
            case functools.cached_property():
                parts = [value.func]
            case functools._lru_cache_wrapper():
                parts = [value.__wrapped__]
            case MemberDescriptorType() | GetSetDescriptorType():
                parts = [value.__name__]
            case _:
                return None
        return _node(type(value).__name__, *self._all(parts, where))

    def _code(self, code: CodeType) -> bytes:
        """Compiled code without its place in a file."""
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        parts = [counts, names, code.co_code, code.co_exceptiontable, code.co_consts]
        return _node("code", *self._all(parts, code.co_name))

    def _function(self, function: FunctionType) -> bytes:
        code = function.__code__
        cells = zip(code.co_freevars, map(_contents, function.__closure__ or ()), strict=True)
        rest = [function.__defaults__, function.__kwdefaults__, vars(function)]
        digests = [self._code(code), *self._members(cells, _BY_NAME), *self._all(rest, function.__name__)]
        return _node("function", *digests, *self._globals(function))

    def _globals(self, function: FunctionType) -> Iterator[bytes]:
        """Digests of the globals that a function reads, and of what it uses of the modules that it imports."""
        codes, space = list(_codes(function.__code__)), function.__globals__
        names = frozenset(name for code in codes for name in code.co_names)
        used = {step.argval for code in codes for step in dis.get_instructions(code) if step.opname in _READS}
        values = [(name, space[name]) for name in sorted(used & space.keys() - {"__name__"})]  # classes read it
        values += [(module.__name__, module) for code in codes for module in _imported(code, function)]
        dynamic = sorted(used & _DYNAMIC - space.keys()) + [name for name, value in values if _is_dynamic(value, names)]
        if dynamic:
            raise NoIdentityError(f"{function.__name__!r} uses {dynamic[0]}, so what it reads is not known")
        return self._members(values, names)

    def _members(self, values: Iterable[tuple[str, Any]], names: frozenset[str]) -> Iterator[bytes]:
        """Digests of named values, for code with these names in it."""
        for name, value in values:
            yield _node(f"name {name}")
            yield self._module(value, names) if isinstance(value, ModuleType) else self.of(value, name)

    def _module(self, module: ModuleType, names: frozenset[str]) -> bytes:
        """Digest of a package by its name; of a module of the user, of its attributes with these names."""
        if not is_own(module.__name__):
            return _node(f"code {module.__name__}")
        chosen = vars(module).keys() if names & _BY_NAME else names & vars(module).keys()
        own = [(name, vars(module)[name]) for name in sorted(chosen) if not name.startswith("__")]
        return self._visit((id(module), names), lambda: _node("module", *self._members(own, names)))

    def _class(self, kind: type) -> bytes:
        own = {name: value for name, value in vars(kind).items() if name not in _NOT_OF_THE_CLASS}
        own = {
            name: value for name, value in own.items() if not isinstance(value, MemberDescriptorType)
        }  # of __slots__
        bases = self._all([type(kind), *kind.__bases__], kind.__name__)
        return _node(f"class {kind.__name__}", *bases, *self._members(sorted(own.items()), _BY_NAME))

    def _object(self, value: Any, where: str) -> bytes:
        """Digest of what pickle would save: the class with its methods, and the state."""
        kind = type(value)
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        except PASSED_ON:
            raise
        except BaseException as error:  # objects may raise anything when they are pickled
            raise NoIdentityError(f"{where!r} ({_title(kind)}) has no contents that can be compared") from error
        if isinstance(reduced, str):
            if is_own(_home(value)) or not _is_called(value, reduced):
                raise NoIdentityError(f"{where!r} ({_title(kind)}) has no contents that can be compared")
            return _node(f"code {_home(value)}.{reduced}")
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        parts = [make, arguments, state, list(items or ()), list(pairs or ())]
        return _node("object", self.of(kind, where), *self._all(parts, where))


def _node(text: str, *parts: bytes) -> bytes:
    sha = hashlib.sha256(text.encode(errors="surrogatepass"))
    sha.update(b"\0" + b"".join(parts))
    return sha.digest()


def _title(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _importable(value: Any) -> bool:
    """Whether a function or class belongs to a package and is what its name there stands for."""
    home = value.__module__
    if not isinstance(home, str | None):  # of a class that is compiled and has no name to find it by
        return True
    if is_own(home):
        return False
    found: Any = sys.modules.get(home or "")
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


def _is_called(value: Any, name: str) -> bool:
    """Whether a module has the value under this name, as pickle requires of objects that it saves by name."""
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    found: Any = home
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value or any(vars(module).get(name) is value for module in [*sys.modules.values()] if module)


def _contents(cell: CellType) -> list[Any]:
    """Contents of a cell; none before the variable has a value."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Code and the code of all functions and classes inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _home(value: Any) -> str:
    """Name of the module that a value, or otherwise its class, comes from."""
    owner = getattr(value, "__objclass__", value)  # of methods of compiled classes
    return str(getattr(owner, "__module__", None) or type(owner).__module__)


def _is_dynamic(value: Any, names: frozenset[str]) -> bool:
    """Whether code with these names in it can reach modules through a value that its names do not show."""
    if isinstance(value, ModuleType):
        by_name = {"sys": {"modules"}, "builtins": _DYNAMIC}.get(value.__name__, set())
        return value.__name__.partition(".")[0] == "importlib" or not by_name.isdisjoint(names)
    return _home(value).partition(".")[0] == "importlib" or any(value is f for f in (eval, exec, globals, __import__))


def _imported(code: CodeType, function: FunctionType) -> Iterator[ModuleType]:
    """Modules that code imports when it runs; for those of packages, an empty one of the same name."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME":
            try:
                yield _import("." * level.argval + step.argval, names.argval or (), function)
            except PASSED_ON:
                raise
            except BaseException as error:  # the user's module may raise anything
                name = step.argval or "a module"
                raise NoIdentityError(f"{function.__name__!r} imports {name}, which fails here") from error


def _import(name: str, attributes: tuple[str, ...], function: FunctionType) -> ModuleType:
    full = importlib.util.resolve_name(name, function.__globals__.get("__package__"))
    if not is_own(full):
        return ModuleType(full)
    module = importlib.import_module(full)
    for attribute in attributes:
        if attribute != "*" and not hasattr(module, attribute):
            importlib.import_module(f"{full}.{attribute}")
    return module
