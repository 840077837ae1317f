"""Everything at once: many readers of several datasets on one cache folder, a network that fails, and `kill -9`.

A supervisor (a process without threads, with torch loaded) forks the readers, kills any of them, their workers or the
fetch server, once a second, and forks what it killed anew: a reader goes on from the last state that it wrote down.
Every byte is compared with the source, every delivery is written down, and in the end each finished epoch must have
every sample once.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

import fetching
import sds
import sds.loader  # and torch with it: what is forked has it loaded

# rank 0 of 1, whoever started us
NUM_WORKERS = [0, 0, 0, 0, 1, 1]  # 6 readers, 8 processes


def check(sample: dict[str, Any]) -> dict[str, Any]:
    """Compares a file with what its name says that it holds."""
    key = sample["__sample_key__"]
    body = Path(sample["file"]).read_bytes()
    assert body == fetching.content(key, sample["size"]), f"wrong bytes: {key}: {len(body)} of {sample['size']}"
    return {"__sample_key__": key}


def read(plan: dict[str, Any], number: int) -> None:
    """One reader: epoch after epoch, from where it was stopped, until the supervisor says that it is enough."""
    log = Path(plan["folder"], f"reader-{number}.jsonl")
    lines = log.read_bytes().split(b"\n") if log.exists() else []
    dataset = sds.StreamingDataset(
        plan["sources"][number % len(plan["sources"])],
        plan["dst"],
        columns_to_download=["file"],
        index_col_name="id",
        transforms=[check],
        shuffle_seed=number,
        cache_limit=plan["limits"][number % len(plan["limits"])],
        prefetch=8,
        num_downloading_retries=10,
        timeout=10.0,
        on_error="raise",
        storage_options=plan["storage_options"],
    )
    loader = sds.StreamingDataLoader(dataset, 4, num_workers=NUM_WORKERS[number], num_threads=None)
    whole = [line for line in lines[:-1] if line]  # what comes after the last end of line was cut by a kill
    if lines and lines[-1]:
        os.truncate(log, sum(len(line) + 1 for line in lines[:-1]))
    if whole:
        loader.load_state_dict(json.loads(whole[-1])["state"])
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    enough = Path(plan["folder"], "enough")
    while not (enough.exists() and not loader.state_dict()["position"]):
        epoch = dataset.epoch
        for batch in loader:
            line = {"epoch": epoch, "keys": batch["__sample_key__"], "state": loader.state_dict()}
            os.write(file, json.dumps(line).encode() + b"\n")
            time.sleep(0.002)
    loader.close()
    dataset.close()


def fork(plan: dict[str, Any], number: int) -> int:
    """Forks a reader; what it says goes to a file."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        words = os.open(Path(plan["folder"], f"reader-{number}.err"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(words, 1)
        os.dup2(words, 2)
        sys.stderr = os.fdopen(2, "w")
        read(plan, number)
        status = 0
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def victims(dst: Path) -> list[int]:
    """All that may be killed: readers, their workers, the fetch server."""
    return sorted({child.pid for child in psutil.Process().children(recursive=True)} | set(fetching.server_pids(dst)))


def supervise(plan: dict[str, Any]) -> dict[str, Any]:
    """Runs the readers and kills for a while, then lets them come to the end of their epochs."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become our children
    rng, dst = random.Random(plan["seed"]), Path(plan["dst"])
    readers = {fork(plan, number): number for number in range(len(NUM_WORKERS))}
    killed: Counter[str] = Counter()
    failed: list[str] = []
    begin = time.monotonic()
    next_kill = begin + 1.0
    deadline = begin + plan["seconds"] + 120.0
    while readers and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                number = readers.pop(pid, None)
                if number is None or (os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0):
                    continue
                words = Path(plan["folder"], f"reader-{number}.err").read_text()
                if os.WIFEXITED(status) and not excused(words, killed["worker"]):
                    failed.append(f"reader {number} ended with {os.WEXITSTATUS(status)}:\n{words[-6000:]}")
                    continue
                readers[fork(plan, number)] = number
        now = time.monotonic()
        if now > begin + plan["seconds"]:
            Path(plan["folder"], "enough").touch()
        elif now > next_kill:
            next_kill = now + 1.0
            victim = rng.choice(victims(dst) or [0])
            if victim:
                servers = fetching.server_pids(dst)
                killed["server" if victim in servers else "reader" if victim in readers else "worker"] += 1
                fetching.kill(victim)
        time.sleep(0.01)
    for pid in readers:
        os.kill(pid, signal.SIGABRT)
    left = _left()
    return {"killed": dict(killed), "failed": failed, "hung": sorted(readers.values()), "left": left}


def excused(words: str, num_workers_killed: int) -> bool:
    """Whether a reader ended since we killed its worker: it says so, and is started anew."""
    last = words.strip().rpartition("\n\n")[2]
    is_said = "worker" in last and ("killed" in last or "died" in last or "exited unexpectedly" in last)
    return num_workers_killed > 0 and is_said


def _left() -> list[str]:
    """What is still there five seconds after the last reader."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        found = []
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                found.append(" ".join(child.cmdline()))
        if not found:
            return []
        time.sleep(0.05)
    return found


if __name__ == "__main__":
    answer = supervise(json.loads(sys.argv[1]))
    sys.stdout.write(json.dumps(answer) + "\n")
