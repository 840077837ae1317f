"""Relative paths in columns to download -> addresses, a whole column at a time.

A path is relative to the folder of the index file that has it. In between, all paths are relative to one folder that
the index files share, so that a query and the fingerprint see the same values on every machine. Absolute paths and
URLs stay as they are; '~' is a name like any other. A relative path is a file name, not a URL: behind http its '%', '#'
and '?' are letters of the name, and escaped in the address.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sds.errors import SchemaError
from sds.index import addresses
from sds.index.unify import is_text

__all__ = ["check_downloadable", "move_base", "null_if_empty", "refuse_local", "resolve"]

_ABSOLUTE = r"^(?:/|[A-Za-z][A-Za-z0-9+.-]*://)"
_LOCAL = r"(?i)^(?:/|file://)"
_DOTS = r"(?:^|/)\.\.?(?:/|$)"


def check_downloadable(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """The column as text, or as it is if it holds lists of text or the bytes themselves.

    Raises:
        SchemaError: it holds something that is neither a path nor bytes.
    """
    if types.is_null(column.type):
        return column.cast(pa.string())
    if _holds_paths(column.type) or types.is_binary(column.type) or types.is_struct(column.type):
        return column
    if types.is_large_binary(column.type) or types.is_fixed_size_binary(column.type):
        return column
    raise SchemaError(
        f"column to download holds {column.type}, not URLs or paths: {name!r}",
        hint="columns_to_download names the columns with files; other columns are kept as they are",
    )


def null_if_empty(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Empty text is no path: it counts as missing."""
    if not is_text(column.type):
        return column
    empty = pc.equal(column, "")
    return pc.if_else(empty, None, column) if pc.any(empty).as_py() else column


def move_base(column: pa.ChunkedArray, prefix: str) -> pa.ChunkedArray:
    """Makes paths that were relative to a folder relative to one above it, from which `prefix` leads there."""
    return _map_text(column, lambda texts: _prefixed(texts, prefix))


def resolve(column: pa.ChunkedArray, folder: str, name: str) -> pa.ChunkedArray:
    """Makes addresses of paths that are relative to a folder; the column itself if there are none.

    Raises:
        SchemaError: a path climbs above its bucket or host, or has a null byte; it names the row and the value.
    """
    _refuse_null_bytes(column, name)
    return _map_text(column, lambda texts: _resolved(texts, folder, name))


def refuse_local(column: pa.ChunkedArray, name: str, origin: str) -> None:
    """Refuses paths on this machine's own disks, for an index whose writer need not have been allowed to read them.

    Raises:
        SchemaError: there is one; it names the row and the value.
    """
    found = _first(column, lambda texts: pc.match_substring_regex(texts, _LOCAL))
    if found is not None:
        raise SchemaError(
            f"index on a web server names a local file: {found[1]!r} in column {name!r}, row {found[0]} of {origin}",
            hint="if you trust it, copy the index to a local disk and open it there",
            url=origin,
        )


def _holds_paths(type_: pa.DataType) -> bool:
    return is_text(type_) or ((types.is_list(type_) or types.is_large_list(type_)) and is_text(type_.value_type))


def _map_text(column: pa.ChunkedArray, change: Any) -> pa.ChunkedArray:
    if is_text(column.type):
        chunks = [change(chunk) for chunk in column.chunks]
    elif _holds_paths(column.type):
        chunks = [_map_list(chunk, change) for chunk in column.chunks]
    else:
        return column
    if all(new is old for new, old in zip(chunks, column.chunks, strict=True)):
        return column
    return pa.chunked_array(chunks, column.type)


def _map_list(chunk: Any, change: Any) -> Any:
    texts = chunk.flatten()  # leaves out what lies under nulls
    changed = change(texts)
    if changed is texts:
        return chunk
    lengths = pc.fill_null(pc.list_value_length(chunk), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    kind = pa.LargeListArray if types.is_large_list(chunk.type) else pa.ListArray
    width = pa.int64() if kind is pa.LargeListArray else pa.int32()
    return kind.from_arrays(pa.array(offsets, width), changed, type=chunk.type, mask=chunk.is_null())


def _relative(texts: Any) -> Any | None:
    """A mask of the values that are relative paths (null for null), or None if there are none."""
    first = next((value for value in texts[:100].to_pylist() if value), "")
    scheme = first[: first.find("://") + 3] if "://" in first else "/"
    if pc.all(pc.starts_with(texts, scheme)).as_py() is not False:  # the usual case, ten times quicker than the regex
        return None
    relative = pc.invert(pc.match_substring_regex(texts, _ABSOLUTE))
    return relative if pc.any(relative).as_py() else None


def _prefixed(texts: Any, prefix: str) -> Any:
    relative = _relative(texts) if prefix else None
    if relative is None:
        return texts
    return pc.if_else(relative, pc.binary_join_element_wise(f"{prefix}/", texts, ""), texts).cast(texts.type)


def _resolved(texts: Any, folder: str, name: str) -> Any:
    relative = _relative(texts)
    if relative is None:
        return texts
    dotted = pc.and_(relative, pc.match_substring_regex(texts, _DOTS))
    names = texts
    for letter, escape in addresses.ESCAPES if addresses.is_http(folder) else ():
        names = pc.replace_substring(names, letter, escape)
    joined = pc.binary_join_element_wise(f"{folder.rstrip('/')}/", names, "")
    out = pc.if_else(relative, joined, texts).cast(texts.type)
    if not pc.any(dotted).as_py():
        return out
    rows = np.flatnonzero(pc.fill_null(dotted, False).to_numpy(zero_copy_only=False))
    plain = [_plain(out[row].as_py(), texts[row].as_py(), name, row) for row in rows.tolist()]
    return pc.replace_with_mask(out, pc.fill_null(dotted, False), pa.array(plain, texts.type))


def _plain(address: str, value: str, name: str, row: int) -> str:
    plain = addresses.normalise(address)
    if plain is None:
        raise SchemaError(
            f"path climbs above its bucket or host: {value!r} in column {name!r}, row {row}",
            hint="paths are relative to the folder of their index file; write the whole URL instead",
        )
    return plain


def _refuse_null_bytes(column: pa.ChunkedArray, name: str) -> None:
    found = _first(column, _null_bytes)
    if found is not None:
        raise SchemaError(
            f"path has a null byte: {found[1]!r} in column {name!r}, row {found[0]}",
            hint="no file or object can have such a name: mend the index",
        )


def _null_bytes(texts: Any) -> Any | None:
    data = texts.buffers()[2]
    if data is None or not (np.frombuffer(data, np.uint8) == 0).any():
        return None  # quick, and nearly always enough: the exact look is five times slower
    return pc.match_substring(texts, "\0")


def _first(column: pa.ChunkedArray, find: Any) -> tuple[int, str] | None:
    """Row and text of the first text, alone or in a list, that `find` marks; it gives a mask, or None for no text."""
    if not _holds_paths(column.type):
        return None
    before = 0
    for chunk in column.chunks:
        texts = chunk if is_text(chunk.type) else chunk.flatten()  # without what lies under nulls
        mask = find(texts)
        if mask is not None and pc.any(mask).as_py():
            place = row = pc.index(mask, True).as_py()
            if texts is not chunk:
                lengths = pc.fill_null(pc.list_value_length(chunk), 0).to_numpy(zero_copy_only=False)
                row = int(np.searchsorted(np.cumsum(lengths), place, "right"))
            return before + row, texts[place].as_py()
        before += len(chunk)
    return None
