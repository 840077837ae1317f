"""Link: one process's live connection to the fetch server, and everything it has asked for and not yet let go of.

A thread of its own receives. When the server dies, that thread finds or starts another and asks again for all that is
alive: tickets that wait, and tickets whose files are in use, which thereby are held (or fetched) again under the same
names. Nobody who waits needs to know.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sds.errors import CacheError, FetchError, SdsError
from sds.fetch import protocol as p
from sds.fetch.consumer import Consumer
from sds.fetch.handshake import greet
from sds.fetch.pending import Pending, all_again, copy, given_back
from sds.fetch.watchdog import Watchdog

__all__ = ["Link", "Pending", "abandon_all"]

log = logging.getLogger("sds.fetch")

_RELEASES_PER_FRAME = 32
_TELL_S = 2.0
_TURN_S = 0.05  # how soon somebody who waits to send notices that it is over
_SAY_AFTER_S = 0.25  # most answers come sooner, and cost no word
_MAX_MENDS = 20  # within so many seconds, and without a single answer:
_MENDS_WITHIN_S = 60.0
_KIND_S = 2.0  # how long somebody must starve before what is held only to be kind is let go of
_ERRAND = "the store has not answered yet, or others are asked for first"
_CLOSED = "the dataset was closed while something still read from it: end its iterators and loaders first"


class Link:
    """A connection that mends itself. Belongs to the process that made it; a forked child must `abandon` it.

    Two locks, in this order: `_sending`, held while a frame is sent or a connection made; `_state`, held for moments.
    """

    def __init__(self, options: p.FetchOptions, consumer: Consumer | None = None) -> None:
        self._options = options
        self._consumer = consumer or Consumer()
        self._state = threading.Condition()  # guards what is below; told when a reply arrives
        self._live: dict[int, Pending] = {}
        self._awaited: dict[int, int] = {}  # replies that somebody waits for, and which thread; others wake nobody
        self._released: list[int] = []
        self._standstill: object = None  # what the server was told of last
        self._last_id = 0
        self._closed = False
        self._broken: SdsError | None = None
        self._mended_at: list[float] = []  # since the last answer
        self._sending = threading.Lock()
        self._wire: p.Wire | None = None
        self._is_connecting = False  # which may take long: a server is started
        self._number = next(_numbers)
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
        with self._turn():
            with self._state:
                self._check_usable()
                for pending in pendings:
                    self._live[pending.request.id] = pending
                messages = self._unsent_releases()
            self._send(p.encode(messages) + frame if messages else frame)

    def take_now(self, pending: Pending) -> bool:
        """Marks what a request got as in use, if that is here: nobody need wait for it."""
        with self._state:
            if pending.reply is None:
                return False
            pending.in_use, pending.holder = True, threading.get_ident()
            return True

    def wait(self, pending: Pending, *, subject: str, patience_s: float) -> None:
        """Returns when there is an answer, and marks it as in use; raises its error, or FetchTimeout."""
        id = pending.request.id
        with self._state:
            is_here, is_deferred = pending.is_here, pending.is_deferred
            # from here on, `_take` sends the Want if it learns that it was put off, and `_trim` leaves it alone
            self._awaited[id] = threading.get_ident()
        try:
            if not is_here:
                # what was let go of may be the room that this one waits for
                self._send_news([p.Want(id)] if is_deferred else [])
                with self._state:
                    is_here = self._state.wait_for(lambda: pending.is_here, _SAY_AFTER_S)
                if not is_here:
                    self._send_news([p.Want(id)])  # only who says so is told when there is no room
            self._wait_for(pending, subject, patience_s)
        finally:
            with self._state:
                self._awaited.pop(id, None)

    def want(self, pendings: list[Pending]) -> None:
        """Says that somebody needs all of these at once, and waits for them: for one after the other, as it happens."""
        wanted: list[p.Request] = [p.Want(pending.request.id) for pending in pendings if not pending.is_here]
        if wanted:
            self._send_news(wanted)

    def _wait_for(self, pending: Pending, subject: str, patience_s: float) -> None:
        watchdog = Watchdog(subject, self._options.timeout_s / 2, patience_s)
        is_first = False
        while True:
            with self._state:
                if self._state.wait_for(lambda: pending.is_here, min(1.0, patience_s)):
                    if pending.error is not None:
                        self._live.pop(pending.request.id, None)
                        raise pending.error
                    pending.in_use, pending.holder = True, threading.get_ident()
                    return
                is_first = min(self._awaited) == pending.request.id  # of many who wait, one says so
            if self._consumer.is_paused({threading.get_ident()}):
                watchdog.rest()  # what is waited for may be in the hands of a training loop that does something else
            elif watchdog.is_due and (is_first or watchdog.is_over):
                watchdog.bark(self._ask_what_is_done(pending))

    def _ask_what_is_done(self, pending: Pending) -> str | None:
        """What the server does for a request, in its words; None if it does not say, or if there is an answer now."""
        pending.doing = None
        self._send_news([p.Ask(pending.request.id)])
        with self._state:
            self._state.wait_for(lambda: pending.doing is not None or pending.is_here, _TELL_S)
            # of what goes past the cache, the server knows no more than that it lives itself
            return pending.doing if pending.doing is None or isinstance(pending.request, p.Get) else _ERRAND

    @property
    def num_ready(self) -> int:
        """Requests whose files are here, and that nobody has taken yet."""
        with self._state:
            return sum(pending.reply is not None and not pending.in_use for pending in self._live.values())

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
            wire, is_connecting = self._wire, self._is_connecting
        if wire is not None:
            wire.hang_up()
        # a thread that is connecting ends by itself when it has: nobody need wait for the server that it starts
        if self._thread is not threading.current_thread() and not is_connecting:
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
            raise copy(self._broken)

    def _fail_all(self, error: SdsError) -> None:
        """Everybody who waits gets the error, each a copy of their own. Under `_state`."""
        for pending in self._live.values():
            if not pending.is_here:
                pending.error = copy(error)
        self._live.clear()
        self._state.notify_all()

    def _unsent_releases(self) -> list[p.Request]:
        ids, self._released = self._released, []
        return [p.Release(ids)] if ids else []

    def _send_news(self, messages: list[p.Request]) -> None:
        """Sends what was let go of, and these messages; nothing if it is over."""
        with suppress(SdsError), self._turn():
            with self._state:
                messages = self._unsent_releases() + messages
            if messages:
                self._send(p.encode(messages))

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Holds `_sending`; an error if it is over before the connection that is being made is there."""
        while not self._sending.acquire(timeout=_TURN_S):
            with self._state:
                self._check_usable()
        try:
            yield
        finally:
            self._sending.release()

    def _send(self, frame: bytes) -> None:
        """Sends a frame. Under `_sending`."""
        assert self._wire is not None
        try:
            self._wire.send(frame)
        except OSError:
            pass  # the server died: the receiving thread notices, and asks again for all that is alive

    def _connect(self) -> None:
        def keep(wire: p.Wire) -> None:
            with self._state:
                self._wire = wire
                if self._closed:  # meanwhile
                    wire.close()
                    raise FetchError("client was closed", hint=_CLOSED)

        for reply in greet(self._options, keep):
            self._note(reply)

    def _note(self, reply: p.Reply) -> None:
        """Logs a warning of the server's: once a process, however many clients it has."""
        if isinstance(reply, p.Welcome) and reply.warning and (self._options.dst, reply.warning) not in _told:
            _told.add((self._options.dst, reply.warning))
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
            with self._state:
                if self._closed:
                    return False
                self._is_connecting = True
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
                self._is_connecting = False
                if self._closed:  # meanwhile
                    self._wire.close()
                    return False
                self._released.clear()
                requests = all_again(self._live, self._awaited)
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

    def _take(self, replies: list[p.Reply]) -> None:
        wake = False
        starved_s: float | None = None
        wanted: list[p.Request] = []
        with self._state:
            for reply in replies:
                if isinstance(reply, p.Trim):
                    starved_s = reply.waited_s
                    continue
                if isinstance(reply, p.Welcome):
                    self._note(reply)
                    continue
                self._mended_at.clear()
                pending = self._live.get(reply.id)
                if isinstance(reply, p.Told):
                    if pending is not None:
                        pending.doing, wake = reply.text, True
                    continue
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
                    pending.error, pending.trips = reply.error(), reply.trips
                else:
                    pending.reply = reply
                wake = wake or reply.id in self._awaited
            if wake:
                self._state.notify_all()
        if wanted or any(isinstance(reply, p.Welcome) for reply in replies):  # the limit was lowered: hold nothing back
            self._send_news(wanted)
        if starved_s is not None:
            self._trim(starved_s)

    def _trim(self, starved_s: float = 0.0) -> None:
        """Gives back what was prefetched and nobody uses or waits for, and asks for it again, behind the others."""
        if starved_s >= _KIND_S:
            self._consumer.give_way()
        with self._sending:
            with self._state:
                before, self._standstill = self._standstill, self._find_standstill()
                is_stuck = before is not None and before == self._standstill
                in_use = [id for id, pending in self._live.items() if pending.in_use] if is_stuck else []
                is_paused = self._consumer.is_paused(self._awaited.values())
                messages = [*self._unsent_releases(), p.Pause(is_paused, is_stuck, in_use)]
                messages += given_back(self._live, self._awaited)
            self._send(p.encode(messages))

    def _find_standstill(self) -> object:
        """A value if nothing that is held here comes free by itself: all who hold something wait for more files.

        As long as it stays the same, they did nothing else. None: somebody may let go of something. The server knows
        whether it is room that they wait for. Under `_state`.
        """
        links = [link for link in list(_links) if link._options.dst == self._options.dst]
        awaited = {item for link in links for item in link._awaited_files()}  # errands need no room
        holders = {pending.holder for pending in self._live.values() if pending.in_use}
        turns = self._consumer.standstill(holders, {thread for _, _, thread in awaited})
        return None if turns is None else (awaited, turns)

    def _awaited_files(self) -> list[tuple[int, int, int]]:
        """Who waits for files: (this link, id of the request, thread). Of any thread, at any moment."""
        found = [(id, thread, self._live.get(id)) for id, thread in list(self._awaited.items())]
        return [(self._number, id, thread) for id, thread, each in found if each and isinstance(each.request, p.Get)]


_links: weakref.WeakSet[Link] = weakref.WeakSet()
_numbers = itertools.count()
_told: set[tuple[str, str]] = set()  # warnings of servers, by their folder


def abandon_all() -> None:
    """In a forked child: it has the parent's descriptors, but not its threads."""
    for link in list(_links):
        link.abandon()
    _links.clear()
