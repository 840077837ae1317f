"""Shares: rows divided for good among nodes, so that each node's cache meets the same rows in every epoch.

Row r belongs to share r mod K, for ever. Position p of an epoch holds a row of share p mod K, the (p div K)-th of that
share's own order, which is another one every epoch. So the order is global and elastic like any other, each window of
it holds the shares in equal parts, and whoever always takes the positions of one residue reads one share only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sds.plan.bijection import Bijection, IntArray

__all__ = ["SharedOrder", "share_sizes"]


def share_sizes(num_rows: int, num_shares: int) -> list[int]:
    """How many rows each share has: as equal as can be."""
    return [-(-(num_rows - k) // num_shares) for k in range(num_shares)]


class SharedOrder(Bijection):
    """Orders of the shares, woven into one: `orders[k]` is that of the rows k, k + K, k + 2K, ..."""

    def __init__(self, orders: Sequence[Bijection]) -> None:
        super().__init__(sum(map(len, orders)))
        self._orders = orders

    @property
    def inverse(self) -> SharedOrder:
        """The same weave of the inverses."""
        return SharedOrder([order.inverse for order in self._orders])

    def _one(self, x: int) -> int:
        place, share = divmod(x, len(self._orders))
        return share + len(self._orders) * self._orders[share]._one(place)

    def _many(self, xs: IntArray) -> IntArray:
        places, shares = np.divmod(xs, len(self._orders))
        found = np.empty_like(xs)
        for share in np.unique(shares).tolist():
            chosen = shares == share
            found[chosen] = share + len(self._orders) * self._orders[share]._many(places[chosen])
        return found
