"""JSON -> Arrow table: a list of records, or one record a line.

Numbers of one column become one type; text that looks like a date stays text; a column that has numbers in one record
and text in another becomes text. Ids keep all their digits.
"""

from __future__ import annotations

import io
from collections.abc import Collection
from typing import Any

import msgspec
import pyarrow as pa

from sds.errors import SchemaError

__all__ = ["read_json", "read_json_as"]

_MAX_BLOCK_BYTES = (1 << 31) - 1


def read_json(content: pa.Buffer, *, text: Collection[str]) -> pa.Table:
    """Reads records; `text` names columns whose numbers must not lose digits.

    Raises:
        pa.ArrowInvalid: it is not JSON, or not records.
        SchemaError: a column has a list or record in one row and something else in another.
    """
    lines = _as_lines(content)
    if not bytes(lines[:64]).strip() and not bytes(lines).strip():
        return pa.table({})
    try:
        table = _read_lines(lines, None)
        as_text = [_without_dates(field) for field in table.schema]
        if pa.schema(as_text) != table.schema:
            table = _read_lines(lines, pa.schema(as_text))
    except pa.ArrowInvalid as e:
        if "changed from" not in str(e) or "Column()" in str(e):
            raise
        return _read_mixed(lines, ())
    rounded = [name for name in table.column_names if name in text and pa.types.is_floating(table[name].type)]
    return _read_mixed(lines, rounded) if rounded else table


def read_json_as(lines: pa.Buffer, schema: pa.Schema) -> pa.Table:
    """Reads the columns of a schema, in its types; `lines` has one record each. Without Arrow's threads.

    Raises:
        pa.ArrowInvalid: it is not JSON, or a value does not fit its type.
    """
    from pyarrow import json

    parse = json.ParseOptions(schema, newlines_in_values=True, unexpected_field_behavior="ignore")
    read = json.ReadOptions(use_threads=False, block_size=min(lines.size + 1, _MAX_BLOCK_BYTES))
    try:
        return json.read_json(pa.BufferReader(lines), read, parse).select(schema.names)
    except pa.ArrowInvalid as e:
        if "changed from" not in str(e) or "Column()" in str(e):
            raise
    mixed = _read_mixed(lines, [field.name for field in schema if pa.types.is_string(field.type)])
    gone = {
        field.name: pa.nulls(mixed.num_rows, field.type) for field in schema if field.name not in mixed.column_names
    }
    columns = [gone[field.name] if field.name in gone else mixed[field.name].cast(field.type) for field in schema]
    return pa.table(columns, schema=schema)


def _as_lines(content: pa.Buffer) -> pa.Buffer:
    if bytes(content[:3]) == b"\xef\xbb\xbf":
        content = content[3:]
    start = bytes(content[:4096]).lstrip()
    if not start.startswith(b"["):
        return content
    try:
        records = msgspec.json.decode(memoryview(content), type=list[msgspec.Raw])
    except msgspec.DecodeError as e:
        raise pa.ArrowInvalid(f"not a JSON list of records: {e}") from e
    # outside of strings a newline is only space, and inside of them it is always escaped
    return pa.py_buffer(b"\n".join(bytes(record).replace(b"\n", b" ") for record in records))


def _read_lines(lines: pa.Buffer, schema: pa.Schema | None) -> pa.Table:
    from pyarrow import json

    options = json.ParseOptions(explicit_schema=schema, newlines_in_values=True)
    try:
        return json.read_json(pa.BufferReader(lines), json.ReadOptions(block_size=4 << 20), options)
    except pa.ArrowInvalid as e:
        if "straddling" not in str(e):
            raise
        # a record larger than a block: all in one block, and no parallel reading
        return json.read_json(
            pa.BufferReader(lines), json.ReadOptions(block_size=min(lines.size + 1, _MAX_BLOCK_BYTES)), options
        )


def _without_dates(field: pa.Field) -> pa.Field:
    return field.with_type(_text_type(field.type))


def _text_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(type_):
        return pa.string()
    if pa.types.is_struct(type_):
        return pa.struct([_without_dates(type_.field(i)) for i in range(type_.num_fields)])
    if pa.types.is_list(type_):
        return pa.list_(_without_dates(type_.field(0)))
    return type_


def _read_mixed(lines: pa.Buffer, as_text: Collection[str]) -> pa.Table:
    """The slow way, record by record, for columns whose values are of several kinds."""
    decoder = msgspec.json.Decoder()
    try:
        records: list[dict[str, Any]] = [decoder.decode(line) for line in io.BytesIO(lines) if line.strip()]
    except msgspec.DecodeError as e:
        raise pa.ArrowInvalid(f"not one JSON record a line: {e}") from e
    names = dict.fromkeys(name for record in records for name in record)
    columns: dict[str, pa.Array] = {}
    for name in names:
        values = [record.get(name) for record in records]
        kinds = {_kind(value) for value in values if value is not None}
        if name in as_text or (len(kinds) > 1 and "nested" not in kinds):
            columns[name] = pa.array([None if v is None else _text(v) for v in values], pa.string())
            continue
        try:
            columns[name] = pa.array(values)
        except pa.ArrowException as e:
            raise SchemaError(
                f"column has values of different kinds: {name!r}: {e}", hint="give all rows the same kind of value"
            ) from e
    return pa.table(columns)


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "nested"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
