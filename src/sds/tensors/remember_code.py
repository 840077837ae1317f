"""What transforms do, as a hash: their code and their arguments.

Comes in: callables. Goes out: a text that differs when one of them is another, or has other code or arguments, and is
equal on another machine. Comments and blank lines do not count, nor does what code assigns itself by working. Of
transforms of sds itself the name, the arguments and `revision` count, not the code: a new release that computes the
same must not cost anybody their latents.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import pickle
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import torch

from sds.errors import OptionError
from sds.tensors.remember_own import names_in, own_attributes, own_cells, own_globals, tree_of

__all__ = ["CHAIN", "Told", "fingerprint_of", "tell_chain"]

CHAIN = "which transforms there are"  # the part of a chain that is not in one of them

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_MAX_DEPTH = 50


class Told(NamedTuple):
    """What a chain is: one hash, and a short one of each part, by which it can be said what differs."""

    fingerprint: str
    parts: dict[str, str]


def fingerprint_of(transforms: Iterable[Any], version: str | None = None) -> str:
    """The hash of a chain; of `version` alone, if that is given.

    Raises:
        OptionError: an argument is of a kind that cannot be told from another.
    """
    return tell_chain(transforms, version).fingerprint


def tell_chain(transforms: Iterable[Any], version: str | None = None) -> Told:
    """The hash of a chain, and of its parts. As `fingerprint_of`."""
    if version is not None:
        return Told(f"version {version}", {})
    teller = _Teller()
    names = []
    for transform in transforms:
        name = str(getattr(transform, "__qualname__", type(transform).__qualname__))
        teller.tell(transform, name)
        teller.tell_code()
        names.append(name)
    teller.tell_globals()
    chain = hashlib.blake2b(repr(names).encode(), digest_size=8).hexdigest()
    parts = {label: part.hexdigest() for label, part in teller.parts.items() if label}
    return Told(f"code {teller.hash.hexdigest()}", {CHAIN: chain, **parts})


class _Teller:
    """Feeds a hash with what a value is."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # an id names an object only while that lives
        self._later: list[tuple[Any, str]] = []  # functions and classes that code uses: they form long chains
        self.parts: dict[str, Any] = {}
        self._label = ""
        self._globals: dict[tuple[int, str], Any] = {}  # those that code uses, by module and name
        self._own: set[tuple[int, str]] = set()  # those that it assigns

    def tell(self, value: Any, where: str, depth: int = 0) -> None:
        if depth > _MAX_DEPTH:
            raise _untellable(where, value)
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            return self._say(type(value).__name__, repr(value))
        if isinstance(value, types.FunctionType | type):  # they know each other, in circles
            if id(value) in self._seen:
                return self._feed(f"again:{self._seen[id(value)]}".encode())  # a count over all: of no part
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)
        if isinstance(value, np.generic | np.ndarray | torch.Tensor):
            return self._array(value, where)
        if isinstance(value, Mapping):
            self._say("dict", str(len(value)))
            items = value.items() if not all(isinstance(key, str) for key in value) else sorted(value.items())
            for key, each in items:
                self.tell(key, where, depth + 1)
                self.tell(each, f"{where}[{key!r}]", depth + 1)
            return None
        if isinstance(value, list | tuple):
            self._say(type(value).__name__, str(len(value)))
            for place, each in enumerate(value):
                self.tell(each, f"{where}[{place}]", depth + 1)
            return None
        if isinstance(value, set | frozenset):
            return self._say(type(value).__name__, repr(sorted(map(repr, value))))
        if isinstance(value, functools.partial):
            self._say("partial", "")
            return self.tell([value.func, value.args, value.keywords], where, depth + 1)
        if isinstance(value, types.MethodType):
            self._say("method", value.__name__)
            if isinstance(value.__self__, type | types.ModuleType):
                self.tell(value.__self__, where, depth + 1)
            else:
                self._object(value.__self__, where.removesuffix(f".{value.__name__}"), depth + 1, value.__name__)
            return self.tell(value.__func__, where, depth + 1)
        if isinstance(value, types.FunctionType):
            return self._function(value, where, depth)
        if isinstance(value, type):
            return self._class(value, where, depth)
        if isinstance(value, types.BuiltinFunctionType | torch.dtype | torch.device | PurePath | types.ModuleType):
            return self._say("named", repr(getattr(value, "__qualname__", None) or str(value)))
        return self._object(value, where, depth)

    def tell_code(self) -> None:
        """Tells the functions and classes that what was told uses, and those that they use."""
        while self._later:
            self.tell(*self._later.pop(0))

    def tell_globals(self) -> None:
        """Tells the constants that code uses, without those that some of this code assigns."""
        for (module, name), value in self._globals.items():
            if (module, name) not in self._own:
                with self._part(f"the constant {name}"):
                    self._say("global", name)
                    self.tell(value, name)

    @contextmanager
    def _part(self, label: str) -> Iterator[None]:
        """What is told meanwhile belongs to this part."""
        before, self._label = self._label, label
        yield
        self._label = before

    def _say(self, kind: str, text: str) -> None:
        self._feed(f"{kind}:{text}".encode(errors="surrogatepass"), self._label)

    def _feed(self, data: bytes, label: str = "") -> None:
        data = len(data).to_bytes(8, "little") + data
        self.hash.update(data)
        self.parts.setdefault(label, hashlib.blake2b(digest_size=8)).update(data)

    def _array(self, value: Any, where: str) -> None:
        tensor = value.detach().cpu().contiguous() if isinstance(value, torch.Tensor) else None
        array = np.asarray(value) if tensor is None else tensor.reshape(-1).view(torch.uint8).numpy()
        if array.dtype.hasobject:
            raise _untellable(where, value)
        self._say(type(value).__name__, f"{value.dtype} {tuple(value.shape)}")
        self._feed(np.ascontiguousarray(array).tobytes(), self._label)

    def _function(self, function: types.FunctionType, where: str, depth: int) -> None:
        if _is_ours(function):
            return self._say("sds", f"{function.__module__}.{function.__qualname__}")
        code, name = function.__code__, function.__qualname__
        source = None if function.__name__ == "<lambda>" else _source(code)  # not what it wraps
        with self._part(f"the code of {name}"):
            self._say("function", source or "")
            if source is None:
                self._code(code)
        with self._part(f"the defaults of {name}"):
            self.tell([function.__defaults__, function.__kwdefaults__], where, depth + 1)
        own = own_cells(code)
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with self._part(f"{variable} of {name}"):
                try:
                    if variable not in own:
                        self.tell(cell.cell_contents, f"{where}: {variable}", depth + 1)
                except ValueError:  # not filled yet
                    self._say("empty", variable)
        self._uses(function, function.__module__, where)
        return None

    def _uses(self, function: types.FunctionType, module: str, where: str) -> None:
        """What code uses of its own module: functions, classes and constants. What it imports is known by its name."""
        space = function.__globals__
        self._own.update((id(space), name) for name in own_globals(function.__code__))
        for name in names_in(function.__code__):
            value = space.get(name)
            if isinstance(value, functools._lru_cache_wrapper):
                value = value.__wrapped__
            if isinstance(value, types.FunctionType | type):
                if value.__module__ == module:
                    self._later.append((value, f"{where}: {name}"))
            elif name in space and _is_constant(value):
                self._globals[id(space), name] = value

    def _code(self, code: types.CodeType) -> None:
        """Bytecode, where there is no source: of a lambda, whose lines hold more than itself."""
        self._say("code", f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars}")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant)
            else:
                self._say("constant", repr(constant))

    def _class(self, kind: type, where: str, depth: int) -> None:
        self._say("class", f"{kind.__module__.partition('.')[0]} {kind.__qualname__}")
        if _is_ours(kind):
            return self._say("revision", repr(getattr(kind, "revision", 0)))
        if kind.__module__.partition(".")[0] in ("builtins", "torch", "numpy"):
            return None
        source = _source(kind)
        with self._part(f"the code of {kind.__qualname__}"):
            self._say("source", source or "")
        functions = [getattr(each, "__func__", each) for each in vars(kind).values()]
        for function in functions:
            if isinstance(function, types.FunctionType):
                if source is None:
                    self._function(function, where, depth + 1)
                self._uses(function, kind.__module__, where)
        for base in kind.__bases__:
            if base is not object:
                self.tell(base, where, depth + 1)
        return None

    def _object(self, value: Any, where: str, depth: int, entry: str | None = None) -> None:
        """An object; `entry` is the method that is called, if it is not the object itself."""
        kind = type(value)
        self.tell(kind, where, depth + 1)
        own = set() if _is_ours(kind) else own_attributes(kind, entry)
        if isinstance(value, torch.nn.Module):
            with self._part(f"the weights of {where}"):
                self.tell(_module(value, own), where, depth + 1)
            return
        arguments = _arguments(value, own)
        if arguments is not None:
            for name, each in sorted(arguments.items()):
                with self._part(f"{where}.{name}"):
                    self._say("argument", name)
                    self.tell(each, f"{where}.{name}", depth + 1)
            return
        try:
            buffer = io.BytesIO()
            pickle.Pickler(buffer, protocol=4).dump(value)
        except Exception as error:  # whatever a foreign object's pickling raises
            raise _untellable(where, value) from error
        self._say("pickle", buffer.getvalue().hex())


