"""Later: what is to be done after a while, without a thread that sleeps for each."""

from __future__ import annotations

import heapq
import threading
import time
from typing import Generic, TypeVar

__all__ = ["Later"]

T = TypeVar("T")


class Later(Generic[T]):
    """A heap by time. Safe from many threads."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._number = 0
        self._changed = threading.Condition()

    def put(self, one: T, seconds: float) -> None:
        """`one` is due in so many seconds."""
        with self._changed:
            self._number += 1
            heapq.heappush(self._heap, (time.monotonic() + seconds, self._number, one))
            self._changed.notify()

    def due(self, timeout_s: float) -> list[T]:
        """What is due, in its order; waits for it so long at most."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                now = time.monotonic()
                found: list[T] = []
                while self._heap and self._heap[0][0] <= now:
                    found.append(heapq.heappop(self._heap)[2])
                if found or now >= deadline:
                    return found
                self._changed.wait(min(deadline, self._heap[0][0] if self._heap else deadline) - now)
