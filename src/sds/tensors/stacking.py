"""One field of several samples as one tensor: which can be stacked, into what, and how it gets there.

Comes in: a cache, positions, a field, perhaps a tensor to fill. Goes out: the tensor, into whose memory the samples
were read; or TensorCacheError, before anything is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from sds.errors import ShardCorrupt, TensorCacheError
from sds.tensors.columns import Columns
from sds.tensors.layout import DTYPES, Slot, view_of
from sds.tensors.lazy import LazyTensor, lazy_in, realize
from sds.tensors.local import LocalPlace
from sds.tensors.places import Job, Want

if TYPE_CHECKING:
    from sds.tensors.reader import TensorCache

__all__ = ["stack_field"]

_SHARD = itemgetter(0)


def stack_field(cache: TensorCache, positions: Sequence[int], field: str, out: torch.Tensor | None) -> torch.Tensor:
    """What TensorCache.stack gives."""
    found = cache.locate_all(positions)
    if not found:
        raise TensorCacheError("nothing to stack: no positions", hint="give at least one")
    _, columns, row = found[0]
    slot = _stackable(columns, row, field, None)
    out = _fitting(out, len(found), slot)
    memory = view_of(out.view(-1).view(torch.uint8)).cast("B") if out.numel() else memoryview(b"")
    size = len(memory) // len(found)
    jobs: dict[int, tuple[Columns, memoryview, list[Want]]] = {}
    rest: list[int] = []  # those that cannot be read as they are
    for place, (shard, columns, row) in enumerate(found):  # one loop: its time counts beside that of the copies
        job = jobs.get(shard)
        if job is None:
            job = jobs[shard] = columns, columns.field_starts(slot), []
        start = job[1][row]
        if start < 0:
            rest.append(place)
        else:
            job[2].append((start, memory[place * size : (place + 1) * size]))
    for place in rest:
        _stackable(found[place][1], found[place][2], field, slot)
    _read(cache, [(columns, wants) for _, (columns, _, wants) in sorted(jobs.items(), key=_SHARD) if wants])
    for place in rest:
        out[place] = realize(_lazy_field(cache[positions[place]], field))
    if cache.verify_reads:
        for place in {*range(len(found))}.difference(rest):
            shard, columns, row = found[place]
            mark = columns.digests_of(row)[_stackable(columns, row, field, slot).block]
            cache.check(mark, memory[place * size : (place + 1) * size], shard)
    return out


def _read(cache: TensorCache, jobs: list[Job]) -> None:
    if cache.access == "mmap" and isinstance(cache.place, LocalPlace):
        cache.place.copy_all(jobs, torch.get_num_threads())
    else:
        cache.place.read_all(jobs, torch.get_num_threads())


def _stackable(columns: Columns, row: int, field: str, first: Slot | None) -> Slot:
    """The slot of a field in a sample, if it is like the first one."""
    slot = next((slot for slot in columns.bucket_of(row).slots if slot.field == field), None)
    if slot is not None and (first is None or (slot.shape, slot.dtype) == (first.shape, first.dtype)):
        return slot
    what = "no such field" if slot is None else f"{slot.dtype} {list(slot.shape)} among others"
    hint = "stack samples of one bucket: cache.buckets() tells which"
    raise TensorCacheError(f"samples cannot be stacked: {field}: {what}", hint=hint, key=columns.key(row))


def _fitting(out: torch.Tensor | None, num: int, slot: Slot) -> torch.Tensor:
    """A tensor for so many of these: the one that was given, if it fits, or a new one."""
    shape, dtype = (num, *slot.shape), DTYPES[slot.dtype]
    if out is None:
        return torch.empty(shape, dtype=dtype)  # [n, ...]
    hint = f"a contiguous tensor on the CPU: {dtype} {list(shape)}"
    if not isinstance(out, torch.Tensor):
        raise TensorCacheError(f"out is no tensor: {type(out).__name__}", hint=hint)
    has_memory = out.device.type == "cpu" and out.layout == torch.strided and not (out.is_conj() or out.is_neg())
    if out.shape != shape or out.dtype != dtype or not has_memory or not out.is_contiguous():
        why = "" if has_memory and out.is_contiguous() else ", not in one piece of memory"
        raise TensorCacheError(f"out does not fit: {out.dtype} {list(out.shape)} on {out.device}{why}", hint=hint)
    return out


def _lazy_field(sample: Any, field: str) -> LazyTensor:
    """The lazy tensor of a field."""
    for tensor in lazy_in(sample):
        if tensor.field == field:
            return tensor
    raise ShardCorrupt(f"no tensor in its place: {field}", hint="verify() tells more")
