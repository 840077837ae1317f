"""Wrapped: what the wrappers of this room share: to whoever asks, they are the loader that they go around.

Comes in: a loader, a wrapper around one, or anything to iterate over. Goes out: its length, stats, state and whatever
else it has, so that wrappers go around each other in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["Wrapped", "innermost"]


class Wrapped:
    """Something around a loader, which has what the loader has."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches: Any = batches

    def __len__(self) -> int:
        num_batches: int = len(self._batches)
        return num_batches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._batches, name)


def innermost(batches: Any) -> Any:
    """What is inside of all wrappers."""
    while isinstance(batches, Wrapped):
        batches = batches._batches
    return batches
