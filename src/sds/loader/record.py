"""Record: the stats of a run, written down as they grow, for `sds report` to draw.

Comes in: a function that gives Stats, and one that gives the rows that failed. Goes out: a file of JSON lines: a
Beginning, a Moment every second, failures as they come, and a last Moment when the loader is closed. A thread of its
own writes, so that a run that hangs is recorded too; what a killed run wrote can be read.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from sds.errors import OptionError
from sds.loader.trace import Lines
from sds.stats import Beginning, Failed, Line, Moment, Stats
from sds.types import Failure

__all__ = ["Record"]

_MAX_FAILURES = 1000


class Record:
    """Writes until it is closed.

    Args:
        path: the file; it is overwritten.
        stats: gives the stats, from any thread.
        failures: gives the rows that failed so far, from any thread.
        rank: of this process.
        every_s: seconds between two lines.
    """

    def __init__(
        self,
        path: Path,
        stats: Callable[[], Stats],
        failures: Callable[[], list[Failure]],
        *,
        rank: int = 0,
        every_s: float = 1.0,
    ) -> None:
        if isinstance(every_s, bool) or not isinstance(every_s, int | float) or not 0 < every_s < math.inf:
            raise OptionError(f"every_s is no number of seconds: {every_s!r}", hint="a number above 0, such as 1.0")
        self.path = path
        self._stats = stats
        self._failures = failures
        self._every_s = every_s
        self._begun = time.monotonic()
        self._num_told = 0  # failures that were written
        self._over = threading.Event()
        self._encoder = msgspec.json.Encoder()
        self._file = Lines(path)
        self._put(Beginning(time.time(), rank, _release(), os.getpid()))
        self._thread = threading.Thread(target=self._run, name="sds-record", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._note()

    def _note(self) -> None:
        after_s = time.monotonic() - self._begun
        self._put(Moment(after_s, self._stats()))
        failures = self._failures()[:_MAX_FAILURES]
        for failure in failures[self._num_told :]:
            self._put(Failed(after_s, failure))
        self._num_told = max(self._num_told, len(failures))

    def _put(self, line: Line) -> None:
        self._file.write(self._encoder.encode(line) + b"\n")

    def close(self) -> None:
        """Writes the last lines. Harmless when repeated."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        self._note()
        self._file.close()


def _release() -> str:
    try:
        return version("streaming-dataset")
    except PackageNotFoundError:  # run from its sources
        return "unknown"
