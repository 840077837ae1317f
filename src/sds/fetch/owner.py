"""Who works in a cache folder: one server per host, and of several hosts the one that came first.

Comes in: a cache folder, perhaps on a filesystem that hosts share. Goes out: a Claim, with the folder in which this
host's server works: the cache folder itself, or a folder of its own below it while another host's server lives. Nothing
is ever deleted under another host: a server that finds its claim taken over ends at once. On a full disk a server goes
on without a word, and writes it when there is room.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import socket
import stat
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sds.errors import CacheError
from sds.fetch.folder import make_folder, unusable

__all__ = ["OWNER", "READING", "Claim", "address_in", "host_key", "lock_name", "open_lock"]

OWNER = ".owner"  # says whose folder it is; its time of change is that host's sign of life
READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in place of a file stops nobody
BEAT_S = 2.0
_DEAD_S = 600.0  # without a sign of life, as the filesystem's clock has it
_LOCK_WAIT_S = 10.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_SETTLE_S = 0.2  # two hosts that both find a dead owner's word: after this, both read the same


@cache
def host_key() -> str:
    """A short name of this host. Containers with names of their own count as hosts: they do not share sockets."""
    for place in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        with suppress(OSError):
            machine = Path(place).read_text().strip()
            if machine:
                break
    else:
        machine = ""
    return hashlib.blake2b(f"{socket.gethostname()}\n{machine}".encode(), digest_size=6).hexdigest()


def boot_id() -> str:
    """Changes whenever the machine starts; "" where nobody knows."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def lock_name(purpose: str) -> str:
    """The name of this host's lock in a cache folder. Hidden, so that no listing takes it for a sample."""
    return f".{purpose}-{host_key()}.lock"


def open_lock(dst: Path, purpose: str) -> int:
    """A lock file of this host in the cache folder, which is made if need be."""
    try:
        dst.mkdir(parents=True, exist_ok=True)
        place = dst / lock_name(purpose)
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _check_regular(descriptor, place)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
    except OSError as error:
        raise unusable(str(dst), error) from error


def _check_regular(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, f"{path.name} is no regular file")


def address_in(words: str) -> Path | None:
    """Where a server listens, by what it wrote into its lock file."""
    told = _said("at", words)
    return Path(told) if told.startswith("/") else None


