"""Lane: the flights that a plain request may bring, in one thread for all of them; others have threads of their own.

Comes in: flights to places from which a thread has brought something before. Goes out: attempts that are over, for
Flights to judge as it judges any other; and flights that take more than a plain client, for a download thread. So the
lane decides nothing: without it, everything happens in the same way, and takes more of the processor.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol, TypeAlias

from sds.fetch.flight import Attempt, Flight
from sds.storage import Body, Request, Store, Stores
from sds.types import size_in

if TYPE_CHECKING:
    from sds.storage.express import Express
    from sds.storage.ride import Answer, Order

__all__ = ["LARGEST", "Lane", "Tower"]

log = logging.getLogger("sds.fetch")

LARGEST = 2**20  # bytes of an object: of larger ones, what a request costs is a small part
_MAX_KNOWN = 1000  # places: an index may name millions of hosts
_SHUNNED_S = 60.0  # how long a place is left alone that gave an answer which was not plain; twice that the next time,
_MAX_SHUNNED_S = 3600.0  # up to this

_Place: TypeAlias = tuple[str, int]  # a bucket or host, and the options that it is opened with


class Tower(Protocol):
    """Who judges what becomes of flights. Called from the lane's thread, without the lock."""

    def board(self, flights: list[Flight]) -> list[Attempt | None]:
        """An attempt for each flight; None for one that has to wait."""
        ...

    def came(self, attempts: list[tuple[Attempt, Body | Exception]]) -> None:
        """Attempts that are over: the body that came, or what went wrong."""
        ...

    def hand_over(self, attempt: Attempt, *, was_sent: bool) -> None:
        """An attempt that takes more than a plain client: its flight has a thread now."""
        ...

    def fly(self, flight: Flight) -> None:
        """A flight that did not begin, and has a thread from now on."""
        ...

    @property
    def has_memory(self) -> bool:
        """Whether there is memory for more bodies."""
        ...


class Lane:
    """Which flights go this way, and how. `tower` judges what becomes of them."""

    def __init__(self, stores: Stores, tower: Tower) -> None:
        self._stores = stores
        self._tower = tower
        self._most = 1
        self._express: Express[Flight] | None = None
        self._is_missing = False  # this machine has no such thing
        self._plain: dict[_Place, None] = {}  # places that have proved to be plain
        self._shunned: dict[_Place, tuple[float, float]] = {}  # until when, and how long that was
        self._lock = threading.Lock()

    def widen(self, number: int) -> None:
        """How many requests there may be at once."""
        self._most = number
        if self._express is not None:
            self._express.most = number

    def take(self, flight: Flight, usual_size: int) -> bool:
        """Takes a flight, if it is one for this lane. `usual_size`: of objects, as a rule."""
        if self._express is None or flight.needs_thread or flight.span is not None or flight.may_probe:
            return False
        place = _place_of(flight)
        if place not in self._plain or self._is_shunned(place):
            return False
        size = flight.size or size_in(flight.version)
        is_small = usual_size <= LARGEST // 2 if size is None else size <= LARGEST
        return is_small and self._express.put(flight)

    def learn(self, flight: Flight) -> None:
        """A flight came home by a thread: is its store one for this lane?"""
        place = _place_of(flight)
        if self._is_missing or place in self._plain or flight.span is not None or flight.options.checksums:
            return
        if self._request(flight) is None or not self._lock.acquire(blocking=False):  # whoever has it learns the same
            return
        try:
            if self._express is None:
                self._express = self._open()
            if self._express is not None:
                self._express.most = self._most  # it may have been widened meanwhile
            self._is_missing = self._express is None
            self._plain[place] = None
            if len(self._plain) > _MAX_KNOWN:
                del self._plain[next(iter(self._plain))]
        finally:
            self._lock.release()

    def _open(self) -> Express[Flight] | None:
        try:
            from sds.storage.express import Express  # here: the first answer need not wait until libcurl is loaded

            express: Express[Flight] = Express(self._board, self._take_home, self._tower.fly, self._most, LARGEST)
            express.start()
            return express
        except Exception as error:  # noqa: BLE001 (no libcurl, no descriptor, no thread: it goes without)
            log.info("plain requests have threads of their own: %s", error)
            return None

    def _is_shunned(self, place: _Place) -> bool:
        return bool(self._shunned) and time.monotonic() < self._shunned.get(place, (0.0, 0.0))[0]

    def _shun(self, flight: Flight) -> None:
        place = _place_of(flight)
        if self._is_shunned(place):
            return  # by what was on its way with this one
        now = time.monotonic()
        until, last_s = self._shunned.pop(place, (0.0, 0.0))
        has_mended = now - until > last_s  # it did well for longer than it was left alone
        length_s = _SHUNNED_S if has_mended else min(2 * last_s, _MAX_SHUNNED_S)
        self._shunned[place] = now + length_s, length_s
        if len(self._shunned) > _MAX_KNOWN:
            del self._shunned[next(iter(self._shunned))]

    def _request(self, flight: Flight) -> Request | None:
        def ask(store: Store, key: str) -> Request | None:
            return store.request(key)

        try:
            return self._stores.once(flight.url, flight.options, ask)
        except Exception:  # noqa: BLE001 (whatever it is: a thread will meet it, and say so)
            return None

    def _board(self, flights: list[Flight]) -> list[Order]:
        """Orders for flights whose turn it is; those that shall not go this way after all have threads."""
        requests: list[Request] = []
        able: list[Flight] = []
        others: list[Flight] = []
        for flight in flights:
            is_welcome = self._tower.has_memory and not self._is_shunned(_place_of(flight))
            request = self._request(flight) if is_welcome else None
            if request is None:
                others.append(flight)
            else:
                able.append(flight)
                requests.append(request)
        attempts = self._tower.board(able)
        for flight in others:
            self._tower.fly(flight)
        return [
            (request, attempt.flight.options.timeout_s, attempt)
            for request, attempt in zip(requests, attempts, strict=True)
            if attempt is not None
        ]

    def _take_home(self, answers: list[Answer]) -> None:
        over: list[tuple[Attempt, Body | Exception]] = []
        for answer in answers:
            outcome = answer.body or answer.error
            if outcome is not None:
                over.append((answer.token, outcome))
                continue
            if answer.is_odd:
                self._shun(answer.token.flight)
            self._tower.hand_over(answer.token, was_sent=answer.was_sent)
        if over:
            self._tower.came(over)


def _place_of(flight: Flight) -> _Place:
    return flight.root, id(flight.options)  # interned: one object for all equal ones, for good
