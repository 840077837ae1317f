"""Pickles of arrays and tensors -> those values, without letting the pickle call anything of its own choosing.

Comes in: the bytes of a plain pickle, as older tools wrote latents. Goes out: dicts, lists, tuples, text, numbers,
arrays and tensors. A name in a pickle never leads to the object of that name: it leads to a stand-in of ours that takes
nothing but numbers and bytes, or to a ValueError. Whoever calls `load` maps every exception.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["load"]

# A file of latents has a few hundred operations; these are far above, and keep time and memory bounded
MAX_OPERATIONS = 100_000
MAX_VALUES = 100_000
MAX_DEPTH = 50

# Operations that arrays, tensors and containers never need
_REFUSED = {"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "NEXT_BUFFER"}
_PLAIN_DTYPE = re.compile(r"[biufc](?:1|2|4|8|16)|\?")
_PLAIN = (str, bytes, bool, int, float, complex, type(None))


def load(data: bytes) -> Any:
    """What the pickle says, as plain values, arrays and tensors.

    Raises:
        ValueError: it names something that is not on the list, or is larger than anything sensible.
        Exception: whatever pickle finds wrong with it.
    """
    _check_operations(data)
    return _finished(_Unpickler(io.BytesIO(data)).load(), [0], 0)


def _check_operations(data: bytes) -> None:
    """Refuses, before anything runs, operations that are never needed and numbers that would take memory."""
    for number, (operation, argument, _) in enumerate(pickletools.genops(data)):
        if number > MAX_OPERATIONS:
            raise ValueError(f"the pickle has more than {MAX_OPERATIONS} operations")
        if operation.name in _REFUSED:
            raise ValueError(f"the pickle has an operation that is not allowed: {operation.name}")
        if "PUT" in operation.name and int(argument or 0) > MAX_OPERATIONS:  # the memo would grow to that length
            raise ValueError(f"the pickle counts its values up to {argument}")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # older spellings: of NumPy 1, and of the builtins in protocols up to 2
        current = module.replace("numpy.core.", "numpy._core.").replace("__builtin__", "builtins")
        stand_in = _ALLOWED.get((current, name))
        if stand_in is None:
            raise ValueError(f"the pickle names what is not allowed: {module}.{name}")
        return stand_in


class _Call:
    """What a name in a pickle becomes: it can be called, and nothing else."""

    __slots__ = ("_function",)
    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise ValueError("the pickle wants to change a function")

    def __setstate__(self, state: Any) -> NoReturn:
        raise ValueError("the pickle wants to change a function")


class _Dtype:
    """A dtype of plain numbers: numpy.dtype('f4', ...) with its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: str, *_: Any) -> None:
        if not isinstance(code, str) or not _PLAIN_DTYPE.fullmatch(code):
            raise ValueError(f"the pickle has an array of other than numbers: {code!r}")
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 4 and state[2:5] == (None, None, None) else None
        if order not in ("<", ">", "|", "="):
            raise ValueError(f"the pickle has a dtype of an unknown kind: {state!r}")
        self.order = order

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"{self.order}{self.code}" if self.order in "<>" else self.code)


class _Array:
    """An array that numpy's _reconstruct begins and a state (version, shape, dtype, is_fortran, bytes) completes."""

    __slots__ = ("value",)

    def __init__(self, *_: Any) -> None:
        self.value: npt.NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.value = _from_buffer(data, dtype, shape, "F" if is_fortran else "C")


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> npt.NDArray[Any]:
    if not isinstance(data, bytes | bytearray) or not isinstance(dtype, _Dtype):
        raise ValueError("the pickle has an array without numbers")
    shape = _sizes(shape)
    values: npt.NDArray[Any] = np.frombuffer(data, dtype.dtype)  # [n]
    if len(shape) > 32 or math.prod(shape) != len(values):
        raise ValueError(f"the pickle has an array of {len(values)} numbers that should be {list(shape)}")
    array: npt.NDArray[Any] = values.reshape(shape, order="F" if order == "F" else "C")
    return array


