"""Tensors <-> blocks of bytes: how the tensors of one sample lie in memory.

Comes in: tensors, some of which may be views of one memory. Goes out: a bucket (what the sample's tensors are like) and
blocks of bytes; and back, with strides and sharing. Buckets that were read are checked: no tensor leaves its block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import torch

from sds.errors import TensorCacheError
from sds.tensors.format import corrupt

__all__ = ["DTYPES", "Block", "Bucket", "Slot", "check_bucket", "pack", "unpack", "view_of"]

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
# Memory between the elements of a tensor is given back only up to here: a column of a large matrix would become
# the matrix again. Beyond, strides and sharing are given up, never values.
_MAX_SPREAD = 8
_SMALL = 65_536

_Size = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class Slot(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tensor of a bucket; docs/reference/tensor-cache.md, 4."""

    field: str
    dtype: str
    shape: tuple[_Size, ...]
    block: _Size
    stride: tuple[_Size, ...] | None = None
    offset: _Size | None = None


class Bucket(msgspec.Struct, frozen=True):
    """What the tensors of a sample are like: the same for all samples that can be stacked."""

    blocks: tuple[_Size, ...]
    slots: tuple[Slot, ...]


class Block(NamedTuple):
    """Bytes to be stored, and what a reader of plain safetensors shall see in them."""

    data: torch.Tensor  # [n] uint8
    field: str
    dtype: str
    shape: tuple[int, ...]


class _Span(NamedTuple):
    """The memory of a tensor: bytes [start, stop) of its storage."""

    storage: tuple[int, int]
    start: int
    stop: int
    place: int


def pack(tensors: Sequence[torch.Tensor], fields: Sequence[str]) -> tuple[Bucket, list[Block]]:
    """The blocks of a sample's tensors, in the order of the tensors, and the bucket that describes them."""
    slots: dict[int, Slot] = {}
    blocks: list[Block] = []
    shared = _shared(tensors)
    for place, (tensor, field) in enumerate(zip(tensors, fields, strict=True)):
        if place in slots:
            continue
        if place in shared:
            group = shared[place]
            start, stop = group[0].start // 8 * 8, max(span.stop for span in group)
            members = [span.place for span in group]
            for span in group:
                offset = span.start - start
                slots[span.place] = _slot(tensors[span.place], fields[span.place], len(blocks), offset)
            blocks.append(_piece(tensors, members, fields, start, stop))
            continue
        stride = tuple(tensor.stride())
        row_major = tensor.contiguous()
        slot = _slot(tensor, field, len(blocks))
        if stride != _row_major(tensor.shape) and _is_near(_extent(tensor.shape, stride), tensor.numel()):
            slot = msgspec.structs.replace(slot, stride=stride)
        slots[place] = slot
        blocks.append(Block(_bytes_of(row_major), field, slot.dtype, slot.shape))
    sizes = tuple(len(block.data) for block in blocks)
    return Bucket(sizes, tuple(slots[place] for place in range(len(tensors)))), blocks


def _shared(tensors: Sequence[torch.Tensor]) -> dict[int, list[_Span]]:
    """For the tensors that share memory with others, or with themselves: all tensors on that piece of memory."""
    spans = sorted(_span(place, tensor) for place, tensor in enumerate(tensors) if tensor.numel())
    groups: list[list[_Span]] = []
    stop = 0
    for span in spans:
        if groups and groups[-1][0].storage == span.storage and span.start < stop:
            groups[-1].append(span)
            stop = max(stop, span.stop)
        else:
            groups.append([span])
            stop = span.stop
    found: dict[int, list[_Span]] = {}
    for group in groups:
        if len(group) == 1 and not _overlaps_itself(tensors[group[0].place]):
            continue
        num_bytes = max(span.stop for span in group) - group[0].start
        if len(group) == 1 or _is_near(num_bytes, sum(tensors[span.place].nbytes for span in group)):
            found.update({span.place: group for span in group})
    return found


