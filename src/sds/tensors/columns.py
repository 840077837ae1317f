"""The columns of one shard: keys, skeletons, buckets and places of its samples, as a small safetensors file.

Comes in: the records of a shard, or the file. Goes out: the file's bytes, or columns over its mapped pages. Opening it
reads its header only; every value that leads to bytes is checked when it is used.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sds.tensors.format import FORMAT, VERSION, Entry, corrupt, digest, encode_header, parse_header
from sds.tensors.layout import Bucket, Slot, check_bucket

__all__ = ["Columns", "Place", "Record", "Facts", "encode_columns", "read_facts"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_MAX_KNOWN = 64  # fields (of one shape and dtype) whose starts are kept: 8 bytes a sample each

_DTYPES: dict[str, np.dtype[Any]] = {"U8": np.dtype("u1"), "I64": np.dtype("<i8")}


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a block of a shard lies, and what it is."""

    start: int
    num_bytes: int
    digest: bytes
    name: str | None = None  # None: another sample has it already
    dtype: str = "U8"
    shape: tuple[int, ...] = ()


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One sample, as the writer notes it."""

    key: str
    skeleton: bytes
    bucket: bytes
    places: tuple[Place, ...]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a cache knows of a shard without looking at its columns: an entry of index.json."""

    name: str
    samples: int
    bytes: int
    index_bytes: int
    sha256: str
    index_sha256: str
    generation: int
    fingerprint: str
    skip: tuple[int, ...] = ()


def encode_columns(records: Sequence[Record], metadata: dict[str, str]) -> bytes:
    """The bytes of an .index file."""
    keys = [record.key.encode() for record in records]
    distinct: dict[bytes, int] = {}
    bucket = [distinct.setdefault(record.bucket, len(distinct)) for record in records]
    places = [place for record in records for place in record.places]
    columns: dict[str, npt.NDArray[Any]] = {
        "key_ends": _ends(keys),
        "skeleton_ends": _ends([record.skeleton for record in records]),
        "bucket": np.array(bucket, "<i8"),
        "block_ends": _ends([record.places for record in records]),
        "starts": np.array([place.start for place in places], "<i8"),
        "key_hashes": _joined([digest(key) for key in keys]).reshape(-1, 16),
        "digests": _joined([place.digest for place in places]).reshape(-1, 16),
        "keys": _joined(keys),
        "skeletons": _joined([record.skeleton for record in records]),
        "buckets": _joined([b"[" + b",".join(distinct) + b"]"]),
    }
    entries, end = [], 0
    for name, column in columns.items():  # those of 8 bytes come first: all are aligned
        code = "I64" if column.dtype.itemsize == 8 else "U8"
        entries.append((name, Entry(code, list(column.shape), (end, end + column.nbytes))))
        end += column.nbytes
    header = encode_header({"format": FORMAT, "version": str(VERSION), **metadata}, entries)
    return header + b"".join(column.tobytes() for column in columns.values())


def _ends(items: Sequence[Any]) -> Ints:
    return np.cumsum([len(item) for item in items], dtype="<i8")


def _joined(parts: Sequence[bytes]) -> Bytes:
    return np.frombuffer(b"".join(parts), np.uint8)


