"""Pace: how many requests a store is asked at once, found out by its answers.

Comes in: that a request began, came through, or met a store that wants fewer (503, 429). Goes out: whether one more may
begin now, and which of those who wait may. Halved at each complaint, raised by one per round of successes; without any
complaint there is no bound. Each bucket or host has its own: others are not slowed. Not thread-safe: the server locks.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ["Pace"]

T = TypeVar("T")

_ENOUGH = 256.0  # as many as there are download threads at most: no bound any more


class Pace(Generic[T]):
    """The requests to one store."""

    def __init__(self) -> None:
        self.limit: float | None = None  # no complaint so far
        self.num_active = 0
        self.waiting: deque[T] = deque()
        self._lowered_at = 0.0

    def begin(self, one: T) -> bool:
        """Whether it may begin now; if not, it waits here until `end` gives it back."""
        if self.limit is not None and self.num_active >= max(1, int(self.limit)):
            self.waiting.append(one)
            return False
        self.num_active += 1
        return True

    def end(self) -> list[T]:
        """A request is over; those that may begin now. Each of them asks again by `begin`."""
        self.num_active -= 1
        free = len(self.waiting) if self.limit is None else max(1, int(self.limit)) - self.num_active
        return [self.waiting.popleft() for _ in range(min(free, len(self.waiting)))]

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to remember of this store."""
        return self.limit is None and not self.num_active and not self.waiting

    def succeeded(self) -> None:
        """A request came through: a round of them is worth one more at once."""
        if self.limit is not None:
            self.limit += 1 / self.limit
            if self.limit >= _ENOUGH:
                self.limit = None

    def slow_down(self, started_at: float, now: float) -> None:
        """The store wants fewer. Requests that began before the last cut say nothing new."""
        if started_at >= self._lowered_at:
            self._lowered_at = now
            at_once = self.num_active if self.limit is None else min(self.limit, self.num_active)
            self.limit = max(1.0, at_once / 2)
