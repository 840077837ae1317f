"""Batches made in the background of this process: in order, errors to the caller, and nothing left when closed."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from pathlib import Path

import pytest

import sds
import texts
from sds.errors import FetchTimeout, TransformError

ALL = texts.ids(*range(40))


def our_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(("sds-feed", "sds-decode"))}


class TestOrder:
    @pytest.mark.parametrize("num_threads", [1, 2, 8])
    @pytest.mark.parametrize("ahead", [1, 2, 5])
    def test_is_kept_however_long_samples_take(self, make, num_threads, ahead):
        def uneven(sample):
            time.sleep(0.002 * (int(sample["__sample_key__"]) % 5))
            return sample

        loader = sds.StreamingDataLoader(make(transforms=[uneven]), 3, num_threads=num_threads, prefetch_batches=ahead)
        assert texts.keys(loader) == ALL

    def test_fanned_out_rows_stay_together(self, make):
        loader = sds.StreamingDataLoader(make(transforms=[texts.twins]), 4, num_threads=4)
        for number, batch in enumerate(loader):
            assert batch["__sample_key__"] == [key for key in ALL[4 * number : 4 * number + 4] for _ in (0, 1)]
            assert batch["part"].tolist() == [0, 1] * 4


def test_samples_are_made_side_by_side(make):
    meeting = threading.Barrier(4)

    def meet(sample):
        meeting.wait(timeout=10)
        return sample

    assert texts.keys(sds.StreamingDataLoader(make(transforms=[meet]), 8, num_threads=4)) == ALL


CORES = len(os.sched_getaffinity(0))


def work(sample):
    """A millisecond of a processor's time, as a decoder takes it."""
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass
    return sample


def pause(sample):
    time.sleep(0.001)
    return sample


class TestSpareThreads:
    """One joins where samples take long, so that a thread decodes while another waits to get Python back."""

    @pytest.mark.parametrize(
        ("transform", "keywords", "num"),
        [
            (work, {}, CORES + 1),
            (work, {"num_threads": 2}, 2),
            (pause, {}, CORES),
            (dict, {}, CORES),
        ],
        ids=["work", "as many as asked for", "waiting is no work", "next to nothing"],
    )
    def test_how_many_there_are(self, make, transform, keywords, num):
        with sds.StreamingDataLoader(make(transforms=[transform]), 4, **keywords) as loader:
            assert texts.keys(loader) == ALL
            assert loader.stats().num_threads == num
            assert f"(of {num} threads)" in str(loader.stats())
            assert loader.dataset.stats().num_threads == num

    def test_it_is_there_from_the_start_of_the_next_epoch(self, make):
        meeting, has_met = threading.Barrier(CORES + 1), threading.Event()

        def meet(sample):
            if sample["__epoch__"] and not has_met.is_set():
                meeting.wait(timeout=10)
                has_met.set()
            return work(sample)

        with sds.StreamingDataLoader(make(transforms=[meet]), 4 * (CORES + 1)) as loader:
            assert texts.keys(loader) == texts.keys(loader) == ALL and has_met.is_set()

    def test_one_long_step_is_no_reason(self, make):
        def loads_something(sample):
            return work(sample) if sample["__sample_key__"] in ("0", "21") else sample

        with sds.StreamingDataLoader(make(transforms=[loads_something]), 4) as loader:
            assert texts.keys(loader) == ALL and loader.stats().num_threads == CORES

    def test_neither_are_many_rows_that_are_dropped(self, make):
        def drop(sample):
            return sample if int(sample["__sample_key__"]) % 10 == 0 else []

        with sds.StreamingDataLoader(make(transforms=[drop]), 10) as loader:
            assert texts.keys(loader) == ALL[::10] and loader.stats().num_threads == CORES

    def test_rows_as_they_are_need_none(self, make):
        dataset = make(columns_to_download=[])
        with sds.StreamingDataLoader(dataset, 40) as loader:
            assert texts.keys(loader) == ALL and loader.stats().num_threads == CORES


def test_no_more_is_made_ahead_than_asked_for(make):
    made = []

    def note(sample):
        made.append(sample["__sample_key__"])
        return sample

    loader = sds.StreamingDataLoader(make(transforms=[note]), 2, num_threads=1, prefetch_batches=2)
    with contextlib.closing(iter(loader)) as batches:
        next(batches)
        time.sleep(0.3)
        # the one handed out, two that wait, one more at the door, and those being made
        assert 4 <= len(made) <= 2 * (1 + 2 + 1 + 3)


