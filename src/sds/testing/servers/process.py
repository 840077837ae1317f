"""Server: a program on loopback that is ready when it has started, and gone when its `with` block ends."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import urllib3

from sds.errors import SdsError
from sds.testing.servers.keeper import Order, remove

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LOOPBACK", "STOP_TIMEOUT_S", "Ended", "Refused", "Server", "find_program", "free_ports", "running"]

LOOPBACK = "127.0.0.1"
_START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
_REQUEST_TIMEOUT_S = 60.0
_CHECK_TIMEOUT_S = 2.0  # another program on the port may take the connection and say nothing
_ATTEMPTS = 3  # a port that was free may be taken before the server binds it
_PORTS = range(10_000, 32_768)  # below the range that the kernel hands to outgoing connections
# a busy server may say 500 or 503, as S3 does, and mean: ask again
_AGAIN = urllib3.Retry(
    connect=0,
    read=0,
    redirect=0,
    status=4,
    other=0,
    status_forcelist=(500, 503),
    allowed_methods=None,
    backoff_factor=0.1,
    raise_on_redirect=False,
    raise_on_status=False,
)

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
            except Ended:
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
            keeper.wait(STOP_TIMEOUT_S + 2)
        except subprocess.TimeoutExpired:
            keeper.kill()  # the kernel then kills the server
            keeper.wait()
        _running.pop(self.pid, None)
        remove(self._leftovers())
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
        self._ports = free_ports(self.num_ports)
        self.endpoint = f"http://{LOOPBACK}:{self._ports[0]}"
        try:
            command = self._command()
            order = Order(os.getpid(), command, [str(path) for path in self._leftovers()], self._grace_s())
            # SeaweedFS would take the user's cloud credentials for its own
            environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
            # TMPDIR and XDG_*: what the programs write beside their data lands in the folder that we remove
            home = {"TMPDIR": str(self._home), "XDG_CONFIG_HOME": str(self._home), "XDG_DATA_HOME": str(self._home)}
            with open(self._home / "log", "wb") as log:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-m", "sds.testing.servers.keeper", json.dumps(vars(order))],
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
            remove(self._leftovers())
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
                raise Ended(f"server ended while starting: {self.name}\n{self.log_tail()}") from cause
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
            answer = pool.request(method, url, body=data, headers=headers, retries=_AGAIN, timeout=self._timeout_s)
        if answer.status >= 300 and answer.status not in fine:
            raise Refused(f"{method} {url}: {answer.status} {answer.data[:500].decode(errors='replace')}")
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


class Refused(OSError):
    """A server answered with a status that was not hoped for."""


class Ended(SdsError):
    """The program ended while it was starting."""


def free_ports(count: int) -> list[int]:
    """Different ports on loopback that nobody listens on now."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = _PORTS[secrets.randbelow(len(_PORTS))]
            holder = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                holder.bind((LOOPBACK, port))
                ports.append(port)
        return ports


def find_program(name: str, hint: str) -> str:
    """The path of a program that a wheel installed, or that is on PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise SdsError(f"program not found: {name}", hint=hint)
    return found
