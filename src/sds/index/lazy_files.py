"""Files read in part: what must be known of one, its Footer, and some rows of some columns of it, a Part.

Comes in: an address and row numbers. Goes out: facts, or a table of exactly these rows, of a local file or by ranges of
a remote one. Here is Parquet, of which only the row groups that hold the rows are touched; `lazy_text` has CSV and JSON
lines. Whatever is wrong with a file, or changed since its footer was made, is a SourceError that names it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from sds.errors import SdsError, SourceError
from sds.index.formats import Format
from sds.index.listing import file_version
from sds.index.readers import plain_table
from sds.index.remote import OpenRemote
from sds.index.sparse import Sparse
from sds.urls import is_remote, redact

__all__ = [
    "Footer",
    "Lines",
    "ParquetPart",
    "Part",
    "changed",
    "check_version",
    "damaged",
    "no_columns",
    "read_footer",
    "read_range",
]

_MAGIC = b"PAR1"
_FIRST_TAIL = 64 << 10  # most footers fit: one request instead of two
_MAX_FOOTER = 256 << 20
_BATCH_ROWS = 1 << 16
_GAP = 64 << 10  # ranges that lie so near to each other are read as one


class Lines(msgspec.Struct, frozen=True, array_like=True):
    """Where the rows of a text file lie: it has no footer, so it was read once. A block is some whole rows.

    Attributes:
        family: 'csv', 'tsv' or 'json'.
        offsets: of the first byte of each block, and after the last that of the end, as int64.
        checks: a hash of each block, 8 bytes long.
        schema_bytes: of all rows, as Arrow writes it.
        gaps: by column of text, for each block whether a value is missing there, as a byte.
    """

    family: str
    offsets: bytes
    checks: bytes
    schema_bytes: bytes
    gaps: dict[str, bytes]


class Footer(msgspec.Struct, frozen=True, array_like=True):
    """What must be known of a file to read parts of it.

    Attributes:
        url: its address.
        version: of a local file; it must not change while it is read.
        size: its bytes.
        length: bytes of the footer, at its end.
        digest: a hash of the footer, or of a text file's blocks: another one means another file.
        group_rows: the rows of each row group, or block.
        lines: of a text file, where its blocks are.
    """

    url: str
    version: str
    size: int
    length: int
    digest: str
    group_rows: list[int]
    lines: Lines | None = None

    @property
    def format(self) -> Format:
        """How it is read."""
        return Format("parquet" if self.lines is None else self.lines.family)

    @property
    def num_rows(self) -> int:
        """Rows of the file."""
        return sum(self.group_rows)


class Part(Protocol):
    """An open file, of which some columns are read. Several threads may ask."""

    def read(self, start: int, stop: int) -> pa.Table:
        """The rows [start, stop) of the file, in plain types.

        Raises:
            SourceError: the file is damaged, or was changed.
            FetchError: it cannot be read.
        """
        ...


def read_footer(url: str, version: str, open_remote: OpenRemote) -> tuple[Footer, parquet.FileMetaData]:
    """Reads the footer of a file, and nothing else.

    Raises:
        SourceError: it is no Parquet file, or damaged.
        FetchError: it cannot be read.
    """
    size = open_remote().head(url).size if is_remote(url) else os.stat(url).st_size
    tail = read_range(url, max(0, size - _FIRST_TAIL), size, open_remote)
    if tail[-4:] != _MAGIC:
        _parse(url, tail)  # which says what is wrong
        raise damaged(url, "it does not end as Parquet does")
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if length > min(size, _MAX_FOOTER):
        raise damaged(url, f"its footer would have {length} bytes")
    if length > len(tail):
        tail = read_range(url, size - length, size - len(tail), open_remote) + tail
    raw = tail[len(tail) - length :]
    facts = _parse(url, raw)
    rows = [facts.row_group(i).num_rows for i in range(facts.num_row_groups)]
    return Footer(url, version, size, length, _digest(raw), rows), facts


def _digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=12).hexdigest()


def _parse(url: str, raw: bytes) -> parquet.FileMetaData:
    try:
        return parquet.read_metadata(pa.BufferReader(raw))
    except (pa.ArrowException, OSError, ValueError) as e:
        raise damaged(url, " ".join(str(e).split())) from e


def read_range(url: str, start: int, stop: int, open_remote: OpenRemote) -> bytes:
    """Some bytes of a local or remote file; SourceError if it ends before."""
    if is_remote(url):
        data = open_remote().read(url, start, stop)
    else:
        with open(url, "rb", buffering=0) as file:
            file.seek(start)
            data = file.read(stop - start) or b""
    if len(data) != stop - start:
        raise damaged(url, f"it ends {stop - start - len(data)} bytes too early")
    return data


class ParquetPart:
    """An open file, of which some columns are read. Several threads may ask; they take turns.

    Args:
        footer: what was known of it when the index was made.
        columns: the columns to read; those that the file does not have are left out.
        open_remote: gives the reader of remote objects.
        keeps_place: whether reads follow each other, so that it pays to stay in the midst of a row group.
    """

    def __init__(
        self, footer: Footer, columns: Sequence[str], open_remote: OpenRemote, *, keeps_place: bool = False
    ) -> None:
        self._footer = footer
        self._keeps_place = keeps_place
        self._open_remote = open_remote
        self._lock = threading.Lock()
        self._starts = np.cumsum([0, *footer.group_rows])
        url = footer.url
        check_version(url, footer.version)
        raw = read_range(url, footer.size - footer.length, footer.size, open_remote)
        if _digest(raw) != footer.digest:
            raise changed(url)
        self._facts = _parse(url, raw)
        names = self._facts.schema.to_arrow_schema().names
        self._columns = [name for name in names if name in columns]
        self._leave()

    def _leave(self) -> None:
        """Forgets where it is: in which row group, how far, and what was read but not asked for yet."""
        self._group, self._place = -1, 0
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None

    def read(self, start: int, stop: int) -> pa.Table:
        """The rows [start, stop) of the file, in plain types.

        Raises:
            SourceError: the file is damaged.
            FetchError: it cannot be read.
        """
        with self._lock:
            try:
                pieces = list(self._pieces(start, stop))
                table = pa.Table.from_batches(pieces) if pieces else self._empty()
                table.validate(full=True)  # a reader believes what a file says of its own layout
            except (pa.ArrowException, OSError, ValueError) as e:
                self._leave()
                if isinstance(e, SdsError):
                    raise
                raise damaged(self._footer.url, " ".join(str(e).split())) from e
            if not self._keeps_place or self._group < 0 or self._place == self._footer.group_rows[self._group]:
                self._leave()  # and with it of what is held in memory
        if not self._columns:  # rows without columns: how many there are would be lost
            return no_columns(stop - start)
        return plain_table(table)

    def _empty(self) -> pa.Table:
        schema = self._facts.schema.to_arrow_schema()
        return pa.schema([schema.field(name) for name in self._columns]).empty_table()

    def _pieces(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        if not self._columns:
            return
        group = int(np.searchsorted(self._starts, start, "right")) - 1
        while start < stop:
            first, end = int(self._starts[group]), min(stop, int(self._starts[group + 1]))
            if start < end:
                self._seek(group, start - first)
                yield from self._take(end - start)
            start, group = max(start, end), group + 1

    def _seek(self, group: int, place: int) -> None:
        """Goes to a row of a row group: on from where it is, or from the group's beginning."""
        if group != self._group or place < self._place:
            self._batches = self._open(group)
            self._group, self._place, self._rest = group, 0, None
        for _ in self._take(place - self._place):
            pass

    def _take(self, num_rows: int) -> Iterator[pa.RecordBatch]:
        while num_rows:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            if batch is None:
                raise damaged(self._footer.url, f"row group {self._group} is shorter than its footer says")
            taken = min(num_rows, batch.num_rows)
            self._rest = batch.slice(taken) if taken < batch.num_rows else None
            self._place, num_rows = self._place + taken, num_rows - taken
            if taken:
                yield batch.slice(0, taken)

    def _open(self, group: int) -> Iterator[pa.RecordBatch]:
        url = self._footer.url
        source = self._remote_source(group) if is_remote(url) else pa.OSFile(url)
        file = parquet.ParquetFile(source, metadata=self._facts, pre_buffer=False)
        # without Arrow's threads: they are not there after a fork, and readers have threads of their own
        batches: Iterator[pa.RecordBatch] = file.iter_batches(
            batch_size=_BATCH_ROWS, row_groups=[group], columns=self._columns, use_threads=False
        )
        return batches

    def _remote_source(self, group: int) -> pa.PythonFile:
        """The row group's bytes of the columns that are read, fetched together."""
        remote, url = self._open_remote(), self._footer.url
        ranges = _merged(_ranges(self._facts.row_group(group), self._columns))
        pieces = remote.read_ranges(url, ranges)
        for (start, stop), piece in zip(ranges, pieces, strict=True):
            if len(piece) != stop - start:
                raise damaged(url, "a range of it is shorter than asked for")
        fallback: Callable[[int, int], bytes] = lambda start, stop: remote.read(url, start, stop)  # noqa: E731
        return pa.PythonFile(Sparse(self._footer.size, ranges, pieces, fallback), mode="r")


