"""Which positions of an epoch are whose: steps for batches, lanes for bare iteration.

Comes in: the epoch's length, where to begin, this rank among the data-parallel ranks. Goes out: lazy sequences of
positions. Every rank gets equally many; together they cover [start, length) once, except for at most data_size - 1
repeats that the last step needs to be equal on all ranks, and these come from that last step itself, so they are the
same whether or not the epoch was resumed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import SupportsIndex, overload

import numpy as np

from sds.plan.arguments import whole
from sds.plan.bijection import IntArray

__all__ = ["Lanes", "Steps", "lanes", "rank_share", "resolve", "steps"]

_ITERATION_BLOCK = 4096


def steps(
    length: SupportsIndex,
    start: SupportsIndex,
    data_size: SupportsIndex,
    data_rank: SupportsIndex,
    batch_size: SupportsIndex,
    drop_last: bool = False,
    *,
    shares: SupportsIndex = 1,
    lap: SupportsIndex | None = None,
) -> Steps:
    """One rank's batches of an epoch.

    Step s holds the positions [start + s*D*B, start + (s+1)*D*B) for D ranks with batches of B, and rank d takes the
    d-th slice of B: the global batches depend on D*B only. Of a tail of r positions each rank takes ceil(r/D); the
    repeats that this needs, at most D-1, wrap around inside the tail.

    With `shares`, the positions of a full step are dealt out share by share: those of share 0 to the first ranks, and
    so on. The global batches stay the same, and with as many shares as nodes (of consecutive ranks) each node reads
    the rows of its own share only. A step that cannot be divided equally is dealt out in order, as without shares.

    Args:
        length: positions in the epoch.
        start: the first position to deliver; where a resumed epoch goes on.
        data_size: D, how many ranks read different samples.
        data_rank: which of them this is.
        batch_size: B, samples per rank and step.
        drop_last: leave the tail out.
        shares: those of the plan.
        lap: positions of one epoch, where `length` spans several. Default: `length`.
    """
    length, start, data_size, data_rank = _check_share(length, start, data_size, data_rank)
    return Steps(
        length,
        start,
        data_size,
        data_rank,
        whole("batch_size", batch_size, least=1),
        bool(drop_last),
        whole("shares", shares, least=1),
        length if lap is None else whole("lap", lap, least=1),
    )


def lanes(
    length: SupportsIndex,
    start: SupportsIndex,
    data_size: SupportsIndex,
    data_rank: SupportsIndex,
    num_workers: SupportsIndex = 1,
    worker: SupportsIndex = 0,
) -> Lanes:
    """One worker's single positions of an epoch, for iteration without batches.

    Rank d of D takes start + d + k*D for k = 0, 1, ..., ceil((length - start) / D) - 1, and worker w of W of that rank
    the k = w (mod W). Positions past the end wrap around inside the last, incomplete group of D.

    Args:
        length: positions in the epoch.
        start: the first position to deliver.
        data_size: D, how many ranks read different samples.
        data_rank: which of them this is.
        num_workers: W, processes that share this rank's positions; 1 when there are none but the rank itself.
        worker: which of them this is.
    """
    length, start, data_size, data_rank = _check_share(length, start, data_size, data_rank)
    num_workers = whole("num_workers", num_workers, least=1)
    worker = whole("worker", worker, least=0, most=num_workers - 1)
    return Lanes(length, start, data_size, data_rank, num_workers, worker)


def _check_share(
    length: SupportsIndex, start: SupportsIndex, data_size: SupportsIndex, data_rank: SupportsIndex
) -> tuple[int, int, int, int]:
    length = whole("length", length, least=0)
    data_size = whole("data_size", data_size, least=1)
    return (
        length,
        whole("start", start, least=0, most=length),
        data_size,
        whole("data_rank", data_rank, least=0, most=data_size - 1),
    )


@dataclass(frozen=True, slots=True)
class Steps:
    """The batches of one rank: `steps[k]` is an int64 array of positions. Made by `steps()`."""

    length: int
    start: int
    data_size: int
    data_rank: int
    batch_size: int
    drop_last: bool = False
    shares: int = 1
    lap: int = 0

    @property
    def global_batch_size(self) -> int:
        """Positions per full step, over all ranks."""
        return self.data_size * self.batch_size

    def __len__(self) -> int:
        num_full, num_left = divmod(self.length - self.start, self.global_batch_size)
        return num_full + (num_left > 0 and not self.drop_last)

    @overload
    def __getitem__(self, k: SupportsIndex) -> IntArray: ...
    @overload
    def __getitem__(self, k: slice) -> list[IntArray]: ...

    def __getitem__(self, k: SupportsIndex | slice) -> IntArray | list[IntArray]:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        first = self.start + resolve(k, len(self)) * self.global_batch_size
        left = self.length - first
        if left >= self.global_batch_size:
            slot = self.data_rank * self.batch_size
            slots = np.arange(slot, slot + self.batch_size, dtype=np.int64)
            return first + (slots if self.shares == 1 else self._dealt(first, slots))
        return first + rank_share(left, self.data_size, self.data_rank)

    def _dealt(self, first: int, slots: IntArray) -> IntArray:
        """Slots of a full step, counted share by share -> counted from its first position."""
        per_share, left_over = divmod(self.global_batch_size, self.shares)
        place = first % self.lap
        if left_over or place + self.global_batch_size > self.lap:
            return slots
        share, turn = np.divmod(slots, per_share)
        dealt: IntArray = (share - place) % self.shares + turn * self.shares
        return dealt

    def __iter__(self) -> Iterator[IntArray]:
        return (self[k] for k in range(len(self)))

    @property
    def num_dropped(self) -> int:
        """Positions in no step, because of drop_last."""
        return (self.length - self.start) % self.global_batch_size if self.drop_last else 0

    def stop(self, k: SupportsIndex) -> int:
        """The position after step k, where a resume goes on: `length` after the last, even if a tail is dropped."""
        k = resolve(k, len(self))
        return self.length if k == len(self) - 1 else self.start + (k + 1) * self.global_batch_size


@dataclass(frozen=True, slots=True)
class Lanes:
    """The single positions of one worker: `lanes[k]` is an int, a slice is an int64 array. Made by `lanes()`."""

    length: int
    start: int
    data_size: int
    data_rank: int
    num_workers: int = 1
    worker: int = 0

    def __len__(self) -> int:
        per_rank = -(-(self.length - self.start) // self.data_size)
        return max(0, -(-(per_rank - self.worker) // self.num_workers))

    @overload
    def __getitem__(self, k: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, k: slice) -> IntArray: ...

    def __getitem__(self, k: SupportsIndex | slice) -> int | IntArray:
        if isinstance(k, slice):
            found = self._first(np.arange(*k.indices(len(self)), dtype=np.int64)) + self.data_rank
            over = found >= self.length
            if over.any():
                found[over] = self._wrapped()
            return found
        position = self._first(resolve(k, len(self))) + self.data_rank
        return position if position < self.length else self._wrapped()

    def __iter__(self) -> Iterator[int]:
        for begin in range(0, len(self), _ITERATION_BLOCK):
            yield from self[begin : begin + _ITERATION_BLOCK].tolist()

    def stop(self, k: SupportsIndex) -> int:
        """The position after item k on all ranks, where a resume goes on when this is the only worker."""
        return min(self.length, self._first(resolve(k, len(self))) + self.data_size)

    @overload
    def _first(self, k: int) -> int: ...
    @overload
    def _first(self, k: IntArray) -> IntArray: ...

    def _first(self, k: int | IntArray) -> int | IntArray:
        """Where the group of data_size positions that item k belongs to begins."""
        return self.start + (self.worker + k * self.num_workers) * self.data_size

    def _wrapped(self) -> int:
        """This rank's position in an incomplete last group that is too short for it."""
        num_left = (self.length - self.start) % self.data_size
        return self.length - num_left + self.data_rank % num_left


def rank_share(size: int, data_size: int, data_rank: int) -> IntArray:
    """A rank's slots of a step with so many: equally many for all; what is missing for that wraps around."""
    share = -(-size // data_size)
    return np.arange(data_rank * share, (data_rank + 1) * share, dtype=np.int64) % size


def resolve(k: SupportsIndex, length: int) -> int:
    """A plain index in [0, length) from one that may count from the end."""
    number = operator.index(k)
    if not -length <= number < length:
        raise IndexError(f"out of range: {number} of {length}")
    return number + length if number < 0 else number
