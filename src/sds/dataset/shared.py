"""SharedBlock: a few integers in an anonymous map that a process shares with the workers it makes.

It travels through fork, spawn and forkserver, leaves nothing in /dev/shm, and is gone with its last process. A copy
made by plain pickling has a block of its own, with the same values.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from multiprocessing import context, reduction
from typing import Any

__all__ = ["SharedBlock"]

_ITEM = struct.Struct("=q")


class SharedBlock:
    """`size` 64-bit integers, all zero at first."""

    def __init__(self, size: int) -> None:
        self._attach(os.memfd_create("sds", os.MFD_CLOEXEC), size)
        os.ftruncate(self._descriptor, size * _ITEM.size)
        self._map = mmap.mmap(self._descriptor, size * _ITEM.size)

    def _attach(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, i: int) -> int:
        value: int = _ITEM.unpack_from(self._map, i * _ITEM.size)[0]
        return value

    def __setitem__(self, i: int, value: int) -> None:
        _ITEM.pack_into(self._map, i * _ITEM.size, value)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps the other processes out (not the threads of this one)."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def copy(self) -> SharedBlock:
        """A block of one's own with the same values."""
        return _copied(self._size, self._map[:])

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is None:
            return _copied, (self._size, self._map[:].rstrip(b"\0"))
        return _attached, (reduction.DupFd(self._descriptor), self._size)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._descriptor)


def _copied(size: int, values: bytes) -> SharedBlock:
    block = SharedBlock(size)
    block._map[: len(values)] = values
    return block


def _attached(handle: Any, size: int) -> SharedBlock:
    """In a spawned child: the parent's block."""
    block = SharedBlock.__new__(SharedBlock)
    block._attach(handle.detach(), size)
    block._map = mmap.mmap(block._descriptor, size * _ITEM.size)
    return block
