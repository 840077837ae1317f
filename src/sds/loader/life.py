"""How a loader lives: one iteration at a time, which ends when its caller leaves it, opens another, or closes.

Who listens (a trace, a record of the run) lives until the loader is closed.
"""

from __future__ import annotations

import os
import time
import weakref
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

from sds.errors import OptionError, SdsError
from sds.loader.making import Making
from sds.loader.record import Recorded
from sds.loader.trace import TWO_TRACES, Trace, place_of

__all__ = ["Life", "close_unless_it_runs"]

L = TypeVar("L", bound="Life")

_PATIENCE_S = 2.0  # for another thread to have the batch that it waits for
_POLL_S = 0.01


def close_unless_it_runs(batches: Any) -> bool:
    """Closes a generator; False: another thread is inside of it."""
    try:
        batches.close()
    except ValueError as error:
        if str(error) != "generator already executing":
            raise
        return False
    return True


class Life(Recorded):
    """What both loaders share: `_making` makes their batches, `_running` is the iteration that takes them."""

    _making: Making
    # if its caller still has it: leaving a loop ends it
    _running: weakref.ref[Iterator[Any]] | None = None

    @property
    @abstractmethod
    def num_jumps(self) -> int:
        """How often it was told to go on somewhere else, by a state or an epoch."""

    @property
    def num_given(self) -> int:
        """Samples that were handed out, over all iterations."""
        return self._making.num_given

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes each piece of work of the coming iterations to a file for Perfetto; complete after `close()`.

        Call it before iterating. A later call begins another file, between iterations.

        Args:
            path: a JSON file; other ranks than the first have their rank in its name.

        Raises:
            OptionError: a trace is being written of the iteration that runs.
        """
        running = None if self._running is None else self._running()
        if self.listener is not None and getattr(running, "gi_frame", None) is not None:
            raise OptionError(TWO_TRACES, hint=f"leave the loop first; {self.listener.path} has this iteration")
        place = place_of(path, self.world.rank)
        self._end_trace()
        self._making.trace = Trace(place, self.world.rank)

    @property
    def listener(self) -> Trace | None:
        """The trace that is written."""
        return self._making.trace

    def _end_trace(self) -> None:
        trace, self._making.trace = self._making.trace, None
        if trace is not None:
            trace.close()

    def _run(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Notes an iteration that begins."""
        self._making.cancelling.is_set = False
        self._running = weakref.ref(batches)
        return batches

    def _stop(self) -> None:
        running = None if self._running is None else self._running()
        deadline = time.monotonic() + _PATIENCE_S
        while running is not None and not close_unless_it_runs(running):
            if time.monotonic() > deadline:
                hint = "wait until that thread has its batch, or use the methods of the prefetcher that it is of"
                raise SdsError("another thread is reading from this loader", hint=hint, stage="loader")
            time.sleep(_POLL_S)

    def cancel(self) -> None:
        """Ends the iteration that runs, from another thread: who waits there for a batch gets an SdsError soon.

        It returns at once. A transform that runs is not ended, but waited for by the thread that reads.
        """
        self._making.cancelling.is_set = True

    def close(self) -> None:
        """Ends threads and workers, in the midst of an iteration or not. The loader can be used again."""
        self._stop()
        self._making.close()
        self._end_trace()
        self._end_record()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None, "_record": None}

    def __enter__(self: L) -> L:  # noqa: PYI019 (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
