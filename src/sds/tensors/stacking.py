"""Which tensors can be stacked, and into what: the checks before a field of several samples becomes one tensor.

Comes in: slots, a field, perhaps a tensor to fill. Goes out: a slot or tensor that fits, or TensorCacheError.
"""

from __future__ import annotations

from typing import Any

import torch

from sds.errors import ShardCorrupt, TensorCacheError
from sds.tensors.columns import Columns
from sds.tensors.layout import DTYPES, Slot
from sds.tensors.lazy import LazyTensor

__all__ = ["fitting", "lazy_field", "stackable"]


def stackable(columns: Columns, row: int, field: str, first: Slot | None) -> Slot:
    """The slot of a field in a sample, if it is like the first one."""
    slot = next((slot for slot in columns.bucket_of(row).slots if slot.field == field), None)
    if slot is not None and (first is None or (slot.shape, slot.dtype) == (first.shape, first.dtype)):
        return slot
    what = "no such field" if slot is None else f"{slot.dtype} {list(slot.shape)} among others"
    hint = "stack samples of one bucket: cache.buckets() tells which"
    raise TensorCacheError(f"samples cannot be stacked: {field}: {what}", hint=hint, key=columns.key(row))


def fitting(out: torch.Tensor | None, num: int, slot: Slot) -> torch.Tensor:
    """A tensor for so many of these: the one that was given, if it fits, or a new one."""
    shape, dtype = (num, *slot.shape), DTYPES[slot.dtype]
    if out is None:
        return torch.empty(shape, dtype=dtype)  # [n, ...]
    if out.shape != shape or out.dtype != dtype or not out.is_contiguous() or out.device.type != "cpu":
        what = f"{out.dtype} {list(out.shape)}, not {dtype} {list(shape)}"
        raise TensorCacheError(
            f"out does not fit: {what}", hint="a contiguous tensor on the CPU of that shape and dtype"
        )
    return out


def lazy_field(sample: Any, field: str) -> Any:
    """The lazy tensor of a field."""
    found: list[LazyTensor] = []

    def look(value: Any) -> None:
        if isinstance(value, LazyTensor) and value.field == field:
            found.append(value)
        elif isinstance(value, dict):
            for each in value.values():
                look(each)
        elif isinstance(value, list | tuple):
            for each in value:
                look(each)

    look(sample)
    if not found:
        raise ShardCorrupt(f"no tensor in its place: {field}", hint="verify() tells more")
    return found[0]
