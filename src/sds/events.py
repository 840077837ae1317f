"""What the rooms report: durations by stage and counts by name, into a Tally; anybody may listen through a Probe.

Comes in: `tally.count("hits", 3)`, `tally.add_busy("decode", start)`. Goes out: Stats, a frozen value that names the
bottleneck. Rooms report and never ask; tallies of other processes are merged; without a probe an event costs two clock
reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from sds.units import format_bytes

__all__ = ["STAGES", "Event", "Probe", "Stats", "Tally"]

STAGES = ("fetch", "decode", "transform", "collate", "device", "consumer")

_KNOBS = {
    "fetch": "try another num_downloading_workers, or give the cache more room (cache_limit)",
    "decode": "raise the loader's num_threads or num_workers, or ask for a smaller resolution",
    "transform": "use num_workers > 0 for Python-heavy transforms",
    "collate": "use num_workers > 0, or return smaller tensors",
    "device": "pin_memory=True and a deeper prefetch",
    "consumer": "none here: the training step is what takes the time",
}


class Event(msgspec.Struct, frozen=True):
    """One finished piece of work: the stage, when it began (monotonic seconds), how long it took, what it was about."""

    stage: str
    start_s: float
    duration_s: float
    subject: str = ""
    num_bytes: int = 0


class Probe(Protocol):
    """A listener. It is called from whatever thread did the work, and must be quick."""

    def emit(self, event: Event) -> None:
        """Takes note of one event."""
        ...


@dataclass(frozen=True)
class Stats:
    """What happened so far, summed over threads and processes."""

    samples: int = 0
    batches: int = 0
    bytes_downloaded: int = 0
    requests: int = 0
    retries: int = 0
    hedges: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    waits: int = 0
    failures: int = 0
    stand_ins: int = 0
    dropped: int = 0
    range_reads: int = 0
    range_fallbacks: int = 0
    time_to_first_batch: float | None = None
    wall_s: float = 0.0
    wait_s: Mapping[str, float] = field(default_factory=dict)
    busy_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def rows_per_s(self) -> float:
        """Samples delivered per second of wall time."""
        return self.samples / self.wall_s if self.wall_s else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes downloaded per second of wall time."""
        return self.bytes_downloaded / self.wall_s if self.wall_s else 0.0

    @property
    def hit_rate(self) -> float:
        """Share of the files asked for that were in the cache."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0

    @property
    def bottleneck(self) -> str:
        """The stage that most of the time went to; 'consumer' when data was ready before it was asked for."""
        # a loader's caller waits for batches, a bare iteration's for files and its own transforms
        waited = self.wait_s.get("consumer", self.wait_s.get("fetch", 0.0) + sum(self.busy_s.values()))
        if waited < 0.1 * self.wall_s or not waited:
            return "consumer"
        stalls = {"fetch": self.wait_s.get("fetch", 0.0)}
        stalls |= {s: self.busy_s.get(s, 0.0) for s in ("decode", "transform", "collate", "device")}
        return max(stalls, key=lambda s: stalls[s])

    def __str__(self) -> str:
        first = "-" if self.time_to_first_batch is None else f"{self.time_to_first_batch:.2f} s"
        busy = "  ".join(f"{s} {self.busy_s[s]:.2f} s" for s in STAGES if self.busy_s.get(s, 0.0) >= 0.005)
        return "\n".join(
            [
                f"samples: {self.samples} in {self.wall_s:.2f} s ({self.rows_per_s:.0f}/s), first batch after {first}",
                f"downloaded: {format_bytes(self.bytes_downloaded)} ({format_bytes(self.bytes_per_s)}/s) "
                f"in {self.requests} requests, {self.retries} retries, {self.hedges} hedges",
                f"cache: {self.hits} hits, {self.misses} misses ({self.hit_rate:.1%} hit rate), "
                f"{self.evictions} evictions"
                + (f", {self.waits} waits for room ({self.wait_s.get('room', 0.0):.1f} s)" if self.waits else ""),
                *(
                    [f"by ranges: {self.range_reads} files, {self.range_fallbacks} of them fetched whole after all"]
                    if self.range_reads
                    else []
                ),
                f"failures: {self.failures}, stand-ins: {self.stand_ins}, dropped by transforms: {self.dropped}",
                f"busy: {busy or 'nothing measurable'}",
                f"bottleneck: {self.bottleneck} ({_KNOBS[self.bottleneck]})",
            ]
        )


class Tally:
    """Adds up counts and durations; safe from many threads; small enough to travel from worker processes as a dict."""

    def __init__(self, probe: Probe | None = None) -> None:
        self.probe = probe
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._busy: dict[str, float] = {}
        self._wait: dict[str, float] = {}
        self._started: float | None = None
        self._first: float | None = None
        self._last: float | None = None

    def count(self, name: str, number: int = 1) -> None:
        """Adds to a count, named like a field of Stats."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + number

    def add_busy(self, stage: str, start_s: float, *, subject: str = "", num_bytes: int = 0) -> None:
        """Adds the time since `start_s` (time.perf_counter) to a stage's work."""
        duration = time.perf_counter() - start_s
        with self._lock:
            self._busy[stage] = self._busy.get(stage, 0.0) + duration
        if self.probe is not None:
            self.probe.emit(Event(stage, start_s, duration, subject, num_bytes))

    def add_wait(self, stage: str, seconds: float) -> None:
        """Adds to what was spent waiting for a stage."""
        with self._lock:
            self._wait[stage] = self._wait.get(stage, 0.0) + seconds

    @contextmanager
    def waiting(self, stage: str) -> Iterator[None]:
        """Adds the time inside the block to what was spent waiting for a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_wait(stage, time.perf_counter() - start)

    def begin(self) -> None:
        """Starts the wall clock, unless it runs already."""
        with self._lock:
            self._started = self._started if self._started is not None else time.perf_counter()

    def delivered(self, num_samples: int, *, batches: int = 1) -> None:
        """Notes that a batch (or bare sample) reached the caller."""
        with self._lock:
            self._last = time.perf_counter()
            self._first = self._first if self._first is not None else self._last
            self._counts["samples"] = self._counts.get("samples", 0) + num_samples
            self._counts["batches"] = self._counts.get("batches", 0) + batches

    def drain(self) -> dict[str, dict[str, float]]:
        """Takes out what was added since the last drain, to be merged elsewhere; the clock stays here."""
        with self._lock:
            parts: dict[str, dict[str, float]] = {
                "counts": dict(self._counts),
                "busy": dict(self._busy),
                "wait": dict(self._wait),
            }
            self._counts, self._busy, self._wait = {}, {}, {}
            return parts

    def merge(self, parts: Mapping[str, Mapping[str, float]]) -> None:
        """Adds what another process drained."""
        with self._lock:
            for name, number in parts["counts"].items():
                self._counts[name] = self._counts.get(name, 0) + int(number)
            for mine, theirs in ((self._busy, parts["busy"]), (self._wait, parts["wait"])):
                for stage, seconds in theirs.items():
                    mine[stage] = mine.get(stage, 0.0) + seconds

    def stats(self) -> Stats:
        """The sums so far, as a frozen value."""
        with self._lock:
            start = self._started
            return Stats(
                # the counts are named like the fields; one that a fetch server of another release knows is left out
                **{name: number for name, number in self._counts.items() if name in Stats.__dataclass_fields__},
                time_to_first_batch=None if start is None or self._first is None else self._first - start,
                wall_s=0.0 if start is None or self._last is None else self._last - start,
                wait_s=dict(self._wait),
                busy_s=dict(self._busy),
            )