def _span(place: int, tensor: torch.Tensor) -> _Span:
    storage, size = tensor.untyped_storage(), tensor.element_size()
    start = int(tensor.storage_offset()) * size
    stop = start + _extent(tensor.shape, tensor.stride()) * size
    return _Span((storage.data_ptr(), storage.nbytes()), start, stop, place)


def _extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last, those between them included."""
    if 0 in shape:
        return 0
    return 1 + sum((side - 1) * step for side, step in zip(shape, stride, strict=True))


def _is_near(num: int, num_used: int) -> bool:
    return num <= max(_SMALL, _MAX_SPREAD * num_used)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    steps, step = [], 1
    for side in reversed(shape):
        steps.append(step)
        step *= max(side, 1)
    return tuple(reversed(steps))


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may lie at one place, as those of an expanded tensor do."""
    reach = 0
    for step, side in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if side > 1:
            if step <= reach:
                return True
            reach += (side - 1) * step
    return False


def _slot(tensor: torch.Tensor, field: str, block: int, offset: int | None = None) -> Slot:
    code = _CODES.get(tensor.dtype)
    if code is None:
        hint = "safetensors has no such dtype: convert the tensor, for example to float32 or uint8"
        raise TensorCacheError(f"sample cannot be stored: {field}: a tensor of {tensor.dtype}", hint=hint)
    stride = None if offset is None else tuple(tensor.stride())
    return Slot(field, code, tuple(tensor.shape), block, stride, offset)


def _piece(
    tensors: Sequence[torch.Tensor], members: Sequence[int], fields: Sequence[str], start: int, stop: int
) -> Block:
    """A piece of memory as a block; it looks like the member that fills it, if there is one."""
    storage = tensors[members[0]].untyped_storage()
    data = torch.empty(0, dtype=torch.uint8).set_(storage, start, (stop - start,), (1,))
    for place in members:
        tensor = tensors[place]
        if tensor.nbytes == len(data) and tensor.is_contiguous():
            return Block(data, fields[place], _CODES[tensor.dtype], tuple(tensor.shape))
    return Block(data, fields[min(members)], "U8", (len(data),))


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.numel():
        return torch.empty(0, dtype=torch.uint8)
    # not reshape: one element may have any stride
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()).view(torch.uint8)  # [n]


def view_of(data: torch.Tensor) -> memoryview:
    """The memory of a tensor [n] uint8."""
    array: Any = data.numpy()
    return memoryview(array)


def check_bucket(name: str, bucket: Bucket) -> None:
    """ShardCorrupt if a slot does not fit its block."""
    for slot in bucket.slots:
        dtype = DTYPES.get(slot.dtype)
        if dtype is None or slot.block >= len(bucket.blocks) or len(slot.shape) > 64:
            raise corrupt(name, f"a tensor of an unknown kind: {slot.field}: {slot.dtype}")
        num, room = math.prod(slot.shape), bucket.blocks[slot.block]
        fits = num * dtype.itemsize == room and (slot.offset is None or slot.stride is not None)
        if slot.stride is not None:
            extent = _extent(slot.shape, slot.stride) if len(slot.stride) == len(slot.shape) else 2**62
            if slot.offset is None:
                fits = fits and _is_near(extent, num)
            else:
                fits = slot.offset + extent * dtype.itemsize <= room and slot.offset % dtype.itemsize == 0
        if not fits:
            raise corrupt(name, f"{slot.field}: {slot.dtype} {list(slot.shape)} does not fit {room} bytes")


def unpack(slot: Slot, data: torch.Tensor) -> torch.Tensor:
    """The tensor of a slot, over the memory of its block (or over its own, if it has strides of its own)."""
    dtype = DTYPES[slot.dtype]
    if slot.offset is not None and slot.stride is not None:
        storage, offset = data.untyped_storage(), data.storage_offset() + slot.offset
        empty = torch.empty(0, dtype=dtype)
        return empty.set_(storage, offset // dtype.itemsize, slot.shape, slot.stride)
    row_major = data.view(dtype).view(slot.shape) if data.numel() else torch.empty(slot.shape, dtype=dtype)
    if slot.stride is None:
        return row_major
    return torch.empty_strided(slot.shape, slot.stride, dtype=dtype).copy_(row_major)
