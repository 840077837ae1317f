"""Tar shards -> tables: headers are read, hopping from one to the next, and members grouped into samples.

Comes in: a local tar file, or a remote one that is read by ranges. Goes out: a table with a row for each sample, in the
order of the shard: its id, its shard, and for each extension where the member lies. Members are grouped as WebDataset
does: consecutive names that are equal up to the first dot of the file name are one sample. What a Mac adds is left out.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sds.errors import SchemaError, SourceError
from sds.index.held import TAR, HeldPart
from sds.index.listing import file_version
from sds.index.remote import OpenRemote
from sds.urls import is_remote, redact

__all__ = ["SHARD", "Member", "members", "read_tar", "unique_keys"]

SHARD = "shard"
log = logging.getLogger("sds.index")
_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_REGULAR = (b"0", b"\0", b"7")
_MAX_EXTENDED = 1 << 20  # bytes of a long name, or of a list of attributes
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__(?:$|/)")
_MAC = re.compile(r"(?:.*/|)(?:\._[^/]*|\.DS_Store)", re.DOTALL)  # what a Mac notes beside files

# What is read at once: enough for the headers and the small members of a sample.
_LOCAL_WINDOW = 4 << 10
_REMOTE_WINDOW = 32 << 10
# Up to such a distance reading on costs less than asking again: windows grow, and small members pass in large reads
_NEAR = 128 << 10
_MAX_WINDOW = 4 << 20
_MAX_END = 1 << 20  # of zeros at the end, so many are looked at

_Read: TypeAlias = Callable[[int, int], bytes]


class Member(NamedTuple):
    """A file in a tar: its name, and which bytes of the tar it is."""

    name: str
    offset: int
    size: int


def read_tar(url: str, number: int, *, name: str, id_column: str, open_remote: OpenRemote) -> tuple[pa.Table, HeldPart]:
    """Reads the headers of one shard.

    Args:
        url: its address.
        number: of this part of the source.
        name: what its rows call it.
        id_column: the name of the column of ids.
        open_remote: gives the reader of remote objects.

    Raises:
        SourceError: it is no tar, or cut short.
        SchemaError: an extension is named like a column of ours.
    """
    if is_remote(url):
        remote = open_remote()
        info = remote.head(url)
        part = HeldPart(url, info.version, info.size)
        found = members(lambda start, stop: remote.read(url, start, stop), info.size, url, is_far=True)
        return _table(_samples(found, url), number, name, id_column, url), part
    with open(url, "rb", buffering=0) as file:
        stat = os.fstat(file.fileno())
        part = HeldPart(url, file_version(stat), stat.st_size)
        found = members(lambda start, stop: os.pread(file.fileno(), stop - start, start), stat.st_size, url)
        return _table(_samples(found, url), number, name, id_column, url), part


def unique_keys(table: pa.Table, id_column: str) -> pa.Table:
    """The table, with the shard's name before each id if the shards use the same ids."""
    keys = table[id_column]
    if pc.count_distinct(keys).as_py() == len(keys):
        return table
    stems = pc.replace_substring_regex(table[SHARD], r"\.tar$", "")
    return table.set_column(
        table.column_names.index(id_column), id_column, pc.binary_join_element_wise(stems, keys, "/")
    )


