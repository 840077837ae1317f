"""What transforms do, as a hash: their code and their arguments.

Comes in: callables. Goes out: a text that differs when one of them is another, or has other code or arguments, and is
equal on another machine. Comments and blank lines do not count. Of transforms of sds itself the name, the arguments and
`revision` count, not the code: a new release that computes the same must not cost anybody their latents.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import pickle
import textwrap
import types
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from sds.errors import OptionError

__all__ = ["fingerprint_of"]

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_MAX_DEPTH = 50


def fingerprint_of(transforms: Iterable[Any], version: str | None = None) -> str:
    """The hash of a chain; of `version` alone, if that is given.

    Raises:
        OptionError: an argument is of a kind that cannot be told from another.
    """
    if version is not None:
        return f"version {version}"
    teller = _Teller()
    for transform in transforms:
        teller.tell(transform, type(transform).__name__)
        teller.tell_code()
    return f"code {teller.hash.hexdigest()}"


class _Teller:
    """Feeds a hash with what a value is."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # an id names an object only while that lives
        self._later: list[tuple[Any, str]] = []  # functions and classes that code uses: they form long chains

    def tell(self, value: Any, where: str, depth: int = 0) -> None:
        if depth > _MAX_DEPTH:
            raise _untellable(where, value)
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            return self._say(type(value).__name__, repr(value))
        if isinstance(value, types.FunctionType | type):  # they know each other, in circles
            if id(value) in self._seen:
                return self._say("again", str(self._seen[id(value)]))
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
            return self.tell([value.__self__, value.__func__], where, depth + 1)
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

    def _say(self, kind: str, text: str) -> None:
        data = f"{kind}:{text}".encode(errors="surrogatepass")
        self.hash.update(len(data).to_bytes(8, "little") + data)

    def _array(self, value: Any, where: str) -> None:
        tensor = value.detach().cpu().contiguous() if isinstance(value, torch.Tensor) else None
        array = np.asarray(value) if tensor is None else tensor.reshape(-1).view(torch.uint8).numpy()
        if array.dtype.hasobject:
            raise _untellable(where, value)
        self._say(type(value).__name__, f"{value.dtype} {tuple(value.shape)}")
        self.hash.update(np.ascontiguousarray(array).tobytes())

    def _function(self, function: types.FunctionType, where: str, depth: int) -> None:
        if _is_ours(function):
            return self._say("sds", f"{function.__module__}.{function.__qualname__}")
        source = None if function.__name__ == "<lambda>" else _source(function.__code__)  # not what it wraps
        self._say("function", source or "")
        if source is None:
            self._code(function.__code__)
        self.tell([function.__defaults__, function.__kwdefaults__], where, depth + 1)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.tell(cell.cell_contents, f"{where}: {name}", depth + 1)
            except ValueError:  # not filled yet
                self._say("empty", name)
        for name in _names(function.__code__):
            self._global(name, function.__globals__.get(name), function.__module__, where)
        return None

    def _global(self, name: str, value: Any, module: str, where: str) -> None:
        """What code uses of its own module: functions, classes and constants. What it imports is known by its name."""
        if isinstance(value, types.FunctionType | type):
            if value.__module__ == module:
                self._later.append((value, f"{where}: {name}"))
        elif isinstance(value, _PLAIN) or (
            isinstance(value, tuple) and all(isinstance(each, _PLAIN) for each in value)
        ):
            self._say("global", name)
            self.tell(value, f"{where}: {name}")

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
        self._say("source", source or "")
        functions = [getattr(each, "__func__", each) for each in vars(kind).values()]
        for function in functions:
            if isinstance(function, types.FunctionType):
                if source is None:
                    self._function(function, where, depth + 1)
                for name in _names(function.__code__):
                    self._global(name, function.__globals__.get(name), kind.__module__, where)
        for base in kind.__bases__:
            if base is not object:
                self.tell(base, where, depth + 1)
        return None

    def _object(self, value: Any, where: str, depth: int) -> None:
        kind = type(value)
        self.tell(kind, where, depth + 1)
        if isinstance(value, torch.nn.Module):
            self.tell([repr(value), value.training, dict(value.state_dict())], where, depth + 1)
            return
        arguments = _arguments(value)
        if arguments is not None:
            for name, each in sorted(arguments.items()):
                self._say("argument", name)
                self.tell(each, f"{where}.{name}", depth + 1)
            return
        try:
            buffer = io.BytesIO()
            pickle.Pickler(buffer, protocol=4).dump(value)
        except Exception as error:  # whatever a foreign object's pickling raises
            raise _untellable(where, value) from error
        self._say("pickle", buffer.getvalue().hex())


def _arguments(value: Any) -> dict[str, Any] | None:
    """What an object was made with: its attributes named like arguments, if it has them all; else all attributes."""
    try:
        attributes = dict(vars(value))
    except TypeError:
        return None  # of C, or with slots
    try:
        parameters = inspect.signature(type(value)).parameters.values()
    except (TypeError, ValueError):
        return attributes
    found: dict[str, Any] = {}
    for parameter in parameters:
        name = next((each for each in (parameter.name, f"_{parameter.name}") if each in attributes), None)
        if name is None:
            return attributes
        found[parameter.name] = attributes[name]
    return found or attributes


def _source(thing: Any) -> str | None:
    """The source without comments and layout; None if there is none."""
    try:
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(thing))))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None


def _names(code: types.CodeType) -> list[str]:
    """The names that code looks up outside of itself, code within it included."""
    inner = [name for each in code.co_consts if isinstance(each, types.CodeType) for name in _names(each)]
    return sorted({*code.co_names, *inner})


def _is_ours(thing: Any) -> bool:
    return bool(thing.__module__ == "sds" or str(thing.__module__).startswith("sds."))


def _untellable(where: str, value: Any) -> OptionError:
    hint = "say it yourself: Remember(..., version='what these transforms do, with their settings')"
    return OptionError(f"an argument of a transform cannot be hashed: {where}: {type(value).__qualname__}", hint=hint)
