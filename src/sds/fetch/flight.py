"""Flight: one object on its way into the cache; Attempt: one request for it; Waiter: who is told when it is here.

Data and its errors only: flights.py decides what becomes of them.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

from sds.errors import FetchError, SdsError
from sds.fetch.cache import Entry
from sds.fetch.spans import Span
from sds.fetch.versions import Changed
from sds.storage import Buffer, StoreOptions
from sds.urls import redact, root_of

__all__ = ["Attempt", "Flight", "Passenger", "Waiter", "changed", "crowded", "defect", "dropped", "root_of"]


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
        self.root = root_of(url)
        self.version = version  # that the object shall have, if that is known
        self.options = options  # of the first who asked
        self.span: Span | None = None  # if only a part of the object is wanted
        self.waiters: list[Passenger] = []
        self.size: int | None = None  # once a store has told
        self.reserved: int | None = None
        self.wanted = 0  # bytes it parked for
        self.is_parked = False
        self.is_active = False  # it is being downloaded, or about to be tried again
        self.waits_since: float | None = None  # when it first parked
        self.parked_at = 0.0
        self.waited_s = 0.0  # how long it was parked, in all
        self.left_at = 0.0  # when it was parked last
        self.may_probe = False  # it may ask for its size without any room
        self.needs_thread = False  # it takes more than a plain request
        self.part = ""  # the file that is being written
        self.path = ""  # where it was published, before the books say so
        self.suffix = ""  # of the final file
        self.num_retries = 0
        self.disagreed: str | None = None  # the digest of a body that is not the one the store promised
        self.began_at: float | None = None  # when it was first asked for
        self.storage_class = "standard"  # if the store says so
        self.in_air: list[Attempt] = []  # the requests whose answer would be taken
        self.counts = {"requests": 0, "retries": 0, "hedges": 0, "bytes_downloaded": 0, "evictions": 0, "misses": 1}


class Attempt:
    """One request for a flight. A flight may have two of them in the air; the first that is complete wins."""

    __slots__ = (
        "body",
        "ended_at",
        "flight",
        "has_won",
        "in_memory",
        "is_express",
        "is_hedge",
        "is_replaced",
        "is_waiting",
        "started_at",
    )

    def __init__(self, flight: Flight, *, is_hedge: bool = False) -> None:
        self.flight = flight
        self.is_hedge = is_hedge
        self.is_express = False  # no thread waits for its answer
        self.started_at = time.monotonic()
        self.ended_at: float | None = None  # when its body was here
        self.is_waiting = False  # for memory, or to be written, which is not the store's fault
        self.has_won = False  # its answer is the one that is taken
        self.is_replaced = False  # another one won while this one waited, and its thread takes the place of this one's
        self.body: list[Buffer] | None = None  # if it is small
        self.in_memory = 0  # bytes of the budget that it has taken


def changed(flight: Flight) -> FetchError:
    """The store has another version of the object than the index names."""
    url, hint = redact(flight.url), "it was written to since the folder was listed: open the dataset again"
    return Changed(f"object is not the one that the index names: {url}", hint=hint, url=url)


def dropped(flight: Flight) -> FetchError:
    """Nobody wanted it any more."""
    url = redact(flight.url)
    return FetchError(f"download was dropped: {url}", hint="ask for it again", url=url)


def crowded(flight: Flight) -> FetchError:
    """There is no thread for a request."""
    url, hint = redact(flight.url), "this machine or container allows no more threads (ulimit -u, pids limit): raise it"
    return FetchError(f"request could not be made: {url}: no thread to be had", hint=hint, url=url)


def defect(flight: Flight, error: Exception) -> FetchError:
    """What should not happen; whoever waits is told all the same."""
    url, hint = redact(flight.url), "a defect of sds, not of your data: please report it"
    return FetchError(f"download failed: {url}: {type(error).__name__}", hint=hint, url=url)
