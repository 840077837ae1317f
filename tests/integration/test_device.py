"""DevicePrefetcher with real processes, signals and servers: nothing hangs, nothing is left, time overlaps."""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import fetching
import sds
import texts
from sds.testing import SimulatedDevice
from sds.transforms import LoadText

ALL = texts.ids(*range(40))
LIMIT_S = 1.0


def our_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("sds-device", "sds-feed", "sds-decode"))]


def wait_for(claim: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    if our_threads():
        gc.collect()
    wait_for(lambda: not our_threads(), 10)


# ---- Ctrl-C --------------------------------------------------------------------------------------------------------


class Stage:
    """Something that is reached, and then takes until it is let go: nothing in Python can end it."""

    stage = "transform"

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self.is_over = threading.Event()

    def __call__(self, value: Any) -> Any:
        self.is_reached.set()
        self.is_over.wait(60)
        return value


class Keyboard(threading.Thread):
    """Ctrl-C, once a stage is reached."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.pressed_at = math.inf

    def run(self) -> None:
        assert self.stage.is_reached.wait(20)
        time.sleep(0.1)
        self.pressed_at = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)


class SlowToCopy(SimulatedDevice):
    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def copy(self, source: torch.Tensor, stream: Any) -> torch.Tensor:
        return self.stage(super().copy(source, stream))


def forever(stage: Stage) -> Iterator[int]:
    """A loader of somebody else, that waits in Python."""
    stage.is_reached.set()
    while not stage.is_over.is_set():
        time.sleep(0.02)
    yield 0


@pytest.fixture
def silent_store() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/file.txt"


@pytest.mark.parametrize("name", ["python", "fetch", "decode", "transform", "collate", "device", "training step"])
def test_ctrl_c_reaches_the_loop_soon_in_every_stage(
    name: str, make: Callable[..., sds.StreamingDataset], tmp_path: Path, silent_store: str
) -> None:
    stage = Stage()
    device: Any = None
    if name == "python":
        loader: Any = forever(stage)
    elif name == "fetch":
        (tmp_path / "index.csv").write_text(f"index,txt\n0,{silent_store}\n")
        loader = sds.StreamingDataLoader(make(src=tmp_path / "index.csv"), 1)
        threading.Timer(1.0, stage.is_reached.set).start()  # the fetch server is up, and waits
    elif name in ("decode", "transform"):
        stage.stage = name
        loader = sds.StreamingDataLoader(make(transforms=[stage]), 4)
    elif name == "collate":
        loader = sds.StreamingDataLoader(make(), 4, collate_fn=stage)
    elif name == "device":
        loader, device = [torch.ones(3)] * 9, SlowToCopy(stage)
    else:
        loader = [torch.ones(3)] * 9
    keyboard = Keyboard(stage)
    keyboard.start()
    prefetcher = sds.DevicePrefetcher(loader, device)
    with pytest.raises(KeyboardInterrupt):
        for _ in prefetcher:
            stage.is_reached.set()
            time.sleep(30)  # the training step
    took_s = time.monotonic() - keyboard.pressed_at
    fetching.say(f"Ctrl-C, {name}: {took_s:.3f} s; threads left: {our_threads()}")
    assert took_s < LIMIT_S
    if name in ("fetch", "training step"):
        wait_for(lambda: not our_threads(), 5)
    stage.is_over.set()  # what nobody can end does; so do the threads
    keyboard.join()


@pytest.mark.parametrize("kind", ["loader", "mix"])
@pytest.mark.parametrize("name", ["decode", "transform", "collate"])
def test_ctrl_c_reaches_a_loop_without_prefetching_soon_in_every_stage(
    name: str, kind: str, make: Callable[..., sds.StreamingDataset]
) -> None:
    """Whoever is in the middle of something ends by itself."""
    stage = Stage()
    stage.stage = name
    dataset = make(transforms=[] if name == "collate" else [stage])
    collate_fn = stage if name == "collate" else None
    loader: Any
    if kind == "loader":
        loader = sds.StreamingDataLoader(dataset, 4, collate_fn=collate_fn)
    else:
        stream = {"name": "a", "ratio": 1, "batch_size": 4}
        loader = sds.MultiStreamDataLoader([dataset], [stream], collate_fn=collate_fn)
    keyboard = Keyboard(stage)
    keyboard.start()
    with pytest.raises(KeyboardInterrupt):
        next(iter(loader))
    took_s = time.monotonic() - keyboard.pressed_at
    fetching.say(f"Ctrl-C, {name}, {kind}: {took_s:.3f} s")
    assert took_s < LIMIT_S
    stage.is_over.set()
    keyboard.join()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", ["fetch", "decode", "transform", "collate", "device"])
def test_an_error_reaches_the_loop_soon_in_every_stage(
    name: str, num_workers: int, make: Callable[..., sds.StreamingDataset], tmp_path: Path
) -> None:
    index = tmp_path / "index.csv"
    good = [texts.write(tmp_path / "good", 8) / f"{k:03d}.txt" for k in range(8)]
    if name == "fetch":
        good[4] = tmp_path / "gone.txt"
    if name == "decode":
        good[4].write_bytes(b"\xff")  # no text
    index.write_text("\n".join(["index,txt", *(f"{k},{path}" for k, path in enumerate(good))]))
    failing = Failing(name)
    dataset = make(src=index, transforms=[LoadText("txt"), failing], on_error="raise")
    device = FailsToCopy() if name == "device" else None
    context = "fork" if num_workers else None
    loader = sds.StreamingDataLoader(
        dataset, 2, num_workers=num_workers, collate_fn=failing.collate, multiprocessing_context=context
    )
    seen = 0
    with pytest.raises((sds.SdsError, MemoryError)) as caught:
        for _ in sds.DevicePrefetcher(loader, device):
            seen += 1
    assert seen == 2
    stage = getattr(caught.value, "stage", "device")
    assert stage == name
    if failing.failed_at:  # in this process
        assert time.monotonic() - failing.failed_at < LIMIT_S


class Failing:
    """A transform and a collate function, of which one fails at the fifth row."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.failed_at = 0.0

    def _fail(self) -> None:
        self.failed_at = time.monotonic()
        raise ZeroDivisionError("no luck")

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if self.stage == "transform" and int(sample["index"]) == 4:
            self._fail()
        return {"x": torch.ones(2), "number": int(sample["index"])}

    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        if self.stage == "collate" and samples[0]["number"] == 4:
            self._fail()
        return {"x": torch.stack([sample["x"] for sample in samples])}


class FailsToCopy(SimulatedDevice):
    def copy(self, source: torch.Tensor, stream: Any) -> torch.Tensor:
        if self.num_copies == 2:
            raise MemoryError("the device is full")
        return super().copy(source, stream)


# ---- processes -----------------------------------------------------------------------------------------------------


def test_worker_processes_feed_it_and_end_with_it(make: Callable[..., sds.StreamingDataset]) -> None:
    loader = sds.StreamingDataLoader(make(transforms=[texts.read]), 4, num_workers=2, multiprocessing_context="fork")
    prefetcher = sds.DevicePrefetcher(loader, depth=3)
    for _ in prefetcher:
        break
    wait_for(lambda: not our_threads(), 10)
    assert texts.keys(prefetcher) == ALL
    prefetcher.close()


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor(i * i)


def test_torchs_loader_with_workers(make: Callable[..., sds.StreamingDataset]) -> None:
    loader = DataLoader(Squares(), batch_size=8, num_workers=2, multiprocessing_context="fork")
    device = SimulatedDevice(1)
    prefetcher = sds.DevicePrefetcher(loader, device)
    for _ in prefetcher:
        break
    found = [device.read(batch) for batch in prefetcher]
    assert [n for each in found for n in each.value().tolist()] == [i * i for i in range(40)]
    assert device.mistakes == []


def test_a_worker_that_is_killed_is_an_error_soon(make: Callable[..., sds.StreamingDataset]) -> None:
    """Also where torch hears of no death: its workers are started by the thread that reads."""
    loader = sds.StreamingDataLoader(
        make(transforms=[SlowFrom(8)]), 4, num_workers=1, multiprocessing_context="fork", prefetch_batches=1
    )
    batches = iter(sds.DevicePrefetcher(loader, depth=1))
    next(batches), next(batches)
    killed: list[float] = []

    def kill() -> None:
        killed.append(time.monotonic())
        for worker in multiprocessing.active_children():
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)

    timer = threading.Timer(0.3, kill)
    timer.start()
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        next(batches)
    took_s = time.monotonic() - killed[0]
    fetching.say(f"a killed worker is an error after {took_s:.2f} s")
    assert took_s < 2.5  # torch looks every five seconds
    timer.join()


