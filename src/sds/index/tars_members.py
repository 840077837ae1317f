"""Members of tar shards: places -> bytes. Local shards are read where they lie, remote ones through the cache.

Comes in: where the members of a sample lie. Goes out: what to fetch, and then their bytes. Members that lie beside each
other are one span, so one request. Where all shards fit into the cache, spans are blocks that hold many samples, and
whoever comes next finds them there. A shard that is not the one that was indexed is an error, never other bytes.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from io import FileIO
from typing import Any, NamedTuple

from sds.errors import CacheError, IntegrityError, SourceError, SourceNotFound
from sds.fetch import File
from sds.fetch.spans import Span, block, blocks_between, origin_of
from sds.index.held import HeldPart
from sds.index.listing import file_version
from sds.urls import is_remote, redact

__all__ = ["BLOCK", "Members", "block_size", "pread", "spans_of"]

_GAP = 64 << 10  # headers, and small members that nobody wants, between two that are wanted
_LARGE = 16 << 10  # of a local file, more than that is not read over
# Large enough that requests cost little beside their bytes: of SeaweedFS, a megabyte took client and server half the
# CPU time that it takes in blocks of 1 MB. Small enough that the first batch, of as many blocks, comes soon
BLOCK = 4 << 20
_SMALL = 1 << 19  # bytes of a sample, in the mean: larger ones are worth a request each
_ROOM = 0.8  # of the cache: others may need some of it too

_Place = Mapping[str, Any]


def block_size(total: int, wanted: int, num_samples: int, limit: int | None) -> int | None:
    """How large the blocks are in which shards are fetched; None: each sample by itself.

    Args:
        total: bytes of all shards.
        wanted: bytes of the members that samples have.
        num_samples: how many samples there are.
        limit: of the cache; None: there is none.
    """
    has_room = limit is None or total <= _ROOM * limit  # or blocks would be fetched again and again
    is_dense = 2 * wanted >= total
    is_small = wanted <= _SMALL * num_samples
    return BLOCK if has_room and is_dense and is_small else None


def spans_of(places: Iterable[_Place], gap: int = _GAP) -> list[Span]:
    """The spans that hold some members of one shard, in order; those no farther from each other than `gap` are one."""
    spans: list[Span] = []
    for offset, size in sorted((place["offset"], place["size"]) for place in places if place["size"]):
        if spans and offset - spans[-1][1] <= gap:
            spans[-1] = spans[-1][0], max(spans[-1][1], offset + size)
        else:
            spans.append((offset, offset + size))
    return spans


class Members:
    """The shards of a source. Holds nothing open: a file is opened for a sample, which takes microseconds.

    Args:
        parts: the shards, by number.
        block: the size of the blocks in which remote shards are fetched; None: each sample by itself.
    """

    def __init__(self, parts: Sequence[HeldPart], block: int | None = None) -> None:
        self._parts = parts
        self._block = block

    def files(self, places: Mapping[str, _Place]) -> list[File]:
        """The spans to fetch, of remote shards."""
        found: list[File] = []
        for part, mine in self._by_part(places):
            if is_remote(part.url):
                found += [File(part.url, part.version, span) for span in self._spans(mine.values())]
        return found

    def read(self, places: Mapping[str, _Place], files: Sequence[File], paths: Sequence[str]) -> dict[str, Any]:
        """The bytes of members."""
        found = []
        for part, mine in self._by_part(places):
            if is_remote(part.url):
                pieces = [_piece(part, f, path) for f, path in zip(files, paths, strict=True) if f.url == part.url]
            else:
                pieces = [_Piece(part.url, 0, part.size, 0)]
            found.append(_read(part, pieces, mine))
        if len(found) == 1:
            return found[0]
        content = {column: data for each in found for column, data in each.items()}
        return {column: content[column] for column in places}

    def close(self) -> None:
        """Nothing is held open."""

    def _by_part(self, places: Mapping[str, _Place]) -> Iterable[tuple[HeldPart, Mapping[str, _Place]]]:
        numbers = dict.fromkeys(place["part"] for place in places.values())
        if len(numbers) == 1:
            return [(self._parts[number], places) for number in numbers]
        return [
            (self._parts[number], {name: place for name, place in places.items() if place["part"] == number})
            for number in numbers
        ]

    def _spans(self, places: Collection[_Place]) -> list[Span]:
        size = self._block
        if size is not None and all(place["size"] for place in places):
            first = min([place["offset"] for place in places]) // size
            if max([place["offset"] + place["size"] for place in places]) <= (first + 1) * size:
                return [block(first, size)]  # nearly always
        spans = spans_of(places)
        if size is None:
            return spans
        return [block(number, size) for number in sorted({n for a, b in spans for n in blocks_between(a, b, size)})]


class _Piece(NamedTuple):
    """A local file with the bytes [start, stop) of a shard; the file begins with the shard's byte `base`."""

    path: str
    start: int
    stop: int
    base: int


