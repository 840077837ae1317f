import dataclasses
import threading
import time

import pytest

from sds.events import STAGES, Event, Recorder, Stats, Tally
from sds.stats import Slow, Traffic, format_rate, merged_stats


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
    assert "bottleneck: consumer (nothing was handed out yet)" in str(stats), "nobody knows what takes the time"


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
        ({"consumer": 5.0, "loader": 4.0}, {"device": 3.0}, "loader"),  # a prefetcher around a loader without stats
        ({"consumer": 5.0, "loader": 2.0}, {"device": 3.0}, "device"),
        ({"consumer": 0.5, "loader": 9.0}, {}, "consumer"),
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


@pytest.mark.parametrize(
    ("crew", "wait_s", "busy_s", "bottleneck", "knob"),
    [
        # six seconds of decoding are two of the clock, when three threads share them
        ({"num_threads": 3}, {"fetch": 1.0}, {"decode": 6.0, "collate": 4.0}, "collate", "use num_workers > 0"),
        ({"num_threads": 1}, {"fetch": 1.0}, {"decode": 6.0, "collate": 4.0}, "decode", "raise num_threads (now 1)"),
        # a worker does one after the other, so its sums compare as they are
        ({"num_workers": 3}, {"fetch": 1.0}, {"decode": 6.0, "collate": 4.0}, "decode", "raise num_workers (now 3)"),
        ({"num_workers": 2}, {"fetch": 9.0}, {"decode": 6.0}, "fetch", "raise prefetch"),
        ({"num_workers": 2}, {"fetch": 9.0, "room": 8.0}, {"decode": 6.0}, "fetch", "raise cache_limit"),
        # all four wait for the same room
        ({"num_threads": 4}, {"fetch": 36.0, "room": 8.0}, {"decode": 6.0}, "fetch", "raise cache_limit"),
        ({"num_workers": 8}, {}, {"transform": 8.0, "device": 2.0}, "device", "pin_memory"),
        ({"num_threads": 4}, {}, {"transform": 8.0}, "transform", "use num_workers > 0 for Python-heavy"),
    ],
)
def test_what_threads_and_workers_share_is_divided(crew, wait_s, busy_s, bottleneck, knob):
    stats = Stats(wall_s=10.0, wait_s={"consumer": 5.0, **wait_s}, busy_s=busy_s, **crew)
    assert stats.bottleneck == bottleneck
    assert knob in stats.knob


def test_the_start_is_no_bottleneck_unless_there_is_nothing_else():
    later = {"wait_s": {"consumer": 3.0, "startup": 2.9, "fetch": 2.0}, "busy_s": {"consumer": 7.0}}
    assert Stats(wall_s=10.0, num_threads=2, **later).bottleneck == "consumer"
    assert Stats(wall_s=3.0, num_threads=2, **later).bottleneck == "fetch"


def test_what_was_ready_is_an_average():
    here, there = Tally(), Tally()
    for depth in (0, 2):
        here.add_depth("batches", depth)
    there.add_depth("batches", 4)
    here.merge(there.drain())
    assert here.stats().queue_depths == {"batches": 2.0}
    assert "ready: 2.0 batches" in str(here.stats())


def test_traffic_adds_up_by_bucket_and_class():
    here, there = Tally(), Tally()
    here.add_traffic("s3://a", 2, 10)
    here.add_traffic("s3://a", 1, 5, "glacier")
    there.add_traffic("s3://a", 1, 1)
    here.merge(there.drain())
    assert here.stats().traffic == (Traffic("s3://a", "standard", 3, 11), Traffic("s3://a", "glacier", 1, 5))
    both = merged_stats(here.stats(), [here.stats()])
    assert both.traffic[0] == Traffic("s3://a", "standard", 6, 22)


def test_millions_of_hosts_are_counted_in_constant_memory():
    tally = Tally()
    for number in range(1500):
        tally.add_traffic(f"https://host-{number}", 1, 1)
    traffic = tally.stats().traffic
    assert len(traffic) == 1001
    assert traffic[-1] == Traffic("https://(others)", "standard", 500, 500)


def test_the_slowest_downloads_are_kept():
    here, there = Tally(), Tally()
    for number in range(50):
        (here if number % 2 else there).add_download(f"u{number}", 0.0, number / 10, number)
    here.merge(there.drain())
    assert here.stats().slowest == tuple(Slow(number / 10, f"u{number}", number) for number in range(49, 29, -1))


def test_a_recorder_names_threads_and_is_emptied_by_taking():
    recorder = Recorder()
    tally = Tally(recorder)
    thread = threading.Thread(target=lambda: tally.add_wait("fetch", 0.5, subject="a"), name="mine")
    thread.start()
    thread.join()
    tally.add_wait("startup", 1.0)  # no stage: nothing to draw
    (found,) = recorder.take()
    assert (found.thread, found.event.stage, found.event.kind, found.event.subject) == ("mine", "fetch", "wait", "a")
    assert recorder.take() == []


