"""Downloads: one flight per object, however many ask; room before bytes; first asked, first served.

Comes in: a key to have. Goes out: the key in the cache, leased for each who asked, or one error for all of them. A
flight that finds no room parks; parked flights take off in the order in which they were asked for, so the earliest
request of every client is served before its later ones, and what is prefetched cannot starve what is needed.
"""

from __future__ import annotations

import heapq
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from sds.errors import CacheError, CacheFull, FetchError, SdsError
from sds.fetch.cache import Cache, Entry
from sds.storage import Body, Buffer, Store, StoreOptions, Stores
from sds.units import format_bytes

__all__ = ["Flight", "Flights", "Waiter"]

_MAX_UNANNOUNCED = 256 * 2**20  # a body whose length the server does not give is held in memory up to this
_MAX_THREADS = 256
# Bodies up to _WHOLE are written by a few threads of their own: with the file calls in all 64 download threads, the
# interpreter's lock changes hands six times a file, and 50 KB files pass at half the rate (measured against nginx).
_WHOLE = 8 * 2**20
_NUM_WRITERS = 2


class Waiter(Protocol):
    """Somebody who asked for an object. Called under the lock; must not block."""

    def landed(self, slot: int, entry: Entry, counts: dict[str, int]) -> None:
        """The object is in the cache and leased for this waiter; `counts` is what it took, for the first who asked."""
        ...

    def failed(self, slot: int, error: SdsError, counts: dict[str, int]) -> None:
        """The object cannot be had."""
        ...


class Flight:
    """One object on its way."""

    def __init__(self, number: int, key: str, url: str, options: StoreOptions) -> None:
        self.number = number
        self.key = key
        self.url = url
        self.options = options
        self.waiters: list[tuple[Waiter, int]] = []
        self.reserved: int | None = None
        self.entry: Entry | None = None  # the landed file, leased by the flight itself until its waiters have it
        self.body: tuple[list[Buffer], str] | None = None  # bytes to be written by a writer, and the file's suffix
        self.wanted = 0  # bytes it parked for
        self.parked_at = 0.0
        self.counts = {"requests": 0, "retries": 0, "bytes_downloaded": 0, "evictions": 0, "misses": 1}