def _piece(part: HeldPart, file: File, path: str) -> _Piece:
    """What was fetched: a span, or the whole shard where that was there or had to be."""
    assert file.span is not None
    origin = origin_of(path)
    try:
        size = os.stat(path).st_size if origin is None else origin.size
    except FileNotFoundError as e:
        raise _lost(e) from e
    if size != part.size:
        hint = "somebody wrote to it: open the dataset again"
        message = f"shard has {size} bytes, not the {part.size} that were indexed: {redact(part.url)}"
        raise IntegrityError(message, hint=hint, url=redact(part.url))
    start, stop = file.span
    return _Piece(path, start, min(stop, part.size), 0 if origin is None else start)


def _read(part: HeldPart, pieces: Sequence[_Piece], places: Mapping[str, _Place]) -> dict[str, bytes]:
    """Each piece is read once: the stretch of it that members need."""
    if len(pieces) == 1 and all(_lies_in(pieces[0], place) for place in places.values()):
        return _read_whole(part, pieces[0], places)
    found: dict[str, list[bytes]] = {name: [] for name in places}
    for piece in sorted(pieces, key=lambda piece: piece.start):
        mine = {name: place for name, place in places.items() if _overlap(piece, place)}
        if not mine:
            continue
        for start, stop in spans_of([_cut(piece, place) for place in mine.values()]):
            data = _pread(part, piece, start, stop)
            for name, place in mine.items():
                cut = _cut(piece, place)
                if start <= cut["offset"] < stop:
                    first = cut["offset"] - start
                    found[name].append(data[first : first + cut["size"]])
    content = {name: parts[0] if len(parts) == 1 else b"".join(parts) for name, parts in found.items()}
    for name, place in places.items():
        if len(content[name]) != place["size"]:
            raise _shorter(part)
    return content


def _lies_in(piece: _Piece, place: _Place) -> bool:
    return bool(piece.start <= place["offset"] and place["offset"] + place["size"] <= piece.stop)


def _read_whole(part: HeldPart, piece: _Piece, places: Mapping[str, _Place]) -> dict[str, bytes]:
    """As `_read`, of members that lie in one piece: most do. Large ones are read by themselves, and not copied."""
    content = dict.fromkeys(places, b"")
    small: dict[str, _Place] = {}
    with _opened(part, piece) as file:
        fd = file.fileno()
        for name, place in places.items():
            if place["size"] >= _LARGE:
                content[name] = _exactly(part, piece, fd, place["offset"], place["offset"] + place["size"])
            elif place["size"]:
                small[name] = place
        for start, stop in spans_of(small.values(), _LARGE):
            data = _exactly(part, piece, fd, start, stop)
            for name, place in small.items():
                at = place["offset"] - start
                if 0 <= at < stop - start:
                    content[name] = data[at : at + place["size"]]
    return content


def _exactly(part: HeldPart, piece: _Piece, fd: int, start: int, stop: int) -> bytes:
    data = pread(fd, start - piece.base, stop - piece.base)
    if len(data) != stop - start:
        raise _shorter(part)
    return data


def _overlap(piece: _Piece, place: _Place) -> bool:
    return bool(place["offset"] < piece.stop and piece.start < place["offset"] + place["size"] and place["size"])


def _cut(piece: _Piece, place: _Place) -> dict[str, int]:
    """The part of a member that lies in a piece."""
    start = max(piece.start, place["offset"])
    return {"offset": start, "size": min(piece.stop, place["offset"] + place["size"]) - start}


def _pread(part: HeldPart, piece: _Piece, start: int, stop: int) -> bytes:
    with _opened(part, piece) as file:
        return pread(file.fileno(), start - piece.base, stop - piece.base)


def _opened(part: HeldPart, piece: _Piece) -> FileIO:
    """The file of a piece; of a local shard, it is the one that was indexed."""
    is_own = piece.path == part.url
    try:
        file = FileIO(piece.path)
    except FileNotFoundError as e:
        if not is_own:
            raise _lost(e) from e
        hint = "it was there when the index was made; open the dataset again"
        raise SourceNotFound(f"shard is gone: {part.url}", hint=hint, url=part.url) from e
    if is_own and file_version(os.fstat(file.fileno())) != part.version:
        file.close()
        hint = "open the dataset again"
        raise SourceError(f"shard changed since it was indexed: {part.url}", hint=hint, url=part.url)
    return file


def pread(fd: int, start: int, stop: int) -> bytes:
    """The bytes [start, stop) of an open file, fewer if it ends before that; one call gives no more than 2 GB."""
    data = os.pread(fd, stop - start, start)
    if len(data) == stop - start:
        return data
    pieces = [data]
    while pieces[-1]:
        start += len(pieces[-1])
        pieces.append(os.pread(fd, stop - start, start))
    return b"".join(pieces)


def _shorter(part: HeldPart) -> IntegrityError:
    hint = "somebody wrote to it, or cut it short: open the dataset again"
    url = redact(part.url)
    return IntegrityError(f"shard is shorter than when it was indexed: {url}", hint=hint, url=url)


def _lost(error: OSError) -> CacheError:
    hint = "did somebody delete files of the cache folder? They are fetched again when asked for again"
    return CacheError(f"fetched span cannot be read: {error}", hint=hint)
