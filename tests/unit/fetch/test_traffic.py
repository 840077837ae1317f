"""How many requests a store is asked at once, and which of them deserve a second: pure bookkeeping."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sds.errors import FetchError, SdsError
from sds.fetch.cache import Cache, Entry
from sds.fetch.flight import Flight, root_of
from sds.fetch.flights import Flights
from sds.fetch.hedges import Hedges
from sds.fetch.later import Later
from sds.fetch.pace import Pace
from sds.fetch.traffic import Traffic
from sds.storage import StoreOptions
from sds.storage.failures import Verdict


def test_a_complaint_halves_and_successes_raise_again() -> None:
    pace: Pace[int] = Pace()
    assert all(pace.begin(i) for i in range(64)) and pace.limit is None
    pace.slow_down(started_at=1.0, now=2.0)
    assert pace.limit == 32.0
    for _ in range(63):  # all the others were sent before that
        pace.slow_down(started_at=1.5, now=3.0)
    assert pace.limit == 32.0
    pace.slow_down(started_at=2.5, now=4.0)
    assert pace.limit == 16.0
    for _ in range(17):
        pace.succeeded()
    assert 16.9 < pace.limit < 18.0  # a round of successes is worth one more
    for _ in range(100_000):
        pace.succeeded()
    assert pace.limit is None


def test_who_has_to_wait_is_let_in_in_order() -> None:
    pace: Pace[int] = Pace()
    for i in range(4):
        pace.begin(i)
    pace.slow_down(1.0, 2.0)
    assert not pace.begin(10) and not pace.begin(11) and not pace.begin(12)
    assert pace.end() == [] and pace.end() == []  # down to two
    assert pace.end() == [10] and pace.begin(10)
    pace.limit = None
    assert pace.end() == [11, 12] and pace.begin(11) and pace.begin(12)


class Silent:
    """Somebody who asks and is told."""

    def __init__(self) -> None:
        self.num_told = 0

    def landed(self, slot: int, entry: Entry, counts: dict[str, int]) -> None:
        raise AssertionError("nothing was written")

    def failed(self, slot: int, error: SdsError, counts: dict[str, int]) -> None:
        self.num_told += 1


@given(st.lists(st.sampled_from(["ask", "ask too", "come", "complain", "leave"]), min_size=10, max_size=60))
def test_everybody_is_told_whoever_leaves_meanwhile(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str]
) -> None:
    flights = Flights(Cache(tmp_path_factory.getbasetemp() / "flights"), threading.RLock(), lambda: None)
    stayer, leaver = Silent(), Silent()
    num_asked, left, in_air = 0, [], []

    def end(verdict: Verdict | None) -> None:
        flights._settle(in_air.pop(0), verdict, True)

    def begin() -> None:
        while not flights._ready.empty():
            if (attempt := flights._begin(flights._ready.get())) is not None:
                in_air.append(attempt)

    for number, action in enumerate(actions):
        url = f"http://h/{number}"
        if action == "ask":
            flights.join(url, url, None, StoreOptions(), stayer, number)
            num_asked += 1
        elif action == "ask too":
            left.append(flights.join(url, url, None, StoreOptions(), leaver, number))
        elif action == "leave":
            for flight in left:
                flights.leave(flight, leaver)
            left.clear()
        elif in_air:
            error = FetchError("the store wants fewer")
            end(None if action == "come" else Verdict(error, False, is_throttled=True))
        begin()
    for flight in left:
        flights.leave(flight, leaver)
    while in_air:
        end(None)
        begin()
    assert stayer.num_told == num_asked and not flights._flights and flights.num_active == 0


@given(st.lists(st.sampled_from(["begin", "end", "complain", "succeed"]), max_size=200))
def test_nobody_waits_for_ever_and_one_may_always_go(actions: list[str]) -> None:
    pace: Pace[int] = Pace()
    active, waiting, now = 0, 0, 0.0
    for number, action in enumerate(actions):
        now += 1.0
        if action == "begin":
            if pace.begin(number):
                active += 1
            else:
                waiting += 1
        elif action == "end" and active:
            active -= 1
            for each in pace.end():
                waiting -= 1
                assert pace.begin(each)
                active += 1
        elif action == "complain" and active:
            pace.slow_down(now, now)
        elif action == "succeed":
            pace.succeeded()
        assert (pace.num_active, len(pace.waiting)) == (active, waiting)
        assert not waiting or active  # whoever waits waits for somebody


def test_what_is_a_straggler_depends_on_store_and_size() -> None:
    hedges = Hedges()
    assert hedges.patience_s("a", None) is None
    for _ in range(100):
        hedges.took("a", 1000, 0.01)
        hedges.took("a", 4_000_000, 2.0)
    assert hedges.patience_s("a", 1000) == 1.0  # a second is nothing unusual, whatever is usual
    assert hedges.patience_s("a", 4_000_000) == 6.0 == hedges.patience_s("a", None)
    assert hedges.patience_s("b", 1000) is None


def test_one_hedge_in_twenty_requests() -> None:
    hedges = Hedges()
    assert not hedges.spend()
    spent = 0
    for _ in range(1000):
        hedges.took("a", 1000, 0.01)
        spent += hedges.spend()
    assert 45 <= spent <= 50
    for _ in range(1000):
        hedges.took("a", 1000, 0.01)
    assert sum(hedges.spend() for _ in range(100)) == 8  # few in a row
    for i in range(3000):
        hedges.took(f"host-{i}", 1000, 0.01)
    assert len(hedges._known) <= 1000


def test_what_is_due_comes_in_order() -> None:
    later: Later[str] = Later()
    later.put("b", 0.02)
    later.put("c", 60.0)
    later.put("a", 0.0)
    assert later.due(5.0) == ["a"] and later.due(5.0) == ["b"]
    started = time.monotonic()
    assert later.due(0.02) == [] and time.monotonic() - started >= 0.02


def test_traffic_forgets_stores_that_are_not_asked() -> None:
    traffic = Traffic(lambda _: None, 100)
    for i in range(100):
        flight = Flight(i, "k", f"http://host-{i}/x", None, StoreOptions())
        assert traffic.may_begin(flight)
        traffic.end(traffic.take_off(flight), None)
    assert not traffic._paces and not traffic._in_air and traffic.num_active == 100


def test_roots() -> None:
    assert root_of("s3://bucket/a/b") == "s3://bucket" and root_of("https://h:8/x?y") == "https://h:8"
