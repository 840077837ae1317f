"""Whole small files, read or written by one call of C; by several calls of Python where it was not compiled.

Each call that may wait lets go of Python's lock, and has to get it back: that of C does so once (_files.c).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

__all__ = ["read_file", "read_unsized", "write_file"]

_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # else a pipe waits for its writer
_CHUNK = 2**20


def read_unsized(path: str, most: int) -> bytes:
    """All of a file that says it is empty, up to `most` bytes: some of those have content (/proc)."""
    descriptor = os.open(path, _READING)
    try:
        return _read_all(descriptor, most, _CHUNK)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, most: int, at_once: int) -> bytes:
    """What is left of a file, up to `most` bytes."""
    parts, left = [], most
    while left > 0 and (part := os.read(descriptor, min(left, at_once))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _read_file(path: str, most: int) -> tuple[int, bool, bytes | None]:
    """The size of a file, whether it is a regular one, and its bytes if those are some, and `most` at most."""
    descriptor = os.open(path, _READING)
    try:
        status = os.fstat(descriptor)
        is_file = stat.S_ISREG(status.st_mode)
        if not (is_file and 0 < status.st_size <= most):
            return status.st_size, is_file, None
        return status.st_size, True, _read_all(descriptor, status.st_size, status.st_size)
    finally:
        os.close(descriptor)


def _write_file(folder: str, draft: str, name: str, chunks: Sequence[bytes | memoryview]) -> None:
    """Writes a new file of a folder, never through a link; it gets its name when all of it is there."""
    views = [memoryview(chunk).cast("B") for chunk in chunks]
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(draft, flags, 0o666, dir_fd=place)
        try:
            for view in views:
                while len(view):
                    view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        os.rename(draft, name, src_dir_fd=place, dst_dir_fd=place)
    finally:
        os.close(place)


try:
    from sds._files import read_file, write_file
except ModuleNotFoundError:  # it was installed where there is no compiler; one that is there and broken says so
    read_file, write_file = _read_file, _write_file
