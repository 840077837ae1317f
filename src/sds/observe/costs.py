"""Costs: what a run asked of stores -> what that costs, by bucket and storage class.

Comes in: Stats and prices. Goes out: a Cost, a value with one line per bucket and class, and a sum.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sds.errors import OptionError
from sds.observe.prices import find_price, read_prices
from sds.stats import Stats, Traffic
from sds.units import format_bytes

__all__ = ["Cost", "CostLine", "cost", "priced"]


class CostLine(NamedTuple):
    """What one bucket (or host) and storage class costs, in dollars."""

    store: str
    storage_class: str
    requests: int
    num_bytes: int
    for_requests: float
    for_bytes: float

    @property
    def total(self) -> float:
        """Dollars."""
        return self.for_requests + self.for_bytes


@dataclass(frozen=True)
class Cost:
    """What was asked of stores, and what they ask for it."""

    lines: tuple[CostLine, ...] = ()

    @property
    def total(self) -> float:
        """Dollars."""
        return sum(line.total for line in self.lines)

    @property
    def requests(self) -> int:
        """To all stores."""
        return sum(line.requests for line in self.lines)

    @property
    def num_bytes(self) -> int:
        """From all stores."""
        return sum(line.num_bytes for line in self.lines)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        lines = [{**line._asdict(), "total": line.total} for line in self.lines]
        return {"total": self.total, "requests": self.requests, "bytes": self.num_bytes, "stores": lines}

    def __str__(self) -> str:
        rows = [
            f"{line.store} ({line.storage_class}): {line.requests} requests {dollars(line.for_requests)}, "
            f"{format_bytes(line.num_bytes)} {dollars(line.for_bytes)}"
            for line in self.lines
        ]
        return "\n".join([*rows, f"cost: {dollars(self.total)}"])


def dollars(amount: float) -> str:
    """0.00012 -> "$0.00012", 12.345 -> "$12.35"."""
    if not amount or amount >= 0.1:
        return f"${amount:.2f}"
    return f"${amount:.2g}" if amount >= 1e-4 else f"${amount:.1e}"


def priced(traffic: tuple[Traffic, ...], prices: Mapping[str, Any] | str | os.PathLike[str] | None = None) -> Cost:
    """What traffic costs; the dearest first."""
    table = read_prices(prices)
    lines = []
    for store, storage_class, requests, num_bytes in traffic:
        price = find_price(table, store, storage_class)
        for_requests, for_bytes = requests / 1000 * price.per_1000_requests, num_bytes / 1e9 * price.per_gb
        lines.append(CostLine(store, storage_class, requests, num_bytes, for_requests, for_bytes))
    return Cost(tuple(sorted(lines, key=lambda line: -line.total)))


def cost(stats: Any, prices: Mapping[str, Any] | str | os.PathLike[str] | None = None) -> Cost:
    """What a run costs so far: requests and bytes of its samples, priced by a table.

    Args:
        stats: a loader or dataset, its `stats()`, or a Run.
        prices: see `read_prices`. Default: approximate list prices, for reading over the internet.

    Raises:
        OptionError: there are no stats in what was given.
    """
    inner = getattr(stats, "stats", stats)  # a method of loaders, a value in a Run
    found = inner() if callable(inner) else inner
    if not isinstance(found, Stats):
        hint = "give loader.stats(), or the loader; for a recorded run: sds cost --run FILE"
        raise OptionError(f"stats are none: {type(stats).__name__}", hint=hint)
    return priced(found.traffic, prices)
