"""A cache in a store: columns are fetched once, tensors are read by ranges, all through the fetch room.

Comes in: names of objects and ranges of bytes. Goes out: bytes, into memory that the caller has made. The client may be
forked and pickled, and so may this.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sds.errors import FetchError, ObjectNotFound
from sds.fetch import FetchClient
from sds.tensors.columns import Columns
from sds.tensors.format import corrupt, is_name
from sds.tensors.places import MAX_RUN, Job, Want, coalesced, span_of

__all__ = ["RemotePlace"]

# Reading on is cheaper than asking again: up to such a gap between two blocks
_GAP = 256 << 10
_NUM_THREADS = 8


class RemotePlace:
    """A prefix of a store. Columns are fetched whole, once, into a local folder; tensors are read by ranges."""

    def __init__(self, url: str, client: FetchClient, folder: str | os.PathLike[str]) -> None:
        self.url = url.rstrip("/")
        self.client = client
        self.folder = Path(folder)
        self.num_reads = self.num_bytes_read = 0

    def read_file(self, name: str) -> bytes | None:
        """A small file, whole; None if it is not there."""
        try:
            return self.client.read(f"{self.url}/{name}")
        except ObjectNotFound:
            return None

    def names(self) -> list[str]:
        """Names of committed shards, without suffix."""
        found = [info.url.rsplit("/", 1)[1] for info in self.client.list(self.url)]
        return [name[:-6] for name in found if name.endswith(".index") and is_name(name[:-6])]

    def columns(self, name: str) -> Columns:
        """The columns of a shard: the name has the hash of what they say, so a copy stays good for ever."""
        path = self.folder / f"{name}.index"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self.client.download(f"{self.url}/{name}.index", path)
            except ObjectNotFound as error:
                raise corrupt(name, "its columns are not there") from error
        return Columns(name, path)

    def chunk(self, columns: Columns, start: int, stop: int) -> bytes:
        """Bytes of a shard's file, header included."""
        return self._ranges(columns, [(start, stop)])[0]

    def read(self, columns: Columns, wants: Sequence[Want]) -> None:
        """Fills the wanted memory, by ranges of the object."""
        batches: list[list[list[Want]]] = [[]]
        size = 0
        for run in coalesced(wants, _GAP):
            start, stop = span_of(run)
            if batches[-1] and size + stop - start > MAX_RUN:
                batches.append([])
                size = 0
            batches[-1].append(run)
            size += stop - start
        for runs in batches:
            self._read_runs(columns, runs)

    def read_all(self, jobs: Sequence[Job], num_threads: int = 1) -> None:  # noqa: ARG002 (it waits for a store)
        """The same, from several shards at once, whatever the number of threads that may copy."""
        if len(jobs) < 2:
            for columns, wants in jobs:
                self.read(columns, wants)
            return
        with ThreadPoolExecutor(min(_NUM_THREADS, len(jobs))) as pool:
            for _ in pool.map(lambda job: self.read(*job), jobs):
                pass

    def _read_runs(self, columns: Columns, runs: list[list[Want]]) -> None:
        base = columns.data_start
        ranges = [(base + start, base + stop) for start, stop in map(span_of, runs)]
        for run, part in zip(runs, self._ranges(columns, ranges), strict=True):
            begin, _ = run[0]
            for start, into in run:
                into[:] = part[start - begin : start - begin + len(into)]

    def _ranges(self, columns: Columns, ranges: list[tuple[int, int]]) -> list[bytes]:
        url = f"{self.url}/{columns.name}.safetensors"
        try:
            parts = self.client.read_ranges(url, ranges)
        except ObjectNotFound as error:
            raise corrupt(columns.name, "its tensors are not there") from error
        except FetchError as error:
            if self.client.head(url).size != columns.num_bytes:  # the doubt is settled before anybody is blamed
                raise corrupt(columns.name, f"not the {columns.num_bytes} bytes that were written") from error
            raise
        self.num_reads += 1
        self.num_bytes_read += sum(map(len, parts))
        for (start, stop), part in zip(ranges, parts, strict=True):
            if len(part) != stop - start:
                raise corrupt(columns.name, f"it ends at byte {start + len(part)} of {columns.num_bytes}")
        return parts

    def close(self) -> None:
        """Ends the connection to the fetch server."""
        self.client.close()