def _ranges(group: Any, columns: Sequence[str]) -> list[tuple[int, int]]:
    found = []
    for i in range(group.num_columns):
        column = group.column(i)
        path = column.path_in_schema
        if any(path == name or path.startswith(f"{name}.") for name in columns):
            start = column.data_page_offset
            if column.dictionary_page_offset is not None:
                start = min(start, column.dictionary_page_offset)
            found.append((start, start + column.total_compressed_size))
    return sorted(found)


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in ranges:
        if merged and start - merged[-1][1] <= _GAP:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


def no_columns(num_rows: int) -> pa.Table:
    """So many rows without any of the columns that are asked for."""
    return pa.table({"__sds_none__": pa.nulls(num_rows)})


def check_version(url: str, version: str) -> None:
    """Raises SourceError if a local file is not the one that was looked at before."""
    if is_remote(url):
        return
    try:
        found = file_version(os.stat(url))
    except FileNotFoundError:
        found = ""
    if found != version:
        raise changed(url)


def changed(url: str) -> SourceError:
    """The error of a file that is no longer what it was."""
    return SourceError(
        f"index file changed since it was opened: {redact(url)}", hint="open the dataset again", url=redact(url)
    )


def damaged(url: str, reason: str, hint: str = "is it whole, and really Parquet?") -> SourceError:
    """The error of a file that cannot be read."""
    return SourceError(f"index file cannot be read: {redact(url)}: {reason}", hint=hint, url=redact(url))
