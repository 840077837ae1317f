"""CommonBoard: counts of a lazy index that ranks exchange, when each machine has a cache folder of its own.

Comes in: torch.distributed's key-value store. Goes out: claims and results of shares (see sds.index.lazy_shares). It is
a help and no more: without the store, or when it is gone, a rank counts everything itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch.distributed as dist

from sds.dataset.agree import common_store
from sds.index.lazy_together import OpenBoard
from sds.world import World

__all__ = ["CommonBoard", "open_board"]


def open_board(world: World) -> OpenBoard | None:
    """What gives the ranks of a world a board by its name; None if they were not brought together."""
    store = common_store(world)
    return None if store is None else partial(CommonBoard, store)


class CommonBoard:
    """Results and claims as entries of the store. A claim of a rank that died stays: others do not wait for it long."""

    def __init__(self, store: Any, name: str) -> None:
        self._store = store
        self._name = f"sds/counts/{name}"

    def find(self, share: int) -> bytes | None:
        """A share's result; None: there is none yet."""
        key = f"{self._name}/{share}"
        with contextlib.suppress(dist.DistError):
            if self._store.check([key]):
                return bytes(self._store.get(key))
        return None

    @contextlib.contextmanager
    def claimed(self, share: int) -> Iterator[bool]:
        """Whether the share is this rank's to do, until the block ends."""
        is_mine = self._add(share, 1) == 1
        try:
            yield is_mine
        finally:
            self._add(share, -1)

    def publish(self, share: int, result: bytes) -> None:
        """Makes a result known to all ranks."""
        with contextlib.suppress(dist.DistError):
            self._store.set(f"{self._name}/{share}", result)

    def _add(self, share: int, number: int) -> int:
        try:
            return int(self._store.add(f"{self._name}/{share}/claims", number))
        except dist.DistError:
            return 1  # nobody is there to claim it
