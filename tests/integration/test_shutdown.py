"""Ending takes no time: whatever the loader does, whatever it waits for, it is gone at once when nobody wants it."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fetching
import sds
from sds.testing import HTTPServer

SIZE = 10_000
NUM_GOOD = 16
LIMIT_S = 0.5  # for everybody, in every state; a loaded machine may disturb one try of three
NUM_TRIES = 3
PATIENT_S = 2.0  # for what is tried once; torch's own patience with a worker is five


@pytest.fixture
def stalling() -> Iterator[fetching.RawServer]:
    """A store that takes a request and then says nothing."""
    with fetching.RawServer(lambda _: None) as server:
        yield server


@pytest.fixture
def index(
    http_server: HTTPServer, stalling: fetching.RawServer, tmp_path: Path, new_name: Callable[[], str]
) -> Callable[[bool], Path]:
    """An index of objects that come, and after them, if so wanted, of objects that never do."""
    urls = fetching.publish(http_server, new_name(), [SIZE] * NUM_GOOD)

    def make(ends_in_stall: bool) -> Path:
        stalled = [f"{stalling.url}/{i}.bin" for i in range(NUM_GOOD)] if ends_in_stall else []
        path = tmp_path / f"{ends_in_stall}.csv"
        path.write_text("index,url\n" + "\n".join(f"{i},{url}" for i, url in enumerate([*urls, *stalled])) + "\n")
        return path

    return make


def read(sample: dict[str, Any]) -> dict[str, Any]:
    return {"index": int(sample["index"]), "first": Path(sample["url"]).read_bytes()[0]}


def loader_in(state: str, index: Callable[[bool], Path], dst: Path, num_workers: int) -> tuple[Any, Any]:
    """A loader that is in the middle of something, and its iterator."""
    options: dict[str, Any] = {"columns_to_download": ["url"], "transforms": [read], "prefetch": 16}
    if state == "cache full":
        options |= {"transforms": None, "cache_limit": max(1, num_workers) * 12 * SIZE}
    dataset = sds.StreamingDataset(index(state == "stalled"), dst, **options)
    loader = sds.StreamingDataLoader(dataset, 2, num_workers=num_workers, persistent_workers=num_workers > 1)
    batches = iter(loader)
    if state == "finished":
        assert len(list(batches)) == NUM_GOOD // 2
    elif state != "fresh":
        for _ in range(NUM_GOOD // 2 if state == "stalled" else 2):
            next(batches)
    if state in ("idle", "cache full", "stalled"):
        time.sleep(0.3)  # everything that can be made ahead is made, or waited for
    if state == "server gone":
        for pid in fetching.server_pids(dst):
            fetching.kill(pid)
        time.sleep(0.05)  # its clients notice, and start another
    return loader, batches


def time_to_close(state: str, index: Callable[[bool], Path], dst: Path, num_workers: int) -> float:
    """How long a loader in a state, and its dataset, take to be gone."""
    loader, batches = loader_in(state, index, dst, num_workers)
    begun = time.monotonic()
    loader.close()
    closed_s = time.monotonic() - begun
    loader.dataset.close()
    both_s = time.monotonic() - begun
    fetching.say(f"{state}, {num_workers} workers: loader {closed_s:.3f} s, with its dataset {both_s:.3f} s")
    del batches
    return both_s


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_closing_takes_no_time(index: Callable[[bool], Path], dst: Path, num_workers: int) -> None:
    slow: dict[str, list[float]] = {}
    for state in ("fresh", "in flight", "idle", "cache full", "stalled", "server gone", "finished"):
        if state == "idle" and num_workers:
            continue  # the same as a full cache
        took_s: list[float] = []
        while len(took_s) < NUM_TRIES and min(took_s, default=LIMIT_S) >= LIMIT_S:
            took_s.append(time_to_close(state, index, dst / f"{state} {len(took_s)}", num_workers))
        if min(took_s) >= LIMIT_S:
            slow[state] = took_s
    assert not slow


def sleep(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["index"]) > 3:
        time.sleep(60)
    return read(sample)


@pytest.mark.parametrize("is_persistent", [False, True])
def test_a_worker_that_is_stuck_in_a_transform_is_ended(
    index: Callable[[bool], Path], dst: Path, is_persistent: bool
) -> None:
    dataset = sds.StreamingDataset(index(False), dst, columns_to_download=["url"], transforms=[sleep])
    loader = sds.StreamingDataLoader(dataset, 2, num_workers=2, persistent_workers=is_persistent)
    batches = iter(loader)
    next(batches), next(batches)
    begun = time.monotonic()
    loader.close()
    assert time.monotonic() - begun < PATIENT_S
    dataset.close()


@pytest.mark.parametrize("state", ["in flight", "stalled"])
def test_dropping_takes_no_time_either(index: Callable[[bool], Path], dst: Path, state: str) -> None:
    loader, batches = loader_in(state, index, dst, 0)
    begun = time.monotonic()
    del loader, batches
    gc.collect()
    assert time.monotonic() - begun < PATIENT_S


WAITS = """
import json, sys, sds
from pathlib import Path
def read(sample): return {'first': Path(sample['url']).read_bytes()[0]}
if __name__ == '__main__':
    index, dst, num_workers = json.loads(sys.argv[1])
    dataset = sds.StreamingDataset(index, dst, columns_to_download=['url'], transforms=[read])
    loader = sds.StreamingDataLoader(dataset, 2, num_workers=num_workers)
    for k, batch in enumerate(loader):
        if k == 7: print('waiting', flush=True)
"""


def test_ctrl_c_while_a_store_stalls(index: Callable[[bool], Path], dst: Path) -> None:
    args = json.dumps([str(index(True)), str(dst), 2])
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == b"waiting\n"
    time.sleep(0.3)
    begun = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the job
    _, errors = process.communicate(timeout=20)
    took_s = time.monotonic() - begun
    fetching.say(f"Ctrl-C while a store stalls, 2 workers: {took_s:.2f} s, Python's own end included")
    assert b"KeyboardInterrupt" in errors and process.returncode == -signal.SIGINT
    assert took_s < 2 * PATIENT_S
