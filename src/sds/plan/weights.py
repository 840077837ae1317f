"""Copies: how often each row comes in an epoch, by its weight, and which row each of the epoch's copies is of.

Comes in: weights, read a block at a time, and the epoch. Goes out: how many copies there are, and the row of each.
A row of weight w = a + f comes a or a + 1 times, and over any number E of epochs less than one away from w*E times.
Memory is one number for a block of rows; nothing is drawn: the same weights give the same copies everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from sds import seeds
from sds.errors import OptionError, SourceError
from sds.plan.bijection import Bijection, IntArray, Order
from sds.plan.permutation import MAX_ROWS

__all__ = ["Copies", "FloatArray", "WeightSchedule", "WeightSource", "WeightedOrder", "first_wrong"]

FloatArray: TypeAlias = npt.NDArray[np.float64]
WeightSchedule: TypeAlias = Callable[[int, FloatArray], Any]

_BLOCK = 256  # rows whose copies are counted together: a lookup computes the copies of one block
_SPAN = 512 * _BLOCK  # rows looked at together, when all are
_KEY = seeds.derive_key(0, "weights")
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)


class WeightSource(Protocol):
    """One weight a row, read by slices: a NumPy array, or a column of an index."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> FloatArray: ...


def first_wrong(weights: npt.NDArray[Any]) -> int | None:
    """The place of the first value that is no weight: below 0, infinite, or no number."""
    with np.errstate(invalid="ignore"):
        wrong = ~((weights >= 0) & (weights <= MAX_ROWS))
    return int(wrong.argmax()) if wrong.any() else None


