import dataclasses
import threading
import time

import pytest

from sds.events import STAGES, Event, Stats, Tally


class Listener:
    def __init__(self):
        self.events = []

    def emit(self, event):
        self.events.append(event)


def test_nothing_happened_yet():
    stats = Tally().stats()
    assert stats == Stats()
    assert (stats.rows_per_s, stats.bytes_per_s, stats.hit_rate) == (0.0, 0.0, 0.0)
    assert stats.time_to_first_batch is None
    assert stats.bottleneck == "consumer"


def test_counts_add_up():
    tally = Tally()
    tally.count("hits")
    tally.count("hits", 3)
    tally.count("misses")
    tally.delivered(4)
    tally.delivered(1, batches=0)
    stats = tally.stats()
    assert (stats.hits, stats.misses, stats.samples, stats.batches) == (4, 1, 5, 1)
    assert stats.hit_rate == 0.8


def test_the_clock_runs_from_begin_to_the_last_delivery():
    tally = Tally()
    tally.begin()
    time.sleep(0.02)
    tally.delivered(10)
    time.sleep(0.02)
    tally.begin()  # it runs already
    tally.delivered(10)
    time.sleep(0.02)
    stats = tally.stats()
    assert 0.02 <= stats.time_to_first_batch < stats.wall_s
    assert stats.wall_s >= 0.04
    assert tally.stats().wall_s == stats.wall_s
    assert stats.rows_per_s == pytest.approx(20 / stats.wall_s)


def test_a_probe_hears_each_piece_of_work():
    listener = Listener()
    tally = Tally(listener)
    start = time.perf_counter()
    time.sleep(0.01)
    tally.add_busy("decode", start, subject="a.jpg", num_bytes=12)
    (event,) = listener.events
    assert event == Event("decode", start, event.duration_s, "a.jpg", 12)
    assert event.duration_s >= 0.01
    assert tally.stats().busy_s == {"decode": event.duration_s}


def test_without_a_probe_durations_are_summed_all_the_same():
    tally = Tally()
    for _ in range(3):
        tally.add_busy("decode", time.perf_counter() - 1)
    assert tally.stats().busy_s["decode"] == pytest.approx(3, abs=0.1)


def test_waiting_counts_even_when_it_ends_badly():
    tally = Tally()
    with pytest.raises(KeyError), tally.waiting("fetch"):
        time.sleep(0.01)
        raise KeyError
    assert tally.stats().wait_s["fetch"] >= 0.01


def test_what_is_drained_elsewhere_is_merged_here():
    here, there = Tally(), Tally()
    for tally in (here, there):
        tally.count("requests", 2)
        tally.add_busy("decode", time.perf_counter() - 1)
        with tally.waiting("fetch"):
            pass
    here.merge(there.drain())
    assert here.stats().requests == 4
    assert type(here.stats().requests) is int
    assert here.stats().busy_s["decode"] == pytest.approx(2, abs=0.1)
    assert there.stats() == Stats()
    here.merge(there.drain())
    assert here.stats().requests == 4


def test_many_threads_lose_nothing():
    tally = Tally()

    def work():
        for _ in range(2000):
            tally.count("hits")
            tally.delivered(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tally.stats().hits, tally.stats().samples) == (8000, 8000)


def test_stats_are_frozen_and_stay_as_they_were():
    tally = Tally()
    tally.add_busy("decode", time.perf_counter())
    before = tally.stats()
    busy = dict(before.busy_s)
    tally.add_busy("decode", time.perf_counter() - 5)
    assert before.busy_s == busy
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.samples = 3


@pytest.mark.parametrize(
    ("wait_s", "busy_s", "bottleneck"),
    [
        ({"consumer": 0.0}, {"decode": 9.0}, "consumer"),  # a loader's caller never waited
        ({"consumer": 0.5, "fetch": 20.0}, {"decode": 9.0}, "consumer"),  # a twentieth of the time
        ({"consumer": 5.0, "fetch": 6.0}, {"decode": 3.0}, "fetch"),
        ({"consumer": 5.0, "fetch": 2.0}, {"decode": 3.0}, "decode"),
        ({"consumer": 5.0}, {"decode": 1.0, "transform": 3.0, "collate": 2.0}, "transform"),
        ({"consumer": 5.0}, {"collate": 2.0, "device": 3.0}, "device"),
        ({"fetch": 6.0}, {"decode": 3.0}, "fetch"),  # bare iteration: the caller does the work itself
        ({}, {"decode": 9.0}, "decode"),
        ({"fetch": 0.3}, {"decode": 0.3}, "consumer"),
    ],
)
def test_the_bottleneck_and_its_knob(wait_s, busy_s, bottleneck):
    stats = Stats(samples=100, wall_s=10.0, wait_s=wait_s, busy_s=busy_s)
    assert stats.bottleneck == bottleneck
    assert bottleneck in STAGES
    (line,) = [line for line in str(stats).splitlines() if line.startswith("bottleneck: ")]
    assert line.startswith(f"bottleneck: {bottleneck} (")


def test_stats_read_well():
    stats = Stats(
        samples=100, batches=10, bytes_downloaded=2_000_000, requests=90, retries=1, hits=30, misses=90, wall_s=4.0,
        time_to_first_batch=0.25, busy_s={"decode": 1.5, "collate": 0.001}, wait_s={"consumer": 0.1},
    )  # fmt: skip
    assert str(stats).splitlines() == [
        "samples: 100 in 4.00 s (25/s), first batch after 0.25 s",
        "downloaded: 2 MB (500 KB/s) in 90 requests, 1 retries, 0 hedges",
        "cache: 30 hits, 90 misses (25.0% hit rate), 0 evictions",
        "failures: 0, stand-ins: 0, dropped by transforms: 0",
        "busy: decode 1.50 s",
        "bottleneck: consumer (none here: the training step is what takes the time)",
    ]
