"""Tables of several files -> one table: all columns of all of them, nulls where a file has no such column.

Types meet where nothing is lost: int and float give float, int and decimal a wider decimal, anything simple and text
give text. What cannot meet is a SchemaError that names the column and the two files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types

from sds.errors import SchemaError

__all__ = ["NamedTable", "common_schema", "concatenate", "is_text", "meet"]

# digits that integers may have, and decimals of 128 and 256 bits
_DIGITS = {"int8": 3, "int16": 5, "int32": 10, "int64": 19, "uint8": 3, "uint16": 5, "uint32": 10, "uint64": 20}
_MAX_SHORT, _MAX_DIGITS = 38, 76


@dataclass(frozen=True)
class NamedTable:
    """A table and the address of the file it came from."""

    name: str
    table: pa.Table


def common_schema(tables: Sequence[NamedTable]) -> pa.Schema:
    """The schema that all the tables fit: columns in order of first appearance.

    Raises:
        SchemaError: a column has types in two files that cannot meet.
    """
    found: dict[str, tuple[pa.DataType, str]] = {}
    for named in tables:
        for field in named.table.schema:
            if field.name not in found:
                found[field.name] = (field.type, named.name)
                continue
            type_, first = found[field.name]
            both = meet(type_, field.type)
            if both is None:
                raise SchemaError(
                    f"column {field.name!r} has two types: {type_} in {first}, {field.type} in {named.name}",
                    hint="write the column in one type, or keep the files apart",
                    url=named.name,
                )
            # the file that set the type is the one to name in the next conflict
            found[field.name] = (both, first if both == type_ else named.name)
    return pa.schema([pa.field(name, type_) for name, (type_, _) in found.items()])


def meet(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both, or None."""
    if a == b or types.is_null(b):
        return a
    if types.is_null(a):
        return b
    for one, other in ((a, b), (b, a)):
        if is_text(one) and (is_text(other) or _is_number(other) or types.is_boolean(other)):
            return pa.large_string() if types.is_large_string(one) or types.is_large_string(other) else pa.string()
    if types.is_boolean(a) or types.is_boolean(b):
        return None
    if (types.is_decimal(a) and _is_number(b)) or (types.is_decimal(b) and _is_number(a)):
        return _meet_decimals(a, b)
    try:
        merged = pa.unify_schemas(
            [pa.schema([pa.field("", a)]), pa.schema([pa.field("", b)])], promote_options="permissive"
        )
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None
    return merged.field(0).type


def concatenate(tables: Sequence[NamedTable], schema: pa.Schema) -> pa.Table:
    """Puts tables under each other, each cast to the schema; its columns are in the order of the schema.

    Raises:
        SchemaError: a value does not survive the cast.
    """
    return pa.concat_tables([_cast(named, schema) for named in tables])


def _cast(named: NamedTable, schema: pa.Schema) -> pa.Table:
    table = named.table
    if table.schema == schema:
        return table
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)], field.type))
            continue
        try:
            columns.append(table[field.name].cast(field.type))
        except pa.ArrowException as e:
            raise SchemaError(
                f"column {field.name!r} of {named.name} does not fit {field.type}, as other files have it: {e}",
                hint="write the column in one type",
                url=named.name,
            ) from e
    return pa.table(columns, schema=schema)


def is_text(type_: pa.DataType) -> bool:
    """Whether a type is text, of either width."""
    return bool(types.is_string(type_) or types.is_large_string(type_))


def _is_number(type_: pa.DataType) -> bool:
    return bool(types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_))


def _meet_decimals(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The decimal with the digits of both before and after the point; a float, where that has too many or one is."""
    if types.is_floating(a) or types.is_floating(b):
        return pa.float64()
    scale = max(type_.scale if types.is_decimal(type_) else 0 for type_ in (a, b))
    whole = max(type_.precision - type_.scale if types.is_decimal(type_) else _DIGITS[str(type_)] for type_ in (a, b))
    if whole + scale > _MAX_DIGITS:
        return pa.float64()
    return pa.decimal128(whole + scale, scale) if whole + scale <= _MAX_SHORT else pa.decimal256(whole + scale, scale)
