"""FaultyProxy: a proxy on loopback before any HTTP or S3 server, which fails by script.

Comes in: the endpoint of a real server, and faults. Goes out: an endpoint that behaves like it, save for them. The Host
header passes unchanged, so that signatures made for the proxy's address hold at the server. Threads of this process;
some thousand small objects a second.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from typing_extensions import Self

from sds.testing.faults import Fault, Script

__all__ = ["Exchange", "FaultyProxy"]

_PIECE = 256 * 1024
_REASONS = {403: "AccessDenied", 404: "NoSuchKey", 416: "InvalidRange", 429: "TooManyRequests", 503: "SlowDown"}
_RESET = struct.pack("ii", 1, 0)  # linger for no time: closing sends a reset


@dataclass(frozen=True)
class Exchange:
    """One request and what became of it.

    Attributes:
        target: what was asked for, as it was sent: escaped path and query.
        path: the path in it, percent-decoded.
        range: the Range header, or ''.
        status: what was answered; 0 if nothing was.
        fault: the kind of fault that was injected, or ''.
        at: when it came, by time.monotonic.
        head: all header lines that were sent.
    """

    method: str
    target: str
    path: str
    range: str
    status: int
    fault: str
    at: float
    head: str = ""


class FaultyProxy:
    """A server's address that fails as told.

    Args:
        endpoint: of the server behind it, http://host:port.
        faults: what goes wrong, tried in this order.
        seed: decides which requests meet faults that have a share.
        certificate: files of a certificate and its key: then the proxy speaks https.
    """

    def __init__(
        self,
        endpoint: str = "",
        faults: Sequence[Fault] = (),
        seed: int = 0,
        *,
        certificate: tuple[str, str] | None = None,
    ) -> None:
        parts = urlsplit(endpoint)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.script = Script(faults, seed)
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*certificate)
        self._exchanges: list[Exchange] = []
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self._listener.getsockname()[1]

    @property
    def endpoint(self) -> str:
        """Where to send requests instead."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def injected(self) -> Counter[str]:
        """How many faults of each kind were injected."""
        return self.script.injected

    def exchanges(self, path: str | None = None) -> list[Exchange]:
        """Every request so far, all or those to a path (percent-decoded, without query)."""
        return [each for each in list(self._exchanges) if path is None or each.path == path]

    def set_faults(self, *faults: Fault, seed: int = 0) -> None:
        """Another script from now on; its counts begin anew."""
        self.script = Script(faults, seed)
        self._exchanges = []

    def start(self) -> None:
        """Begins to listen."""
        self._begin(self._accept, self._listener)

    def stop(self) -> None:
        """Ends all connections."""
        self._over.set()
        self._close_listener()
        self.hang_up()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def hang_up(self) -> None:
        """Ends the connections that are open; new ones are welcome."""
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Nobody listens while the block runs: connections are refused, those that are open are reset."""
        self._close_listener()
        for each in list(self._sockets):
            _reset(each)
        try:
            yield
        finally:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=1024)
            self._begin(self._accept, self._listener)

    def _close_listener(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _begin(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, name="faulty-proxy", daemon=True)  # type: ignore[arg-type]
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._over.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._begin(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        upstream: list[_Line] = []
        try:
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            self._sockets.add(client)
            line = _Line(client)
            while not self._over.is_set() and self._exchange(line, upstream):
                pass
        except (OSError, EOFError, ValueError):
            pass
        finally:
            for each in [client, *(line.sock for line in upstream)]:
                self._sockets.discard(each)
                each.close()

    def _exchange(self, client: _Line, upstream: list[_Line]) -> bool:
        """One request and its answer; False if the connection is over."""
        head = client.head()
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        wanted = _header(head, b"range") or ""
        path = unquote(target.partition("?")[0])
        fault = self.script.choose(method, path, wanted)
        body = client.exactly(int(_header(head, b"content-length") or 0))
        note = (method, target, path, wanted, head.decode("latin-1"))
        if fault is not None and fault.kind == "delay":
            self._wait(client.sock, fault.seconds)
        if fault is not None and fault.kind in ("status", "redirect", "refuse"):
            return self._answer_alone(client, fault, note)
        if not upstream:
            upstream.append(_Line(socket.create_connection(self._upstream)))
            self._sockets.add(upstream[0].sock)
        server = upstream[0]
        server.sock.sendall(head + body)
        answer = server.head()
        status = int(answer.split(b" ", 2)[1])
        self._log(note, status, "" if fault is None else fault.kind)
        if method == "HEAD" or status in (204, 304):
            client.sock.sendall(answer)
            return True
        if b"chunked" in (_header(answer, b"transfer-encoding") or "").encode():
            whole = server.chunked()
            answer = _with_length(answer, len(whole))
            pieces, size = iter([whole]), len(whole)
        else:
            size = int(_header(answer, b"content-length") or 0)
            pieces = server.pieces(size)
        if fault is None or fault.kind == "delay" or status >= 300:
            _send(client.sock, answer, pieces)
        elif not self._spoil(client.sock, answer, b"".join(pieces), fault):
            return False
        return (_header(answer, b"connection") or "").lower() != "close"

    def _answer_alone(self, client: _Line, fault: Fault, note: tuple[str, str, str, str, str]) -> bool:
        if fault.kind == "refuse":
            self._log(note, 0, "refuse")
            _reset(client.sock)
            return False
        status = 302 if fault.kind == "redirect" else fault.status
        self._log(note, status, fault.kind)
        code = _REASONS.get(status, "InternalError")
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        lines = [f"HTTP/1.1 {status} {code}", "Content-Type: application/xml", f"Content-Length: {len(text)}"]
        lines += [f"Location: {fault.location}"] if fault.kind == "redirect" else []
        lines += [] if fault.retry_after_s is None else [f"Retry-After: {fault.retry_after_s:g}"]
        client.sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if note[0] == "HEAD" else text))
        return True

    def _spoil(self, sock: socket.socket, answer: bytes, body: bytes, fault: Fault) -> bool:
        """Sends an answer with what is wrong with it; False if the connection is over."""
        half = len(body) // 2
        if fault.kind == "stall":
            sock.sendall(answer + body[:half])
            self._wait(sock, fault.seconds)
            sock.sendall(body[half:])
        elif fault.kind == "reset":
            sock.sendall(answer + body[:half])
            time.sleep(0.005)  # what was sent is there before the reset is
            _reset(sock)
            return False
        elif fault.kind == "flip":
            sock.sendall(answer + fault.flipped(body))
        elif fault.kind == "empty":
            sock.sendall(_with_length(answer, 0))
        else:
            other = body[:half] if fault.kind == "short" else body + bytes(fault.num_bytes)
            sock.sendall((_with_length(answer, len(other)) if fault.matching else answer) + other)
            return fault.matching  # a length that does not agree ends the connection
        return True

    def _wait(self, sock: socket.socket, seconds: float) -> None:
        """Says nothing for a while, unless the other side hangs up."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0 and not self._over.is_set():
            readable, _, _ = select.select([sock], [], [], min(left_s, 0.1))
            if readable and not isinstance(sock, ssl.SSLSocket):
                if not sock.recv(1, socket.MSG_PEEK):
                    raise EOFError
                self._over.wait(min(left_s, 0.1))  # the next request waits its turn

    def _log(self, note: tuple[str, str, str, str, str], status: int, fault: str) -> None:
        self._exchanges.append(Exchange(*note[:4], status=status, fault=fault, at=time.monotonic(), head=note[4]))


