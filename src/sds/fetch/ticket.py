"""Ticket: one Get of one session, in the fetch server: which of its files are here, and what they took.

Files land or fail, in any order; when none is missing, the session is told to answer. All under the server's lock.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sds.errors import SdsError
from sds.fetch import protocol as p
from sds.fetch.cache import Entry
from sds.fetch.flight import Flight
from sds.fetch.versions import Changed

if TYPE_CHECKING:
    from sds.fetch.session import Session

__all__ = ["Ticket"]


class Ticket:
    """One Get of one session: which of its files are here, and what they took."""

    def __init__(self, session: Session, id: int, files: list[p.File]) -> None:
        self.session = session
        self.id = id
        self.files = files
        self.entries: list[Entry | None] = [None] * len(files)
        self.flights: list[Flight] = []
        self.num_missing = len(files)
        self.num_bytes = 0  # what it keeps in the cache, or will
        self.counts: dict[str, int] = {}
        self.trips: list[p.Trip] = []
        self.error: SdsError | None = None
        self.wanted_since: float | None = None  # when the client said that somebody waits for it
        self.is_taken = False  # somebody waits for a later one: what this one got is in use
        self.num_changes = 0  # how often an object was found changed since its version was asked for
        self._lent: set[int] = set()  # files that were here, and made way for a while

    def landed(self, slot: int, entry: Entry, counts: dict[str, int]) -> None:
        """A file is here, and leased."""
        self.entries[slot] = entry
        was_counted = slot in self._lent and not counts.get("requests")
        self._one_less(slot, {} if was_counted else counts)

    def make_way(self) -> list[int]:
        """Lets go of the files that are here, while others are missing; which they were. Under the server's lock."""
        here = {slot: entry for slot, entry in enumerate(self.entries) if entry is not None}
        keys = {entry.key for entry in here.values()}
        self.flights = [flight for flight in self.flights if flight.key not in keys]
        for slot, entry in here.items():
            self.session.let_go(entry)
            self.entries[slot] = None
        self.num_missing += len(here)
        self._lent.update(here)
        return list(here)

    def failed(self, slot: int, error: SdsError, counts: dict[str, int]) -> None:
        """A file cannot be had, so neither can the others of this Get; but one that just changed is asked for anew."""
        if isinstance(error, Changed) and self.session.begin_again(self, slot):
            return
        self.error = self.error or error
        self._one_less(slot, counts)

    def _one_less(self, slot: int, counts: dict[str, int]) -> None:
        if counts.get("requests"):
            self._travelled(slot, counts)
        for name, number in counts.items():
            if number:
                self.counts[name] = self.counts.get(name, 0) + number
        self.num_missing -= 1
        if not self.num_missing:
            self.session.answer(self)

    def _travelled(self, slot: int, counts: dict[str, int]) -> None:
        """Notes what a store was asked for; counts are the flight's own for whoever asked first."""
        now = time.monotonic()
        flight = next((each for each in self.flights if each.counts is counts), None)
        began = now if flight is None or flight.began_at is None else flight.began_at
        kind = "standard" if flight is None else flight.storage_class
        self.trips.append(p.Trip(slot, counts["requests"], counts["bytes_downloaded"], began, now - began, kind))

    def reply(self) -> p.Got | p.Failed:
        """What the client is told."""
        if self.error is not None:
            return p.Failed.of(self.id, self.error, self.trips)
        waited = [flight for flight in self.flights if flight.waited_s]
        if waited:  # for room
            self.counts |= {"waits": len(waited), "wait_ms": round(1000 * self.session.add_waits(waited))}
        return p.Got(self.id, [entry.path for entry in self.entries if entry], self.counts, tuple(self.trips))
