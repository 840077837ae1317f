"""TableIndex: an Arrow file seen as rows, reached by number in microseconds.

Comes in: a Manifest that says where the table lies and what its columns mean. Goes out: Row values in the order asked
for. The file is memory-mapped: its pages are shared by all processes, forked or spawned, and nothing is parsed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sds.errors import SourceError, SourceNotFound
from sds.index.cells import CellReader, cell_reader
from sds.index.held import Held
from sds.index.listing import file_version
from sds.plan.weights import FloatArray, WeightSource
from sds.types import Row

__all__ = ["KEY_COLUMN", "VERSION_PREFIX", "WEIGHT_COLUMN", "Index", "IndexFacts", "Manifest", "TableIndex"]

KEY_COLUMN = "__sds_key__"
VERSION_PREFIX = "__sds_version__:"
WEIGHT_COLUMN = "__sds_weight__"

_MANY = 8  # rows of a batch that are worth reading a column at a time


class IndexFacts(msgspec.Struct, frozen=True):
    """What an index was made of, for people.

    Attributes:
        kind: 'file', 'directory', 'wildcard', 'list' or 'several'.
        num_index_files: tables that were read.
        num_sample_files: files that were grouped into samples.
        rows_at_source: rows of all of them.
        rows_after_query: rows that the query gave; all, without one.
        rows_left_out: of those, rows left out because a column to download has no value.
        rows: what is left, after max_size.
        path: where the table lies.
        in_place: whether that is the source itself.
        num_other_files: of the sample files, those that no column has: nobody asked for their extension.
    """

    kind: str
    num_index_files: int
    num_sample_files: int
    rows_at_source: int
    rows_after_query: int
    rows_left_out: int
    rows: int
    path: str
    in_place: bool
    num_other_files: int = 0


class Manifest(msgspec.Struct, frozen=True):
    """All that must be known to open a table again.

    Attributes:
        storage: 'arrow', memory-mapped, or 'parquet', held in memory.
        columns: the columns that rows have, in order.
        key_column: the column that ids are made of; None: ids are row numbers.
        columns_to_download: those of the columns that hold files.
        versions: those of them that have a column of versions.
        source_version: of a source that is used where it lies; it must not change under a pickled index.
        is_weighted: whether there is a column of weights.
        held: what the source holds inside itself, if rows name places in it.
    """

    storage: str
    fingerprint: str
    columns: tuple[str, ...]
    key_column: str | None
    columns_to_download: tuple[str, ...]
    versions: tuple[str, ...]
    facts: IndexFacts
    source_version: str | None = None
    is_weighted: bool = False
    held: Held | None = None


class Index(Protocol):
    """An ordered, addressable table of what can be read, with a fingerprint."""

    @property
    def fingerprint(self) -> str:
        """Equal for equal content, on any machine."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns that rows have."""
        ...

    @property
    def columns_to_download(self) -> tuple[str, ...]:
        """The columns that hold URLs or paths."""
        ...

    @property
    def facts(self) -> IndexFacts:
        """What it was made of."""
        ...

    def __len__(self) -> int: ...

    def rows(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> list[Row]:
        """The rows with these numbers, in this order."""
        ...

    @property
    def weights(self) -> WeightSource | None:
        """How often rows come in an epoch; None: each once."""
        ...

    @property
    def chunk_sizes(self) -> npt.NDArray[np.int64] | None:
        """The rows of each chunk, if rows are read in chunks and best shuffled so; None: any row is as near."""
        ...

    def expect(self, chunks: Sequence[int]) -> None:
        """Says which chunks come next, in this order; nothing happens where there are none."""
        ...

    def close(self) -> None:
        """Lets go of what is held."""
        ...


class TableIndex:
    """An index whose rows are those of one table. Safe to share between threads, to fork with, and to pickle."""

    def __init__(self, manifest: Manifest) -> None:
        """Opens the table that the manifest describes.

        Raises:
            SourceNotFound: it is gone.
            SourceError: it is damaged.
        """
        self._manifest = manifest
        self._open()

    def _open(self) -> None:
        manifest = self._manifest
        path, size = manifest.facts.path, manifest.facts.rows
        batches = _load(path, manifest)
        stored = batches[0].schema.names
        wanted = [*manifest.columns, *(VERSION_PREFIX + name for name in manifest.versions)]
        if manifest.key_column is not None and manifest.key_column not in wanted:
            wanted.append(manifest.key_column)
        self._places = [stored.index(name) for name in wanted]
        self._batches = batches
        self._readers: list[list[CellReader] | None] = [None] * len(batches)  # made when a batch is first read
        self._starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
        if self._starts[-1] < size:
            raise SourceError(
                f"table is shorter than when it was indexed: {path}", hint="open the dataset again", url=path
            )
        self._size = size
        self._num_values = len(manifest.columns)
        self._key_place = None if manifest.key_column is None else wanted.index(manifest.key_column)
        self._schema = pa.schema(
            [batches[0].schema.field(i).remove_metadata() for i in self._places[: self._num_values]]
        )

    @property
    def fingerprint(self) -> str:
        """Equal for equal content, on any machine."""
        return self._manifest.fingerprint

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns that rows have."""
        return self._schema

    @property
    def columns_to_download(self) -> tuple[str, ...]:
        """The columns that hold URLs or paths."""
        return self._manifest.columns_to_download

    @property
    def facts(self) -> IndexFacts:
        """What it was made of."""
        return self._manifest.facts

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"TableIndex({self._size} rows, {self.facts.kind}, {self.facts.path})"

    def rows(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> list[Row]:
        """The rows with these numbers, in this order.

        Raises:
            IndexError: a number is not in [0, len).
        """
        numbers = np.asarray(ids, np.int64)
        if not len(numbers):
            return []
        if numbers.min() < 0 or numbers.max() >= self._size:
            raise IndexError(f"row is not in [0, {self._size}): {numbers[(numbers < 0) | (numbers >= self._size)][0]}")
        batches = np.searchsorted(self._starts, numbers, "right") - 1
        places = numbers - self._starts[batches]
        apart = np.unique(batches)
        if len(numbers) < _MANY * len(apart):
            return list(map(self._row, numbers.tolist(), batches.tolist(), places.tolist()))
        if len(apart) == 1:
            return self._rows_of(int(apart[0]), numbers.tolist(), places.tolist())
        rows: list[Any] = [None] * len(numbers)
        for batch in apart.tolist():
            (at,) = np.nonzero(batches == batch)
            found = self._rows_of(batch, numbers[at].tolist(), places[at].tolist())
            for k, row in zip(at.tolist(), found, strict=True):
                rows[k] = row
        return rows

    def _row(self, number: int, batch: int, place: int) -> Row:
        cells = [read(place) for read in self._readers[batch] or self._make_readers(batch)]
        columns, versions = self._manifest.columns, self._manifest.versions
        return Row(
            number,
            str(number if self._key_place is None else cells[self._key_place]),
            dict(zip(columns, cells, strict=False)),  # the cells of hidden columns come after
            _known(versions, cells[len(columns) :]) if versions else None,
        )

    def _rows_of(self, batch: int, numbers: Sequence[int], places: Sequence[int]) -> list[Row]:
        """Rows of one batch, read a column at a time."""
        readers = self._readers[batch] or self._make_readers(batch)
        cells = [list(map(read, places)) for read in readers]
        columns, versions = self._manifest.columns, self._manifest.versions
        keys = map(str, numbers if self._key_place is None else cells[self._key_place])
        values = [dict(zip(columns, each, strict=False)) for each in zip(*cells, strict=True)] or [{} for _ in places]
        if not versions:
            return list(map(Row, numbers, keys, values))
        known = (_known(versions, each) for each in zip(*cells[len(columns) :], strict=True))
        return list(map(Row, numbers, keys, values, known))

    @property
    def weights(self) -> WeightSource | None:
        """How often rows come in an epoch; None: each once."""
        if not self._manifest.is_weighted:
            return None
        return Weights([batch.column(WEIGHT_COLUMN).to_numpy() for batch in self._batches], self._size)

    @property
    def chunk_sizes(self) -> None:
        """Any row is as near as any other."""
        return None

    def expect(self, chunks: Sequence[int]) -> None:
        """There are no chunks."""

    def table(self) -> pa.Table:
        """All rows as a table, columns as rows have them; what is mapped stays mapped."""
        batches = [batch.select(self._places[: self._num_values]) for batch in self._batches]
        return pa.Table.from_batches(batches).slice(0, self._size)

    def keys(self) -> pa.ChunkedArray:
        """The ids of all rows, as text."""
        if self._key_place is None:
            return pa.chunked_array([pa.array(np.arange(self._size)).cast(pa.string())])
        place = self._places[self._key_place]
        column = pa.chunked_array([batch.column(place) for batch in self._batches])
        return column.slice(0, self._size).cast(pa.string())

    def column(self, name: str) -> pa.ChunkedArray:
        """A column of all rows, as Arrow has it; KeyError if rows have no such column."""
        if name not in self._manifest.columns:
            raise KeyError(name)
        place = self._places[self._manifest.columns.index(name)]
        return pa.chunked_array([batch.column(place) for batch in self._batches])[: self._size]

    def close(self) -> None:
        """Lets go of the mapping; rows cannot be read after it."""
        self._batches, self._readers, self._size = [], [], 0

    def __getstate__(self) -> Manifest:
        return self._manifest

    def __setstate__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._open()

    def _make_readers(self, batch: int) -> list[CellReader]:
        readers = [cell_reader(self._batches[batch].column(place)) for place in self._places]
        self._readers[batch] = readers
        return readers


class Weights:
    """Weights in several arrays, seen as one that is read by slices."""

    def __init__(self, pieces: Sequence[FloatArray], size: int) -> None:
        self._pieces = pieces
        self._starts = np.cumsum([0, *map(len, pieces)])
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, rows: slice) -> FloatArray:
        start, stop, _ = rows.indices(self._size)
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        found = []
        while start < stop:
            end = min(stop, int(self._starts[first + 1]))
            begin = int(self._starts[first])
            found.append(self._pieces[first][start - begin : end - begin])
            start, first = end, first + 1
        return found[0] if len(found) == 1 else np.concatenate([np.empty(0), *found])


def _known(names: tuple[str, ...], versions: Iterable[Any]) -> dict[str, str]:
    return {name: version for name, version in zip(names, versions, strict=False) if version is not None}


def _load(path: str, manifest: Manifest) -> list[Any]:
    try:
        if manifest.source_version not in (None, file_version(os.stat(path))):
            raise SourceError(f"source changed since it was indexed: {path}", hint="open the dataset again", url=path)
        if manifest.storage == "parquet":
            from sds.index.formats import Format
            from sds.index.readers import read_index_file

            wanted = {*manifest.columns, *((manifest.key_column,) if manifest.key_column else ())}
            read = read_index_file(Path(path), Format("parquet"), name=path, text=(), columns=wanted)
            return list(read.table.combine_chunks().to_batches())
        if manifest.source_version is None:  # our own file: its time says when it was last in use (see store.py)
            with suppress(OSError):  # not ours to touch, or on a read-only disk
                os.utime(path)
        reader = pa.ipc.open_file(pa.memory_map(path))
        return [reader.get_batch(i) for i in range(reader.num_record_batches)]
    except FileNotFoundError as e:
        raise SourceNotFound(
            f"index table is gone: {path}", hint="open the dataset again: it is built anew", url=path
        ) from e
    except (pa.ArrowException, OSError) as e:
        raise SourceError(
            f"index table cannot be read: {path}: {e}", hint="delete it: it is built anew", url=path
        ) from e
