"""Flights that wait for room, the earliest asked for first.

Comes in: a flight that found no room. Goes out: the first of them. Whatever is deserted meanwhile is forgotten, at a
cost that does not grow with the number of those who wait.
"""

from __future__ import annotations

import heapq
import time
from typing import Protocol, TypeVar

__all__ = ["Parking"]


class Numbered(Protocol):
    """What can park: `number` is its place in the order of asking, `waited_s` adds up how long it was parked.

    `left_at` is when it was parked last.
    """

    number: int
    is_parked: bool
    parked_at: float
    waited_s: float
    left_at: float


T = TypeVar("T", bound=Numbered)


class Parking(list[tuple[int, T]]):
    """A heap by number, in which deserted ones stay until they come up or are too many. Not thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._num_deserted = 0

    def add(self, each: T) -> None:
        """Parks one more."""
        each.is_parked = True
        each.parked_at = time.monotonic()
        heapq.heappush(self, (each.number, each))

    def first(self) -> T | None:
        """The one that was asked for first, left where it is."""
        while self and not self[0][1].is_parked:
            heapq.heappop(self)
            self._num_deserted -= 1
        return self[0][1] if self else None

    def take(self) -> T | None:
        """The one that was asked for first, parked no more."""
        first = self.first()
        if first is not None:
            heapq.heappop(self)
            _leave(first)
        return first

    def take_out(self, each: T) -> None:
        """This one is parked no more, wherever it stands."""
        _leave(each)
        self._tidy()

    def desert(self, each: T) -> None:
        """Nobody waits for this one any more."""
        each.is_parked = False
        self._num_deserted += 1
        if self._num_deserted > len(self) // 2:
            self._tidy()

    def _tidy(self) -> None:
        self[:] = [(number, other) for number, other in self if other.is_parked]
        heapq.heapify(self)
        self._num_deserted = 0


def _leave(each: Numbered) -> None:
    each.is_parked = False
    each.left_at = time.monotonic()
    each.waited_s += each.left_at - each.parked_at