def test_a_mix_is_made_by_one_crew():
    own = Stats(samples=4, wall_s=2.0, num_threads=2, wait_s={"consumer": 1.0}, queue_depths={"batches": 1.0})
    part = Stats(samples=9, wall_s=9.0, num_threads=2, wait_s={"fetch": 3.0}, hits=3, queue_depths={"files": 7.0})
    both = merged_stats(own, [part, part])
    assert (both.samples, both.wall_s, both.num_threads, both.hits) == (4, 2.0, 2, 6)
    assert both.wait_s == {"consumer": 1.0, "fetch": 6.0}
    assert both.queue_depths == {"batches": 1.0, "files": 7.0}


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
        "waited: consumer 0.10 s",
        "bottleneck: consumer (none here: the training step is what takes the time)",
    ]


WAITING = {"samples": 100, "wall_s": 10.0, "num_threads": 2, "wait_s": {"consumer": 9.0, "fetch": 18.0}}
TWO = {"num_connections": 2, "prefetch": 8, "downloading_s": 9.0}


@pytest.mark.parametrize(
    ("facts", "knob"),
    [
        ({**TWO, "busy_s": {"download": 17.0}}, "raise num_downloading_workers (now 2): every connection is busy"),
        # busy connections come first: a larger cache would not make the first epoch faster
        ({**TWO, "busy_s": {"download": 17.0}, "evictions": 3}, "raise num_downloading_workers (now 2)"),
        ({**TWO, "busy_s": {"download": 5.0}}, "raise prefetch (now 8): files are asked for too late"),
        ({**TWO, "busy_s": {"download": 5.0}, "evictions": 3}, "raise cache_limit: 3 files had to go"),
        # four ranks of a node share its connections
        ({**TWO, "busy_s": {"download": 5.0}, "num_sharing": 4}, "raise num_downloading_workers (now 2)"),
        ({}, "raise prefetch: "),  # a record of an earlier release
    ],
)
def test_slow_downloads_have_one_knob_with_its_value(facts, knob):
    stats = Stats(**WAITING, **facts)
    assert stats.bottleneck == "fetch"
    assert stats.knob.startswith(knob)
    named = ("num_downloading_workers", "prefetch", "cache_limit")
    assert sum(name in stats.knob for name in named) == 1


def test_what_is_read_as_tensors_has_no_resolution():
    busy = {"wall_s": 10.0, "num_threads": 2, "wait_s": {"consumer": 9.0}, "busy_s": {"decode": 18.0}, "samples": 100}
    assert Stats(**busy).knob == "raise num_threads (now 2), or ask for a smaller resolution"
    tensors = Stats(**busy, from_tensors=100)
    assert tensors.knob == "raise num_threads (now 2)"
    assert "tensors: 100 samples were read as tensors, not made of files" in str(tensors).splitlines()


def test_nobody_is_told_to_have_more_threads_than_cores(monkeypatch):
    busy = {"wall_s": 10.0, "wait_s": {"consumer": 9.0}, "busy_s": {"decode": 27.0}, "samples": 100}
    monkeypatch.setattr("sds.stats._num_cores", lambda: 2)
    assert Stats(**busy, num_threads=2).knob == "raise num_threads (now 2), or ask for a smaller resolution"
    told = "give it more cores (all of them decode, by 3 threads), or ask for a smaller resolution"
    assert Stats(**busy, num_threads=3).knob == told
    assert Stats(**busy, num_workers=3).knob == "raise num_workers (now 3), or ask for a smaller resolution"


@pytest.mark.parametrize(
    ("rate", "text"), [(0.0, "0"), (395.4, "395"), (10.2, "10"), (1.973, "2.0"), (9.96, "10.0"), (0.0213, "0.021")]
)
def test_slow_rates_have_decimals(rate, text):
    assert format_rate(rate) == text


def test_the_first_line_of_a_slow_run_has_a_decimal():
    assert str(Stats(samples=150, wall_s=110.0)).startswith("samples: 150 in 110.00 s (1.4/s), ")


def test_a_copy_of_the_sums_tells_what_came_later():
    tally = Tally()

    def work(url):
        tally.count("hits", 2)
        tally.add_wait("fetch", 1.5)
        tally.add_depth("files", 4 if url == "old" else 8)
        tally.add_traffic("s3://a", 1, 10)
        tally.add_download(url, 100.0 if url == "old" else 200.0, 3.0, 10)

    work("old")
    tally.add_traffic("s3://old", 1, 1)
    before = tally.copied()
    nothing = tally.stats(before)
    assert (nothing.hits, nothing.wait_s, nothing.traffic, nothing.slowest, nothing.queue_depths) == (0, {}, (), (), {})
    assert nothing.downloading_s == 0.0
    work("new")
    later, whole = tally.stats(before), tally.stats()
    assert (later.hits, later.wait_s, later.busy_s) == (2, {"fetch": 1.5}, {"download": 3.0})
    assert later.traffic == (Traffic("s3://a", "standard", 1, 10),)
    assert (later.slowest, later.queue_depths) == ((Slow(3.0, "new", 10),), {"files": 8.0})
    assert later.downloading_s == 100.0  # from the end of what was known
    assert (whole.hits, whole.downloading_s, whole.queue_depths) == (4, 103.0, {"files": 6.0})


def test_the_time_of_downloads_comes_home_from_workers():
    here, there = Tally(), Tally()
    here.add_download("a", 10.0, 2.0, 1)
    there.add_download("b", 9.0, 1.0, 1)
    here.merge(there.drain())
    assert (here.stats().busy_s["download"], here.stats().downloading_s) == (3.0, 3.0)
