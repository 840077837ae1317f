"""Index files -> Arrow tables: one reader per format, from a local path.

Columns named as text keep their text where the format is text ("00100" stays "00100"). Dates in text formats stay text.
Types that differ only in layout (dictionaries, views) are made plain. Whatever is wrong with a file is a SourceError
that names it. What a compressed file may become is limited.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from sds.errors import SchemaError, SourceError
from sds.index.formats import Format
from sds.index.records import read_json
from sds.units import format_bytes

__all__ = ["ReadFile", "check_names", "is_temporal_free", "plain_table", "plain_type", "read_index_file"]

# a row must fit into a block; larger blocks cost parallelism in files that are not much larger
_CSV_BLOCK_BYTES = 8 << 20
_PARQUET_BATCH_ROWS = 1 << 17
_PIECE_BYTES = 1 << 20
# Text of rows seldom becomes a twentieth, and hardly ever a hundredth, of its size. What is smaller than the first of
# these is read in any case.
_MAX_UNPACKED_BYTES = 1 << 30
_MAX_UNPACKED_RATIO = 200
_MAX_GZIP_RATIO = 1040  # one bit for 258 bytes, in the best case: 1032


@dataclass(frozen=True)
class ReadFile:
    """A table as read, and the names of all columns that its file has (a reader may leave out unwanted ones)."""

    table: pa.Table
    columns: tuple[str, ...]


def read_index_file(
    path: Path, format_: Format, *, name: str, text: Collection[str], columns: Collection[str] | None = None
) -> ReadFile:
    """Reads one index file.

    Args:
        path: where it lies on this machine.
        format_: how to read it.
        name: its address, for messages.
        text: columns that are to be read as text where the format leaves types open.
        columns: the columns that are needed, or None for all; a reader may give more.

    Raises:
        SourceError: the file is damaged, or not of that format.
        SchemaError: two of its columns have the same name.
    """
    try:
        if format_.family == "parquet":
            read = _read_parquet(path, columns)
        elif format_.family == "arrow":
            read = _read_arrow(path, columns)
        elif format_.family == "json":
            read = _read_json(path, format_, text, name)
        else:
            read = _read_csv(path, format_, text, name)
        if format_.family in ("parquet", "arrow", "json"):  # their readers believe what a file says of its own layout
            read.table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as e:
        if isinstance(e, SourceError):
            raise
        raise SourceError(
            f"index file cannot be read: {name}: {' '.join(str(e).split())}",
            hint=f"is it whole, and really {format_.family}{f' with {format_.codec}' if format_.codec else ''}?",
            url=name,
        ) from e
    check_names(read.columns, name)
    return ReadFile(plain_table(read.table), read.columns)


def check_names(columns: Collection[str], name: str) -> None:
    """Raises SchemaError if a name is there twice, or is one of ours."""
    seen: set[str] = set()
    for column in columns:
        if column in seen:
            raise SchemaError(f"two columns have the same name: {column!r} in {name}", hint="rename one", url=name)
        if column.startswith("__sds_"):
            raise SchemaError(
                f"column has a reserved name: {column!r} in {name}", hint="names with __sds_ are ours", url=name
            )
        seen.add(column)


def _unpacked(path: Path, codec: str, name: str) -> Iterator[bytes]:
    """What a compressed file becomes, piece by piece; an error when that is more than an index can be."""
    size, num_bytes = path.stat().st_size, 0
    limit = max(_MAX_UNPACKED_BYTES, _MAX_UNPACKED_RATIO * size)
    with pa.input_stream(str(path), compression=codec) as stream:
        while piece := stream.read(_PIECE_BYTES):
            num_bytes += len(piece)
            if num_bytes > limit:
                raise SourceError(
                    f"index file is too large when it is decompressed: {name}: {format_bytes(size)} became more than "
                    f"{format_bytes(limit)}",
                    hint="is it a decompression bomb? If you trust it, decompress it and name the plain file",
                    url=name,
                )
            yield piece


def _is_surely_small(path: Path, codec: str) -> bool:
    """Whether a file cannot become too large, by what its codec can do at best."""
    return codec == "gzip" and _MAX_GZIP_RATIO * path.stat().st_size <= _MAX_UNPACKED_BYTES


def _read_csv(path: Path, format_: Format, text: Collection[str], name: str) -> ReadFile:
    from pyarrow import csv

    def read(types: dict[str, pa.DataType]) -> pa.Table:
        with pa.input_stream(str(path), compression=format_.codec) as stream:
            return csv.read_csv(
                stream,
                read_options=csv.ReadOptions(block_size=_CSV_BLOCK_BYTES),
                parse_options=csv.ParseOptions(
                    delimiter="\t" if format_.family == "tsv" else ",", newlines_in_values=True
                ),
                convert_options=csv.ConvertOptions(column_types=types),
            )

    if format_.codec is not None and not _is_surely_small(path, format_.codec):
        for _ in _unpacked(path, format_.codec, name):  # beforehand: Arrow's own threads are not to be stopped
            pass
    types = dict.fromkeys(text, pa.string())
    try:
        table = read(types)
    except pa.ArrowInvalid as e:
        if "Empty CSV file" not in str(e):
            raise
        return ReadFile(pa.table({}), ())  # nothing in it, or nothing but blank lines: no rows, but no damage
    dated = [field.name for field in table.schema if not is_temporal_free(field.type)]
    if dated:  # rare: a text file has no dates, and a sample no use for them
        table = read(types | dict.fromkeys(dated, pa.string()))
    return ReadFile(table, tuple(table.column_names))


def _read_json(path: Path, format_: Format, text: Collection[str], name: str) -> ReadFile:
    if format_.codec is not None:
        content = pa.py_buffer(b"".join(_unpacked(path, format_.codec, name)))
    else:
        with pa.input_stream(str(path), compression=None) as stream:
            content = stream.read_buffer()
    table = read_json(content, text=text)
    return ReadFile(table, tuple(table.column_names))


def _read_parquet(path: Path, columns: Collection[str] | None) -> ReadFile:
    from pyarrow import parquet

    with parquet.ParquetFile(str(path), memory_map=True) as file:
        names = file.schema_arrow.names
        check_names(names, str(path))
        wanted = None if columns is None else _wanted(names, columns)
        # in pieces: one allocation of the whole is much slower on its first touch, and is needed twice at its peak
        batches: Iterable[pa.RecordBatch] = file.iter_batches(batch_size=_PARQUET_BATCH_ROWS, columns=wanted)
        schema = file.schema_arrow
        if wanted is not None:
            schema = pa.schema([schema.field(name) for name in wanted])
            batches = (batch.select(wanted) for batch in batches)  # who asks for 'a' is given 'a.b' too
        return ReadFile(pa.Table.from_batches(batches, schema), tuple(names))


def _wanted(names: Sequence[str], columns: Collection[str]) -> list[str]:
    """The columns to read: at least one, since a table without any does not know its length."""
    return [name for name in names if name in columns] or list(names[:1])


def _read_arrow(path: Path, columns: Collection[str] | None) -> ReadFile:
    source = pa.memory_map(str(path))
    try:
        table = pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)  # the other form of Arrow files: a stream without a footer
        table = pa.ipc.open_stream(source).read_all()
    names = table.column_names
    return ReadFile(table if columns is None else table.select(_wanted(names, columns)), tuple(names))


def is_temporal_free(type_: pa.DataType) -> bool:
    """Whether a type has no date or time in it, at any depth."""
    if pa.types.is_nested(type_):
        return all(is_temporal_free(type_.field(i).type) for i in range(type_.num_fields))
    return not pa.types.is_temporal(type_)


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type that values have whatever their layout: no dictionaries, views, extensions."""
    if isinstance(type_, pa.BaseExtensionType):
        return plain_type(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return plain_type(type_.value_type)
    if pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_binary_view(type_):
        return pa.binary()
    return type_


def plain_table(table: pa.Table) -> pa.Table:
    """The table in plain types, without the writer's metadata."""
    columns = []
    for column in table.columns:
        type_ = plain_type(column.type)
        if isinstance(column.type, pa.BaseExtensionType):
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        columns.append(column if column.type == type_ else column.cast(type_))
    fields = [pa.field(name, column.type) for name, column in zip(table.column_names, columns, strict=True)]
    return pa.table(columns, schema=pa.schema(fields))
