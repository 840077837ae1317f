"""How a loader lives: one iteration at a time, which ends when its caller leaves it, opens another, or closes."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, TypeVar

from sds.loader.making import Making

__all__ = ["Life"]

L = TypeVar("L", bound="Life")


class Life:
    """What both loaders share: `_making` makes their batches, `_running` is the iteration that takes them."""

    _making: Making
    # if its caller still has it: leaving a loop ends it
    _running: weakref.ref[Iterator[Any]] | None = None

    def _run(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Notes an iteration that begins."""
        self._running = weakref.ref(batches)
        return batches

    def _stop(self) -> None:
        running = None if self._running is None else self._running()
        if running is not None:
            running.close()  # type: ignore[attr-defined]  # a generator

    def close(self) -> None:
        """Ends threads and workers, in the midst of an iteration or not. The loader can be used again."""
        self._stop()
        self._making.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None}

    def __enter__(self: L) -> L:  # noqa: PYI019 (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
