"""A part: the samples that a writer has taken and not yet committed, on disk, so that a kill loses none of them.

Comes in: records and blocks. Goes out: two files in `.parts`, data and journal; a record follows its blocks, so a part
that is found ends at its last whole record. The lock on a journal says that its writer lives, and nothing else.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from sds.errors import TensorCacheError
from sds.tensors.columns import Place, Record
from sds.tensors.format import ALIGNMENT, digest
from sds.tensors.layout import Block, view_of

__all__ = ["Beginning", "Part", "keys_in_parts", "orphans"]

_FRAME = struct.Struct("<II")  # length and crc32 of the body


class Beginning(msgspec.Struct, frozen=True, array_like=True):
    """The first record of a journal: what its samples belong to."""

    version: int
    generation: int
    fingerprint: str


class Part:
    """An open part, locked by this process."""

    def __init__(self, stem: Path, journal: int, data: int, beginning: Beginning) -> None:
        self.stem = stem
        self.beginning = beginning
        self.records: list[Record] = []
        self.num_bytes = 0
        self.num_places = 0
        self.num_header_bytes = 0
        self._journal, self._data = journal, data
        self._journal_end = 0
        self._places: dict[tuple[bytes, int], int] = {}

    @classmethod
    def begin(cls, folder: Path, beginning: Beginning) -> Part:
        """A new, empty part."""
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            stem = folder / os.urandom(8).hex()
            try:
                journal = _create(stem.with_suffix(".journal"))
            except FileNotFoundError:  # a writer that ended removed the empty folder
                continue
            if _lock(journal) is not False and os.fstat(journal).st_nlink:
                break
            os.close(journal)  # somebody took it for an orphan before it was locked: another one
        part = cls(stem, journal, _create(stem.with_suffix(".data")), beginning)
        part._note(beginning)
        return part

    @classmethod
    def adopt(cls, path: Path) -> Part | None:
        """The part of a journal whose writer is gone; None if it lives, or another process was faster."""
        try:
            journal = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            is_ours = _lock(journal) is True and os.fstat(journal).st_nlink > 0  # not committed and removed meanwhile
            data = os.open(path.with_suffix(".data"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666) if is_ours else -1
        except BaseException:
            os.close(journal)
            raise
        if data < 0:
            os.close(journal)
            return None
        part = cls(path.with_suffix(""), journal, data, Beginning(0, 0, ""))
        part._replay()
        return part

    def append(
        self, key: str, skeleton: bytes, bucket: bytes, blocks: Sequence[Block], digests: Sequence[bytes]
    ) -> None:
        """Writes a sample's new blocks, then its record."""
        row, end = len(self.records), self.num_bytes
        places: list[Place] = []
        fresh: dict[tuple[bytes, int], int] = {}
        for block, mark in zip(blocks, digests, strict=True):
            size = len(block.data)
            known = self._places.get((mark, size), fresh.get((mark, size)))
            if known is not None:
                places.append(Place(known, size, mark))
                continue
            start = end + -end % ALIGNMENT
            _write(self._data, view_of(block.data), start, b"\0" * (start - end))
            places.append(Place(start, size, mark, f"{row:08d}.{block.field}", block.dtype, block.shape))
            fresh[mark, size] = start
            end = start + size
        record = Record(key, skeleton, bucket, tuple(places))
        self._note(record)
        self._take(record)

    def _take(self, record: Record) -> None:
        self.records.append(record)
        for place in record.places:
            if place.name is not None:
                self._places[place.digest, place.num_bytes] = place.start
                self.num_bytes = place.start + place.num_bytes
                self.num_header_bytes += 2 * len(place.name) + 200  # with room for an entry that fills a gap
        self.num_places += len(record.places)

    def _note(self, value: Beginning | Record) -> None:
        body = msgspec.msgpack.encode(value)
        frame = _FRAME.pack(len(body), zlib.crc32(body)) + body
        _write(self._journal, memoryview(frame), self._journal_end)
        self._journal_end += len(frame)

    def _replay(self) -> None:
        """Takes the whole records, and forgets what follows the last of them."""
        room = os.fstat(self._data).st_size
        for value, end in _values(self._journal):
            if isinstance(value, Beginning):
                self.beginning = value
            elif all(self._is_whole(place, room) for place in value.places):
                self._take(value)
            else:
                break
            self._journal_end = end
        os.ftruncate(self._journal, self._journal_end)
        os.ftruncate(self._data, self.num_bytes)

    def _is_whole(self, place: Place, room: int) -> bool:
        """After a power cut the journal may know of bytes that the disk does not have."""
        if place.name is None:
            return True  # it was looked at when it came first
        if place.start + place.num_bytes > room:
            return False
        return digest(os.pread(self._data, place.num_bytes, place.start)) == place.digest

    def copy_data(self, target: int) -> None:
        """Appends the data to a file."""
        os.lseek(self._data, 0, os.SEEK_SET)
        left = self.num_bytes
        while left:
            done = os.sendfile(target, self._data, self.num_bytes - left, min(left, 1 << 30))
            if not done:
                raise TensorCacheError(f"part was cut short: {self.stem}", hint="did somebody else write to it?")
            left -= done

    def release(self) -> None:
        """Lets the next writer have the part as it is."""
        for file in (self._data, self._journal):
            if file >= 0:
                os.close(file)
        self._data = self._journal = -1

    def draft(self, kind: str) -> Path:
        """Where a file of this part is written before it is renamed; it goes with the part if nobody renames it."""
        return self.stem.with_suffix(f".{kind}")

    def remove(self) -> None:
        """Deletes the part: it was committed, or is empty."""
        for suffix in (".safetensors", ".index", ".data", ".journal"):  # the last is what the others are found by
            self.stem.with_suffix(suffix).unlink(missing_ok=True)
        self.release()