class Claim:
    """A server's hold on a cache folder; the kernel lets go of its lock when it dies.

    Attributes:
        folder: where to work.
        guest_of: the host that owns the cache folder, if another one does.
        has_rebooted: whether the machine was started since the last server worked here.
        before: where the last server of this host listened.
    """

    def __init__(self, dst: Path, place: Path) -> None:
        self._dst = dst
        self._lock = _locked(dst)
        words = os.pread(self._lock, 10_000, 0).decode(errors="surrogateescape")
        self.before = address_in(words)
        self.has_rebooted = _said("boot", words) not in ("", boot_id())
        told = f"pid {os.getpid()} on {socket.gethostname()}\nboot {boot_id()}\nat ".encode() + os.fsencode(place)
        try:
            _write_into(self._lock, told)
        except OSError as error:
            if error.errno not in _NO_ROOM:  # what the last server said stays: the lock itself needs no words
                raise unusable(str(dst), error) from error
        self._word = f"host {host_key()}\nname {socket.gethostname()}\nboot {boot_id()}\ntoken {secrets.token_hex(8)}\n"
        self._beat_at = time.monotonic()
        self._is_told = False  # whether the word is on disk
        self.guest_of = self._claim()
        self.folder = dst
        if self.guest_of is not None:
            for place in (dst / "hosts", dst / "hosts" / host_key()):
                make_folder(str(place))
                self.folder = place

    def _claim(self) -> str | None:
        """Makes the folder this host's; the name of the host that it belongs to, if that is another."""
        try:
            if self._write_first():
                return None
            owner = _read(self._dst / OWNER)
            if not owner.host:  # somebody is just writing it; or died over it, and then it is nobody's
                time.sleep(_SETTLE_S)
                owner = _read(self._dst / OWNER)
            if owner.host not in ("", host_key()):
                os.utime(self._lock)  # the filesystem's time, which need not be this host's
                if os.fstat(self._lock).st_mtime - owner.seen_at < _DEAD_S:
                    return owner.name
            self.has_rebooted = self.has_rebooted or owner.boot != boot_id()
            self._write_over()
            if owner.host != host_key():
                time.sleep(_SETTLE_S)
            return self._host_in_the_way()
        except OSError as error:
            raise unusable(str(self._dst), error) from error

    def _write_first(self) -> bool:
        """Writes whose folder it is, if there is room for that; False if somebody has before."""
        place = self._dst / OWNER
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return True
        try:
            try:
                _write_into(descriptor, self._word.encode())
            finally:
                os.close(descriptor)
            self._is_told = True
        except OSError as error:
            place.unlink(missing_ok=True)  # an empty word would be a riddle to the next one
            if error.errno not in _NO_ROOM:
                raise
        return True

    def _write_over(self) -> None:
        """The same, over what somebody wrote before: all at once, or after it, where there is no room for two."""
        place = self._dst / OWNER
        draft = self._dst / f"{OWNER}-{host_key()}-{secrets.token_hex(4)}"
        try:
            try:
                draft.write_text(self._word)
                os.replace(draft, place)
                self._is_told = True
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            place.unlink(missing_ok=True)
            self._write_first()

    def _host_in_the_way(self) -> str | None:
        """The name of the host whose word it is by now, if that is another's."""
        try:
            return None if self._is_ours() else _read(self._dst / OWNER).name
        except FileNotFoundError:  # there was no room for anybody's
            self._is_told = False
            return None

    def _is_ours(self) -> bool:
        return _text(self._dst / OWNER) == self._word

    def beat(self) -> bool:
        """Shows a sign of life, now and then; False if the folder is this server's no more."""
        if time.monotonic() - self._beat_at < BEAT_S:
            return True
        self._beat_at = time.monotonic()
        try:
            if not os.path.samestat(os.fstat(self._lock), os.lstat(self._dst / lock_name("server"))):
                return False  # somebody deleted the folder
            if self.guest_of is None:
                if not self._is_told:
                    return self._write_first()  # there may be room by now
                if not self._is_ours():
                    return False
                os.utime(self._dst / OWNER)
        except OSError:
            return False
        return True

    def leave(self) -> None:
        """The next server may come from any host."""
        with suppress(OSError):
            if self.guest_of is None and self._is_ours():
                os.unlink(self._dst / OWNER)


class _Owner(NamedTuple):
    host: str
    name: str
    boot: str
    seen_at: float


def _read(path: Path) -> _Owner:
    words = _text(path)
    return _Owner(_said("host", words), _said("name", words), _said("boot", words), os.lstat(path).st_mtime)


def _text(path: Path) -> str:
    descriptor = os.open(path, READING)
    try:
        _check_regular(descriptor, path)
        return os.read(descriptor, 10_000).decode(errors="replace")
    finally:
        os.close(descriptor)


def _write_into(descriptor: int, words: bytes) -> None:
    """Writes over what a file says, in the room that it has: a full disk has none to give back and take again."""
    if os.pwrite(descriptor, words, 0) < len(words):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, len(words))


def _said(word: str, words: str) -> str:
    found = [line.removeprefix(f"{word} ") for line in words.splitlines() if line.startswith(f"{word} ")]
    return found[0] if found else ""


def _locked(dst: Path) -> int:
    """The lock that makes this process the only server of this host for the folder."""
    descriptor = open_lock(dst, "server")
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").partition("\n")[0]
                os.close(descriptor)
                hint = "its server does not answer: end that process, or choose another `dst`"
                raise CacheError(f"cache folder is served by another process: {dst}: {holder}", hint=hint) from None
            time.sleep(0.02)
