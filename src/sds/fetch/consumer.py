"""Consumer: whoever takes what is made of fetched files, and whether it asks for more right now.

A training loop that validates holds its batch, and everything made ahead waits: that is a pause, not a fault, however
long it lasts. A loop that asks and gets nothing is stuck, if all who make its batch are. Only the loader can tell, so
it says so here.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager

__all__ = ["Consumer", "Crew"]


class Crew:
    """The threads that make a consumer's batches, and which of them have something to do."""

    def __init__(self) -> None:
        self._at_work: set[int] = set()
        self._num_turns = 0
        self._lock = threading.Lock()

    @contextmanager
    def working(self) -> Iterator[None]:
        """This thread makes something while the block runs."""
        self._turn(is_at_work=True)
        try:
            yield
        finally:
            self._turn(is_at_work=False)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Inside of `working`: this thread waits for others of the crew while the block runs."""
        self._turn(is_at_work=False)
        try:
            yield
        finally:
            self._turn(is_at_work=True)

    def _turn(self, *, is_at_work: bool) -> None:
        with self._lock:
            self._num_turns += 1
            (self._at_work.add if is_at_work else self._at_work.discard)(threading.get_ident())

    def standstill(self, waiting: Container[int]) -> int | None:
        """A number if all who are at work are among these threads; as long as it stays, nobody did anything else."""
        with self._lock:
            is_still = bool(self._at_work) and all(thread in waiting for thread in self._at_work)
            return self._num_turns if is_still else None


class Consumer:
    """One training loop. Nobody is paused until somebody says that there is one."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._is_asking = False
        self._num_asked = 0
        self._crews: set[Crew] = set()
        self._is_paused_elsewhere: Callable[[], bool] = lambda: False
        self._spare: weakref.WeakMethod[Callable[[], None]] | None = None

    @contextmanager
    def asking(self) -> Iterator[None]:
        """This thread takes batches, and waits for one while the block runs."""
        self._num_asked += 1
        self._thread, self._is_asking = threading.get_ident(), True
        try:
            yield
        finally:
            self._is_asking = False

    def spare(self, let_go: Callable[[], None]) -> None:
        """A method that lets go of what is held only to be kind. It is not kept alive: what it holds knows us."""
        self._spare = weakref.WeakMethod(let_go)

    def give_way(self) -> None:
        """Lets go of that: somebody starves."""
        let_go = None if self._spare is None else self._spare()
        if let_go is not None:
            let_go()

    def employ(self, crew: Crew) -> None:
        """These threads make its batches, from now on."""
        self._crews.add(crew)

    def dismiss(self, crew: Crew) -> None:
        """They do no more."""
        self._crews.discard(crew)

    def standstill(self, holders: Iterable[int | None], waiting: Container[int]) -> object:
        """A value if none of those who hold files lets go of any while these threads wait; it stays as long as that.

        None: something goes on, or nobody can tell: it takes batches elsewhere, or of several crews.

        Args:
            holders: threads that hold files; None: whoever takes the batches that they are for.
            waiting: threads that wait for more files.
        """
        num_asked, crews = self._num_asked, list(self._crews)
        turns = [crew.standstill(waiting) for crew in crews]
        others = {holder for holder in holders if holder not in waiting}
        waits = self._is_asking and len(crews) == 1 and others <= {None, self._thread}
        if None in turns or (others and not waits):
            return None
        return (num_asked, turns)

    def end(self) -> None:
        """It takes no more."""
        self._thread = None

    def follow(self, is_paused: Callable[[], bool]) -> None:
        """It is in another process, and this function knows of it."""
        self._is_paused_elsewhere = is_paused

    def is_paused(self, waiting: Container[int]) -> bool:
        """Whether it does something else right now: it has not asked, nor is it among these threads, which wait."""
        thread = self._thread
        if thread is not None:
            return not self._is_asking and thread not in waiting
        return self._is_paused_elsewhere()
