"""Trace: each piece of work of a loader -> a file for Perfetto (ui.perfetto.dev) or chrome://tracing.

Comes in: events of this process, and slices that worker processes send along with their batches. Goes out: JSON trace
events: one slice per stage and sample, with process and thread named; downloads of the fetch server on tracks of their
own. The file is complete JSON after `close`, or when nobody has the trace any more; of a run that was killed, viewers
read what is there. A disk that is full ends the trace, with a warning, and never the run.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sds.errors import OptionError
from sds.events import STAGES, Event, Slice

__all__ = ["READING", "TWO_TRACES", "Lines", "Trace", "encoded", "place_of"]

log = logging.getLogger("sds")

READING = "sds-device"  # the name of a prefetcher's thread: what its loader takes for a caller
TWO_TRACES = "a trace is being written of the iteration that runs"
_MANY = 2048  # slices that are written at once
_SERVER = 2**22 + 1  # above any process id: the fetch server's downloads, as their clients tell of them
_ENCODER = msgspec.json.Encoder()
_NAMES = {("wait", stage): f"wait for {stage}" for stage in STAGES}
_NAMES |= {("wait", "consumer"): "wait for batch", ("busy", "consumer"): "training step"}


class _About(msgspec.Struct, omit_defaults=True, gc=False):
    """What a slice is about."""

    subject: str = ""
    bytes: int = 0


class _Drawn(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """A slice, as the format has it: times in microseconds."""

    name: str
    cat: str
    ts: float
    dur: float
    pid: int
    tid: int
    args: _About


class Trace:
    """A probe that writes what it hears. Safe from many threads.

    Args:
        path: the file to write; it is overwritten.
        rank: of this process.
    """

    def __init__(self, path: Path, rank: int = 0) -> None:
        self.path = path
        self._rank = rank
        self._lock = threading.Lock()
        self._slices: list[Slice] = []
        self._known: dict[tuple[int, int], None] = {}  # processes and threads that have been named
        self._num_workers = 0
        self._num_downloads = 0
        # nothing is buffered here: a forked worker would write it a second time
        self._file = Lines(path)
        self._file.write(b"[\n" + _ENCODER.encode(_name(_SERVER, 0, "process_name", "fetch server")))
        self._is_closed = False
        self._pid = os.getpid()

    def emit(self, event: Event) -> None:
        """Notes an event of this thread."""
        self._add([Slice.here(event)])

    def add(self, slices: Sequence[Slice]) -> None:
        """Notes what a worker process noted."""
        self._add(slices)

    def _add(self, slices: Sequence[Slice]) -> None:
        with self._lock:
            self._slices += slices
            if len(self._slices) >= _MANY:
                self._write()

    def _write(self) -> None:
        """Under the lock."""
        slices, self._slices = self._slices, []
        if self._is_closed:
            return  # a thread that ended later than the loader
        drawn: list[Any] = []
        for each in slices:
            self._draw(each, drawn)
        if drawn:
            self._file.write(b",\n" + encoded(drawn)[1:-1])

    def _draw(self, found: Slice, drawn: list[Any]) -> None:
        """The events of the format that an event of ours becomes."""
        event, pid, tid, thread = found
        start, duration, about = event.start_s * 1e6, event.duration_s * 1e6, _About(event.subject, event.num_bytes)
        if event.kind == "download":  # they overlap, so they are no slices of a thread
            self._num_downloads += 1
            # an id of the process: Perfetto draws them under it
            which = {"local": hex(self._num_downloads)}
            facts = {"cat": "download", "name": "download", "id2": which, "pid": _SERVER, "tid": 0}
            drawn.append({"ph": "b", "ts": start, "args": about, **facts})
            drawn.append({"ph": "e", "ts": start + duration, "args": {}, **facts})
            return
        if (pid, tid) not in self._known:
            self._introduce(pid, tid, thread, drawn)
        name = _NAMES.get((event.kind, event.stage), event.stage)
        if thread == READING and name == "training step":
            name = "between batches"  # it copies, and waits for room: who trains is another thread
        drawn.append(_Drawn(name, event.kind, start, duration, pid, tid, about))

    def _introduce(self, pid: int, tid: int, thread: str, drawn: list[Any]) -> None:
        """Names a thread, and its process if that is new, too."""
        if (pid, 0) not in self._known:
            self._known[pid, 0] = None
            who = f"rank {self._rank}"
            if pid != os.getpid():
                who, self._num_workers = f"{who} worker process {self._num_workers}", self._num_workers + 1
            drawn.append(_name(pid, 0, "process_name", who))
        self._known[pid, tid] = None
        drawn.append(_name(pid, tid, "thread_name", thread))

    def close(self) -> None:
        """Completes the file. Harmless when repeated."""
        with self._lock:
            if not self._is_closed:
                self._write()
                self._file.write(b"\n]\n")
                self._file.close()
                self._is_closed = True

    def __del__(self) -> None:
        # nobody is inside of it: nobody has it. A forked child has a copy, whose file is its parent's
        if getattr(self, "_pid", None) == os.getpid():
            self.close()


def _name(pid: int, tid: int, kind: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def encoded(value: Any) -> bytes:
    """As JSON. Text that is no Unicode (a file's name may be none) comes with its odd characters spelled out."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _ENCODER.encode(_spelled(msgspec.to_builtins(value)))


def _spelled(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _spelled(each) for key, each in value.items()}
    return [_spelled(each) for each in value] if isinstance(value, list | tuple) else value


class Lines:
    """A file to write, unbuffered, in a folder that is made. What cannot be written any further is told once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_over = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115 (it lives as long as its owner)
        except OSError as error:
            hint = "give the path of a file in a folder that you may write to"
            raise OptionError(f"file cannot be written: {path}: {error.strerror or error}", hint=hint) from error

    def write(self, data: bytes) -> None:
        """Writes all of it, or warns once."""
        rest = memoryview(data)
        try:
            while rest and not self._is_over:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._is_over = True
            log.warning("%s is not written any further: %s", self._path, error.strerror or error)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def place_of(path: str | os.PathLike[str], rank: int) -> Path:
    """The file of a rank: the first one's is `path`, the others' have their rank in the name."""
    try:
        place = Path(path)
    except TypeError:
        raise OptionError(f"path is no path: {path!r}", hint="text, or a pathlib.Path") from None
    if not place.name:
        raise OptionError(f"path names no file: {path!r}", hint="such as 'trace.json'")
    return place.with_name(f"{place.stem}.rank{rank}{place.suffix}") if rank else place
