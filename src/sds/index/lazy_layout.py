"""Layout: Parquet files seen as one long table, of which any rows can be read, some columns at a time.

Comes in: a source of Parquet files. Goes out: what their footers say, with nothing else read; and, asked for rows by
their number over all files, tables in common types, paths relative to one folder as in an index that is read whole.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from sds.errors import ObjectNotFound, OptionError, SourceError, SourceNotFound
from sds.index.formats import Format
from sds.index.gather import common_folder, rebase
from sds.index.lazy_files import Footer, ParquetPart, read_footer
from sds.index.parts import IndexFile, Source
from sds.index.readers import check_names, plain_type
from sds.index.remote import OpenRemote
from sds.index.unify import NamedTable, common_schema, concatenate
from sds.urls import is_remote, redact

__all__ = ["Layout", "LayoutReader", "Piece", "make_layout"]

_NUM_FOOTERS_AT_ONCE = 32
_MAX_OPEN_FILES = 32
_PARQUET = Format("parquet")


class Piece(NamedTuple):
    """Rows of one row group: their numbers over all files, and whether values to download may be missing in them."""

    start: int
    stop: int
    may_lack: bool


class Layout(msgspec.Struct, frozen=True, dict=True):
    """What is known of the files.

    Attributes:
        footers: of the files, in order.
        from_web: the numbers of those that a list on a web server named.
        schema_bytes: the schema that all of them fit, as Arrow writes it.
        folder: what relative paths to download are relative to; None: they are addresses.
        downloads: the columns with paths.
        num_bytes: of all row groups, uncompressed.
    """

    footers: list[Footer]
    from_web: list[int]
    schema_bytes: bytes
    folder: str | None
    downloads: tuple[str, ...]
    num_bytes: int

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of all files, in plain types."""
        return pa.ipc.read_schema(pa.BufferReader(self.schema_bytes))

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """The number of each file's first row, and after the last file that of all rows."""
        return np.cumsum([0, *(footer.num_rows for footer in self.footers)])

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return int(self.starts[-1])

    @property
    def may_name_local(self) -> bool:
        """Whether any file may name files of this machine."""
        return any(self.part(number).may_name_local for number in range(len(self.footers)))

    def part(self, number: int) -> IndexFile:
        """A file as a part of the source."""
        footer = self.footers[number]
        return IndexFile(footer.url, _PARQUET, footer.version, number in self.from_web)

    def fingerprint(self, salt: str) -> str:
        """Equal for equal footers in equal places below the common folder, on any machine; no row is read."""
        digest = hashlib.blake2b(f"lazy {salt} {self.schema}".encode(), digest_size=16)
        skip = 0 if self.folder is None else len(self.folder)
        for footer in self.footers:
            digest.update(f"{footer.url[skip:]} {footer.size} {footer.digest}\n".encode())
        return digest.hexdigest()


def make_layout(source: Source, downloads: Sequence[str], open_remote: OpenRemote) -> tuple[Layout, list[Piece]]:
    """Reads the footers of all files; also tells all row groups.

    Raises:
        OptionError: not all files are Parquet.
        SourceError: a file is missing or damaged, or two do not fit each other.
    """
    parts = checked_parts(source)

    def read(part: IndexFile) -> tuple[Footer, parquet.FileMetaData]:
        try:
            return read_footer(part.url, part.version, open_remote)
        except (ObjectNotFound, FileNotFoundError) as e:
            hint = "it was there a moment ago: try again"
            raise SourceNotFound(f"index file is gone: {redact(part.url)}", hint=hint, url=redact(part.url)) from e

    schemas: dict[bytes, NamedTable] = {}
    footers, pieces, start, num_bytes = [], [], 0, 0
    is_far = any(is_remote(part.url) for part in parts)
    with ThreadPoolExecutor(_NUM_FOOTERS_AT_ONCE if is_far else 2) as pool:
        for part, (footer, facts) in zip(parts, pool.map(read, parts), strict=True):
            footers.append(footer)
            schema = facts.schema.to_arrow_schema()
            check_names(schema.names, redact(part.url))
            plain = pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])
            schemas.setdefault(plain.serialize().to_pybytes(), NamedTable(redact(part.url), plain.empty_table()))
            for number, num_rows in enumerate(footer.group_rows):
                group = facts.row_group(number)
                num_bytes += group.total_byte_size
                if num_rows:
                    pieces.append(Piece(start, start + num_rows, _may_lack(group, downloads)))
                start += num_rows
    merged = common_schema(list(schemas.values()))
    from_web = [number for number, part in enumerate(parts) if part.from_web]
    folder = common_folder(source)
    layout = Layout(footers, from_web, merged.serialize().to_pybytes(), folder, tuple(downloads), num_bytes)
    if not layout.num_rows:
        url = redact(parts[0].url)
        raise SourceError(f"source has no rows: {url}", hint="is it empty, or still being written?", url=url)
    return layout, pieces


