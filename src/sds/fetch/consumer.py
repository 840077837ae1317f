"""Consumer: whoever takes what is made of fetched files, and whether it asks for more right now.

A training loop that validates holds its batch, and everything made ahead waits: that is a pause, not a fault, however
long it lasts. A loop that asks and gets nothing is stuck. Only the loader can tell them apart, so it says so here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

__all__ = ["Consumer"]


class Consumer:
    """One training loop. Nobody is paused until somebody says that there is one."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._is_asking = False
        self._is_paused_elsewhere: Callable[[], bool] = lambda: False

    @contextmanager
    def asking(self) -> Iterator[None]:
        """This thread takes batches, and waits for one while the block runs."""
        self._thread, self._is_asking = threading.get_ident(), True
        try:
            yield
        finally:
            self._is_asking = False

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
