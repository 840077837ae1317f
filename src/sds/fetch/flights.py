"""Downloads: one flight per object, however many ask; room before bytes; first asked, first served.

Comes in: a key to have. Goes out: the key in the cache, leased for each who asked, or one error for all of them. A
flight that finds no room parks; parked flights take off in the order in which they were asked for, so the earliest
request of every client is served before its later ones, and what is prefetched cannot starve what is needed.

What fails and may pass is tried again later, and holds no thread meanwhile. A small object that takes unusually long is
asked for a second time, and the first answer wins: the thread of the winner goes on in place of the other, which ends
when its answer comes at last.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from sds.errors import FetchError, SdsError
from sds.fetch.bodies import DiskFull
from sds.fetch.cache import Cache, Entry
from sds.fetch.download import WHOLE, Download, Lost
from sds.fetch.flight import Attempt, Flight, Passenger, Waiter, crowded, defect, dropped
from sds.fetch.folder import publish
from sds.fetch.lane import Lane
from sds.fetch.later import Later
from sds.fetch.room import Room
from sds.fetch.spans import Span
from sds.fetch.traffic import Traffic
from sds.fetch.writers import Writers
from sds.storage import Body, StoreOptions, Stores
from sds.storage.failures import Verdict, translate
from sds.storage.retries import pause_before

__all__ = ["Flight", "Flights", "Passenger", "Waiter"]

log = logging.getLogger("sds.fetch")

_MAX_THREADS = 256
_TICK_S = 0.05
_DEFECTS = (KeyError, IndexError, AttributeError, TypeError, NameError, AssertionError)


class Flights:
    """All downloads of one server; owns the download threads.

    `lock` guards this and the cache; `tell` sends what waiters were told, and is called without it.
    """

    def __init__(self, cache: Cache, lock: threading.RLock, tell: Callable[[], None], evict_from: float = 0.0) -> None:
        self._cache = cache
        self._lock = lock
        self._tell = tell
        self._stores = Stores()
        self._flights: dict[str, Flight] = {}
        self._ready: queue.SimpleQueue[Flight] = queue.SimpleQueue()
        self._later: Later[Flight] = Later()
        self._lane = Lane(self._stores, self)
        self._room = Room(cache, self._start, evict_from)
        self._download = Download(cache, lock, self._room, self._warn)
        self._traffic = Traffic(self._start, WHOLE)
        self._writers = Writers(cache, lock, self._settle, self._finish, self._download.forget, tell)
        self.on_warning: Callable[[str], None] = log.warning  # called under the lock
        self._num_threads = 0
        self._num_taken_off = 0
        self._landed_at = 0.0

    @property
    def stores(self) -> Stores:
        """The open stores."""
        return self._stores

    def ensure_threads(self, number: int) -> None:
        """Has at least this many downloads going on at once, from now on."""
        with self._lock:
            if not self._num_threads:
                self._writers.start()
                threading.Thread(target=self._keep_time, name="keep-time", daemon=True).start()
            most = min(max(1, number), _MAX_THREADS)
            self._lane.widen(max(most, self._num_threads))
            while self._num_threads < most:
                thread = threading.Thread(target=self._work, name=f"download-{self._num_threads + 1}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads are to be had: those that there are have to do
                    if not self._num_threads:
                        raise
                    return
                self._num_threads += 1

    def join(
        self,
        key: str,
        url: str,
        version: str | None,
        options: StoreOptions,
        waiter: Waiter,
        slot: int,
        span: Span | None = None,
    ) -> Flight:
        """Waits for an object with whoever does already, or sends a new flight for it. Under the lock."""
        flight = self._flights.get(key)
        if flight is None:
            self._num_taken_off += 1
            flight = self._flights[key] = Flight(self._num_taken_off, key, url, version, options)
            flight.span = span
            self._start(flight)
        flight.waiters.append(Passenger(waiter, slot, options))
        return flight

    def leave(self, flight: Flight, waiter: Waiter) -> None:
        """A waiter no longer wants an object; what nobody wants and is not on its way is dropped. Under the lock."""
        now = self._flights.get(flight.key)  # it may have changed to another flight, when the first one failed
        if now is None:
            return
        now.waiters = [each for each in now.waiters if each.waiter is not waiter]
        if now.is_parked and not now.waiters:
            self._room.parked.desert(now)
            del self._flights[now.key]

    def hurry(self, flight: Flight) -> None:
        """Somebody waits for a flight: it comes before those that nobody waits for yet. Under the lock."""
        self._room.hurry(flight)

    def admit(self) -> None:
        """Lets parked flights take off while there is room. Call under the lock whenever room came free."""
        self._room.admit()

    def starving(self) -> tuple[float, Flight] | None:
        """The first parked flight and since when it waits. Under the lock."""
        flight = self._room.parked.first()
        return None if flight is None or flight.waits_since is None else (flight.waits_since, flight)

    def parked(self) -> list[Flight]:
        """All flights that wait for room, the earliest asked for first. Under the lock."""
        return [flight for _, flight in sorted(self._room.parked, key=lambda item: item[0]) if flight.is_parked]

    @property
    def landed_at(self) -> float:
        """When the last download came into the cache."""
        return self._landed_at

    @property
    def num_active(self) -> int:
        """How many downloads are going on, or about to be tried again."""
        return self._traffic.num_active

    @property
    def is_careful(self) -> bool:
        """Whether nothing is evicted yet: clients of a killed server may be on their way to hold their files again."""
        return self._room.is_careful

    @property
    def usual_size(self) -> int:
        """Bytes that an object takes, as a rule, but never more than there may be."""
        return self._room.usual_size

    @property
    def largest_size(self) -> int:
        """Bytes of the largest object so far."""
        return self._room.largest_size

    def probe(self) -> None:
        """Lets the first parked flight ask for its size, if that was only guessed. Under the lock."""
        self._room.probe()

    def ask_sizes(self, flights: Sequence[Flight]) -> bool:
        """Lets parked flights ask for their sizes, where those were only guessed; whether any was. Under the lock."""
        return self._room.ask_sizes(flights)

    def give_up(self, flight: Flight, waiter: Waiter, error: SdsError) -> None:
        """Tells one waiter of a parked flight that there will be no room. Under the lock."""
        slots = [each.slot for each in flight.waiters if each.waiter is waiter]
        self.leave(flight, waiter)
        for slot in slots:
            waiter.failed(slot, error, {})
        self.admit()

    # ------------------------------------------------------------------------------------------------ the threads

    def _start(self, flight: Flight) -> None:
        """Has a flight begin when its turn comes."""
        if not self._lane.take(flight, self._room.usual_size):
            self._ready.put(flight)

    def _work(self) -> None:
        while True:
            flight = self._ready.get()
            if self._lane.take(flight, self._room.usual_size):  # its store has proved to be plain since
                continue
            attempt = self._begin(flight)
            if attempt is not None and not self._fly(attempt):
                return

    def _begin(self, flight: Flight) -> Attempt | None:
        """A request for a flight; None if nobody wants it, or it has to wait: for room, or for its store."""
        with self._lock:
            if not self._traffic.may_begin(flight):
                return None
            if not flight.waiters:  # everybody left before it began
                self._finish(flight, None)
            elif not self._room.may_begin(flight):
                self._park(flight)
            else:
                return self._traffic.take_off(flight)
            self._traffic.stay(flight)  # its place is the next one's: the store may have let in nobody else
            return None

    def _fly(self, attempt: Attempt) -> bool:
        """Makes a request; whether this thread is needed further."""
        verdict: Verdict | None = None
        has_room = True
        try:
            has_room = self._download.run(attempt, self._stores)
        except Exception as error:  # noqa: BLE001 (a thread boundary: whatever it is, nobody is left waiting)
            verdict = _judge(attempt.flight, error)
        if not self._is_for_writers(attempt, verdict, has_room):
            is_needed = self._come_home(attempt, verdict, has_room)
            self._tell()
            return is_needed
        self._writers.put(attempt)
        self._lane.learn(attempt.flight)
        return True

    def _is_for_writers(self, attempt: Attempt, verdict: Verdict | None, has_room: bool) -> bool:
        """Whether a small body is here that nobody else can win: the rest is the writers'.

        64 threads at one lock would halve the rate.
        """
        is_body = verdict is None and has_room and attempt.body is not None
        if is_body:
            attempt.is_waiting, attempt.ended_at = True, time.monotonic()
        return is_body and not attempt.is_hedge and attempt.flight.in_air == [attempt]

    def _come_home(self, attempt: Attempt, verdict: Verdict | None, has_room: bool) -> bool:
        """Sees to what became of a request; whether the thread that made it is needed further."""
        with self._lock:
            is_needed = self._settle(attempt, verdict, has_room)
        if attempt.has_won and attempt.body is not None:
            self._writers.put(attempt)
        return is_needed

    def _settle(self, attempt: Attempt, verdict: Verdict | None = None, has_room: bool = True) -> bool:
        flight = attempt.flight
        self._traffic.end(attempt, verdict)
        takes_over = False
        if attempt in flight.in_air:
            flight.in_air.remove(attempt)
            if verdict is None and has_room:
                takes_over = self._win(attempt)
            elif not flight.in_air:
                self._lose(flight, verdict)
            # else the other one may yet come
        if not attempt.has_won or attempt.body is None:  # a large one has been written by now
            self._download.forget(attempt)
        return takes_over if attempt.is_hedge else not attempt.is_replaced

    def _win(self, attempt: Attempt) -> bool:
        """The first complete answer is taken; whether this thread takes the place of one that still waits.

        An attempt whose body is here already waits for nothing: its thread goes on.
        """
        flight = attempt.flight
        attempt.has_won = True
        others, flight.in_air = flight.in_air, []
        for other in others:
            other.is_replaced = other.ended_at is None
            self._download.forget(other)
        if attempt.body is None:  # it is in the part file
            self._finish(flight, None)
        else:
            self._traffic.came(attempt)
        return any(other.is_replaced and not (other.is_hedge or other.is_express) for other in others)

    def _lose(self, flight: Flight, verdict: Verdict | None) -> None:
        """The last request in the air brought nothing: there is no room, or it failed."""
        if verdict is None and flight.waiters:
            self._park(flight)
            self.admit()
            return
        # a body that disagrees with its checksum is worth a second look, whatever the options say
        num_retries = max(flight.options.num_retries, 1 if flight.disagreed else 0)
        if verdict is not None and verdict.may_pass and flight.waiters and flight.num_retries < num_retries:
            self._later.put(flight, pause_before(flight.num_retries, verdict.retry_after_s))
            flight.num_retries += 1
            flight.counts["retries"] += 1
        else:
            self._finish(flight, None if verdict is None else verdict.error)

    def _keep_time(self) -> None:
        """Sends off what is due to be tried again, and second requests for stragglers."""
        while True:
            for flight in self._later.due(_TICK_S):
                self._start(flight)
            with self._lock:
                hedges = self._traffic.hedge()
            for attempt in hedges:
                try:
                    threading.Thread(target=self._fly_hedge, args=(attempt,), name="hedge", daemon=True).start()
                except RuntimeError:  # no more threads are to be had: the first request is left to itself
                    with self._lock:
                        self._settle(attempt, Verdict(crowded(attempt.flight), True), True)
                    self._tell()

    def _fly_hedge(self, attempt: Attempt) -> None:
        if self._fly(attempt):
            self._work()

    def _warn(self, message: str) -> None:
        with self._lock:
            self.on_warning(message)

    # -------------------------------------------------------------------------------------- for the lane (a Tower)

    def board(self, flights: list[Flight]) -> list[Attempt | None]:
        """An attempt for each flight; None for one that has to wait."""
        with self._lock:
            attempts = [self._begin(flight) for flight in flights]
            for attempt in attempts:
                if attempt is not None:
                    attempt.is_express = True
            return attempts

    def came(self, attempts: list[tuple[Attempt, Body | Exception]]) -> None:
        """Attempts that are over; what failed in the lane has a thread when it is tried again."""
        bodies: list[Attempt] = []
        try:
            for attempt, outcome in attempts:
                verdict: Verdict | None = None
                has_room = True
                try:
                    if isinstance(outcome, Exception):
                        raise outcome
                    has_room = self._download.take(attempt, outcome)
                except Exception as error:  # noqa: BLE001 (a thread boundary, as above)
                    verdict = _judge(attempt.flight, error)
                if self._is_for_writers(attempt, verdict, has_room):
                    bodies.append(attempt)
                    continue
                if verdict is not None and not isinstance(verdict.error, Lost):
                    attempt.flight.needs_thread = True
                self._come_home(attempt, verdict, has_room)
        finally:
            self._writers.put(*bodies)
        self._tell()

    def hand_over(self, attempt: Attempt, *, was_sent: bool) -> None:
        """An attempt that takes more than a plain client: its flight has a thread now, unless another one is on it."""
        flight = attempt.flight
        with self._lock:
            flight.counts["requests"] -= not was_sent
            flight.needs_thread = True
            self._traffic.stop(attempt)
            if attempt in flight.in_air:
                flight.in_air.remove(attempt)
                if not flight.in_air:
                    self._ready.put(flight)

    def fly(self, flight: Flight) -> None:
        """A flight that did not begin, and has a thread from now on."""
        flight.needs_thread = True
        self._ready.put(flight)

    @property
    def has_memory(self) -> bool:
        """Whether there is memory for more bodies."""
        return not self._download.budget.is_spent

    # ------------------------------------------------------------------------------------------- under the lock

    def _park(self, flight: Flight) -> None:
        self._traffic.rest(flight)
        self._room.park(flight)

    def _waits_for_disk(self, flight: Flight) -> bool:
        """A full disk is like a full cache: a flight parks, unless nothing of ours could make room."""
        self._room.give_back(flight)
        if not self._cache.note_full_disk():
            return False
        self._park(flight)
        self.admit()
        return True

    def _finish(self, flight: Flight, error: SdsError | None) -> None:
        """Publishes what was written, tells everybody who waits, and lets the next ones take off."""
        self._traffic.rest(flight)
        if isinstance(error, DiskFull) and flight.waiters and self._waits_for_disk(flight):
            return
        del self._flights[flight.key]
        entry: Entry | None = None
        if flight.part and flight.reserved is not None and error is None:
            try:
                if not flight.path:
                    flight.path = publish(flight.part, flight.key, flight.reserved, flight.suffix)
                entry = self._cache.enter(flight.key, flight.part, flight.path, flight.reserved)
                flight.counts["bytes_downloaded"] += flight.reserved
                flight.part, flight.reserved = "", None
            except SdsError as unusable:
                error = unusable
        self._room.give_back(flight)
        counts, waiters = flight.counts, flight.waiters
        if isinstance(error, FetchError):  # others may have better credentials or more patience
            for waiter, slot, options in waiters:
                if options is not flight.options:
                    self.join(flight.key, flight.url, flight.version, options, waiter, slot, flight.span)
            waiters = [each for each in waiters if each.options is flight.options]
        for waiter, slot, _ in waiters:
            if entry is None:
                waiter.failed(slot, error or dropped(flight), counts)
            else:
                waiter.landed(slot, self._cache.lease(flight.key), counts)
            counts = {"hits": 1} if entry is not None else {}  # whoever joined needed no download of its own
        if entry is not None:
            self._landed_at = time.monotonic()
            self._cache.release(entry)
        self.admit()


def _judge(flight: Flight, error: Exception) -> Verdict:
    if isinstance(error, Lost):
        return Verdict(error, True)
    if isinstance(error, _DEFECTS):
        return Verdict(defect(flight, error), False)
    return translate(error, flight.url, is_anonymous=flight.options.is_anonymous(flight.url))
