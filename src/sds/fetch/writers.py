"""Writers: small bodies in memory -> files under their final names, in groups, by two threads of their own.

Comes in: attempts whose bodies are here. Goes out: to Flights, which of them were first, and what became of each. The
disk is never waited for under the lock: whoever waits for it, and then for the interpreter, would stop all others.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from sds.errors import SdsError
from sds.fetch.bodies import write_whole
from sds.fetch.cache import Cache
from sds.fetch.flight import Attempt, Flight, defect
from sds.fetch.folder import name_of

__all__ = ["Writers"]

_NUM_WRITERS = 2
_MAX_AT_ONCE = 16  # bodies that a writer takes at once: each shares locks and replies with the others


class Writers:
    """The threads that write.

    Args:
        cache: whose folder they write to.
        lock: guards it, and flights; it is held when `settle` and `finish` are called.
        settle: says that an attempt has its body, and finds out whether it was the first.
        finish: told of a flight whose body was written, or why it was not.
        forget: gives the memory of a body back.
        tell: sends what waiters were told; called without the lock.
    """

    def __init__(
        self,
        cache: Cache,
        lock: threading.RLock,
        settle: Callable[[Attempt], bool],
        finish: Callable[[Flight, SdsError | None], None],
        forget: Callable[[Attempt], None],
        tell: Callable[[], None],
    ) -> None:
        self._cache = cache
        self._lock = lock
        self._settle = settle
        self._finish = finish
        self._forget = forget
        self._tell = tell
        self._unwritten: queue.SimpleQueue[list[Attempt]] = queue.SimpleQueue()

    def start(self) -> None:
        """Starts the threads."""
        for _ in range(_NUM_WRITERS):
            threading.Thread(target=self._run, name="write", daemon=True).start()

    def put(self, *attempts: Attempt) -> None:
        """Has bodies written that came together."""
        for start in range(0, len(attempts), _MAX_AT_ONCE):
            self._unwritten.put(list(attempts[start : start + _MAX_AT_ONCE]))

    def _run(self) -> None:
        while True:
            attempts = self._unwritten.get()
            share = self._unwritten.qsize() // _NUM_WRITERS  # the other writers have theirs
            with suppress(queue.Empty):
                while share and len(attempts) < _MAX_AT_ONCE:
                    attempts += self._unwritten.get_nowait()
                    share -= 1
            self._write_all(attempts)
            del attempts  # or their bodies would stay in memory until the next one comes
            self._tell()

    def _write_all(self, attempts: list[Attempt]) -> None:
        """Writes small bodies and publishes them; what waits together is told together."""
        with self._lock:
            for attempt in attempts:
                if not attempt.has_won:
                    self._settle(attempt)
            attempts = [attempt for attempt in attempts if attempt.has_won]  # else another one was first
            for attempt in attempts:
                attempt.flight.part = self._cache.name_part(attempt.flight.key)
        outcomes = [self._write_body(attempt) for attempt in attempts]
        with self._lock:
            # first those that are on the disk: if it refused another one, they are part of what it has
            for attempt, outcome in sorted(zip(attempts, outcomes, strict=True), key=lambda each: each[1] is not None):
                self._finish(attempt.flight, outcome)

    def _write_body(self, attempt: Attempt) -> SdsError | None:
        """Writes one body to its file, under its final name in the end; what went wrong."""
        flight = attempt.flight
        try:
            assert flight.reserved is not None, "room before bytes"
            name = name_of(flight.key, flight.reserved, flight.suffix)
            flight.path = write_whole(flight.part, name, attempt.body or [])
        except SdsError as error:
            return error
        except Exception as error:  # noqa: BLE001 (a thread boundary: a defect of ours must not leave anybody waiting)
            return defect(flight, error)
        finally:
            self._forget(attempt)
        return None
