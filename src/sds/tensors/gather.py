"""Gathered: several samples of a local cache, read together. What a loader's step is made of.

Comes in: a cache and positions. Goes out: samples with real tensors. Reads are sorted and coalesced, in parts that
threads may read side by side. Tensors that are alike may lie one after the other in one piece of memory: a batch is
then there as soon as it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from sds.tensors import skeleton
from sds.tensors.columns import Columns
from sds.tensors.layout import DTYPES, Bucket, unpack, view_of
from sds.tensors.local import LocalPlace
from sds.tensors.places import Want

if TYPE_CHECKING:
    from sds.tensors.reader import TensorCache

__all__ = ["Gathered", "can_gather"]

_ALIGNED = 16  # every dtype may begin at multiples of this


class _Entry(NamedTuple):
    """Where a sample is, and the memory of its blocks."""

    shard: int
    columns: Columns
    row: int
    bucket: Bucket
    starts: list[int]
    data: list[torch.Tensor | None]  # [n] uint8 each; None: a row of a piece


def can_gather(cache: TensorCache) -> bool:
    """Whether samples of a cache can be read together: it is local, and not mapped."""
    return cache.access == "pread" and isinstance(cache.place, LocalPlace)


class Gathered:
    """Samples that are read together.

    Args:
        cache: a cache that `can_gather`.
        positions: which samples.
        is_batch: put tensors of one place in all samples into one piece of memory.
    """

    def __init__(self, cache: TensorCache, positions: Sequence[int], *, is_batch: bool = False) -> None:
        self._cache = cache
        found = cache.locate_all(positions)
        buckets = [columns.bucket_of(row) for _, columns, row in found]
        is_alike = is_batch and len({bucket.blocks for bucket in buckets}) == 1
        sizes = buckets[0].blocks if is_alike else ()
        # block -> memory that holds this block of every sample, in their order: [n, size] uint8
        self._pieces = {
            number: cache.spare.take(len(found) * size).view(len(found), size)
            for number, size in enumerate(sizes)
            if size and not size % _ALIGNED
        }
        self._views = {number: view_of(piece.view(-1)) for number, piece in self._pieces.items()}
        self._rows: dict[tuple[int, str, tuple[int, ...]], tuple[torch.Tensor, ...]] = {}
        self._entries = []
        for (shard, columns, row), bucket in zip(found, buckets, strict=True):
            data = [
                None if number in self._pieces else torch.empty(size, dtype=torch.uint8)
                for number, size in enumerate(bucket.blocks)
            ]
            self._entries.append(_Entry(shard, columns, row, bucket, columns.starts_of(row), data))

    @property
    def memory(self) -> list[torch.Tensor]:
        """Pieces that hold a tensor of every sample, in their order."""
        return list(self._pieces.values())

    def __len__(self) -> int:
        return len(self._entries)

    def read(self, start: int = 0, stop: int | None = None, *, num_threads: int = 1) -> None:
        """Reads the samples [start, stop). ShardCorrupt if a shard is not what was written."""
        jobs: dict[int, tuple[Columns, list[Want]]] = {}
        first: dict[tuple[int, int, int], memoryview] = {}  # blocks that several samples have are read once
        copies: list[tuple[memoryview, memoryview]] = []
        places = range(len(self))[start:stop]
        for k in places:
            entry = self._entries[k]
            shard, sizes = entry.shard, entry.bucket.blocks
            _, wants = jobs.setdefault(shard, (entry.columns, []))
            for number, at in enumerate(entry.starts):
                if size := sizes[number]:
                    into = self._memory_of(k, number, size)
                    known = first.setdefault((shard, at, size), into)
                    if known is into:
                        wants.append((at, into))
                    else:
                        copies.append((into, known))
        self._cache.place.read_all([jobs[shard] for shard in sorted(jobs)], num_threads)
        for into, known in copies:
            into[:] = known
        if self._cache.verify_reads:
            for k in places:
                entry = self._entries[k]
                for number, mark in enumerate(entry.columns.digests_of(entry.row)):
                    self._cache.check(mark, self._memory_of(k, number, entry.bucket.blocks[number]), entry.shard)

    def _memory_of(self, k: int, number: int, size: int) -> memoryview:
        data = self._entries[k].data[number]
        return self._views[number][k * size : (k + 1) * size] if data is None else view_of(data)

    def sample(self, k: int) -> Any:
        """The sample at a place, after it was read."""
        entry = self._entries[k]
        made: dict[tuple[int, bool], Any] = {}

        def tensor(number: int, is_array: bool) -> Any:
            if (number, is_array) not in made:
                value = self._tensor(k, entry, number)
                made[number, is_array] = value.numpy() if is_array else value
            return made[number, is_array]

        columns = entry.columns
        return skeleton.decode(columns.name, columns.skeleton(entry.row), len(entry.bucket.slots), tensor)

    def _tensor(self, k: int, entry: _Entry, number: int) -> torch.Tensor:
        slot = entry.bucket.slots[number]
        data = entry.data[slot.block]
        if data is not None:
            return unpack(slot, data)
        if slot.offset is not None or slot.stride is not None:
            return unpack(slot, self._pieces[slot.block][k])
        key = slot.block, slot.dtype, slot.shape
        rows = self._rows.get(key)
        if rows is None:  # all at once: a view of each would cost more than what is read
            whole = self._pieces[slot.block].view(-1).view(DTYPES[slot.dtype])
            rows = self._rows[key] = whole.view(len(self), *slot.shape).unbind(0)
        return rows[k]
