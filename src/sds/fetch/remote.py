"""RemoteFile: an object of a store that is read by byte ranges, through the cache, as if it were a file.

Comes in: the first block of an object, which says how large it is. Goes out: bytes of any place in it; blocks that are
not in the cache are fetched, those that are asked for together side by side. Where that is of no use (most of the
object is read, or at too many places), the object is fetched whole and read from there; nobody who reads notices.
A lease is held only while bytes are copied. For one thread at a time.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from sds.errors import CacheError, FetchError, IntegrityError, SdsError
from sds.fetch.protocol import File
from sds.fetch.spans import HEAD, block, blocks_between, origin_of
from sds.fetch.stream import RemoteStream
from sds.units import format_bytes
from sds.urls import redact

if TYPE_CHECKING:
    from sds.fetch.client import FetchClient, Ticket

__all__ = ["RemoteFile"]

log = logging.getLogger("sds.fetch")

_MAX_HELD = 64  # blocks in memory: 16 MB of the usual ones
_MAX_AHEAD = 8  # blocks that are read at once where reading goes on and on
_MAX_SHARE = 0.5  # of the object: past that, the rest is fetched too
_MAX_FILLED = 0.25  # of the cache, by one object that is fetched whole although it was not meant to be
_MAX_JUMPS = 16  # to places that nobody foresaw: an index that is strewn over the object costs a request for each piece


class RemoteFile(os.PathLike[str]):
    """An object that is read by ranges. Whoever opens it as a path gets the whole object, fetched at that moment.

    It is no text: `str()` of it is the URL. A whole copy that was in the cache from the start comes as one too (`at`).

    Attributes:
        url: of the object.
        name: the same without secrets, for messages.
        size: of the object, in bytes.
        error: the first failure to get bytes of it: a decoder that reads may have taken it for the end of the file.
        waited_s: how long its readers waited for bytes.
        is_ranged: it began with a part, not with a whole copy.
        fell_back: it was fetched whole after that.
    """

    def __init__(self, client: FetchClient, file: File, head: str, ticket: Ticket) -> None:
        origin = origin_of(head)
        assert origin is not None and file.span is not None, "a whole object is read from its path"
        self._begin(file.url, origin.size, is_ranged=True)
        self._client = client
        self._file = file
        self._origin = origin
        self._block = file.span[1]
        self._ticket = ticket  # holds the whole object, if it comes to that
        self._seen: set[int] = set()
        self._foreseen: dict[int, None] = {}  # what will be read soon, in this order
        self._num_jumps = 0
        limit = client.options.limit
        self._may_fit = limit is None or self.size <= _MAX_FILLED * limit
        self._most = (
            _MAX_HELD // 2 if limit is None else min(_MAX_HELD // 2, max(1, limit // self._block // 8))
        )  # at once
        self._next = 1  # the block that a reader who goes on and on needs next
        self._num_ahead = 1
        self._keep(0, _read(head, file.span))
        client.tally.count("range_reads")

    @classmethod
    def at(cls, path: str, url: str, size: int) -> RemoteFile:
        """An object that is here whole, at a path that is good while the sample's files are held."""
        file = cls.__new__(cls)
        file._begin(url, size, is_ranged=False)
        file._path = path
        return file

    def _begin(self, url: str, size: int, *, is_ranged: bool) -> None:
        self.url = url
        self.name = redact(url)
        self.size = size
        self.error: SdsError | None = None
        self.waited_s = 0.0
        self.is_ranged = is_ranged
        self.fell_back = False
        self._block = HEAD[1]  # the size of all
        self._path: str | None = None
        self._held: OrderedDict[int, bytes] = OrderedDict()

    if not TYPE_CHECKING:  # there, an attribute that is not known is to be an error

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"'RemoteFile' object has no attribute {name!r}: it is an object of a store that is read by ranges, no "
                "text; use os.fspath() for a path (which fetches all of it), or say remote='whole' to the decoder"
            )

    def __fspath__(self) -> str:
        return self.fetch_whole("it is opened as a path")

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"RemoteFile({self.name!r}, {self.size})"

    @property
    def path(self) -> str | None:
        """Where the whole object is, if it was fetched."""
        return self._path

    def open(self, *, is_tolerant: bool = False) -> io.RawIOBase:
        """A file object that reads it from the start.

        Tolerant: where bytes cannot be had it seems to end, for callers that cannot raise; `error` tells the truth.
        """
        return RemoteStream(self, is_tolerant)

    def read_at(self, start: int, length: int) -> bytes:
        """Bytes from a place on; fewer where the object ends, or if they are more than it holds in memory.

        Raises:
            FetchError: the store does not give them; IntegrityError if the object is not what it was.
        """
        stop = min(start + length, self.size, start + self._block * _MAX_HELD // 2)
        if self._path is not None:
            return _read(self._path, (start, stop))
        wanted = blocks_between(start, stop, self._block)
        missing = [number for number in wanted if number not in self._held]
        for number in wanted:
            if number in self._held:
                self._held.move_to_end(number)  # what comes in must not push it out
        if missing:
            wanted_soon = [*missing, *self._ahead(missing[0], wanted[-1])]
            for first in range(0, len(missing), self._most):
                self._fetch(wanted_soon[first:])
                if self._path is not None:
                    return _read(self._path, (start, stop))
        pieces = [self._piece(number, start, stop) for number in wanted]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Fetches what will be read soon, all of it at once, as far as it can be held; the rest when it is met."""
        if self._path is not None:
            return
        self._foreseen = dict.fromkeys(
            number
            for start, stop in ranges
            for number in blocks_between(max(0, start), min(stop, self.size), self._block)
        )
        missing = [number for number in self._foreseen if number not in self._held]
        if missing:
            self._fetch(missing)

    def _ahead(self, first: int, last: int) -> list[int]:
        """What to fetch along with the blocks from `first` to `last`, of which the first one is missing."""
        if first in self._foreseen:
            return [number for number in self._foreseen if number > last and number not in self._held]
        goes_on = first == self._next
        self._num_ahead = min(2 * self._num_ahead, _MAX_AHEAD, self._most) if goes_on else 1
        self._num_jumps += not goes_on and first - 1 not in self._foreseen  # an index tells roughly where a frame ends
        ahead = range(last + 1, min(first + self._num_ahead, self.num_blocks))
        self._next = max(last, *ahead, 0) + 1
        return [number for number in ahead if number not in self._held]

    @property
    def num_blocks(self) -> int:
        """How many blocks it has."""
        return len(blocks_between(0, self.size, self._block))

    def fetch_whole(self, reason: str) -> str:
        """Fetches the whole object, to be read from there on; its path, good while the sample's files are held."""
        if self._path is None:
            self.fell_back = True
            self._client.tally.count("range_fallbacks")
            if not self._client.has_told_fallback:
                self._client.has_told_fallback = True
                log.info("fetched whole, not by ranges, since %s: %s (said once)", reason, self.name)
            (path,) = self._take(self._ask([File(self._file.url, self._file.version)]), 1)
            self._adopt(path)
            return path
        return self._path

    def close(self) -> None:
        """Lets go of the bytes in memory."""
        self._held.clear()

    def _adopt(self, path: str) -> None:
        """Goes on with a whole copy, if it is the object that was read so far, as far as that can be told."""
        found = os.stat(path).st_size
        if found != self.size:
            raise self._changed(f"{format_bytes(found)} where there were {format_bytes(self.size)}")
        for number, data in self._held.items():
            if _read(path, block(number, self._block)) != data:
                raise self._changed("the whole of it is of another version than the parts")
        self._path = path
        self._held.clear()

    def _fetch(self, numbers: list[int]) -> None:
        numbers = numbers[: self._most]
        self._seen.update(numbers)
        if self._may_fit and len(self._seen) * self._block > _MAX_SHARE * self.size:
            self.fetch_whole(f"more than {_MAX_SHARE:.0%} of it is read")
            return
        if self._may_fit and self._num_jumps > _MAX_JUMPS:
            self.fetch_whole(f"a clip is found only by reading at more than {_MAX_JUMPS} places")
            return
        # one ticket for all of them: they come side by side
        ticket = self._ask([self._file._replace(span=block(number, self._block), whole_up_to=0) for number in numbers])
        try:
            for number, path in zip(numbers, self._take(ticket, len(numbers)), strict=True):
                origin = origin_of(path)
                if origin is None:
                    self._adopt(path)
                    return
                if origin != self._origin:
                    raise self._changed("a part of it is of another version than the first one")
                start, stop = block(number, self._block)
                self._keep(number, _read(path, (start, stop), start))
        except SdsError:
            raise
        except OSError as error:
            hint = "did somebody clear the cache folder? ask for the sample again"
            raise self._failed(
                CacheError(f"cached part cannot be read: {self.name}: {error.strerror}", hint=hint)
            ) from error
        finally:
            if self._path is None:  # else it holds the whole copy
                self._ticket.drop(ticket)

    def _ask(self, files: list[File]) -> Ticket:
        (ticket,) = self._client.submit([files])
        self._ticket.hold(ticket)
        return ticket

    def _take(self, ticket: Ticket, number: int) -> list[str]:
        began = time.perf_counter()
        try:
            with self._client.tally.waiting("fetch"):
                paths = ticket.take()
        except SdsError as error:
            raise self._failed(error) from None
        finally:
            self.waited_s += time.perf_counter() - began
        if len(paths) != number:
            hint = "an iterator was closed while another thread read its sample"
            raise self._failed(
                FetchError(f"file was let go of while it was read: {self.name}", hint=hint, url=self.name)
            )
        return paths

    def _failed(self, error: SdsError) -> SdsError:
        self.error = self.error or error
        return error

    def _keep(self, number: int, data: bytes) -> None:
        start, stop = block(number, self._block)
        if len(data) != min(stop, self.size) - start:
            raise self._changed(f"block {number} of it has {len(data)} bytes")
        self._seen.add(number)
        self._held[number] = data
        self._held.move_to_end(number)
        while len(self._held) > _MAX_HELD:
            self._held.popitem(last=False)

    def _piece(self, number: int, start: int, stop: int) -> bytes:
        begin = number * self._block
        return self._held[number][max(0, start - begin) : stop - begin]

    def _changed(self, reason: str) -> SdsError:
        hint = "somebody wrote to it: open the dataset again with revalidate='run', or clear the cache"
        message = f"object changed while it was read: {self.name}: {reason}"
        return self._failed(IntegrityError(message, hint=hint, url=self.name))


def _read(path: str, span: tuple[int, int], begins_at: int = 0) -> bytes:
    """The bytes [start, stop) of an object, of a file that begins with its byte `begins_at`."""
    with open(path, "rb", buffering=0) as file:
        file.seek(span[0] - begins_at)
        return file.read(span[1] - span[0]) or b""
