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
from sds.tensors.layout import Bucket, unpack, view_of
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
    digests: list[bytes]
    data: list[torch.Tensor]  # [n] uint8 each


def can_gather(cache: TensorCache) -> bool:
    """Whether samples of a cache can be read together: it is local, and not mapped."""
    return isinstance(cache.place, LocalPlace) and cache.access == "pread"


class Gathered:
    """Samples that are read together.

    Args:
        cache: a cache that `can_gather`.
        positions: which samples.
        is_batch: put tensors of one place in all samples into one piece of memory.
    """

    def __init__(self, cache: TensorCache, positions: Sequence[int], *, is_batch: bool = False) -> None:
        self._cache = cache
        self.memory: list[torch.Tensor] = []  # pieces that hold a tensor of every sample, in their order
        found = [cache.locate(position) for position in positions]
        buckets = [columns.bucket_of(row) for _, columns, row in found]
        is_alike = is_batch and len({bucket.blocks for bucket in buckets}) == 1
        shared = {
            number: torch.empty(len(found), size, dtype=torch.uint8)
            for number, size in enumerate(buckets[0].blocks if is_alike else ())
            if size and not size % _ALIGNED
        }
        self.memory.extend(shared.values())
        self._entries = []
        for k, ((shard, columns, row), bucket) in enumerate(zip(found, buckets, strict=True)):
            data = [
                shared[number][k] if number in shared else torch.empty(size, dtype=torch.uint8)
                for number, size in enumerate(bucket.blocks)
            ]
            self._entries.append(_Entry(shard, columns, row, bucket, *columns.blocks_of(row), data))

    def __len__(self) -> int:
        return len(self._entries)

    def read(self, start: int = 0, stop: int | None = None) -> None:
        """Reads the samples [start, stop). ShardCorrupt if a shard is not what was written."""
        entries = self._entries[start:stop]
        jobs: dict[int, tuple[Columns, list[Want]]] = {}
        first: dict[tuple[int, int, int], torch.Tensor] = {}  # blocks that several samples have are read once
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for entry in entries:
            _, wants = jobs.setdefault(entry.shard, (entry.columns, []))
            for at, data, size in zip(entry.starts, entry.data, entry.bucket.blocks, strict=True):
                known = first.setdefault((entry.shard, at, size), data)
                if known is not data:
                    copies.append((data, known))
                elif size:
                    wants.append(Want(at, view_of(data)))
        self._cache.place.read_all([jobs[shard] for shard in sorted(jobs)])
        for data, known in copies:
            data.copy_(known)
        if self._cache.verify_reads:
            for entry in entries:
                for mark, data in zip(entry.digests, entry.data, strict=True):
                    self._cache.check(mark, view_of(data), entry.shard)

    def sample(self, k: int) -> Any:
        """The sample at a place, after it was read."""
        entry = self._entries[k]
        made: dict[tuple[int, bool], Any] = {}

        def tensor(number: int, is_array: bool) -> Any:
            if (number, is_array) not in made:
                slot = entry.bucket.slots[number]
                value = unpack(slot, entry.data[slot.block])
                made[number, is_array] = value.numpy() if is_array else value
            return made[number, is_array]

        columns = entry.columns
        return skeleton.decode(columns.name, columns.skeleton(entry.row), len(entry.bucket.slots), tensor)
