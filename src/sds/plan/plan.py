"""Plan: the pure function (seed, epoch, position) -> row id.

Comes in: how many rows there are, a seed, and for an index that is read in chunks their sizes. Goes out: row ids of any
range of positions of any epoch, and back. Every epoch delivers every row once; a Plan is a value: frozen, small, equal
when its arguments are, and cheap to send to another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from sds import seeds
from sds.errors import OptionError
from sds.plan.arguments import whole
from sds.plan.bijection import Bijection, Identity, IntArray
from sds.plan.blocks import DEFAULT_REACH, BlockPermutation, check_chunk_sizes
from sds.plan.permutation import MAX_ROWS, Permutation
from sds.plan.shares import SharedOrder, share_sizes

__all__ = ["Plan"]

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
    """

    num_rows: int
    seed: int | None
    chunk_sizes: IntArray | None = field(repr=False)
    reach: int
    shares: int
    _orders: dict[int, Bijection] = field(repr=False)

    def __init__(
        self,
        num_rows: SupportsIndex,
        seed: SupportsIndex | None = None,
        *,
        chunk_sizes: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None,
        reach: SupportsIndex = DEFAULT_REACH,
        shares: SupportsIndex = 1,
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
        fields: dict[str, Any] = {
            "num_rows": rows,
            "seed": None if seed is None else whole("seed", seed, least=0),
            "chunk_sizes": sizes,
            "reach": whole("reach", reach, least=1),
            "shares": min(num_shares, rows),
            "_orders": {},
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def length(self, epoch: int) -> int:
        """How many positions the epoch has."""
        whole("epoch", epoch, least=0)
        return self.num_rows

    def rows(self, epoch: int, start: int, stop: int) -> IntArray:
        """The row ids of positions [start, stop)."""
        if not 0 <= start <= stop <= self.length(epoch):
            raise IndexError(f"out of range: [{start}, {stop}) of [0, {self.length(epoch)})")
        return self.order(epoch)[start:stop]

    def row(self, epoch: int, position: int) -> int:
        """The row id at one position."""
        return self.order(epoch)[position]

    def position(self, epoch: int, row_id: int) -> int:
        """The position at which a row comes in that epoch."""
        return self.order(epoch).inverse[row_id]

    def order(self, epoch: int) -> Bijection:
        """The whole epoch as a map: `order[positions] -> row ids`, `order.inverse[row_ids] -> positions`."""
        order = self._orders.get(epoch)
        if order is None:
            order = self._make_order(whole("epoch", epoch, least=0))
            remembered = list(self._orders)
            self._orders[epoch] = order
            # threads may get here together: then the same order is made twice, and forgetting one is no harm
            for old in remembered[: max(0, len(remembered) + 1 - _NUM_REMEMBERED)]:
                self._orders.pop(old, None)
        return order

    def _make_order(self, epoch: int) -> Bijection:
        if self.seed is None:
            return Identity(self.num_rows)
        key = seeds.derive_key(self.seed, "order", epoch)
        if self.shares > 1:
            sizes = share_sizes(self.num_rows, self.shares)
            return SharedOrder([Permutation(n, seeds.derive_key(key, "share", k)) for k, n in enumerate(sizes)])
        if self.chunk_sizes is None:
            return Permutation(self.num_rows, key)
        return BlockPermutation(self.chunk_sizes, key, reach=self.reach)

    def _facts(self) -> tuple[Any, ...]:
        sizes = None if self.chunk_sizes is None else self.chunk_sizes.tobytes()
        return self.num_rows, self.seed, sizes, self.reach, self.shares

    def __eq__(self, other: object) -> bool:
        return self._facts() == other._facts() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._facts())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.num_rows, self.seed, self.chunk_sizes, self.reach, self.shares)


def _rebuild(num_rows: int, seed: int | None, chunk_sizes: IntArray | None, reach: int, shares: int) -> Plan:
    return Plan(num_rows, seed, chunk_sizes=chunk_sizes, reach=reach, shares=shares)
