"""Bodies on their way to the disk: a body of unknown length -> its bytes; bytes -> a new file.

What the disk says is told apart from what the network says: the former is a CacheError, which nobody retries.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sds.errors import CacheError, FetchError
from sds.fetch.folder import make_folder
from sds.files import write_file
from sds.storage import Body, Buffer
from sds.units import format_bytes
from sds.urls import redact

__all__ = ["Budget", "DiskFull", "create", "gather", "write", "write_at", "write_whole"]

_MAX_UNANNOUNCED = 256 * 2**20


class DiskFull(CacheError):
    """The disk has no room, whatever the limit says; clients see a CacheError."""


class Budget:
    """Bytes that may be in memory at once; one body alone may be larger than all of it.

    Of those that grow, the first never waits: if all of them held some and waited for more, none would ever end. So
    there is one body at most beyond the limit.
    """

    def __init__(self, num_bytes: int) -> None:
        self._limit = num_bytes
        self._taken = 0
        self._growing: dict[object, None] = {}
        self._changed = threading.Condition()

    def take(self, num_bytes: int) -> None:
        """Waits until there are so many to be had."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + num_bytes <= self._limit)
            self._taken += num_bytes

    def take_now(self, num_bytes: int) -> None:
        """As `take`, without waiting: they are in memory already."""
        with self._changed:
            self._taken += num_bytes

    @property
    def is_spent(self) -> bool:
        """Whether there are no more to be had."""
        return self._taken >= self._limit

    def grow(self, who: object, num_bytes: int) -> None:
        """As `take`, for one that may hold some already; until all that it holds is given back, it keeps its turn."""
        with self._changed:
            self._growing.setdefault(who)
            self._changed.wait_for(lambda: self._goes_first(who) or self._taken + num_bytes <= self._limit)
            self._taken += num_bytes

    def _goes_first(self, who: object) -> bool:
        return who not in self._growing or next(iter(self._growing)) is who  # not in it: what it held was given back

    def give(self, num_bytes: int, who: object = None) -> None:
        """Gives them back."""
        if num_bytes:
            with self._changed:
                self._taken -= num_bytes
                self._growing.pop(who, None)
                self._changed.notify_all()


def gather(
    body: Body, url: str, limit: int = _MAX_UNANNOUNCED, charge: Callable[[int], None] = lambda _: None
) -> tuple[list[Buffer], int]:
    """Takes a body of unannounced length into memory; `charge` is told how large it is before it grows to that."""
    chunks: list[Buffer] = []
    size = 0
    try:
        for chunk in body.chunks:
            size += len(chunk)
            if size > limit:
                raise FetchError(
                    f"body of unknown length passes {format_bytes(limit)}: {redact(url)}",
                    hint="serve it with a Content-Length header",
                    url=redact(url),
                )
            charge(size)
            chunks.append(chunk)
    finally:
        close: Any = getattr(body.chunks, "close", None)
        if close is not None:
            close()  # nobody reads the rest
    return chunks, size


def create(path: str, *, is_new: bool = True) -> int:
    """A descriptor to write to a new file, or to one that is there; never through a link, never over a file."""
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if is_new else 0)
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        raise _unwritable(path, error) from error


def write_at(descriptor: int, path: str, chunk: Buffer, at: int) -> None:
    """Writes bytes at a place of a file."""
    view = memoryview(chunk)
    while len(view):
        try:
            num_bytes = os.pwrite(descriptor, view, at)
        except OSError as error:
            raise _unwritable(path, error) from error
        view, at = view[num_bytes:], at + num_bytes


def write_whole(part: str, name: str, chunks: Sequence[Buffer]) -> str:
    """Writes a body that is here to a new file, and gives it its final name in the same folder; its path."""
    folder, _, draft = part.rpartition("/")
    for is_first in (True, False):
        try:
            write_file(folder, draft, name, chunks)
            break
        except OSError as error:
            if not is_first or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise _unwritable(part, error) from error
        make_folder(folder)  # or says that there is a link in its place
    return f"{folder}/{name}"


def write(path: str, chunks: Iterable[Buffer]) -> None:
    """Writes a body to a new file, as it comes."""
    descriptor = create(path)
    try:
        for chunk in chunks:  # errors of the network come out of here as they are
            view = memoryview(chunk)
            while len(view):
                try:
                    view = view[os.write(descriptor, view) :]
                except OSError as error:
                    raise _unwritable(path, error) from error
    finally:
        os.close(descriptor)


def _unwritable(path: str, error: OSError) -> CacheError:
    hint = "free some disk, lower cache_limit below what the disk has, or choose another `dst`"
    kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else CacheError
    return kind(f"cache folder cannot be written: {path}: {error.strerror}", hint=hint)
