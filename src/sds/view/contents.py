"""The content of a cell: bytes that a row holds, a place inside its source, or a file that it names.

Comes in: an index, a client, a row and a column. Goes out: bytes, or an open file of which only parts are read. What is
opened is what the index names and nothing else. No torch is loaded here.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from sds.errors import ObjectNotFound, SchemaError
from sds.fetch import HEAD, File, RemoteFile
from sds.index.held import is_place
from sds.index.holding import HeldIndex
from sds.view.kinds import kind_of_name

if TYPE_CHECKING:
    from sds.fetch import FetchClient
    from sds.index import Index
    from sds.types import Row

__all__ = ["content", "held_kind", "holds_file", "opened", "taken", "told"]

_WHOLE_UP_TO = 16 * 2**20  # of a larger remote object only what is looked at is fetched


def held_kind(index: Index) -> str | None:
    """What a source is that holds samples inside itself."""
    return index.held.kind if isinstance(index, HeldIndex) else None


def told(value: Any, kind: str | None = None) -> Any:
    """A value for people; what a source holds inside itself is told, not shown."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if kind is not None and is_place(value, kind):
        return f"<{value['size']} bytes>" if "size" in value else "<bytes>"
    if _is_pair(value) and value["bytes"] is not None:
        return f"<{len(value['bytes'])} bytes>"
    return value


def holds_file(index: Index, name: str, value: Any) -> bool:
    """Whether a cell names a file, or holds the content of one."""
    if isinstance(value, str):
        return name in index.columns_to_download
    kind = held_kind(index)
    return isinstance(value, bytes) or _is_pair(value) or (kind is not None and is_place(value, kind))


@contextmanager
def taken(index: Index, client: FetchClient, row: Row, name: str) -> Iterator[str | bytes | RemoteFile]:
    """What decoders take, while it is held: a path, the bytes themselves, or a large remote object.

    Raises:
        SchemaError: the cell is no file.
        FetchError: the file cannot be had.
    """
    value = row.values.get(name)
    if not holds_file(index, name, value):
        hint = "columns_to_download (--download) names the columns of files"
        raise SchemaError(f"cell is no file: row {row.id}, column {name!r}", hint=hint, key=row.key)
    if isinstance(value, dict) and _is_pair(value):
        value = value["bytes"] if value["bytes"] is not None else value["path"]
    if isinstance(value, bytes):
        yield value
        return
    sample = {name: value}
    held = index if isinstance(index, HeldIndex) and not isinstance(value, str) else None
    files = held.files(row, sample) if held else [_file(cast(str, value), (row.versions or {}).get(name))]
    (ticket,) = client.submit([files])
    try:
        if held is not None:
            yield held.load(row, sample, files, ticket.take())[name]
            return
        (file,) = ticket.take_files()
        yield file
    finally:
        ticket.release()


@contextmanager
def opened(index: Index, client: FetchClient, row: Row, name: str) -> Iterator[tuple[BinaryIO, int]]:
    """The content as an open file, and its size."""
    with taken(index, client, row, name) as found:
        if isinstance(found, bytes):
            yield io.BytesIO(found), len(found)
        elif isinstance(found, RemoteFile):
            try:
                with found.open() as stream:
                    yield cast(BinaryIO, stream), found.size
            finally:
                found.close()
        else:
            with _regular(found) as file:
                yield file, os.fstat(file.fileno()).st_size


def content(index: Index, client: FetchClient, row: Row, name: str) -> bytes:
    """All of the content."""
    with opened(index, client, row, name) as (file, size):
        pieces = []
        while size > 0 and (piece := file.read(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


def _file(url: str, version: str | None) -> File:
    """What to ask for: of a video or sound the first block, if it is large; else all of it."""
    return File(url, version, HEAD, _WHOLE_UP_TO) if kind_of_name(url) in ("video", "audio") else File(url, version)


def _is_pair(value: Any) -> bool:
    return type(value) is dict and value.keys() == {"bytes", "path"}


def _regular(path: str) -> BinaryIO:
    """Opens a file; a pipe or a device in its place could go on for ever."""
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    except OSError as error:
        hint = "check that the path is right and readable"
        raise ObjectNotFound(f"file cannot be read: {path}: {error.strerror}", hint=hint, url=path) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ObjectNotFound(f"it is not a regular file: {path}", hint="the index names it: mend that", url=path)
    return file