def _module(module: torch.nn.Module, own: set[str]) -> list[Any]:
    """What a module is: what it prints, its weights and settings; without the parts that it makes by working."""
    weights = {name: each for name, each in module.state_dict().items() if name.partition(".")[0] not in own}
    parts = [(name, part) for name, part in module.named_modules() if name.partition(".")[0] not in own]
    settings = {f"{name}.{key}": each for name, part in parts for key, each in _settings(part).items()}
    if not own:
        return [repr(module), module.training, weights, settings]
    children = {name: repr(child) for name, child in module.named_children() if name not in own}
    return [module.extra_repr(), children, module.training, weights, settings]


def _settings(module: torch.nn.Module) -> dict[str, Any]:
    """The plain values that a module was given, and may not print; torch's own modules print theirs."""
    if type(module).__module__.partition(".")[0] == "torch":
        return {}
    own = own_attributes(type(module)) | {"training"}
    return {name: each for name, each in vars(module).items() if name[0] != "_" and name not in own and _is_plain(each)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(each) for key, each in value.items())
    return isinstance(value, _PLAIN)


def _arguments(value: Any, own: set[str]) -> dict[str, Any] | None:
    """What an object was made with: its attributes named like arguments, if it has them all; else all attributes.

    Those that it assigns by working (`own`) are no settings, unless they are arguments: one that was given must count.
    """
    try:
        attributes = dict(vars(value))
    except TypeError:
        return None  # of C, or with slots
    try:
        parameters = [*inspect.signature(type(value)).parameters]
    except (TypeError, ValueError):
        parameters = []
    found: dict[str, Any] = {}
    for parameter in parameters:
        name = next((each for each in (parameter, f"_{parameter}") if each in attributes), None)
        if name is None:
            given = {*parameters, *(f"_{each}" for each in parameters)}
            return {name: each for name, each in attributes.items() if name not in own or name in given}
        found[parameter] = attributes[name]
    return found or {name: each for name, each in attributes.items() if name not in own}


def _source(thing: Any) -> str | None:
    """The source without comments and layout; None if there is none."""
    tree = tree_of(thing)
    return None if tree is None else ast.unparse(tree)


def _is_constant(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(each, _PLAIN) for each in value))


def _is_ours(thing: Any) -> bool:
    return bool(thing.__module__ == "sds" or str(thing.__module__).startswith("sds."))


def _untellable(where: str, value: Any) -> OptionError:
    hint = "say what the transforms do and with which settings: version='...' of Remember, --version of a build"
    return OptionError(f"an argument of a transform cannot be hashed: {where}: {type(value).__qualname__}", hint=hint)