class Flights:
    """All downloads of one server; owns the download threads.

    `lock` guards this and the cache; `tell` sends what waiters were told, and is called without it.
    """

    def __init__(self, cache: Cache, lock: threading.RLock, tell: Callable[[], None], evict_from: float = 0.0) -> None:
        self._cache = cache
        self._lock = lock
        self._tell = tell
        self._evict_from = evict_from
        self._stores = Stores()
        self._flights: dict[str, Flight] = {}
        self._parked: list[tuple[int, Flight]] = []  # a heap by number: the earliest asked first
        self._ready: queue.SimpleQueue[Flight | None] = queue.SimpleQueue()
        self._unwritten: queue.SimpleQueue[Flight] = queue.SimpleQueue()
        self._num_threads = 0
        self._num_taken_off = 0
        self._num_active = 0

    @property
    def stores(self) -> Stores:
        """The open stores."""
        return self._stores

    def ensure_threads(self, number: int) -> None:
        """Has at least this many downloads going on at once, from now on."""
        with self._lock:
            if not self._num_threads:
                for _ in range(_NUM_WRITERS):
                    threading.Thread(target=self._write_bodies, name="writer", daemon=True).start()
            while self._num_threads < min(number, _MAX_THREADS):
                self._num_threads += 1
                threading.Thread(target=self._work, name=f"download-{self._num_threads}", daemon=True).start()

    def join(self, key: str, url: str, options: StoreOptions, waiter: Waiter, slot: int) -> None:
        """Waits for an object with whoever does already, or sends a new flight for it. Under the lock."""
        flight = self._flights.get(key)
        if flight is None:
            self._num_taken_off += 1
            flight = self._flights[key] = Flight(self._num_taken_off, key, url, options)
            self._ready.put(flight)
        flight.waiters.append((waiter, slot))

    def leave(self, waiter: Waiter) -> None:
        """A waiter no longer wants anything; what nobody wants and is not on its way yet is dropped. Under the lock."""
        for flight in list(self._flights.values()):
            flight.waiters = [(w, slot) for w, slot in flight.waiters if w is not waiter]
        self._parked = [(n, f) for n, f in self._parked if f.waiters or self._drop(f)]
        heapq.heapify(self._parked)

    def _drop(self, flight: Flight) -> bool:
        del self._flights[flight.key]
        return False

    def admit(self) -> None:
        """Lets parked flights take off while there is room. Call under the lock whenever room came free."""
        while self._parked and self._reserve(self._parked[0][1], self._parked[0][1].wanted):
            self._ready.put(heapq.heappop(self._parked)[1])

    def starving(self) -> tuple[float, Flight] | None:
        """The first parked flight and since when it waits, if nothing on its way could free room. Under the lock."""
        if not self._parked or self._num_active:
            return None
        flight = self._parked[0][1]
        return flight.parked_at, flight

    def give_up(self, flight: Flight, error: SdsError) -> None:
        """Fails a parked flight. Under the lock."""
        self._parked = [(n, f) for n, f in self._parked if f is not flight]
        heapq.heapify(self._parked)
        self._finish(flight, error)

    def _work(self) -> None:
        while (flight := self._ready.get()) is not None:
            with self._lock:
                if not flight.waiters:  # everybody left before it began
                    self._finish(flight, None)
                    continue
                self._num_active += 1
            outcome: SdsError | None = None
            try:
                short = self._fly(flight)
            except SdsError as error:
                short, outcome = None, error
            except Exception as error:  # noqa: BLE001 (a thread boundary: a defect of ours must not leave anybody waiting)
                short, outcome = None, FetchError(f"download failed: {flight.url}: {error!r}", url=flight.url)
            if flight.body is not None:
                self._unwritten.put(flight)
                continue
            with self._lock:
                self._num_active -= 1
                if short is None:
                    self._finish(flight, outcome)
                else:
                    flight.wanted, flight.parked_at = short, time.monotonic()
                    heapq.heappush(self._parked, (flight.number, flight))
                    self.admit()
            self._tell()

    def _write_bodies(self) -> None:
        while True:
            flight = self._unwritten.get()
            outcome: SdsError | None = None
            pieces, suffix = flight.body or ([], "")
            flight.body = None
            try:
                self._store(flight, pieces, sum(map(len, pieces)), suffix)
            except SdsError as error:
                outcome = error
            except Exception as error:  # noqa: BLE001 (a thread boundary: a defect of ours must not leave anybody waiting)
                outcome = FetchError(f"download failed: {flight.url}: {error!r}", url=flight.url)
            with self._lock:
                self._num_active -= 1
                self._finish(flight, outcome)
            self._tell()

    def _fly(self, flight: Flight) -> int | None:
        """Gets the object into the cache, or into `flight.body`; or returns the room that it lacks."""

        def retried() -> None:
            flight.counts["retries"] += 1

        def attempt(store: Store, key: str) -> int | None:
            flight.counts["requests"] += 1
            return self._land(flight, store.open(key), key)

        return self._stores.call(flight.url, flight.options, attempt, on_retry=retried)

    def _land(self, flight: Flight, body: Body, key: str) -> int | None:
        chunks: Iterable[Buffer] = body.chunks
        size = body.size
        if size is None:
            chunks, size = _gather(body, flight.url)
        if not self._make_room(flight, size):
            return size
        suffix = os.path.splitext(key.partition("?")[0])[1]
        if size <= _WHOLE:
            flight.body = list(chunks), suffix
        else:
            self._store(flight, chunks, size, suffix)
        return None

    def _store(self, flight: Flight, chunks: Iterable[Buffer], size: int, suffix: str) -> None:
        with self._lock:
            part = self._cache.part_path(flight.key)
        try:
            _write(part, chunks)
            flight.counts["bytes_downloaded"] += size
            with self._lock:
                flight.entry = self._cache.commit(flight.key, part, size, suffix)
                flight.reserved = None
        except BaseException:
            _remove(part)
            raise

    def _make_room(self, flight: Flight, size: int) -> bool:
        with self._lock:
            limit = self._cache.limit
            if limit is not None and size > limit:
                raise CacheFull(
                    f"object is larger than cache_limit: {format_bytes(size)} > {format_bytes(limit)}: {flight.url}",
                    hint=f"cache_limit of at least {size} bytes; more to hold several objects at once",
                    url=flight.url,
                )
            if flight.reserved == size:  # it was parked, or is a second attempt
                return True
            self._return_room(flight)
            waits_for_earlier = bool(self._parked) and self._parked[0][0] < flight.number
            return not waits_for_earlier and self._reserve(flight, size)

    def _reserve(self, flight: Flight, size: int) -> bool:
        before = self._cache.num_evictions
        grace = time.monotonic() < self._evict_from and self._cache.limit is not None
        if grace and self._cache.used + size > (self._cache.limit or 0):
            return False  # clients of a server that was killed may still be on their way to hold their files again
        if not self._cache.reserve(size):
            return False
        flight.counts["evictions"] += self._cache.num_evictions - before
        flight.reserved = size
        return True

    def _return_room(self, flight: Flight) -> None:
        if flight.reserved is not None:
            self._cache.cancel(flight.reserved)
            flight.reserved = None

    def _finish(self, flight: Flight, error: SdsError | None) -> None:
        """Tells everybody who waits, and lets the next ones take off."""
        del self._flights[flight.key]
        self._return_room(flight)
        counts = flight.counts
        for waiter, slot in flight.waiters:
            if error is not None:
                waiter.failed(slot, error, counts)
            else:
                waiter.landed(slot, self._cache.lease(flight.key), counts)
            counts = {"hits": 1}  # whoever joined needed no download of its own
        if flight.entry is not None:
            self._cache.release(flight.entry)
        self.admit()


def _gather(body: Body, url: str) -> tuple[list[bytes], int]:
    """Takes a body of unannounced length into memory, to know its size before a byte is written."""
    chunks: list[bytes] = []
    size = 0
    for chunk in body.chunks:
        chunks.append(bytes(chunk))
        size += len(chunk)
        if size > _MAX_UNANNOUNCED:
            hint = "serve it with a Content-Length header"
            raise FetchError(
                f"body of unknown length passes {format_bytes(_MAX_UNANNOUNCED)}: {url}", hint=hint, url=url
            )
    return chunks, size


def _write(part: str, chunks: Iterable[Buffer]) -> None:
    """Writes a body to a new file. What the disk says is told apart from what the network says."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(part, flags, 0o666)
    except OSError as error:
        raise _unwritable(part, error) from error
    try:
        for chunk in chunks:
            view = memoryview(chunk)
            while len(view):
                try:
                    view = view[os.write(descriptor, view) :]
                except OSError as error:
                    raise _unwritable(part, error) from error
    finally:
        os.close(descriptor)


def _unwritable(part: str, error: OSError) -> CacheError:
    hint = "free some disk, lower cache_limit below what the disk has, or choose another `dst`"
    return CacheError(f"cache folder cannot be written: {part}: {error.strerror}", hint=hint)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
