"""DevicePrefetcher: the loader's batches in order, ahead of the loop; errors, stops, pauses, states."""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import sds
import texts
from sds.errors import OptionError, StateError
from sds.loader import device_ahead, threads
from sds.loader.device_ahead import Ahead
from sds.loader.device_kinds import device_for
from sds.testing import SimulatedDevice, check_resume

ALL = texts.ids(*range(40))


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("sds-")]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    if our_threads():
        gc.collect()
    assert our_threads() == []


class NoBatch(Exception):
    pass


class Numbers:
    """A loader of numbers as tensors. It notes what was asked of it, and waits, or fails, where it is told to."""

    def __init__(self, length: int = 10, *, fail_at: int | None = None, stall_at: int | None = None) -> None:
        self.length = length
        self.fail_at = fail_at
        self.stall_at = stall_at
        self.num_made = 0
        self.was_closed = False
        self.is_stalled = False

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        self.num_made = 0
        self.was_closed = False
        try:
            for k in range(self.length):
                if k == self.fail_at:
                    raise NoBatch(f"no batch {k}")
                while k == self.stall_at:
                    self.is_stalled = True
                    time.sleep(0.01)
                self.num_made = k + 1
                yield {"x": torch.full((4,), k)}
        finally:
            self.was_closed = True


def values(batches: Any, device: SimulatedDevice | None = None) -> list[int]:
    if device is None:
        return [int(batch["x"][0]) for batch in batches]
    return [int(read.value()[0]) for read in [device.read(batch["x"]) for batch in batches]]


def wait_for(claim: Any, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class TestBatches:
    @pytest.mark.parametrize("depth", [0, 1, 2, 20])
    def test_are_the_loaders_in_order_and_again(self, depth: int):
        prefetcher = sds.DevicePrefetcher(Numbers(), depth=depth)
        assert len(prefetcher) == 10
        for _ in range(3):
            assert values(prefetcher) == list(range(10))

    def test_on_the_cpu_are_the_very_ones(self):
        given = [{"x": torch.ones(2)}, "text", None, 3]
        assert all(a is b for a, b in zip(sds.DevicePrefetcher(given, "cpu"), given, strict=True))

    def test_may_be_none(self):
        assert list(sds.DevicePrefetcher([])) == []

    def test_of_torchs_loader(self):
        prefetcher = sds.DevicePrefetcher(DataLoader(torch.arange(12), batch_size=5))
        assert [batch.tolist() for batch in prefetcher] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]

    @pytest.mark.parametrize("depth", [0, 2])
    def test_of_ours(self, make, depth: int):
        prefetcher = sds.DevicePrefetcher(sds.StreamingDataLoader(make(transforms=[texts.read]), 6), depth=depth)
        assert len(prefetcher) == 7
        assert texts.keys(prefetcher) == ALL
        assert texts.keys(prefetcher) == ALL

    def test_of_a_mix_keep_their_attributes(self, make):
        options = [{"name": "a", "ratio": 1, "batch_size": 4}, {"name": "b", "ratio": 2, "batch_size": 2}]
        bare = sds.MultiStreamDataLoader([make(), make()], options, stop="first")
        loader = sds.MultiStreamDataLoader([make(), make()], options, stop="first")
        names = [batch.stream_name for batch in bare]
        assert set(names) == {"a", "b"}
        assert [batch.stream_name for batch in sds.DevicePrefetcher(loader, SimulatedDevice())] == names

    def test_are_kept_alive_by_nobody_but_their_caller(self):
        device = SimulatedDevice(eagerness=20)
        prefetcher = sds.DevicePrefetcher(Numbers(30), device, depth=2)
        for _ in prefetcher:
            assert len(device._home) <= 4  # the caller's, two ahead, one on its way


