"""What the tests of the fetch room share: objects whose bytes follow from their names, clients, samples of a disk."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from typing_extensions import Self

from sds.fetch import FetchClient
from sds.fetch.owner import lock_name
from sds.testing import HTTPServer

# The start of a script that is a client: it prints one line of JSON
CLIENT = """
import hashlib, json, os, random, signal, sys, time
from sds.fetch import FetchClient, FetchOptions, prefetched
def content(name, size): return random.Random(name).randbytes(size)
def right(path, url, size): return open(path, 'rb').read() == content(url.rpartition('/')[2], size)
args = json.loads(sys.argv[1])
client = FetchClient(FetchOptions(**args['options']))
"""


# and one that keeps the warnings of the fetch room
WARNINGS = """
import logging
warnings = []
class Keep(logging.Handler):
    def emit(self, record): warnings.append(record.getMessage())
logging.getLogger('sds.fetch').addHandler(Keep())
"""


def get(client: FetchClient, url: str) -> bytes:
    """The bytes of an object, through the cache."""
    (ticket,) = client.submit([[(url, None)]])
    try:
        return Path(ticket.take()[0]).read_bytes()
    finally:
        ticket.release()


def content(name: str, size: int) -> bytes:
    """The bytes of an object."""
    return random.Random(name).randbytes(size)


def publish(server: HTTPServer, folder: str, sizes: list[int]) -> list[str]:
    """Puts objects on a web server; their URLs."""
    for i, size in enumerate(sizes):
        server.put(f"{folder}/{i}.bin", content(f"{i}.bin", size))
    return [server.url(f"{folder}/{i}.bin") for i in range(len(sizes))]


def is_right(path: str, url: str, size: int) -> bool:
    return Path(path).read_bytes() == content(url.rpartition("/")[2], size)


def start(script: str, **args: Any) -> subprocess.Popen[str]:
    """A process that runs a client script."""
    command = [sys.executable, "-c", CLIENT + script, json.dumps(args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str], timeout_s: float = 60.0) -> Any:
    """What a client script printed last, as a value."""
    out, err = process.communicate(timeout=timeout_s)  # a second call gives the same
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def results(processes: list[subprocess.Popen[str]]) -> list[Any]:
    """What each of them printed last; if one fails, the others are ended too."""
    try:
        return [result(process) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def say(text: str) -> None:
    """Shows a figure to whoever runs the tests with -s."""
    sys.stdout.write(f"\n{text}\n")


def server_pids(dst: Path) -> list[int]:
    """The fetch servers of a folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if "sds.fetch.server" in command and str(dst.resolve()) in command:
            found.append(process.pid)
    return found


def kill_servers_below(folder: Path) -> None:
    """Ends the fetch servers of all cache folders in a folder: waiting for their own end costs a second each."""
    for lock in folder.rglob(lock_name("server")):
        for pid in server_pids(lock.parent):
            kill(pid)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], Any], timeout_s: float = 15.0) -> Any:
    """Waits for something to become true."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
    return value


Scan = dict[tuple[int, int], int]


def scan(dst: Path) -> Scan:
    """Every file in objects/, temporary ones included: (inode, time of last change) -> st_size."""
    found: Scan = {}
    for folder in [dst / "objects", *(Path(each.path) for each in _entries(dst / "objects"))]:
        for item in _entries(folder):
            with contextlib.suppress(FileNotFoundError):
                facts = item.stat(follow_symlinks=False)
                if stat.S_ISREG(facts.st_mode):
                    found[facts.st_ino, facts.st_mtime_ns] = facts.st_size
    return found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def num_bytes_on_disk(dst: Path) -> int:
    return sum(scan(dst).values())


class Watch:
    """Samples a cache folder from outside, all the time.

    A scan is no instant: files that come and go during it are counted though they never were there together. What
    two scans in a row have both seen was there at the moment between them, all of it, and that is what must fit.
    """

    def __init__(self, dst: Path) -> None:
        self.most = 0
        self.num_samples = 0
        self._dst = dst
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        before: Scan = {}
        while not self._over.is_set():
            now = scan(self._dst)
            together = sum(min(size, before[key]) for key, size in now.items() if key in before)
            self.most = max(self.most, together)
            self.num_samples += 1
            before = now
            time.sleep(0.001)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


@contextlib.contextmanager
def killing(dst: Path, times: int, every_s: float) -> Iterator[list[int]]:
    """Kills the fetch server of a folder again and again while the block runs; the pids that were killed."""
    killed: list[int] = []
    over = threading.Event()

    def run() -> None:
        while len(killed) < times and not over.wait(every_s):
            for pid in server_pids(dst):
                kill(pid)
                killed.append(pid)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


class RawServer:
    """A web server that answers as a test tells it to, byte by byte. Each connection is answered once, then closed.

    `answer(target)` gives the bytes to send; None: say nothing, and keep the line open until the end.
    """

    def __init__(self, answer: Callable[[str], bytes | None], *, hold: bool = False) -> None:
        self.targets: list[str] = []
        self._answer = answer
        self._hold = hold
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(5)
            try:
                self._serve(connection)
            except OSError:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        said = b""
        while b"\r\n\r\n" not in said:
            more = connection.recv(65536)
            if not more:
                connection.close()
                return
            said += more
        self.targets.append(said.split(b" ")[1].decode())
        answer = self._answer(self.targets[-1])
        if answer is not None:
            connection.sendall(answer)
        if answer is None or self._hold:
            self._open.append(connection)
        else:
            connection.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._open:
            connection.close()


def response(status: str, body: bytes = b"", length: int | None = -1, **headers: str) -> bytes:
    """The bytes of a response; `length` None: say nothing of the length."""
    length = len(body) if length == -1 else length
    lines = [f"HTTP/1.1 {status}", "Connection: close", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
    lines += [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
