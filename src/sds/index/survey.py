"""What is in an index: gaps of its columns, ids that occur twice, bytes. Memory does not grow with the rows.

Comes in: an open index. Goes out: a Survey. Of a lazy index without a query footers tell about gaps, and only the ids
and the columns to download are read; whatever else is large is read some rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet, types

from sds.errors import CacheError
from sds.index.build import keys_of
from sds.index.lazy import LazyIndex
from sds.index.lazy_files import read_footer
from sds.index.lazy_layout import Layout, LayoutReader
from sds.index.leaves import leaves_of
from sds.index.remote import OpenRemote
from sds.index.resolve import null_if_empty
from sds.index.table import Index, TableIndex

__all__ = ["Duplicates", "Survey", "find_duplicates", "survey"]

_ROWS = 65_536
_NUM_FOOTERS_AT_ONCE = 16
_MEMORY = "256MB"  # for ids; what is more goes to the disk


@dataclass(frozen=True)
class Duplicates:
    """Ids that occur more than once: how many, in how many rows, and the first of them."""

    num_ids: int = 0
    num_rows: int = 0
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Survey:
    """What is in an index.

    Attributes:
        nulls: of each column; None: not known without reading all of it.
        num_bytes: of all rows, in memory.
        duplicates: of ids.
    """

    nulls: dict[str, int | None]
    num_bytes: int
    duplicates: Duplicates


def survey(index: Index, *, id_column: str, scratch: Path, remote: OpenRemote) -> Survey:
    """Looks through an index.

    Args:
        index: which.
        id_column: the column of ids, if there is one.
        scratch: a folder for ids that do not fit into memory.
        remote: gives the reader of remote objects.

    Raises:
        SourceError: a file is damaged, or was changed.
        FetchError: a file cannot be read.
        CacheError: the folder cannot be used.
    """
    if isinstance(index, LazyIndex) and index.manifest.sql is None:
        return _of_footers(index, id_column, scratch, remote)
    nulls: dict[str, int] = dict.fromkeys(index.schema.names, 0)
    num_bytes = 0

    def keys() -> Iterator[pa.Array]:
        nonlocal num_bytes
        for table, found in _tables(index):
            num_bytes += table.nbytes
            for name in nulls:
                nulls[name] += table[name].null_count
            yield from found.chunks

    duplicates = find_duplicates(keys(), scratch)
    return Survey({**nulls}, num_bytes, duplicates)


def _tables(index: Index) -> Iterator[tuple[pa.Table, pa.ChunkedArray]]:
    """The rows, some at a time, and their ids as text."""
    if isinstance(index, TableIndex):
        whole, ids = index.table(), index.keys()
        for start in range(0, len(index), _ROWS):
            yield whole.slice(start, _ROWS), ids.slice(start, _ROWS)
        return
    if isinstance(index, LazyIndex):
        for number in np.flatnonzero(index.chunk_sizes).tolist():
            table = index.read(number)
            last = table.num_columns - 1
            yield table.remove_column(last), table.column(last).cast(pa.string())
        return
    for start in range(0, len(index), _ROWS):
        rows = index.rows(np.arange(start, min(start + _ROWS, len(index))))
        columns = [pa.array([row.values.get(field.name) for row in rows], field.type) for field in index.schema]
        yield pa.table(columns, schema=index.schema), pa.chunked_array([pa.array([row.key for row in rows])])


def _of_footers(index: LazyIndex, id_column: str, scratch: Path, remote: OpenRemote) -> Survey:
    layout = index.manifest.layout
    nulls = _nulls(layout, remote)
    downloads = [name for name in layout.downloads if name in layout.schema.names]
    for name in index.schema.names:
        nulls.setdefault(name, len(index))  # a column to download that no file has
    columns = [name for name in layout.schema.names if name == id_column or name in downloads]
    if not columns:
        return Survey(nulls, layout.num_bytes, Duplicates())
    gaps = dict.fromkeys(downloads, 0)
    reader = LayoutReader(layout, columns, remote, keeps_place=True)

    def keys() -> Iterator[pa.Array]:
        for start in range(0, layout.num_rows, _ROWS):
            table = reader.read(start, min(start + _ROWS, layout.num_rows))
            for name in gaps:
                gaps[name] += null_if_empty(table[name]).null_count
            numbers = pa.chunked_array([pa.array(np.arange(start, start + table.num_rows))])
            if id_column in columns:
                found = keys_of(table, numbers, id_column)
                yield from (table[id_column] if found is None else found).cast(pa.string()).chunks

    duplicates = find_duplicates(keys(), scratch)
    return Survey({**nulls, **gaps}, layout.num_bytes, duplicates)


def _nulls(layout: Layout, remote: OpenRemote) -> dict[str, int | None]:
    """The gaps of each column, as far as footers tell."""
    found: dict[str, int | None] = dict.fromkeys(layout.schema.names, 0)
    with ThreadPoolExecutor(_NUM_FOOTERS_AT_ONCE) as pool:
        reads = pool.map(lambda footer: read_footer(footer.url, footer.version, remote)[1], layout.footers)
        for facts in reads:
            schema = facts.schema.to_arrow_schema()
            leaves = leaves_of(schema)
            for name, before in found.items():
                if name not in leaves:
                    here: int | None = facts.num_rows
                else:
                    here = None if types.is_nested(schema.field(name).type) else _null_count(facts, leaves[name].start)
                found[name] = None if before is None or here is None else before + here
    return found


def _null_count(facts: parquet.FileMetaData, leaf: int) -> int | None:
    total = 0
    for number in range(facts.num_row_groups):
        statistics = facts.row_group(number).column(leaf).statistics
        if statistics is None or not statistics.has_null_count:
            return None
        total += statistics.null_count
    return total


def find_duplicates(keys: Iterable[pa.Array], scratch: Path, most: int = 5) -> Duplicates:
    """Which texts occur more than once.

    Args:
        keys: all of them, some at a time.
        scratch: a folder for what does not fit into memory.
        most: how many to name.

    Raises:
        CacheError: there is no room for them.
    """
    import duckdb

    schema = pa.schema([("key", pa.string())])
    batches = (pa.record_batch([pc.fill_null(part, "")], schema=schema) for part in keys)
    failed: list[BaseException] = []
    scratch.mkdir(parents=True, exist_ok=True)
    with duckdb.connect(":memory:") as connection:
        try:
            connection.execute("SET temp_directory = ?", [str(scratch)])
            connection.execute(f"SET memory_limit = '{_MEMORY}'")
            connection.execute("SET enable_progress_bar = false")
            connection.register("ids", pa.RecordBatchReader.from_batches(schema, _watched(batches, failed)))
            query = "SELECT key, count(*) AS num FROM ids GROUP BY key HAVING num > 1"
            connection.execute(f"CREATE TEMP TABLE twice AS {query}")
            found = connection.execute("SELECT count(*), coalesce(sum(num), 0) FROM twice").fetchone()
            named = connection.execute("SELECT key FROM twice ORDER BY key LIMIT ?", [most]).fetchall()
        except duckdb.Error as error:
            if failed:
                raise failed[0] from None  # an error of ours, which DuckDB has wrapped
            hint = "make room there, or choose another --dst"
            raise CacheError(f"ids cannot be compared: {scratch}: {error}", hint=hint) from error
    assert found is not None
    return Duplicates(int(found[0]), int(found[1]), tuple(key for (key,) in named))


def _watched(batches: Iterator[pa.RecordBatch], failed: list[BaseException]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except BaseException as error:
        failed.append(error)
        raise
