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
from typing import TYPE_CHECKING

from sds.errors import CacheError, FetchError, IntegrityError, SdsError
from sds.fetch.protocol import File
from sds.fetch.spans import Origin, block, blocks_between, origin_of
from sds.units import format_bytes
from sds.urls import redact

if TYPE_CHECKING:
    from sds.fetch.client import FetchClient, Ticket

__all__ = ["RemoteFile"]

log = logging.getLogger("sds.fetch")

_MAX_HELD = 64  # blocks in memory: 16 MB of the usual ones
_MAX_AHEAD = 8  # blocks that are read at once where reading goes on and on
_MAX_SHARE = 0.5  # of the object: past that, the rest is fetched too
_MAX_JUMPS = 16  # to places that nobody foresaw: an index that is strewn over the object costs a request for each piece


class RemoteFile(os.PathLike[str]):
    """An object that is read by ranges. Whoever opens it as a path gets the whole object, fetched at that moment.

    Attributes:
        url: of the object.
        name: the same without secrets, for messages.
        size: of the object, in bytes.
        error: the first failure to get bytes of it: a decoder that reads may have taken it for the end of the file.
        waited_s: how long its readers waited for bytes.
    """

    def __init__(self, client: FetchClient, file: File, head: str, ticket: Ticket) -> None:
        origin = origin_of(head)
        assert origin is not None and file.span is not None, "a whole object is read from its path"
        self.url = file.url
        self.name = redact(file.url)
        self.size = origin.size
        self.error: SdsError | None = None
        self.waited_s = 0.0
        self._client = client
        self._file = file
        self._origin = origin
        self._block = file.span[1]  # the size of all
        self._ticket = ticket  # holds the whole object, if it comes to that
        self._path: str | None = None
        self._held: OrderedDict[int, bytes] = OrderedDict()
        self._seen: set[int] = set()
        self._num_jumps = 0
        limit = client.options.limit
        self._most = (
            _MAX_HELD // 2 if limit is None else min(_MAX_HELD // 2, max(1, limit // self._block // 8))
        )  # at once
        self._next = 0  # the block that a reader who goes on and on needs next
        self._num_ahead = 1
        self._keep(0, _read(head, file.span))
        client.tally.count("range_reads")

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
        return _Stream(self, is_tolerant)

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
            goes_on = missing[0] == self._next
            self._num_ahead = min(2 * self._num_ahead, _MAX_AHEAD) if goes_on else 1
            self._num_jumps += not goes_on
            ahead = range(wanted[-1] + 1, min(missing[0] + self._num_ahead, self.num_blocks))
            self._next = max(wanted[-1], *ahead, 0) + 1
            wanted_soon = [*missing, *(number for number in ahead if number not in self._held)]
            for first in range(0, len(missing), self._most):
                self._fetch(wanted_soon[first:])
                if self._path is not None:
                    return _read(self._path, (start, stop))
        pieces = [self._piece(number, start, stop) for number in wanted]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Fetches what will be read soon, all of it at once, as far as it can be held."""
        wanted = dict.fromkeys(
            number
            for start, stop in ranges
            for number in blocks_between(max(0, start), min(stop, self.size), self._block)
        )
        missing = [number for number in wanted if number not in self._held]
        if missing and self._path is None:
            self._fetch(missing)

    @property
    def num_blocks(self) -> int:
        """How many blocks it has."""
        return len(blocks_between(0, self.size, self._block))

    def fetch_whole(self, reason: str) -> str:
        """Fetches the whole object, to be read from there on; its path, good while the sample's files are held."""
        if self._path is None:
            tally = self._client.tally
            tally.count("range_fallbacks")
            if not self._client.has_told_fallback:
                self._client.has_told_fallback = True
                log.info("fetched whole, not by ranges, since %s: %s (said once)", reason, self.name)
            (path,) = self._take(self._ask([File(self._file.url, self._file.version)]), 1)
            found = os.stat(path).st_size
            if found != self.size:
                raise self._changed(f"{format_bytes(found)} where there were {format_bytes(self.size)}")
            self._path = path
            self._held.clear()
        return self._path

    def close(self) -> None:
        """Lets go of the bytes in memory."""
        self._held.clear()

    def _fetch(self, numbers: list[int]) -> None:
        numbers = numbers[: self._most]
        self._seen.update(numbers)
        if len(self._seen) * self._block > _MAX_SHARE * self.size:
            self.fetch_whole(f"more than {_MAX_SHARE:.0%} of it is read")
            return
        if self._num_jumps > _MAX_JUMPS:
            self.fetch_whole(f"a clip is found only by reading at more than {_MAX_JUMPS} places")
            return
        # one ticket for all of them: they come side by side
        ticket = self._ask([self._file._replace(span=block(number, self._block), whole_up_to=0) for number in numbers])
        try:
            for number, path in zip(numbers, self._take(ticket, len(numbers)), strict=True):
                origin = origin_of(path)
                if (origin or Origin(os.stat(path).st_size, self._origin.tag)) != self._origin:
                    raise self._changed("a part of it is of another version than the first one")
                start, stop = block(number, self._block)
                self._keep(number, _read(path, (start, stop), 0 if origin is None else start))
        except SdsError:
            raise
        except OSError as error:
            hint = "did somebody clear the cache folder? ask for the sample again"
            raise self._failed(
                CacheError(f"cached part cannot be read: {self.name}: {error.strerror}", hint=hint)
            ) from error
        finally:
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


class _Stream(io.RawIOBase):
    """A place in a RemoteFile."""

    def __init__(self, file: RemoteFile, is_tolerant: bool) -> None:
        self._file = file
        self._is_tolerant = is_tolerant
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        try:
            data = self._file.read_at(self._place, size) if size and self._place < self._file.size else b""
        except SdsError:
            if not self._is_tolerant:
                raise
            data = b""
        self._place += len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typing.Buffer is Python 3.12
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _read(path: str, span: tuple[int, int], begins_at: int = 0) -> bytes:
    """The bytes [start, stop) of an object, of a file that begins with its byte `begins_at`."""
    with open(path, "rb", buffering=0) as file:
        file.seek(span[0] - begins_at)
        return file.read(span[1] - span[0]) or b""
