"""Content -> fingerprint: equal values in equal columns have equal fingerprints, on any machine.

Neither the address nor the time of the source counts, nor how the table is cut into chunks, nor what lies in memory
under a null. Columns are hashed in parallel; a million rows of URLs and captions take about a tenth of a second.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sds.index.unify import is_text

__all__ = ["fingerprint"]

_NUM_THREADS = 4


def fingerprint(table: pa.Table, *, salt: str) -> str:
    """The fingerprint of a table as 32 hexadecimal digits.

    Args:
        table: its names, types and values count.
        salt: whatever else the meaning of a row depends on.
    """
    with ThreadPoolExecutor(min(_NUM_THREADS, os.cpu_count() or 1)) as pool:  # hashlib lets go of the GIL
        digests = list(pool.map(_column_digest, table.columns))
    whole = hashlib.blake2b(repr((salt, table.num_rows)).encode(), digest_size=16)
    for name, column, digest in zip(table.column_names, table.columns, digests, strict=True):
        whole.update(repr((name, _type_name(column.type))).encode() + digest)
    return whole.hexdigest()


def _type_name(type_: pa.DataType) -> str:
    return str(type_).replace("large_", "")  # 64-bit offsets are a layout, not a meaning


def _column_digest(column: pa.ChunkedArray) -> bytes:
    streams = _Streams()
    for chunk in column.chunks:
        streams.feed("", chunk)
    return streams.digest()


class _Streams:
    """Streams of nulls, lengths and values, one hash each, so that cuts between chunks leave no trace."""

    def __init__(self) -> None:
        self._hashes: dict[str, hashlib._Hash] = {}
        self._num_fed: dict[str, int] = {}

    def digest(self) -> bytes:
        return b"".join(f"{name}:".encode() + self._hashes[name].digest() for name in sorted(self._hashes))

    def feed(self, path: str, array: Any) -> None:
        """Adds an array; `path` says where in a nested column it is."""
        type_, before = array.type, self._num_fed.get(path, 0)
        self._num_fed[path] = before + len(array)
        if array.null_count:
            nulls = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
            self._update(f"{path}n", nulls + before)
        if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
            lengths = pc.fill_null(pc.list_value_length(array), 0)
            self._update(f"{path}l", lengths.to_numpy(zero_copy_only=False).astype(np.int64))
            self.feed(f"{path}i", array.flatten())  # without what lies under nulls
        elif types.is_struct(type_):
            for i, child in enumerate(array.flatten()):  # a null record has null fields
                self.feed(f"{path}{i}.", child)
        elif not types.is_null(type_):
            self._feed_values(path, array.drop_null() if array.null_count else array)

    def _feed_values(self, path: str, array: Any) -> None:
        type_ = array.type
        if is_text(type_) or types.is_binary(type_) or types.is_large_binary(type_):
            _, offsets_buffer, data = array.buffers()
            wide = types.is_large_string(type_) or types.is_large_binary(type_)
            if len(array) and offsets_buffer is not None:
                # counted: a buffer may be longer than what is used of it, by any number of bytes
                offsets = np.frombuffer(
                    offsets_buffer,
                    np.int64 if wide else np.int32,
                    count=len(array) + 1,
                    offset=array.offset * (8 if wide else 4),
                )
                self._update(f"{path}l", np.diff(offsets).astype(np.uint32))
                if data is not None:
                    self._update(f"{path}d", memoryview(data)[int(offsets[0]) : int(offsets[-1])])
        elif types.is_integer(type_) or types.is_floating(type_) or types.is_boolean(type_):
            self._update(f"{path}d", array.to_numpy(zero_copy_only=False))
        elif types.is_temporal(type_) and type_.bit_width in (32, 64):
            integers = array.view(pa.int64() if type_.bit_width == 64 else pa.int32())
            self._update(f"{path}d", integers.to_numpy(zero_copy_only=False))
        else:  # decimals, maps and other rare types: by the text of their values
            for value in array.to_pylist():
                self._update(f"{path}d", f"{value!r};".encode())

    def _update(self, name: str, data: Any) -> None:
        stream = self._hashes.get(name)
        if stream is None:
            # recent processors have instructions for it: there it is twice as fast as blake2b
            stream = self._hashes[name] = hashlib.sha256()
        stream.update(data)
