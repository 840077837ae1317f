"""Hands: threads that help the one that copies, and sleep while nobody does.

Comes in: work that any number of threads may do at once, each taking the next piece until none is left. Goes out: the
work done. A helper that comes too late has nothing to do, and nobody waits for one that has not begun.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TypeVar

__all__ = ["MAX_HANDS", "Hands", "taken"]

T = TypeVar("T")

MAX_HANDS = 4  # copies are bound by the memory's speed, which few threads use up


def taken(pieces: deque[T]) -> Iterator[T]:
    """The pieces, one after the other, as far as no other thread takes them."""
    while pieces:
        try:
            piece = pieces.popleft()
        except IndexError:  # another thread was faster
            return
        yield piece


class _Work:
    """Work that helpers may join until it is over, and what became of those that did."""

    def __init__(self, do: Callable[[], None], num_helpers: int) -> None:
        self._do = do
        self._tickets = deque(range(num_helpers))  # who has one may join: nobody gets the same
        self._num_helpers = num_helpers
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def join(self) -> None:
        """What a helper does."""
        try:
            self._tickets.pop()
        except IndexError:  # too late
            return
        error = None
        try:
            self._do()
        except BaseException as caught:  # noqa: BLE001 (the caller raises it)
            error = caught
        self._ended.put(error)
        del error  # its traceback has this frame: each would keep the other, and the caller's memory

    def run(self) -> None:
        """What the caller does: returns when all who have joined are through."""
        try:
            self._do()
        finally:
            num_joined = self._num_helpers
            while self._tickets:
                try:
                    self._tickets.pop()
                    num_joined -= 1
                except IndexError:
                    break
            # they fill memory of the caller, so they are waited for whatever happened
            ended = [self._ended.get() for _ in range(num_joined)]
            errors = deque([error for error in ended if error is not None])
            del ended
        if errors:
            raise errors.popleft()  # no name is left for it: its traceback has this frame


class _Crew:
    """The threads of one process, and what they are to do."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._num_threads = 0

    def grow(self, num: int) -> None:
        """Begins threads until there are so many; a few more, if two callers do so at once."""
        try:
            while self._num_threads < num:
                self._num_threads += 1
                threading.Thread(target=_help, args=(self.queue,), name="sds-read", daemon=True).start()
        except RuntimeError:  # there may be no more threads, or the program ends: it is done without help
            self._num_threads -= 1


class Hands:
    """A few threads, begun when first needed, and again after a fork. They end when this does."""

    def __init__(self) -> None:
        self._crews: dict[int, _Crew] = {}  # process -> its own: a fork has none of its parent's threads

    def share(self, num: int, do: Callable[[], None]) -> None:
        """Does work here, and in up to `num - 1` other threads at the same time; returns when all are through.

        Args:
            num: how many threads at most, this one included.
            do: takes the next piece of what is to be done, until none is left.
        """
        num_helpers = min(num, MAX_HANDS) - 1
        if num_helpers < 1:
            do()
            return
        # no lock, which a fork could inherit locked: of several callers that come first, one sets the crew of all
        crew = self._crews.get(os.getpid()) or self._crews.setdefault(os.getpid(), _Crew())
        crew.grow(num_helpers)
        work = _Work(do, num_helpers)
        for _ in range(num_helpers):
            crew.queue.put(work)
        work.run()

    def close(self) -> None:
        """Ends the threads; they are begun again when needed."""
        crew = self._crews.pop(os.getpid(), None)
        if crew is not None:
            crew.queue.put(None)

    def __del__(self) -> None:
        if os is not None:  # at the end of the program modules go first, and threads end with it
            self.close()


def _help(queue: SimpleQueue[_Work | None]) -> None:
    while (work := queue.get()) is not None:
        work.join()
        del work  # it has the caller's memory
    queue.put(None)  # for the next one