class TestTheDevice:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("depth", [0, 1, 3])
    def test_is_never_asked_too_early_or_too_late(self, seed: int, depth: int):
        device = SimulatedDevice(seed, eagerness=0.5)
        prefetcher = sds.DevicePrefetcher(Numbers(20), device, depth=depth)
        compute = device.make_stream()
        with device.on(compute):
            for _ in range(2):
                found = [device.read(batch["x"]) for batch in prefetcher]
                assert [int(each.value()[0]) for each in found] == list(range(20))
            for batch in prefetcher:  # left in the middle, with copies under way
                device.read(batch["x"])
                del batch
                break
            found = [device.read(batch["x"]) for batch in prefetcher]
            assert [int(each.value()[0]) for each in found] == list(range(20))
        device.synchronize()
        assert device.mistakes == []
        assert device.num_streams == 2 + (depth > 0)  # ours, one for all copies, one for the threads that read

    def test_may_be_full(self):
        class Full(SimulatedDevice):
            def copy(self, source: torch.Tensor, stream: object) -> torch.Tensor:
                if self.num_copies == 5:
                    raise MemoryError("the device is full")
                return super().copy(source, stream)

        seen = []
        with pytest.raises(MemoryError, match="the device is full"):
            seen.extend(sds.DevicePrefetcher(Numbers(), Full()))
        assert len(seen) == 5

    def test_is_found_when_it_is_first_used(self, monkeypatch: pytest.MonkeyPatch):
        """Programs choose the current device after they have made their loaders."""
        asked: list[Any] = []

        def find(device: Any) -> Any:
            asked.append(device)
            return device_for("cpu")

        monkeypatch.setattr("sds.loader.device.device_for", find)
        prefetcher = sds.DevicePrefetcher(Numbers(2))
        prefetcher.close()
        assert asked == []
        assert values(prefetcher) == values(prefetcher) == [0, 1]
        assert asked == [None] and prefetcher.device == torch.device("cpu")

    def test_is_used_by_a_loader_on_a_stream_of_its_own(self):
        """Behind what its caller had done there, and never among it."""
        device = SimulatedDevice(eagerness=0)
        streams: list[Any] = []

        class OnTheDevice(Numbers):
            def __iter__(self) -> Iterator[Any]:
                for batch in super().__iter__():
                    streams.append(device.current_stream())
                    yield batch

        prefetcher = sds.DevicePrefetcher(OnTheDevice(3), device)
        device.record(device.current_stream())
        for _ in range(2):
            values(prefetcher, device)
        assert len(set(map(id, streams))) == 1 and streams[0] is not device.current_stream()
        assert streams[0].clock["default"] >= 1
        assert device.mistakes == []


class TestDepth:
    @pytest.mark.parametrize("depth", [0, 1, 3])
    def test_is_how_far_ahead_batches_are_made(self, depth: int):
        loader = Numbers(20)
        batches = iter(sds.DevicePrefetcher(loader, depth=depth))
        for taken in range(1, 5):
            next(batches)
            wait_for(lambda least=taken + depth: loader.num_made >= least)
            time.sleep(0.01)
            assert loader.num_made == taken + depth

    def test_nothing_is_made_before_the_first_batch_is_asked_for(self):
        loader = Numbers()
        batches = iter(sds.DevicePrefetcher(loader))
        time.sleep(0.01)
        assert loader.num_made == 0 and our_threads() == []
        del batches

    @pytest.mark.parametrize(("max_bytes", "ahead"), [("64", 2), (95, 2), ("1kb", 5), (1, 1), (0, 1)])
    def test_is_bounded_by_bytes(self, max_bytes: Any, ahead: int):
        """A batch has 32 bytes. One more waits on the host until there is room."""
        loader = Numbers(40)
        device = SimulatedDevice(eagerness=20)
        prefetcher = sds.DevicePrefetcher(loader, device, depth=5, max_bytes=max_bytes)
        batches = iter(prefetcher)
        for taken in range(1, 5):
            next(batches)
            wait_for(lambda least=taken + ahead: device.num_copies >= least)
            time.sleep(0.01)
            assert device.num_copies == taken + ahead
            assert loader.num_made <= taken + ahead + 1
        assert values(batches, device) == list(range(4, 40))

    def test_of_bytes_counts_all_tensors_of_a_batch(self):
        device = SimulatedDevice()
        given = [{"x": torch.zeros(k, dtype=torch.uint8), "y": [torch.zeros(5)]} for k in (10, 70, 10, 10)]
        ready = iter(sds.DevicePrefetcher(given, device, depth=10, max_bytes=130))
        next(ready)
        wait_for(lambda: device.num_copies == 6)  # 90 + 30, and no more