class Columns:
    """An .index file, mapped."""

    def __init__(self, name: str, path: str | os.PathLike[str]) -> None:
        self.name = name
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as error:
            raise corrupt(name, f"its columns cannot be read: {error.strerror}") from error
        length = int.from_bytes(self._map[:8], "little")
        self.metadata, self._entries = parse_header(name, self._map[: 8 + min(length, size)], size)
        if self.metadata.get("format") != FORMAT or self.metadata.get("version") != str(VERSION):
            raise corrupt(name, f"not of this format and version: {self.metadata.get('version')}")
        self._data_start = 8 + length
        self.file_bytes = size
        self.num_samples = self.number("samples")
        self.num_bytes = self.number("bytes")
        self.data_start = self.number("data_start")
        num = self.num_samples
        self.key_ends = self._ints("key_ends", num)
        self.skeleton_ends = self._ints("skeleton_ends", num)
        self.bucket = self._ints("bucket", num)
        self.block_ends = self._ints("block_ends", num)
        self.starts = self._ints("starts", None)
        self.digests = self._bytes("digests").reshape(-1, 16)
        self.key_hashes = self._bytes("key_hashes").reshape(-1, 16)
        self._keys = self._bytes("keys").data
        self._skeletons = self._bytes("skeletons").data
        # one number of a view costs a tenth of one of an array
        self._key_ends, self._skeleton_ends, self._block_ends, self._bucket_numbers = (
            column.data for column in (self.key_ends, self.skeleton_ends, self.block_ends, self.bucket)
        )
        if len(self.key_hashes) != num or len(self.digests) != len(self.starts):
            raise corrupt(name, "its columns differ in length")
        self._buckets: list[Bucket] | None = None
        self._starts: dict[tuple[str, str, tuple[int, ...]], memoryview] = {}

    @property
    def buckets(self) -> list[Bucket]:
        """What the tensors of samples are like."""
        if self._buckets is None:
            try:
                self._buckets = msgspec.json.decode(self._bytes("buckets").tobytes(), type=list[Bucket])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise corrupt(self.name, f"its buckets are none: {error}") from error
            for bucket in self._buckets:
                check_bucket(self.name, bucket)
        return self._buckets

    def key(self, row: int) -> str:
        """The key of a sample."""
        try:
            return self._text(self._keys, self._key_ends, row).decode()
        except UnicodeDecodeError as error:
            raise corrupt(self.name, f"the key of row {row} is no text") from error

    def skeleton(self, row: int) -> bytes:
        """The skeleton of a sample."""
        return self._text(self._skeletons, self._skeleton_ends, row)

    def bucket_of(self, row: int) -> Bucket:
        """The bucket of a sample."""
        number, buckets = self._bucket_numbers[row], self.buckets
        if not 0 <= number < len(buckets):
            raise corrupt(self.name, f"row {row} is of bucket {number} of {len(buckets)}")
        return buckets[number]

    def blocks_of(self, row: int) -> tuple[list[int], list[bytes]]:
        """Starts of a sample's blocks in the shard's data, and their digests; all are inside."""
        return self.starts_of(row), self.digests_of(row)

    def starts_of(self, row: int) -> list[int]:
        """Starts of a sample's blocks in the shard's data: all are inside."""
        start, stop = self._range(self._block_ends, row, len(self.starts))
        sizes = self.bucket_of(row).blocks
        starts: list[int] = self.starts[start:stop].tolist()
        room = self.num_bytes - self.data_start
        if len(starts) == len(sizes):
            for at, size in zip(starts, sizes, strict=True):
                if not 0 <= at <= room - size:
                    break
            else:
                return starts
        raise corrupt(self.name, f"row {row} has blocks at {starts} of {room} bytes")

    def digests_of(self, row: int) -> list[bytes]:
        """Hashes of a sample's blocks."""
        start, stop = self._range(self._block_ends, row, len(self.starts))
        return [self.digests[place].tobytes() for place in range(start, stop)]

    def field_starts(self, like: Slot) -> memoryview:
        """Where all samples have the field of a slot in the shard's data, to be indexed by row.

        It is -1 where somebody has to look: the sample has no tensor there, or another one, or one without elements, or
        a view of others, or one that lies outside.
        """
        key = like.field, like.dtype, like.shape
        known = self._starts.get(key)
        if known is None:
            if len(self._starts) >= _MAX_KNOWN:
                self._starts.clear()
            known = self._starts[key] = self._field_starts(like).data
        return known

    def _field_starts(self, like: Slot) -> Ints:
        found = np.full(self.num_samples, -1, np.int64)
        firsts = np.concatenate([np.zeros(1, np.int64), self.block_ends])[:-1]
        nums = self.block_ends - firsts
        is_inside = (firsts >= 0) & (nums >= 0) & (self.block_ends <= len(self.starts))
        for number, bucket in enumerate(self.buckets):
            slot = next((slot for slot in bucket.slots if slot.field == like.field), None)
            if slot is None or (slot.dtype, slot.shape) != (like.dtype, like.shape) or slot.offset is not None:
                continue
            size = bucket.blocks[slot.block]
            rows = np.flatnonzero((self.bucket == number) & is_inside & (nums == len(bucket.blocks)))
            if size and len(rows):
                starts = self.starts[firsts[rows] + slot.block]
                fits = (starts >= 0) & (starts <= self.num_bytes - self.data_start - size)
                found[rows[fits]] = starts[fits]
        return found

    def sha256(self) -> str:
        """The hash of the file."""
        return hashlib.sha256(self._map).hexdigest()

    def _text(self, text: memoryview, ends: memoryview, row: int) -> bytes:
        start, stop = self._range(ends, row, len(text))
        return text[start:stop].tobytes()

    def _range(self, ends: memoryview, row: int, limit: int) -> tuple[int, int]:
        start, stop = ends[row - 1] if row else 0, ends[row]
        if not 0 <= start <= stop <= limit:
            raise corrupt(self.name, f"row {row} lies at [{start}, {stop}) of {limit}")
        return start, stop

    def number(self, key: str) -> int:
        """A number among the metadata."""
        text = self.metadata.get(key, "")
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise corrupt(self.name, f"{key} is no number: {text[:40]!r}")
        return int(text)

    def _column(self, key: str, code: str) -> npt.NDArray[Any]:
        entry = self._entries.get(key)
        if entry is None or entry.dtype != code:
            raise corrupt(self.name, f"no column {key}")
        start, stop = entry.data_offsets
        dtype = _DTYPES[code]
        if (stop - start) % dtype.itemsize:
            raise corrupt(self.name, f"half a number in column {key}")
        if start == stop:
            return np.zeros(0, dtype)
        return np.frombuffer(self._map, dtype, (stop - start) // dtype.itemsize, self._data_start + start)

    def _ints(self, key: str, num: int | None) -> Ints:
        column: Ints = self._column(key, "I64")
        if num is not None and len(column) != num:
            raise corrupt(self.name, f"column {key} has {len(column)} rows of {num}")
        return column

    def _bytes(self, key: str) -> Bytes:
        column: Bytes = self._column(key, "U8")
        if key in ("digests", "key_hashes") and len(column) % 16:
            raise corrupt(self.name, f"half a hash in column {key}")
        return column


def read_facts(columns: Columns, index_bytes: int, sha256: str = "", index_sha256: str = "") -> Facts:
    """What index.json says of a shard, from its columns; hashes that nobody computed are empty."""
    return Facts(
        name=columns.name,
        samples=columns.num_samples,
        bytes=columns.num_bytes,
        index_bytes=index_bytes,
        sha256=sha256,
        index_sha256=index_sha256,
        generation=columns.number("generation"),
        fingerprint=columns.metadata.get("fingerprint", ""),
    )
