"""Absolute bounds on time, always checked, the best of three tries; `-m "not speed"` leaves them out.

A fresh process imports torch and sds; then the clock starts. It includes all else: the rest of the imports, reading and
converting a Parquet index of a million rows (once: it is kept), opening it, and the first sample of a global shuffle.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fetching
import sds
from sds.testing import HTTPServer

pytestmark = pytest.mark.speed

NUM_ROWS = 1_000_000
NUM_FILES = 500
NUM_TRIES = 3

COLD_S = 1.5  # the first sample when the index must be converted
WARM_S = 0.5  # and when it has been
ACCESS_S = 1e-3  # the median of `dataset[i]`

OPEN = """
import json, sys, time
import sds, torch
start = time.perf_counter()
dataset = sds.StreamingDataset(sys.argv[1], sys.argv[2], columns_to_download=["file"], shuffle_seed=1)
ready = time.perf_counter()
sample = next(iter(dataset))
first = time.perf_counter()
assert open(sample["file"]).read() == f"file {int(sample['id']) % 500}", sample
print(json.dumps({"ready_s": ready - start, "first_s": first - start, "rows": len(dataset)}))
"""


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("million")
    for i in range(NUM_FILES):
        (folder / f"{i}.txt").write_text(f"file {i}")
    numbers = range(NUM_ROWS)
    table = pa.table(
        {
            "id": [f"{i:08d}" for i in numbers],
            "file": [f"{folder}/{i % NUM_FILES}.txt" for i in numbers],
            "caption": [f"a photo of object number {i}" for i in numbers],
            "width": list(numbers),
        }
    )
    pq.write_table(table, folder / "index.parquet")
    return folder / "index.parquet"


def best_s(measure: Callable[[int], float], bound_s: float) -> float:
    """The shortest of up to three tries, until one is within the bound: something else may be in the way of one."""
    found = [measure(0)]
    while min(found) >= bound_s and len(found) < NUM_TRIES:
        found.append(measure(len(found)))
    return min(found)


def first_sample(src: Path, dst: Path) -> float:
    done = subprocess.run([sys.executable, "-c", OPEN, str(src), str(dst)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["rows"] == NUM_ROWS
    return float(measured["first_s"])


def test_a_million_rows_are_ready_and_the_first_sample_is_here(million: Path, tmp_path: Path) -> None:
    cold = best_s(lambda k: first_sample(million, tmp_path / f"dst-{k}"), COLD_S)
    warm = best_s(lambda _: first_sample(million, tmp_path / "dst-0"), WARM_S)
    fetching.say(f"first of a million rows: cold {cold:.2f} s (index conversion included), warm {warm:.2f} s")
    assert cold < COLD_S
    assert warm < WARM_S


def median_access_s(dataset: sds.StreamingDataset) -> float:
    dataset[0]
    times = []
    for k in range(1000):
        row = k * 7919 % len(dataset)
        start = time.perf_counter()
        dataset[row]
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def test_random_access_to_local_samples(million: Path, tmp_path: Path) -> None:
    with sds.StreamingDataset(million, tmp_path / "dst", columns_to_download=["file"], shuffle_seed=1) as dataset:
        median = best_s(lambda _: median_access_s(dataset), ACCESS_S)
    fetching.say(f"random access, local file, one of a million rows: median {median * 1e3:.3f} ms")
    assert median < ACCESS_S


def test_random_access_to_cached_samples(
    http_server: HTTPServer, new_name: Callable[[], str], tmp_path: Path, dst: Path
) -> None:
    folder = new_name()
    for i in range(100):
        http_server.put(f"{folder}/{i}.txt", b"x" * 1000)
    rows = [f"{i},{http_server.url(f'{folder}/{i}.txt')}" for i in range(100)]
    (tmp_path / "index.csv").write_text("\n".join(["index,url", *rows]))
    with sds.StreamingDataset(tmp_path / "index.csv", dst, columns_to_download=["url"]) as dataset:
        dataset[:]
        median = best_s(lambda _: median_access_s(dataset), ACCESS_S)
    fetching.say(f"random access, cached file: median {median * 1e3:.3f} ms")
    assert median < ACCESS_S
