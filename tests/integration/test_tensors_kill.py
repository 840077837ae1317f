"""kill -9 of writers at any moment, then go on: the same files as without, and nothing is computed twice."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import remembering
from sds.tensors import TensorCache

NUM_SAMPLES = 300
NUM_KILLS = 20

# a server that has imported what takes long, and forks: a start costs little
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["sds.loader", "sds.tensors"])


def start(*args: Any) -> Any:
    process = PROCESSES.Process(target=remembering.build, args=tuple(map(str, args[:1])) + args[1:])
    process.start()
    return process


def lines(log: Path) -> list[str]:
    return log.read_text().split("\n")[:-1] if log.exists() else []


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_twenty_kills_leave_no_trace(tmp_path: Path) -> None:
    remembering.build(str(tmp_path / "whole"), NUM_SAMPLES, str(tmp_path / "whole.log"))
    moments, log, folder = random.Random(6), tmp_path / "log", tmp_path / "cache"
    in_progress: list[str] = []
    for _ in range(NUM_KILLS):
        wanted = len(lines(log)) + moments.randrange(1, 2 * NUM_SAMPLES // (NUM_KILLS + 5))
        process = start(folder, NUM_SAMPLES, str(log))
        deadline = time.monotonic() + 60
        while len(lines(log)) < wanted and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(moments.random() * 0.003)
        process.kill()
        process.join()
        in_progress += lines(log)[-1:]
        if list(folder.glob("*.index")):  # a reader may look at any time
            cache = TensorCache(folder)
            assert [float(key) for key in cache.keys()] == [float(x["latent"]["samples"].mean()) for x in cache]  # noqa: SIM118
    process = start(folder, NUM_SAMPLES, str(log))
    process.join(60)
    assert process.exitcode == 0

    computed = Counter(lines(log))
    assert set(computed) == {str(number) for number in range(NUM_SAMPLES)}
    twice = Counter({key: count - 1 for key, count in computed.items() if count > 1})
    assert not twice - Counter(in_progress)  # only what was in progress when the process was killed
    assert files(folder) == files(tmp_path / "whole")
    TensorCache(folder).verify()


def test_ranks_build_side_by_side_and_one_is_killed(tmp_path: Path) -> None:
    folder, size = tmp_path / "cache", 3
    logs = [tmp_path / f"log-{rank}" for rank in range(size)]
    ranks = [start(folder, NUM_SAMPLES, str(logs[rank]), rank, size) for rank in range(size)]
    deadline = time.monotonic() + 60
    while len(lines(logs[1])) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    ranks[1].kill()
    for process in ranks:
        process.join(60)
    assert [ranks[0].exitcode, ranks[2].exitcode] == [0, 0]
    again = [start(folder, NUM_SAMPLES, str(logs[rank]), rank, size) for rank in range(size)]
    for process in again:
        process.join(60)
        assert process.exitcode == 0
    cache = TensorCache(folder)
    cache.verify()
    assert sorted(map(int, cache.keys())) == list(range(NUM_SAMPLES))
    assert [float(key) for key in cache.keys()] == [float(x["latent"]["samples"].mean()) for x in cache]  # noqa: SIM118
    assert len(lines(logs[0])) == len(lines(logs[2])) == NUM_SAMPLES // size  # nobody did another's work
    assert len(lines(logs[1])) <= NUM_SAMPLES // size + 1
    assert not (folder / ".parts").exists()
