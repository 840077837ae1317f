"""FetchClient: what the other rooms know of fetching. Tickets for files, and bytes, heads, lists, puts past the cache.

Local files are named in place and never pass through the server. A client connects when first asked for something
remote, is safe to fork (the child connects anew) and to pickle (its options travel, its connection does not).
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from sds.errors import FetchError, IntegrityError, ObjectNotFound, SdsError, UnsupportedSource
from sds.events import Tally
from sds.fetch import protocol as p
from sds.fetch.consumer import Consumer
from sds.fetch.link import Link, Pending, abandon_all
from sds.fetch.remote import RemoteFile
from sds.fetch.spans import origin_of
from sds.types import ObjectInfo
from sds.urls import is_remote, local_path, redact, root_of

__all__ = ["FetchClient", "Ticket"]

_PART = 16 * 2**20
_DEPTH_EVERY = 256  # looking costs tens of microseconds


class Ticket:
    """A claim on some files: `take` waits for them and gives their paths, `release` lets them go."""

    __slots__ = (
        *("_client", "_counted", "_error", "_files", "_in_parts", "_is_over", "_link", "_local", "_others"),
        *("_pending", "may_widen"),
    )

    def __init__(self, client: FetchClient, files: Sequence[p.File]) -> None:
        self._client = client
        self._files = [file if type(file) is p.File else p.File(*file) for file in files]
        self._in_parts = self.may_widen = False  # see `follow_up`
        self._local: list[str | None] = []
        self._error: SdsError | None = None
        try:
            for file in self._files:
                self._local.append(_place(file.url))
                if file.span is not None:
                    self._in_parts = True
                    self.may_widen = self.may_widen or file.whole_up_to > 0
        except SdsError as error:  # it is this ticket's, not that of the others who are asked for with it
            self._local, self._error = [], error
        self._pending: Pending | None = None
        self._link: Link | None = None
        self._counted = False
        self._is_over = False
        self._others: tuple[Ticket, ...] = ()  # whose files were needed after all, and stay as long as these

    @property
    def urls(self) -> list[str]:
        """What was asked for."""
        return [file.url for file in self._files]

    @property
    def is_leased(self) -> bool:
        """Whether it holds cached files; local files need no lease."""
        return self._pending is not None

    @property
    def is_over(self) -> bool:
        """Whether somebody has let go of it."""
        return self._is_over

    @property
    def paths(self) -> list[str]:
        """The cached files it holds, once they were taken."""
        reply = None if self._pending is None else self._pending.reply
        held = [path for other in self._others for path in other.paths]
        return held if reply is None else [*reply.paths, *held]

    @property
    def num_bytes(self) -> int:
        """Size of the cached files it holds."""
        return sum(os.stat(path).st_size for path in self.paths if os.path.exists(path))

    def look(self) -> None:
        """Raises ObjectNotFound if a local file is not there."""
        for path in self._local:
            if path is not None and not os.path.exists(path):
                hint = "the index names it, but it is not there; relative paths are relative to the index file"
                raise ObjectNotFound(f"file not found: {path}", hint=hint, url=path)

    def take(self, *, must_look: bool = True) -> list[str]:
        """Waits until the files are here; their local paths, good until `release`.

        `must_look`: local files are looked for. Who opens them at once need not, and calls `look` when that fails.
        """
        if self._error is not None:
            raise self._error
        if must_look:
            self.look()
        if self._pending is None:
            return [path for path in self._local if path is not None]
        try:
            reply = self._wait()
        except UnsupportedSource:  # it is to be had whole, or not at all
            reply = None
        if (self._in_parts and self.follow_up()) or reply is None:
            reply = self._wait()
        self._count(reply)
        remote = iter(reply.paths)
        return [path if path is not None else next(remote) for path in self._local]

    def take_files(self, *, must_look: bool = True) -> list[str | RemoteFile]:
        """Waits like `take`; an object of which only a part was wanted is a RemoteFile, unless it is there whole."""
        paths = self.take(must_look=must_look)
        if len(paths) != len(self._files):
            raise FetchError("files were let go of before they were taken", hint="ask for them again")
        if not self._in_parts:
            return [*paths]
        return [
            path if file.span is None or origin_of(path) is None else RemoteFile(self._client, file, path, self)
            for file, path in zip(self._files, paths, strict=True)
        ]

    def follow_up(self) -> bool:
        """Asks for the whole of objects whose first bytes showed that they are small, or are not to be had alone.

        Whoever prefetches calls it now and then, so that the rest is on its way before it is needed.
        """
        pending, link = self._pending, self._link
        if not self._in_parts or pending is None or link is None or link is not self._client.current_link():
            return False
        wanted = files = pending.request.files
        reply = pending.reply  # once: it may be given back at any moment
        if isinstance(pending.error, UnsupportedSource):
            wanted = [p.File(file.url, file.version) for file in files]
        elif reply is not None and self.may_widen:
            wanted = [_widened(file, path) for file, path in zip(files, reply.paths, strict=True)]
        if wanted == files:
            return False
        if reply is not None:
            self._count(reply)
        self._pending, self._counted = Pending(p.Get(link.next_ids(1)[0], wanted)), False
        link.ask([self._pending])
        link.release(pending)
        if self._is_over:  # another thread let go of it meanwhile
            self.release()
        return True

    def hold(self, other: Ticket) -> None:
        """Keeps another ticket as long as this one; whoever waits for it is woken when this one is let go of."""
        self._others += (other,)
        if self._is_over:
            other.release()

    def drop(self, other: Ticket) -> None:
        """Lets go of a ticket that was kept."""
        other.release()
        self._others = tuple(each for each in self._others if each is not other)

    def hand_to(self, thread: int | None) -> None:
        """Says who lets go of the files in the end: a thread, or (None) whoever takes the batches they are for."""
        if self._pending is not None:
            self._pending.holder = thread
        for other in self._others:
            other.hand_to(thread)

    def _count(self, reply: Any) -> None:
        if not self._counted:
            self._counted = True
            tally, counts = self._client.tally, dict(reply.counts)
            if "wait_ms" in counts:
                tally.add_wait("room", counts.pop("wait_ms") / 1000)
            tally.count_all(counts)
            if reply.trips and self._pending is not None:
                self._client.pay(self._pending.request.files, reply.trips)

    def _wait(self) -> Any:
        pending, link = self._pending, self._link
        if pending is not None and link is not None and link is self._client.current_link() and link.take_now(pending):
            self._client.note_depth(link)
            return pending.reply
        options = self._client.options
        subject = redact(next(file.url for file in self._files if is_remote(file.url)))
        # longer than the server waits before it says what is wrong
        patience = max(600.0, options.timeout_s * max(12, options.num_retries + 2))
        if self._pending is not None and self._link is not self._client.current_link():
            self._ask_again()  # the process was forked, or the client closed, since it was asked for
        pending, link = self._pending, self._link
        if pending is None or link is None:
            hint = "an iterator was closed while another thread waited for its sample"
            raise FetchError(f"request was let go of before its answer came: {subject}", hint=hint, url=subject)
        try:
            link.wait(pending, subject=subject, patience_s=patience)
        except SdsError:
            self._client.pay(pending.request.files, pending.trips)
            raise
        self._client.note_depth(link)
        return pending.reply

    def _ask_again(self) -> None:
        assert self._pending is not None
        self._link = self._client._connected()
        self._pending = Pending(p.Get(self._link.next_ids(1)[0], self._pending.request.files))
        self._link.ask([self._pending])

    def release(self) -> None:
        """Lets the files go. Harmless when repeated, or in a process that did not ask for them."""
        self._is_over = True
        if self._pending is not None and self._link is not None and self._link is self._client.current_link():
            self._link.release(self._pending)
        for other in self._others:
            other.release()
        self._pending = None
        self._local = []


class FetchClient:
    """A process's access to the fetch server of one cache folder."""

    def __init__(self, options: p.FetchOptions, tally: Tally | None = None) -> None:
        self.options = options
        self.tally = tally or Tally()
        self.consumer = Consumer()  # who takes what is made of its files, where somebody says
        self._link: Link | None = None
        self.has_told_fallback = False
        self._num_taken = 0
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._lock = threading.Lock()
        _forget_after_fork(self)

    def submit(self, requests: Sequence[Sequence[p.File]]) -> list[Ticket]:
        """Asks for the files of several samples at once, in the order in which they will be needed."""
        tickets = [Ticket(self, files) for files in requests]
        wanted = [ticket for ticket in tickets if ticket._error is None and None in ticket._local]
        if wanted:
            link = self._connected()
            for id, ticket in zip(link.next_ids(len(wanted)), wanted, strict=True):
                remote = [f for f, path in zip(ticket._files, ticket._local, strict=True) if path is None]
                ticket._link, ticket._pending = link, Pending(p.Get(id, remote))
            link.ask([ticket._pending for ticket in wanted if ticket._pending])
        return tickets

    def want(self, tickets: Sequence[Ticket]) -> None:
        """Says that all of these are needed at once: if there is no room for them, the error says how much would do."""
        link = self.current_link()
        if link is not None:
            link.want([ticket._pending for ticket in tickets if ticket._pending is not None])

    def read(self, url: str, start: int | None = None, stop: int | None = None) -> bytes:
        """The bytes of an object, or of the range [start, stop), past the cache."""
        if (start is None) != (stop is None):
            hint = "give start and stop, or neither for the whole object"
            raise FetchError("a range needs both its ends", hint=hint, url=redact(url))
        if not is_remote(url):
            with _opened(url) as file:
                file.seek(start or 0)
                return file.read() if stop is None else file.read(stop - (start or 0))
        if start is None or stop is None:
            return self.read_ranges(url, None)[0]
        return self.read_ranges(url, [(start, stop)])[0]

    def read_ranges(self, url: str, ranges: list[tuple[int, int]] | None) -> list[bytes]:
        """The bytes of several ranges of a remote object, in one request to the server."""
        parts: list[bytes] = self._call(lambda id: p.Read(id, url, ranges), url).parts
        self.tally.count("requests")
        num_bytes = sum(map(len, parts))
        self.tally.count("bytes_downloaded", num_bytes)
        self.tally.add_traffic(_store_of(root_of(url)), 1, num_bytes)
        return parts

    def pay(self, files: Sequence[p.File], trips: Sequence[p.Trip]) -> None:
        """Counts what stores were asked for on behalf of this client."""
        for slot, requests, num_bytes, began_at, seconds, storage_class in trips:
            url = files[slot].url
            self.tally.add_traffic(_store_of(root_of(url)), requests, num_bytes, storage_class)
            self.tally.add_download(url, began_at, seconds, num_bytes)

    def note_depth(self, link: Link) -> None:
        """Now and then: how many requests were answered before anybody took their files."""
        self._num_taken += 1
        if self._num_taken % _DEPTH_EVERY == 1:
            self.tally.add_depth("files", link.num_ready)

    def head(self, url: str) -> ObjectInfo:
        """Size and version of an object."""
        if not is_remote(url):
            with _opened(url) as file:
                facts = os.fstat(file.fileno())
            return ObjectInfo(url, facts.st_size, f"{facts.st_size}-{facts.st_mtime_ns}")
        found: ObjectInfo = self._call(lambda id: p.Head(id, url), url).objects[0]
        return found

    def list(self, url: str) -> list[ObjectInfo]:
        """Everything below a remote folder, in byte order of the keys."""
        found: list[ObjectInfo] = self._call(lambda id: p.List(id, url), url).objects
        return found

    def put(self, url: str, data: bytes) -> None:
        """Writes a remote object, whole."""
        self._call(lambda id: p.Put(id, url, data), url)

    def download(self, url: str, path: str | os.PathLike[str]) -> ObjectInfo:
        """Writes a whole object to a path of the caller's, past the cache; the path appears when it is complete."""
        info = self.head(url)
        target = Path(path)
        part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        try:
            with open(part, "wb") as file:
                if info.size <= _PART:
                    file.write(self.read(url))
                else:
                    for start in range(0, info.size, _PART):
                        file.write(self.read(url, start, min(start + _PART, info.size)))
                num_bytes = file.tell()
            if info.size > _PART and self.head(url).version != info.version:
                hint = "somebody writes to it: try again when it is complete"
                raise IntegrityError(f"object changed while it was read: {redact(url)}", hint=hint, url=redact(url))
            if num_bytes != info.size:
                hint = "it changed while it was read, or the store cut it short: try again"
                raise IntegrityError(f"object has {num_bytes} bytes, not {info.size}: {redact(url)}", hint=hint)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
        return info

    def close(self) -> None:
        """Ends the connection and every lease; the client can be used again."""
        with self._lock:
            self._drop_link()

    def _drop_link(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._link = self._finalizer = None

    def current_link(self) -> Link | None:
        """The live connection of this process, if there is one."""
        return self._link

    def _call(self, request: Callable[[int], Any], url: str) -> Any:
        link = self._connected()
        pending = Pending(request(link.next_ids(1)[0]))
        link.ask([pending])
        try:
            link.wait(pending, subject=redact(url), patience_s=max(600.0, 10 * self.options.timeout_s))
            return pending.reply
        finally:
            link.release(pending)

    def _connected(self) -> Link:
        with self._lock:
            if self._link is not None and self._link.is_broken:
                self._drop_link()
            if self._link is None:
                self._link = Link(self.options, self.consumer)
                self._finalizer = weakref.finalize(self, Link.close, self._link)
            return self._link

    def __getstate__(self) -> p.FetchOptions:
        return self.options

    def __setstate__(self, options: p.FetchOptions) -> None:
        self.__init__(options)  # type: ignore[misc]  # a client is its options


@lru_cache(maxsize=1024)
def _store_of(root: str) -> str:
    """A bucket or host without a password in it."""
    return redact(root)


def _place(url: str) -> str | None:
    """Where a file is, if it is local; None if it must be fetched."""
    if not is_remote(url):
        return local_path(url)
    try:
        url.encode()
    except UnicodeEncodeError:
        hint = "the index holds text that is no Unicode; which encoding was it read with?"
        raise FetchError(f"URL is not text: {redact(url)!a}", hint=hint) from None
    return None


def _widened(file: p.File, path: str) -> p.File:
    """What to ask for, now that a part of an object is here: that part, or the whole if it is small."""
    origin = None if file.span is None or not file.whole_up_to else origin_of(path)
    return file if origin is None or origin.size > file.whole_up_to else p.File(file.url, file.version)


def _opened(url: str) -> BinaryIO:
    try:
        return open(local_path(url), "rb")
    except FileNotFoundError:
        raise ObjectNotFound(f"file not found: {url}", hint="check the path", url=url) from None


_clients: weakref.WeakSet[FetchClient] = weakref.WeakSet()
_registered = False


def _forget_after_fork(client: FetchClient) -> None:
    global _registered
    _clients.add(client)
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    """A forked child has the parent's descriptors but not its threads: it starts without a connection."""
    for client in list(_clients):
        client._link, client._lock = None, threading.Lock()
        if client._finalizer is not None:
            client._finalizer.detach()
            client._finalizer = None
    abandon_all()
