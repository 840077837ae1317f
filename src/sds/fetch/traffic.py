"""Traffic: which requests are in the air, how many each store is asked at once, and which deserve a second one.

Comes in: that a request begins, or has ended, and how. Goes out: whether one may begin, and second requests for
stragglers. Not thread-safe: the server locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sds.fetch.flight import Attempt, Flight
from sds.fetch.hedges import Hedges
from sds.fetch.pace import Pace
from sds.storage.failures import Verdict

__all__ = ["Traffic"]

_MAX_HEDGES = 64  # second requests in the air, and first ones that were given up and have not ended


class Traffic:
    """All requests of one server; `start` is called with flights that need wait for their store no longer."""

    def __init__(self, start: Callable[[Flight], None], whole: int) -> None:
        self.num_active = 0  # flights on their way, or about to be tried again
        self._start = start
        self._whole = whole  # objects above this are asked for once
        self._in_air: dict[Attempt, None] = {}
        self._paces: dict[str, Pace[Flight]] = {}
        self._hedges = Hedges()

    def may_begin(self, flight: Flight) -> bool:
        """Whether its store may be asked for one more; if not, `start` is called when it may."""
        pace = self._paces.get(flight.root)
        if pace is None:
            pace = self._paces[flight.root] = Pace()
        return pace.begin(flight)

    def stay(self, flight: Flight) -> None:
        """It might have begun, and does not."""
        pace = self._paces[flight.root]
        for waiting in pace.end():
            self._start(waiting)
        if pace.is_idle:  # an index may name millions of hosts
            del self._paces[flight.root]

    def take_off(self, flight: Flight, *, is_hedge: bool = False) -> Attempt:
        """A request begins."""
        attempt = Attempt(flight, is_hedge=is_hedge)
        flight.in_air.append(attempt)
        if flight.began_at is None:
            flight.began_at = attempt.started_at
        flight.counts["requests"] += 1
        self._in_air[attempt] = None
        if not flight.is_active:
            flight.is_active = True
            self.num_active += 1
        return attempt

    def end(self, attempt: Attempt, verdict: Verdict | None) -> None:
        """A request has ended, well (None) or not."""
        del self._in_air[attempt]
        pace = self._paces[attempt.flight.root]
        if verdict is None:
            pace.succeeded()
        elif verdict.is_throttled:
            pace.slow_down(attempt.started_at, time.monotonic())
        self.stay(attempt.flight)

    def stop(self, attempt: Attempt) -> None:
        """A request has ended, and says nothing of its store."""
        del self._in_air[attempt]
        self.stay(attempt.flight)

    def rest(self, flight: Flight) -> None:
        """A flight is no longer on its way; answers that come yet are nobody's."""
        flight.in_air = []
        if flight.is_active:
            flight.is_active = False
            self.num_active -= 1

    def came(self, attempt: Attempt) -> None:
        """A small body is here: what is usual is learnt from it."""
        flight = attempt.flight
        ended_at = time.monotonic() if attempt.ended_at is None else attempt.ended_at
        self._hedges.took(flight.root, flight.size or 0, ended_at - attempt.started_at)

    def hedge(self) -> list[Attempt]:
        """Second requests, for small objects that take unusually long."""
        now = time.monotonic()
        found: list[Attempt] = []
        num_spare = sum(each.is_hedge or each.is_replaced for each in self._in_air)
        for attempt in list(self._in_air):
            if num_spare + len(found) < _MAX_HEDGES and self._is_straggler(attempt, now) and self._hedges.spend():
                self._paces[attempt.flight.root].num_active += 1
                attempt.flight.counts["hedges"] += 1
                found.append(self.take_off(attempt.flight, is_hedge=True))
        return found

    def _is_straggler(self, attempt: Attempt, now: float) -> bool:
        flight = attempt.flight
        patience_s = self._hedges.patience_s(flight.root, flight.size)
        if patience_s is None or now - attempt.started_at < patience_s or attempt.is_waiting:
            return False
        is_small = flight.size is None or flight.size <= self._whole
        is_alone = flight.in_air == [attempt] and bool(flight.waiters)
        return is_small and is_alone and self._paces[flight.root].limit is None
