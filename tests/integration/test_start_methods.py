"""fork, spawn and forkserver, from a parent that has used its dataset and from one that has not; and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from torch.utils.data import DataLoader

import sds
from integration.gang import HERE, read_file
from sds.testing.resume import sample_keys

ROWS = 40


@pytest.fixture(scope="module")
def source(s3, tmp_path_factory):
    """An index of 40 objects on a real S3 server."""
    folder, bucket = tmp_path_factory.mktemp("source"), f"start-{os.getpid()}"
    s3.create_bucket(bucket)
    for i in range(ROWS):
        s3.put(bucket, f"{i:03}.bin", content(i))
    lines = ["index,file", *(f"{i:03},s3://{bucket}/{i:03}.bin" for i in range(ROWS))]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return folder / "rows.csv"


def content(i):
    return bytes([i]) * (100 + i)


@pytest.mark.parametrize("used", [False, True], ids=["fresh parent", "used parent"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_kind_read_the_same(source, s3, tmp_path, method, used):
    with sds.StreamingDataset(
        source,
        tmp_path / "cache",
        columns_to_download=["file"],
        transforms=[read_file],
        shuffle_seed=7,
        storage_options=s3.storage_options,
    ) as ds:
        order = ds.plan.rows(0, 0, ROWS).tolist()
        if used:
            assert ds[3]["content"] == content(3)
            assert [sample["__sample_key__"] for sample in ds[5:8]] == ["005", "006", "007"]
            assert len(list(ds)) == ROWS
            iterator = iter(ds)
            next(iterator)  # and one iteration is still going on, with files on the way
            ds.set_epoch(0)
        with sds.StreamingDataLoader(ds, 8, num_workers=2, multiprocessing_context=method) as loader:
            batches = list(loader)
        assert [int(key) for batch in batches for key in sample_keys(batch)] == order
        assert [data for batch in batches for data in batch["content"]] == [content(i) for i in order]
        ds.set_epoch(0)
        plain = DataLoader(ds, 4, num_workers=1, multiprocessing_context=method)
        assert [int(key) for batch in plain for key in sample_keys(batch)] == order
        assert ds[3]["content"] == content(3), "and the parent goes on"
        if used:
            iterator.close()


@pytest.mark.parametrize("num_workers", [4, 0])
def test_ctrl_c_ends_at_once_and_a_restart_goes_on(source, s3, tmp_path, num_workers):
    log = tmp_path / "log"
    args = {
        "src": str(source),
        "cache": str(tmp_path / "cache"),
        "storage_options": s3.storage_options,
        "num_workers": num_workers,
        "state": None,
        "log": str(log),
        "seconds": 0.05,
        "bare": False,
    }
    bare = tmp_path / "bare"
    idle = start_loop({**args, "cache": str(tmp_path / "other"), "log": str(bare), "bare": True})
    wait_for(bare.exists, idle)
    process = start_loop(args)
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) >= 3, process)
    family = psutil.Process(process.pid).children(recursive=True)
    assert sum("gang.py" in " ".join(child.cmdline()) for child in family) == num_workers
    seconds, errors = interrupt(process)
    seconds_of_nothing, _ = interrupt(idle)
    assert process.returncode == -signal.SIGINT, errors
    assert "KeyboardInterrupt" in errors
    assert seconds - seconds_of_nothing < 1.0, f"{seconds:.2f} s, {seconds_of_nothing:.2f} s without data\n{errors}"
    wait_for(lambda: not any(child.is_running() for child in family), None)
    done = [json.loads(line) for line in log.read_text().splitlines()]
    args |= {"state": done[-1]["state"], "seconds": 0}
    subprocess.run([sys.executable, str(HERE), "loop", json.dumps(args)], check=True, timeout=30)
    keys = [key for line in log.read_text().splitlines() for key in json.loads(line)["keys"]]
    assert sorted(keys) == [f"{i:03}" for i in range(ROWS)]


def start_loop(args):
    command = [sys.executable, str(HERE), "loop", json.dumps(args)]
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)


def interrupt(process):
    """Ctrl-C, as a terminal sends it: to the whole group. Seconds until the prompt is back, and what was printed."""
    start = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=10)
    seconds = time.monotonic() - start
    return seconds, process.communicate(timeout=10)[1]


def wait_for(condition, process, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
