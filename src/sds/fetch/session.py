"""Session: one client's connection to the fetch server. Requests in, replies out, leases held.

A lease lives as long as the connection that asked for it, so the kernel releases what a killed client held. Replies
go into an outbox under the server's lock, and are sent outside it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from sds.errors import CacheError, SdsError
from sds.fetch import protocol as p
from sds.fetch.cache import Entry, key_of
from sds.fetch.errands import run_errand
from sds.fetch.flight import Flight
from sds.fetch.outbox import Outbox
from sds.fetch.reports import describe
from sds.fetch.ticket import Ticket
from sds.storage import StoreOptions
from sds.urls import root_of, split

if TYPE_CHECKING:
    from sds.fetch.server import Server

__all__ = ["Session"]

_MAX_CHANGES = 3  # how often an object may change between the question for its version and its download
_PREFETCHED = 8  # the part of a client's share that holds what nobody waits for yet is one in so many,
_NUM_PREFETCHED = 16  # or so many objects of usual size, if that is more
_MAX_ROOTS = 1000  # whose endpoints are remembered: an index may name millions of hosts


class Session:
    """One client's connection."""

    def __init__(self, server: Server, wire: p.Wire) -> None:
        self._server = server
        self._wire = wire
        self._outbox = Outbox(wire)
        self._is_welcome = False
        self.options = p.FetchOptions(dst="")
        self.store_options = StoreOptions()
        self._endpoints: dict[str, str | None] = {}  # by bucket or host
        self.tickets: dict[int, Ticket] = {}
        self._num_bytes = 0  # what its tickets keep in the cache
        self._num_bytes_ahead = 0  # of them, what nobody uses or waits for yet
        self._deferred: dict[int, p.Get] = {}  # asked for, and put off until something is released
        self._is_beginning = False
        self.is_paused = False  # whoever takes its batches does something else: what it holds comes free later
        self.answered_at = 0.0  # when it said so, or the contrary
        self.stuck_since: float | None = None  # since when it says that what it holds does not come free by itself
        self.in_use: list[int] = []  # the ids of what it holds then
        self._waits_until = 0.0  # up to when its waits for room have been counted

    def run(self) -> None:
        """Serves the client until it hangs up."""
        try:
            while (requests := self._wire.receive_requests()) is not None and self._handle(requests):
                pass
        finally:
            self._server.forget(self)
            self._server.flush()  # room came free: others may have been told
            self._outbox.close()

    def _handle(self, requests: list[p.Request]) -> bool:
        """Does what was asked; False if that makes no sense, and the client is not worth talking to."""
        is_answer = any(isinstance(request, p.Pause) for request in requests)
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
                    if not is_answer:  # it goes on; what is only given back for a while is no sign of that
                        self.stuck_since = None
                elif isinstance(request, p.Want):
                    self._want(request.id)
                elif isinstance(request, p.Pause):
                    self._answered(request)
                elif isinstance(request, p.Ask):
                    self.post(p.Told(request.id, self._describe(request.id)))
                else:
                    self._server.errands.submit(self._errand, request)
        self._server.flush()
        return True

    def post(self, message: p.Reply) -> None:
        """Leaves a message for the client; `Server.flush` sends it."""
        self._outbox.add(message)
        self._server.unsent.append(self)

    def flush(self) -> None:
        """Sends what was posted. Not under the lock."""
        self._outbox.flush()

    def answer(self, ticket: Ticket) -> None:
        """A ticket is complete. Under the server's lock."""
        self.post(ticket.reply())
        if ticket.error is not None:
            self._release([ticket.id])
        else:
            self._count(ticket, sum(entry.size for entry in ticket.entries if entry))
            self._server.seek_lent()
            if self._deferred:
                self.begin_deferred()

    def add_waits(self, flights: list[Flight]) -> float:
        """Seconds in which flights waited for room and none that was counted before did: hundreds wait side by side."""
        waited_s = 0.0
        for flight in sorted(flights, key=lambda each: each.left_at):
            since = max(self._waits_until, flight.waits_since or 0.0)
            waited_s += max(0.0, min(flight.waited_s, flight.left_at - since))
            self._waits_until = max(self._waits_until, flight.left_at)
        return waited_s

    def _count(self, ticket: Ticket, num_bytes: int) -> None:
        more = num_bytes - ticket.num_bytes
        ticket.num_bytes = num_bytes
        self._num_bytes += more
        if not ticket.is_taken:
            self._num_bytes_ahead += more

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
        self._endpoints.clear()
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
        for ticket in self.tickets.values():  # tickets are taken in the order of their numbers
            if ticket.id < id and not ticket.is_taken:
                ticket.is_taken = True
                self._num_bytes_ahead -= ticket.num_bytes
        if id in self._deferred:
            self._begin(self._deferred.pop(id))
        wanted = self.tickets.get(id)
        if wanted is not None and wanted.wanted_since is None:
            wanted.wanted_since = time.monotonic()
            for flight in wanted.flights:
                self._server.flights.hurry(flight)
        self.begin_deferred()

    def _answered(self, pause: p.Pause) -> None:
        self.is_paused, self.answered_at = pause.is_paused, time.monotonic()
        self.stuck_since = (self.stuck_since or self.answered_at) if pause.is_stuck else None
        self.in_use = pause.in_use

    @property
    def is_gone(self) -> bool:
        """Whether the client has hung up, which its thread may be about to notice."""
        return self._wire.is_hung_up

    def is_stuck(self, since: float, asked_at: float) -> bool:
        """Whether nothing that it has in the cache comes free by itself: it says so since then, and when last asked.

        Whoever waits for more in it must wait for room: what is on its way may come, and be let go of.
        """
        waiting = [t for t in self.tickets.values() if t.num_missing and t.wanted_since is not None]
        if not all(any(flight.is_parked for flight in ticket.flights) for ticket in waiting):
            return False
        if not any(any(ticket.entries) for ticket in self.tickets.values()):
            return True
        return self.stuck_since is not None and self.stuck_since <= since and self.answered_at >= asked_at

    @property
    def holds_files(self) -> bool:
        """Whether it has been given files that it has not let go of: what it waits for may come free by itself."""
        return any(not ticket.num_missing and any(ticket.entries) for ticket in self.tickets.values())

    def _has_room(self, request: p.Get) -> bool:
        """Whether a request fits into this client's share of the cache, by the size that objects usually have.

        Without shares, files that one client only prefetched would keep out those that another one needs now. And what
        is prefetched puts out what a later part of the epoch would have found: most of a share is left to that.
        """
        share, ahead, usual = self._server.share, self.options.ahead_bytes, self._server.flights.usual_size
        if (share is None and ahead is None) or not self.tickets:
            return True
        more = len(request.files) * usual
        if ahead is not None and self._num_bytes + more > ahead:
            return False
        if share is None:
            return True
        may_prefetch = max(share // _PREFETCHED, _NUM_PREFETCHED * usual)
        return self._num_bytes + more <= share and self._num_bytes_ahead + more <= may_prefetch

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
        ticket = self.tickets[request.id] = Ticket(self, request.id, request.files)
        self._count(ticket, len(request.files) * self._server.flights.usual_size)
        for slot, file in enumerate(request.files):
            self._begin_file(ticket, slot, file)
        if not request.files:
            self.answer(ticket)

    def _begin_file(self, ticket: Ticket, slot: int, file: p.File) -> None:
        """Seeks a file; first, if the client wants that, asks which version of it there is."""
        if file.version is not None or self.options.revalidate == "never":
            self._seek(ticket, slot, file, file.version)
            return

        def found(version: str | SdsError) -> None:
            if self.tickets.get(ticket.id) is not ticket:
                return  # nobody wants it any more
            if isinstance(version, SdsError):
                ticket.failed(slot, version, {})
            else:
                self._seek(ticket, slot, file, version)

        self._server.versions.ask(self._run, file.url, self.store_options, found)

    def let_go(self, entry: Entry | None) -> None:
        """Nobody needs a file for a while. Under the server's lock."""
        if entry is not None:
            self._server.cache.release(entry)

    def seek_again(self, ticket: Ticket, slots: list[int]) -> None:
        """Seeks files that made way, behind all others. Under the server's lock."""
        for slot in slots:
            if self.tickets.get(ticket.id) is ticket:
                self._begin_file(ticket, slot, ticket.files[slot])

    def begin_again(self, ticket: Ticket, slot: int) -> bool:
        """An object changed after its version was asked for: asks anew, if it was asked for. Under the lock."""
        file = ticket.files[slot]
        ticket.num_changes += 1
        is_alive = self.tickets.get(ticket.id) is ticket
        asked = file.version is None and self.options.revalidate != "never"
        if not is_alive or not asked or ticket.num_changes > _MAX_CHANGES:
            return False
        self._server.versions.forget(self._run, file.url, self.store_options)
        self._begin_file(ticket, slot, file)
        return True

    @property
    def _run(self) -> str:
        return self.options.run if self.options.revalidate == "run" else ""

    def _seek(self, ticket: Ticket, slot: int, file: p.File, version: str | None) -> None:
        """A file that is there is leased; for one that is not, a flight begins."""
        server, url, span = self._server, file.url, file.span
        try:
            endpoint = self._endpoint(url)
        except SdsError as error:
            ticket.failed(slot, error, {})
            return
        key = key_of(url, version, endpoint)
        found = server.cache.find(key)
        if found is None and span is not None:
            key = key_of(url, version, endpoint, span)
            found = server.cache.find(key)
        if found is not None:
            ticket.landed(slot, server.cache.lease(key), {"hits": 1})
        else:
            flight = server.flights.join(key, url, version, self.store_options, ticket, slot, span)
            ticket.flights.append(flight)
            if ticket.wanted_since is not None:
                server.flights.hurry(flight)

    def _endpoint(self, url: str) -> str | None:
        """Where a URL leads; an error if it makes no sense."""
        root = root_of(url)
        if root not in self._endpoints:
            if len(self._endpoints) >= _MAX_ROOTS:
                self._endpoints.clear()
            self._endpoints[root] = self.store_options.endpoint(split(url).scheme)
        return self._endpoints[root]

    def _describe(self, id: int) -> str:
        """What is being done for a request, in words."""
        if id in self._deferred:
            return "it is put off: this client holds its share of the cache"
        ticket = self.tickets.get(id)
        return "nothing is known of it" if ticket is None else describe(ticket.flights, self._server.cache)

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
                self.let_go(entry)
        self._server.flights.admit()
        self._server.seek_lent()
        self.begin_deferred()

    def release_all(self) -> None:
        """The client is gone: so are its leases. Under the server's lock."""
        self._deferred.clear()
        self._release(list(self.tickets))

    def _errand(self, request: p.Read | p.Head | p.List | p.Put) -> None:
        """Reads, heads, lists and puts go past the cache, on threads of their own."""
        self.post(run_errand(self._server.flights.stores, self.store_options, request))
        self._server.flush()
