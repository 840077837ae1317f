"""One measurement: a contender in a process of its own -> its figures, with memory and CPU time of all its processes.

Whatever a contender starts (workers, a fetch server) inherits a mark in its environment, and is found by that.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_MARK = "SDS_BENCH_RUN"
_TRASH = "put-away"
_EVERY_S = 0.2
PATIENCE_S = 4.0  # that a fetch server has to end by itself
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Case:
    """A contender in one workload.

    Attributes:
        name: as the report calls it.
        script: the program, below `contenders`.
        args: what it is told, as JSON.
        kind: 'ours', 'peer', 'shards' (a peer on data that was converted for it), or 'limit'.
        python: the interpreter.
        wipe: folders that are empty before each run.
        prepare: whether it runs once, unmeasured, before its first run: to fill its cache.
        fresh: folders that are empty before that unmeasured run: a run that was killed may have left half a cache.
        environment: variables that it needs.
    """

    name: str
    script: str
    args: dict[str, Any]
    kind: str = "peer"
    python: str = sys.executable
    wipe: tuple[Path, ...] = ()
    prepare: bool = False
    fresh: tuple[Path, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


class Failed(Exception):
    """A contender ended without a figure."""


def run(case: Case, timeout_s: float = 300, patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """The figures of one run. What outlives it by more than `patience_s` is ended.

    Raises:
        Failed: with the last line that it said.
    """
    mark = secrets.token_hex(8)
    for folder in case.wipe:
        put_away(folder, mark)
    script = HERE / "contenders" / case.script
    process = subprocess.Popen(
        [case.python, str(script), json.dumps(case.args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**_usual(os.environ), **case.environment, _MARK: mark},
        start_new_session=True,
    )
    watch = Watch(mark)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {timeout_s:.0f} s") from None
    finally:
        found = watch.end(patience_s)
        if process.poll() is None:
            process.kill()
            process.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        said = [line for line in err.splitlines() if line.strip()]
        raise Failed((said or [f"ended with {process.returncode}"])[-1][:200])
    figures = json.loads(lines[-1])
    found["cpu_s"] += max(0.0, figures.pop("cpu_main_s", 0.0) - watch.cpu_s_of(process.pid))  # since it was last seen
    figures.update(found)
    if figures.get("images"):
        figures["cpu_ms_per_image"] = 1000 * found["cpu_s"] / figures["images"] / len(figures.get("epochs", "1"))
    return dict(figures)


def _usual(environment: Mapping[str, str]) -> dict[str, str]:
    """Python keeps what it compiled, as it does by default: or who is not installed would be compiled in each run."""
    return {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}


def put_away(folder: Path, mark: str) -> None:
    """Makes room for a new folder; `sweep` deletes the old one. ext4 is slow where files were deleted seconds ago."""
    if folder.exists():
        trash = folder.parent / _TRASH
        trash.mkdir(exist_ok=True)
        folder.rename(trash / f"{folder.name}-{mark}")


def sweep(folder: Path) -> None:
    """Deletes what was put away below a folder."""
    shutil.rmtree(folder / _TRASH, ignore_errors=True)


def clear_memory(store: Path, switch: Path = Path("/proc/sys/vm/drop_caches")) -> bool:
    """Empties the kernel's cache of files, and fills it with what the store gives; False if one may not.

    Memory that files have been in and out of for an hour comes in single pages. On a virtual machine each of them may
    be the host's to find, so that a new file of 58 KB costs 100 us where it costs 10 with memory in large pieces:
    whoever writes a cache would be measured by what ran before.
    """
    os.sync()
    try:
        switch.write_text("3")
    except OSError:
        return False
    for path in store.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                while file.read(2**20):
                    pass
    return True


class Watch:
    """Looks at the processes of a run now and then; ends those that outlive it."""

    def __init__(self, mark: str) -> None:
        self._mark = f"{_MARK}={mark}".encode()
        self._others: set[tuple[int, int]] = set()  # (pid, when it began) of processes that are not of the run
        self._cpu_s: dict[tuple[int, int], float] = {}
        self._peak = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def _look_on(self) -> None:
        while not self._is_over.wait(_EVERY_S):
            self._look()

    def _look(self) -> list[int]:
        total, mine = 0, []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            pid = int(name)
            try:
                with open(f"/proc/{pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                who = pid, int(fields[19])
                if who in self._others:
                    continue
                if who not in self._cpu_s:
                    with open(f"/proc/{pid}/environ", "rb") as file:
                        environment = file.read()
                    if self._mark not in environment:
                        if environment:  # it has none for a moment while it begins
                            self._others.add(who)
                        continue
                self._cpu_s[who] = (int(fields[11]) + int(fields[12])) / _TICKS
                total += int(fields[21]) * resource.getpagesize()
                mine.append(pid)
            except (OSError, ValueError, IndexError):
                continue  # it has ended
        self._peak = max(self._peak, total)
        return mine

    def cpu_s_of(self, pid: int) -> float:
        """CPU time of a process, when it was last seen."""
        return max((seconds for who, seconds in self._cpu_s.items() if who[0] == pid), default=0.0)

    def end(self, patience_s: float) -> dict[str, float]:
        """Peak memory and CPU time. Who is still there, such as a fetch server, may end by itself, or is ended."""
        self._is_over.set()
        self._thread.join()
        until = time.monotonic() + patience_s
        while (left := self._look()) and time.monotonic() < until:
            time.sleep(0.1)
        for pid in left:
            try:
                os.kill(pid, 9)
            except OSError:
                pass
        seen = {"rss_mb": self._peak / 1e6} if self._peak else {}  # a short run ends before the first look
        return {**seen, "cpu_s": sum(self._cpu_s.values())}
