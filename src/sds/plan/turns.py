"""Turns: ratios -> how often each of several things comes, and an even order of them. Pure, with no state.

Comes in: ratios, or whole counts. Goes out: counts, or an array that says whose turn it is. What mixes of streams and
mixes of samples are made of.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Sequence

import numpy as np

from sds.errors import OptionError
from sds.plan.bijection import IntArray

__all__ = ["apportion", "balanced", "count_turns", "occurrences"]


def count_turns(ratios: Sequence[float], precision: int = 6) -> tuple[int, ...]:
    """How often each stream comes in a meta-iteration: its ratio in decimals, over the greatest common divisor."""
    counts = [round(ratio * 10**precision) for ratio in ratios]
    divisor = math.gcd(*counts)
    if divisor == 0:
        raise OptionError(f"no ratio is above 0: {list(ratios)}", hint="give at least one stream a ratio above 0")
    return tuple(count // divisor for count in counts)


def apportion(ratios: Sequence[float], total: int) -> tuple[int, ...]:
    """Whole counts that sum to `total`, each less than one away from its share."""
    whole = math.fsum(ratios)
    if not whole > 0:
        raise OptionError(f"no ratio is above 0: {list(ratios)}", hint="give at least one stream a ratio above 0")
    shares = [total * ratio / whole for ratio in ratios]
    counts = [math.floor(share) for share in shares]
    by_rest = sorted(range(len(shares)), key=lambda i: (counts[i] - shares[i], i))
    for i in by_rest[: total - sum(counts)]:
        counts[i] += 1
    return tuple(counts)


@functools.lru_cache(maxsize=16)
def balanced(counts: tuple[int, ...]) -> IntArray:
    """An order of sum(counts) turns in which every prefix holds each stream within one turn of its share.

    The j-th turn of a stream has a first and a last step at which it keeps that bound; of those that may come, the one
    that must come first does. That this always works out is Tijdeman's theorem on assigning chairmen.
    """
    total, num_streams = sum(counts), sum(count > 0 for count in counts)
    slack = max(1, 2 * num_streams - 2)

    def released(stream: int, turn: int) -> int:
        return -(-(slack * turn + 1) * total // (slack * counts[stream]))

    def due(stream: int, turn: int) -> int:
        return (slack * (turn + 1) - 1) * total // (slack * counts[stream])

    waiting = [(released(i, 0), i, 0) for i, count in enumerate(counts) if count]
    heapq.heapify(waiting)
    ready: list[tuple[int, int, int]] = []
    order = np.empty(total, np.int64)
    for step in range(1, total + 1):
        while waiting and (waiting[0][0] <= step or not ready):
            _, stream, turn = heapq.heappop(waiting)
            heapq.heappush(ready, (due(stream, turn), stream, turn))
        _, stream, turn = heapq.heappop(ready)
        order[step - 1] = stream
        if turn + 1 < counts[stream]:
            heapq.heappush(waiting, (released(stream, turn + 1), stream, turn + 1))
    order.setflags(write=False)
    return order


def occurrences(order: IntArray) -> IntArray:
    """For each entry, how many equal ones come before it."""
    by_value = np.argsort(order, kind="stable")
    ordered = order[by_value]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    found = np.empty(len(order), np.int64)
    found[by_value] = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    return found
