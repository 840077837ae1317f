"""Who waits, who pauses, and when that is said."""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from pathlib import Path
from typing import Any, cast

import pytest

from sds.errors import FetchTimeout
from sds.events import Tally
from sds.fetch.cache import Cache
from sds.fetch.consumer import Consumer, Crew
from sds.fetch.flight import Flight
from sds.fetch.reports import describe, too_small
from sds.fetch.session import Session
from sds.fetch.watchdog import Watchdog
from sds.storage import StoreOptions


def test_nobody_is_paused_until_somebody_takes_batches() -> None:
    consumer = Consumer()
    assert not consumer.is_paused([])
    with consumer.asking():
        assert not consumer.is_paused([])
    assert consumer.is_paused([])
    assert not consumer.is_paused([threading.get_ident()])  # it waits for something else: that is no pause
    consumer.end()
    assert not consumer.is_paused([])


ME = threading.get_ident()  # the thread of the tests


def test_threads_that_hold_files_and_wait_for_more_stand_still() -> None:
    consumer = Consumer()
    assert consumer.standstill([], []) == consumer.standstill([1, 2], [1, 2, 3]) is not None
    assert consumer.standstill([1, 2], [1]) is None  # one of them works, or waits for something else
    assert consumer.standstill([None], [1]) is None  # nobody said who takes the batches


def test_who_takes_batches_waits_in_vain_only_if_all_who_make_them_wait_for_files() -> None:
    consumer, crew = Consumer(), Crew()
    consumer.employ(crew)
    with crew.working():
        assert consumer.standstill([None], [ME]) is None  # it does something else
        with consumer.asking():
            assert consumer.standstill([None], []) is None  # this thread decodes, or looks what comes next
            before = consumer.standstill([None, ME], [ME])
            assert before is not None
            assert consumer.standstill([7], [ME]) is None  # a thread that nobody knows
            with crew.resting():
                assert consumer.standstill([None], [ME]) is None  # nobody works, for a moment
            assert consumer.standstill([None, ME], [ME]) not in (before, None)  # something was done in between
            before = consumer.standstill([None], [ME])
        with consumer.asking():
            assert consumer.standstill([None], [ME]) not in (before, None)  # it had a batch
            consumer.employ(Crew())
            assert consumer.standstill([None], [ME]) is None  # two loaders: whose batch is it?


def test_threads_at_work_are_enough_whoever_holds_the_files() -> None:
    consumer, crew = Consumer(), Crew()
    consumer.employ(crew)
    with crew.working():
        assert consumer.standstill([1], [1]) is None  # this one may finish a batch, and with it what others hold
        assert consumer.standstill([1], [1, ME]) is not None
    consumer.dismiss(crew)
    assert consumer.standstill([1], [1]) is not None


def test_what_is_held_to_be_kind_is_let_go_of_and_not_kept_alive() -> None:
    class Kind:
        num_asked = 0

        def let_go(self) -> None:
            self.num_asked += 1

    consumer, kind = Consumer(), Kind()
    consumer.give_way()
    consumer.spare(kind.let_go)
    consumer.give_way()
    assert kind.num_asked == 1
    alive = weakref.ref(kind)
    del kind
    assert alive() is None, "or a dataset that nobody has any more would keep its connection"
    consumer.give_way()


def test_a_consumer_elsewhere_is_asked() -> None:
    consumer, answers = Consumer(), [True, False]
    consumer.follow(lambda: answers.pop(0))
    assert consumer.is_paused([]) and not consumer.is_paused([])


def test_an_error_while_asking_is_no_pause_afterwards_either() -> None:
    consumer = Consumer()
    with pytest.raises(KeyError), consumer.asking():
        raise KeyError
    consumer.end()
    assert not consumer.is_paused([])


def test_a_watchdog_barks_at_doubling_intervals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sds.fetch")
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watchdog = Watchdog("s3://b/k", 30.0, 600.0)
    barked = []
    for second in range(600):
        now[0] = 100.0 + second
        if watchdog.is_due:
            watchdog.bark("it is connecting")
            barked.append(second)
    assert barked == [31, 63, 127, 255, 511] and not watchdog.is_over
    assert "waited 31 s for s3://b/k (rank 0, stage fetch): it is connecting" in caplog.text
    now[0] = 701.0
    assert watchdog.is_due and watchdog.is_over
    with pytest.raises(FetchTimeout, match="no answer in 601 s: s3://b/k: it is connecting") as caught:
        watchdog.bark("it is connecting")
    assert caught.value.stage == "fetch" and caught.value.rank == 0 and caught.value.hint


def test_time_in_a_pause_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watchdog = Watchdog("u", 30.0, math.inf)
    now[0] = 1000.0
    assert watchdog.is_due
    watchdog.rest()
    assert not watchdog.is_due
    now[0] = 1031.0
    assert watchdog.is_due


def test_waits_for_room_are_in_the_words_of_stats() -> None:
    tally = Tally()
    tally.count("waits", 3)
    tally.add_wait("room", 1.25)
    tally.add_wait("room", 0.25)
    assert "3 waits for room (1.5 s)" in str(tally.stats())
    assert "waits for room" not in str(Tally().stats())


def flight(size: int = 10) -> Flight:
    one = Flight(1, "k", "http://h/x", None, StoreOptions())
    one.size = one.wanted = size
    return one


def test_waits_side_by_side_are_counted_once() -> None:
    """600 downloads that wait for the same second have not waited for ten minutes."""
    session, flights = Session(cast("Any", None), cast("Any", None)), []
    for since, until in ((10.0, 12.0), (10.5, 13.0), (11.0, 13.0), (20.0, 21.0)):
        each = flight()
        each.waits_since, each.waited_s, each.left_at = since, until - since, until
        flights.append(each)
    assert session.add_waits(flights[1:3]) == 2.5
    assert session.add_waits([flights[0], flights[3]]) == 1.0


def test_a_wait_for_room_does_not_begin_anew_when_it_is_tried_in_between(tmp_path: Path) -> None:
    one, now = flight(), time.monotonic()
    one.is_parked, one.waits_since, one.parked_at = True, now - 100.0, now - 5.0
    assert "room in the cache for 100 s" in describe([one], Cache(tmp_path, limit=20))


def test_the_limit_that_is_named_is_for_now_and_a_full_disk_says_how_much_is_missing(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=2000)
    error = too_small(cache, flight(), 5.0, 1, wanted=3000, largest=700)
    assert error.hint.startswith("cache_limit of at least 3000 bytes for what is asked for now; later batches of")
    assert "700 bytes a file" in error.hint
    assert cache.reserve(1500) and cache.note_full_disk() and cache.room == 1500
    hint = too_small(cache, flight(), 5.0, 1, wanted=3000).hint
    assert hint.startswith("free some disk (at least 1.5 KB)") and "cache_limit" not in hint