class TestErrors:
    @pytest.mark.parametrize("kind", [ValueError, TimeoutError, StopIteration, KeyError])
    def test_of_collate_fn_reach_the_caller(self, make, kind):
        def collate(samples):
            raise kind("no batch")

        loader = sds.StreamingDataLoader(make(), 4, collate_fn=collate)
        with pytest.raises(TransformError, match=r"samples cannot be collated: .*no batch") as caught:
            list(loader)
        assert isinstance(caught.value.__cause__, kind)
        assert not our_threads()

    def test_of_a_transform_reach_the_caller_after_all_before_it(self, make):
        loader = sds.StreamingDataLoader(make(transforms=[texts.FailOn("009")], on_error="raise"), 4, num_threads=4)
        made = []
        with pytest.raises(TransformError) as caught:
            made.extend(batch["__sample_key__"] for batch in loader)
        assert made == [ALL[:4], ALL[4:8]]
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert not our_threads()

    def test_a_timeout_of_a_sample_is_no_timeout_of_ours(self, make):
        """It took long, and ended in a TimeoutError of its own: that is the one to raise."""

        def slow(sample):
            time.sleep(0.25)
            raise FetchTimeout("too slow")

        loader = sds.StreamingDataLoader(make(transforms=[slow], on_error="raise"), 4)
        with pytest.raises(FetchTimeout, match="too slow"):
            list(loader)

    def test_samples_that_take_longer_than_a_poll_are_waited_for(self, make):
        loader = sds.StreamingDataLoader(make(transforms=[texts.Slow(0.15)], max_size=4), 2, num_threads=4)
        assert texts.keys(loader) == ALL[:4]

    def test_after_an_error_the_loader_begins_again(self, make):
        fail = texts.FailOn("009")
        dataset = make(transforms=[fail], on_error="raise")
        loader = sds.StreamingDataLoader(dataset, 4)
        with pytest.raises(TransformError):
            list(loader)
        fail.failing = ()
        loader.load_state_dict(loader.state_dict())
        assert texts.keys(loader) == ALL[8:]


class TestTheEnd:
    def test_closing_mid_epoch_ends_the_threads(self, make):
        with sds.StreamingDataLoader(make(transforms=[texts.Slow(0.01)]), 4) as loader:
            next(iter(loader))
            batches = iter(loader)
            next(batches)
            assert our_threads()
        assert not our_threads()
        assert list(batches) == []

    def test_leaving_the_loop_does_too(self, make):
        loader = sds.StreamingDataLoader(make(), 4)
        for _ in loader:
            break
        assert not our_threads()
        assert texts.keys(loader) == ALL, "and a new one begins the epoch again"

    def test_a_new_iteration_ends_the_one_before(self, make):
        loader = sds.StreamingDataLoader(make(), 4)
        first = iter(loader)
        next(first)
        second = iter(loader)
        assert texts.keys(second) == ALL
        assert list(first) == []

    def test_it_is_quick_however_much_waits(self, make):
        loader = sds.StreamingDataLoader(make(transforms=[texts.Slow(0.1)]), 1, num_threads=2, prefetch_batches=20)
        next(iter(loader))
        batches = iter(loader)
        next(batches)
        start = time.monotonic()
        loader.close()
        assert time.monotonic() - start < 0.5, "those that run, and none of those that wait"
        assert not our_threads()

    def test_an_epoch_leaves_no_thread(self, make):
        assert texts.keys(sds.StreamingDataLoader(make(), 4)) == ALL
        assert not our_threads()


