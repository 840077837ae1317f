"""Bytes in the columns of Parquet files -> places: which row group, which row. The bytes themselves are not read.

Comes in: files whose columns hold content: binary values of some size, or struct{bytes, path} as model hubs store
images. Goes out: their other columns, and a place for each value. A struct without bytes has its path, as an address.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet, types

from sds.errors import SchemaError
from sds.index.held import PARQUET, HeldPart, refuse_places
from sds.index.lazy_files import Footer, ParquetPart, read_footer
from sds.index.leaves import content_leaf, is_binary
from sds.index.options import IndexOptions
from sds.index.parts import IndexFile
from sds.index.readers import check_names
from sds.index.remote import OpenRemote
from sds.index.resolve import refuse_local, resolve
from sds.index.unify import is_text
from sds.urls import is_remote, redact

__all__ = ["embedded_columns", "holds_files", "is_binary", "read_embedded"]

_SMALL = 1024  # bytes: values up to here are metadata, and lie in the index with the rest


def holds_files(type_: pa.DataType) -> bool:
    """Whether values are files with their bytes: struct{bytes, path}, as model hubs store images and sounds."""
    if not types.is_struct(type_) or set(type_.names) != {"bytes", "path"}:
        return False
    return is_binary(type_.field("bytes").type) and is_text(type_.field("path").type)


def embedded_columns(facts: parquet.FileMetaData, options: IndexOptions) -> list[str]:
    """The columns of a file that hold content."""
    schema = facts.schema.to_arrow_schema()
    keep = None if options.sql_query is not None else options.index_cols_to_keep
    found = []
    for field in schema:
        if field.name in (options.id_column, options.weight_col_name):
            continue
        if keep is not None and field.name not in (*keep, *(options.columns_to_download or ())):
            continue
        if holds_files(field.type) or (
            is_binary(field.type) and _mean_size(facts, content_leaf(schema, field.name)) >= _SMALL
        ):
            found.append(field.name)
    return found


def read_embedded(
    part: IndexFile, number: int, columns: Sequence[str], wanted: Collection[str] | None, open_remote: OpenRemote
) -> tuple[pa.Table, tuple[str, ...], HeldPart]:
    """Reads one file, but for its content.

    Args:
        part: the file.
        number: of this part of the source.
        columns: those that hold content, here or in another file of the source.
        wanted: the columns that are needed; None: all.
        open_remote: gives the reader of remote objects.

    Returns:
        Its table, the names of all its columns, and what is held.

    Raises:
        SchemaError: a column has something other than content, or what could be taken for a place.
    """
    footer, facts = read_footer(part.url, part.version, open_remote)
    schema = facts.schema.to_arrow_schema()
    check_names(schema.names, part.url)
    others = [name for name in schema.names if name not in columns and (wanted is None or name in wanted)]
    refuse_places((schema.field(name) for name in others), "parquet", part.url)
    table = ParquetPart(footer, others, open_remote).read(0, footer.num_rows) if others else None
    found = {name: table[name] for name in others} if table is not None else {}
    spans = []
    for place, name in enumerate(columns):
        leaf = _leaf(schema, name, part.url)
        if leaf is not None:
            found[name] = _places(part, (number, place), name, leaf, footer, facts, open_remote)
        spans.append(_spans(facts, leaf) if leaf is not None else ())
    version, remote = part.version, is_remote(part.url)
    if remote:
        version = open_remote().head(part.url).version
    held = HeldPart(part.url, version, footer.size, footer.length, tuple(spans) if remote else ())
    named = {name: found[name] for name in schema.names if name in found}
    if not named:  # rows without columns: how many there are would be lost
        named = {columns[0]: pa.nulls(footer.num_rows, PARQUET)}
    return pa.table(named), tuple(schema.names), held


def _leaf(schema: pa.Schema, name: str, url: str) -> int | None:
    """The Parquet column of a column's content; None if the file has none."""
    if name not in schema.names or types.is_null(schema.field(name).type):
        return None
    type_ = schema.field(name).type
    if not (is_binary(type_) or holds_files(type_)):
        raise SchemaError(
            f"column {name!r} holds files in one table, and {type_} in another: {redact(url)}",
            hint="write the column in one type, or keep the files apart",
            url=redact(url),
        )
    return content_leaf(schema, name)


def _places(
    part: IndexFile,
    numbers: tuple[int, int],
    name: str,
    leaf: int,
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


def _may_have_nulls(facts: parquet.FileMetaData, group: int, leaf: int) -> bool:
    column = facts.row_group(group).column(leaf)
    statistics = column.statistics
    return statistics is None or not statistics.has_null_count or statistics.null_count > 0


def _spans(facts: parquet.FileMetaData, leaf: int) -> tuple[tuple[int, int], ...]:
    found = []
    for group in range(facts.num_row_groups):
        column = facts.row_group(group).column(leaf)
        start = column.data_page_offset
        if column.dictionary_page_offset is not None:
            start = min(start, column.dictionary_page_offset)
        found.append((start, start + column.total_compressed_size))
    return tuple(found)


def _mean_size(facts: parquet.FileMetaData, leaf: int) -> float:
    sizes = [facts.row_group(group).column(leaf).total_uncompressed_size for group in range(facts.num_row_groups)]
    num_rows: int = facts.num_rows
    return float(sum(sizes)) / max(1, num_rows)
