"""Plan: the pure function (seed, epoch, position) -> row id.

Comes in: how many rows there are, a seed, for an index that is read in chunks their sizes, weights if there are any.
Goes out: row ids of any range of positions of any epoch, and back. Every epoch delivers every row once, or by its
weight; a Plan is a value: frozen, small, equal when its arguments are, and cheap to send to another process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from sds import seeds
from sds.errors import OptionError
from sds.plan.arguments import whole
from sds.plan.bijection import Bijection, Identity, IntArray, Order
from sds.plan.blocks import DEFAULT_REACH, BlockPermutation, check_chunk_sizes
from sds.plan.permutation import MAX_ROWS, Permutation
from sds.plan.shares import SharedOrder, share_sizes
from sds.plan.weights import Copies, WeightedOrder, WeightSchedule, WeightSource

__all__ = ["Plan", "find_laps"]

# A loader that prefetches over the end of an epoch asks for two at a time.
_NUM_REMEMBERED = 2


@dataclass(frozen=True, init=False, eq=False)
class Plan:
    """The order of rows, epoch by epoch.

    Attributes:
        num_rows: how many rows there are.
        seed: None keeps their order; a number >= 0 gives every epoch another order.
        chunk_sizes: rows of each chunk of a lazy index, read-only; None shuffles all rows at once.
        reach: how many chunks are mixed with each other when there are chunks.
        shares: rows are divided for good into so many shares, one for each node that keeps its rows (see `steps`).
        weights: how often each row comes in an epoch (see `weights.py`); None: once.
        schedule: (epoch, weights) -> the weights of that epoch, row by row; None: they stay.
    """

    num_rows: int
    seed: int | None
    chunk_sizes: IntArray | None = field(repr=False)
    reach: int
    shares: int
    weights: WeightSource | None = field(repr=False)
    schedule: WeightSchedule | None = field(repr=False)
    _orders: dict[int, Order] = field(repr=False)
    _lengths: dict[int, int] = field(repr=False)

    def __init__(
        self,
        num_rows: SupportsIndex,
        seed: SupportsIndex | None = None,
        *,
        chunk_sizes: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None,
        reach: SupportsIndex = DEFAULT_REACH,
        shares: SupportsIndex = 1,
        weights: WeightSource | None = None,
        schedule: WeightSchedule | None = None,
    ) -> None:
        rows = whole("num_rows", num_rows, least=1, most=MAX_ROWS)
        sizes = None if chunk_sizes is None else check_chunk_sizes(chunk_sizes)
        if sizes is not None and int(sizes.sum()) != rows:
            raise OptionError(
                f"chunk_sizes does not add up to num_rows: {int(sizes.sum())} != {rows}",
                hint="count the rows that are left of each chunk after the query",
            )
        num_shares = whole("shares", shares, least=1)
        if num_shares > 1 and sizes is not None:
            hint = "leave one of them out: chunks are mixed over the borders of shares"
            raise OptionError("shares and chunk_sizes exclude each other", hint=hint)
        if weights is not None and len(weights) != rows:
            raise OptionError(f"weights are not one a row: {len(weights)} of {rows}", hint="give one for each row")
        if weights is not None and num_shares > 1:
            hint = "leave one of them out: copies of a row are dealt to all shares"
            raise OptionError("shares and weights exclude each other", hint=hint)
        fields: dict[str, Any] = {
            "num_rows": rows,
            "seed": None if seed is None else whole("seed", seed, least=0),
            "chunk_sizes": sizes,
            "reach": whole("reach", reach, least=1),
            "shares": min(num_shares, rows),
            "weights": weights,
            "schedule": schedule,
            "_orders": {},
            "_lengths": {},
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def length(self, epoch: int) -> int:
        """How many positions the epoch has."""
        if self.weights is None:
            whole("epoch", epoch, least=0)
            return self.num_rows
        length = self._lengths.get(epoch)
        if length is None:
            length = self._lengths[epoch] = len(self.order(epoch))
        return length

    def locate(self, epoch: int, positions: IntArray) -> tuple[IntArray, IntArray]:
        """(epochs after this one, places in them) of positions, of which those past the end are in what follows."""
        if self.weights is None:
            laps, places = np.divmod(positions, self.num_rows)
            return laps, places
        return find_laps(self.length, epoch, positions)

    def rows(self, epoch: int, start: int, stop: int) -> IntArray:
        """The row ids of positions [start, stop)."""
        if not 0 <= start <= stop <= self.length(epoch):
            raise IndexError(f"out of range: [{start}, {stop}) of [0, {self.length(epoch)})")
        return self.order(epoch)[start:stop]

    def find(self, epoch: int, positions: IntArray) -> tuple[IntArray, IntArray]:
        """The row ids at positions, and the how-manieth copy of its row each is, from 0 on: 0 without weights."""
        order = self.order(epoch)
        if isinstance(order, WeightedOrder):
            return order.find(positions)
        return order[positions], np.zeros(positions.shape, np.int64)

    def row(self, epoch: int, position: int) -> int:
        """The row id at one position."""
        return self.order(epoch)[position]

    def position(self, epoch: int, row_id: int) -> int:
        """The position at which a row comes in that epoch."""
        order = self.order(epoch)
        if isinstance(order, WeightedOrder):
            return order.position(row_id)
        assert isinstance(order, Bijection)
        return order.inverse[row_id]

    def order(self, epoch: int) -> Order:
        """The whole epoch as a map: `order[positions] -> row ids`; without weights, it is a Bijection."""
        order = self._orders.get(epoch)
        if order is None:
            order = self._make_order(whole("epoch", epoch, least=0))
            remembered = list(self._orders)
            self._orders[epoch] = order
            # threads may get here together: then the same order is made twice, and forgetting one is no harm
            for old in remembered[: max(0, len(remembered) + 1 - _NUM_REMEMBERED)]:
                self._orders.pop(old, None)
        return order

    def chunks(self, epoch: int, position: int, ahead: int) -> IntArray:
        """The chunks that positions from this one on need: those needed at once, then the next `ahead` ones."""
        assert self.chunk_sizes is not None
        order = self.order(epoch)
        blocks = order.inner if isinstance(order, WeightedOrder) else order
        if isinstance(blocks, BlockPermutation):
            window = blocks.window(position)[0]
            return blocks.upcoming(window, self.reach + ahead)
        row = order[position]
        chunk = int(np.searchsorted(np.cumsum(self.chunk_sizes), row, side="right"))
        return chunk + np.flatnonzero(self.chunk_sizes[chunk : chunk + 8 * (1 + ahead)])[: 1 + ahead]

    def _make_order(self, epoch: int) -> Order:
        if self.weights is None:
            return self._shuffled(epoch, self.num_rows, self.chunk_sizes)
        copies = Copies(self.weights, epoch, self.schedule)
        sizes = None
        if self.chunk_sizes is not None and self.seed is not None:
            sizes = np.diff(copies.before(np.concatenate([[0], np.cumsum(self.chunk_sizes)])))
        return WeightedOrder(self._shuffled(epoch, copies.total, sizes), copies)

    def _shuffled(self, epoch: int, length: int, chunk_sizes: IntArray | None) -> Bijection:
        if self.seed is None:
            return Identity(length)
        key = seeds.derive_key(self.seed, "order", epoch)
        if self.shares > 1:
            sizes = share_sizes(self.num_rows, self.shares)
            return SharedOrder([Permutation(n, seeds.derive_key(key, "share", k)) for k, n in enumerate(sizes)])
        if chunk_sizes is None:
            return Permutation(length, key)
        return BlockPermutation(chunk_sizes, key, reach=self.reach)

    def _facts(self) -> tuple[Any, ...]:
        sizes = None if self.chunk_sizes is None else self.chunk_sizes.tobytes()
        weights = None if self.weights is None else id(self.weights)
        return self.num_rows, self.seed, sizes, self.reach, self.shares, weights, self.schedule

    def __eq__(self, other: object) -> bool:
        return self._facts() == other._facts() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._facts())

    def __reduce__(self) -> tuple[Any, ...]:
        facts = ("chunk_sizes", "reach", "shares", "weights", "schedule")
        return _rebuild, (self.num_rows, self.seed, {name: getattr(self, name) for name in facts})


def find_laps(length: Callable[[int], int], epoch: int, positions: IntArray) -> tuple[IntArray, IntArray]:
    """As `Plan.locate`, for epochs that differ in length: (epochs after this one, places in them)."""
    starts = [0, length(epoch)]
    last = int(positions.max()) if len(positions) else 0
    while starts[-1] <= last:
        starts.append(starts[-1] + length(epoch + len(starts) - 1))
    laps = np.searchsorted(starts, positions, side="right") - 1
    return laps, positions - np.asarray(starts)[laps]


def _rebuild(num_rows: int, seed: int | None, facts: dict[str, Any]) -> Plan:
    return Plan(num_rows, seed, **facts)
