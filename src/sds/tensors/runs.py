"""Runs: how wanted bytes of an open file become few reads, and what one read does.

Comes in: wants. Goes out: runs of neighbours, each of which is one call; and bytes in the memory that was wanted. A
file is used with positions only, so threads and forks may share it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from sds.tensors.columns import Columns
from sds.tensors.places import Want, coalesced

__all__ = ["OpenFile", "Run", "after", "expect", "is_near", "read_now", "runs_of"]

# Reading on is cheaper than asking again: up to such a gap between two blocks
_GAP = 16 << 10
_CANNOT_TELL = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class OpenFile:
    """An open file that is closed when nobody holds it: a thread may still read what another one has put aside."""

    __slots__ = ("can_tell", "number")

    def __init__(self, path: Path) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.can_tell = True  # what is in memory; some file systems cannot

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


# One read of a shard's neighbouring bytes: the file, where it begins, how many bytes, and the memory to put them into
Run: TypeAlias = tuple[Columns, OpenFile, int, int, list[memoryview]]


def runs_of(columns: Columns, file: OpenFile, wants: Sequence[Want]) -> Iterator[Run]:
    """The reads that fill what is wanted of a shard, in the order of the file."""
    base = columns.data_start
    for wanted in coalesced(wants, _GAP):
        start, into = wanted[0]
        if len(wanted) == 1:
            yield columns, file, base + start, len(into), [into]
        else:
            buffers = _buffers(wanted)
            yield columns, file, base + start, sum(map(len, buffers)), buffers


def _buffers(wants: Sequence[Want]) -> list[memoryview]:
    """The memory of neighbours, gaps included."""
    buffers: list[memoryview] = []
    position, _ = wants[0]
    for start, into in wants:
        if start > position:
            buffers.append(memoryview(bytearray(start - position)))
        buffers.append(into)
        position = start + len(into)
    return buffers


def expect(run: Run, done: int = 0) -> None:
    """Lets the disk begin with what is left of a run."""
    _, file, start, size, _ = run
    os.posix_fadvise(file.number, start + done, size - done, os.POSIX_FADV_WILLNEED)


def read_now(run: Run) -> int:
    """Reads what is in the page cache; how much that was."""
    _, file, start, _, buffers = run
    if file.can_tell:
        try:
            return os.preadv(file.number, buffers, start, os.RWF_NOWAIT)
        except OSError as error:  # nothing is there; or what is wrong is told by who waits for it
            file.can_tell = error.errno not in _CANNOT_TELL
    return 0


def is_near(file: OpenFile, position: int) -> bool:
    """Whether the page cache has a byte of a file, as far as somebody can tell."""
    try:
        return file.can_tell and os.preadv(file.number, [bytearray(1)], position, os.RWF_NOWAIT) == 1
    except OSError:
        return False


def after(buffers: Sequence[memoryview], num_bytes: int) -> Sequence[memoryview]:
    """The buffers without their first bytes."""
    if not num_bytes:
        return buffers
    rest = []
    for buffer in buffers:
        if num_bytes < len(buffer):
            rest.append(buffer[num_bytes:])
        num_bytes = max(0, num_bytes - len(buffer))
    return rest
