"""The lane, without a network: which flights it takes, and that none is lost between it and the threads."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sds.fetch import lane as lane_module
from sds.fetch.cache import Cache
from sds.fetch.flight import Attempt, Flight
from sds.fetch.flights import Flights
from sds.fetch.lane import LARGEST, Lane
from sds.storage import Request, StoreOptions
from sds.storage import express as express_module
from sds.storage.ride import Answer

URL = "https://h/x"
PLAIN = Request(URL)


class Place:
    """A store that says how to get things; stands for `Stores` too."""

    def __init__(self, request: Request | None = PLAIN) -> None:
        self.answer = request

    def once(self, url: str, options: StoreOptions, verb: Any) -> Any:
        return verb(self, url)

    def request(self, key: str) -> Request | None:
        return self.answer


class Rides:
    """Takes what it is given, and does nothing."""

    made: Rides

    def __init__(self, *given: Any) -> None:
        self.board, self.done, self.back, self.most, _ = given
        self.taken: list[Flight] = []
        Rides.made = self

    def start(self) -> None:
        pass

    def put(self, flight: Flight) -> bool:
        self.taken.append(flight)
        return True


class Noted:
    """A tower that takes notes."""

    has_memory = True

    def __init__(self) -> None:
        self.flown: list[Flight] = []
        self.handed: list[Attempt] = []

    def board(self, flights: list[Flight]) -> list[Attempt | None]:
        return [Attempt(flight) for flight in flights]

    def came(self, attempts: list[Any]) -> None:
        raise AssertionError("nothing came")

    def hand_over(self, attempt: Attempt, *, was_sent: bool) -> None:
        self.handed.append(attempt)

    def fly(self, flight: Flight) -> None:
        self.flown.append(flight)


def flight(version: str | None = None, options: StoreOptions = StoreOptions()) -> Flight:  # noqa: B008 (one for all)
    return Flight(1, "k", URL, version, options)


@pytest.fixture
def rides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(express_module, "Express", Rides)


@pytest.mark.usefixtures("rides")
def test_flights_to_proved_places_are_taken() -> None:
    lane = Lane(Place(), Noted())  # type: ignore[arg-type]
    lane.widen(7)
    assert not lane.take(flight(), 1000)
    lane.learn(flight())
    assert lane.take(flight(), 1000) and Rides.made.most == 7
    assert not lane.take(flight(), LARGEST)  # objects are large as a rule
    assert lane.take(flight("1000-1.000000"), LARGEST) and not lane.take(flight(f"{2 * LARGEST}-1.000000"), 1000)
    assert not lane.take(flight(options=StoreOptions(timeout_s=5.0)), 1000)  # other options, another place
    part, probe, odd = flight(), flight(), flight()
    part.span, probe.may_probe, odd.needs_thread = (0, 5), True, True
    assert not any(lane.take(each, 1000) for each in (part, probe, odd))


@pytest.mark.usefixtures("rides")
@pytest.mark.parametrize("kind", ["part", "checksums", "unsigned"])
def test_not_everything_proves_a_place(kind: str) -> None:
    lane = Lane(Place(None if kind == "unsigned" else Request(URL)), Noted())  # type: ignore[arg-type]
    first = flight(options=StoreOptions({"checksums": True}) if kind == "checksums" else StoreOptions())
    first.span = (0, 5) if kind == "part" else None
    lane.learn(first)
    assert not lane.take(flight(options=first.options), 1000)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), OSError("no descriptor"), None])
def test_what_keeps_the_lane_closed_hurts_nobody(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise error or express_module.Unavailable("no libcurl")

    monkeypatch.setattr(express_module, "Express", fail)
    lane = Lane(Place(), Noted())  # type: ignore[arg-type]
    for _ in range(3):
        lane.learn(flight())
    assert not lane.take(flight(), 1000)


@pytest.mark.usefixtures("rides")
def test_an_odd_answer_shuns_its_place_and_what_waits_has_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    tower = Noted()
    lane = Lane(Place(), tower)  # type: ignore[arg-type]
    lane.learn(flight())
    (order,) = Rides.made.board([flight()])
    Rides.made.done([Answer(order[2])])  # too large, say: this one alone
    assert lane.take(flight(), 1000) and tower.handed == [order[2]]
    Rides.made.done([Answer(order[2], is_odd=True)])
    assert not lane.take(flight(), 1000)
    waiting = [flight(), flight()]
    assert Rides.made.board(waiting) == [] and tower.flown == waiting  # nothing of them has begun
    later = time.monotonic() + 61.0
    monkeypatch.setattr(lane_module.time, "monotonic", lambda: later)
    assert lane.take(flight(), 1000)
    Rides.made.done([Answer(order[2], is_odd=True)])
    later += 61.0
    assert not lane.take(flight(), 1000)  # twice as long the second time
    later += 61.0
    assert lane.take(flight(), 1000)


@pytest.mark.usefixtures("rides")
@pytest.mark.parametrize("reason", ["request", "memory"])
def test_flights_that_cannot_go_by_the_lane_now_have_threads(reason: str) -> None:
    tower, place = Noted(), Place()
    lane = Lane(place, tower)  # type: ignore[arg-type]
    lane.learn(flight())
    if reason == "request":
        place.answer = None  # its keys have to be renewed
    else:
        tower.has_memory = False
    waiting = [flight(), flight()]
    assert Rides.made.board(waiting) == [] and tower.flown == waiting


# --------------------------------------------------------------------------------------------- the other side of it


class Waiting:
    def __init__(self) -> None:
        self.told: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def landed(self, slot: int, entry: Any, counts: dict[str, int]) -> None:
        self.told.put((Path(entry.path).read_bytes(), counts["requests"]))

    def failed(self, slot: int, error: Exception, counts: dict[str, int]) -> None:
        self.told.put(error)


def test_what_is_handed_over_is_brought_by_a_thread_and_none_is_lost(tmp_path: Path) -> None:
    from sds.storage import Body

    class Store:
        def once(self, url: str, options: StoreOptions, verb: Any) -> Any:
            return verb(self, url)

        def open(self, key: str, span: Any = None) -> Body:
            return Body(5, "v", iter([b"hello"]))

    lock = threading.RLock()
    flights = Flights(Cache(tmp_path), lock, lambda: None)
    flights._stores = Store()  # type: ignore[assignment]
    waiter = Waiting()
    with lock:
        first = flights.join("a" * 32, URL, None, StoreOptions(), waiter, 0)
    assert flights._ready.get() is first
    (attempt,) = flights.board([first])
    assert attempt is not None and attempt.is_express
    flights.hand_over(attempt, was_sent=True)
    flights.ensure_threads(1)
    assert waiter.told.get(timeout=10) == (b"hello", 2)
    # one that came too late: another was first, and its flight is over
    with lock:
        second = flights.join("b" * 32, URL, None, StoreOptions(), waiter, 0)
    assert waiter.told.get(timeout=10) == (b"hello", 1)
    late = flights._traffic.take_off(second)
    with lock:
        flights._traffic.may_begin(second)
        flights._traffic.rest(second)
    flights.hand_over(late, was_sent=True)
    assert flights._ready.empty() and flights._traffic.num_active == 0
    with lock:
        flights.join("c" * 32, URL, None, StoreOptions(), waiter, 0)
    assert waiter.told.get(timeout=10) == (b"hello", 1)  # the thread is still there


def test_memory_of_bodies_is_given_back_however_they_end(tmp_path: Path) -> None:
    from sds.storage import Body

    lock = threading.RLock()
    flights = Flights(Cache(tmp_path, limit=8), lock, lambda: None)
    flights._room._usual_size = 4.0
    waiter = Waiting()
    budget = flights._download.budget

    def begun(key: str) -> Attempt:
        with lock:
            flight = flights.join(key * 32, URL, None, StoreOptions(), waiter, 0)
        assert flights._ready.get() is flight
        (attempt,) = flights.board([flight])
        assert attempt is not None
        return attempt

    def body(size: int) -> Body:
        return Body(size, "v", iter([bytes(size)]))

    first, lost, large = begun("a"), begun("b"), None
    lost.flight.in_air = []  # another attempt was first
    flights.came([(lost, body(4)), (first, body(4))])
    assert budget._taken == 4 and not lost.flight.needs_thread  # the other one waits for its writer
    flights.ensure_threads(0)
    assert waiter.told.get(timeout=10) == (bytes(4), 1)
    with lock:
        flights._room.give_back(lost.flight)
    large = begun("c")
    flights.came([(large, body(100))])  # larger than all there may be
    assert "cache_limit" in str(waiter.told.get(timeout=10)) and budget._taken == 0
