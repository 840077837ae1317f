"""WebStore: an HTTP host. Plain URLs go through obstore; the odd ones, which it cannot say, through urllib3.

Odd are URLs with a query (signed URLs, image services), with an empty segment or with escapes that obstore would write
in another way, and servers that give no length. Redirects never leave https for http. Bodies are taken as they were
stored: neither client undoes a Content-Encoding, so no small answer grows into a large one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

import urllib3

from sds.errors import AccessDenied, FetchError, IntegrityError, UnsupportedSource
from sds.storage.cloud import CloudStore
from sds.storage.failures import BadStatus, of_status, translate
from sds.storage.headers import digest_in, retry_after_s, version_in
from sds.storage.options import StoreOptions
from sds.storage.store import Body, Buffer, Request
from sds.types import ObjectInfo
from sds.urls import redact

__all__ = ["WebStore"]

_CHUNK = 2**20
_MAX_REDIRECTS = 5
_PART = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})")
_NO_HEAD = re.compile(r"status code: (405|501)")  # obstore's words
_REDIRECTS = (301, 302, 303, 307, 308)
_CAREFUL_S = 30.0  # after a host wanted fewer requests, it is asked by the client that sees its Retry-After


class WebStore:
    """One host. Keys are the rest of the URL: escaped path and query."""

    def __init__(self, scheme: str, root: str, options: StoreOptions) -> None:
        self._base = f"{scheme}://{root}/"
        self._shown = redact(self._base)
        self._host = root
        self._plain = CloudStore(scheme, root, options)
        self._headers = options.headers(self._shown)
        # obstore takes a host's headers along to where a redirect leads, save these two
        self._has_private_headers = any(name.lower() not in ("authorization", "cookie") for name in self._headers)
        self._timeout = urllib3.Timeout(connect=min(10.0, options.timeout_s), read=options.timeout_s)
        self._pool = urllib3.PoolManager(maxsize=64, retries=False)
        self._gives_no_length = False  # obstore says so
        self._is_unsure_of_length = False  # one answer had none
        self._careful_until = 0.0

    def open(self, key: str, span: tuple[int, int] | None = None) -> Body:
        """Begins to get an object, or a part of it."""
        if self._is_odd(key) or self._gives_no_length or time.monotonic() < self._careful_until:
            return self._open_odd(key) if span is None else self._open_odd_part(key, span)
        try:
            return self._plain.open(unquote(key), span)
        except Exception as error:
            if translate(error, self._shown).is_throttled:
                self._careful_until = time.monotonic() + _CAREFUL_S
            if "content length" not in str(error).lower().replace("-", " "):
                raise
            self._gives_no_length = self._is_unsure_of_length = True
            return self.open(key, span)

    def request(self, key: str) -> Request | None:
        """How a plain client may get an object."""
        if self._is_unsure_of_length or "@" in self._host or time.monotonic() < self._careful_until:
            return None
        return Request(self._url(key), tuple(f"{name}: {value}" for name, value in self._headers.items()))

    def _is_odd(self, key: str) -> bool:
        return self._has_private_headers or _is_odd(key)

    def _open_odd(self, key: str) -> Body:
        response = self._request("GET", key)
        length = response.headers.get("Content-Length")
        size = int(length) if length is not None and length.isdigit() else None
        self._is_unsure_of_length = self._is_unsure_of_length or size is None
        chunks = self._chunks(response, size, key)
        return Body(size, version_in(response.headers, size), chunks, digest=digest_in(response.headers))

    def _open_odd_part(self, key: str, span: tuple[int, int]) -> Body:
        response = self._request("GET", key, {"Range": f"bytes={span[0]}-{span[1] - 1}"})
        found = _PART.fullmatch(response.headers.get("Content-Range", ""))
        if response.status != 206 or found is None or int(found[1]) != span[0]:
            response.close()
            raise UnsupportedSource("the server gives no parts of objects", hint="it is fetched whole")
        size, total = int(found[2]) + 1 - span[0], int(found[3])
        return Body(size, version_in(response.headers, total), self._chunks(response, size, key), total)

    def _chunks(self, response: Any, size: int | None, key: str) -> Iterator[Buffer]:
        num_bytes = 0
        try:
            for chunk in response.stream(_CHUNK, decode_content=False):
                num_bytes += len(chunk)
                yield chunk
        finally:
            response.close()  # a connection whose answer was read is back in the pool already
        if size is not None and num_bytes != size:
            shown, hint = key.partition("?")[0], "the server or a proxy cut the body short; it is tried again"
            raise IntegrityError(f"body has {num_bytes} bytes where {size} were promised: {shown}", hint=hint)

    def read(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """The bytes of several ranges."""
        if not self._is_odd(key):
            return self._plain.read(unquote(key), ranges)
        parts: list[Buffer] = []
        for start, stop in ranges:
            response = self._request("GET", key, {"Range": f"bytes={start}-{stop - 1}"})
            skip = 0 if response.status == 206 else start  # 200: the server ignores ranges
            parts.append(_cut(response, skip, skip + stop - start))
        return parts

    def head(self, key: str) -> ObjectInfo:
        """Size and version of an object; by a GET that is not read where the server dislikes HEAD."""
        if not self._is_odd(key):
            try:
                return self._plain.head(unquote(key))
            except Exception as error:
                if not _NO_HEAD.search(str(error)) and "content length" not in str(error).lower().replace("-", " "):
                    raise
        response = self._request("GET", key)
        response.close()
        length = response.headers.get("Content-Length", "")
        if not length.isdigit():
            raise FetchError("the server gives no length", hint="serve the file with a Content-Length header")
        return ObjectInfo(key, int(length), version_in(response.headers, int(length)))

    def list_all(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """HTTP has no listing."""
        self.list_folder(prefix)
        yield []

    def list_folder(self, prefix: str) -> tuple[list[str], list[ObjectInfo]]:
        """HTTP has no listing."""
        raise UnsupportedSource(
            f"a folder behind http(s) cannot be listed: {self._shown}{prefix}",
            hint="give the URL of an index file (CSV, Parquet, JSON), or a text file that lists the URLs",
        )

    def put(self, key: str, data: Buffer) -> None:  # noqa: ARG002 (the contract's signature)
        """HTTP is read only here."""
        raise AccessDenied(
            f"http(s) is read only: {self._shown}{key.partition('?')[0]}", hint="write to a bucket or a folder"
        )

    def _url(self, key: str) -> str:
        return self._base + quote(key, safe="/?&=%:@!$'()*+,;~-._[]#")

    def _request(self, method: str, key: str, headers: dict[str, str] | None = None) -> Any:
        url = self._url(key)
        for _ in range(_MAX_REDIRECTS + 1):
            # a token for this host is for this host alone
            own = self._headers if urlsplit(url).netloc == self._host else {}
            response = self._pool.request(
                method,
                url,
                headers={**own, **(headers or {})},
                preload_content=False,
                redirect=False,
                timeout=self._timeout,
            )
            if response.status in _REDIRECTS and "Location" in response.headers:
                target = urljoin(url, response.headers["Location"])
                _discard(response)
                allowed = ("https",) if url.startswith("https:") else ("http", "https")
                if urlsplit(target).scheme not in allowed:
                    raise AccessDenied(
                        f"redirect leaves https: {self._shown}{key.partition('?')[0]}",
                        hint="the server sends its visitors to an unsafe address; use the final URL if you trust it",
                    )
                url = target
                continue
            if response.status >= 300:
                _discard(response)
                verdict = of_status(response.status, self._shown + key.partition("?")[0], str(response.reason))
                if not verdict.may_pass:
                    raise verdict.error
                # what may pass is raised as a foreign error, so that whoever tries again sees what the server wants
                raise BadStatus(response.status, retry_after_s(response.headers.get("Retry-After")))
            return response
        raise FetchError(
            f"more than {_MAX_REDIRECTS} redirects: {self._shown}{key.partition('?')[0]}", hint="use the final URL"
        )


def _cut(response: Any, start: int, stop: int) -> bytes:
    """The bytes [start, stop) of an answer; what comes after them, which may be endless, is not read."""
    parts: list[bytes] = []
    at = 0
    try:
        for chunk in response.stream(_CHUNK, decode_content=False):
            parts.append(chunk[max(0, start - at) : max(0, stop - at)])
            at += len(chunk)
            if at >= stop:
                break
    finally:
        response.close()  # a connection whose answer was read is back in the pool already
    return b"".join(parts)


def _discard(response: Any) -> None:
    """Gives the connection back without its unread answer, on which the next request would fail."""
    length = response.headers.get("Content-Length", "")
    if length.isdigit() and int(length) <= _CHUNK:
        response.drain_conn()
    else:
        response.close()


# what obstore leaves as it is in a path, beside letters, digits and -._~
_UNESCAPED = "/!$&'()*+,;=:@[]^|"


def _is_odd(key: str) -> bool:
    """Whether obstore would ask for something else than the URL says, or not at all."""
    if "?" in key or "//" in key or not key or key.startswith("/") or key.endswith("/"):
        return True
    literal = unquote(key)
    # a%2Bb is not a+b to every server, %E9 is no UTF-8, and control characters obstore refuses
    return "%" in key and (quote(literal, safe=_UNESCAPED) != key or not literal.isprintable())