def checked_parts(source: Source) -> list[IndexFile]:
    """The files of a source that can be read in chunks; OptionError if there are others."""
    for part in source.parts:
        if not isinstance(part, IndexFile) or part.format != _PARQUET:
            name = part.url if isinstance(part, IndexFile) else part.origin
            raise OptionError(
                f"lazy_index_chunk_size needs Parquet files: {redact(name)}",
                hint="convert it once with `sds index build SRC -o index.parquet`, or leave lazy_index_chunk_size out",
            )
    return source.index_files


def _may_lack(group: Any, downloads: Sequence[str]) -> bool:
    """Whether the footer leaves open that a value to download is null or empty in a row group."""
    wanted = set(downloads)
    for i in range(group.num_columns if wanted else 0):
        column = group.column(i)
        name = column.path_in_schema.partition(".")[0]
        if name in wanted:
            wanted.discard(name)
            facts = column.statistics
            if facts is None or not facts.has_null_count or facts.null_count:
                return True
            if not facts.has_min_max or facts.min in ("", b""):
                return True
    return bool(wanted)  # a column that the file does not have


class LayoutReader:
    """Reads rows of a layout; several threads may ask. Not to be used after a fork: make another."""

    def __init__(
        self, layout: Layout, columns: Sequence[str], open_remote: OpenRemote, *, keeps_place: bool = False
    ) -> None:
        self._layout = layout
        self._keeps_place = keeps_place
        self._columns = columns
        self._schema = pa.schema([layout.schema.field(name) for name in columns])
        self._open_remote = open_remote
        self._lock = threading.Lock()
        self._files: OrderedDict[int, ParquetPart] = OrderedDict()

    def read(self, start: int, stop: int) -> pa.Table:
        """The rows with the numbers [start, stop), of any files."""
        tables = [self._read(number, a, b) for number, a, b in self._spans(start, stop)]
        return concatenate(tables, self._schema)

    def _spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        starts = self._layout.starts
        number = int(np.searchsorted(starts, start, "right")) - 1
        while start < stop:
            first, end = int(starts[number]), min(stop, int(starts[number + 1]))
            if start < end:
                yield number, start - first, end - first
            start, number = max(start, end), number + 1

    def _read(self, number: int, start: int, stop: int) -> NamedTable:
        layout, part = self._layout, self._layout.part(number)
        table = self._file(number).read(start, stop)
        return NamedTable(part.url, rebase(table, part, folder=layout.folder, downloads=layout.downloads))

    def _file(self, number: int) -> ParquetPart:
        with self._lock:
            file = self._files.get(number)
            if file is not None:
                self._files.move_to_end(number)
                return file
        footer, keeps_place = self._layout.footers[number], self._keeps_place
        file = ParquetPart(footer, self._columns, self._open_remote, keeps_place=keeps_place)
        with self._lock:
            file = self._files.setdefault(number, file)
            while len(self._files) > _MAX_OPEN_FILES:
                self._files.popitem(last=False)
        return file
