"""Spare: memory of batches that nobody holds any more, for the batches to come.

Comes in: sizes. Goes out: tensors [n] uint8 with memory of their own, whatever was in it before. Memory that the kernel
has just given costs more to touch than to fill; so what comes back is kept, up to a few pieces.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Spare"]

_MAX_FREE = 4  # pieces that wait for their next use: memory that was in use at one time before
_SMALL = 256 << 10  # what is smaller is kept by the allocator itself


class Spare:
    """Pieces of memory that come back when no tensor uses them. Threads may share it; without locks."""

    def __init__(self) -> None:
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=_MAX_FREE)

    def take(self, num_bytes: int) -> torch.Tensor:
        """So many bytes: [n] uint8, with anything in them."""
        if num_bytes < _SMALL:
            return torch.empty(num_bytes, dtype=torch.uint8)
        memory = self._found(num_bytes)
        if memory is None:
            memory = np.empty(num_bytes, np.uint8)
        lent = memory.view()  # it dies with the last tensor on it
        weakref.finalize(lent, self._free.append, memory).atexit = False
        return torch.from_numpy(lent)

    def _found(self, num_bytes: int) -> npt.NDArray[np.uint8] | None:
        for _ in range(_MAX_FREE):
            try:
                memory = self._free.popleft()
            except IndexError:
                return None
            if memory.nbytes == num_bytes:
                return memory
            self._free.append(memory)
        return None

    def clear(self) -> None:
        """Gives up what waits."""
        self._free.clear()
