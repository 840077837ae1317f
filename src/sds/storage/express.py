"""Express: many small objects at once, by one thread and libcurl. For what a plain request and a plain answer do.

Comes in: items that wait their turn, and who makes orders of them. Goes out: an answer for each order: a whole body; or
what went wrong; or neither, where it takes more than a plain client: a redirect, a refusal, a body that is large, empty
or of unknown length. What comes together is seen to together.
"""

from __future__ import annotations

import logging
import math
import os
import re
import select
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from sds.storage.failures import BadStatus
from sds.storage.headers import body_of, retry_after_s
from sds.storage.store import Body, Request

try:
    import pycurl
except ImportError:  # everything goes the other way
    pycurl = None

__all__ = ["Answer", "Express", "Order", "Unavailable"]

T = TypeVar("T")
Order: TypeAlias = tuple[Request, float, Any]  # what to ask for, how long the server may be silent, and whose it is

log = logging.getLogger("sds.storage")

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LONG_S = 60.0
_BUFFER = 2**19  # bytes that are read at once
_CODE = re.compile(rb"<Code>\w{1,64}</Code>")  # what S3 says of an error; the rest may repeat a signature
_JUDGED = {404, 408, 410, 425, 429, *range(500, 600)} - {501}  # statuses whose meaning is plain


class Unavailable(Exception):
    """This machine does not have what it takes."""


class Answer(NamedTuple):
    """What became of an order.

    Attributes:
        token: of the order.
        body: all of it, if it came.
        error: what went wrong, if that is plain.
        is_odd: with neither body nor error: other orders to the same place would fare no better.
        was_sent: whether anybody was asked.
    """

    token: Any
    body: Body | None = None
    error: Exception | None = None
    is_odd: bool = False
    was_sent: bool = True


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
        self._idle: list[_Ride] = []
        self._rides: dict[Any, _Ride] = {}  # by curl's handle
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
            ride = self._idle.pop() if self._idle else _Ride(self._largest)
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


class _Ride:
    """One of curl's handles, which is used again and again."""

    def __init__(self, largest: int) -> None:
        self.curl: Any = pycurl.Curl()
        self.token: Any = None
        self._lines: list[bytes] = []  # of the header
        self._chunks: list[bytes] = []
        self._largest = largest
        self._num_bytes = 0
        self._asked: tuple[tuple[str, ...], float] | None = None
        curl = self.curl
        curl.setopt(pycurl.NOSIGNAL, 1)
        curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        curl.setopt(pycurl.PROXY, "")
        curl.setopt(pycurl.PATH_AS_IS, 1)
        curl.setopt(pycurl.USERAGENT, "sds")
        curl.setopt(pycurl.BUFFERSIZE, _BUFFER)
        curl.setopt(pycurl.MAXFILESIZE, largest)
        curl.setopt(pycurl.LOW_SPEED_LIMIT, 1)
        curl.setopt(pycurl.HEADERFUNCTION, self._lines.append)
        curl.setopt(pycurl.WRITEFUNCTION, self._take)
        for option, place in _authorities():
            curl.setopt(option, place)

    def _take(self, chunk: bytes) -> int | None:
        """Keeps what came; what is too large, and did not say so, is cut off."""
        self._num_bytes += len(chunk)
        if self._num_bytes > self._largest:
            return 0
        self._chunks.append(chunk)
        return None

    def begin(self, order: Order) -> None:
        """Gets ready for an order."""
        request, timeout_s, self.token = order
        self._num_bytes = 0
        self.curl.setopt(pycurl.URL, request.url)
        asked = request.headers, timeout_s
        if asked != self._asked:
            self._asked = None  # or what failed half-way would be taken for done
            self.curl.unsetopt(pycurl.HTTPHEADER)  # an empty list would leave those of another host in place
            if request.headers:
                self.curl.setopt(pycurl.HTTPHEADER, list(request.headers))
            self.curl.setopt(pycurl.CONNECTTIMEOUT_MS, round(1000 * min(10.0, timeout_s)))
            self.curl.setopt(pycurl.LOW_SPEED_TIME, math.ceil(timeout_s))
            self._asked = asked

    def end(self, code: int | None, words: str) -> Answer:
        """What became of the order."""
        token, self.token = self.token, None
        lines, chunks = self._lines.copy(), self._chunks.copy()
        self._lines.clear()
        self._chunks.clear()
        if code is not None:
            return self._failed(token, code, words)
        status = self.curl.getinfo(pycurl.RESPONSE_CODE)
        headers = _headers(lines)
        if status == 200:
            body = body_of(headers, chunks)
            return Answer(token, body=body, is_odd=body is None and "content-length" not in headers)
        if status in _JUDGED:
            told = _CODE.search(b"".join(chunks))
            said = "" if told is None else told[0].decode("ascii", "replace")
            return Answer(token, error=BadStatus(status, retry_after_s(headers.get("retry-after")), said))
        return Answer(token, is_odd=True)

    def _failed(self, token: Any, code: int, words: str) -> Answer:
        """What libcurl's codes mean: what may happen to any request is an error, the rest is for others to find out."""
        if code == pycurl.E_FILESIZE_EXCEEDED:
            return Answer(token)
        if code == pycurl.E_WRITE_ERROR:  # it said nothing of its length
            return Answer(token, is_odd=True)
        if not self.curl.getinfo(pycurl.REQUEST_SIZE):  # there is no way to it from here
            return Answer(token, is_odd=True, was_sent=False)
        if code == pycurl.E_SEND_ERROR and not self.curl.getinfo(pycurl.NUM_CONNECTS):  # of connections that had died
            return Answer(token, was_sent=False)
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return Answer(token, error=TimeoutError(f"timed out: {words}"))
        if code in (pycurl.E_SEND_ERROR, pycurl.E_RECV_ERROR, pycurl.E_GOT_NOTHING, pycurl.E_PARTIAL_FILE):
            return Answer(token, error=ConnectionError(words))
        return Answer(token, is_odd=True)


@lru_cache(maxsize=1)
def _authorities() -> list[tuple[int, str]]:
    """Whose certificates are trusted: as Python does it, which heeds SSL_CERT_FILE."""
    paths = ssl.get_default_verify_paths()
    return [
        (option, place) for option, place in ((pycurl.CAINFO, paths.cafile), (pycurl.CAPATH, paths.capath)) if place
    ]


def _headers(lines: list[bytes]) -> dict[str, str]:
    """The header fields of the last answer among the lines, names in small letters."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if colon:
            found[name.lower()] = value.strip()
        elif name.startswith("HTTP/"):
            found.clear()
    return found
