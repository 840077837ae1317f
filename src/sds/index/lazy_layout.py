"""Layout: files seen as one long table, of which any rows can be read, some columns at a time.

Comes in: a source of Parquet, CSV or JSON lines files. Goes out: what their footers say, with nothing else read (text
files have none, and are read once); and, asked for rows by their number over all files, tables in common types, paths
relative to one folder as in an index that is read whole.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sds.errors import ObjectNotFound, OptionError, SourceError, SourceNotFound
from sds.index.gather import common_folder, rebase
from sds.index.lazy_files import Footer, ParquetPart, Part, read_footer
from sds.index.lazy_lines import find_lines
from sds.index.lazy_text import TextPart
from sds.index.leaves import leaves_of
from sds.index.options import IndexOptions
from sds.index.parts import IndexFile, Source
from sds.index.readers import check_names, plain_type
from sds.index.remote import OpenRemote
from sds.index.unify import NamedTable, common_schema, concatenate
from sds.urls import is_remote, redact

__all__ = ["Layout", "LayoutReader", "Piece", "make_layout"]

_NUM_FOOTERS_AT_ONCE = 32
_MAX_OPEN_FILES = 32
_MAX_PARSERS = 8
_CHUNKED = ("parquet", "csv", "tsv", "json")


class Piece(NamedTuple):
    """Rows of one row group or block: their numbers over all files, and whether they may lack values to download."""

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
        num_bytes: of all rows, uncompressed.
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
        return IndexFile(footer.url, footer.format, footer.version, number in self.from_web)

    def fingerprint(self, salt: str) -> str:
        """Equal for equal footers in equal places below the common folder, on any machine; no row is read."""
        digest = hashlib.blake2b(f"lazy {salt} {self.schema}".encode(), digest_size=16)
        skip = 0 if self.folder is None else len(self.folder)
        for footer in self.footers:
            digest.update(f"{footer.url[skip:]} {footer.size} {footer.digest}\n".encode())
        return digest.hexdigest()


class _Facts(NamedTuple):
    """What opening a file tells: its footer, its columns, its bytes, and which row groups may lack a value."""

    footer: Footer
    schema: pa.Schema
    num_bytes: int
    may_lack: list[bool]


def make_layout(
    source: Source, options: IndexOptions, open_remote: OpenRemote, *, folder: Path
) -> tuple[Layout, list[Piece]]:
    """Reads the footers of all files; also tells all row groups. Line indexes of text files are kept in the folder.

    Raises:
        OptionError: files are of a kind that cannot be read in chunks.
        SourceError: a file is missing or damaged, or two do not fit each other.
    """
    parts, downloads = checked_parts(source), options.columns_to_download or ()
    num_parsers = min(_MAX_PARSERS, len(os.sched_getaffinity(0))) if len(parts) < _MAX_PARSERS else 1

    def read(part: IndexFile) -> _Facts:
        try:
            if part.format.family == "parquet":
                return _parquet_facts(part, downloads, open_remote)
            text = tuple(dict.fromkeys((options.id_column, *downloads)))
            footer = find_lines(part, text, open_remote, folder=folder, num_threads=num_parsers)
        except (ObjectNotFound, FileNotFoundError) as e:
            hint = "it was there a moment ago: try again"
            raise SourceNotFound(f"index file is gone: {redact(part.url)}", hint=hint, url=redact(part.url)) from e
        return _text_facts(footer, downloads)

    schemas: dict[bytes, NamedTable] = {}
    footers, pieces, start, num_bytes = [], [], 0, 0
    is_far = any(is_remote(part.url) for part in parts)
    with ThreadPoolExecutor(_NUM_FOOTERS_AT_ONCE if is_far else 2) as pool:
        for part, facts in zip(parts, pool.map(read, parts), strict=True):
            footers.append(facts.footer)
            schema = facts.schema
            schemas.setdefault(schema.serialize().to_pybytes(), NamedTable(redact(part.url), schema.empty_table()))
            num_bytes += facts.num_bytes
            for num_rows, may_lack in zip(facts.footer.group_rows, facts.may_lack, strict=True):
                if num_rows:
                    pieces.append(Piece(start, start + num_rows, may_lack))
                start += num_rows
    merged = common_schema(list(schemas.values()))
    from_web = [number for number, part in enumerate(parts) if part.from_web]
    common = common_folder(source)
    layout = Layout(footers, from_web, merged.serialize().to_pybytes(), common, tuple(downloads), num_bytes)
    if not layout.num_rows:
        url = redact(parts[0].url)
        raise SourceError(f"source has no rows: {url}", hint="is it empty, or still being written?", url=url)
    return layout, pieces


def checked_parts(source: Source) -> list[IndexFile]:
    """The files of a source that can be read in chunks; OptionError if there are others."""
    for part in source.parts:
        if isinstance(part, IndexFile) and part.format.family in _CHUNKED and part.format.codec is None:
            continue
        name = redact(part.url if isinstance(part, IndexFile) else part.origin)
        if isinstance(part, IndexFile) and part.format.codec is not None:
            raise OptionError(
                f"lazy_index_chunk_size needs files that are not compressed as a whole: {name}",
                hint="no row of it can be read without all before it: decompress it, convert it once with "
                "`sds index build SRC -o index.parquet`, or leave lazy_index_chunk_size out",
            )
        hint = "convert it once with `sds index build SRC -o index.parquet`, or leave lazy_index_chunk_size out"
        if isinstance(part, IndexFile) and part.format.family in ("tar", "lance"):
            hint = "leave lazy_index_chunk_size out: what such a source holds is not read before it is needed"
        raise OptionError(f"lazy_index_chunk_size needs Parquet, CSV or JSON lines files: {name}", hint=hint)
    return source.index_files


def _parquet_facts(part: IndexFile, downloads: Sequence[str], open_remote: OpenRemote) -> _Facts:
    footer, facts = read_footer(part.url, part.version, open_remote)
    schema = facts.schema.to_arrow_schema()
    check_names(schema.names, redact(part.url))
    plain = pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])
    groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    num_bytes = sum(group.total_byte_size for group in groups)
    return _Facts(footer, plain, num_bytes, [_may_lack(group, downloads, leaves_of(schema)) for group in groups])


def _text_facts(footer: Footer, downloads: Sequence[str]) -> _Facts:
    lines = footer.lines
    assert lines is not None
    schema = pa.ipc.read_schema(pa.BufferReader(lines.schema_bytes))
    gaps = [lines.gaps[name] for name in downloads]
    may_lack = [any(gap[number] for gap in gaps) for number in range(len(footer.group_rows))]
    return _Facts(footer, schema, footer.size, may_lack)


def _may_lack(group: Any, downloads: Sequence[str], leaves: Mapping[str, range]) -> bool:
    """Whether the footer leaves open that a value to download is null or empty in a row group."""
    for name in downloads:
        if name not in leaves:
            return True
        facts = group.column(leaves[name].start).statistics
        if facts is None or not facts.has_null_count or facts.null_count:
            return True
        if not facts.has_min_max or facts.min in ("", b""):
            return True
    return False


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
        self._files: OrderedDict[int, Part] = OrderedDict()

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

    def _file(self, number: int) -> Part:
        with self._lock:
            file = self._files.get(number)
            if file is not None:
                self._files.move_to_end(number)
                return file
        file = self._open(self._layout.footers[number])
        with self._lock:
            file = self._files.setdefault(number, file)
            while len(self._files) > _MAX_OPEN_FILES:
                self._files.popitem(last=False)
        return file

    def _open(self, footer: Footer) -> Part:
        keeps_place = self._keeps_place
        if footer.lines is None:
            return ParquetPart(footer, self._columns, self._open_remote, keeps_place=keeps_place)
        return TextPart(footer, self._columns, self._layout.schema, self._open_remote, keeps_place=keeps_place)
