"""Session: one client's connection to the fetch server. Requests in, replies out, leases held.

A lease lives as long as the connection that asked for it, so the kernel releases what a killed client held. Replies
wait in an outbox and are sent outside the server's lock, by whichever thread comes by, without blocking: what a client
does not take at once is left to a thread of its own, so a client that does not read stops nobody else.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from sds.errors import CacheError, FetchError, SdsError
from sds.fetch import protocol as p
from sds.fetch.cache import Entry, key_of
from sds.fetch.flights import Flight
from sds.storage import Store, StoreOptions
from sds.storage.listing import list_below
from sds.types import ObjectInfo
from sds.urls import redact, split

if TYPE_CHECKING:
    from sds.fetch.server import Server

__all__ = ["Session", "Ticket"]

_MAX_READ = p.MAX_FRAME - 2**20


class Ticket:
    """One Get of one session: which of its files are here, and what they took."""

    def __init__(self, session: Session, id: int, num_files: int) -> None:
        self.session = session
        self.id = id
        self.entries: list[Entry | None] = [None] * num_files
        self.flights: list[Flight] = []
        self.num_missing = num_files
        self.num_bytes = 0  # what it keeps in the cache, or will
        self.counts: dict[str, int] = {}
        self.error: SdsError | None = None
        self.wanted_since: float | None = None  # when the client said that somebody waits for it

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
        self._sending = threading.Lock()  # held by whoever sends; may change hands to a thread that finishes a frame
        self._outbox: deque[p.Reply] = deque()
        self._is_welcome = False
        self.options = p.FetchOptions(dst="")
        self.store_options = StoreOptions()
        self.tickets: dict[int, Ticket] = {}
        self._num_bytes = 0  # what its tickets keep in the cache
        self._deferred: dict[int, p.Get] = {}  # asked for, and put off until something is released
        self._is_beginning = False

    def run(self) -> None:
        """Serves the client until it hangs up."""
        try:
            while (requests := self._wire.receive_requests()) is not None and self._handle(requests):
                pass
        finally:
            self._server.forget(self)
            self._server.flush()  # room came free: others may have been told
            self._wire.hang_up()
            with self._sending:  # a descriptor that somebody sends to must not be closed under them
                self._wire.close()

    def _handle(self, requests: list[p.Request]) -> bool:
        """Does what was asked; False if that makes no sense, and the client is not worth talking to."""
        with self._server.lock:
            for request in requests:
                if isinstance(request, p.Hello):
                    self._hello(request)
                elif not self._is_welcome:
                    return False
                elif isinstance(request, p.Get):
                    self._get(request)
                elif isinstance(request, p.Release):
                    self._release(request.ids)
                elif isinstance(request, p.Want):
                    self._want(request.id)
                else:
                    self._server.errands.submit(self._errand, request)
        self._server.flush()
        return True

    def post(self, message: p.Reply) -> None:
        """Leaves a message for the client; `Server.flush` sends it."""
        self._outbox.append(message)
        self._server.unsent.append(self)

    def flush(self) -> None:
        """Sends what was posted, outside the lock; if another thread is sending, it takes these along."""
        # whoever posts does so before looking at `_sending`, whoever sends looks at the outbox after letting go of it
        while self._outbox and self._sending.acquire(blocking=False):
            rest = memoryview(b"")
            try:
                rest = self._wire.send_now(_frame(_taken(self._outbox)))
            except OSError:  # a client that is gone is noticed by the reading thread
                self._outbox.clear()
            finally:
                if rest:
                    threading.Thread(target=self._send_rest, args=(rest,), name="sender", daemon=True).start()
                else:
                    self._sending.release()

    def _send_rest(self, rest: memoryview) -> None:
        """Finishes a frame for a client that reads slowly, however long it takes."""
        try:
            self._wire.send(rest)
        except OSError:
            self._outbox.clear()
        finally:
            self._sending.release()
        self.flush()

    def answer(self, ticket: Ticket) -> None:
        """A ticket is complete. Under the server's lock."""
        self.post(ticket.reply())
        if ticket.error is not None:
            self._release([ticket.id])
        else:
            self._count(ticket, sum(entry.size for entry in ticket.entries if entry))
            if self._deferred:
                self.begin_deferred()

    def _count(self, ticket: Ticket, num_bytes: int) -> None:
        self._num_bytes += num_bytes - ticket.num_bytes
        ticket.num_bytes = num_bytes

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
        self._is_welcome = True
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
        if request.id in self.tickets or request.id in self._deferred:
            self._release([request.id])  # it is asked for anew
        if self._deferred or not self._has_room(request):
            self._deferred[request.id] = request
            self.post(p.Later(request.id))
        else:
            self._begin(request)

    def _want(self, id: int) -> None:
        if id in self._deferred:
            self._begin(self._deferred.pop(id))
        ticket = self.tickets.get(id)
        if ticket is not None and ticket.wanted_since is None:
            ticket.wanted_since = time.monotonic()

    @property
    def holds_files(self) -> bool:
        """Whether it has been given files that it has not let go of: what it waits for may come free by itself."""
        return any(not ticket.num_missing and any(ticket.entries) for ticket in self.tickets.values())

    def _has_room(self, request: p.Get) -> bool:
        """Whether a request fits into this client's share of the cache, by the size that objects usually have.

        Without shares, files that one client only prefetched would keep out those that another one needs now.
        """
        share = self._server.share
        if share is None or not self.tickets:
            return True
        return self._num_bytes + len(request.files) * self._server.flights.usual_size <= share

    def begin_deferred(self) -> None:
        """Begins what was put off, as far as there is room now. Under the server's lock."""
        if self._is_beginning:  # a file that was there is an answer at once, which comes here again
            return
        self._is_beginning = True
        while self._deferred:
            id, request = next(iter(self._deferred.items()))
            if not self._has_room(request):
                break
            del self._deferred[id]
            self._begin(request)
        self._is_beginning = False

    def _begin(self, request: p.Get) -> None:
        server = self._server
        ticket = self.tickets[request.id] = Ticket(self, request.id, len(request.files))
        self._count(ticket, len(request.files) * server.flights.usual_size)
        for slot, (url, version) in enumerate(request.files):
            try:
                key = key_of(url, version, self.store_options.endpoint(split(url).scheme))
            except SdsError as error:
                ticket.failed(slot, error, {})
                continue
            if server.cache.find(key) is not None:
                ticket.landed(slot, server.cache.lease(key), {"hits": 1})
            else:
                ticket.flights.append(server.flights.join(key, url, version, self.store_options, ticket, slot))
        if not request.files:
            self.answer(ticket)

    def _release(self, ids: list[int]) -> None:
        for id in ids:
            self._deferred.pop(id, None)
            ticket = self.tickets.pop(id, None)
            if ticket is None:
                continue
            self._count(ticket, 0)
            if ticket.num_missing:
                for flight in ticket.flights:
                    self._server.flights.leave(flight, ticket)
            for entry in ticket.entries:
                if entry is not None:
                    self._server.cache.release(entry)
        self._server.flights.admit()
        self.begin_deferred()

    def release_all(self) -> None:
        """The client is gone: so are its leases. Under the server's lock."""
        self._deferred.clear()
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
            url, hint = redact(request.url), "a defect of sds, not of your data: please report it"
            message = f"request failed: {url}: {type(error).__name__}"
            reply = p.Failed.of(request.id, FetchError(message, hint=hint, url=url))
        self.post(reply)
        self._server.flush()