class TestErrors:
    @pytest.mark.parametrize("depth", [0, 2])
    def test_come_after_all_batches_before_them_with_their_traceback(self, depth: int):
        seen = []
        with pytest.raises(NoBatch, match="no batch 4") as caught:
            for batch in sds.DevicePrefetcher(Numbers(fail_at=4), depth=depth):
                seen += values([batch])
        assert seen == [0, 1, 2, 3]
        assert "raise NoBatch(" in "".join(traceback.format_exception(caught.value))

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit])
    def test_of_odd_kinds_come_too(self, kind: type[BaseException]):
        class Odd:
            def __iter__(self) -> Odd:
                return self

            def __next__(self) -> None:
                raise kind

        if kind is StopIteration:
            assert list(sds.DevicePrefetcher(Odd())) == []
            return
        with pytest.raises(kind):
            list(sds.DevicePrefetcher(Odd()))

    def test_of_a_transform_come_from_our_loader(self, make):
        loader = sds.StreamingDataLoader(make(transforms=[texts.FailOn("009")], on_error="raise"), 4)
        seen = []
        with pytest.raises(sds.errors.TransformError):
            for batch in sds.DevicePrefetcher(loader):
                seen += batch["__sample_key__"]
        assert seen == ALL[:8]

    def test_of_the_beginning_come_at_once(self):
        class Broken:
            def __iter__(self) -> Iterator[int]:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            iter(sds.DevicePrefetcher(Broken()))

    def test_do_not_stay_in_memory(self):
        def fail() -> weakref.ref[Exception]:
            try:
                list(sds.DevicePrefetcher(Numbers(fail_at=1)))
            except NoBatch as error:
                return weakref.ref(error)
            raise AssertionError

        gc.disable()  # it is no garbage: nothing of ours is in a circle with it
        try:
            assert fail()() is None
        finally:
            gc.enable()

    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"depth": -1}, "depth"),
            ({"depth": 1.5}, "depth"),
            ({"depth": True}, "depth"),
            ({"max_bytes": "much"}, "max_bytes"),
            ({"max_bytes": -1}, "max_bytes"),
            ({"device": "toaster"}, "device"),
            ({"device": "meta"}, "device"),
            ({"device": 3.5}, "device"),
            ({"device": "cuda:99"}, "device"),
        ],
    )
    def test_of_options_name_them(self, options: dict[str, Any], word: str):
        with pytest.raises(OptionError, match=word) as caught:
            sds.DevicePrefetcher([1], **options)
        assert caught.value.hint

    def test_of_a_loader_that_is_none(self):
        with pytest.raises(OptionError, match="loader cannot be iterated over: int"):
            sds.DevicePrefetcher(3)


