"""Samples <-> skeletons: the sample as JSON, with a numbered slot in the place of every tensor.

Comes in: dicts, lists, tuples, text, bytes, numbers, None, tensors, arrays. Goes out: the JSON text and the tensors
that it refers to; and back, exactly. Other objects are refused by name: nothing is ever pickled.
"""

from __future__ import annotations

import base64
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import torch

from sds.errors import TensorCacheError
from sds.tensors.format import corrupt

__all__ = ["MAX_DEPTH", "Tensors", "decode", "encode"]

MAX_DEPTH = 100
_INT64 = range(-(2**63), 2**63)
_SHORT = 1024
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Tensors:
    """The tensors of a sample in the order of their slots, with their fields; one object has one slot."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.fields: list[str] = []
        self._slots: dict[int, int] = {}
        self._kept: list[Any] = []  # an id names an object only while that lives

    def slot(self, value: torch.Tensor | np.ndarray[Any, Any], field: str) -> int:
        """The slot of a tensor or array."""
        known = self._slots.get(id(value))
        if known is None:
            known = self._slots[id(value)] = len(self.values)
            self._kept.append(value)
            self.values.append(_plain(value, field))
            self.fields.append(field)
        return known


def encode(sample: Any, tensors: Tensors) -> bytes:
    """The sample's skeleton; its tensors are added to `tensors`.

    Raises:
        TensorCacheError: it holds what has no place in a skeleton.
    """
    text = json.dumps(_encoded(sample, tensors, [], 0), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise TensorCacheError(
            "sample cannot be stored: its text is no Unicode", hint="a lone surrogate: decode the text properly first"
        ) from None


def _encoded(value: Any, tensors: Tensors, path: list[str], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise _refused(path, f"deeper than {MAX_DEPTH} levels", "does it contain itself?")
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if value in _INT64 else {"$int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, torch.Tensor):
        return {"$t": tensors.slot(value, ".".join(path))}
    if isinstance(value, np.ndarray):
        return {"$n": tensors.slot(value, ".".join(path))}
    if kind in (dict, OrderedDict):
        return _encoded_dict(value, tensors, path, depth)
    if kind in (list, tuple, torch.Size):
        items = [_encoded(each, tensors, [*path, str(place)], depth + 1) for place, each in enumerate(value)]
        return items if kind is list else {"$tuple": items}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if kind is complex:
        return {"$complex": [_encoded(part, tensors, path, depth + 1) for part in (value.real, value.imag)]}
    if kind is torch.dtype:
        return {"$dtype": str(value).removeprefix("torch.")}
    hint = "keep dicts, lists, tuples, text, bytes, numbers, None, tensors and arrays; leave other objects out"
    raise _refused(path, f"{kind.__module__}.{kind.__qualname__}", hint)


def _encoded_dict(value: dict[Any, Any], tensors: Tensors, path: list[str], depth: int) -> Any:
    if all(type(key) is str for key in value):
        return {
            f"${key}" if key.startswith("$") else key: _encoded(each, tensors, [*path, _step(key)], depth + 1)
            for key, each in value.items()
        }
    items = []
    for place, (key, each) in enumerate(value.items()):
        step = _step(key) if type(key) is str else f"%{place}"
        in_key = Tensors()
        name = _encoded(key, in_key, [*path, step], depth + 1)
        if in_key.values:
            raise _refused([*path, step], "a tensor in a key", "use text or numbers as keys")
        items.append([name, _encoded(each, tensors, [*path, step], depth + 1)])
    return {"$dict": items}


def _step(key: str) -> str:
    return key.replace("%", "%25").replace(".", "%2E").replace("~", "%7E")


def _plain(value: torch.Tensor | np.ndarray[Any, Any], field: str) -> torch.Tensor:
    """The tensor on the CPU, without its history."""
    if isinstance(value, np.ndarray):
        if type(value) is not np.ndarray or not value.dtype.isnative or value.dtype.kind not in "biufc":
            raise _refused([field], f"an array of {value.dtype}", "arrays of numbers in this machine's byte order")
        if not value.flags.writeable or any(stride < 0 for stride in value.strides):
            value = value.copy()  # torch takes neither as it is
        try:
            value = torch.from_numpy(value)
        except TypeError:
            raise _refused([field], f"an array of {value.dtype}", "convert it to a dtype that torch has") from None
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.is_quantized:
        raise _refused([field], f"a tensor of an unusual kind: {type(value).__name__}", "dense, plain tensors only")
    if value.device.type == "meta":
        raise _refused([field], "a tensor without data (meta)", "dense, plain tensors only")
    return value.detach().resolve_conj().resolve_neg().cpu()


def _refused(path: list[str], what: str, hint: str) -> TensorCacheError:
    return TensorCacheError(f"sample cannot be stored: {'.'.join(path) or 'the sample'}: {what}", hint=hint)


def decode(name: str, text: bytes, num_slots: int, tensor: Callable[[int, bool], Any]) -> Any:
    """The sample that a skeleton describes.

    Args:
        name: what an error names.
        text: the JSON.
        num_slots: how many tensors there are.
        tensor: gives what stands for the tensor of a slot, and of an array (True).

    Raises:
        ShardCorrupt: it is no skeleton.
    """
    try:
        parsed = _kept(text) if len(text) <= _SHORT else _parsed(text)
        return _Builder(name, num_slots, tensor).build(parsed, 0)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise corrupt(name, f"its skeleton is none: {error}") from error


class _Builder:
    """Makes a sample of what its skeleton holds. No closure: one that calls itself would keep tensors from dying."""

    __slots__ = ("_name", "_num_slots", "_tensor")

    def __init__(self, name: str, num_slots: int, tensor: Callable[[int, bool], Any]) -> None:
        self._name, self._num_slots, self._tensor = name, num_slots, tensor

    def build(self, value: Any, depth: int) -> Any:
        """The value that a piece of JSON stands for."""
        kind = type(value)
        if kind is not dict and kind is not list:
            return value
        if depth > 2 * MAX_DEPTH:
            raise corrupt(self._name, "a skeleton without end")
        if kind is list:
            return [self.build(each, depth + 1) for each in value]
        tag = next(iter(value), "") if len(value) == 1 else ""
        if not tag.startswith("$") or tag.startswith("$$"):
            return {_key(self._name, key): self.build(each, depth + 1) for key, each in value.items()}
        content = value[tag]
        if tag in ("$t", "$n") and type(content) is int and 0 <= content < self._num_slots:
            return self._tensor(content, tag == "$n")
        if tag == "$tuple" and isinstance(content, list):
            return tuple([self.build(each, depth + 1) for each in content])
        if tag == "$dict" and isinstance(content, list):
            return {self.build(key, depth + 1): self.build(each, depth + 1) for key, each in content}
        if tag == "$complex" and isinstance(content, list) and len(content) == 2:
            parts = [self.build(part, depth + 1) for part in content]
            if all(type(part) is float for part in parts):
                return complex(*parts)
        return _scalar(self._name, tag, content)


def _parsed(text: bytes) -> Any:
    return msgspec.json.decode(text)


_kept = lru_cache(64)(_parsed)  # samples without text of their own have one skeleton; nobody changes what is parsed


def _key(name: str, key: str) -> str:
    if not key.startswith("$"):
        return key
    if not key.startswith("$$"):
        raise corrupt(name, f"a skeleton with an unknown tag: {key!r}")
    return key[1:]


def _scalar(name: str, tag: str, content: Any) -> Any:
    if tag == "$float" and content in _NOT_FINITE:
        return _NOT_FINITE[content]
    if tag == "$int" and isinstance(content, str):
        return int(content, 16)
    if tag == "$bytes" and isinstance(content, str):
        return base64.b64decode(content, validate=True)
    if tag == "$dtype" and isinstance(content, str) and isinstance(getattr(torch, content, None), torch.dtype):
        return getattr(torch, content)
    raise corrupt(name, f"a skeleton with an unknown tag: {tag}: {str(content)[:80]!r}")