def _taken(outbox: deque[p.Reply]) -> list[p.Reply]:
    """What goes into the next frame: all there is, but of the large messages only one."""
    messages: list[p.Reply] = []
    while outbox:  # only the thread that sends takes out
        messages.append(outbox.popleft())
        if isinstance(messages[-1], p.Parts | p.Listing):
            break
    return messages


def _frame(messages: list[p.Reply]) -> bytes:
    """The messages as one frame; what cannot be said, or is too large, is replaced by an error that tells so."""
    try:
        return p.encode(messages)
    except FetchError:
        return p.encode([_sayable(message) for message in messages])


def _sayable(message: p.Reply) -> p.Reply:
    try:
        p.encode([message])
    except FetchError as error:
        if not isinstance(message, p.Welcome | p.Trim):
            hint = "read in smaller ranges, or list a folder further down"
            return p.Failed.of(message.id, FetchError(error.message, hint=hint))
    return message


def _reader(request: p.Read) -> Callable[[Store, str], list[bytes]]:
    def read(store: Store, key: str) -> list[bytes]:
        if request.ranges is None:
            body = store.open(key)
            if body.size is not None and body.size > _MAX_READ:
                raise FetchError(f"object is too large to be read whole: {body.size} bytes", hint="read it in ranges")
            return [b"".join(bytes(chunk) for chunk in body.chunks)]
        return [bytes(part) for part in store.read(key, request.ranges)]

    return read
