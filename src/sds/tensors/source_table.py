"""The table of a tensor cache: a row per sample, made of keys, skeletons and buckets. No tensor is read.

Columns: the id, then each top-level text, number or boolean that all samples who have it have in one type (names that
begin with two underscores are ours, and none), then the shape of each tensor, as `<field>.shape`, and the position.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from sds.tensors.format import corrupt
from sds.tensors.reader import TensorCache

__all__ = ["POSITION", "SHAPE", "make_table"]

POSITION = "__position__"
SHAPE = ".shape"

_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
_NESTED = (b"{", b"[", b"n")  # how a dict, a list and null begin
_INT64 = range(-(2**63), 2**63)
_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Piece(NamedTuple):
    """A column in some of the samples: where it begins, its values, the kinds of those."""

    start: int
    values: pa.Array
    kind: type


def make_table(cache: TensorCache, id_column: str) -> pa.Table:
    """The table of all samples of a cache."""
    keys: list[pa.Array] = []
    pieces: dict[str, list[_Piece]] = {}
    mixed: set[str] = set()
    start = 0
    for texts, skeletons in cache.read_texts():
        keys.append(pa.array(texts, pa.string()))
        columns: dict[str, list[Any]] = {}
        for row, skeleton in enumerate(skeletons):
            for name, value in _scalars(cache.path, skeleton).items():
                column = columns.setdefault(name, [])
                column.extend([None] * (row - len(column)))
                column.append(value)
        for name, values in columns.items():
            kind = _kind_of(values)
            if kind is None:
                mixed.add(name)
                continue
            values += [None] * (len(texts) - len(values))
            values = [None if value is None else kind(value) for value in values]
            pieces.setdefault(name, []).append(_Piece(start, pa.array(values, _TYPES[kind]), kind))
        start += len(texts)
    table = {id_column: pa.chunked_array(keys, pa.string())}
    for name, each in pieces.items():
        kind = _common({piece.kind for piece in each})
        if kind is not None and name not in mixed and name not in (id_column, POSITION):
            table[name] = _column(each, _TYPES[kind], start)
    for name, column in _shapes(cache).items():
        table.setdefault(name, column)
    table[POSITION] = pa.chunked_array([pa.array(np.arange(start))])
    return pa.table(table).combine_chunks()


def _scalars(name: str, skeleton: bytes) -> dict[str, Any]:
    """The plain values at the top of a skeleton. Dicts, lists, nulls and what has a tag are none."""
    if not skeleton.startswith(b"{"):
        return {}
    try:
        found = _DECODER.decode(skeleton)
        plain = {key: msgspec.json.decode(raw) for key, raw in found.items() if bytes(raw)[:1] not in _NESTED}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise corrupt(name, f"a skeleton is none: {error}") from error
    if len(found) == 1 and next(iter(found)).startswith("$") and not next(iter(found)).startswith("$$"):
        return {}  # a tag: the sample is no dict
    return {
        key[1:] if key.startswith("$$") else key: value
        for key, value in plain.items()
        if not key.startswith("__") and not (isinstance(value, int) and value not in _INT64)
    }


def _kind_of(values: list[Any]) -> type | None:
    return _common({type(value) for value in values if value is not None})


def _common(kinds: set[type]) -> type | None:
    """The type that holds all of them; None: there is none."""
    if kinds == {int, float}:
        return float
    return next(iter(kinds)) if len(kinds) == 1 and kinds <= set(_TYPES) else None


def _column(pieces: list[_Piece], kind: pa.DataType, num_rows: int) -> pa.ChunkedArray:
    chunks, end = [], 0
    for piece in pieces:
        if piece.start > end:
            chunks.append(pa.nulls(piece.start - end, kind))
        chunks.append(piece.values.cast(kind))
        end = piece.start + len(piece.values)
    if end < num_rows:
        chunks.append(pa.nulls(num_rows - end, kind))
    return pa.chunked_array(chunks, kind)


def _shapes(cache: TensorCache) -> dict[str, pa.ChunkedArray]:
    """The shape of each field, null where a sample lacks it."""
    numbers, infos = cache.buckets()
    fields = dict.fromkeys(field for info in infos for field in info)
    kind = pa.list_(pa.int64())
    return {
        f"{field}{SHAPE}": pa.chunked_array(
            [pa.array([list(info[field].shape) if field in info else None for info in infos], kind).take(numbers)]
        )
        for field in fields
    }
