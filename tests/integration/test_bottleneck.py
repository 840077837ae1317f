"""The stage that is slow is the one that is named, with the knob that helps: in threads and in worker processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sds
import texts
from sds.events import Stats
from sds.loader import collate
from sds.testing import Fault, FaultyProxy, HTTPServer

SLOW_S = 0.015  # a sample; a step has four
CREWS = [{"num_threads": 2}, {"num_workers": 2}]


class Decode(texts.Slow):
    """A decoder that takes its time."""

    stage = "decode"


def slow_collate(samples):
    time.sleep(4 * SLOW_S)
    return collate(samples)


@pytest.fixture(params=CREWS, ids=["threads", "workers"])
def crew(request: pytest.FixtureRequest) -> dict[str, int]:
    return request.param


@pytest.fixture
def slow_store(http_server: HTTPServer, new_name, tmp_path: Path) -> Iterator[Path]:
    """An index of twenty texts on a web server that thinks before it answers."""
    folder = new_name()
    for number in range(20):
        http_server.put(f"{folder}/{number:03d}.txt", b"text")
    with FaultyProxy(http_server.endpoint, [Fault("delay", seconds=0.1)]) as proxy:
        rows = [f"{number:03d},{proxy.endpoint}/{folder}/{number:03d}.txt" for number in range(20)]
        index = tmp_path / "index.csv"
        index.write_text("\n".join(["index,txt", *rows]))
        yield index


def run(dataset: sds.StreamingDataset, step_s: float = 0.0, **options) -> Stats:
    with sds.StreamingDataLoader(dataset, 4, **options) as loader:
        for _ in loader:
            time.sleep(step_s)
        return loader.stats()


def line(stats: Stats) -> str:
    (found,) = [each for each in str(stats).splitlines() if each.startswith("bottleneck: ")]
    return found


def test_slow_downloads(make, slow_store, crew):
    dataset = make(src=slow_store, prefetch=8, num_downloading_workers=2)
    stats = run(dataset, **crew)
    assert line(stats).startswith("bottleneck: fetch (")
    assert "num_downloading_workers" in line(stats)
    assert stats.misses == stats.requests == 20
    assert stats.slowest[0].seconds >= 0.1
    assert sum(each.requests for each in stats.traffic) == 20
    assert sum(each.num_bytes for each in stats.traffic) == stats.bytes_downloaded == 80


def test_files_that_are_asked_for_too_late(make, slow_store):
    """Connections are there, and most of them idle: more of them would not help."""
    stats = run(make(src=slow_store, prefetch=4, num_downloading_workers=64), num_threads=2)
    assert line(stats) == "bottleneck: fetch (raise prefetch (now 4): files are asked for too late)"


def test_slow_decoding(make, crew):
    stats = run(make(transforms=[Decode(SLOW_S)]), **crew)
    assert stats.bottleneck == "decode", stats
    assert "raise num_threads (now 2)" in line(stats) or "raise num_workers (now 2)" in line(stats)
    assert stats.busy_s["decode"] >= 40 * SLOW_S


def test_slow_transforms(make, crew):
    stats = run(make(transforms=[Decode(SLOW_S / 5), texts.Slow(SLOW_S)]), **crew)
    assert stats.bottleneck == "transform", stats
    assert "num_workers" in line(stats)


def test_slow_collation(make, crew):
    # with threads, one of them collates; in a worker, collation is one stage of four, one after the other
    stats = run(make(transforms=[Decode(SLOW_S / 2)]), collate_fn=slow_collate, **crew)
    assert stats.bottleneck == "collate", stats
    assert "num_workers" in line(stats) and "smaller tensors" in line(stats)


def test_decode_threads_share_their_work_and_collation_has_one(make):
    """Twice as many seconds of decoding as of collation, by four threads: collation is what all wait for."""
    stats = run(make(transforms=[Decode(2 * SLOW_S)]), num_threads=4, collate_fn=slow_collate)
    assert stats.busy_s["decode"] > 1.5 * stats.busy_s["collate"]
    assert stats.bottleneck == "collate", stats


def test_a_slow_training_step(make, crew):
    stats = run(make(transforms=[Decode(SLOW_S / 15)]), step_s=0.2, **crew)
    assert line(stats) == "bottleneck: consumer (none here: the training step is what takes the time)", stats
    assert stats.busy_s["consumer"] >= 1.8
    assert stats.queue_depths["batches"] > 0.5, "batches were ready when it asked"


def test_a_bare_iteration(make):
    dataset = make(transforms=[Decode(SLOW_S)])
    list(dataset)
    assert line(dataset.stats()).startswith("bottleneck: decode (use a loader")
    dataset = make()
    for _ in dataset:
        time.sleep(0.005)
    assert dataset.stats().bottleneck == "consumer"


def test_a_mix(make, slow_store, crew):
    datasets = [make(transforms=[Decode(SLOW_S / 5)]), make(src=slow_store, prefetch=4, num_downloading_workers=2)]
    streams = [{"name": name, "ratio": 0.5, "batch_size": 4} for name in ("local", "remote")]
    with sds.MultiStreamDataLoader(datasets, streams, stop="first", **crew) as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    assert stats.bottleneck == "fetch", stats
    assert (stats.num_workers, stats.num_threads) == (crew.get("num_workers", 0), crew.get("num_threads", 0))
