"""The keeper: a small process between a test and its server, which ends the server when the test's process is gone.

Comes in: an order, as JSON on the command line (`python -m sds.testing.servers.keeper ORDER`). It watches its parent,
so that even `kill -9` of a test leaves no server behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Order", "keep", "remove"]

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)  # no slots: vars() of it is what travels to the keeper
class Order:
    """Which command to run for which parent, and which files to remove if that parent dies."""

    parent: int
    command: list[str]
    leftovers: list[str]
    grace_s: float


def keep(order: Order) -> int:
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
            remove(Path(path) for path in order.leftovers)


def remove(paths: Iterable[Path]) -> None:
    """Removes files and folders, if they are there."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(keep(Order(**json.loads(sys.argv[1]))))