class SlowFrom:
    """A transform that does not return from a row on."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["index"]) >= self.first:
            time.sleep(60)
        return sample


def test_ctrl_c_while_workers_make_nothing(make: Callable[..., sds.StreamingDataset]) -> None:
    """The loop does not wait for them, and they end."""
    loader = sds.StreamingDataLoader(
        make(transforms=[texts.Slow(60)]), 4, num_workers=1, multiprocessing_context="fork"
    )
    prefetcher = sds.DevicePrefetcher(loader)
    begun = time.monotonic()
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(iter(prefetcher))
    assert time.monotonic() - begun < 1.0 + LIMIT_S
    wait_for(lambda: not our_threads(), 4)  # torch looks every five seconds


def test_a_fork_in_the_middle_leaves_both_sides_alive(make: Callable[..., sds.StreamingDataset]) -> None:
    prefetcher = sds.DevicePrefetcher(sds.StreamingDataLoader(make(), 2), depth=4)
    batches = iter(prefetcher)
    seen = texts.keys([next(batches)])
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        del batches
        gc.collect()
        os._exit(0 if texts.keys(sds.DevicePrefetcher([{"__sample_key__": "a"}])) == ["a"] else 1)
    assert seen + texts.keys(batches) == ALL
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


LEAVES = """
import sys, time, torch, sds
def numbers():
    k = 0
    while True:
        yield torch.tensor(k)
        k += 1
        time.sleep(0.001)
