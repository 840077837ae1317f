"""A source as tables of some rows each, one after the other, as often as wanted.

Comes in: a source. Goes out: Pieces. Of Parquet files only the rows at hand are in memory, whatever their size; other
sources are built into a mapped table first, as for a dataset. Files to download come out as addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from sds.errors import SchemaError, SourceError, UnsupportedSource
from sds.index.holding import HeldIndex
from sds.index.opening import open_index
from sds.index.options import IndexOptions
from sds.index.parts import IndexFile, Source
from sds.index.readers import plain_table
from sds.index.remote import Remote
from sds.index.resolve import refuse_local, resolve
from sds.index.source import SourceLike, find_source
from sds.index.unify import NamedTable, common_schema, concatenate
from sds.urls import is_remote

__all__ = ["Pieces", "open_pieces"]

_ROWS = 65_536


@dataclass(frozen=True)
class Pieces:
    """The rows of a source.

    Attributes:
        schema: of all tables.
        id_column: the column of ids; None: ids are row numbers.
        source: what they are of.
    """

    schema: pa.Schema
    id_column: str | None
    source: Source
    _table: pa.Table | None
    _files: tuple[tuple[IndexFile, Path], ...]
    _downloads: tuple[str, ...]

    @property
    def folder(self) -> str:
        """What relative paths of the first rows are relative to."""
        return self.source.parts[0].folder

    def __iter__(self) -> Iterator[pa.Table]:
        if self._table is not None:
            for start in range(0, self._table.num_rows, _ROWS):
                yield self._table.slice(start, _ROWS)
            return
        for part, path in self._files:
            with parquet.ParquetFile(str(path), memory_map=True) as file:
                for batch in file.iter_batches(batch_size=_ROWS):
                    table = plain_table(pa.Table.from_batches([batch]))
                    for name in self._downloads:
                        if name in table.column_names:
                            column = _addresses(table[name], part, name)
                            table = table.set_column(table.column_names.index(name), name, column)
                    yield concatenate([NamedTable(part.url, table)], self.schema)

    def ids(self, table: pa.Table, start: int) -> pa.ChunkedArray:
        """The ids of a piece whose first row is number `start`, as text."""
        if self.id_column is not None:
            return table[self.id_column].cast(pa.string())
        return pa.chunked_array([pa.array(np.arange(start, start + table.num_rows)).cast(pa.string())])


def _addresses(column: pa.ChunkedArray, part: IndexFile, name: str) -> pa.ChunkedArray:
    if not part.may_name_local:
        refuse_local(column, name, part.url)
    return resolve(column, part.folder, name)


@contextmanager
def open_pieces(src: SourceLike, options: IndexOptions, *, folder: Path, client: Remote) -> Iterator[Pieces]:
    """Opens a source.

    Raises:
        SourceError: with its kinds, as for open_index.
    """
    source = find_source(src, folder=folder, open_remote=lambda: client)
    files = source.index_files
    is_parquet = len(files) == len(source.parts) and all(part.format.family == "parquet" for part in files)
    if not is_parquet or options.sql_query is not None:
        index = open_index(src, options, folder=folder, remote=lambda: client)
        try:
            if isinstance(index, HeldIndex):
                raise UnsupportedSource(
                    f"samples lie inside the source, which cannot be divided: {source.name}",
                    hint="keep training and validation in files of their own, or choose rows with sql_query",
                )
            table = index.table()
            id_column = options.id_column if options.id_column in table.column_names else None
            yield Pieces(table.schema, id_column, source, table, (), ())
        finally:
            index.close()
        return
    local = tuple((part, _local(part, number, folder, client)) for number, part in enumerate(files))
    schema = _schema(local)
    _check(schema, options)
    id_column = options.id_column if options.id_column in schema.names else None
    yield Pieces(schema, id_column, source, None, local, options.columns_to_download or ())


def _local(part: IndexFile, number: int, folder: Path, client: Remote) -> Path:
    if not is_remote(part.url):
        return Path(part.url)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"source-{number}.parquet"
    client.download(part.url, path)
    return path


def _schema(files: tuple[tuple[IndexFile, Path], ...]) -> pa.Schema:
    schemas = []
    for part, path in files:
        try:
            found = parquet.read_schema(str(path))
        except (pa.ArrowException, OSError) as error:
            raise SourceError(
                f"index file cannot be read: {part.url}: {' '.join(str(error).split())}",
                hint="is it whole, and really parquet?",
                url=part.url,
            ) from error
        schemas.append(NamedTable(part.url, plain_table(found.empty_table())))
    return common_schema(schemas)


def _check(schema: pa.Schema, options: IndexOptions) -> None:
    named = [*(options.columns_to_download or ()), *([options.index_col_name] if options.index_col_name else [])]
    for name in named:
        if name not in schema.names:
            raise SchemaError(
                f"the source has no such column: {name!r}", hint=f"the columns there are: {', '.join(schema.names)}"
            )
