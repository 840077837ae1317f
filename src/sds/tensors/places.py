"""What a reader asks of the place where a cache lies, and how wanted bytes become few reads.

Comes in: names of files and ranges of bytes. Goes out: bytes, into memory that the caller has made. local.py is a
folder, remote.py a prefix of a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from sds.tensors.columns import Columns

__all__ = ["MAX_RUN", "Job", "Place", "Want", "coalesced", "span_of"]

MAX_RUN = 32 << 20
_MAX_BUFFERS = 512  # of one call; the kernel takes 1024


class Want(NamedTuple):
    """Bytes [start, start + len(into)) of a shard's data, to be put into this memory."""

    start: int
    into: memoryview


Job: TypeAlias = tuple[Columns, Sequence[Want]]


class Place(Protocol):
    """What a reader asks of the place of a cache."""

    num_reads: int
    num_bytes_read: int

    def read_file(self, name: str) -> bytes | None:
        """A small file, whole; None if it is not there."""
        ...

    def names(self) -> list[str]:
        """Names of committed shards, without suffix."""
        ...

    def columns(self, name: str) -> Columns:
        """The columns of a shard."""
        ...

    def read(self, columns: Columns, wants: Sequence[Want]) -> None:
        """Fills the wanted memory from a shard. ShardCorrupt if the shard is not the one that was written."""
        ...

    def read_all(self, jobs: Sequence[Job]) -> None:
        """The same, from several shards."""
        ...

    def chunk(self, columns: Columns, start: int, stop: int) -> bytes:
        """Bytes of a shard's file, header included."""
        ...

    def close(self) -> None:
        """Lets go of what is open; it is opened again when needed."""
        ...


def coalesced(wants: Sequence[Want], max_gap: int) -> Iterator[list[Want]]:
    """The wants in order of their starts, as runs that are worth one read each."""
    run: list[Want] = []
    begin = end = 0
    for want in sorted(wants, key=lambda want: want.start):
        stop = want.start + len(want.into)
        if run and not (end <= want.start <= end + max_gap and stop - begin <= MAX_RUN and len(run) < _MAX_BUFFERS):
            yield run
            run = []
        if not run:
            begin = want.start
        run.append(want)
        end = stop
    if run:
        yield run


def span_of(run: Sequence[Want]) -> tuple[int, int]:
    """Where a run begins and ends."""
    return run[0].start, run[-1].start + len(run[-1].into)
