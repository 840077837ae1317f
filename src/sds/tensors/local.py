"""A cache in a local folder: blocks are read by position, or mapped.

Comes in: names of files and ranges of bytes. Goes out: bytes, into memory that the caller has made. Descriptors are
opened when first needed and used with positions only, so they may be inherited by a fork; nothing of them is pickled.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sds.errors import TensorCacheError
from sds.tensors.columns import Columns
from sds.tensors.format import corrupt, is_name
from sds.tensors.hands import Hands, taken
from sds.tensors.places import Job, Want
from sds.tensors.runs import OpenFile, Run, after, expect, is_near, read_now, runs_of

__all__ = ["LocalPlace"]

_MAX_OPEN = 256
_WORTH = 1 << 20  # bytes for which it is worth to wake another thread
_NUM_LOOKS = 8  # blocks of a batch that are looked at to see whether it is in memory


class LocalPlace:
    """A folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.num_reads = self.num_bytes_read = 0
        self._files: dict[str, OpenFile] = {}
        self._maps: dict[str, mmap.mmap] = {}
        self._hands = Hands()
        self._is_cold = False  # whether the disk was needed for what was read last

    def read_file(self, name: str) -> bytes | None:
        """A small file, whole; None if it is not there."""
        try:
            return (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
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

    def read_all(self, jobs: Sequence[Job], num_threads: int = 1) -> None:
        """The same, from several shards: what is in memory first, while the disk works on the rest.

        Args:
            jobs: shards, and what is wanted of each.
            num_threads: how many threads may copy at once.
        """
        runs = [run for columns, wants in jobs for run in runs_of(columns, self._file(columns), wants)]
        num_bytes = sum([size for _, _, _, size, _ in runs])
        self.num_reads += len(runs)
        self.num_bytes_read += num_bytes
        if len(runs) == 1:  # the kernel knows best how to read on
            self._finish(runs[0], 0)
            return
        if self._is_cold:  # asked for all at once, before a read that fails lets the kernel guess
            for run in runs:
                expect(run)
            looked_at = runs[:: max(1, len(runs) // _NUM_LOOKS)]
            self._is_cold = not all(is_near(file, start + size - 1) for _, file, start, size, _ in looked_at)
        waiting: deque[tuple[Run, int]] = deque()
        if self._is_cold:  # what it brings is taken in the order in which it was asked for
            waiting.extend((run, 0) for run in runs)
        else:
            self._hands.share(min(num_threads, num_bytes // _WORTH), partial(_read_now, deque(runs), waiting))
            self._is_cold = bool(waiting)
        for run, done in waiting:
            self._finish(run, done)

    def _finish(self, run: Run, done: int) -> None:
        """Waits for the rest of a run."""
        columns, file, start, size, buffers = run
        while done < size:
            with self._reading(columns):
                got = os.preadv(file.number, after(buffers, done), start + done)
            if not got:
                self._files.pop(columns.name, None)
                raise corrupt(columns.name, f"it ends at byte {start + done} of {columns.num_bytes}")
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
            start += columns.data_start
            if len(blocks) > 1:  # the disk works on all of them while the first is touched
                os.posix_fadvise(self._file(columns).number, start, size, os.POSIX_FADV_WILLNEED)
            pages = self._pages(columns)
            views.append(torch.frombuffer(pages, dtype=torch.uint8, count=size, offset=start) if size else _nothing())
        return views

    def copy_all(self, jobs: Sequence[Job], num_threads: int = 1) -> None:
        """What `read_all` does, out of pages that stay mapped."""
        copies: deque[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]] = deque()
        spans: list[tuple[OpenFile, int, int]] = []
        for columns, wants in jobs:
            file, pages = self._file(columns), np.frombuffer(self._pages(columns), np.uint8)
            for start, into in wants:
                begin, end = columns.data_start + start, columns.data_start + start + len(into)
                spans.append((file, begin, end))
                copies.append((np.frombuffer(into, np.uint8), pages[begin:end]))
        looked_at = spans[:: max(1, len(spans) // _NUM_LOOKS)]
        if not all(is_near(file, end - 1) for file, _, end in looked_at):
            for file, begin, end in spans:  # the disk works on all of them while the first is touched
                os.posix_fadvise(file.number, begin, end - begin, os.POSIX_FADV_WILLNEED)
        num_bytes = sum([end - begin for _, begin, end in spans])
        self._hands.share(min(num_threads, num_bytes // _WORTH), partial(_copy, copies))

    def _pages(self, columns: Columns) -> mmap.mmap:
        known = self._maps.get(columns.name)
        if known is None:
            known = mmap.mmap(self._file(columns).number, 0, access=mmap.ACCESS_COPY)
            self._maps[columns.name] = known
        return known

    def _file(self, columns: Columns) -> OpenFile:
        known = self._files.get(columns.name)
        if known is not None:
            return known
        path = self.folder / f"{columns.name}.safetensors"
        try:
            file = OpenFile(path)
        except FileNotFoundError:
            raise corrupt(columns.name, "its tensors are not there") from None
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                hint = "check the permissions, and the limit of open files"
                raise TensorCacheError(f"shard cannot be opened: {path}: {error.strerror}", hint=hint) from error
            self._files.clear()
            file = OpenFile(path)
        _check_head(columns, os.fstat(file.number).st_size, os.pread(file.number, 8, 0))
        known_names = list(self._files)  # at once: other threads open and close, too
        for name in known_names[: max(0, len(known_names) + 1 - _MAX_OPEN)]:
            self._files.pop(name, None)
        return self._files.setdefault(columns.name, file)  # another thread may have been faster

    def close(self) -> None:
        """Closes the files; mapped pages stay while tensors use them."""
        self._files.clear()
        self._maps.clear()
        self._hands.close()

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


def _read_now(runs: deque[Run], waiting: deque[tuple[Run, int]]) -> None:
    """Reads what is in memory, until no run is left; the others come to those that somebody has to wait for."""
    for run in taken(runs):
        done = read_now(run)
        if done < run[3]:
            expect(run, done)
            waiting.append((run, done))


def _copy(copies: deque[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]]) -> None:
    for into, pages in taken(copies):
        np.copyto(into, pages)
