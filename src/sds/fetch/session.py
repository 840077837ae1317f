"""Session: one client's connection to the fetch server. Requests in, replies out, leases held.

A lease lives as long as the connection that asked for it, so the kernel releases what a killed client held. Replies
wait in an outbox and are sent outside the server's lock, by one thread at a time: a client that does not read stops
nobody else.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from sds.errors import CacheError, FetchError, SdsError
from sds.fetch import protocol as p
from sds.fetch.cache import Entry, key_of
from sds.storage import Store, StoreOptions
from sds.storage.listing import list_below
from sds.types import ObjectInfo
from sds.urls import redact, split

if TYPE_CHECKING:
    from sds.fetch.server import Server

__all__ = ["Session", "Ticket"]


class Ticket:
    """One Get of one session: which of its files are here, and what they took."""

    def __init__(self, session: Session, id: int, num_files: int) -> None:
        self.session = session
        self.id = id
        self.entries: list[Entry | None] = [None] * num_files
        self.num_missing = num_files
        self.counts: dict[str, int] = {}
        self.error: SdsError | None = None

    def landed(self, slot: int, entry: Entry, counts: dict[str, int]) -> None:
        """A file is here, and leased."""
        self.entries[slot] = entry
        self._one_less(counts)

    def failed(self, slot: int, error: SdsError, counts: dict[str, int]) -> None:  # noqa: ARG002 (a Waiter's signature)
        """A file cannot be had, so neither can the others of this Get."""
        self.error = self.error or error
        self._one_less(counts)

    def _one_less(self, counts: dict[str, int]) -> None:
        for name, number in counts.items():
            self.counts[name] = self.counts.get(name, 0) + number
        self.num_missing -= 1
        if not self.num_missing:
            self.session.answer(self)

    def reply(self) -> p.Got | p.Failed:
        """What the client is told."""
        if self.error is not None:
            return p.Failed.of(self.id, self.error)
        return p.Got(self.id, [entry.path for entry in self.entries if entry], self.counts)


class Session:
    """One client's connection."""

    def __init__(self, server: Server, wire: p.Wire) -> None:
        self._server = server
        self._wire = wire
        self._sending = threading.Lock()
        self._outbox: list[p.Reply] = []
        self.options = p.FetchOptions(dst="")
        self.store_options = StoreOptions()
        self.tickets: dict[int, Ticket] = {}

    def run(self) -> None:
        """Serves the client until it hangs up."""
        try:
            while (requests := self._wire.receive_requests()) is not None:
                self._handle(requests)
        finally:
            self._server.forget(self)
            self._wire.close()

    def _handle(self, requests: list[p.Request]) -> None:
        with self._server.lock:
            for request in requests:
                if isinstance(request, p.Get):
                    self._get(request)
                elif isinstance(request, p.Release):
                    self._release(request.ids)
                elif isinstance(request, p.Hello):
                    self._hello(request)
                else:
                    self._server.errands.submit(self._errand, request)
        self._server.flush()

    def post(self, message: p.Reply) -> None:
        """Leaves a message for the client; `Server.flush` sends it. Under the server's lock."""
        self._outbox.append(message)
        self._server.unsent.add(self)

    def flush(self) -> None:
        """Sends what was posted, outside the lock; if another thread is sending, it takes these along."""
        while self._outbox and self._sending.acquire(blocking=False):
            try:
                with self._server.lock:
                    messages, self._outbox = self._outbox, []
                if messages:
                    with contextlib.suppress(OSError):  # a client that is gone is noticed by the reading thread
                        self._wire.send(messages)
            finally:
                self._sending.release()

    def answer(self, ticket: Ticket) -> None:
        """A ticket is complete. Under the server's lock."""
        if ticket.error is not None:
            self._release([ticket.id])
        self.post(ticket.reply())

    def _hello(self, hello: p.Hello) -> None:
        if hello.version != p.VERSION:
            self.post(
                p.Failed.of(
                    0,
                    CacheError(
                        f"fetch server speaks another version: {p.VERSION}, client {hello.version}",
                        hint="another release of sds uses this folder right now: choose another `dst`",
                    ),
                )
            )
            return
        self.options = hello.options
        self.store_options = self._server.flights.stores.intern(
            StoreOptions(
                settings=hello.options.settings,
                environment=hello.environment,
                timeout_s=hello.options.timeout_s,
                num_retries=hello.options.num_retries,
            )
        )
        self.post(p.Welcome(os.getpid(), self._server.welcome(self)))

    def _get(self, request: p.Get) -> None:
        server = self._server
        ticket = self.tickets[request.id] = Ticket(self, request.id, len(request.files))
        for slot, (url, version) in enumerate(request.files):
            try:
                key = key_of(url, version, self.store_options.endpoint(split(url).scheme))
            except SdsError as error:
                ticket.failed(slot, error, {})
                continue
            if server.cache.find(key) is not None:
                ticket.landed(slot, server.cache.lease(key), {"hits": 1})
            else:
                server.flights.join(key, url, self.store_options, ticket, slot)

    def _release(self, ids: list[int]) -> None:
        for id in ids:
            ticket = self.tickets.pop(id, None)
            if ticket is None:
                continue
            if ticket.num_missing:
                self._server.flights.leave(ticket)
            for entry in ticket.entries:
                if entry is not None:
                    self._server.cache.release(entry)
        self._server.flights.admit()

    def release_all(self) -> None:
        """The client is gone: so are its leases. Under the server's lock."""
        self._release(list(self.tickets))

    def _errand(self, request: p.Read | p.Head | p.List | p.Put) -> None:
        """Reads, heads, lists and puts go past the cache, on threads of their own."""
        stores, options = self._server.flights.stores, self.store_options
        try:
            if isinstance(request, p.Read):
                reply: p.Reply = p.Parts(request.id, stores.call(request.url, options, _reader(request)))
            elif isinstance(request, p.Head):
                info = stores.call(request.url, options, lambda store, key: store.head(key))
                reply = p.Listing(request.id, [ObjectInfo(request.url, info.size, info.version)])
            elif isinstance(request, p.List):
                reply = p.Listing(request.id, list_below(stores, request.url, options))
            else:
                stores.call(request.url, options, lambda store, key: store.put(key, request.data))
                reply = p.Done(request.id)
        except SdsError as error:
            reply = p.Failed.of(request.id, error)
        except Exception as error:  # noqa: BLE001 (a process boundary: the client gets an answer, whatever happened)
            reply = p.Failed.of(
                request.id, FetchError(f"request failed: {request.url}: {error!r}", url=redact(request.url))
            )
        with self._server.lock:
            self.post(reply)
        self._server.flush()


def _reader(request: p.Read) -> Callable[[Store, str], list[bytes]]:
    def read(store: Store, key: str) -> list[bytes]:
        if request.ranges is None:
            return [b"".join(bytes(chunk) for chunk in store.open(key).chunks)]
        return [bytes(part) for part in store.read(key, request.ranges)]

    return read
