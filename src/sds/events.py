"""What the rooms report: durations by stage and counts by name, into a Tally; anybody may listen through a Probe.

Comes in: `tally.count("hits", 3)`, `tally.add_busy("decode", start)`. Goes out: Stats, a frozen value that names the
bottleneck. Rooms report and never ask; tallies of other processes are merged; without a probe an event costs two clock
reads.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from sds.forks import renew_locks
from sds.redaction import redact
from sds.stats import STAGES, Slow, Stats, Traffic

__all__ = ["STAGES", "Counted", "Event", "Probe", "Recorder", "Slice", "Stats", "Tally"]

_NUM_SLOWEST = 20
_MAX_STORES = 1000  # that are counted each for itself: an index may name millions of hosts


class Event(msgspec.Struct, frozen=True, gc=False):
    """One finished piece of work: the stage, when it began (monotonic seconds), how long it took, what it was about.

    `kind` is 'busy', 'wait' (for that stage), or 'download' (by the fetch server, whatever the others did meanwhile).
    """

    stage: str
    start_s: float
    duration_s: float
    subject: str = ""
    num_bytes: int = 0
    kind: str = "busy"


class Probe(Protocol):
    """A listener. It is called from whatever thread did the work, and must be quick."""

    def emit(self, event: Event) -> None:
        """Takes note of one event."""
        ...


class Slice(NamedTuple):
    """An event, and the process and thread that it happened in."""

    event: Event
    pid: int
    tid: int
    thread: str

    @classmethod
    def here(cls, event: Event) -> Slice:
        """An event of this thread."""
        thread, pid = threading.current_thread(), os.getpid()
        # a worker that was forked by another thread than the main one has that one's name
        return cls(event, pid, thread.native_id or 0, "MainThread" if thread.native_id == pid else thread.name)


class Recorder:
    """A probe that keeps what it hears until somebody takes it: worker processes send it home."""

    def __init__(self) -> None:
        self._slices: list[Slice] = []

    def emit(self, event: Event) -> None:
        """Keeps an event."""
        self._slices.append(Slice.here(event))

    def take(self) -> list[Slice]:
        """What was kept since the last time."""
        taken, self._slices = self._slices, []
        return taken


Span: TypeAlias = tuple[float, float] | None
K = TypeVar("K")
N = TypeVar("N", int, float)


class Counted(msgspec.Struct):
    """What a tally added up since it was last drained; travels from worker processes."""

    counts: dict[str, int] = {}
    busy: dict[str, float] = {}
    wait: dict[str, float] = {}
    depths: dict[str, tuple[float, int]] = {}
    traffic: dict[tuple[str, str], tuple[int, int]] = {}
    slowest: list[Slow] = []
    downloading: Span = None  # when the first download began, and when the last one ended

    def since(self, before: Counted) -> Counted:
        """What was added after an earlier copy; of what has not grown, nothing."""
        known = set(before.slowest)
        return Counted(
            _grown(self.counts, before.counts),
            _grown(self.busy, before.busy),
            _grown(self.wait, before.wait),
            _both_grown(self.depths, before.depths),
            _both_grown(self.traffic, before.traffic),
            [slow for slow in self.slowest if slow not in known],
            _later(self.downloading, before.downloading),
        )

    def copied(self) -> Counted:
        """One that does not grow any further."""
        return self.since(Counted())


def _grown(now: dict[str, N], before: dict[str, N]) -> dict[str, N]:
    return {name: each - before.get(name, 0) for name, each in now.items() if each != before.get(name, 0)}


def _both_grown(now: dict[K, tuple[N, int]], before: dict[K, tuple[N, int]]) -> dict[K, tuple[N, int]]:
    pairs = ((key, each, before.get(key, (0, 0))) for key, each in now.items())
    return {key: (one - had[0], other - had[1]) for key, (one, other), had in pairs if (one, other) != had}


def _later(now: Span, before: Span) -> Span:
    """The part of a span that came after an earlier one."""
    if now is None or before is None:
        return now
    return (before[1], now[1]) if now[1] > before[1] else None


def _joined(one: Span, other: Span) -> Span:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


class Tally:
    """Adds up counts and durations; safe from many threads."""

    def __init__(self, probe: Probe | None = None) -> None:
        self.probe = probe
        self._lock = threading.Lock()
        renew_locks(self, "_lock")
        self._sums = Counted()
        self._crew = 0, 0
        self._fetching = 0, 1, 0
        self._started: float | None = None
        self._first: float | None = None
        self._last: float | None = None

    def count(self, name: str, number: int = 1) -> None:
        """Adds to a count, named like a field of Stats."""
        with self._lock:
            counts = self._sums.counts
            counts[name] = counts.get(name, 0) + number

    def count_all(self, numbers: Mapping[str, int]) -> None:
        """Adds to several counts at once."""
        with self._lock:
            counts = self._sums.counts
            for name, number in numbers.items():
                counts[name] = counts.get(name, 0) + number

    def add_busy(self, stage: str, start_s: float, *, subject: str = "", num_bytes: int = 0) -> None:
        """Adds the time since `start_s` (time.perf_counter) to a stage's work."""
        duration = time.perf_counter() - start_s
        with self._lock:
            busy = self._sums.busy
            busy[stage] = busy.get(stage, 0.0) + duration
        if self.probe is not None:
            self.probe.emit(Event(stage, start_s, duration, subject, num_bytes))

    def add_all_busy(self, seconds: dict[str, float]) -> None:
        """Adds to the work of several stages, which their events tell of elsewhere."""
        with self._lock:
            busy = self._sums.busy
            for stage, each in seconds.items():
                busy[stage] = busy.get(stage, 0.0) + each

    def add_wait(self, stage: str, seconds: float, *, start_s: float | None = None, subject: str = "") -> None:
        """Adds to what was spent waiting for a stage, from `start_s` on (time.perf_counter), else until now."""
        with self._lock:
            wait = self._sums.wait
            wait[stage] = wait.get(stage, 0.0) + seconds
        if self.probe is not None and stage in STAGES:
            start_s = time.perf_counter() - seconds if start_s is None else start_s
            self.probe.emit(Event(stage, start_s, seconds, subject, kind="wait"))

    @contextmanager
    def waiting(self, stage: str, subject: str = "") -> Iterator[None]:
        """Adds the time inside the block to what was spent waiting for a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_wait(stage, time.perf_counter() - start, start_s=start, subject=subject)

    def add_depth(self, queue: str, depth: int) -> None:
        """Notes how much was ready in a queue when something was taken out of it."""
        with self._lock:
            total, number = self._sums.depths.get(queue, (0.0, 0))
            self._sums.depths[queue] = total + depth, number + 1

    def add_traffic(self, store: str, requests: int, num_bytes: int, storage_class: str = "standard") -> None:
        """Adds to what a bucket or host was asked for."""
        with self._lock:
            if len(self._sums.traffic) >= _MAX_STORES and (store, storage_class) not in self._sums.traffic:
                store = f"{store.partition('://')[0]}://(others)"
            before = self._sums.traffic.get((store, storage_class), (0, 0))
            self._sums.traffic[store, storage_class] = before[0] + requests, before[1] + num_bytes

    def add_download(self, url: str, start_s: float, seconds: float, num_bytes: int) -> None:
        """Notes a download of the fetch server; of its URL, what is no secret."""
        with self._lock:
            sums, slowest = self._sums, self._sums.slowest
            sums.busy["download"] = sums.busy.get("download", 0.0) + seconds
            sums.downloading = _joined(sums.downloading, (start_s, start_s + seconds))
            if len(slowest) < _NUM_SLOWEST:
                heapq.heappush(slowest, Slow(seconds, redact(url), num_bytes))
            elif seconds > slowest[0].seconds:
                heapq.heapreplace(slowest, Slow(seconds, redact(url), num_bytes))
        if self.probe is not None:
            self.probe.emit(Event("fetch", start_s, seconds, redact(url), num_bytes, "download"))

    def set_crew(self, num_workers: int, num_threads: int) -> None:
        """Says who makes the batches from now on."""
        with self._lock:
            self._crew = num_workers, num_threads

    def set_fetching(self, num_connections: int, num_sharing: int, prefetch: int) -> None:
        """Says how many downloads there are at once, how many processes share them, and how far ahead is fetched."""
        with self._lock:
            self._fetching = num_connections, num_sharing, prefetch

    def begin(self) -> None:
        """Starts the wall clock, unless it runs already."""
        with self._lock:
            self._started = self._started if self._started is not None else time.perf_counter()

    def delivered(self, num_samples: int, *, batches: int = 1) -> None:
        """Notes that a batch (or bare sample) reached the caller."""
        with self._lock:
            self._last = time.perf_counter()
            self._first = self._first if self._first is not None else self._last
            counts = self._sums.counts
            counts["samples"] = counts.get("samples", 0) + num_samples
            counts["batches"] = counts.get("batches", 0) + batches

    @property
    def num_samples(self) -> int:
        """Samples that reached the caller."""
        return self._sums.counts.get("samples", 0)

    def drain(self) -> Counted:
        """Takes out what was added since the last drain, to be merged elsewhere; the clock stays here."""
        with self._lock:
            sums, self._sums = self._sums, Counted()
            return sums

    def copied(self) -> Counted:
        """The sums so far; `stats(since=...)` of them tells what came later."""
        with self._lock:
            return self._sums.copied()

    def merge(self, theirs: Counted) -> None:
        """Adds what another process drained."""
        with self._lock:
            mine = self._sums
            for name, number in theirs.counts.items():
                mine.counts[name] = mine.counts.get(name, 0) + number
            for ours, others in ((mine.busy, theirs.busy), (mine.wait, theirs.wait)):
                for stage, seconds in others.items():
                    ours[stage] = ours.get(stage, 0.0) + seconds
            for queue, (total, times) in theirs.depths.items():
                before = mine.depths.get(queue, (0.0, 0))
                mine.depths[queue] = before[0] + total, before[1] + times
            for store, (requests, num_bytes) in theirs.traffic.items():
                had = mine.traffic.get(store, (0, 0))
                mine.traffic[store] = had[0] + requests, had[1] + num_bytes
            mine.slowest = heapq.nlargest(_NUM_SLOWEST, mine.slowest + theirs.slowest)
            heapq.heapify(mine.slowest)
            mine.downloading = _joined(mine.downloading, theirs.downloading)

    def stats(self, since: Counted | None = None) -> Stats:
        """The sums so far, or since they were copied, as a frozen value; the clock is of all the time."""
        with self._lock:
            start, sums = self._started, self._sums if since is None else self._sums.since(since)
            return Stats(
                # the counts are named like the fields; one that a fetch server of another release knows is left out
                **{name: number for name, number in sums.counts.items() if name in Stats.__dataclass_fields__},
                num_workers=self._crew[0],
                num_threads=self._crew[1],
                num_connections=self._fetching[0],
                num_sharing=self._fetching[1],
                prefetch=self._fetching[2],
                downloading_s=0.0 if sums.downloading is None else sums.downloading[1] - sums.downloading[0],
                time_to_first_batch=None if start is None or self._first is None else self._first - start,
                wall_s=0.0 if start is None or self._last is None else self._last - start,
                wait_s=dict(sums.wait),
                busy_s=dict(sums.busy),
                queue_depths={queue: total / times for queue, (total, times) in sums.depths.items()},
                traffic=tuple(Traffic(*store, *paid) for store, paid in sums.traffic.items()),
                slowest=tuple(sorted(sums.slowest, reverse=True)),
            )