class Copies:
    """The copies of rows in one epoch: copy k is of row `find(k)`; copies of one row follow each other.

    Args:
        weights: of the rows.
        epoch: the epoch.
        schedule: (epoch, values) -> weights, row by row; None: the values are the weights.
    """

    def __init__(self, weights: WeightSource, epoch: int, schedule: WeightSchedule | None = None) -> None:
        self._weights = weights
        self._epoch = epoch
        self._schedule = schedule
        # Fixed weights add up over epochs, so that a row is never more than one copy ahead or behind; weights that
        # change have no such sum at hand, and each epoch rounds by itself.
        self._key = _KEY if schedule is None else seeds.derive_key(_KEY, "epoch", epoch)
        counts = [np.zeros(1, np.int64), *self._block_counts()]
        self._starts = np.cumsum(np.concatenate(counts))
        if not 1 <= self.total <= MAX_ROWS:
            hint = "give rows larger weights: those of an epoch must add up to at least one"
            raise SourceError(f"weights make {self.total} samples in epoch {epoch}", hint=hint)

    @property
    def total(self) -> int:
        """How many copies there are."""
        return int(self._starts[-1])

    def find(self, copies: IntArray) -> tuple[IntArray, IntArray]:
        """The row that each of these copies is of, and the how-manieth of that row it is, from 0 on."""
        blocks, which = np.unique(np.searchsorted(self._starts, copies, side="right") - 1, return_inverse=True)
        ends = np.cumsum(self._counts_of(blocks), axis=1)  # [n, block]
        places = copies - self._starts[blocks[which]]
        found, numbers = np.empty_like(copies), np.empty_like(copies)
        for first in range(0, len(copies), _BLOCK):  # in pieces: a comparison needs a row of `ends` for each copy
            at = slice(first, first + _BLOCK)
            found[at] = (ends[which[at]] <= places[at, None]).sum(axis=1)
            before = np.where(found[at] > 0, ends[which[at], np.maximum(found[at], 1) - 1], 0)
            numbers[at] = places[at] - before
        return blocks[which] * _BLOCK + found, numbers

    def before(self, rows: IntArray) -> IntArray:
        """How many copies come before the first one of each of these rows; a row past the end counts all."""
        found = np.empty_like(rows)
        for first in range(0, len(rows), _BLOCK):
            some = rows[first : first + _BLOCK]
            blocks, which = np.unique(np.minimum(some // _BLOCK, len(self._starts) - 2), return_inverse=True)
            ends = np.cumsum(self._counts_of(blocks), axis=1)
            inside = some - blocks[which] * _BLOCK
            partial = np.where(inside > 0, ends[which, np.maximum(inside, 1) - 1], 0)
            found[first : first + _BLOCK] = self._starts[blocks[which]] + partial
        return found

    def _block_counts(self) -> Iterator[IntArray]:
        for start in range(0, len(self._weights), _SPAN):
            stop = min(start + _SPAN, len(self._weights))
            counts = self._counts(self._weights[start:stop], np.arange(start, stop))
            yield np.add.reduceat(counts, np.arange(0, len(counts), _BLOCK))

    def _counts_of(self, blocks: IntArray) -> IntArray:
        """The copies of each row of some blocks, which stand in order; a last one that is shorter ends in zeros."""
        rows = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
        rows = rows[: np.searchsorted(rows, len(self._weights))]
        weights = [self._weights[first : first + _BLOCK] for first in (blocks * _BLOCK).tolist()]
        found = np.zeros(len(blocks) * _BLOCK, np.int64)
        found[: len(rows)] = self._counts(np.concatenate([np.empty(0), *weights]), rows)
        return found.reshape(len(blocks), _BLOCK)

    def _counts(self, weights: FloatArray, rows: IntArray) -> IntArray:
        """The copies of some rows, by their weights and numbers."""
        if self._schedule is not None:
            weights = self._scheduled(weights)
        wrong = first_wrong(weights)
        if wrong is not None:
            hint = "1.0 is once an epoch, 0.25 in a quarter of the epochs, 3.0 three times; 0 is never"
            raise OptionError(f"weight of row {rows[wrong]} is impossible: {float(weights[wrong])!r}", hint=hint)
        whole = np.floor(weights)
        parts = weights - whole
        if not parts.any():
            return whole.astype(np.int64)
        shifts = _uniform(rows, self._key)
        if self._schedule is None:
            extra = np.floor((self._epoch + 1) * parts + shifts) - np.floor(self._epoch * parts + shifts)
        else:
            extra = np.floor(parts + shifts)
        counts: IntArray = (whole + extra).astype(np.int64)
        return counts

    def _scheduled(self, values: FloatArray) -> FloatArray:
        assert self._schedule is not None
        given = np.asarray(self._schedule(self._epoch, values))
        if given.shape != values.shape or given.dtype.kind not in "fiub":
            hint = "weight_schedule(epoch, values) returns as many numbers as it gets values, row by row"
            raise OptionError(f"weight_schedule gave no weights: {given.dtype} {list(given.shape)}", hint=hint)
        return given.astype(np.float64)


class WeightedOrder(Order):
    """An order of copies, seen as an order of rows: `order[positions] -> row ids`, some of them often, some never."""

    def __init__(self, order: Bijection, copies: Copies) -> None:
        super().__init__(len(order))
        self.inner = order
        self.copies = copies

    def position(self, row_id: int) -> int:
        """The position of the first copy of a row; IndexError if it has none in this epoch."""
        first, after = self.copies.before(np.asarray([row_id, row_id + 1])).tolist()
        if first == after:
            raise IndexError(f"row does not come in this epoch: {row_id}")
        return int(self.inner.inverse[list(range(first, after))].min())

    def _one(self, x: int) -> int:
        return int(self._many(np.asarray([x]))[0])

    def _many(self, xs: IntArray) -> IntArray:
        return self.find(xs)[0]

    def find(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """The row ids at positions, and for each the how-manieth copy of its row it is, from 0 on."""
        return self.copies.find(self.inner._many(positions))


def _uniform(rows: IntArray, key: int) -> FloatArray:
    """A number in [0, 1) for each row, by a keyed hash of its number."""
    words = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    words = (words ^ (words >> np.uint64(30))) * _MULTIPLY_1
    words = (words ^ (words >> np.uint64(27))) * _MULTIPLY_2
    words ^= words >> np.uint64(31)
    shifts: FloatArray = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return shifts
