"""kill -9 of the fetch server, of a worker and of the main process, mid-epoch, ten times each.

No partial file is ever served (the reader checks every byte), the next start goes on, everything is delivered, and no
process or socket is left behind within five seconds.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import fetching
import reading
from sds.fetch.launch import _name_of, _runtime_folder
from sds.testing import S3Server

NUM_OBJECTS = 120
SIZE = 20_000
NUM_KILLS = 10

# a server that has imported what takes long, and forks: a start costs little
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["sds.loader"])


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Reader:
    """The reader, started as often as need be, and what it wrote down."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.notes = Path(settings["notes"])
        self.dst = Path(settings["dst"])
        self.enough = Path(settings["enough"])
        self.process: Any = None

    def start(self) -> None:
        self.process = PROCESSES.Process(target=reading.main, args=(self.settings,))
        self.process.start()

    def finish(self, timeout_s: float = 60) -> None:
        self.enough.touch()
        self.process.join(timeout_s)
        assert self.process.exitcode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def known(self) -> dict[str, Any]:
        return (
            json.loads(self.notes.read_text()) if self.notes.exists() else {"delivered": [], "deaths": 0, "workers": []}
        )

    def wait_for_batches(self, number: int) -> None:
        """Waits until so many more were delivered."""
        before = len(self.known()["delivered"])
        deadline = time.monotonic() + 60
        while len(self.known()["delivered"]) < before + 4 * number:
            assert self.is_running, "it ended before it could be killed"
            assert time.monotonic() < deadline, "no progress"
            time.sleep(0.005)

    def workers(self) -> list[int]:
        return [pid for pid in self.known()["workers"] if is_running(pid)]


@pytest.fixture
def reader(s3: S3Server, bucket: str, tmp_path: Path, dst: Path) -> Iterator[Callable[..., Reader]]:
    made: list[Reader] = []
    folder = tmp_path / "objects"
    folder.mkdir()
    bodies = [random.Random(i).randbytes(SIZE) for i in range(NUM_OBJECTS)]
    names = [hashlib.sha256(body).hexdigest() for body in bodies]
    for name, body in zip(names, bodies, strict=True):
        (folder / name).write_bytes(body)
    s3.upload_folder(folder, bucket)
    src = tmp_path / "index.csv"
    src.write_text("\n".join(["index,url", *(f"{name},s3://{bucket}/{name}" for name in names)]))

    def one(**settings: Any) -> Reader:
        given = {
            "src": str(src),
            "dst": str(dst),
            "notes": str(tmp_path / "notes.json"),
            "enough": str(tmp_path / "enough"),
            "num_epochs": 2,
            "pause_s": 0.01,
            "start_method": "fork",
            "cache_limit": NUM_OBJECTS * SIZE // 2,  # so that there is always something to fetch
            "storage_options": s3.storage_options,
        }
        made.append(Reader({**given, **settings}))
        return made[-1]

    yield one
    for each in made:
        if each.is_running:
            each.kill()


def check_delivered(reader: Reader) -> None:
    """Every epoch had every row once."""
    counts = Counter(map(tuple, reader.known()["delivered"]))
    rows = {line.split(",")[0] for line in Path(reader.settings["src"]).read_text().splitlines()[1:]}
    num_epochs = max(epoch for epoch, _ in counts) + 1
    assert num_epochs >= reader.settings["num_epochs"]
    assert set(counts) == {(epoch, row) for epoch in range(num_epochs) for row in rows}
    assert set(counts.values()) == {1}


def check_nothing_is_left(reader: Reader) -> None:
    socket = _runtime_folder() / f"{_name_of(str(reader.dst))}.sock"
    fetching.until(lambda: not fetching.server_pids(reader.dst) and not reader.workers(), 5)
    fetching.until(lambda: not socket.exists(), 5)
    names = {line.split(",")[0] for line in Path(reader.settings["src"]).read_text().splitlines()[1:]}
    for path in reader.dst.glob("objects/*/*"):
        assert not path.name.startswith("part-"), f"half a file: {path}"
        assert hashlib.sha256(path.read_bytes()).hexdigest() in names


def test_the_fetch_server_is_killed(reader: Callable[..., Reader]) -> None:
    """The reader does not notice."""
    running = reader()
    running.start()
    chance = random.Random(1)
    killed: set[int] = set()
    while len(killed) < NUM_KILLS:
        running.wait_for_batches(chance.randint(1, 5))
        for pid in fetching.server_pids(running.dst):
            fetching.kill(pid)
            killed.add(pid)
        time.sleep(chance.uniform(0, 0.2))
    running.wait_for_batches(NUM_OBJECTS // 4)  # the last one killed has a successor, which takes over its socket
    running.finish()
    assert running.known()["deaths"] == 0
    check_delivered(running)
    check_nothing_is_left(running)


def test_a_worker_is_killed(reader: Callable[..., Reader]) -> None:
    """The loop gets an error, and goes on from its state; one that had nothing left to do is not missed."""
    running = reader()
    running.start()
    chance = random.Random(2)
    while running.known()["deaths"] < NUM_KILLS:
        running.wait_for_batches(chance.randint(1, 5))
        workers = running.workers()
        if workers:
            os.kill(chance.choice(workers), signal.SIGKILL)
    running.finish()
    check_delivered(running)
    check_nothing_is_left(running)


def test_the_main_process_is_killed(reader: Callable[..., Reader]) -> None:
    """The next start goes on where the last state says; at times while the old server is still there."""
    running = reader(pause_s=0.03)
    chance = random.Random(3)
    for number in range(NUM_KILLS):
        running.settings["start_method"] = "forkserver" if number % 3 == 0 else "fork"
        running.start()
        running.wait_for_batches(chance.randint(1, 4))
        time.sleep(chance.uniform(0, 0.05))
        running.kill()
        if number % 3 == 0:
            fetching.until(lambda: not fetching.server_pids(running.dst) and not running.workers(), 5)
    running.start()
    running.finish()
    # what was handed out after the last state was written down comes again: with the state, nothing is lost or repeated
    check_delivered(running)
    check_nothing_is_left(running)