if __name__ == '__main__':
    kept = iter(sds.DevicePrefetcher(numbers(), depth=3))
    for batch in kept:
        if batch == 5: break
    print('waiting', flush=True)
    if sys.argv[1] == 'interrupted': time.sleep(60)
"""


@pytest.mark.parametrize("way", ["left", "interrupted"])
def test_a_program_ends_with_batches_under_way(way: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVES, way], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "waiting\n"
    begun = time.monotonic()
    if way == "interrupted":
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    fetching.say(f"a program that is {way} ends in {time.monotonic() - begun:.2f} s")
    if way == "left":
        assert (process.returncode, errors) == (0, "")
    else:
        assert process.returncode == -signal.SIGINT
        assert errors.rstrip().endswith("KeyboardInterrupt")


RANK = """
import json, sys
import torch.distributed as dist
import sds
src, cache, rank, meeting = json.loads(sys.argv[1])
dist.init_process_group('gloo', init_method=meeting, rank=rank, world_size=2)
own, model = dist.new_group([0, 1]), dist.new_group([0, 1])
import torch
def train(batch):
    dist.all_reduce(torch.ones(1), group=model)
    return batch['__sample_key__']
loader = None
if rank == 0:
    dataset = sds.StreamingDataset(src, cache, columns_to_download=['txt'], shuffle_seed=1)
    loader = sds.StreamingDataLoader(dataset, 4, world=sds.World(rank, 2, data_rank=0, data_size=1))
prefetcher = sds.DevicePrefetcher(sds.BroadcastLoader(loader, own), depth=3)
found = []
for stop in (1, 4, 99):  # left after the same batch on both, with others under way
    for k, batch in enumerate(prefetcher):
        found.append([train(batch), prefetcher.state_dict()['position']])
        if k + 1 == stop: break
plain = [[k, k + 1] for k in range(3)] if rank == 0 else None  # a loader without a state
plain = sds.DevicePrefetcher(sds.BroadcastLoader(plain, own))
try:
    plain.state_dict()
except sds.errors.StateError:
    found += list(plain)
print(json.dumps(found), flush=True)
dist.barrier()
prefetcher.close()
dist.destroy_process_group()
"""


def test_ranks_that_share_a_reader_stay_in_step(source: Path, tmp_path: Path, dst: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, json.dumps([str(source), str(dst), rank, f"file://{tmp_path}/meeting"])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    answers = []
    for rank in ranks:
        try:
            out, errors = rank.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            for each in ranks:
                each.kill()
            raise
        assert rank.returncode == 0, errors
        answers.append(json.loads(out))
    assert answers[0] == answers[1]
    assert answers[0][-3:] == [[0, 1], [1, 2], [2, 3]]
    answers = [answer[:-3] for answer in answers]
    keys = [batch for batch, _ in answers[0]]
    assert len(keys) == 1 + 4 + 10
    assert keys[0] == keys[1] == keys[5] and keys[1:5] == keys[5:9]  # each loop begins the epoch again
    assert sorted(key for batch in keys[5:] for key in batch) == ALL
    assert [position for _, position in answers[0]][:5] == [4, 4, 8, 12, 16]


# ---- overlap -------------------------------------------------------------------------------------------------------

STEP_S = 0.02
NUM_STEPS = 25


def even(k: int) -> float:
    return STEP_S


def spiky(k: int) -> float:
    """The same on average: every fifth takes three times as long, the others half."""
    return STEP_S * (3 if k % 5 == 4 else 0.5)


def batches_of(cost: Callable[[int], float]) -> Iterator[torch.Tensor]:
    for k in range(NUM_STEPS):
        time.sleep(cost(k))
        yield torch.tensor(k)


def loop_s(depth: int, cost: Callable[[int], float] = even) -> float:
    begun = time.perf_counter()
    for _ in sds.DevicePrefetcher(batches_of(cost), depth=depth):
        time.sleep(STEP_S)
    return time.perf_counter() - begun


def alone_s(cost: Callable[[int], float] = even) -> float:
    """What the loader takes by itself, on this machine, as busy as it is now."""
    begun = time.perf_counter()
    for _ in batches_of(cost):
        pass
    return time.perf_counter() - begun


@pytest.mark.speed
@pytest.mark.parametrize(("cost", "depth", "bound"), [(even, 2, 1.1), (spiky, 2, 1.35), (spiky, 4, 1.15)])
def test_loading_and_training_overlap(cost: Callable[[int], float], depth: int, bound: float) -> None:
    tries: list[tuple[float, float]] = []
    while len(tries) < 4:
        alone, on, off = alone_s(cost), loop_s(depth, cost), loop_s(0, cost)
        tries.append((on / alone, off / alone))
        fetching.say(f"{cost.__name__}, depth {depth}: {on / alone:.2f} of the loader alone; off: {off / alone:.2f}")
        if tries[-1][0] < bound and tries[-1][1] > 1.7:
            return
    raise AssertionError(tries)


def test_prefetching_saves_much_of_the_time() -> None:
    assert any(loop_s(2) < 0.75 * loop_s(0) for _ in range(4))