def members(read: _Read, size: int, url: str, *, is_far: bool = False) -> Iterator[Member]:
    """The regular files of a tar, in order.

    Args:
        read: gives the bytes [start, stop).
        size: of the tar.
        url: for messages.
        is_far: whether a read takes long, so that it should bring more.
    """
    window = _Window(read, size, url, is_far)
    at, name, shared, own = 0, "", {}, {}  # type: int, str, dict[str, str], dict[str, str]
    while at + _BLOCK <= size:
        block = window.get(at, _BLOCK)
        if block == _ZEROS:
            _check_end(window, at, size, url)
            return
        kind, data = block[156:157], at + _BLOCK
        length = _number(block[124:136], url, at)
        _check(block, url, at)
        if kind in (b"L", b"K", b"x", b"g", b"X"):
            body = window.get(data, length) if length <= _MAX_EXTENDED else None
            if body is None:
                raise _damaged(url, f"an extended header of {length} bytes at byte {at}")
            if kind == b"L":
                name = _text(body)
            elif kind == b"g":
                shared |= _attributes(body, url, at)
            elif kind in (b"x", b"X"):
                own = _attributes(body, url, at)
        else:
            attributes = shared | own
            if kind == b"S" or any(key.startswith("GNU.sparse") for key in attributes):
                raise SourceError(
                    f"tar has a sparse member: {redact(url)}, at byte {at}", hint="write it without --sparse", url=url
                )
            length = int(attributes["size"]) if attributes.get("size", "").isdecimal() else length
            if kind in b"123456":  # links and devices have no content, whatever their size says
                length = 0
            if data + length > size:
                raise _damaged(url, f"a member at byte {at} ends at byte {data + length} of {size}")
            if kind in _REGULAR:
                yield Member(name or attributes.get("path") or _plain_name(block), data, length)
            name, own = "", {}
        at = data + -(-length // _BLOCK) * _BLOCK
    if at == 0:
        raise _damaged(url, f"it has {size} bytes")
    if at < size:
        raise _damaged(url, f"it ends at byte {size}, within a header")
    log.warning(
        "tar has no end: members may be missing: %s (hint: if it is whole, add 1024 zero bytes to it)", redact(url)
    )


def _check_end(window: _Window, at: int, size: int, url: str) -> None:
    """Refuses tars that were put behind each other: what comes after the first one's end would be lost."""
    rest = window.get(at, min(size - at, _MAX_END) // _BLOCK * _BLOCK)
    first = len(rest) - len(rest.lstrip(b"\0"))
    block = rest[first // _BLOCK * _BLOCK :][:_BLOCK]
    if not block:
        return
    try:
        _check(block, url, at)
    except SourceError:
        return  # no header: whatever else follows, it is no member
    raise SourceError(
        f"tar goes on after its end, at byte {at + first // _BLOCK * _BLOCK}: {redact(url)}",
        hint="were several put into one? Keep them apart, or join them with tar --concatenate",
        url=redact(url),
    )


class _Window:
    """Bytes of a tar that were read last. Goes forward."""

    def __init__(self, read: _Read, size: int, url: str, is_far: bool) -> None:
        self._read, self._size, self._url = read, size, url
        self._is_far = is_far
        self._length = self._first = _REMOTE_WINDOW if is_far else _LOCAL_WINDOW
        self._start, self._data = 0, b""

    def get(self, start: int, length: int) -> bytes:
        stop = start + length
        if stop > self._size:
            raise _damaged(self._url, f"it ends at byte {self._size}, within a header")
        end = self._start + len(self._data)
        if stop > end:
            begin = start
            if self._is_far:
                is_near = start - end <= _NEAR
                self._length = min(2 * self._length, _MAX_WINDOW) if is_near and self._data else self._first
            until = min(self._size, max(stop, begin + self._length))
            self._data, self._start = self._read(begin, until), begin
            if len(self._data) != until - begin:
                raise _damaged(self._url, f"it ends at byte {begin + len(self._data)} of {self._size}")
        return self._data[start - self._start : stop - self._start]


def _plain_name(block: bytes) -> str:
    name = _text(block[:100])
    prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""  # GNU has other things there
    return f"{prefix}/{name}" if prefix else name


def _text(raw: bytes) -> str:
    raw = raw.partition(b"\0")[0]
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _number(field: bytes, url: str, at: int) -> int:
    if field[0] & 0x80:  # base 256, of members of 8 GB and more
        number = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] & 0x40:  # negative
            raise _damaged(url, f"no length in the header at byte {at}")
        return number
    text = field.partition(b"\0")[0].strip(b" ")
    try:
        return int(text, 8) if text else 0
    except ValueError:
        raise _damaged(url, f"no header at byte {at}") from None


def _check(block: bytes, url: str, at: int) -> None:
    said = _number(block[148:156], url, at)
    plain = sum(block) - sum(block[148:156]) + 8 * 32
    if said != plain and said != plain - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        raise _damaged(url, f"no header at byte {at}")


def _attributes(body: bytes, url: str, at: int) -> dict[str, str]:
    """Lines of 'length key=value' (pax)."""
    found, place = {}, 0
    while place < len(body) and body[place] != 0:
        length, space, _ = body[place : place + 20].partition(b" ")
        end = place + (int(length) if length.isdigit() else 0)
        key, equals, value = body[place + len(length) + 1 : end - 1].partition(b"=")
        if not space or not equals or not place < end <= len(body):
            raise _damaged(url, f"attributes that are none at byte {at}")
        found[_text(key)] = _text(value)
        place = end
    return found


def _samples(found: Iterator[Member], url: str) -> Iterator[tuple[str, dict[str, Member]]]:
    """Consecutive members with one key are a sample."""
    last, sample = None, {}  # type: str | None, dict[str, Member]
    for member in found:
        name = member.name.removeprefix("./")
        match = _NAME.fullmatch(name)
        if match is None or _META.match(name) or _MAC.fullmatch(name):
            continue
        key, extension = match[1], match[2].lower()
        if key != last:
            if last is not None:
                yield last, sample
            last, sample = key, {}
        if extension in sample:
            raise SourceError(
                f"two members are the {extension!r} of sample {key!r}: {redact(url)}",
                hint="rename one of them; extensions are compared without case",
                url=url,
            )
        sample[extension] = member
    if last is not None:
        yield last, sample


def _table(
    samples: Iterator[tuple[str, dict[str, Member]]],
    number: int,
    name: str,
    id_column: str,
    url: str,
) -> pa.Table:
    keys: list[str] = []
    rows: dict[str, list[int]] = {}
    places: dict[str, list[Member]] = {}
    for row, (key, sample) in enumerate(samples):
        keys.append(key)
        for extension, member in sample.items():
            rows.setdefault(extension, []).append(row)
            places.setdefault(extension, []).append(member)
    for extension in rows:
        if extension in (id_column, SHARD):
            raise SchemaError(
                f"extension is named like another column: {extension!r} in {redact(url)}",
                hint="give index_col_name another name, or rename the members",
                url=url,
            )
    found = {id_column: pa.array(keys, pa.string()), SHARD: pa.array([name] * len(keys), pa.string())}
    for extension in sorted(rows):
        found[extension] = _column(places[extension], rows[extension], len(keys), number)
    return pa.table(found)


def _column(places: list[Member], rows: list[int], num_rows: int, number: int) -> pa.Array:
    fields = [
        pa.array([number] * len(places), pa.int32()),
        pa.array([member.offset for member in places], pa.int64()),
        pa.array([member.size for member in places], pa.int64()),
    ]
    there = pa.StructArray.from_arrays(fields, fields=list(TAR))
    if len(rows) == num_rows:
        return there
    return there.take(pc.index_in(pa.array(range(num_rows)), pa.array(rows)))


def _damaged(url: str, reason: str) -> SourceError:
    hint = "is it whole, and a plain tar? Compressed ones are to be decompressed first"
    return SourceError(f"tar cannot be read: {redact(url)}: {reason}", hint=hint, url=redact(url))
