"""Room: before a byte of an object is written, its room in the cache is set aside; who finds none parks.

The size of an object is known when its headers are here. Under a limit, room for an object of the usual size is set
aside before it is asked for, so that a store is rarely asked twice for what has to wait. Parked flights take off in the
order in which they were asked for. Not thread-safe: the server locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sds.errors import CacheFull
from sds.fetch.cache import Cache
from sds.fetch.flight import Flight
from sds.fetch.parking import Parking
from sds.units import format_bytes
from sds.urls import redact

__all__ = ["Room"]

_FIRST_GUESS = 1e6  # what an object takes, before any has been seen
_URGENT = 2**60  # so far before all others come those that are waited for
_MEMORY = 32  # and then it is a mean over about so many objects


class Room:
    """Who has room in the cache, and who waits for it; `start` is called with those who need wait no longer."""

    def __init__(self, cache: Cache, start: Callable[[Flight], None], evict_from: float = 0.0) -> None:
        self.parked: Parking[Flight] = Parking()
        self._cache = cache
        self._start = start
        self._evict_from = evict_from
        self._probing: set[int] = set()  # the numbers of flights that ask for their size: they keep their places
        self._usual_size = _FIRST_GUESS
        self._num_sized = 0
        self._num_hurried = 0
        self.largest_size = 0  # of all objects so far

    @property
    def is_careful(self) -> bool:
        """Whether nothing is evicted yet: clients of a killed server may be on their way to hold their files again."""
        return time.monotonic() < self._evict_from

    @property
    def usual_size(self) -> int:
        """Bytes that an object takes, as a rule, but never more than there may be."""
        limit = self._cache.limit
        return round(self._usual_size) if limit is None else min(round(self._usual_size), limit)

    def _expected(self, flight: Flight) -> int:
        return self.usual_size if flight.size is None else flight.size

    def park(self, flight: Flight) -> None:
        """A flight waits for room."""
        self._probing.discard(flight.number)
        flight.wanted, flight.may_probe = self._expected(flight), False
        flight.waits_since = flight.waits_since or time.monotonic()
        self.parked.add(flight)

    def hurry(self, flight: Flight) -> None:
        """Somebody waits for a flight: it comes before those that nobody waits for yet."""
        if flight.number < 0:
            return
        self._num_hurried += 1
        number, flight.number = flight.number, self._num_hurried - _URGENT
        if number in self._probing:
            self._probing.remove(number)
            self._probing.add(flight.number)
        if flight.is_parked:
            self.parked.take_out(flight)
            self.parked.add(flight)

    def admit(self) -> None:
        """Lets parked flights take off while there is room."""
        while (flight := self.parked.first()) is not None:
            flight.wanted = self._expected(flight)
            if self._waits_behind(flight) or not self._reserve(flight, flight.wanted):
                return
            self.parked.take()
            self._start(flight)

    def probe(self) -> None:
        """Lets the first parked flight ask for its size, if that was only guessed."""
        flight = self.parked.first()
        if flight is not None:
            self.ask_sizes([flight])

    def ask_sizes(self, flights: Sequence[Flight]) -> bool:
        """Lets parked flights ask for their sizes, where those were only guessed; whether any was."""
        guessed = [flight for flight in flights if flight.is_parked and flight.size is None]
        for flight in guessed:
            flight.may_probe = True
            self._probing.add(flight.number)
            self.parked.take_out(flight)
            self._start(flight)
        return bool(guessed)

    def may_begin(self, flight: Flight) -> bool:
        """Whether a flight has room, or may have it, before it asks a store."""
        if self._cache.limit is None or flight.reserved is not None or flight.may_probe:
            return True
        return not self._waits_behind(flight) and self._reserve(flight, self._expected(flight))

    def _waits_behind(self, flight: Flight) -> bool:
        first = self.parked.first()
        is_behind = first is not None and first.number < flight.number
        return is_behind or any(number < flight.number for number in self._probing)

    def make(self, flight: Flight, size: int) -> bool:
        """Sets room aside for an object whose size is known now; False if there is none."""
        if flight.size != size:
            self._num_sized += 1
            self._usual_size += (size - self._usual_size) / min(self._num_sized, _MEMORY)
        flight.size = size
        self.largest_size = max(self.largest_size, size)
        self._probing.discard(flight.number)
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
            self.give_back(flight)
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

    def give_back(self, flight: Flight) -> None:
        """A flight needs its room no more; what it wrote is removed."""
        self._probing.discard(flight.number)
        if flight.part:
            self._cache.drop_part(flight.part)
            flight.part = ""
        if flight.reserved is not None:
            self._cache.cancel(flight.reserved)
            flight.reserved = None
