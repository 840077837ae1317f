"""Outbox: replies on their way to one client, sent without blocking anybody.

Comes in: messages, posted under the server's lock. Goes out: frames. They are sent outside the lock, by whichever
thread comes by, without waiting: what a client does not take at once is left to a thread of its own, so a client that
does not read stops nobody else.
"""

from __future__ import annotations

import threading
from collections import deque

from sds.errors import FetchError
from sds.fetch import protocol as p

__all__ = ["Outbox"]


class Outbox:
    """What is to be sent over one wire."""

    def __init__(self, wire: p.Wire) -> None:
        self._wire = wire
        self._sending = threading.Lock()  # held by whoever sends; may change hands to a thread that finishes a frame
        self._messages: deque[p.Reply] = deque()

    def add(self, message: p.Reply) -> None:
        """Leaves a message; `flush` sends it."""
        self._messages.append(message)

    def flush(self) -> None:
        """Sends what was added; if another thread is sending, it takes these along."""
        # whoever adds does so before looking at `_sending`, whoever sends looks at the messages after letting go of it
        while self._messages and self._sending.acquire(blocking=False):
            rest = memoryview(b"")
            try:
                rest = self._wire.send_now(_frame(_taken(self._messages)))
            except OSError:  # a client that is gone is noticed by the reading thread
                self._messages.clear()
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
            self._messages.clear()
        finally:
            self._sending.release()
        self.flush()

    def close(self) -> None:
        """Ends the conversation."""
        self._wire.hang_up()
        with self._sending:  # a descriptor that somebody sends to must not be closed under them
            self._wire.close()


def _taken(messages: deque[p.Reply]) -> list[p.Reply]:
    """What goes into the next frame: all there is, but of the large messages only one."""
    taken: list[p.Reply] = []
    while messages:  # only the thread that sends takes out
        taken.append(messages.popleft())
        if isinstance(taken[-1], p.Parts | p.Listing):
            break
    return taken


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
