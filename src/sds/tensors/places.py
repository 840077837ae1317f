"""What a reader asks of the place where a cache lies, and how wanted bytes become few reads.

Comes in: names of files and ranges of bytes. Goes out: bytes, into memory that the caller has made. local.py is a
folder, remote.py a prefix of a store.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import platformdirs

from sds.tensors.columns import Columns
from sds.urls import SCHEMES, redact, split

__all__ = ["MAX_RUN", "Job", "Place", "Want", "cache_folder", "coalesced", "span_of", "store_of"]

MAX_RUN = 32 << 20
_STORE_NAME = re.compile(r"((aws|google|azure_storage|azure)_)?(endpoint|endpoint_url|base_url|account_name)", re.I)
_STORE_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_NAME"),
}
_START = itemgetter(0)
_MAX_BUFFERS = 512  # of one call; the kernel takes 1024


# Bytes [start, start + len(into)) of a shard's data, to be put into this memory
Want: TypeAlias = tuple[int, memoryview]
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

    def read_all(self, jobs: Sequence[Job], num_threads: int = 1) -> None:
        """The same, from several shards, where it helps by as many threads as may be."""
        ...

    def chunk(self, columns: Columns, start: int, stop: int) -> bytes:
        """Bytes of a shard's file, header included."""
        ...

    def close(self) -> None:
        """Lets go of what is open; it is opened again when needed."""
        ...


def store_of(url: str, storage_options: dict[str, Any] | None = None) -> str:
    """Which of the stores that have such URLs is meant: its endpoint or account; empty: the usual one."""
    scheme, given = split(url).scheme, dict(storage_options or {})
    own = next((value for name, value in given.items() if SCHEMES.get(name) == scheme and isinstance(value, dict)), {})
    for name, value in {**given, **own}.items():
        if _STORE_NAME.fullmatch(str(name)) and isinstance(value, str):
            return redact(value).rstrip("/")
    found = (os.environ.get(name) for name in _STORE_VARIABLES.get(scheme, ()))
    return redact(next(filter(None, found), "")).rstrip("/")


def cache_folder(url: str, storage_options: dict[str, Any] | None = None) -> Path:
    """Where the local side of a remote cache is, if nothing else was said."""
    base = os.environ.get("SDS_CACHE_DIR") or platformdirs.user_cache_dir("sds", appauthor=False)
    text = f"{url.rstrip('/')} {store_of(url, storage_options)}"
    return Path(base) / f"tensors-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def coalesced(wants: Sequence[Want], max_gap: int) -> Iterator[list[Want]]:
    """The wants in order of their starts, as runs that are worth one read each."""
    run: list[Want] = []
    begin = end = 0
    for want in sorted(wants, key=_START):
        start, into = want
        stop = start + len(into)
        if run and not (end <= start <= end + max_gap and stop - begin <= MAX_RUN and len(run) < _MAX_BUFFERS):
            yield run
            run = []
        if not run:
            begin = start
        run.append(want)
        end = stop
    if run:
        yield run


def span_of(run: Sequence[Want]) -> tuple[int, int]:
    """Where a run begins and ends."""
    start, into = run[-1]
    return run[0][0], start + len(into)
