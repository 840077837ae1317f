"""A cache in a local folder: blocks are read by position, or mapped.

Comes in: names of files and ranges of bytes. Goes out: bytes, into memory that the caller has made. Descriptors are
opened when first needed and used with positions only, so they may be inherited by a fork; nothing of them is pickled.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from sds.errors import TensorCacheError
from sds.tensors.columns import Columns
from sds.tensors.format import corrupt, is_name
from sds.tensors.places import Job, Want, coalesced

__all__ = ["LocalPlace"]

# Reading on is cheaper than asking again: up to such a gap between two blocks
_GAP = 16 << 10
_MAX_OPEN = 256


class _File:
    """An open file that is closed when nobody holds it: a thread may still read what another one has put aside."""

    __slots__ = ("number",)

    def __init__(self, path: Path) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class _Run(NamedTuple):
    """One read: neighbouring bytes of a shard, into several pieces of memory."""

    columns: Columns
    file: _File
    start: int
    buffers: list[memoryview]


class LocalPlace:
    """A folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.num_reads = self.num_bytes_read = 0
        self._files: dict[str, _File] = {}
        self._maps: dict[str, mmap.mmap] = {}

    def read_file(self, name: str) -> bytes | None:
        """A small file, whole; None if it is not there."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """Names of committed shards, without suffix."""
        try:
            found = [name[:-6] for name in os.listdir(self.folder) if name.endswith(".index")]
        except (FileNotFoundError, NotADirectoryError):
            hint = "check the path; a cache is a folder that sds.tensors.TensorCacheWriter made"
            raise TensorCacheError(f"no tensor cache: {self.folder}", hint=hint, url=str(self.folder)) from None
        return [name for name in found if is_name(name)]

    def columns(self, name: str) -> Columns:
        """The columns of a shard."""
        return Columns(name, self.folder / f"{name}.index")

    def chunk(self, columns: Columns, start: int, stop: int) -> bytes:
        """Bytes of a shard's file, header included."""
        file = self._file(columns)
        with self._reading(columns):
            return os.pread(file.number, stop - start, start)

    def read(self, columns: Columns, wants: Sequence[Want]) -> None:
        """Fills the wanted memory, by as few reads as is sensible, in the order of the file."""
        self.read_all([(columns, wants)])

    def read_all(self, jobs: Sequence[Job]) -> None:
        """The same, from several shards: what is in memory first, while the disk works on the rest."""
        runs = [
            _Run(columns, self._file(columns), columns.data_start + run[0].start, _buffers(run))
            for columns, wants in jobs
            for run in coalesced(wants, _GAP)
        ]
        waiting = []
        for run in runs:
            done, size = _read_now(run), sum(map(len, run.buffers))
            self.num_reads += 1
            self.num_bytes_read += size
            if done < size:
                os.posix_fadvise(run.file.number, run.start + done, size - done, os.POSIX_FADV_WILLNEED)
                waiting.append((run, done, size))
        for run, done, size in waiting:
            while done < size:
                with self._reading(run.columns):
                    got = os.preadv(run.file.number, _after(run.buffers, done), run.start + done)
                if not got:
                    self._files.pop(run.columns.name, None)
                    fact = f"it ends at byte {run.start + done} of {run.columns.num_bytes}"
                    raise corrupt(run.columns.name, fact)
                done += got

    @contextmanager
    def _reading(self, columns: Columns) -> Iterator[None]:
        """Errors of the disk become ours, and name the file."""
        try:
            yield
        except OSError as error:
            path = self.folder / f"{columns.name}.safetensors"
            hint = "the disk or the network volume failed: look at its log, copy the cache to another one"
            message = f"shard cannot be read: {path}: {error.strerror}"
            raise TensorCacheError(message, hint=hint, url=str(path)) from error

    def mapped(self, blocks: Sequence[tuple[Columns, int, int]]) -> list[torch.Tensor]:
        """Blocks (shard, start, size) as pages of the file; writing to one changes this process's copy of them."""
        views = []
        for columns, start, size in blocks:
            known = self._maps.get(columns.name)
            if known is None:
                known = mmap.mmap(self._file(columns).number, 0, access=mmap.ACCESS_COPY)
                self._maps[columns.name] = known
            start += columns.data_start
            if len(blocks) > 1:  # the disk works on all of them while the first is touched
                os.posix_fadvise(self._file(columns).number, start, size, os.POSIX_FADV_WILLNEED)
            views.append(torch.frombuffer(known, dtype=torch.uint8, count=size, offset=start) if size else _nothing())
        return views

    def _file(self, columns: Columns) -> _File:
        known = self._files.get(columns.name)
        if known is not None:
            return known
        path = self.folder / f"{columns.name}.safetensors"
        try:
            file = _File(path)
        except FileNotFoundError:
            raise corrupt(columns.name, "its tensors are not there") from None
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                hint = "check the permissions, and the limit of open files"
                raise TensorCacheError(f"shard cannot be opened: {path}: {error.strerror}", hint=hint) from error
            self._files.clear()
            file = _File(path)
        _check_head(columns, os.fstat(file.number).st_size, os.pread(file.number, 8, 0))
        while len(self._files) >= _MAX_OPEN:
            self._files.pop(next(iter(self._files)), None)
        return self._files.setdefault(columns.name, file)  # another thread may have been faster

    def close(self) -> None:
        """Closes the files; mapped pages stay while tensors use them."""
        self._files.clear()
        self._maps.clear()

    def __getstate__(self) -> Path:
        return self.folder

    def __setstate__(self, folder: Path) -> None:
        self.__init__(folder)  # type: ignore[misc]  # a place is its folder


def _nothing() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)


def _check_head(columns: Columns, num_bytes: int, head: bytes) -> None:
    """A look at size and header length costs nothing, and tells a shard that was cut short or written over."""
    if num_bytes != columns.num_bytes:
        raise corrupt(columns.name, f"{num_bytes} bytes, not the {columns.num_bytes} that were written")
    if int.from_bytes(head, "little") != columns.data_start - 8:
        raise corrupt(columns.name, "its header is not the one that was written")


def _buffers(run: Sequence[Want]) -> list[memoryview]:
    """The memory of a run, gaps included."""
    buffers: list[memoryview] = []
    position = run[0].start
    for want in run:
        if want.start > position:
            buffers.append(memoryview(bytearray(want.start - position)))
        buffers.append(want.into)
        position = want.start + len(want.into)
    return buffers


def _read_now(run: _Run) -> int:
    """Reads what is in the page cache; how much that was."""
    try:
        return os.preadv(run.file.number, run.buffers, run.start, os.RWF_NOWAIT)
    except OSError:  # nothing is, or this file system cannot tell
        return 0


def _after(buffers: Sequence[memoryview], num_bytes: int) -> list[memoryview]:
    """The buffers without their first bytes."""
    rest = []
    for buffer in buffers:
        if num_bytes < len(buffer):
            rest.append(buffer[num_bytes:])
        num_bytes = max(0, num_bytes - len(buffer))
    return rest
