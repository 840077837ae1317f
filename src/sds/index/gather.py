"""Source -> one table: every part read, brought to common types, put under each other.

Paths to download come out relative to one folder that all parts share, so that the table is the same wherever it lies;
parts that share none have addresses instead. Versions of listed files are kept beside the table, by path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sds.errors import ObjectNotFound, SourceNotFound
from sds.index import addresses
from sds.index.alternatives import column_names
from sds.index.grouping import group_samples
from sds.index.held import Held
from sds.index.options import IndexOptions
from sds.index.parts import IndexFile, SampleFiles, Source
from sds.index.readers import ReadFile, read_index_file
from sds.index.remote import OpenRemote
from sds.index.resolve import move_base, refuse_local, resolve
from sds.index.unify import NamedTable, common_schema, concatenate, is_text
from sds.urls import is_remote

__all__ = ["FileToRead", "Gathered", "ReadFiles", "Versions", "common_folder", "gather", "rebase"]

_NUM_FILES_AT_ONCE = 8
_UNTYPED = ("csv", "tsv")


@dataclass(frozen=True)
class Versions:
    """Versions of listed files, by path."""

    paths: pa.ChunkedArray
    versions: pa.ChunkedArray

    def of(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """The version of each file in a column; null for one that was not listed."""
        return self.versions.take(pc.index_in(column, self.paths.combine_chunks()))


@dataclass(frozen=True)
class Gathered:
    """All rows of a source.

    Attributes:
        table: its rows; columns that nobody needs may be left out.
        columns: the names of all columns that there are.
        folder: what relative paths to download are relative to; None: there are none.
        columns_to_download: the names asked for, or all extensions.
        versions: of the files of directories; None if there are none.
        may_name_local: whether any part of the source may name files on this machine's own disks.
        held: what the source holds inside itself, if rows name places in it.
    """

    table: pa.Table
    columns: tuple[str, ...]
    folder: str | None
    columns_to_download: tuple[str, ...]
    versions: Versions | None
    may_name_local: bool
    held: Held | None = None


@dataclass(frozen=True)
class FileToRead:
    """An index file, and what is wanted of it: enough to read it in another process."""

    part: IndexFile
    text: tuple[str, ...]
    columns: frozenset[str] | None

    def read(self, open_remote: OpenRemote, path: Path) -> ReadFile:
        """Reads it; a remote one is downloaded to `path` first."""
        part = self.part
        if not is_remote(part.url):
            path = Path(part.url)
        elif not path.exists():
            try:
                open_remote().download(part.url, path)
            except ObjectNotFound as e:
                raise SourceNotFound(
                    f"index file is gone: {part.url}", hint="it was there a moment ago: try again", url=part.url
                ) from e
        return read_index_file(path, part.format, name=part.url, text=self.text, columns=self.columns)


ReadFiles: TypeAlias = Callable[[Sequence[FileToRead]], list[ReadFile]]


def gather(
    source: Source,
    options: IndexOptions,
    *,
    open_remote: OpenRemote,
    scratch: Path,
    read_files: ReadFiles | None = None,
) -> Gathered:
    """Reads all parts of a source.

    Args:
        source: its parts.
        options: what is wanted of them.
        open_remote: gives the reader of remote objects.
        scratch: a folder for downloaded index files.
        read_files: reads several index files, elsewhere; None: threads of this process do.
    """
    reader = _Reader(options, open_remote, scratch)
    folder = common_folder(source)
    if read_files is not None and len(source.index_files) == len(source.parts) > 1:
        reads = read_files([reader.wanted(part) for part in source.index_files])
    elif len(source.parts) == 1:
        reads = [reader.read(0, source.parts[0])]
    else:
        with ThreadPoolExecutor(_NUM_FILES_AT_ONCE) as pool:
            reads = list(pool.map(reader.read, range(len(source.parts)), source.parts))
    columns = tuple(dict.fromkeys(name for read in reads for name in read.columns))
    downloads = options.columns_to_download
    if not source.index_files:
        downloads = column_names(downloads)
    if downloads is None:
        found = [
            set(read.columns) for read, part in zip(reads, source.parts, strict=True) if isinstance(part, SampleFiles)
        ]
        downloads = tuple(sorted(set().union(*found) - {options.id_column}))

    named = [NamedTable(_name(part), read.table) for read, part in zip(reads, source.parts, strict=True)]
    schema = common_schema(named)
    for i, part in enumerate(source.parts):
        lost = _lost_text(named[i].table, schema)
        if lost and isinstance(part, IndexFile) and part.format.family in _UNTYPED:
            # another file has text there: then what looked like numbers here was text too ("007")
            named[i] = NamedTable(part.url, reader.read(i, part, also_text=lost).table)
    at_folder = partial(rebase, folder=folder, downloads=downloads)
    moved = [NamedTable(n.name, at_folder(n.table, part)) for n, part in zip(named, source.parts, strict=True)]
    return Gathered(
        table=concatenate(moved, schema),
        columns=columns,
        folder=folder,
        columns_to_download=downloads,
        versions=_versions(source.sample_files, folder),
        may_name_local=any(part.may_name_local for part in source.parts),
    )


class _Reader:
    def __init__(self, options: IndexOptions, open_remote: OpenRemote, scratch: Path) -> None:
        self._options = options
        self._open_remote = open_remote
        self._scratch = scratch
        self._text = (options.id_column, *(options.columns_to_download or ()))
        # a query may use any column; without one, only those that samples get are read
        keep = None if options.sql_query is not None else options.index_cols_to_keep
        weights = () if options.weight_col_name is None else (options.weight_col_name,)
        self._columns = None if keep is None else frozenset({*keep, *self._text, *weights})

    def read(self, number: int, part: IndexFile | SampleFiles, also_text: Collection[str] = ()) -> ReadFile:
        if isinstance(part, SampleFiles):
            options = self._options
            table = group_samples(
                part, options.columns_to_download, options.id_column, allow_missing=options.allow_missing_columns
            )
            return ReadFile(table, tuple(table.column_names))
        return self.wanted(part, also_text).read(self._open_remote, self._scratch / f"source-{number}")

    def wanted(self, part: IndexFile, also_text: Collection[str] = ()) -> FileToRead:
        """What is wanted of an index file."""
        return FileToRead(part, (*self._text, *also_text), self._columns)


def _name(part: IndexFile | SampleFiles) -> str:
    return part.url if isinstance(part, IndexFile) else part.origin


def _lost_text(table: pa.Table, schema: pa.Schema) -> list[str]:
    return [
        field.name
        for field in table.schema
        if is_text(schema.field(field.name).type) and not is_text(field.type) and not types.is_null(field.type)
    ]


def rebase(table: pa.Table, part: IndexFile | SampleFiles, *, folder: str | None, downloads: Sequence[str]) -> pa.Table:
    """Makes paths relative to the common folder, or addresses if there is none."""
    for name in set(downloads).intersection(table.column_names):
        column = table[name]
        if not part.may_name_local:
            refuse_local(column, name, _name(part))
        moved = resolve(column, part.folder, name) if folder is None else move_base(column, _way(folder, part.folder))
        if moved is not column:
            table = table.set_column(table.column_names.index(name), name, moved)
    return table


def common_folder(source: Source) -> str | None:
    """The folder that paths of all parts can be relative to; None if there is none."""
    folder = addresses.common_folder(part.folder for part in source.parts)
    if folder is not None and addresses.is_http(folder):
        # a way with escapes is a piece of a URL: put before a file name, it would be escaped with it
        return None if any("%" in _way(folder, part.folder) for part in source.parts) else folder
    return folder


def _way(above: str, folder: str) -> str:
    return folder[len(above.rstrip("/")) :].strip("/")


def _versions(samples: Sequence[SampleFiles], folder: str | None) -> Versions | None:
    listed = [part for part in samples if not part.from_list]
    if not listed:
        return None
    paths, versions = [], []
    for part in listed:
        column = pa.chunked_array([pa.array([file.path for file in part.files], pa.string())])
        moved = move_base(column, part.folder if folder is None else _way(folder, part.folder))
        paths += moved.chunks
        versions.append(pa.array([file.version for file in part.files], pa.string()))
    return Versions(pa.chunked_array(paths, pa.string()), pa.chunked_array(versions, pa.string()))