@pytest.fixture
def silent_server():
    """Takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


class TestFilesThatAreStillOnTheirWay:
    @pytest.fixture
    def stuck(self, make, tmp_path, source, silent_server):
        """The first eight rows are here, the others never come."""
        rows = [f"{i},{source}/{i:03d}.txt" if i < 8 else f"{i},{silent_server}/{i}" for i in range(40)]
        (tmp_path / "index.csv").write_text("\n".join(["index,url", *rows]))
        return make(src=tmp_path / "index.csv", columns_to_download=["url"])

    def test_stopping_wakes_who_waits_for_them_and_counts_no_failure(self, stuck):
        loader = sds.StreamingDataLoader(stuck, 4, num_threads=8)
        batches = iter(loader)
        assert texts.keys([next(batches), next(batches)]) == [str(i) for i in range(8)]
        time.sleep(0.2)  # the decode threads wait for what comes next
        start = time.monotonic()
        loader.close()
        assert time.monotonic() - start < 1.0
        assert not our_threads()
        assert stuck.quarantine() == []
        assert (stuck.stats().failures, stuck.stats().stand_ins) == (0, 0)

    def test_and_nothing_is_held_against_the_next_iteration(self, stuck):
        for _ in range(3):
            loader = sds.StreamingDataLoader(stuck, 8, num_threads=8)
            batches = iter(loader)
            next(batches)
            time.sleep(0.1)
            loader.close()
        assert stuck.quarantine() == []


def leased(dataset: sds.StreamingDataset) -> int:
    """Requests that this process has not let go of."""
    link = dataset.delivery.client.current_link()
    return 0 if link is None else len(link._live)


class TestLeases:
    @pytest.fixture
    def remote(self, make, tmp_path, http_server, new_name):
        folder = new_name()
        for i in range(24):
            http_server.put(f"{folder}/{i:03d}.txt", f"text {i:03d}".encode())
        rows = [f"{i:03d},{http_server.url(f'{folder}/{i:03d}.txt')}" for i in range(24)]
        (tmp_path / "index.csv").write_text("\n".join(["index,url", *rows]))
        return lambda **options: make(src=tmp_path / "index.csv", columns_to_download=["url"], **options)

    def test_paths_are_good_until_the_next_batch_is_asked_for(self, remote):
        # room for ten of the files: what is let go of makes room at once
        dataset = remote(cache_limit=8 * 14, prefetch=2)
        loader = sds.StreamingDataLoader(dataset, 2, num_threads=1, prefetch_batches=1)
        for batch in loader:
            time.sleep(0.01)
            for path, key in zip(batch["url"], batch["__sample_key__"], strict=True):
                assert Path(path).read_text() == f"text {key}"
        assert leased(dataset) == 0

    @pytest.mark.parametrize("num_taken", [1, 3])
    def test_none_is_left_when_closed_mid_epoch(self, remote, num_taken):
        dataset = remote(transforms=[texts.FailOn("003", "009")])
        loader = sds.StreamingDataLoader(dataset, 4)
        batches = iter(loader)
        for _ in range(num_taken):
            next(batches)
        time.sleep(0.1)
        assert leased(dataset) > 0
        loader.close()
        assert leased(dataset) == 0

    def test_none_is_left_after_an_error(self, remote):
        def collate(samples):
            raise ValueError("no batch")

        dataset = remote(transforms=[texts.FailOn("001")])
        with pytest.raises(TransformError, match="no batch"):
            list(sds.StreamingDataLoader(dataset, 4, collate_fn=collate))
        assert leased(dataset) == 0, "not even that of a stand-in"

    def test_samples_that_name_no_path_let_go_at_once(self, remote):
        def read(sample):
            with open(sample["url"]) as file:
                return {"text": file.read(), "__sample_key__": sample["__sample_key__"]}

        dataset = remote(transforms=[read], cache_limit=14, prefetch=0)  # room for one file
        loader = sds.StreamingDataLoader(dataset, 8, num_threads=1)
        assert texts.keys(loader) == ALL[:24]

    def test_random_access_never_holds_the_whole_cache(self, remote):
        dataset = remote(cache_limit=4 * 14, timeout=5)
        for i in range(24):
            assert os.path.exists(dataset[i]["url"])


class Stuck:
    """Does not return from one call, until it is let go."""

    def __init__(self):
        self.number = 0  # of the call, from 0 on
        self.num_calls = itertools.count()
        self.is_reached, self.is_over = threading.Event(), threading.Event()

    def __call__(self, value):
        if next(self.num_calls) == self.number:
            self.is_reached.set()
            assert self.is_over.wait(60)
        return value


class TestATransformThatDoesNotReturn:
    """It cannot be ended. Nobody waits for it, and when it is over, nothing is left."""

    @pytest.fixture
    def stuck(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("sds.loader.threads._SOON_S", 0.05)
        stuck = Stuck()
        yield stuck
        stuck.is_over.set()
        deadline = time.monotonic() + 10
        while our_threads():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    @pytest.mark.parametrize("stage", ["transform", "collate"])
    def test_keeps_no_close_waiting_and_the_loader_goes_on(self, make, stuck, stage):
        if stage == "transform":
            stuck.number = 4
            loader = sds.StreamingDataLoader(make(transforms=[stuck]), 4, num_threads=1)
        else:
            stuck.number = 1
            loader = sds.StreamingDataLoader(make(), 4, collate_fn=lambda samples: stuck(sds.loader.collate(samples)))
        next(iter(loader))
        assert stuck.is_reached.wait(30)
        loader.close()
        assert our_threads(), "it runs"
        assert texts.keys(loader) == ALL

    def test_keeps_no_error_of_another_waiting(self, make, stuck):
        def work(sample):
            if sample["__sample_key__"] == ALL[1]:
                return stuck(sample)
            assert stuck.is_reached.wait(30)
            raise ZeroDivisionError

        loader = sds.StreamingDataLoader(make(transforms=[work], on_error="raise"), 4, num_threads=2)
        with pytest.raises(TransformError, match="ZeroDivisionError"):
            list(loader)
        assert our_threads(), "the other one runs"


@pytest.mark.parametrize("num_threads", [1, 2, 8])
def test_of_two_errors_in_a_step_the_first_in_order_is_raised(make, num_threads):
    def work(sample):
        key = sample["__sample_key__"]
        if key in ALL[2:8:5]:
            time.sleep(0.05 * (key == ALL[2]))  # the other one is there before
            raise ValueError(key)
        return sample

    loader = sds.StreamingDataLoader(
        make(transforms=[work], on_error="raise"), 40, num_threads=num_threads, prefetch_batches=1
    )
    with pytest.raises(TransformError, match=ALL[2]):
        list(loader)
