"""Bytes in the columns of Parquet files -> places: which row group, which row. The bytes themselves are not read.

Comes in: files whose columns hold content: binary values of some size, or struct{bytes, path} as model hubs store
images. Goes out: their other columns, and a place for each value. A struct without bytes has its path, as an address.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet, types

from sds.index.held import PARQUET, HeldPart
from sds.index.lazy_files import Footer, ParquetPart, read_footer
from sds.index.options import IndexOptions
from sds.index.parts import IndexFile
from sds.index.readers import check_names
from sds.index.remote import OpenRemote
from sds.index.resolve import refuse_local, resolve
from sds.index.unify import is_text
from sds.urls import is_remote

__all__ = ["embedded_columns", "holds_files", "is_binary", "read_embedded"]

_SMALL = 1024  # bytes: values up to here are metadata, and lie in the index with the rest


def holds_files(type_: pa.DataType) -> bool:
    """Whether values are files with their bytes: struct{bytes, path}, as model hubs store images and sounds."""
    if not types.is_struct(type_) or set(type_.names) != {"bytes", "path"}:
        return False
    return is_binary(type_.field("bytes").type) and is_text(type_.field("path").type)


def embedded_columns(facts: parquet.FileMetaData, options: IndexOptions) -> dict[str, str]:
    """The columns of a file that hold content, and the column of bytes of each, as Parquet names it."""
    schema = facts.schema.to_arrow_schema()
    keep = None if options.sql_query is not None else options.index_cols_to_keep
    found = {}
    for field in schema:
        if field.name in (options.id_column, options.weight_col_name):
            continue
        if keep is not None and field.name not in (*keep, *(options.columns_to_download or ())):
            continue
        if holds_files(field.type) or (is_binary(field.type) and _mean_size(facts, field.name) >= _SMALL):
            found[field.name] = f"{field.name}.bytes" if types.is_struct(field.type) else field.name
    return found


def read_embedded(
    part: IndexFile, number: int, columns: Mapping[str, str], wanted: Collection[str] | None, open_remote: OpenRemote
) -> tuple[pa.Table, tuple[str, ...], HeldPart]:
    """Reads one file, but for its content.

    Args:
        part: the file.
        number: of this part of the source.
        columns: those that hold content, and the column of bytes of each.
        wanted: the columns that are needed; None: all.
        open_remote: gives the reader of remote objects.

    Returns:
        Its table, the names of all its columns, and what is held.
    """
    footer, facts = read_footer(part.url, part.version, open_remote)
    schema = facts.schema.to_arrow_schema()
    check_names(schema.names, part.url)
    others = [name for name in schema.names if name not in columns and (wanted is None or name in wanted)]
    table = ParquetPart(footer, others, open_remote).read(0, footer.num_rows) if others else None
    found = {name: table[name] for name in others} if table is not None else {}
    spans = []
    for place, (name, leaf) in enumerate(columns.items()):
        if name in schema.names:
            found[name] = _places(part, (number, place), name, leaf, footer, facts, open_remote)
        spans.append(_spans(facts, leaf) if name in schema.names else ())
    version, remote = part.version, is_remote(part.url)
    if remote:
        version = open_remote().head(part.url).version
    held = HeldPart(part.url, version, footer.size, footer.length, tuple(spans) if remote else ())
    return pa.table({name: found[name] for name in schema.names if name in found}), tuple(schema.names), held


def _places(
    part: IndexFile,
    numbers: tuple[int, int],
    name: str,
    leaf: str,
    footer: Footer,
    facts: parquet.FileMetaData,
    open_remote: OpenRemote,
) -> pa.ChunkedArray:
    reader: ParquetPart | None = None
    chunks, first = [], 0
    for group, num_rows in enumerate(footer.group_rows):
        paths, missing = pa.nulls(num_rows, pa.string()), None
        if _may_have_nulls(facts, group, leaf):
            reader = reader or ParquetPart(footer, [name], open_remote)
            values = reader.read(first, first + num_rows)[name].combine_chunks()
            paths, missing = _fallbacks(values, part, name)
        fields = [
            *(pa.array(np.full(num_rows, number, np.int32)) for number in numbers),
            pa.array(np.full(num_rows, group, np.int32)),
            pa.array(np.arange(num_rows, dtype=np.int32)),
            paths,
        ]
        chunks.append(pa.StructArray.from_arrays(fields, fields=list(PARQUET), mask=missing))
        first += num_rows
    return pa.chunked_array(chunks, PARQUET)


def _fallbacks(values: pa.Array, part: IndexFile, name: str) -> tuple[pa.Array, pa.Array]:
    """The addresses of values that have no bytes but a path, and which have neither."""
    if not types.is_struct(values.type):
        return pa.nulls(len(values), pa.string()), values.is_null()
    has_bytes = pc.is_valid(pc.struct_field(values, "bytes"))
    paths = pc.struct_field(values, "path").cast(pa.string())
    paths = pc.if_else(pc.or_(has_bytes, pc.equal(paths, "")), pa.scalar(None, pa.string()), paths)
    column = pa.chunked_array([paths])
    if not part.may_name_local:
        refuse_local(column, name, part.url)
    paths = resolve(column, part.folder, name).combine_chunks()
    return paths, pc.invert(pc.or_(has_bytes, pc.is_valid(paths)))


def _may_have_nulls(facts: parquet.FileMetaData, group: int, leaf: str) -> bool:
    column = _column(facts, group, leaf)
    statistics = column.statistics
    return statistics is None or not statistics.has_null_count or statistics.null_count > 0


def _spans(facts: parquet.FileMetaData, leaf: str) -> tuple[tuple[int, int], ...]:
    found = []
    for group in range(facts.num_row_groups):
        column = _column(facts, group, leaf)
        start = column.data_page_offset
        if column.dictionary_page_offset is not None:
            start = min(start, column.dictionary_page_offset)
        found.append((start, start + column.total_compressed_size))
    return tuple(found)


def _mean_size(facts: parquet.FileMetaData, leaf: str) -> float:
    sizes = [_column(facts, group, leaf).total_uncompressed_size for group in range(facts.num_row_groups)]
    num_rows: int = facts.num_rows
    return float(sum(sizes)) / max(1, num_rows)


def _column(facts: parquet.FileMetaData, group: int, leaf: str) -> parquet.ColumnChunkMetaData:
    row_group = facts.row_group(group)
    return next(row_group.column(i) for i in range(facts.num_columns) if row_group.column(i).path_in_schema == leaf)


def is_binary(type_: pa.DataType) -> bool:
    """Whether values are bytes, of either width."""
    return bool(types.is_binary(type_) or types.is_large_binary(type_))
