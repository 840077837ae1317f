"""Record: the stats of a run, written down as they grow, for `sds report` to draw.

Comes in: a function that gives Stats, and one that gives the rows that failed. Goes out: a file of JSON lines: a
Beginning, a Moment every second (later, every thousandth of the run), failures as they come, and a last Moment when the
loader is closed. A thread of its own writes, so that a run that hangs is recorded too; what a killed run wrote can be
read. The thread keeps no loader alive: it ends when its loader has.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sds.errors import OptionError
from sds.loader.trace import Lines, encoded, place_of
from sds.stats import Beginning, Failed, Line, Moment, Stats
from sds.types import Failure
from sds.world import World

__all__ = ["Record", "Recorded"]

_MAX_FAILURES = 1000
_SHARE = 1e-3  # of a run, between two lines: a month takes some megabytes


class Record:
    """Writes until it is closed.

    Args:
        path: the file; it is overwritten.
        stats: gives the stats, from any thread.
        failures: gives the rows that failed so far, from any thread.
        rank: of this process.
        every_s: seconds between two lines; more, when the run has taken a thousand times that.
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
        self._file = Lines(path)
        self._put(Beginning(time.time(), rank, _release(), os.getpid()))
        self._thread = threading.Thread(target=self._run, name="sds-record", daemon=True)
        self._thread.start()

    @property
    def pause_s(self) -> float:
        """Seconds until the next line."""
        return max(self._every_s, _SHARE * (time.monotonic() - self._begun))

    def _run(self) -> None:
        try:
            while not self._over.wait(self.pause_s):
                self._note()
        except ReferenceError:  # the loader is gone, and nobody closes this
            self._over.set()
            self._file.close()

    def _note(self) -> None:
        after_s = time.monotonic() - self._begun
        self._put(Moment(after_s, self._stats()))
        failures = self._failures()[:_MAX_FAILURES]
        for failure in failures[self._num_told :]:
            self._put(Failed(after_s, failure))
        self._num_told = max(self._num_told, len(failures))

    def _put(self, line: Line) -> None:
        self._file.write(encoded(line) + b"\n")

    def close(self) -> None:
        """Writes the last lines. Harmless when repeated."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        self._note()
        self._file.close()


class Recorded:
    """What has stats, and can write them down until it is closed."""

    _record: Record | None = None

    @property
    @abstractmethod
    def world(self) -> World:
        """This process among the others."""

    @abstractmethod
    def stats(self) -> Stats:
        """What happened so far, over this process and its workers."""

    @abstractmethod
    def _failures(self) -> list[Failure]:
        """The rows that failed."""

    def record(self, path: str | os.PathLike[str], *, every_s: float = 1.0) -> None:
        """Writes the stats down as they grow, slow downloads and failures too, for `sds report`; until `close()`.

        Args:
            path: a file of JSON lines; other ranks than the first have their rank in its name.
            every_s: seconds between two lines; a thousandth of the run, where that is more.
        """
        rank = self.world.rank
        place = place_of(path, rank)
        self._end_record()
        self._record = Record(place, _weakly(self.stats), _weakly(self._failures), rank=rank, every_s=every_s)

    def _end_record(self) -> None:
        record, self._record = self._record, None
        if record is not None:
            record.close()


def _weakly(method: Callable[[], Any]) -> Callable[[], Any]:
    """The method of an object that may go: a ReferenceError then."""
    found = weakref.WeakMethod(method)

    def call() -> Any:
        bound = found()
        if bound is None:
            raise ReferenceError
        return bound()

    return call


def _release() -> str:
    try:
        return version("streaming-dataset")
    except PackageNotFoundError:  # run from its sources
        return "unknown"