def orphans(folder: Path) -> list[Part]:
    """The parts that dead writers left, now ours."""
    found = [Part.adopt(path) for path in sorted(folder.glob("*.journal"))]
    return [part for part in found if part is not None]


def keys_in_parts(folder: Path, fingerprint: str) -> dict[Path, list[str]]:
    """The keys that writers have taken and not yet committed, by part: nobody needs to compute them."""
    keys: dict[Path, list[str]] = {}
    for path in folder.glob("*.journal"):
        try:
            journal = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # committed meanwhile
            continue
        try:
            values = [value for value, _ in _values(journal)]
        finally:
            os.close(journal)
        if values and isinstance(values[0], Beginning) and values[0].fingerprint == fingerprint:
            keys[path.with_suffix("")] = [value.key for value in values[1:] if isinstance(value, Record)]
    return keys


def _values(journal: int) -> Iterator[tuple[Beginning | Record, int]]:
    """The whole values of a journal, and where each ends."""
    size, position = os.fstat(journal).st_size, 0
    while (body := _frame_at(journal, position, size)) is not None:
        kind: type[Beginning | Record] = Record if position else Beginning
        try:
            value: Beginning | Record = msgspec.msgpack.decode(body, type=kind)
        except msgspec.MsgspecError:
            return
        position += _FRAME.size + len(body)
        yield value, position


def _create(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _lock(file: int) -> bool | None:
    """Whether the file is ours now; None where the file system has no locks: such parts are never adopted."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _frame_at(file: int, position: int, size: int) -> bytes | None:
    head = os.pread(file, _FRAME.size, position)
    if len(head) < _FRAME.size:
        return None
    length, mark = _FRAME.unpack(head)
    if position + _FRAME.size + length > size:
        return None
    body = os.pread(file, length, position + _FRAME.size)
    return body if len(body) == length and zlib.crc32(body) == mark else None


def _write(file: int, data: memoryview, position: int, before: bytes = b"") -> None:
    """Writes at a position; what stands before it is filled."""
    if before:
        os.pwrite(file, before, position - len(before))
    while len(data):
        done = os.pwrite(file, data, position)
        data, position = data[done:], position + done
