"""A brake for queries: whoever no longer wants the rows ends the query that still looks for them.

Comes in: connections of DuckDB, from the thread that holds the brake. Goes out: an end to what they run, from another
thread; the query then fails as any other does. Where nobody holds a brake, nothing is done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["Brake", "braked"]

_HELD: ContextVar[Brake | None] = ContextVar("brake", default=None)


class Brake:
    """Ends the queries of one thread, from any other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: list[Any] = []

    @contextmanager
    def held(self) -> Iterator[None]:
        """In this block, this thread's queries can be ended."""
        before = _HELD.set(self)
        try:
            yield
        finally:
            _HELD.reset(before)

    def pull(self) -> None:
        """Ends what runs at this moment. A query that is about to begin does not notice: pull again."""
        with self._lock:
            for connection in self._connections:
                connection.interrupt()

    @contextmanager
    def _over(self, connection: Any) -> Iterator[None]:
        with self._lock:
            self._connections.append(connection)
        try:
            yield
        finally:
            with self._lock:  # it is open until nobody can interrupt it
                self._connections.remove(connection)


@contextmanager
def braked(connection: Any) -> Iterator[None]:
    """In this block, what a connection runs can be ended by the brake that the thread holds, if any."""
    brake = _HELD.get()
    if brake is None:
        yield
        return
    with brake._over(connection):
        yield
