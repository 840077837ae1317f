"""LazyIndex: rows that are read in chunks when they are needed, ahead of use, a few chunks in memory at a time.

Comes in: a manifest, made of footers and of a count per chunk. Goes out: rows by number, as from any index. A chunk is
`lazy_index_chunk_size` rows of the source, whatever its files and row groups; what the query leaves of it is its size.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sds.errors import FetchError, SourceError, SourceNotFound
from sds.index.build import chosen, keys_of
from sds.index.cells import CellReader, cell_reader
from sds.index.lazy_count import gathered_from
from sds.index.lazy_layout import LayoutReader
from sds.index.lazy_manifest import LazyManifest
from sds.index.lazy_query import ROW, QueryEngine
from sds.index.options import IndexOptions
from sds.index.remote import OpenRemote, Remote
from sds.index.resolve import refuse_local, resolve
from sds.index.table import KEY_COLUMN, WEIGHT_COLUMN, IndexFacts, TableIndex, Weights
from sds.plan.weights import WeightSource
from sds.types import Row

__all__ = ["LazyIndex", "LazyReading"]

_MORE_CHUNKS = 2  # kept beside those that are expected, for random access


@dataclass(frozen=True)
class LazyReading:
    """How chunks are read.

    Attributes:
        num_threads: how many at once.
        num_chunks: how many are needed at once, and read ahead.
        is_sequential: whether they are read one after the other.
    """

    num_threads: int = 2
    num_chunks: int = 14
    is_sequential: bool = False


class _Chunk:
    """The rows of a chunk, in memory."""

    def __init__(self, batch: pa.RecordBatch, keys: Any, num_columns: int) -> None:
        self._columns = batch.schema.names[:num_columns]
        self._readers: list[CellReader] = [cell_reader(column) for column in batch.columns[:num_columns]]
        self._read_key: CellReader = cell_reader(keys)
        self.num_rows: int = batch.num_rows

    def row(self, number: int, place: int) -> Row:
        values = {name: read(place) for name, read in zip(self._columns, self._readers, strict=True)}
        return Row(number, str(self._read_key(place)), values, None)


class LazyIndex:
    """An index whose rows are read when needed. Safe to share between threads, to fork with, and to pickle."""

    def __init__(
        self,
        manifest: LazyManifest,
        options: IndexOptions,
        reading: LazyReading,
        *,
        folder: Path,
        remote: OpenRemote,
        is_taken: bool | None = None,
    ) -> None:
        is_taken = manifest.choice.kind == "take" if is_taken is None else is_taken
        self.manifest = manifest
        self.reading = reading
        self._options = options
        self._folder = folder
        self._remote: OpenRemote = remote
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(manifest.chunk_sizes)])
        self._engine = QueryEngine(folder)
        self._gathered = gathered_from(manifest.layout)
        self._taken = TableIndex(manifest.as_table()) if is_taken else None
        self._begin()

    def _begin(self) -> None:
        """Makes what every process has of its own: threads, open files and chunks."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._chunks: OrderedDict[int, Future[_Chunk]] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self._reader = LayoutReader(
            self.manifest.layout,
            self.manifest.columns,
            lambda: self._remote(),
            keeps_place=self.reading.is_sequential,
        )

    def use_remote(self, remote: OpenRemote) -> None:
        """Reads remote files with what this gives, from now on."""
        self._remote = remote

    @property
    def fingerprint(self) -> str:
        """Equal for equal footers and options, on any machine; rows are not looked at."""
        return self.manifest.fingerprint

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns that rows have."""
        return self.manifest.schema

    @property
    def columns_to_download(self) -> tuple[str, ...]:
        """The columns that hold URLs or paths."""
        return self.manifest.layout.downloads

    @property
    def facts(self) -> IndexFacts:
        """What it was made of."""
        return self.manifest.facts

    @property
    def chunk_sizes(self) -> npt.NDArray[np.int64]:
        """The rows of each chunk."""
        return self.manifest.chunk_sizes

    @property
    def weights(self) -> WeightSource | None:
        """How often rows come in an epoch; None: each once."""
        if self._options.weight_col_name is None:
            return None
        path = Path(self.facts.path).with_suffix(".weights")
        try:
            return Weights([np.memmap(path, np.float64, mode="r")], len(self))
        except (OSError, ValueError) as e:
            hint = "open the dataset again: it is built anew"
            raise SourceNotFound(f"weights of the index are gone: {path}", hint=hint, url=str(path)) from e

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"LazyIndex({len(self)} rows in {len(self.chunk_sizes)} chunks, {self.facts.kind})"

    def rows(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> list[Row]:
        """The rows with these numbers, in this order; their chunks are read if they are not there yet.

        Raises:
            IndexError: a number is not in [0, len).
            SourceError: a file is damaged, or was changed.
            FetchError: a file cannot be read.
        """
        if self._taken is not None:
            return self._taken.rows(ids)
        numbers = np.asarray(ids, np.int64)
        if not len(numbers):
            return []
        if numbers.min() < 0 or numbers.max() >= len(self):
            raise IndexError(f"row is not in [0, {len(self)}): {numbers[(numbers < 0) | (numbers >= len(self))][0]}")
        which = np.searchsorted(self._starts, numbers, "right") - 1
        places = numbers - self._starts[which]
        chunks = {chunk: self._chunk(chunk) for chunk in dict.fromkeys(which.tolist())}
        return [
            chunks[chunk].row(number, place)
            for number, chunk, place in zip(numbers.tolist(), which.tolist(), places.tolist(), strict=True)
        ]

    def expect(self, chunks: Sequence[int]) -> None:
        """Reads these chunks ahead, in this order; others are let go of."""
        if self._taken is not None:
            return
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.reading.num_threads, thread_name_prefix="sds-index")
            for chunk in chunks:
                if chunk not in self._chunks:
                    self._chunks[chunk] = self._pool.submit(self._load, chunk)
            for chunk in reversed(chunks):
                self._chunks.move_to_end(chunk)
            self._let_go(max(len(chunks), self.reading.num_chunks) + _MORE_CHUNKS)

    def _chunk(self, number: int) -> _Chunk:
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            future = self._chunks.get(number)
            if future is None or future.cancel():  # nobody reads it yet: then it is read here, and now
                mine = self._chunks[number] = Future()
                mine.set_running_or_notify_cancel()
            else:
                mine = None
            self._chunks.move_to_end(number)
            self._let_go(self.reading.num_chunks + _MORE_CHUNKS)
        try:
            if mine is None:
                assert future is not None
                return future.result()
            try:
                mine.set_result(self._load(number))
            except BaseException as error:
                mine.set_exception(error)
                raise
            return mine.result()
        except BaseException:
            with self._lock:  # it may succeed when it is asked for again
                self._chunks.pop(number, None)
            raise

    def _let_go(self, most: int) -> None:
        while len(self._chunks) > most:
            self._chunks.popitem(last=False)[1].cancel()

    def _load(self, number: int) -> _Chunk:
        table = self.read(number).combine_chunks()
        batches = table.to_batches()
        batch = batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
        chunk = _Chunk(batch, batch.column(batch.num_columns - 1), batch.num_columns - 1)
        del table, batches
        pa.default_memory_pool().release_unused()  # what decoding needed would stay with this thread: 60 MB and more
        return chunk

    def read(self, number: int) -> pa.Table:
        """Reads a chunk: its columns, what the query leaves of it, in the form that rows have; ids are the last."""
        manifest, options = self.manifest, self._options
        start = number * manifest.chunk_size
        stop = min(start + manifest.chunk_size, manifest.layout.num_rows)
        table = self._reader.read(start, stop)
        numbers: pa.ChunkedArray | None = pa.chunked_array([pa.array(np.arange(start, stop))])
        if manifest.sql is not None:
            table = self._engine.run(manifest.sql, table.append_column(ROW, numbers))
            numbers = table[ROW]
            table = table.drop_columns([ROW])
        gathered = self._gathered
        table, numbers = chosen(table, numbers, gathered, options)
        assert numbers is not None
        size = int(manifest.chunk_sizes[number])
        is_last = size and self._starts[number + 1] == len(self)
        if table.num_rows < size or (table.num_rows > size and not (is_last and options.max_size is not None)):
            url = manifest.layout.footers[0].url
            raise SourceError(
                f"chunk {number} has {table.num_rows} rows, not {size} as when it was counted",
                hint="did somebody write to the files? open the dataset again",
                url=url,
            )
        if options.weight_col_name is not None:
            table = table.drop_columns([WEIGHT_COLUMN])
        keys = keys_of(table, numbers, options.id_column)
        if keys is None:
            keys = table[options.id_column] if options.id_column in table.column_names else numbers
        for name in manifest.layout.downloads:
            column = table[name]
            if not gathered.may_name_local and options.sql_query is not None:
                refuse_local(column, name, manifest.layout.footers[0].url)
            if gathered.folder is not None:
                column = resolve(column, gathered.folder, name)
            table = table.set_column(table.column_names.index(name), name, column)
        return table.append_column(KEY_COLUMN, keys).slice(0, size)

    def close(self) -> None:
        """Lets go of threads, files and chunks. It can be used again."""
        if self._pid == os.getpid():
            pool = self._pool
            self._begin()
            self._engine.close()
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.manifest, self._options, self.reading, self._folder

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        manifest, options, reading, folder = state
        self.__init__(manifest, options, reading, folder=folder, remote=_not_connected)  # type: ignore[misc]


def _not_connected() -> Remote:
    raise FetchError("index that was sent here has no connection", hint="send the dataset, not its index")