class TestStops:
    """However the caller leaves: the thread ends as soon as its loader lets it, and the loader's iteration with it."""

    @pytest.mark.parametrize("stall_at", [None, 4])
    @pytest.mark.parametrize("way", ["break", "error", "close", "another", "drop", "cycle"])
    def test_end_the_thread(self, way: str, stall_at: int | None):
        loader = Numbers(1000, stall_at=stall_at)
        prefetcher = sds.DevicePrefetcher(loader, depth=3)
        batches = iter(prefetcher)
        next(batches), next(batches)
        wait_for(lambda: loader.num_made == (5 if stall_at is None else 4))
        begun = time.monotonic()
        timer = threading.Timer(0.2, lambda: setattr(loader, "stall_at", None))  # a loader of others ends its batch
        timer.start()
        if way == "break":
            for _ in batches:
                break
            del batches
        elif way == "error":
            with pytest.raises(ValueError, match="of the training step"):
                step(batches)
            del batches
        elif way == "close":
            prefetcher.close()
        elif way == "another":
            iter(prefetcher)
        elif way == "drop":
            del batches, prefetcher
        else:
            cycle: list[Any] = [batches]
            cycle.append(cycle)
            del batches, prefetcher, cycle
            gc.collect()  # which takes what it takes
            begun = time.monotonic()
        assert time.monotonic() - begun < 5
        wait_for(lambda: not our_threads(), 5)
        assert loader.was_closed or way == "another"
        timer.join()

    def test_let_a_loader_clean_up(self):
        """Nothing is forced: what a loader does at its end is done to the end, after its caller has left."""
        done: list[str] = []

        class Careful(Numbers):
            def __iter__(self) -> Iterator[Any]:
                try:
                    yield from super().__iter__()
                finally:
                    for _ in range(70):
                        time.sleep(0.01)
                    done.append("cleaned up")

        for _ in sds.DevicePrefetcher(Careful(), depth=20):
            break
        wait_for(lambda: done == ["cleaned up"])
        wait_for(lambda: not our_threads())

    def test_cancel_our_loaders_that_wait_for_a_batch(self, make, monkeypatch: pytest.MonkeyPatch):
        """As a stop does: the wait of the thread that reads ends, when the transform that runs has."""
        monkeypatch.setattr("sds.loader.life._PATIENCE_S", 0.05)
        is_reached, is_over = threading.Event(), threading.Event()

        def stall(sample: dict[str, Any]) -> dict[str, Any]:
            is_reached.set()
            is_over.wait(30)
            return sample

        loader = sds.StreamingDataLoader(make(transforms=[stall]), 4, num_threads=1)
        errors: list[BaseException] = []

        def read() -> None:
            try:
                next(iter(loader))
            except sds.SdsError as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        assert is_reached.wait(30)
        with pytest.raises(sds.SdsError, match="another thread is"):
            iter(loader)
        loader.cancel()
        wait_for(lambda: all(each._stopping.is_set() for each in threads._running))  # it waits for its transform only
        is_over.set()
        thread.join(30)
        assert "cancelled by another thread" in str(errors[0])
        assert errors[0].hint  # type: ignore[attr-defined]
        assert texts.keys(loader) == ALL

    def test_at_the_end_of_a_program_take_their_time_once(self, monkeypatch: pytest.MonkeyPatch):
        """However many loaders do not return."""
        loaders = [Numbers(stall_at=1) for _ in range(6)]
        kept = [iter(sds.DevicePrefetcher(loader)) for loader in loaders]
        for batches in kept:
            next(batches)
        monkeypatch.setattr("sds.loader.device_ahead._EXIT_S", 0.2)
        begun = time.monotonic()
        device_ahead._stop_all()
        assert 0.2 <= time.monotonic() - begun < 1.0
        for loader in loaders:
            loader.stall_at = None

    def test_by_the_thread_itself_that_collects_the_garbage(self):
        """The cycle that the iteration is part of may be found by any thread."""

        dropped, collected = threading.Event(), threading.Event()

        def collecting() -> Iterator[int]:
            yield 0
            dropped.wait()
            while not collected.is_set():
                gc.collect()
            yield 1

        prefetcher = sds.DevicePrefetcher(collecting())
        batches = iter(prefetcher)
        next(batches)
        gc.disable()  # no other thread finds it
        try:
            weakref.finalize(prefetcher, collected.set)
            cycle: list[Any] = [batches, prefetcher]
            cycle.append(cycle)
            del batches, prefetcher, cycle
            dropped.set()
            assert collected.wait(30)
            wait_for(lambda: not our_threads())
        finally:
            gc.enable()

    def test_of_a_loader_that_does_not_return_let_the_caller_go(self, monkeypatch: pytest.MonkeyPatch):
        """Nothing ends a loader of others; the loop is not kept waiting, and the next one is told."""
        leave = threading.Event()

        class Stuck(Numbers):
            def __iter__(self) -> Iterator[Any]:
                yield {"x": torch.zeros(1)}
                leave.wait()  # as long as it takes

        monkeypatch.setattr("sds.loader.device._SOON_S", 0.05)
        monkeypatch.setattr("sds.loader.device._PATIENCE_S", 0.05)
        prefetcher = sds.DevicePrefetcher(Stuck())
        for _ in prefetcher:
            break
        assert our_threads() == ["sds-device"]
        assert list(prefetcher.drain()) == []
        with pytest.raises(sds.SdsError, match="the iteration before has not ended"):
            iter(prefetcher)
        leave.set()
        monkeypatch.setattr("sds.loader.device._PATIENCE_S", 10)
        assert len(list(prefetcher)) == 1

    def test_reach_a_prefetcher_inside_that_has_not_begun(self, monkeypatch: pytest.MonkeyPatch):
        """Between its `iter()` and its first batch nobody waits there yet; the wish is not forgotten."""
        loader = Numbers(stall_at=0)
        inner = sds.DevicePrefetcher(loader)
        is_reached, may_begin = threading.Event(), threading.Event()
        begin = sds.DevicePrefetcher._begin

        def begin_late(self: sds.DevicePrefetcher, source: Any) -> Any:
            if self is inner:
                is_reached.set()
                may_begin.wait(30)
            return begin(self, source)

        monkeypatch.setattr(sds.DevicePrefetcher, "_begin", begin_late)
        outer = sds.DevicePrefetcher(inner)
        batches = iter(outer)
        errors: list[BaseException] = []

        def take() -> None:
            try:
                next(batches)
            except sds.SdsError as error:
                errors.append(error)

        thread = threading.Thread(target=take)
        thread.start()
        assert is_reached.wait(30)
        outer.cancel()
        may_begin.set()
        thread.join(30)
        assert "cancelled by another thread" in str(errors[0])
        wait_for(lambda: len(our_threads()) <= 1)  # the outer one has ended, though its loader never gave anything
        loader.stall_at = None
        wait_for(lambda: not our_threads())
        assert values(outer) == list(range(10))

    def test_by_another_thread_than_the_one_that_waits_are_refused(self):
        loader = Numbers(stall_at=1)
        prefetcher = sds.DevicePrefetcher(loader)
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.extend(values(prefetcher)))
        thread.start()
        wait_for(lambda: loader.is_stalled and isinstance(prefetcher._line, Ahead) and prefetcher._line._is_asked)
        with pytest.raises(sds.SdsError, match="another thread is waiting for a batch"):
            prefetcher.close()
        loader.stall_at = None
        thread.join()
        assert seen == list(range(10))
        prefetcher.close()

    def test_leave_the_prefetcher_usable(self):
        prefetcher = sds.DevicePrefetcher(Numbers())
        for _ in range(3):
            with prefetcher:
                for _ in prefetcher:
                    break
        assert values(prefetcher) == list(range(10))


