"""Budget: the bytes of batches that workers have made and nobody has taken yet, kept under a limit by all of them.

Comes in: what each worker made, what the main process took. A worker that has made a batch waits until there is room
for it, unless it is the one that the main process waits for: that one may always go on, so nobody waits for ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from sds.dataset.shared import SharedBlock

__all__ = ["Budget", "num_bytes"]

_OWNER, _TAKEN, _TAKEN_BYTES, _FIRST = 0, 1, 2, 3  # places in the block; then the bytes that each worker made
_POLL_S = 0.005


class Budget:
    """What a process shares with its workers. Each place has one writer, so nothing is locked."""

    def __init__(self, max_bytes: float, num_workers: int) -> None:
        self._max_bytes = max_bytes
        self._block = SharedBlock(_FIRST + num_workers)

    def begin(self) -> None:
        """In the main process, before workers begin an epoch: nothing was made."""
        self._block[_OWNER] = os.getpid()
        for k in range(_TAKEN, len(self._block)):
            self._block[k] = 0

    def take(self, num_bytes: int) -> None:
        """In the main process: the next batch was taken."""
        self._block[_TAKEN] += 1
        self._block[_TAKEN_BYTES] += num_bytes

    @property
    def waiting(self) -> int:
        """Bytes that were made and not taken."""
        return sum(self._block[k] for k in range(_FIRST, len(self._block))) - self._block[_TAKEN_BYTES]

    def wait(self, worker: int, number: int, num_bytes: int) -> None:
        """In a worker: step `number` was made, and is about to be sent. Waits for room, or until it is its turn."""
        parent = os.getppid()
        while self._block[_TAKEN] < number and self.waiting + num_bytes > self._max_bytes:
            if os.getppid() != parent or _is_gone(self._block[_OWNER]):
                return  # nobody will take anything
            time.sleep(_POLL_S)
        self._block[_FIRST + worker] += num_bytes


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def num_bytes(value: Any) -> int:
    """Bytes of the tensors and arrays in a batch, and of text and bytes."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return int(value.nbytes)
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(num_bytes, value.values()))
    return sum(map(num_bytes, value)) if isinstance(value, list | tuple) else 0
