"""Download: one request for a flight, from the store to memory or to its part file.

Comes in: an attempt. Goes out: its body in memory if that is small, else in the flight's part file; the length is what
was promised, the version the one that was asked for, and the checksum right where it is to be checked.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator

from sds.errors import FetchError, IntegrityError
from sds.fetch.bodies import Budget, gather, write
from sds.fetch.cache import Cache
from sds.fetch.flight import Attempt, Flight, changed
from sds.fetch.pieces import LARGE, write_in_pieces
from sds.fetch.room import Room
from sds.fetch.spans import Span, suffix_of
from sds.storage import Body, Buffer, Store, Stores, is_other
from sds.storage.checksums import Checks, md5
from sds.storage.failures import translate
from sds.types import size_in
from sds.urls import redact, split

__all__ = ["WHOLE", "Download", "Lost"]

# Bodies up to WHOLE are written by a few threads of their own: with the file calls in all 64 download threads, the
# interpreter's lock changes hands six times a file, and 50 KB files pass at half the rate (measured against nginx).
WHOLE = 8 * 2**20
_MAX_UNWRITTEN = 256 * 2**20  # bytes of such bodies in memory at once
_NUM_HELPERS = 8  # that get pieces of large objects, beside the download threads


class Lost(FetchError):
    """Another attempt has this flight now; nobody is told."""


class Download:
    """How attempts are made. `lock` guards flights, room and cache; `warn` tells users, and is called without it."""

    def __init__(self, cache: Cache, lock: threading.RLock, room: Room, warn: Callable[[str], None]) -> None:
        self._cache = cache
        self._lock = lock
        self._room = room
        self._checks = Checks(warn)
        self._places = threading.Semaphore(_NUM_HELPERS)
        self.budget = Budget(_MAX_UNWRITTEN)

    def run(self, attempt: Attempt, stores: Stores) -> bool:
        """Makes the request and takes the answer; False if there is no room for it. What is raised is not yet ours."""
        flight = attempt.flight

        def fetch(store: Store, key: str) -> bool:
            body = store.open(key, flight.span)
            _check(flight, body)
            if body.size == 0 and flight.span is None:
                self._check_empty(flight, store, key)
            return self._land(attempt, body, store, key)

        return stores.once(flight.url, flight.options, fetch)

    def take(self, attempt: Attempt, body: Body) -> bool:
        """Takes a small body that is here already; False if there is no room for it. Waits for nothing."""
        attempt.in_memory = body.size or 0
        self.budget.take_now(attempt.in_memory)
        _check(attempt.flight, body)
        if not self._make_room(attempt, body, attempt.in_memory, split(attempt.flight.url).key):
            return False
        attempt.body = list(body.chunks)
        return True

    def _check_empty(self, flight: Flight, store: Store, key: str) -> None:
        """Overloaded servers send empty bodies now and then: one that is empty is asked for its size as well."""
        with self._lock:
            flight.counts["requests"] += 1
        try:
            size = store.head(key).size
        except Exception as error:
            if translate(error, flight.url).may_pass:  # it says nothing of the body
                raise
            return  # not every server has HEAD, or lets everybody ask: then the body is believed
        if size:
            url, hint = redact(flight.url), "the store or a proxy sent an empty body; it is tried again"
            raise IntegrityError(f"body is empty where {size} bytes were promised: {url}", hint=hint, url=url)

    def _land(self, attempt: Attempt, body: Body, store: Store, key: str) -> bool:
        flight = attempt.flight
        chunks: Iterable[Buffer] = body.chunks
        size = body.size
        if size is None:
            chunks, size = gather(body, flight.url, charge=lambda num_bytes: self._charge(attempt, num_bytes))
        if not self._make_room(attempt, body, size, key):
            return False
        if size <= WHOLE:
            self._take_memory(attempt, size)
            attempt.body = list(chunks)
            self._verify(flight, body.digest, attempt.body)
            return True
        try:
            self._write(flight, body, chunks, size, store, key)
        except BaseException:  # there may be another attempt
            with self._lock:
                self._cache.drop_part(flight.part)
                flight.part = ""
            raise
        return True

    def _make_room(self, attempt: Attempt, body: Body, size: int, key: str) -> bool:
        """Sets room aside for a body whose size is known, and notes what its file shall be; False if there is none."""
        flight = attempt.flight
        flight.storage_class = body.storage_class
        with self._lock:
            self._claim(attempt, size)
            if not self._room.make(flight, size):
                return False
            if size > WHOLE:  # of a small one, its writer makes the name: this looks at the disk
                flight.part = self._cache.part_path(flight.key)
            flight.suffix = os.path.splitext(key.partition("?")[0])[1]
            if flight.span is not None:
                flight.suffix = suffix_of(body.total, body.version)
        return True

    def _claim(self, attempt: Attempt, size: int) -> None:
        """Whoever comes too late stops here; a large body goes to the file at once, so only one may go on."""
        flight = attempt.flight
        is_late = attempt not in flight.in_air
        is_at_odds = len(flight.in_air) > 1 and flight.size is not None and flight.size != size
        if is_late or is_at_odds:
            raise Lost("another attempt has the object")
        if size > WHOLE:
            flight.in_air = [attempt]

    def _write(self, flight: Flight, body: Body, chunks: Iterable[Buffer], size: int, store: Store, key: str) -> None:
        def open_part(span: Span) -> Body:
            with self._lock:
                flight.counts["requests"] += 1
            return store.open(key, span)

        if size > LARGE and flight.span is None and body.size is not None:
            write_in_pieces(flight.part, body, size, open_part, self._places, flight.url)
        else:
            write(flight.part, chunks)
        self._verify(flight, body.digest, _contents(flight.part))

    def _verify(self, flight: Flight, digest: str | None, chunks: Iterable[Buffer]) -> None:
        if not (flight.options.checksums and self._checks.wants(flight.root, digest)):
            return
        seen = md5(chunks)
        if self._checks.agrees(flight.root, digest, seen, flight.disagreed):
            return
        flight.disagreed = seen
        url, hint = redact(flight.url), "the network or the store changes bytes; see the guide on stores: checksums"
        raise IntegrityError(f"body is not the one that the store promised: {url}", hint=hint, url=url)

    def _take_memory(self, attempt: Attempt, num_bytes: int) -> None:
        """Waits until the bodies in memory are few enough for this one. Not under the lock."""
        if not attempt.in_memory:
            attempt.is_waiting = True
            self.budget.take(num_bytes)
            attempt.is_waiting = False
            attempt.in_memory = num_bytes

    def _charge(self, attempt: Attempt, num_bytes: int) -> None:
        """A body whose length nobody knows has grown to this. Not under the lock."""
        if num_bytes > attempt.in_memory:
            attempt.is_waiting = True
            self.budget.grow(attempt, WHOLE)
            attempt.is_waiting = False
            with self._lock:
                attempt.in_memory += WHOLE
                if attempt not in attempt.flight.in_air:  # or it would go on to grow, for nobody
                    raise Lost("another attempt has the object")

    def forget(self, attempt: Attempt) -> None:
        """The body of an attempt is not wanted. Under the lock."""
        if attempt.in_memory:  # if not, it may be about to take some: its own end sees to that
            self.budget.give(attempt.in_memory, attempt)
            attempt.in_memory = 0
        attempt.body = None


def _check(flight: Flight, body: Body) -> None:
    """Whether what is about to come can be what was asked for."""
    if is_other(body.version, flight.version):
        raise changed(flight)
    expected, size = size_in(flight.version), body.size if flight.span is None else body.total
    if expected is not None and size is not None and size != expected:
        url, hint = redact(flight.url), "a broken answer, or the object was written to: then open the dataset again"
        raise IntegrityError(f"object has {size} bytes where the index says {expected}: {url}", hint=hint, url=url)


def _contents(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            yield chunk
