"""The viewer's web server: loopback only, GET only, behind a token that stands first in the path of every URL.

Comes in: requests. Goes out: the page and its parts, JSON, files by ranges. Whoever does not know the token, or comes
by another name than that of loopback (DNS rebinding), or from another site, gets 403 and nothing else.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import select
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit

from sds.errors import FetchError, ObjectNotFound, OptionError, SdsError
from sds.view.gallery import MAX_PAGE, Gallery, told_error
from sds.view.ranges import Unsatisfiable, parse_range
from sds.view.shelf import while_waiting
from sds.view.words import Words

__all__ = ["Viewer"]

log = logging.getLogger("sds")

_HOST = "127.0.0.1"
_NAMES = (_HOST, "localhost")
_STATIC = {
    "": ("index.html", "text/html; charset=utf-8"),
    "app.js": ("app.js", "text/javascript; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
_SAFE = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_PIECE = 2**18
_KEPT_S = 60  # a browser may show a picture again without asking: files change while people mend them
_IDLE_S = 120  # a connection that says nothing for so long is closed


class Viewer:
    """Serves a gallery until it is closed. A context manager.

    Args:
        gallery: what is shown.
        port: 0 chooses a free one.
        start: what the page begins with: "sql", "seed", "epoch", "at".

    Raises:
        OptionError: the port is taken.
    """

    def __init__(self, gallery: Gallery, port: int = 0, start: Mapping[str, Any] | None = None) -> None:
        self.gallery = gallery
        self.start = {key: value for key, value in (start or {}).items() if value is not None}
        self.token = secrets.token_urlsafe(24)
        try:
            self._server = _Server((_HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            hint = "is the port taken? --port 0 chooses a free one"
            raise OptionError(f"page cannot be served at {_HOST}:{port}: {error}", hint=hint) from error
        self._server.viewer = self
        self.port: int = self._server.server_address[1]
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where the page is; whoever has it may look."""
        return f"http://{_HOST}:{self.port}/{self.token}/"

    def serve(self) -> None:
        """Serves in this thread, until it is interrupted."""
        self._server.serve_forever(0.1)

    def begin(self) -> None:
        """Serves in a thread of its own."""
        self._thread = threading.Thread(target=self.serve, name="sds-view", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the server and its connections, and closes the datasets. Harmless when repeated."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()
        self._server.hang_up()
        self.gallery.shelf.close()

    def __enter__(self) -> Viewer:  # noqa: PYI034 (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    """Keeps its connections in sight, to end them."""

    daemon_threads = True
    viewer: Viewer

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Without a look at who has this address: that would ask name servers."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = _HOST, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A browser that goes away in the middle is no news."""
        log.debug("a connection of the viewer ended", exc_info=True)

    def hang_up(self) -> None:
        """Ends every connection."""
        for connection in list(self._connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection's requests."""

    protocol_version = "HTTP/1.1"
    server_version = "sds"
    sys_version = ""
    timeout = _IDLE_S
    server: _Server

    def do_GET(self) -> None:
        """Checks who asks, and answers."""
        self._has_begun = False
        path, _, query = self.path.partition("?")
        token, _, rest = path.removeprefix("/").partition("/")
        if not self._is_ours() or not hmac.compare_digest(token.encode(), self.server.viewer.token.encode()):
            self._send(403, "text/plain; charset=utf-8", b"403: open the address that `sds view` printed\n")
            return
        try:
            with while_waiting(self._has_left):
                self._answer(rest, Words(query))
        except Unsatisfiable as error:
            more = {"Content-Range": f"bytes */{error.size}"}
            self._send(416, "text/plain; charset=utf-8", b"416: no such range\n", more=more)
        except SdsError as error:
            self._send_json(_code(error), {"error": told_error(error)})
        except (ConnectionError, TimeoutError):  # the browser went away
            raise
        except Exception as error:
            log.debug("the viewer failed", exc_info=True)
            if self._has_begun:  # what was promised cannot be kept: the browser sees it by the connection's end
                self.close_connection = True
                return
            told = {"kind": type(error).__name__, "message": f"{type(error).__name__}: {error}", "hint": None}
            self._send_json(500, {"error": told})

    def _has_left(self) -> bool:
        """Whether the browser has closed the connection while it waits for its answer."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)

    def _is_ours(self) -> bool:
        """Whether a request was meant for loopback, and was not made by a page of another site."""
        host = self.headers.get("Host", "")
        origin = self.headers.get("Origin")
        if _host_name(host) not in _NAMES or (origin is not None and origin != f"http://{host}"):
            return False
        site, mode = self.headers.get("Sec-Fetch-Site", "none"), self.headers.get("Sec-Fetch-Mode", "")
        return site in ("none", "same-origin") or mode == "navigate"

    def _answer(self, path: str, words: Words) -> None:
        gallery = self.server.viewer.gallery
        if path in _STATIC:
            name, kind = _STATIC[path]
            self._send(200, kind, resources.files("sds.view").joinpath("static").joinpath(name).read_bytes())
            return
        find = gallery.shelf.find
        routes: dict[str, Callable[[], Any]] = {
            "api/start": lambda: self.server.viewer.start,
            "api/about": lambda: gallery.about(words.view),
            "api/page": lambda: gallery.page(
                words.view, words.number("epoch", 0), words.number("at", 0), max(1, words.number("num", MAX_PAGE))
            ),
            "api/sample": lambda: gallery.sample(words.view, words.number("epoch", 0), words.number("at")),
            "api/place": lambda: {
                "position": gallery.position_of(
                    words.view, words.number("epoch", 0), words.number("row"), words.text("key")
                )
            },
            "api/cache": lambda: gallery.cache(words.view),
            "api/failures": lambda: gallery.failures(words.view),
            "text": lambda: gallery.text(*words.cell(find)),
        }
        pictures: dict[str, Callable[[], tuple[str, bytes]]] = {
            "thumb": lambda: gallery.thumb(*words.cell(find)),
            "output": lambda: gallery.output(
                find(words.text("view") or ""),
                words.number("epoch"),
                words.number("at"),
                words.number("item"),
                words.number("part"),
            ),
        }
        if path in routes:
            self._send_json(200, routes[path]())
        elif path in pictures:
            kind, data = pictures[path]()
            self._send(200, kind, data, keep=path == "thumb")
        elif path == "file":
            with gallery.file(*words.cell(find)) as (file, size, kind):
                self._send_range(file, size, kind)
        else:
            self._send(404, "text/plain; charset=utf-8", b"404: there is no such page\n")

    def _send_json(self, code: int, value: Any) -> None:
        # in ASCII: a name may hold half of a pair of surrogates, which no other encoding takes
        self._send(code, "application/json", json.dumps(value, allow_nan=False).encode())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """What the standard library refuses, such as another method than GET: with our headers, and no page."""
        self.close_connection = True
        self._send(code, "text/plain; charset=utf-8", f"{code}: {message or 'refused'}\n".encode())

    def _send(
        self, code: int, kind: str, body: bytes, *, keep: bool = False, more: Mapping[str, str] | None = None
    ) -> None:
        self._begin(code, kind, len(body), keep=keep, more=more)
        self.wfile.write(body)

    def _begin(
        self, code: int, kind: str, length: int, *, keep: bool = False, more: Mapping[str, str] | None = None
    ) -> None:
        self._has_begun = True
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.send_header("Cache-Control", f"private, max-age={_KEPT_S}" if keep else "no-store")
        for name, value in {**_SAFE, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_range(self, file: Any, size: int, kind: str) -> None:
        """A file, or the part of it that is asked for, as fast as the browser takes it."""
        more = {"Accept-Ranges": "bytes"}
        asked = parse_range(self.headers.get("Range"), size)
        start, stop = asked or (0, size)
        if asked is not None:
            more["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self._begin(206 if asked else 200, kind, stop - start, keep=True, more=more)
        try:
            file.seek(start)
            while start < stop and (piece := file.read(min(_PIECE, stop - start))):
                self.wfile.write(piece)
                start += len(piece)
        except SdsError:
            log.debug("a file could not be read to its end", exc_info=True)
        if start < stop:  # what was promised cannot be kept: the browser sees it by the connection's end
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Says nothing: URLs hold the token."""


def _host_name(host: str) -> str | None:
    """The name without the port: somebody may have brought the port here by ssh, under another number."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _code(error: SdsError) -> int:
    if isinstance(error, ObjectNotFound):
        return 404
    return 502 if isinstance(error, FetchError) else 400
