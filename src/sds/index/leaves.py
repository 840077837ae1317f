"""Columns of a table -> columns of a Parquet file, which stores each innermost field apart.

Comes in: the schema of a file. Goes out: numbers. Names will not do: a column 'a.b' and the field b of a column a have
the same path.
"""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types

__all__ = ["content_leaf", "is_binary", "leaves_of"]


def leaves_of(schema: pa.Schema) -> dict[str, range]:
    """The numbers of the Parquet columns that each column of a table is stored in."""
    found: dict[str, range] = {}
    first = 0
    for field in schema:
        stop = first + _num_leaves(field.type)
        found.setdefault(field.name, range(first, stop))
        first = stop
    return found


def content_leaf(schema: pa.Schema, name: str) -> int:
    """The number of the Parquet column that has the bytes of a column: of itself, or of its field 'bytes'."""
    type_ = schema.field(name).type
    before = 0
    if types.is_struct(type_):
        place = type_.get_field_index("bytes")
        before = sum(_num_leaves(type_.field(i).type) for i in range(place))
    return leaves_of(schema)[name].start + before


def is_binary(type_: pa.DataType) -> bool:
    """Whether values are bytes, of either width."""
    return bool(types.is_binary(type_) or types.is_large_binary(type_))


def _num_leaves(type_: pa.DataType) -> int:
    if isinstance(type_, pa.BaseExtensionType):
        return _num_leaves(type_.storage_type)
    if types.is_map(type_):
        return _num_leaves(type_.key_type) + _num_leaves(type_.item_type)
    if types.is_nested(type_):
        return sum(_num_leaves(type_.field(i).type) for i in range(type_.num_fields))
    return 1
