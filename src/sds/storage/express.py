"""Express: many small objects at once, by one thread and libcurl. For what a plain request and a plain answer do.

Comes in: items that wait their turn, and who makes orders of them. Goes out: an answer for each order (ride.py). What
comes together is seen to together; whatever raises, each item is answered or given back.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from sds.storage.ride import Answer, Order, Ride, pycurl

__all__ = ["Express", "Unavailable"]

T = TypeVar("T")

log = logging.getLogger("sds.storage")

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LONG_S = 60.0


class Unavailable(Exception):
    """This machine does not have what it takes."""


class Express(Generic[T]):
    """One thread that makes many requests at once.

    Args:
        board: called with items whose turn it is; their orders. Items that it leaves out are its own to see to.
        done: called with answers.
        back: called with an item that waited when this came to an end.
        most: how many requests there may be at once.
        largest: bytes of a body; a larger one is left to others as soon as its length is known.

    Raises:
        Unavailable: there is no pycurl here, or no epoll; or proxies are set, which each client heeds in its own way.
    """

    def __init__(
        self,
        board: Callable[[list[T]], list[Order]],
        done: Callable[[list[Answer]], None],
        back: Callable[[T], None],
        most: int,
        largest: int,
    ) -> None:
        if pycurl is None or not (hasattr(select, "epoll") and hasattr(os, "eventfd")):
            raise Unavailable("pycurl is not installed, or this is not Linux")
        if any(name.lower() in _PROXIES and value for name, value in os.environ.items()):
            raise Unavailable("proxies are set")
        self.most = most
        self._largest = largest
        self._board = board
        self._done = done
        self._back = back
        self._is_over = False
        self._sleeps = False
        self._waiting: deque[T] = deque()
        self._boarding: deque[T] = deque()  # whose orders are being made
        self._orders: deque[Order] = deque()  # that are about to be sent
        self._idle: list[Ride] = []
        self._rides: dict[Any, Ride] = {}  # by curl's handle
        self._deadline = math.inf  # when curl wants to be called, whatever happens
        self._multi: Any = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, 1024)
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="express", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def put(self, item: T) -> bool:
        """Has an item wait its turn; False if this has come to an end. From any thread."""
        if self._is_over:
            return False
        self._waiting.append(item)
        if self._sleeps:  # it looks at what waits after it has said so: one ring is enough for all
            self._sleeps = False
            os.eventfd_write(self._bell, 1)
        if self._is_over:  # by now
            self._give_back(self._waiting)
        return True

    def close(self) -> None:
        """Ends the thread; what is under way is answered with neither body nor error."""
        self._is_over = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        self._epoll.close()
        os.close(self._bell)

    def _run(self) -> None:
        try:
            while not self._is_over:
                self._set_off()
                self._wait()
                answers = self._collect()
                if answers:
                    self._done(answers)
        except Exception:
            log.exception("plain requests end: all go the other way from now on")
        self._is_over = True
        unsent = [Answer(order[2], was_sent=False) for order in self._orders]
        try:
            self._done([*unsent, *(Answer(ride.token) for ride in self._rides.values())])
        finally:
            self._give_back(self._boarding)
            self._give_back(self._waiting)

    def _give_back(self, items: deque[T]) -> None:
        with suppress(IndexError):  # another thread does the same
            while items:
                self._back(items.popleft())

    def _set_off(self) -> None:
        """Sends what waits, as far as there may be more."""
        while self._waiting and len(self._boarding) + len(self._rides) < self.most:
            self._boarding.append(self._waiting.popleft())
        if not self._boarding:
            return
        self._orders.extend(self._board(list(self._boarding)))
        self._boarding.clear()
        unsayable: list[Answer] = []
        while self._orders:
            ride = self._idle.pop() if self._idle else Ride(self._largest)
            try:
                ride.begin(self._orders[0])
                self._multi.add_handle(ride.curl)
                self._rides[ride.curl] = ride
            except (pycurl.error, UnicodeError, ValueError):  # an address or a header that libcurl does not take
                unsayable.append(Answer(self._orders[0][2], was_sent=False))
            self._orders.popleft()
        if unsayable:
            self._done(unsayable)

    def _wait(self) -> None:
        """Until something can be read or written, somebody rang, or curl wants to be called; curl does what it can."""
        self._sleeps = True
        is_due = bool(self._waiting) and len(self._rides) < self.most
        timeout_s = 0.0 if is_due else min(_LONG_S, max(0.0, self._deadline - time.monotonic()))
        happened = self._epoll.poll(timeout_s)
        self._sleeps = False
        for descriptor, events in happened:
            if descriptor == self._bell:
                os.eventfd_read(self._bell)
                continue
            what = pycurl.CSELECT_IN if events & ~select.EPOLLOUT else 0  # it finds errors by reading
            self._multi.socket_action(descriptor, what | (pycurl.CSELECT_OUT if events & select.EPOLLOUT else 0))
        if time.monotonic() >= self._deadline:
            self._deadline = math.inf
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)

    def _watch(self, what: int, descriptor: int, _multi: Any, _data: Any) -> None:
        """Curl says which connection it waits for, and for what."""
        if what == pycurl.POLL_REMOVE:
            with suppress(OSError, ValueError):  # it is closed already
                self._epoll.unregister(descriptor)
            return
        mask = select.EPOLLIN if what & pycurl.POLL_IN else 0
        mask |= select.EPOLLOUT if what & pycurl.POLL_OUT else 0
        try:
            self._epoll.modify(descriptor, mask)
        except FileNotFoundError:
            self._epoll.register(descriptor, mask)

    def _set_timer(self, timeout_ms: int) -> None:
        self._deadline = math.inf if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000

    def _collect(self) -> list[Answer]:
        """What has come to its end."""
        found: list[Answer] = []
        num_left = 1
        while num_left:
            num_left, fine, failed = self._multi.info_read()
            found += [self._end(curl, None, "") for curl in fine]
            found += [self._end(curl, code, words) for curl, code, words in failed]
        return found

    def _end(self, curl: Any, code: int | None, words: str) -> Answer:
        self._multi.remove_handle(curl)
        ride = self._rides.pop(curl)
        token = ride.token
        try:
            answer = ride.end(code, words)
        except Exception:  # whatever a server sent: nobody is left waiting
            log.exception("an answer cannot be read")
            return Answer(token, is_odd=True)
        self._idle.append(ride)
        return answer
