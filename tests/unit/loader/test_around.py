"""What goes around a loader counts, traces and records as its own caller sees it, whoever's loader it is."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sds
from sds.events import Stats
from sds.loader.device_ahead import Ahead
from sds.observe import read_run
from sds.testing import SimulatedDevice


class Numbers:
    """A loader of somebody else."""

    def __init__(self, length: int = 10, seconds: float = 0.0) -> None:
        self.length = length
        self.seconds = seconds

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for k in range(self.length):
            time.sleep(self.seconds)
            yield {"x": torch.full((4,), k)}


class SlowToCopy(SimulatedDevice):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def copy(self, source: torch.Tensor, stream: object) -> torch.Tensor:
        time.sleep(self.seconds)
        return super().copy(source, stream)


def wait_for(claim: Any, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def work(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": torch.zeros(1000)}


def slices(path: Path) -> list[tuple[str, str]]:
    """Each slice of a trace, with the name of its thread."""
    events = json.loads(path.read_text())
    threads = {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"}
    return [(each["name"], threads[each["pid"], each["tid"]]) for each in events if each["ph"] == "X"]


class TestStats:
    def test_are_the_loaders_with_copies_and_waits_of_the_caller(self, make):
        loader = sds.StreamingDataLoader(make(transforms=[work]), 4)
        prefetcher = sds.DevicePrefetcher(loader, SimulatedDevice())
        assert prefetcher.stats() == loader.stats()
        for _ in prefetcher:
            time.sleep(0.01)
        stats = prefetcher.stats()
        assert stats.samples == 40 and stats.batches == 10
        assert 0 < stats.busy_s["device"] < stats.wall_s
        assert stats.busy_s["consumer"] >= 0.1
        assert stats.wait_s["startup"] <= stats.wait_s["consumer"] < stats.wall_s
        assert stats.queue_depths["device"] > 0
        assert "device" in str(stats)

    def test_count_what_was_handed_out_not_what_is_ahead(self, make):
        prefetcher = sds.DevicePrefetcher(sds.StreamingDataLoader(make(transforms=[work]), 4), depth=5)
        for _ in prefetcher:
            line = prefetcher._line
            assert isinstance(line, Ahead)
            wait_for(lambda: len(line.ready) == 5)  # noqa: B023 (there is one round only)
            stats = prefetcher.stats()
            assert (stats.batches, stats.samples) == (1, 4)
            assert "consumer" not in stats.busy_s, "the pauses of the thread that reads are nobody's training step"
            break
        list(prefetcher)  # the epoch again, from its start
        assert (prefetcher.stats().batches, prefetcher.stats().samples) == (11, 44)
        assert prefetcher.num_given == 44

    def test_of_one_inside_another_are_those_of_the_outer_caller(self, make):
        inner = sds.DevicePrefetcher(sds.StreamingDataLoader(make(transforms=[work]), 4), SimulatedDevice())
        outer = sds.DevicePrefetcher(inner)
        next(iter(outer))
        assert (outer.stats().batches, outer.stats().samples) == (1, 4)
        assert outer.stats().busy_s["device"] > 0
        outer.close()

    @pytest.mark.parametrize("stage", ["transform", "device", "consumer"])
    def test_name_the_bottleneck(self, make, stage: str):
        def slow(sample: dict[str, Any]) -> dict[str, Any]:
            time.sleep(0.02 * (stage == "transform"))
            return {"x": torch.zeros(3)}

        loader = sds.StreamingDataLoader(make(transforms=[slow]), 4, num_threads=2)
        prefetcher = sds.DevicePrefetcher(loader, SlowToCopy(0.02 * (stage == "device")))
        for _ in prefetcher:
            time.sleep(0.05 * (stage == "consumer"))
        assert prefetcher.stats().bottleneck == stage

    @pytest.mark.parametrize("depth", [0, 2])
    @pytest.mark.parametrize("stage", ["loader", "device", "consumer"])
    def test_name_the_bottleneck_of_a_loader_of_somebody_else(self, stage: str, depth: int):
        for _ in range(3):  # a busy machine may disturb one
            device = SlowToCopy(0.02 * (stage == "device"))
            prefetcher = sds.DevicePrefetcher(Numbers(4, 0.02 * (stage == "loader")), device, depth=depth)
            for _ in prefetcher:
                time.sleep(0.1 * (stage == "consumer"))
            stats = prefetcher.stats()
            if stats.bottleneck == stage:
                break
        assert stats.bottleneck == stage, stats
        assert stats.batches == 4 and stats.busy_s["device"] > 0
        assert str(stats).startswith("batches: 4 in "), "nobody knows how many samples those are"
        if stage == "loader":
            assert "num_downloading_workers" not in stats.knob and "its own workers" in stats.knob


class TestTraces:
    def test_have_the_copies_and_the_callers_steps(self, make, tmp_path):
        prefetcher: Any = sds.StreamingDataLoader(make(transforms=[work]), 4)
        for _ in range(2):
            prefetcher = sds.DevicePrefetcher(prefetcher, SimulatedDevice())
        prefetcher.trace(tmp_path / "trace.json")
        list(prefetcher)
        prefetcher.close()
        found = slices(tmp_path / "trace.json")
        assert found.count(("device", "sds-device")) == 20
        assert {thread for name, thread in found if name == "training step"} == {"MainThread"}
        assert found.count(("training step", "MainThread")) == 10
        assert ("between batches", "sds-device") in found
        assert sum(name == "collate" for name, _ in found) == 10

    def test_of_a_loader_of_somebody_else_have_what_is_done_here(self, tmp_path):
        prefetcher = sds.DevicePrefetcher(Numbers(5), SimulatedDevice())
        prefetcher.trace(tmp_path / "trace.json")
        list(prefetcher)
        prefetcher.close()
        found = slices(tmp_path / "trace.json")
        assert found.count(("wait for loader", "sds-device")) == 6  # and the end
        assert found.count(("device", "sds-device")) == 5
        assert found.count(("training step", "MainThread")) == 5
        assert prefetcher.listener is None


class TestRecords:
    def test_are_of_the_caller(self, make, tmp_path):
        prefetcher = sds.DevicePrefetcher(sds.StreamingDataLoader(make(transforms=[work]), 4), SimulatedDevice())
        with prefetcher:
            prefetcher.record(tmp_path / "run.jsonl", every_s=1000)
            list(prefetcher)
        run = read_run(tmp_path / "run.jsonl")
        assert run.stats == prefetcher.stats()
        assert run.stats.samples == 40 and run.stats.busy_s["device"] > 0

    def test_of_a_loader_of_somebody_else(self, tmp_path):
        with sds.DevicePrefetcher(Numbers(5)) as prefetcher:
            prefetcher.record(tmp_path / "run.jsonl", every_s=1000)
            list(prefetcher)
        assert read_run(tmp_path / "run.jsonl").stats.batches == 5

    def test_keep_no_loader_alive(self, make, tmp_path):
        loader = sds.StreamingDataLoader(make(), 4)
        loader.record(tmp_path / "run.jsonl", every_s=0.005)
        list(loader)
        recording = [thread for thread in threading.enumerate() if thread.name == "sds-record"]
        assert recording
        del loader
        gc.collect()
        for thread in recording:
            thread.join(10)
            assert not thread.is_alive()
        assert isinstance(read_run(tmp_path / "run.jsonl").stats, Stats)
