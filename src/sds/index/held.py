"""Held content: what a source has inside itself, and where. Values only.

A table whose samples lie inside its source (members of tar shards, bytes in Parquet or Lance columns) has places where
others have paths: a place is a small struct that says in which part, and where there. Its fields tell the kind, so no
column that was there before may have values of that form: whoever wrote it could name any file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import types

from sds.errors import SchemaError
from sds.urls import redact

__all__ = ["LANCE", "PARQUET", "TAR", "Held", "HeldPart", "is_place", "place_columns", "place_keys", "refuse_places"]

# kind -> what a place of that kind is
_PLACES: dict[str, pa.DataType] = {
    "tar": pa.struct([("part", pa.int32()), ("offset", pa.int64()), ("size", pa.int64())]),
    "parquet": pa.struct(
        [
            ("sds_part", pa.int32()),
            ("sds_column", pa.int32()),
            ("sds_group", pa.int32()),
            ("sds_row", pa.int32()),
            ("sds_path", pa.string()),
        ]
    ),
    "lance": pa.struct([("sds_column", pa.int32()), ("sds_row", pa.int64())]),
}
TAR, PARQUET, LANCE = (_PLACES[kind] for kind in ("tar", "parquet", "lance"))
_KEYS = {kind: frozenset(type_.names) for kind, type_ in _PLACES.items()}


class HeldPart(msgspec.Struct, frozen=True, array_like=True):
    """A part of a source that holds content.

    Attributes:
        url: its address.
        version: a remote object's version as its store tells it, or that of a local file; it must not change.
        size: its bytes.
        tail: bytes at its end that must be read before anything else of it.
        spans: of a remote table: for each column that holds content, the bytes it has in each row group.
    """

    url: str
    version: str
    size: int
    tail: int = 0
    spans: tuple[tuple[tuple[int, int], ...], ...] = ()


class Held(msgspec.Struct, frozen=True):
    """What a source holds.

    Attributes:
        kind: 'tar', 'parquet' or 'lance'.
        parts: by number.
        wanted: the columns that are read into samples; None: all of them.
        columns: of a table: the names of the columns that places tell by number.
    """

    kind: str
    parts: tuple[HeldPart, ...]
    wanted: tuple[str, ...] | None = None
    columns: tuple[str, ...] = ()


def place_keys(kind: str) -> frozenset[str]:
    """The fields that a place of a kind has, for who looks at many values: a dict with these keys is one."""
    return _KEYS[kind]


def place_columns(schema: pa.Schema, kind: str) -> list[str]:
    """The columns that hold places, by the names of their fields: a query may have given them other widths."""
    return [field.name for field in schema if types.is_struct(field.type) and set(field.type.names) == _KEYS[kind]]


def refuse_places(fields: Iterable[pa.Field], kind: str, url: str) -> None:
    """Refuses columns of a source whose values, or parts of them, could be taken for places.

    Raises:
        SchemaError: there is one.
    """
    for field in fields:
        if _has_places(field.type, kind):
            raise SchemaError(
                f"column {field.name!r} has the form in which an index notes where content lies: {redact(url)}",
                hint="give one of its fields another name, or leave the column out with index_cols_to_keep",
                url=redact(url),
            )


def _has_places(type_: pa.DataType, kind: str) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _has_places(type_.storage_type, kind)
    if types.is_dictionary(type_):
        return _has_places(type_.value_type, kind)
    if not types.is_nested(type_):
        return False
    if types.is_struct(type_) and set(type_.names) == _KEYS[kind]:
        return True
    return any(_has_places(type_.field(i).type, kind) for i in range(type_.num_fields))


def is_place(value: Any, kind: str | None = None) -> bool:
    """Whether a value of a row is a place, of one kind or of any."""
    if type(value) is not dict:
        return False
    return value.keys() == _KEYS[kind] if kind is not None else any(value.keys() == keys for keys in _KEYS.values())