def step(batches: Iterator[Any]) -> None:
    for _ in batches:
        raise ValueError("of the training step")


class TestPauses:
    def test_nothing_is_made_ahead_until_resumed(self):
        loader = Numbers(20)
        prefetcher = sds.DevicePrefetcher(loader, depth=3)
        batches = iter(prefetcher)
        next(batches)
        wait_for(lambda: loader.num_made == 4)
        prefetcher.pause()
        assert [int(next(batches)["x"][0]) for _ in range(3)] == [1, 2, 3]
        time.sleep(0.02)
        assert loader.num_made == 4
        assert int(next(batches)["x"][0]) == 4  # what is asked for is made
        time.sleep(0.02)
        assert loader.num_made == 5
        prefetcher.resume()
        wait_for(lambda: loader.num_made == 8)
        assert values(batches) == list(range(5, 20))

    def test_last_until_resumed_over_iterations(self):
        loader = Numbers(6)
        prefetcher = sds.DevicePrefetcher(loader)
        prefetcher.pause()
        for k, _ in enumerate(prefetcher):
            assert loader.num_made == k + 1
        prefetcher.resume()
        assert values(prefetcher) == list(range(6))

    @pytest.mark.parametrize("num_taken", [0, 1, 3])
    def test_a_drain_gives_what_is_ready_and_loses_nothing(self, num_taken: int):
        loader = Numbers(20)
        device = SimulatedDevice(eagerness=0)
        prefetcher = sds.DevicePrefetcher(loader, device, depth=3)
        batches = iter(prefetcher)
        seen = values([next(batches)], device)
        wait_for(lambda: device.num_copies == 4)
        ready = prefetcher.drain()
        for _ in range(num_taken):
            seen += values([next(ready)], device)
        if num_taken == 3:
            assert list(ready) == []
        time.sleep(0.01)
        assert loader.num_made == 4
        prefetcher.resume()
        assert seen + values(batches, device) == list(range(20))
        assert device.mistakes == []

    def test_a_drain_waits_for_the_batch_in_the_making(self):
        loader = Numbers(20, stall_at=2)
        prefetcher = sds.DevicePrefetcher(loader, depth=3)
        batches = iter(prefetcher)
        next(batches)
        wait_for(lambda: loader.is_stalled)
        timer = threading.Timer(0.05, lambda: setattr(loader, "stall_at", None))
        timer.start()
        assert values(prefetcher.drain()) == [1, 2]
        assert loader.num_made == 3

    def test_drains_of_another_thread_take_from_the_loop_and_lose_nothing(self):
        prefetcher = sds.DevicePrefetcher(Numbers(300), depth=3)
        drained: list[int] = []
        is_over = threading.Event()

        def drain() -> None:
            while not is_over.is_set():
                drained.extend(values(prefetcher.drain()))
                prefetcher.resume()

        thread = threading.Thread(target=drain)
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            batches = iter(prefetcher)
            looped = values([next(batches)])
            thread.start()
            looped += values(batches)
        finally:
            is_over.set()
            thread.join()
            sys.setswitchinterval(before)
        assert looped == sorted(looped) and drained == sorted(drained)
        assert sorted(looped + drained) == list(range(300))

    @pytest.mark.parametrize("depth", [0, 2])
    def test_before_anything_runs_are_harmless(self, depth: int):
        prefetcher = sds.DevicePrefetcher(Numbers(3), depth=depth)
        prefetcher.pause()
        assert list(prefetcher.drain()) == []
        prefetcher.resume()
        assert values(prefetcher) == [0, 1, 2]


