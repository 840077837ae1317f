"""Stats: what happened so far, as a frozen value that names the bottleneck and the knob to turn.

Comes in: counts, and seconds by stage, summed over threads and processes. Goes out: rates, shares, a text. A stage that
several threads or workers share takes that much less of the wall clock: the bottleneck is found by what each group of
them was busy with, never by the sums alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeAlias

import msgspec

from sds.types import Failure
from sds.units import format_bytes

__all__ = [
    "STAGES",
    "Beginning",
    "Failed",
    "Line",
    "Moment",
    "Slow",
    "Stats",
    "Traffic",
    "format_rate",
    "merged_stats",
    "seen_from_outside",
    "summed_traffic",
]

# 'loader' is one that has no stats of its own: somebody else's, or that of the rank that reads
STAGES = ("fetch", "decode", "transform", "collate", "device", "consumer", "loader")

_BUSY = 0.7  # of all connections: no more downloads at once would fit
_IDLE = 0.1  # a caller that waited for a smaller share of the time is what takes the time itself


class Traffic(NamedTuple):
    """What one bucket (or host) was asked for: `store` is "s3://bucket"; 'standard' is a class that nobody told."""

    store: str
    storage_class: str
    requests: int
    num_bytes: int


class Slow(NamedTuple):
    """A download, by how long it took; the URL without its secrets."""

    seconds: float
    url: str
    num_bytes: int


@dataclass(frozen=True)
class Stats:
    """What happened so far, summed over threads and processes.

    Attributes:
        samples: handed to the caller.
        batches: handed to the caller.
        bytes_downloaded: of objects that came into the cache, or past it.
        requests: to stores, second ones and repeated ones included.
        retries: requests that were made again after a failure.
        hedges: second requests for what was late.
        hits: files that were in the cache.
        misses: files that were not.
        evictions: files that had to go.
        waits: downloads that waited for room in the cache.
        failures: rows that could not be made.
        stand_ins: rows that took the place of those.
        dropped: rows that transforms dropped.
        range_reads: remote files that were read in parts.
        range_fallbacks: those of them that were fetched whole after all.
        from_tensors: samples that were read from a tensor cache: the source, or what Remember kept.
        num_workers: worker processes that make batches.
        num_threads: decode threads of this process; 0: the caller's own.
        num_connections: downloads at once, of all processes of the node; 0: nobody said.
        num_sharing: processes of the node, which share them.
        prefetch: samples that are fetched ahead; 0: nobody said, or so many bytes.
        downloading_s: seconds from the begin of the first download to the end of the last one.
        time_to_first_batch: seconds from the first `iter()` on; None: there was none yet.
        wall_s: seconds from the first `iter()` to the last batch.
        wait_s: seconds spent waiting by what was waited for: a stage ('fetch' in all threads; 'consumer': the caller,
            for batches; 'loader': a prefetcher, for a loader of somebody else, or a rank, for the one that reads),
            'room' in the cache (by any download of a process), 'startup' (the caller, for the first batch of each
            iteration and worker).
        busy_s: seconds of work by stage, summed over threads and workers; 'consumer' is the caller's own, 'download'
            the fetch server's, summed over connections.
        queue_depths: on average, what was ready: 'batches' when the caller asked for one, 'files' (samples whose
            files were here) when one was taken to be decoded.
        traffic: requests and bytes by bucket and storage class.
        slowest: the downloads that took longest.
    """

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
    from_tensors: int = 0
    num_workers: int = 0
    num_threads: int = 0
    num_connections: int = 0
    num_sharing: int = 1
    prefetch: int = 0
    downloading_s: float = 0.0
    time_to_first_batch: float | None = None
    wall_s: float = 0.0
    wait_s: Mapping[str, float] = field(default_factory=dict)
    busy_s: Mapping[str, float] = field(default_factory=dict)
    queue_depths: Mapping[str, float] = field(default_factory=dict)
    traffic: tuple[Traffic, ...] = ()
    slowest: tuple[Slow, ...] = ()

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
    def groups(self) -> list[dict[str, float]]:
        """Who works side by side: seconds of the wall clock by stage, for each group of threads or workers.

        A worker process makes whole batches, one stage after the other. Without workers, decode threads share files
        and samples, and one thread collates. A prefetcher's thread reads from its loader, and copies. The caller of a
        bare iteration does everything itself.
        """
        made = {"fetch": self.wait_s.get("fetch", 0.0)}
        made |= {stage: self.busy_s.get(stage, 0.0) for stage in ("decode", "transform")}
        collate = {"collate": self.busy_s.get("collate", 0.0)}
        ahead = {"device": self.busy_s.get("device", 0.0), "loader": self.wait_s.get("loader", 0.0)}
        if self.num_threads and not self.num_workers:
            return [_shared(made, self.num_threads), collate, ahead]
        return [_shared(made | collate, self.num_workers or 1), ahead]

    @property
    def bottleneck(self) -> str:
        """The stage that the others wait for; 'consumer' when data was ready before it was asked for."""
        startup, wall = self.wait_s.get("startup", 0.0), self.wall_s
        # a loader's caller waits for batches, a bare iteration's for files and its own transforms
        waited = self.wait_s.get("consumer")
        if waited is None:
            waited = sum(sum(group.values()) for group in self.groups)
        if wall - startup > 0.2 * wall:  # the start is paid once; where there is little else, it is what there is
            waited, wall = waited - startup, wall - startup
        if waited < _IDLE * wall or waited <= 0:
            return "consumer"
        busiest = max(self.groups, key=lambda group: sum(group.values()))
        return max(busiest, key=lambda stage: busiest[stage])

    @property
    def knob(self) -> str:
        """What to turn, so that the bottleneck becomes wider."""
        stage, workers, threads = self.bottleneck, self.num_workers, self.num_threads
        more = f"raise num_workers (now {workers})" if workers else f"raise num_threads (now {threads})"
        if not workers and threads > _num_cores():
            more = f"give it more cores (all of them decode, by {threads} threads)"
        if stage == "consumer":
            is_begun = self.batches or self.samples
            return "none here: the training step is what takes the time" if is_begun else "nothing was handed out yet"
        if stage == "loader":
            return "the loader inside is late: look at its own workers and prefetching, or at the rank that reads"
        if stage == "fetch":
            return self._fetch_knob
        if stage == "device":
            return "send smaller tensors (uint8 for images), or give the loader pin_memory=True"
        if not workers and not threads and stage != "collate":
            return "use a loader (sds.StreamingDataLoader): it decodes in threads or worker processes"
        if stage == "decode":
            is_read = self.from_tensors >= _BUSY * self.samples  # as tensors: there is no resolution to ask for
            return more if is_read else f"{more}, or ask for a smaller resolution"
        if stage == "transform":
            return more if workers else f"use num_workers > 0 for Python-heavy transforms, or {more}"
        return f"{more if workers else 'use num_workers > 0'}, or return smaller tensors"

    @property
    def _fetch_knob(self) -> str:
        # 'fetch' is summed over threads, 'room' is not
        if self.wait_s.get("room", 0.0) > 0.5 * self.wait_s.get("fetch", 0.0) / max(1, self.num_threads):
            return "raise cache_limit: downloads wait for room in the cache"
        if self._is_every_connection_busy:
            return f"raise num_downloading_workers (now {self.num_connections}): every connection is busy"
        if self.evictions:
            return f"raise cache_limit: {self.evictions} files had to go, and are downloaded again when they are needed"
        now = f" (now {self.prefetch})" if self.prefetch else ""
        return f"raise prefetch{now}: files are asked for too late"

    @property
    def _is_every_connection_busy(self) -> bool:
        """By the seconds of downloads; other processes of the node are taken to have as many."""
        room = self.num_connections * self.downloading_s
        return room > 0 and self.busy_s.get("download", 0.0) * self.num_sharing >= _BUSY * room

    def __str__(self) -> str:
        first = "-" if self.time_to_first_batch is None else f"{self.time_to_first_batch:.2f} s"
        what, number = ("batches", self.batches) if self.batches and not self.samples else ("samples", self.samples)
        rate = number / self.wall_s if self.wall_s else 0.0
        lines = [
            f"{what}: {number} in {self.wall_s:.2f} s ({format_rate(rate)}/s), first batch after {first}",
            f"downloaded: {format_bytes(self.bytes_downloaded)} ({format_bytes(self.bytes_per_s)}/s) "
            f"in {self.requests} requests, {self.retries} retries, {self.hedges} hedges",
            f"cache: {self.hits} hits, {self.misses} misses ({self.hit_rate:.1%} hit rate), {self.evictions} evictions"
            + (f", {self.waits} waits for room ({self.wait_s.get('room', 0.0):.1f} s)" if self.waits else ""),
        ]
        if self.range_reads:
            lines.append(f"by ranges: {self.range_reads} files, {self.range_fallbacks} of them fetched whole after all")
        if self.from_tensors:
            lines.append(f"tensors: {self.from_tensors} samples were read as tensors, not made of files")
        lines.append(f"failures: {self.failures}, stand-ins: {self.stand_ins}, dropped by transforms: {self.dropped}")
        lines.append(f"busy: {_seconds(self.busy_s, STAGES)}{self._crew}")
        lines.append(f"waited: {_seconds(self.wait_s, ('consumer', 'startup', 'fetch', 'loader'))}")
        if self.queue_depths:
            lines.append("ready: " + ", ".join(f"{n:.1f} {name}" for name, n in sorted(self.queue_depths.items())))
        lines.append(f"bottleneck: {self.bottleneck} ({self.knob})")
        return "\n".join(lines)

    @property
    def _crew(self) -> str:
        if self.num_workers:
            return f" (of {self.num_workers} workers)"
        return f" (of {self.num_threads} threads)" if self.num_threads else ""


def _num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def format_rate(rate: float) -> str:
    """395.2 -> "395", 1.97 -> "2.0", 0.0213 -> "0.021": slow runs have decimals."""
    return f"{rate:.0f}" if rate >= 10 or not rate else f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"


def _shared(seconds: dict[str, float], number: int) -> dict[str, float]:
    return {stage: each / number for stage, each in seconds.items()}


def _seconds(found: Mapping[str, float], order: Sequence[str]) -> str:
    return "  ".join(f"{s} {found[s]:.2f} s" for s in order if found.get(s, 0.0) >= 0.005) or "nothing measurable"


_OWN = ("samples", "batches", "time_to_first_batch", "wall_s")
_CREW = ("num_workers", "num_threads", "num_connections", "num_sharing", "prefetch", "downloading_s")
_NUM_SLOWEST = 20


def merged_stats(own: Stats, parts: Sequence[Stats]) -> Stats:
    """What was handed out and when, from one; everything else, summed over the others too."""
    sums: dict[str, Any] = {}
    for each in fields(Stats):
        values = [getattr(stats, each.name) for stats in (own, *parts)]
        if each.name in _OWN:
            sums[each.name] = values[0]
        elif each.name in _CREW:  # the same ones make the batches of all
            sums[each.name] = max(values)
        elif each.name == "queue_depths":
            sums[each.name] = {name: depth for depths in reversed(values) for name, depth in depths.items()}
        elif each.name == "traffic":
            sums[each.name] = summed_traffic(values)
        elif each.name == "slowest":
            sums[each.name] = tuple(sorted((slow for some in values for slow in some), reverse=True)[:_NUM_SLOWEST])
        elif isinstance(values[0], int):
            sums[each.name] = sum(values)
        else:
            stages = dict.fromkeys(stage for seconds in values for stage in seconds)
            sums[each.name] = {stage: sum(seconds.get(stage, 0.0) for seconds in values) for stage in stages}
    return Stats(**sums)


def seen_from_outside(own: Stats, inner: Stats) -> Stats:
    """The stats of a loader as the caller of what goes around it sees them: its batches, its waits, its own work."""
    wait = {kind: seconds for kind, seconds in inner.wait_s.items() if kind not in ("consumer", "startup")}
    busy = {stage: seconds for stage, seconds in inner.busy_s.items() if stage != "consumer"}
    return merged_stats(own, [replace(inner, wait_s=wait, busy_s=busy)])


def summed_traffic(several: Sequence[tuple[Traffic, ...]]) -> tuple[Traffic, ...]:
    """By bucket and storage class."""
    found: dict[tuple[str, str], Traffic] = {}
    for store, storage_class, requests, num_bytes in (traffic for some in several for traffic in some):
        before = found.get((store, storage_class), Traffic(store, storage_class, 0, 0))
        after = before._replace(requests=before.requests + requests, num_bytes=before.num_bytes + num_bytes)
        found[store, storage_class] = after
    return tuple(found.values())


# ---- the lines of a run that is recorded --------------------------------------------------------------------------


class Beginning(msgspec.Struct, frozen=True, tag="begin"):
    """The first line: seconds since 1970, the rank, and who wrote it."""

    at: float
    rank: int
    version: str
    pid: int


class Moment(msgspec.Struct, frozen=True, tag="stats"):
    """The stats, so many seconds after the beginning."""

    after_s: float
    stats: Stats


class Failed(msgspec.Struct, frozen=True, tag="failure"):
    """A row that failed."""

    after_s: float
    failure: Failure


Line: TypeAlias = Beginning | Moment | Failed
