"""Finding the fetch server of a cache folder, and starting it when there is none.

Comes in: a cache folder. Goes out: a connected socket to a server of the same user, on this host. Servers listen in a
folder that only its user can enter; a lock file in the cache folder decides who starts one, and the kernel frees it if
the starter dies.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sds.errors import CacheError
from sds.fetch.owner import READING, address_in, lock_name, open_lock
from sds.seeds import jitter

__all__ = ["READY", "SCANNING", "connect", "peer_uid", "short_name"]

READY = "ready"  # what a server says on its standard output when it listens
SCANNING = "scanning"  # and now and then before that, while it looks through a large folder
_START_S = 30.0  # without a sign of life
_BUSY_S = 60.0
_LOG = ".server.log"
_LOG_BYTES = 2000
_MAX_LOG = 2**16
_MAX_NAME = 107  # bytes in the address of a Unix socket


def connect(dst: str) -> socket.socket:
    """A connection to the server of this folder, which is started if need be."""
    folder = _runtime_folder()
    name = _name_of(dst)
    address = folder / f"{name}.sock"
    deadline = time.monotonic() + _START_S
    connection = _find(dst, address)
    if connection is not None:
        return connection
    log = Path(dst) / _LOG
    descriptor = open_lock(Path(dst), "server-start")
    try:
        _lock(descriptor, deadline, dst)
        while True:
            connection = _find(dst, address)  # somebody else may have started it while we waited
            if connection is not None:
                return connection
            if time.monotonic() > deadline:
                raise CacheError(
                    f"fetch server does not stay up: {dst}: {_tail(log)}",
                    hint="its log is shown above; is something killing it?",
                )
            _start(dst, address, log, lambda: os.utime(descriptor))
    finally:
        os.close(descriptor)


def _name_of(dst: str) -> str:
    """What stands for a cache folder in the names of its socket, lock and log: one name, whatever links lead to it."""
    return hashlib.blake2b(os.fsencode(os.path.realpath(dst)), digest_size=12).hexdigest()


def _runtime_folder() -> Path:
    """The 0700 folder of this user's sockets."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(given) if given and Path(given).is_dir() and os.access(given, os.W_OK) else None
    folder = base / "sds" if base else Path(tempfile.gettempdir()) / f"sds-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = os.lstat(folder)
    except OSError as error:
        hint = "set XDG_RUNTIME_DIR or TMPDIR to a folder of your own"
        raise CacheError(f"socket folder cannot be made: {folder}: {error.strerror}", hint=hint) from error
    if not _is_private(facts):
        raise CacheError(
            f"socket folder is not this user's alone: {folder}",
            hint="remove it if you do not know it, or set TMPDIR to a folder of your own",
        )
    return folder


def _is_private(facts: os.stat_result) -> bool:
    """Whether it is a folder that nobody but this user can enter."""
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077


def _find(dst: str, address: Path) -> socket.socket | None:
    """A connection to the server of a folder: at this process's address, or where one with another TMPDIR put it."""
    connection = _try_connect(address)
    if connection is not None:
        return connection
    try:
        descriptor = os.open(Path(dst) / lock_name("server"), READING)
        try:
            told = address_in(os.pread(descriptor, 10_000, 0).decode(errors="surrogateescape"))
        finally:
            os.close(descriptor)
        # what a file in the cache folder says is believed only if it leads to where this user alone can listen
        if told is None or told == address or told.name != address.name or not _is_private(os.lstat(told.parent)):
            return None
    except OSError:
        return None
    return _try_connect(told)


