"""Ride: one request at a time by libcurl, on a handle that is used again; and what its answer means.

Comes in: an order. Goes out: an answer: a whole body; or what went wrong; or neither, where it takes more than a plain
client: a redirect, a refusal, a body that is large, empty or of unknown length.
"""

from __future__ import annotations

import math
import re
import ssl
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from sds.storage.failures import BadStatus
from sds.storage.headers import body_of, retry_after_s
from sds.storage.store import Body, Request

try:
    import pycurl
except ImportError:  # everything goes the other way
    pycurl = None

__all__ = ["Answer", "Order", "Ride", "pycurl"]

Order: TypeAlias = tuple[Request, float, Any]  # what to ask for, how long the server may be silent, and whose it is

_BUFFER = 2**19  # bytes that are read at once
_CODE = re.compile(rb"<Code>\w{1,64}</Code>")  # what S3 says of an error; the rest may repeat a signature
_JUDGED = {404, 408, 410, 425, 429, *range(500, 600)} - {501}  # statuses whose meaning is plain


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


class Ride:
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