def _scalar(dtype: Any, data: Any) -> Any:
    return _from_buffer(data, dtype, (), "C").item()


def _encode(text: Any, encoding: Any) -> bytes:
    """How old protocols write bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise ValueError(f"the pickle encodes as {encoding!r}")
    return text.encode("latin-1")


def _container(kind: type) -> Callable[..., Any]:
    def make(values: Any = ()) -> Any:
        if not isinstance(values, list | tuple | bytes | set):  # a number would be a length
            raise ValueError(f"the pickle makes a {kind.__name__} of {type(values).__name__}")
        return kind(values)

    return make


def _storage(data: Any) -> torch.Tensor:
    """The flat tensor over a storage that torch saved: read by torch's own loader of plain weights."""
    if not isinstance(data, bytes):
        raise ValueError("the pickle has a tensor without bytes")
    storage = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(storage, torch.storage.TypedStorage):
        raise ValueError(f"the pickle has a tensor over {type(storage).__name__}")
    return torch.empty(0, dtype=storage.dtype).set_(storage)  # [n]


def _tensor(flat: Any, offset: Any, size: Any, stride: Any, *_: Any) -> torch.Tensor:
    """A view of the flat tensor, all of it inside."""
    size, stride, (offset,) = _sizes(size), _sizes(stride), _sizes((offset,))
    if not isinstance(flat, torch.Tensor) or len(size) != len(stride):
        raise ValueError("the pickle has a tensor of unknown form")
    last = offset + sum((side - 1) * step for side, step in zip(size, stride, strict=True))
    if math.prod(size) and last >= len(flat):
        raise ValueError(f"the pickle has a tensor {list(size)} over {len(flat)} numbers")
    return flat.as_strided(size, stride, offset).clone() if math.prod(size) else flat.new_empty(size)


def _sizes(values: Any) -> tuple[int, ...]:
    values = (values,) if type(values) is int else values
    if not isinstance(values, tuple | list) or not all(type(value) is int and value >= 0 for value in values):
        raise ValueError(f"the pickle has a shape of an unknown kind: {values!r}")
    return tuple(values)


_ALLOWED: dict[tuple[str, str], _Call] = {
    ("numpy", "dtype"): _Call(_Dtype),
    ("numpy", "ndarray"): _Call(_Array),  # an argument of _reconstruct; nobody calls it
    ("numpy._core.multiarray", "_reconstruct"): _Call(_Array),
    ("numpy._core.multiarray", "scalar"): _Call(_scalar),
    ("numpy._core.numeric", "_frombuffer"): _Call(_from_buffer),
    ("torch._utils", "_rebuild_tensor_v2"): _Call(_tensor),
    ("torch.storage", "_load_from_bytes"): _Call(_storage),
    ("collections", "OrderedDict"): _Call(dict),
    ("_codecs", "encode"): _Call(_encode),
    ("builtins", "set"): _Call(_container(set)),
    ("builtins", "frozenset"): _Call(_container(frozenset)),
    ("builtins", "bytearray"): _Call(_container(bytes)),
    ("builtins", "complex"): _Call(complex),
}


def _finished(value: Any, count: list[int], depth: int) -> Any:
    """The value with arrays in the places of their stand-ins; what is not plain, or has no end, is refused."""
    count[0] += 1
    if count[0] > MAX_VALUES or depth > MAX_DEPTH:
        raise ValueError(f"the pickle has more than {MAX_VALUES} values, or deeper than {MAX_DEPTH}")
    if isinstance(value, _Array):
        if value.value is None:
            raise ValueError("the pickle has an array without a state")
        return value.value
    if type(value) is dict:
        return {_finished(key, count, depth + 1): _finished(each, count, depth + 1) for key, each in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_finished(each, count, depth + 1) for each in value)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, torch.Tensor | np.ndarray) or type(value) in _PLAIN:
        return value
    raise ValueError(f"the pickle holds a value that is not allowed: {type(value).__name__}")
