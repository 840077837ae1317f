"""Around: what prefetchers and broadcasts share, which hand out the batches of a loader inside of them.

Comes in: that loader: ours, somebody else's, or none, where another rank reads. Goes out: its stats, trace and record,
as the caller of the outermost sees them: the batches that it got, what it waited for, and its own work.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from typing import Any

from sds.errors import OptionError
from sds.events import Stats, Tally
from sds.loader.life import Life
from sds.loader.record import Recorded
from sds.loader.trace import TWO_TRACES, Trace, place_of
from sds.stats import seen_from_outside
from sds.types import Failure
from sds.world import World

__all__ = ["Around", "innermost"]


class Around(Recorded):
    """Something around a loader."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._trace: Trace | None = None  # where the loader has none of its own

    @property
    @abstractmethod
    def reader(self) -> Any:
        """The loader that reads; None: another rank does."""

    @property
    def _own(self) -> Life | Around | None:
        """The loader, if it is one of ours: it counts, and can be traced."""
        return self.reader if isinstance(self.reader, Life | Around) else None

    @property
    def world(self) -> World:
        """This process among the others."""
        return World.detect() if self._own is None else self._own.world

    @property
    def num_given(self) -> int:
        """Samples that were handed out, over all iterations; of a loader that does not count them, 0."""
        return self._tally.num_samples

    def stats(self) -> Stats:
        """The loader's stats as this caller sees them: 'device' is the time of copies, 'consumer' what it waited.

        A loader of somebody else has none: 'loader' is the time that was spent on waiting for it.
        """
        mine = self._tally.stats()
        if self._own is None:
            return mine
        whole = self._own.stats()
        return seen_from_outside(mine, whole) if mine.batches else whole

    def _failures(self) -> list[Failure]:
        return [] if self._own is None else self._own._failures()

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes each piece of work of the coming iterations to a file for Perfetto; complete after `close()`.

        Call it before iterating. It is the loader's trace, with what is done here in it; of a loader of somebody else,
        only that.

        Args:
            path: a JSON file; other ranks than the first have their rank in its name.
        """
        if self._own is not None:
            self._own.trace(path)
            return
        if self._trace is not None and self._tally.probe is self._trace:
            raise OptionError(TWO_TRACES, hint=f"leave the loop first; {self._trace.path} has this iteration")
        place = place_of(path, self.world.rank)
        self._end_trace()
        self._trace = Trace(place, self.world.rank)

    @property
    def listener(self) -> Trace | None:
        """The trace that is written."""
        return self._trace if self._own is None else self._own.listener

    def _end_trace(self) -> None:
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.close()

    def _end_listening(self) -> None:
        """When the loader is closed, and has counted all there was."""
        self._end_trace()
        self._end_record()

    def _begin_tally(self) -> None:
        """An iteration begins."""
        self._tally.begin()
        self._tally.probe = self.listener

    def _note_wait(self, asked: float, is_first: bool) -> None:
        """The caller has waited for a batch since `asked`."""
        waited = time.perf_counter() - asked
        self._tally.add_wait("consumer", waited, start_s=asked)
        if is_first:
            self._tally.add_wait("startup", waited)


def innermost(loader: Any) -> Any:
    """The loader that reads, inside of whatever is around it; None: another rank does."""
    while isinstance(loader, Around):
        loader = loader.reader
    return loader