class TestState:
    @pytest.mark.parametrize("depth", [0, 1, 3])
    def test_goes_on_at_every_step(self, source, tmp_path, depth: int):
        def make_loader() -> sds.DevicePrefetcher:
            dataset = texts.make(source, tmp_path / "dst", shuffle_seed=3, max_size=17)
            return sds.DevicePrefetcher(sds.StreamingDataLoader(dataset, 4), depth=depth)

        assert check_resume(make_loader, every=2) > 5

    def test_is_that_of_the_batch_in_hand_not_of_what_is_ahead(self, make):
        loader = sds.StreamingDataLoader(make(), 4)
        prefetcher = sds.DevicePrefetcher(loader, depth=6)
        bare = sds.StreamingDataLoader(make(), 4)
        assert prefetcher.state_dict() == bare.state_dict()
        for ahead, batch in zip(prefetcher, bare, strict=True):
            assert ahead["__sample_key__"] == batch["__sample_key__"]
            assert prefetcher.state_dict() == bare.state_dict()
        assert prefetcher.state_dict() == bare.state_dict()

    @pytest.mark.parametrize("num_taken", [1, 9, 10])
    def test_after_a_break_the_epoch_begins_again_as_without_prefetching(self, make, num_taken: int):
        """Also where all of the epoch had been made when the loop was left."""
        dataset, other = make(shuffle_seed=1), make(shuffle_seed=1)
        prefetcher = sds.DevicePrefetcher(sds.StreamingDataLoader(dataset, 4), depth=5)
        bare = sds.StreamingDataLoader(other, 4)
        for loader in (prefetcher, bare):
            batches = iter(loader)
            for _ in range(num_taken):
                next(batches)
            time.sleep(0.05)  # so that much is ahead
            del batches
        assert dataset.epoch == other.epoch
        assert prefetcher.state_dict() == bare.state_dict() == prefetcher.loader.state_dict()
        assert texts.keys(prefetcher) == texts.keys(bare)
        assert prefetcher.state_dict() == bare.state_dict()

    @pytest.mark.parametrize("depth", [0, 2])
    @pytest.mark.parametrize("moment", ["in the loop", "in the loop, and on", "after it"])
    def test_an_epoch_that_is_set_stays_set(self, make, depth: int, moment: str):
        dataset = make(shuffle_seed=1)
        prefetcher = sds.DevicePrefetcher(sds.StreamingDataLoader(dataset, 4), depth=depth)
        for k, _ in enumerate(prefetcher):
            if k == 0 and moment != "after it":
                dataset.set_epoch(5)
            if k == (moment == "in the loop, and on"):
                break
        if moment == "after it":
            dataset.set_epoch(5)
        if moment == "after it":
            assert prefetcher.state_dict()["epoch"] == 5
        assert dataset.epoch == 5
        assert next(iter(prefetcher))["__epoch__"].tolist() == [5] * 4

    @pytest.mark.parametrize("depth", [0, 2])
    @pytest.mark.parametrize("moment", ["in the loop", "after it", "before it"])
    @pytest.mark.parametrize("kind", ["streaming", "mix"])
    def test_that_the_loader_itself_was_told_stays(self, make, kind: str, depth: int, moment: str):
        loader: Any
        if kind == "streaming":
            loader = sds.StreamingDataLoader(make(), 4)
        else:
            loader = sds.MultiStreamDataLoader([make()], [{"name": "a", "ratio": 1, "batch_size": 4}], stop="first")
        prefetcher = sds.DevicePrefetcher(loader, depth=depth)
        there = next(state for k, state in enumerate(loader.state_dict() for _ in loader) if k == 4)
        if moment == "before it":
            iter(prefetcher)
        else:
            for _ in prefetcher:
                if moment == "in the loop":
                    loader.load_state_dict(there)
                break
        if moment != "in the loop":
            loader.load_state_dict(there)
        assert prefetcher.state_dict() == loader.state_dict() == there
        assert texts.keys([next(iter(prefetcher))]) == ALL[20:24]
        loader.close()

    def test_told_after_a_break_to_a_loader_that_is_slow_to_end(self, make, monkeypatch: pytest.MonkeyPatch):
        is_reached, is_over = threading.Event(), threading.Event()

        def stall(sample: dict[str, Any]) -> dict[str, Any]:
            if sample["__sample_key__"] > ALL[7]:
                is_reached.set()
                is_over.wait(30)
            return sample

        monkeypatch.setattr("sds.loader.device._SOON_S", 0.05)
        monkeypatch.setattr("sds.loader.life._PATIENCE_S", 0.05)
        loader = sds.StreamingDataLoader(make(transforms=[stall]), 4, num_threads=1)
        prefetcher = sds.DevicePrefetcher(loader)
        for _ in prefetcher:
            assert is_reached.wait(30)
            line = prefetcher._line
            assert isinstance(line, Ahead)
            wait_for(lambda: len(line.ready) == 1)  # noqa: B023 (there is one round only)
            time.sleep(0.05)  # its thread is inside of the loader now
            break
        with pytest.raises(sds.SdsError, match="another thread is reading from this loader") as caught:
            loader.load_state_dict(prefetcher.state_dict())
        assert caught.value.hint
        loader.dataset.set_epoch(5)
        is_over.set()
        assert next(iter(prefetcher))["__epoch__"].tolist() == [5] * 4
        wait_for(lambda: not our_threads())

    def test_of_an_iterator_cannot_be_put_back_which_is_said(self, caplog: pytest.LogCaptureFixture):
        prefetcher = sds.DevicePrefetcher(iter(Numbers(10)), depth=2)
        for _ in prefetcher:
            line = prefetcher._line
            assert isinstance(line, Ahead)
            wait_for(lambda: len(line.ready) == 2)  # noqa: B023 (there is one round only)
            break
        assert caplog.messages == []
        assert values(prefetcher) == list(range(3, 10))
        assert "2 batches that were made ahead are lost" in caplog.text

    @pytest.mark.parametrize("num_nested", [1, 2])
    def test_after_a_break_a_mix_that_never_stops_goes_on(self, make, num_nested: int):
        options = [{"name": "a", "ratio": 1, "batch_size": 4}, {"name": "b", "ratio": 2, "batch_size": 2}]
        bare = sds.MultiStreamDataLoader([make(), make()], options)
        prefetcher: Any = sds.MultiStreamDataLoader([make(), make()], options)
        for _ in range(num_nested):
            prefetcher = sds.DevicePrefetcher(prefetcher, depth=5)
        for number in (3, 1, 4):
            ours, theirs = iter(prefetcher), iter(bare)
            for _ in range(number):
                assert next(ours)["__sample_key__"] == next(theirs)["__sample_key__"]
                assert prefetcher.state_dict() == bare.state_dict()
            del ours, theirs
        prefetcher.close()
        bare.close()

    def test_that_was_loaded_is_where_the_next_iteration_begins(self, make):
        prefetcher = sds.DevicePrefetcher(sds.StreamingDataLoader(make(), 4))
        batches = iter(prefetcher)
        next(batches), next(batches)
        state = prefetcher.state_dict()
        next(batches)
        prefetcher.load_state_dict(state)
        assert prefetcher.state_dict() == state
        assert texts.keys(prefetcher) == ALL[8:]
        assert texts.keys(prefetcher) == ALL

    def test_of_another_index_needs_strict_false(self, make, tmp_path):
        texts.write(tmp_path / "other", 40)
        state = sds.StreamingDataLoader(make(src=tmp_path / "other", max_size=30), 4).state_dict()
        prefetcher = sds.DevicePrefetcher(sds.StreamingDataLoader(make(), 4))
        with pytest.raises(StateError):
            prefetcher.load_state_dict(state)
        prefetcher.load_state_dict(state, strict=False)

    def test_of_what_was_drained_counts(self, make):
        prefetcher = sds.DevicePrefetcher(sds.StreamingDataLoader(make(), 4), depth=2)
        batches = iter(prefetcher)
        next(batches)
        line = prefetcher._line
        assert isinstance(line, Ahead)
        wait_for(lambda: len(line.ready) == 2)
        assert prefetcher.state_dict()["position"] == 4
        assert texts.keys(prefetcher.drain()) == ALL[4:12]
        assert prefetcher.state_dict()["position"] == 12

    def test_of_torchdatas_loader_is_that_of_the_batch_in_hand(self):
        def make_loader() -> StatefulDataLoader[int]:
            return StatefulDataLoader(list(range(20)), batch_size=4)

        bare, prefetcher = make_loader(), sds.DevicePrefetcher(make_loader(), depth=3)
        states = []
        for expected, batch in zip(bare, prefetcher, strict=True):
            assert batch.tolist() == expected.tolist()
            states.append(prefetcher.state_dict())
            assert str(states[-1]) == str(bare.state_dict())
        prefetcher.load_state_dict(states[1])
        assert [batch[0].item() for batch in prefetcher] == [8, 12, 16]

    def test_is_missing_where_the_loader_has_none(self):
        prefetcher = sds.DevicePrefetcher(Numbers())
        for ask in (prefetcher.state_dict, lambda: prefetcher.load_state_dict({})):
            with pytest.raises(StateError, match="the loader has no state: Numbers") as caught:
                ask()
            assert caught.value.hint

    def test_that_a_loader_cannot_give_is_an_error_only_where_it_is_asked_for(self):
        class Shy(Numbers):
            def state_dict(self) -> dict[str, Any]:
                raise StateError("not now", hint="later")

        prefetcher = sds.DevicePrefetcher(Shy())
        for _ in prefetcher:
            with pytest.raises(StateError, match="not now"):
                prefetcher.state_dict()
