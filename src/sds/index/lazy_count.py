"""How many rows of each chunk are left: one pass over the columns that decide it, and over nothing else.

Comes in: a layout, its row groups, and a query if there is one. Goes out: rows per chunk, exact. Row groups whose
footer says that nothing is missing in them are not read when there is neither a query nor weights. Each row group is
read once, whatever the chunks; memory is that of a few of them.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sds.index.ahead import in_order
from sds.index.build import check_weights, chosen
from sds.index.gather import Gathered
from sds.index.lazy_layout import Layout, LayoutReader, Piece
from sds.index.lazy_query import ROW, QueryEngine, RowQuery
from sds.index.options import IndexOptions
from sds.index.remote import OpenRemote
from sds.index.table import WEIGHT_COLUMN

__all__ = ["Counted", "count_rows", "gathered_from"]

_MAX_ROWS_AT_ONCE = 1 << 21
# A run of a query costs a millisecond or two, however few its rows; few large pieces leave threads idle at the end
_MIN_PIECE_ROWS = 1 << 19
_MAX_THREADS = 8


@dataclass(frozen=True)
class Counted:
    """What is left.

    Attributes:
        counts: rows of each chunk.
        rows_after_query: what the query left.
        rows_read: rows that were looked at.
        has_weight: whether a row has a weight above 0.
    """

    counts: npt.NDArray[np.int64]
    rows_after_query: int
    rows_read: int
    has_weight: bool


def count_rows(
    layout: Layout,
    pieces: Iterable[Piece],
    options: IndexOptions,
    query: RowQuery | None,
    *,
    engine: QueryEngine,
    open_remote: OpenRemote,
    weights: BinaryIO | None = None,
) -> Counted:
    """Counts what is left of each chunk.

    Args:
        layout: the files.
        pieces: their row groups.
        options: which rows to take.
        query: the query, taken apart.
        engine: runs the query.
        open_remote: gives the reader of remote objects.
        weights: gets the weights of the rows that are left, as floats, if rows have weights.

    Raises:
        SchemaError: a weight is none.
        SourceError: a file is damaged, or was changed meanwhile.
    """
    size = options.lazy_index_chunk_size
    assert size is not None
    counts = np.zeros(-(-layout.num_rows // size), np.int64)
    counter = _Counter(layout, options, query, engine, open_remote)
    must_read = query is not None or weights is not None
    after_query = rows_read = 0
    has_weight = False
    num_threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    for piece, several in in_order(_cut(pieces, must_read), counter.count, num_threads):
        rows_read += piece.stop - piece.start if piece.may_lack else 0
        for found in several:
            after_query += found.after_query
            counts[found.first_chunk : found.first_chunk + len(found.counts)] += found.counts
            if weights is not None and found.weights is not None:
                weights.write(found.weights.tobytes())
                has_weight = has_weight or bool(found.weights.any())
    return Counted(counts, after_query, rows_read, has_weight)


@dataclass(frozen=True)
class _Found:
    """What is left of some rows: how many in each chunk, from the first that they touch on, and their weights."""

    after_query: int
    first_chunk: int
    counts: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64] | None


class _Counter:
    """Looks at pieces; from several threads."""

    def __init__(
        self,
        layout: Layout,
        options: IndexOptions,
        query: RowQuery | None,
        engine: QueryEngine,
        open_remote: OpenRemote,
    ) -> None:
        names = {*layout.downloads, *(() if options.weight_col_name is None else (options.weight_col_name,))}
        columns = [name for name in layout.schema.names if name in names] or layout.schema.names[:1]
        if query is not None:
            columns = list(query.narrow_columns)
        self._options = options
        self._size = options.lazy_index_chunk_size or 1
        # each thread has files of its own: one that several read is read by one at a time
        self._readers = threading.local()
        self._make_reader = partial(LayoutReader, layout, columns, open_remote, keeps_place=True)
        self._sql = None if query is None else query.narrow_sql
        self._engine = engine
        self._gathered = gathered_from(layout)

    def count(self, piece: Piece) -> list[_Found]:
        """What is left of a piece; nothing is read if its footer says that all is."""
        if not piece.may_lack:
            ends = self._chunk_ends(piece.start, piece.stop)
            counts = np.diff(np.concatenate([[0], ends, [piece.stop - piece.start]]))
            return [_Found(piece.stop - piece.start, piece.start // self._size, counts, None)]
        steps = range(piece.start, piece.stop, _MAX_ROWS_AT_ONCE)
        return [self._count(start, min(start + _MAX_ROWS_AT_ONCE, piece.stop)) for start in steps]

    def _chunk_ends(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Where chunks end among these rows, but for the last one; counted from `start`."""
        return np.arange(start // self._size + 1, (stop - 1) // self._size + 1) * self._size - start

    def _count(self, start: int, stop: int) -> _Found:
        reader: LayoutReader | None = getattr(self._readers, "reader", None)
        if reader is None:
            reader = self._readers.reader = self._make_reader()
        table = reader.read(start, stop)
        numbers = pa.chunked_array([pa.array(np.arange(stop - start, dtype=np.int32))])
        if self._sql is not None:
            table = self._engine.run(self._sql, table.append_column(ROW, numbers))
            numbers = table[ROW]
            table = table.drop_columns([ROW])
        after_query = len(numbers)
        narrow = _narrow(self._options, self._gathered, table)
        left, kept = chosen(table, numbers, *narrow)
        assert kept is not None
        weights = None
        if self._options.weight_col_name is not None:
            check_weights(left, self._options, kept, start)
            weights = left[WEIGHT_COLUMN].to_numpy()
        places = kept.to_numpy()  # in order: a query that looks at each row alone leaves them so
        ends = np.searchsorted(places, self._chunk_ends(start, stop))
        return _Found(after_query, start // self._size, np.diff(np.concatenate([[0], ends, [len(places)]])), weights)


def gathered_from(layout: Layout) -> Gathered:
    """A layout as the other steps of building know a source."""
    return Gathered(
        table=layout.schema.empty_table(),
        columns=tuple(layout.schema.names),
        folder=layout.folder,
        columns_to_download=layout.downloads,
        versions=None,
        may_name_local=layout.may_name_local,
    )


def _narrow(options: IndexOptions, gathered: Gathered, table: pa.Table) -> tuple[Gathered, IndexOptions]:
    """The same options for a table that has only the columns which decide what is left."""
    downloads = tuple(name for name in gathered.columns_to_download if name in table.column_names)
    return (
        dataclasses.replace(gathered, columns_to_download=downloads),
        dataclasses.replace(options, index_cols_to_keep=(), index_col_name=None, columns_to_download=downloads),
    )


def _cut(pieces: Iterable[Piece], must_read: bool) -> Iterator[Piece]:
    """Row groups, those that are small and follow each other put together."""
    held: Piece | None = None
    for start, stop, may_lack in pieces:
        may_lack = may_lack or must_read
        if held is not None and may_lack == held.may_lack and held.stop - held.start < _MIN_PIECE_ROWS:
            held = Piece(held.start, stop, may_lack)
            continue
        if held is not None:
            yield held
        held = Piece(start, stop, may_lack)
    if held is not None:
        yield held
