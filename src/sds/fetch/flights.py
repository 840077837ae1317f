"""Downloads: one flight per object, however many ask; room before bytes; first asked, first served.

Comes in: a key to have. Goes out: the key in the cache, leased for each who asked, or one error for all of them. A
flight that finds no room parks; parked flights take off in the order in which they were asked for, so the earliest
request of every client is served before its later ones, and what is prefetched cannot starve what is needed.

The size of an object is known when its headers are here. Under a limit, room for an object of the usual size is set
aside before it is asked for, so that a store is rarely asked twice for what has to wait.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from sds.errors import CacheFull, FetchError, SdsError
from sds.fetch.bodies import Budget, gather, write
from sds.fetch.cache import Cache, Entry
from sds.fetch.parking import Parking
from sds.storage import Body, Buffer, Store, StoreOptions, Stores, is_other
from sds.units import format_bytes
from sds.urls import redact

__all__ = ["Flight", "Flights", "Passenger", "Waiter"]

_MAX_THREADS = 256
# Bodies up to _WHOLE are written by a few threads of their own: with the file calls in all 64 download threads, the
# interpreter's lock changes hands six times a file, and 50 KB files pass at half the rate (measured against nginx).
_WHOLE = 8 * 2**20
_NUM_WRITERS = 2
_MAX_UNWRITTEN = 256 * 2**20  # bytes of such bodies in memory at once
_FIRST_GUESS = 1e6  # what an object takes, before any has been seen
_MEMORY = 32  # and then it is a mean over about so many objects


class Waiter(Protocol):
    """Somebody who asked for an object. Called under the lock; must not block."""

    def landed(self, slot: int, entry: Entry, counts: dict[str, int]) -> None:
        """The object is in the cache and leased for this waiter; `counts` is what it took, for the first who asked."""
        ...

    def failed(self, slot: int, error: SdsError, counts: dict[str, int]) -> None:
        """The object cannot be had."""
        ...


class Passenger(NamedTuple):
    """Who waits for a flight, for which of its files, and how it would have the store opened."""

    waiter: Waiter
    slot: int
    options: StoreOptions


class Flight:
    """One object on its way."""

    def __init__(self, number: int, key: str, url: str, version: str | None, options: StoreOptions) -> None:
        self.number = number
        self.key = key
        self.url = url
        self.version = version  # that the object shall have, if that is known
        self.options = options  # of the first who asked
        self.waiters: list[Passenger] = []
        self.size: int | None = None  # once a store has told
        self.reserved: int | None = None
        self.wanted = 0  # bytes it parked for
        self.is_parked = False
        self.waits_since: float | None = None  # when it first parked
        self.may_probe = False  # it may ask for its size without any room
        self.part = ""  # the file that is being written
        self.suffix = ""  # of the final file
        self.body: list[Buffer] | None = None  # bytes to be written by a writer
        self.in_memory = 0  # bytes of the budget that it has taken for them
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
        self._parked: Parking[Flight] = Parking()
        self._ready: queue.SimpleQueue[Flight] = queue.SimpleQueue()
        self._unwritten: queue.SimpleQueue[Flight] = queue.SimpleQueue()
        self._num_threads = 0
        self._num_taken_off = 0
        self._num_active = 0
        self._usual_size = _FIRST_GUESS
        self._num_sized = 0
        self._budget = Budget(_MAX_UNWRITTEN)
        self._landed_at = 0.0

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
            while self._num_threads < min(max(1, number), _MAX_THREADS):
                self._num_threads += 1
                threading.Thread(target=self._work, name=f"download-{self._num_threads}", daemon=True).start()

    def join(self, key: str, url: str, version: str | None, options: StoreOptions, waiter: Waiter, slot: int) -> Flight:
        """Waits for an object with whoever does already, or sends a new flight for it. Under the lock."""
        flight = self._flights.get(key)
        if flight is None:
            self._num_taken_off += 1
            flight = self._flights[key] = Flight(self._num_taken_off, key, url, version, options)
            self._ready.put(flight)
        flight.waiters.append(Passenger(waiter, slot, options))
        return flight

    def leave(self, flight: Flight, waiter: Waiter) -> None:
        """A waiter no longer wants an object; what nobody wants and is not on its way is dropped. Under the lock."""
        now = self._flights.get(flight.key)  # it may have changed to another flight, when the first one failed
        if now is None:
            return
        now.waiters = [each for each in now.waiters if each.waiter is not waiter]
        if now.is_parked and not now.waiters:
            self._parked.desert(now)
            del self._flights[now.key]

    def admit(self) -> None:
        """Lets parked flights take off while there is room. Call under the lock whenever room came free."""
        while (flight := self._parked.first()) is not None:
            flight.wanted = self._expected(flight)
            if not self._reserve(flight, flight.wanted):
                return
            self._parked.take()
            self._ready.put(flight)

    def starving(self) -> tuple[float, Flight] | None:
        """The first parked flight and since when it waits. Under the lock."""
        flight = self._parked.first()
        return None if flight is None or flight.waits_since is None else (flight.waits_since, flight)

    def parked(self) -> list[Flight]:
        """All flights that wait for room, the earliest asked for first. Under the lock."""
        return [flight for _, flight in sorted(self._parked, key=lambda item: item[0]) if flight.is_parked]

    @property
    def landed_at(self) -> float:
        """When the last download came into the cache."""
        return self._landed_at

    @property
    def num_active(self) -> int:
        """How many downloads are going on."""
        return self._num_active

    @property
    def is_careful(self) -> bool:
        """Whether nothing is evicted yet: clients of a killed server may be on their way to hold their files again."""
        return time.monotonic() < self._evict_from

    def probe(self) -> None:
        """Lets the first parked flight ask for its size, if that was only guessed. Under the lock."""
        flight = self._parked.first()
        if flight is not None and flight.size is None:
            flight.may_probe = True
            self._parked.take()
            self._ready.put(flight)

    def give_up(self, flight: Flight, waiter: Waiter, error: SdsError) -> None:
        """Tells one waiter of a parked flight that there will be no room. Under the lock."""
        slots = [each.slot for each in flight.waiters if each.waiter is waiter]
        self.leave(flight, waiter)
        for slot in slots:
            waiter.failed(slot, error, {})
        self.admit()

    def _park(self, flight: Flight) -> None:
        flight.wanted, flight.may_probe = self._expected(flight), False
        flight.waits_since = flight.waits_since or time.monotonic()
        self._parked.add(flight)

    @property
    def usual_size(self) -> int:
        """Bytes that an object takes, as a rule, but never more than there may be."""
        return min(round(self._usual_size), self._cache.limit or 0)

    def _expected(self, flight: Flight) -> int:
        return self.usual_size if flight.size is None else flight.size

    def _work(self) -> None:
        while True:
            flight = self._ready.get()
            with self._lock:
                if not flight.waiters:  # everybody left before it began
                    self._finish(flight, None)
                    continue
                if not self._may_begin(flight):
                    self._park(flight)
                    continue
                self._num_active += 1
            outcome: SdsError | None = None
            has_room = True
            try:
                has_room = self._fly(flight)
            except SdsError as error:
                outcome = error
            except Exception as error:  # noqa: BLE001 (a thread boundary: a defect of ours must not leave anybody waiting)
                outcome = _defect(flight, error)
            if flight.body is not None and outcome is None:
                self._unwritten.put(flight)
                continue
            with self._lock:
                self._num_active -= 1
                if has_room or not flight.waiters:
                    self._finish(flight, outcome)
                else:
                    self._park(flight)
                    self.admit()
            self._tell()

    def _write_bodies(self) -> None:
        while True:
            flight = self._unwritten.get()
            outcome: SdsError | None = None
            chunks, flight.body = flight.body, None
            try:
                write(flight.part, chunks or ())
            except SdsError as error:
                outcome = error
            except Exception as error:  # noqa: BLE001 (a thread boundary: a defect of ours must not leave anybody waiting)
                outcome = _defect(flight, error)
            chunks = None  # or it would stay in memory until the next one comes
            self._forget_body(flight)
            with self._lock:
                self._num_active -= 1
                self._finish(flight, outcome)
            self._tell()

    def _fly(self, flight: Flight) -> bool:
        """Gets the object into its part file, or into `flight.body`; False if there is no room for it."""

        def retried() -> None:
            flight.counts["retries"] += 1

        def attempt(store: Store, key: str) -> bool:
            flight.counts["requests"] += 1
            body = store.open(key)
            if is_other(body.version, flight.version):
                raise _changed(flight)
            try:
                return self._land(flight, body, key)
            finally:
                if flight.body is None:
                    self._forget_body(flight)

        return self._stores.call(flight.url, flight.options, attempt, on_retry=retried)

    def _land(self, flight: Flight, body: Body, key: str) -> bool:
        chunks: Iterable[Buffer] = body.chunks
        size = body.size
        if size is None:
            self._take_memory(flight, _WHOLE)
            chunks, size = gather(body, flight.url)
        with self._lock:
            if not self._make_room(flight, size):
                return False
            flight.part = flight.part or self._cache.part_path(flight.key)
        flight.suffix = os.path.splitext(key.partition("?")[0])[1]
        if size <= _WHOLE:
            self._take_memory(flight, size)
            flight.body = list(chunks)
            return True
        try:
            write(flight.part, chunks)
        except BaseException:  # there may be another attempt
            with self._lock:
                self._cache.drop_part(flight.part)
                flight.part = ""
            raise
        return True

    def _take_memory(self, flight: Flight, num_bytes: int) -> None:
        """Waits until the bodies in memory are few enough for this one. Not under the lock."""
        if not flight.in_memory:
            self._budget.take(num_bytes)
            flight.in_memory = num_bytes

    def _forget_body(self, flight: Flight) -> None:
        self._budget.give(flight.in_memory)
        flight.in_memory = 0

    def _may_begin(self, flight: Flight) -> bool:
        """Whether a flight has room, or may have it, before it asks a store."""
        if self._cache.limit is None or flight.reserved is not None or flight.may_probe:
            return True
        return not self._waits_behind(flight) and self._reserve(flight, self._expected(flight))

    def _waits_behind(self, flight: Flight) -> bool:
        first = self._parked.first()
        return first is not None and first.number < flight.number

    def _make_room(self, flight: Flight, size: int) -> bool:
        flight.size = size
        self._num_sized += 1
        self._usual_size += (size - self._usual_size) / min(self._num_sized, _MEMORY)
        limit = self._cache.limit
        if limit is not None and size > limit:
            url = redact(flight.url)
            raise CacheFull(
                f"object is larger than cache_limit: {format_bytes(size)} > {format_bytes(limit)}: {url}",
                hint=f"cache_limit of at least {size} bytes; more to hold several objects at once",
                url=url,
            )
        if flight.reserved is None:
            return not self._waits_behind(flight) and self._reserve(flight, size)
        if flight.reserved < size:  # whoever has some room may take more out of turn: there are only so many of them
            if self._reserve(flight, size - flight.reserved):
                return True
            self._return_room(flight)
            return False
        if flight.reserved > size:
            self._cache.cancel(flight.reserved - size)
            flight.reserved = size
            self.admit()
        return True

    def _reserve(self, flight: Flight, size: int) -> bool:
        """Sets room aside for a flight, beside what it has."""
        before = self._cache.num_evictions
        limit = self._cache.limit
        if limit is not None and self._cache.used + size > limit and self.is_careful:
            return False
        if not self._cache.reserve(size):
            return False
        flight.counts["evictions"] += self._cache.num_evictions - before
        flight.reserved = size + (flight.reserved or 0)
        return True

    def _return_room(self, flight: Flight) -> None:
        if flight.part:
            self._cache.drop_part(flight.part)
            flight.part = ""
        if flight.reserved is not None:
            self._cache.cancel(flight.reserved)
            flight.reserved = None

    def _finish(self, flight: Flight, error: SdsError | None) -> None:
        """Publishes what was written, tells everybody who waits, and lets the next ones take off."""
        del self._flights[flight.key]
        entry: Entry | None = None
        if flight.part and flight.reserved is not None and error is None:
            try:
                entry = self._cache.commit(flight.key, flight.part, flight.reserved, flight.suffix)
                flight.counts["bytes_downloaded"] += flight.reserved
                flight.part, flight.reserved = "", None
            except SdsError as unusable:
                error = unusable
        self._return_room(flight)
        counts, waiters = flight.counts, flight.waiters
        if isinstance(
            error, FetchError
        ):  # others may have better credentials or more patience: they try for themselves
            for waiter, slot, options in waiters:
                if options is not flight.options:
                    self.join(flight.key, flight.url, flight.version, options, waiter, slot)
            waiters = [each for each in waiters if each.options is flight.options]
        for waiter, slot, _ in waiters:
            if entry is None:
                waiter.failed(slot, error or _dropped(flight), counts)
            else:
                waiter.landed(slot, self._cache.lease(flight.key), counts)
            counts = {"hits": 1} if entry is not None else {}  # whoever joined needed no download of its own
        if entry is not None:
            self._landed_at = time.monotonic()
            self._cache.release(entry)
        self.admit()


def _changed(flight: Flight) -> FetchError:
    url, hint = redact(flight.url), "it was written to since the folder was listed: open the dataset again"
    return FetchError(f"object is not the one that the index names: {url}", hint=hint, url=url)


def _dropped(flight: Flight) -> FetchError:
    url = redact(flight.url)
    return FetchError(f"download was dropped: {url}", hint="ask for it again", url=url)


def _defect(flight: Flight, error: Exception) -> FetchError:
    url, hint = redact(flight.url), "a defect of sds, not of your data: please report it"
    return FetchError(f"download failed: {url}: {type(error).__name__}", hint=hint, url=url)