class _Line:
    """One end of a connection, read through a buffer."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._held = b""

    def _more(self) -> None:
        data = self.sock.recv(_PIECE)
        if not data:
            raise EOFError
        self._held += data

    def head(self) -> bytes:
        """All up to the empty line, and that."""
        while (end := self._held.find(b"\r\n\r\n")) < 0:
            self._more()
        head, self._held = self._held[: end + 4], self._held[end + 4 :]
        return head

    def pieces(self, num_bytes: int) -> Iterator[bytes]:
        """So many bytes, as they come."""
        while num_bytes:
            if not self._held:
                self._more()
            piece, self._held = self._held[:num_bytes], self._held[num_bytes:]
            num_bytes -= len(piece)
            yield piece

    def exactly(self, num_bytes: int) -> bytes:
        """So many bytes."""
        return b"".join(self.pieces(num_bytes)) if num_bytes else b""

    def chunked(self) -> bytes:
        """A body in chunks, put together."""
        parts: list[bytes] = []
        while True:
            while (end := self._held.find(b"\r\n")) < 0:
                self._more()
            size, self._held = int(self._held[:end].split(b";")[0], 16), self._held[end + 2 :]
            parts.append(self.exactly(size))
            if not size:
                self.exactly(2)
                return b"".join(parts)
            self.exactly(2)


def _send(sock: socket.socket, answer: bytes, pieces: Iterator[bytes]) -> None:
    sock.sendall(answer + next(pieces, b""))
    for piece in pieces:
        sock.sendall(piece)


def _header(head: bytes, name: bytes) -> str | None:
    lower = head.lower()
    start = lower.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    return head[start : head.index(b"\r\n", start)].strip().decode("latin-1")


def _with_length(answer: bytes, num_bytes: int) -> bytes:
    lines = [
        line
        for line in answer.rstrip(b"\r\n").split(b"\r\n")
        if not line.lower().startswith((b"content-length:", b"transfer-encoding:"))
    ]
    return b"\r\n".join([*lines, b"Content-Length: %d" % num_bytes]) + b"\r\n\r\n"


def _reset(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if isinstance(sock, ssl.SSLSocket):
            sock.unwrap()
        sock.close()
