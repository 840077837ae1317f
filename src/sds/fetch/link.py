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
from typing import Any

from sds.errors import CacheError, FetchError, FetchTimeout, SdsError
from sds.fetch import protocol as p
from sds.fetch.launch import connect

__all__ = ["Link", "Pending"]

log = logging.getLogger("sds.fetch")

_HANDSHAKE_S = 30.0
_RELEASES_PER_FRAME = 16
_WARN_AFTER_S = 30.0
_RECONNECTS = 8


class Pending:
    """Something asked for: its request, and its reply when there is one."""

    __slots__ = ("error", "in_use", "reply", "request", "since")

    def __init__(self, request: Any) -> None:
        self.request = request
        self.reply: Any = None
        self.error: SdsError | None = None
        self.in_use = False
        self.since = 0.0

    @property
    def is_here(self) -> bool:
        """Whether there is an answer."""
        return self.reply is not None or self.error is not None


class Link:
    """A connection that mends itself. Belongs to the process that made it; a forked child must `abandon` it."""

    def __init__(self, options: p.FetchOptions) -> None:
        self._options = options
        self._state = threading.Condition()  # guards what is below; told when a reply arrives
        self._live: dict[int, Pending] = {}
        self._awaited: set[int] = set()  # replies that somebody waits for; others wake nobody
        self._released: list[int] = []
        self._last_id = 0
        self._closed = False
        self._broken: SdsError | None = None
        self._sending = threading.Lock()
        self._wire = self._connect()
        self._thread = threading.Thread(target=self._receive, name="sds-fetch", daemon=True)
        self._thread.start()

    def next_ids(self, number: int) -> range:
        """Ids for new requests; later requests have larger ids."""
        with self._state:
            self._last_id += number
            return range(self._last_id - number + 1, self._last_id + 1)

    def ask(self, pendings: list[Pending]) -> None:
        """Sends requests; their replies will arrive in them."""
        with self._state:
            if self._broken is not None:
                raise self._broken
            now = time.monotonic()
            for pending in pendings:
                pending.since = now
                self._live[pending.request.id] = pending
            messages = self._unsent_releases()
        self._send([*messages, *(pending.request for pending in pendings)])

    def wait(self, pending: Pending, *, subject: str, patience_s: float) -> None:
        """Returns when there is an answer, and marks it as in use; raises its error, or FetchTimeout."""
        with self._state:
            if not pending.is_here:
                messages = self._unsent_releases()
                if messages:
                    self._state.release()
                    try:
                        self._send(messages)
                    finally:
                        self._state.acquire()
            start = time.monotonic()
            warn_at = start + _WARN_AFTER_S
            while not pending.is_here:
                self._awaited.add(pending.request.id)
                now = time.monotonic()
                if now - start > patience_s:
                    hint = "is the store reachable, and `timeout` long enough?"
                    raise FetchTimeout(f"no answer in {patience_s:.0f} s: {subject}", hint=hint, url=subject)
                if now > warn_at:
                    warn_at = now + _WARN_AFTER_S
                    log.warning("waited %.0f s for %s", now - start, subject)
                self._state.wait(min(1.0, patience_s))
            self._awaited.discard(pending.request.id)
            pending.in_use = True
            if pending.error is not None:
                self._live.pop(pending.request.id, None)
                raise pending.error

    def release(self, pending: Pending) -> None:
        """Lets go of what a request got, or of the request itself. The server learns of it with the next frame."""
        with self._state:
            if self._live.pop(pending.request.id, None) is None or self._closed:
                return
            if not pending.is_here:  # whoever still waits for it is told
                pending.error = FetchError("request was let go of before its answer came")
                self._state.notify_all()
            self._released.append(pending.request.id)
            messages = self._unsent_releases() if len(self._released) >= _RELEASES_PER_FRAME else []
        if messages:
            self._send(messages)

    def close(self) -> None:
        """Ends the connection, and with it every lease."""
        with self._state:
            self._closed = True
            self._live.clear()
        self._wire.hang_up()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)

    def abandon(self) -> None:
        """In a forked child: closes the inherited descriptor, so that the parent alone keeps its leases alive."""
        self._closed = True
        self._wire.close()

    def _unsent_releases(self) -> list[Any]:
        ids, self._released = self._released, []
        return [p.Release(ids)] if ids else []

    def _send(self, messages: list[Any]) -> None:
        with self._sending:
            try:
                self._wire.send(messages)
            except OSError:
                pass  # the server died: the receiving thread notices, and asks again for all that is alive

    def _connect(self) -> p.Wire:
        environment = {k: v for k, v in os.environ.items() if k.startswith(("AWS_", "GOOGLE_", "AZURE_"))}
        for _ in range(_RECONNECTS):
            connection = connect(self._options.dst)
            connection.settimeout(_HANDSHAKE_S)
            wire = p.Wire(connection)
            try:
                wire.send([p.Hello(p.VERSION, self._options, environment)])
                replies = wire.receive_replies()
            except OSError:
                replies = None
            if replies is None:  # it was just about to end: the next one will stay
                wire.close()
                continue
            connection.settimeout(None)
            for reply in replies:
                if isinstance(reply, p.Failed):
                    wire.close()
                    raise reply.error()
                if isinstance(reply, p.Welcome) and reply.warning:
                    log.warning("%s: %s", self._options.dst, reply.warning)
            return wire
        hint = "look for what kills processes on this machine (memory limits?)"
        raise CacheError(f"fetch server hangs up on every client: {self._options.dst}", hint=hint)

    def _receive(self) -> None:
        while True:
            replies = self._wire.receive_replies()
            if replies is not None:
                self._take(replies)
                continue
            with self._state:
                if self._closed:
                    self._wire.close()
                    return
            try:
                self._mend()
            except SdsError as error:
                with self._state:
                    self._broken = error
                    for pending in self._live.values():
                        pending.error = error
                    self._state.notify_all()
                return

    def _mend(self) -> None:
        """Connects anew and asks again for all that is alive, in the order in which it was asked for."""
        log.info("fetch server of %s is gone: connecting anew", self._options.dst)
        with self._sending:
            self._wire.close()
            self._wire = self._connect()
            with self._state:
                self._released.clear()
                requests = [self._live[id].request for id in sorted(self._live)]
            if requests:
                try:
                    self._wire.send(requests)
                except OSError:
                    pass  # gone again: the next receive says so

    def _take(self, replies: list[p.Reply]) -> None:
        trim = wake = False
        with self._state:
            for reply in replies:
                if isinstance(reply, p.Trim | p.Welcome):
                    trim = isinstance(reply, p.Trim)
                    continue
                pending = self._live.get(reply.id)
                if pending is None or pending.in_use:
                    continue  # let go of in the meantime, or held again after a server died
                if isinstance(reply, p.Failed):
                    pending.error = reply.error()
                else:
                    pending.reply = reply
                wake = wake or reply.id in self._awaited
            if wake:
                self._state.notify_all()
            messages = self._trim() if trim else []
        if messages:
            self._send(messages)

    def _trim(self) -> list[Any]:
        """Gives back what was prefetched and is not yet in use, save the first, and asks for it again at the end."""
        messages = self._unsent_releases()
        waiting = [id for id in sorted(self._live) if not self._live[id].in_use]
        given_back = [self._live[id] for id in waiting[1:] if isinstance(self._live[id].reply, p.Got)]
        for pending in given_back:
            pending.reply = None
        if given_back:
            messages.append(p.Release([pending.request.id for pending in given_back]))
            messages += [pending.request for pending in given_back]
        return messages
