"""BlockPermutation: the shuffle of an index that is read in chunks, local enough that few chunks are open at once.

Comes in: rows per chunk, a key, a reach. Goes out: a bijection. Chunks are permuted; then rows are permuted inside
windows of `reach` neighbouring chunks of that order. A row never leaves its window, memory is O(number of chunks), and
any position is found in O(log chunks).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from sds import seeds
from sds.errors import OptionError
from sds.plan.arguments import whole
from sds.plan.bijection import Bijection, IntArray
from sds.plan.permutation import MAX_ROWS, Permutation

__all__ = ["DEFAULT_REACH", "BlockPermutation", "check_chunk_sizes"]

DEFAULT_REACH = 8

# Batches follow each other inside a window, so its permutation is asked for again and again. The bound keeps tables of
# small windows below a few MB.
_recall_permutation = lru_cache(maxsize=64)(Permutation)


def check_chunk_sizes(chunk_sizes: Sequence[int] | npt.NDArray[np.integer[Any]]) -> IntArray:
    """A read-only int64 copy of row counts. Zero is a count too: a query may leave nothing of a chunk."""
    sizes = np.array(chunk_sizes)
    hint = "give the number of rows of each chunk"
    if sizes.ndim != 1 or sizes.size == 0 or sizes.dtype.kind not in "iu":
        raise OptionError(f"chunk_sizes is not a list of whole numbers: {chunk_sizes!r:.80}", hint=hint)
    low, high = int(sizes.min()), int(sizes.max())
    if low < 0 or high > MAX_ROWS:
        raise OptionError(f"chunk_sizes has an impossible size: {low if low < 0 else high}", hint=hint)
    sizes = sizes.astype(np.int64)
    total = int(sizes.sum())
    if not 1 <= total <= MAX_ROWS:
        raise OptionError(f"chunk_sizes has an impossible sum: {total}", hint=f"1 <= sum <= {MAX_ROWS}")
    sizes.flags.writeable = False
    return sizes


class BlockPermutation(Bijection):
    """A bijection that permutes chunks, then rows inside windows of `reach` chunks.

    Row ids count through the chunks in their own order: chunk c holds the ids from sum(chunk_sizes[:c]) on.

    Args:
        chunk_sizes: rows of each chunk.
        key: any int; another key is another order of chunks and rows.
        reach: chunks per window; 1 keeps each chunk's rows together, num_chunks or more is a full shuffle.
    """

    def __init__(
        self,
        chunk_sizes: Sequence[int] | npt.NDArray[np.integer[Any]],
        key: SupportsIndex,
        *,
        reach: SupportsIndex = DEFAULT_REACH,
    ) -> None:
        sizes = check_chunk_sizes(chunk_sizes)
        super().__init__(int(sizes.sum()))
        self._key = whole("key", key)
        self._reach = whole("reach", reach, least=1)
        order = Permutation(sizes.size, seeds.derive_key(self._key, "chunks"))
        # A row has three addresses: its id; its place when the chunks are laid out in their new order ("laid"); and
        # its position, after its window is permuted.
        self._chunk_of_slot = order[:]
        self._slot_of_chunk = order.inverse[:]
        self._id_starts = _starts(sizes)
        self._laid_starts = _starts(sizes[self._chunk_of_slot])
        self._window_starts = np.append(self._laid_starts[: -1 : self._reach], self._n)

    @property
    def inverse(self) -> Bijection:
        """The map from row ids back to positions."""
        return _InverseBlocks(self)

    def chunks(self, window: int) -> IntArray:
        """The chunks of a window, in the order in which they are laid out."""
        if not 0 <= window < self.num_windows:
            raise IndexError(f"out of range: window {window} of {self.num_windows}")
        return np.array(self._chunk_of_slot[window * self._reach : (window + 1) * self._reach])

    def upcoming(self, window: int, number: int) -> IntArray:
        """The chunks of a window and of those that follow, so many at most; chunks without rows are left out."""
        first, found = window * self._reach, np.empty(0, np.int64)
        while len(found) < number and first < len(self._chunk_of_slot):
            slots = np.arange(first, min(first + number, len(self._chunk_of_slot)))
            has_rows = self._laid_starts[slots + 1] > self._laid_starts[slots]
            found, first = np.concatenate([found, self._chunk_of_slot[slots[has_rows]]]), first + number
        return found[:number]

    @property
    def num_windows(self) -> int:
        """How many windows there are."""
        return len(self._window_starts) - 1

    def window(self, position: int) -> tuple[int, int, int]:
        """(window, start, stop) of the window that a position lies in."""
        if not 0 <= position < self._n:
            raise IndexError(f"out of range: {position} of [0, {self._n})")
        found = int(_find(self._window_starts, position))
        return found, int(self._window_starts[found]), int(self._window_starts[found + 1])

    def _one(self, x: int) -> int:
        window, start, stop = self.window(x)
        return int(self._ids(window, start + self._permutation(window, stop - start)[x - start]))

    def _many(self, xs: IntArray) -> IntArray:
        ids = np.empty_like(xs)
        for window, start, permutation, members in self._windows(xs):
            ids[members] = self._ids(window, permutation[xs[members] - start] + start)
        return ids

    def _ids(self, window: int, laid: Any) -> Any:
        # only the window's own chunks are searched: they stay in the CPU's cache, the whole list may not
        first = window * self._reach
        slots = first + _find(self._laid_starts[first : first + self._reach + 1], laid)
        return self._id_starts[self._chunk_of_slot[slots]] + laid - self._laid_starts[slots]

    def _find_one(self, row_id: int) -> int:
        laid = int(self._laid(row_id))
        window, start, stop = self.window(laid)
        return start + self._permutation(window, stop - start).inverse[laid - start]

    def _find_many(self, row_ids: IntArray) -> IntArray:
        laid: IntArray = self._laid(row_ids)
        positions = np.empty_like(laid)
        for _, start, permutation, members in self._windows(laid):
            positions[members] = permutation.inverse[laid[members] - start] + start
        return positions

    def _laid(self, row_ids: Any) -> Any:
        chunks = _find(self._id_starts, row_ids)
        return self._laid_starts[self._slot_of_chunk[chunks]] + row_ids - self._id_starts[chunks]

    def _windows(self, xs: IntArray) -> Iterator[tuple[int, int, Permutation, IntArray | slice]]:
        """(window, start, permutation, which of xs lie in it) for each window that is touched."""
        for window, members in _groups(_find(self._window_starts, xs)):
            start = int(self._window_starts[window])
            size = int(self._window_starts[window + 1]) - start
            yield window, start, self._permutation(window, size), members

    def _permutation(self, window: int, size: int) -> Permutation:
        return _recall_permutation(size, seeds.derive_key(self._key, "window", window))


class _InverseBlocks(Bijection):
    """A BlockPermutation asked backwards."""

    def __init__(self, blocks: BlockPermutation) -> None:
        super().__init__(len(blocks))
        self._blocks = blocks

    @property
    def inverse(self) -> BlockPermutation:
        return self._blocks

    def _one(self, x: int) -> int:
        return self._blocks._find_one(x)

    def _many(self, xs: IntArray) -> IntArray:
        return self._blocks._find_many(xs)


def _starts(sizes: IntArray) -> IntArray:
    """Where each chunk begins when they follow each other, and where the last one ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


def _find(starts: IntArray, x: Any) -> Any:
    """The index of the span that holds x; empty spans share their start with the next one, and never hold anything."""
    return np.searchsorted(starts, x, side="right") - 1


def _groups(windows: IntArray) -> Iterator[tuple[int, IntArray | slice]]:
    """(window, where it occurs) for each window that occurs."""
    if windows.size == 0:
        return
    if windows[0] == windows[-1] and (windows == windows[0]).all():  # a batch mostly lies in one window
        yield int(windows[0]), slice(None)
        return
    by_window = np.argsort(windows, kind="stable")
    bounds = np.flatnonzero(np.diff(windows[by_window])) + 1
    for members in np.split(by_window, bounds):
        yield int(windows[members[0]]), members
