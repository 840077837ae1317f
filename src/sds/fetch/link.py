"""Link: one process's live connection to the fetch server, and everything it has asked for and not yet let go of.

A thread of its own receives. When the server dies, that thread finds or starts another and asks again for all that is
alive: tickets that wait, and tickets whose files are in use, which thereby are held (or fetched) again under the same
names. Nobody who waits needs to know.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import Any

from sds.errors import CacheError, FetchError, FetchTimeout, SdsError
from sds.fetch import protocol as p
from sds.fetch.launch import connect
from sds.units import format_bytes

__all__ = ["Link", "Pending", "abandon_all"]

log = logging.getLogger("sds.fetch")

_HANDSHAKE_S = 30.0
_RELEASES_PER_FRAME = 16
_WARN_AFTER_S = 30.0
_RECONNECTS = 8
_SAY_AFTER_S = 0.25  # most answers come sooner, and cost no word
_MAX_MENDS = 20  # within so many seconds, and without a single answer:
_MENDS_WITHIN_S = 60.0
_CLOSED = "the dataset was closed while something still read from it: end its iterators and loaders first"


class Pending:
    """Something asked for: its request, and its reply when there is one."""

    __slots__ = ("error", "in_use", "is_deferred", "reply", "request")

    def __init__(self, request: Any) -> None:
        self.request = request
        self.reply: Any = None
        self.error: SdsError | None = None
        self.in_use = False
        self.is_deferred = False  # the server waits for room before it begins

    @property
    def is_here(self) -> bool:
        """Whether there is an answer."""
        return self.reply is not None or self.error is not None


class Link:
    """A connection that mends itself. Belongs to the process that made it; a forked child must `abandon` it.

    Two locks, in this order: `_sending`, held while a frame is sent or a connection made; `_state`, held for moments.
    """

    def __init__(self, options: p.FetchOptions) -> None:
        self._options = options
        self._state = threading.Condition()  # guards what is below; told when a reply arrives
        self._live: dict[int, Pending] = {}
        self._awaited: set[int] = set()  # replies that somebody waits for; others wake nobody
        self._released: list[int] = []
        self._last_id = 0
        self._closed = False
        self._broken: SdsError | None = None
        self._mended_at: list[float] = []  # since the last answer
        self._sending = threading.Lock()
        self._wire: p.Wire | None = None
        _links.add(self)
        self._connect()
        self._thread = threading.Thread(target=self._receive, name="sds-fetch", daemon=True)
        self._thread.start()

    @property
    def is_broken(self) -> bool:
        """Whether it is of no use any more: closed, or without a server and unable to start one."""
        return self._closed or self._broken is not None

    def next_ids(self, number: int) -> range:
        """Ids for new requests; later requests have larger ids."""
        with self._state:
            self._last_id += number
            return range(self._last_id - number + 1, self._last_id + 1)

    def ask(self, pendings: list[Pending]) -> None:
        """Sends requests; their replies will arrive in them."""
        requests = [pending.request for pending in pendings]
        frame = p.encode(requests)
        # `_sending` spans both steps: a connection that is mended in between would ask a second time
        with self._sending:
            with self._state:
                self._check_usable()
                for pending in pendings:
                    self._live[pending.request.id] = pending
                messages = self._unsent_releases()
            if messages:
                self._send(p.encode(messages))
            self._send(frame)

    def wait(self, pending: Pending, *, subject: str, patience_s: float) -> None:
        """Returns when there is an answer, and marks it as in use; raises its error, or FetchTimeout."""
        id = pending.request.id
        with self._state:
            is_here, is_deferred = pending.is_here, pending.is_deferred
            # from here on, `_take` sends the Want if it learns that it was put off, and `_trim` leaves it alone
            self._awaited.add(id)
        try:
            if not is_here:
                # what was let go of may be the room that this one waits for
                self._send_news([p.Want(id)] if is_deferred else [])
                with self._state:
                    is_here = self._state.wait_for(lambda: pending.is_here, _SAY_AFTER_S)
                if not is_here:
                    self._send_news([p.Want(id)])  # only who says so is told when there is no room
            with self._state:
                self._wait_for(pending, subject, patience_s)
                if pending.error is not None:
                    self._live.pop(id, None)
                    raise pending.error
                pending.in_use = True
        finally:
            with self._state:
                self._awaited.discard(id)

    def _wait_for(self, pending: Pending, subject: str, patience_s: float) -> None:
        limit = "" if self._options.limit is None else f" (cache_limit is {format_bytes(self._options.limit)})"
        start = time.monotonic()
        warn_at = start + _WARN_AFTER_S
        while not pending.is_here:
            now = time.monotonic()
            if now - start > patience_s:
                hint = "is the store reachable, and `timeout` long enough?"
                raise FetchTimeout(f"no answer in {patience_s:.0f} s: {subject}", hint=hint, url=subject)
            if now > warn_at:
                warn_at = now + _WARN_AFTER_S
                log.warning("waited %.0f s for %s%s", now - start, subject, limit)
            self._state.wait(min(1.0, patience_s))

    def release(self, pending: Pending) -> None:
        """Lets go of what a request got, or of the request itself. One frame tells the server of many."""
        with self._state:
            if self._live.pop(pending.request.id, None) is None or self._closed:
                return
            if not pending.is_here:  # whoever still waits for it is told
                hint = "an iterator was closed while another thread waited for its sample"
                pending.error = FetchError("request was let go of before its answer came", hint=hint)
                self._state.notify_all()
            self._released.append(pending.request.id)
            is_time = len(self._released) >= _RELEASES_PER_FRAME or not self._live
        if is_time and not self._sending.locked():  # whoever is sending need not be waited for: there is a next frame
            self._send_news([])

    def close(self) -> None:
        """Ends the connection, and with it every lease. Whoever waits is told."""
        if self._closed:  # also in a forked child, where the locks may be held by threads that are not there
            return
        with self._state:
            self._closed = True
            self._fail_all(FetchError("client was closed", hint=_CLOSED))
            wire = self._wire
        if wire is not None:
            wire.hang_up()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)

    def abandon(self) -> None:
        """In a forked child: closes the inherited descriptor, so that the parent alone keeps its leases alive."""
        self._closed = True
        self._state, self._sending = threading.Condition(), threading.Lock()
        self._live = {}
        if self._wire is not None:
            self._wire.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise FetchError("client was closed", hint=_CLOSED)
        if self._broken is not None:
            raise _copy(self._broken)

    def _fail_all(self, error: SdsError) -> None:
        """Everybody who waits gets the error, each a copy of their own. Under `_state`."""
        for pending in self._live.values():
            if not pending.is_here:
                pending.error = _copy(error)
        self._live.clear()
        self._state.notify_all()

    def _unsent_releases(self) -> list[p.Request]:
        ids, self._released = self._released, []
        return [p.Release(ids)] if ids else []

    def _send_news(self, messages: list[p.Request]) -> None:
        """Sends what was let go of, and these messages."""
        with self._sending:
            with self._state:
                messages = self._unsent_releases() + messages
            if messages:
                self._send(p.encode(messages))

    def _send(self, frame: bytes) -> None:
        """Sends a frame. Under `_sending`."""
        assert self._wire is not None
        try:
            self._wire.send(frame)
        except OSError:
            pass  # the server died: the receiving thread notices, and asks again for all that is alive

    def _connect(self) -> None:
        environment = {k: v for k, v in os.environ.items() if k.startswith(("AWS_", "GOOGLE_", "AZURE_"))}
        hello = p.encode([p.Hello(p.VERSION, self._options, environment)])
        for _ in range(_RECONNECTS):
            connection = connect(self._options.dst)
            # known at once, or a child that is forked now would keep the connection open without knowing of it
            wire = self._wire = p.Wire(connection)
            try:
                connection.settimeout(_HANDSHAKE_S)
                wire.send(hello)
                replies = wire.receive_replies()
                connection.settimeout(None)
            except OSError:
                replies = None
            if replies is None:  # it was just about to end: the next one will stay
                wire.close()
                continue
            for reply in replies:
                if isinstance(reply, p.Failed):
                    wire.close()
                    raise reply.error()
                self._note(reply)
            return
        hint = "look for what kills processes on this machine (memory limits?)"
        raise CacheError(f"fetch server hangs up on every client: {self._options.dst}", hint=hint)

    def _note(self, reply: p.Reply) -> None:
        if isinstance(reply, p.Welcome) and reply.warning:
            log.warning("%s: %s", self._options.dst, reply.warning)

    def _receive(self) -> None:
        while True:
            assert self._wire is not None
            replies = self._wire.receive_replies()
            if replies is not None:
                self._take(replies)
            elif not self._mend():
                return

    def _mend(self) -> bool:
        """Connects anew and asks again for all that is alive, in the order of first asking; False: it is over."""
        with self._sending:
            assert self._wire is not None
            self._wire.close()
            if self._closed:
                return False
            log.info("fetch server of %s is gone: connecting anew", self._options.dst)
            try:
                self._check_progress()
                self._connect()
            except Exception as error:  # noqa: BLE001 (a thread boundary: whoever waits must be told)
                hint = "the fetch server ended and cannot be started again"
                ours = error if isinstance(error, SdsError) else CacheError(f"no fetch server: {error!r}", hint=hint)
                with self._state:
                    self._broken = ours
                    self._fail_all(ours)
                return False
            with self._state:
                if self._closed:  # meanwhile
                    self._wire.close()
                    return False
                self._released.clear()
                requests = self._all_again()
            if requests:
                self._send(p.encode(requests))
            return True

    def _check_progress(self) -> None:
        """A server that dies of what it is asked for would be started again for ever."""
        now = time.monotonic()
        self._mended_at = [*(at for at in self._mended_at if now - at < _MENDS_WITHIN_S), now]
        if len(self._mended_at) > _MAX_MENDS:
            hint = "its log is in the cache folder (.server.log); is something killing it?"
            raise CacheError(f"fetch server ends again and again: {self._options.dst}", hint=hint)

    def _all_again(self) -> list[p.Request]:
        """What to ask a new server for: first what is in use, at any price, then the rest, in the order of asking."""
        urgent: list[p.Request] = []
        others: list[p.Request] = []
        for id, pending in sorted(self._live.items()):
            if pending.error is not None:
                continue
            if pending.in_use:
                urgent += [pending.request, p.Want(id)]
            else:
                pending.reply, pending.is_deferred = None, False  # what the dead server said holds no more
                others += [pending.request, *([p.Want(id)] if id in self._awaited else [])]
        return urgent + others

    def _take(self, replies: list[p.Reply]) -> None:
        trim = wake = False
        wanted: list[p.Request] = []
        with self._state:
            for reply in replies:
                if isinstance(reply, p.Trim | p.Welcome):
                    trim = trim or isinstance(reply, p.Trim)
                    self._note(reply)
                    continue
                self._mended_at.clear()
                pending = self._live.get(reply.id)
                if isinstance(reply, p.Later):
                    if pending is not None:
                        pending.is_deferred = True
                        wanted += [p.Want(reply.id)] if reply.id in self._awaited else []
                    continue
                if pending is None:
                    if isinstance(reply, p.Got):
                        self._released.append(reply.id)  # nobody wants it any more: the server shall know
                    continue
                if pending.in_use:
                    continue  # held again after a server died
                if isinstance(reply, p.Failed):
                    pending.error = reply.error()
                else:
                    pending.reply = reply
                wake = wake or reply.id in self._awaited
            if wake:
                self._state.notify_all()
        if wanted or any(isinstance(reply, p.Welcome) for reply in replies):  # the limit was lowered: hold nothing back
            self._send_news(wanted)
        if trim:
            self._trim()

    def _trim(self) -> None:
        """Gives back what was prefetched and nobody uses or waits for, and asks for it again, behind the others."""
        with self._sending:
            with self._state:
                messages = self._unsent_releases()
                spare = [
                    pending
                    for id, pending in sorted(self._live.items())
                    if isinstance(pending.reply, p.Got) and not pending.in_use and id not in self._awaited
                ]
                for pending in spare:
                    pending.reply = None
            if spare:
                messages.append(p.Release([pending.request.id for pending in spare]))
                messages += [pending.request for pending in spare]
            if messages:
                self._send(p.encode(messages))


def _copy(error: SdsError) -> SdsError:
    """An error of one's own: whoever handles it writes into it."""
    return type(error)(error.message, **error.facts)


_links: weakref.WeakSet[Link] = weakref.WeakSet()


def abandon_all() -> None:
    """In a forked child: it has the parent's descriptors, but not its threads."""
    for link in list(_links):
        link.abandon()
    _links.clear()
