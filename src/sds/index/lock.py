"""One builder at a time: a file lock that ends with its process, whatever ends the process.

The lock file names its holder, for the message that a waiter gives when it has waited long enough. It is removed when
it is given back, so a folder keeps no litter; a waiter that locked a removed file tries again with the new one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sds.errors import CacheError

__all__ = ["held"]

_POLL_S = 0.02


@contextmanager
def held(path: Path, *, timeout_s: float, meanwhile: Callable[[], bool] | None = None) -> Iterator[None]:
    """Holds the lock inside the block.

    Args:
        path: the lock file.
        timeout_s: how long to wait for it.
        meanwhile: called again and again while another process has it; true: there was something to do.

    Raises:
        CacheError: another process held it for longer than `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while (fd := _try(path)) is None:
        if meanwhile is not None and meanwhile():
            deadline = time.monotonic() + timeout_s
            continue
        if time.monotonic() > deadline:
            raise CacheError(
                f"another process holds the lock {path} for more than {timeout_s:.0f} s: {_holder(path)}",
                hint="it builds the same index: see whether that process still works, or end it; its lock ends with it",
                url=str(path),
            )
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _try(path: Path) -> int | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_ino == os.stat(path).st_ino:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"pid {os.getpid()} on {os.uname().nodename}".encode(), 0)
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass  # held by another, or removed by the one that held it
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _holder(path: Path) -> str:
    try:
        return path.read_text() or "unknown"
    except OSError:
        return "unknown"
