"""Bytes in the columns of Parquet files: places -> bytes. A row group's column is decoded whole, and kept for a while.

Comes in: where the values of a sample lie. Goes out: what to fetch (of a remote file its footer and one column of one
row group, through the cache), and then the bytes; or the path of a file, for a value that has only that. A file that is
not the one that was indexed is an error.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet, types

from sds.errors import IntegrityError, SdsError, SourceError, SourceNotFound
from sds.fetch import File
from sds.fetch.spans import origin_of
from sds.index.held import Held, HeldPart
from sds.index.leaves import content_leaf, is_binary
from sds.index.listing import file_version
from sds.index.sparse import Sparse
from sds.urls import is_remote, redact

__all__ = ["Cells"]

_MAX_HELD = 256 << 20  # bytes of decoded row groups in memory; one is held whatever its size

_Place = Mapping[str, Any]
_Key = tuple[int, int, int]  # part, column, row group


class Cells:
    """The columns of a source that hold content. Safe from many threads; a forked process makes its own."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._lock = threading.Lock()
        self._groups: OrderedDict[_Key, pa.Array] = OrderedDict()
        self._decoding: dict[_Key, threading.Lock] = {}
        self._facts: dict[int, parquet.FileMetaData] = {}

    def files(self, places: Mapping[str, _Place]) -> list[File]:
        """Footers and row groups of remote files; and files that are named by path."""
        found: dict[File, None] = {}
        for place in places.values():
            found |= dict.fromkeys(self._files_of(place))
        return list(found)

    def _files_of(self, place: _Place) -> list[File]:
        if place["sds_path"] is not None:
            return [File(place["sds_path"])]
        part = self._held.parts[place["sds_part"]]
        if not is_remote(part.url):
            return []
        span = part.spans[place["sds_column"]][place["sds_group"]]
        return [File(part.url, part.version, span), File(part.url, part.version, (part.size - part.tail, part.size))]

    def read(self, places: Mapping[str, _Place], files: Sequence[File], paths: Sequence[str]) -> dict[str, Any]:
        """The bytes of values; the path of a file, where a value has only that."""
        fetched = dict(zip(files, paths, strict=True))
        found: dict[str, Any] = {}
        for name, place in places.items():
            mine = [fetched[file] for file in self._files_of(place)]
            found[name] = mine[0] if place["sds_path"] is not None else self._cell(place, mine)
        return found

    def close(self) -> None:
        """Lets go of decoded row groups."""
        with self._lock:
            self._groups.clear()
            self._decoding.clear()
            self._facts.clear()

    def _cell(self, place: _Place, paths: Sequence[str]) -> bytes | None:
        key = (place["sds_part"], place["sds_column"], place["sds_group"])
        values = self._find(key)
        if values is None:
            with self._lock:
                decoding = self._decoding.setdefault(key, threading.Lock())
            with decoding:  # one thread decodes, others wait for it
                values = self._find(key)
                if values is None:
                    values = self._decode(key, paths)
                    self._keep(key, values)
        value: bytes | None = values[place["sds_row"]].as_py()
        return value

    def _find(self, key: _Key) -> pa.Array | None:
        with self._lock:
            values = self._groups.get(key)
            if values is not None:
                self._groups.move_to_end(key)
            return values

    def _keep(self, key: _Key, values: pa.Array) -> None:
        with self._lock:
            self._groups[key] = values
            self._decoding.pop(key, None)
            while len(self._groups) > 1 and sum(each.nbytes for each in self._groups.values()) > _MAX_HELD:
                self._groups.popitem(last=False)

    def _decode(self, key: _Key, paths: Sequence[str]) -> pa.Array:
        number, column, group = key
        part, name = self._held.parts[number], self._held.columns[column]
        try:
            source, facts = self._opened(number, part, part.spans[column][group] if paths else (0, 0), paths)
            with parquet.ParquetFile(source, metadata=facts, pre_buffer=False) as file:
                leaf = content_leaf(facts.schema.to_arrow_schema(), name)
                # without Arrow's threads: they are not there after a fork, and readers have threads of their own
                table = file.reader.read_row_group(group, column_indices=[leaf], use_threads=False)
            table.validate(full=True)
        except FileNotFoundError as e:
            raise SourceNotFound(
                f"table is gone: {redact(part.url)}", hint="open the dataset again", url=redact(part.url)
            ) from e
        except (pa.ArrowException, OSError, ValueError, LookupError) as e:
            if isinstance(e, SdsError):
                raise
            raise _unreadable(part.url, " ".join(str(e).split())) from e
        values = table.column(0).combine_chunks()
        values = values.field("bytes") if types.is_struct(values.type) else values
        if not is_binary(values.type):  # text would be taken for a path
            raise _unreadable(part.url, f"column {name!r} holds {values.type}")
        return values

    def _opened(
        self, number: int, part: HeldPart, span: tuple[int, int], paths: Sequence[str]
    ) -> tuple[pa.NativeFile, parquet.FileMetaData]:
        """The file, as far as it is here, and what its footer says."""
        if not paths:
            if file_version(os.stat(part.url)) != part.version:
                hint = "open the dataset again"
                raise SourceError(f"table changed since it was indexed: {part.url}", hint=hint, url=part.url)
            facts = self._facts.get(number) or self._facts.setdefault(number, parquet.read_metadata(part.url))
            return pa.OSFile(part.url), facts
        for path in paths:  # of which one may be a whole copy
            origin = origin_of(path)
            size = os.stat(path).st_size if origin is None else origin.size
            if size != part.size:
                hint = "somebody wrote to it: open the dataset again"
                message = f"table has {size} bytes, not the {part.size} that were indexed: {redact(part.url)}"
                raise IntegrityError(message, hint=hint, url=redact(part.url))
            if origin is None:
                return pa.OSFile(path), parquet.read_metadata(path)
        content, tail = (_content(path) for path in paths)
        facts = self._facts.get(number) or self._facts.setdefault(number, parquet.read_metadata(pa.BufferReader(tail)))
        end = (part.size - part.tail, part.size)
        return pa.PythonFile(Sparse(part.size, [span, end], [content, tail], _nothing_else), mode="r"), facts


def _unreadable(url: str, reason: str) -> SourceError:
    hint = "is it whole, and really Parquet?"
    return SourceError(f"table cannot be read: {redact(url)}: {reason}", hint=hint, url=redact(url))


def _content(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _nothing_else(start: int, stop: int) -> bytes:
    raise ValueError(f"bytes {start} to {stop} were not expected to be needed")
