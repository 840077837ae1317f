"""Which positions of an epoch make batches of one bucket: the order of an epoch, grouped.

Comes in: the bucket of each position, and what was handed out before. Goes out: batches whose samples are all of one
bucket. Every position is in one batch; the batches depend on the buckets and on data_size * batch_size alone; every
rank makes the same number of them. Takes some twenty bytes a position while it is made, eight after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from sds.errors import StateMismatch
from sds.plan.arguments import whole
from sds.plan.bijection import IntArray
from sds.plan.partition import rank_share, resolve

__all__ = ["BucketSteps", "Segments", "bucket_steps", "compact", "merged"]

Buckets = npt.NDArray[np.integer[Any]]

# (global batch size, number of global batches) that were handed out one after the other
Segments = tuple[tuple[int, int], ...]


def bucket_steps(
    buckets: Buckets,
    data_size: SupportsIndex,
    data_rank: SupportsIndex,
    batch_size: SupportsIndex,
    drop_last: bool = False,
    *,
    done: Sequence[Sequence[int]] = (),
) -> BucketSteps:
    """One rank's batches of an epoch, each of one bucket.

    The positions of a bucket, in their order, are cut into global batches of D*B; such a batch comes when its last
    member would have come. What is left of the buckets at the end, less than D*B of each, comes last, as smaller
    batches, in the same order. Of a global batch rank d takes the d-th slice; of a smaller one with r positions
    ceil(r/D), and the repeats that this needs, at most D-1, wrap around inside it.

    Args:
        buckets: the bucket of each position of the epoch: whole numbers, whichever.
        data_size: D, how many ranks read different samples.
        data_rank: which of them this is.
        batch_size: B, samples per rank and batch.
        drop_last: leave the smaller batches out.
        done: what was handed out of this epoch: pairs of a global batch size and how many batches it was. What is left
            is grouped as if it were all there is. (1, p) are the first p positions.

    Raises:
        OptionError: a number is impossible.
        StateMismatch: `done` has more batches than there are.
    """
    size = whole("data_size", data_size, least=1)
    rank = whole("data_rank", data_rank, least=0, most=size - 1)
    batch = whole("batch_size", batch_size, least=1)
    buckets = compact(buckets)
    left = np.arange(len(buckets), dtype=np.int64)
    segments = merged(done)
    for global_size, count in segments:
        left = _without(buckets, left, global_size, count)
    order, starts, sizes = _cut(buckets[left], size * batch)
    if drop_last:
        keep = sizes == size * batch
        starts, sizes = starts[keep], sizes[keep]
    num_before, sums = len(buckets) - len(left), np.cumsum(sizes)
    num_dropped = len(left) - int(sizes.sum())
    return BucketSteps(left[order], starts, sizes, num_before + sums, num_dropped, segments, size, rank, batch)


def merged(done: Sequence[Sequence[int]]) -> Segments:
    """Segments without empty ones, and neighbours of one size as one: it is the same."""
    segments: list[tuple[int, int]] = []
    for size, count in done:
        size, count = whole("global batch size", size, least=1), whole("number of batches", count, least=0)
        if segments and segments[-1][0] == size:
            segments[-1] = size, segments[-1][1] + count
        elif count:
            segments.append((size, count))
    return tuple(segments)


def compact(buckets: Buckets) -> Buckets:
    """The same buckets under numbers in the smallest type that holds them: those of 16 bits are sorted much faster."""
    if buckets.dtype == np.uint16 or not len(buckets):
        return buckets
    low, high = int(buckets.min()), int(buckets.max())
    if high - low > 0xFFFF:
        return buckets
    return (buckets - low).astype(np.uint16)


def _without(buckets: Buckets, left: IntArray, global_size: int, count: int) -> IntArray:
    """The positions that are left when the first `count` batches were handed out."""
    order, starts, sizes = _cut(buckets[left], global_size)
    if count > len(starts):
        raise StateMismatch(
            f"more batches were handed out than there are: {count} of {len(starts)}",
            hint="is the state of this dataset, and of this epoch?",
        )
    starts, sizes = starts[:count], sizes[:count]
    before = np.cumsum(sizes) - sizes
    members = np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))
    is_left = np.ones(len(left), np.bool_)
    is_left[order[members]] = False
    return left[is_left]


def _cut(buckets: Buckets, global_size: int) -> tuple[IntArray, IntArray, IntArray]:
    """Places sorted by bucket, and the batches in their order: where each begins among those, and its size."""
    order = np.argsort(buckets, kind="stable")
    if not len(order):
        return order, order, order
    grouped = buckets[order]
    firsts = np.concatenate([[0], np.flatnonzero(grouped[1:] != grouped[:-1]) + 1])
    ends = np.concatenate([firsts[1:], [len(order)]])
    counts = -(-(ends - firsts) // global_size)  # batches of each bucket
    numbers = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(firsts, counts) + numbers * global_size
    sizes = np.minimum(global_size, np.repeat(ends, counts) - starts)
    comes = np.lexsort((order[starts + sizes - 1], sizes < global_size))  # whole ones first, by their last member
    return order, starts[comes], sizes[comes]


@dataclass(frozen=True, eq=False)
class BucketSteps:
    """The batches of one rank: `steps[k]` is an int64 array of positions. Made by `bucket_steps()`.

    Attributes:
        num_dropped: positions in no batch, because of drop_last.
        done: what was handed out before the first of these batches.
    """

    _members: IntArray = field(repr=False)
    _starts: IntArray = field(repr=False)
    _sizes: IntArray = field(repr=False)
    _sums: IntArray = field(repr=False)
    num_dropped: int
    done: Segments
    data_size: int
    data_rank: int
    batch_size: int

    @property
    def global_batch_size(self) -> int:
        """Positions of a full batch, over all ranks."""
        return self.data_size * self.batch_size

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, k: SupportsIndex) -> IntArray: ...
    @overload
    def __getitem__(self, k: slice) -> list[IntArray]: ...

    def __getitem__(self, k: SupportsIndex | slice) -> IntArray | list[IntArray]:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        number = resolve(k, len(self))
        start, size = self._starts.item(number), self._sizes.item(number)
        return self._members[start + rank_share(size, self.data_size, self.data_rank)]

    def __iter__(self) -> Iterator[IntArray]:
        return (self[k] for k in range(len(self)))

    def done_after(self, k: SupportsIndex) -> Segments:
        """What was handed out of the epoch after batch k: where a resume goes on, with any number of ranks."""
        number = resolve(k, len(self)) + 1
        return merged((*self.done, (self.global_batch_size, number)))

    def num_after(self, k: SupportsIndex) -> int:
        """Positions of the epoch that were handed out after batch k, those of earlier runs included."""
        return self._sums.item(resolve(k, len(self)))