def _try_connect(address: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + _BUSY_S
    try:
        connection.settimeout(10.0)
        with short_name(address) as name:
            while True:
                try:
                    connection.connect(name)
                    break
                except BlockingIOError:  # there is a server, and many others are calling it right now
                    if time.monotonic() > deadline:
                        hint = "very many processes use this cache folder at once, or its server was stopped"
                        raise CacheError(f"fetch server takes no more clients: {address}", hint=hint) from None
                    time.sleep(jitter(0.01, 0.05))
    except CacheError:  # which is an OSError too
        connection.close()
        raise
    except OSError:  # no server, or one that was killed and left its socket
        connection.close()
        return None
    if peer_uid(connection) != os.getuid():
        connection.close()
        raise CacheError(f"fetch server belongs to another user: {address}", hint="set TMPDIR to a folder of your own")
    return connection


@contextmanager
def short_name(address: Path) -> Iterator[str]:
    """A name for a socket that a Unix address has room for, however deep its folder lies."""
    if len(os.fsencode(address)) <= _MAX_NAME:
        yield str(address)
        return
    descriptor = os.open(address.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{address.name}"
    finally:
        os.close(descriptor)


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket, as the kernel knows it."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", packed)
    return int(uid)


def _lock(descriptor: int, deadline: float, dst: str) -> None:
    """Waits for its turn to start a server; whoever starts one touches the file when that shows a sign of life."""
    touched = os.fstat(descriptor).st_mtime_ns
    while True:
        if (now := os.fstat(descriptor).st_mtime_ns) != touched:
            touched, deadline = now, time.monotonic() + _START_S
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                hint = "another process of yours is starting it and does not come to an end"
                raise CacheError(f"waited {_START_S:.0f} s for the fetch server of {dst}", hint=hint) from None
            time.sleep(0.01)


def _start(dst: str, address: Path, log: Path, on_sign: Callable[[], None]) -> None:
    """Starts a server and waits until it listens. It is a process of its own: no terminal, no inherited descriptors."""
    with _opened(log) as errors:
        if errors.tell() > _MAX_LOG:
            errors.truncate(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "sds.fetch.server", os.path.realpath(dst), str(address)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            cwd="/",
            env=_environment(),
        )
    assert process.stdout is not None
    with process.stdout as output:
        words = _first_words(output.fileno(), on_sign)
    if READY in words.splitlines():
        # The server outlives many of its clients, and this process may outlive it: a thread waits for its end, so that
        # no zombie is left. Popen is told that it is over, or it would warn of a child that is still there.
        process.returncode = 0
        threading.Thread(target=_reap, args=(process.pid,), name="sds-reap", daemon=True).start()
        return
    with suppress(subprocess.TimeoutExpired):
        if process.wait(timeout=1.0) < 0 and not words:
            return  # a signal ended it, not a fault of its own: the caller tries again
    process.kill()
    process.wait()
    message, _, hint = words.strip().partition("\nhint: ")
    raise CacheError(message or f"fetch server did not start: {dst}: {_tail(log)}", hint=hint or None)


def _opened(log: Path) -> BinaryIO:
    """The server's log, to be written to; a link in its place is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return open(os.open(log, flags, 0o600), "ab")
    except OSError as error:
        hint = "remove it, or choose another `dst`"
        raise CacheError(f"cache folder has no place for a log: {log}: {error.strerror}", hint=hint) from error


def _first_words(output: int, on_sign: Callable[[], None]) -> str:
    """What the server says until it is ready, ends, or has shown no sign of life for too long; without those signs."""
    said = b""
    deadline = time.monotonic() + _START_S
    poll = select.poll()  # unlike select(), it knows descriptors above 1023, which a trainer may well have
    poll.register(output, select.POLLIN)
    while READY not in said.decode(errors="replace").splitlines():
        more = os.read(output, 65536) if poll.poll(max(0.0, deadline - time.monotonic()) * 1000) else b""
        if not more:
            break
        said += more
        deadline = time.monotonic() + _START_S
        on_sign()
    return "\n".join(line for line in said.decode(errors="replace").splitlines() if line != SCANNING)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):  # somebody else has
        os.waitpid(pid, 0)


def _environment() -> dict[str, str]:
    """The server's environment: the cloud variables come with each client's hello instead."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "GOOGLE_", "AZURE_"))}
    # the server must find the same sds, wherever this process found it
    own = str(Path(__file__).resolve().parents[2])
    kept["PYTHONPATH"] = os.pathsep.join([own, *filter(None, [kept.get("PYTHONPATH")])])
    return kept


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-_LOG_BYTES:].decode(errors="replace").strip() or "its log is empty"
    except OSError:
        return "it left no log"
