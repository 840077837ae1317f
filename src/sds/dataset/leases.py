"""How long a delivered sample's files stay: until the caller asks for what comes next, if the sample still names them.

Comes in: tickets and the samples that were made of their files. A sample that no longer names a path (it was decoded
into tensors) lets its files go at once, so that a tight cache limit is no obstacle.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from typing import Any

import numpy as np
import torch

from sds.fetch import Ticket
from sds.types import Sample

__all__ = ["Leases", "names_any"]

_USUAL = {int, float, bool, bytes, torch.Tensor, np.ndarray, type(None)}  # what most values are: no need to look twice
_PLAIN = (int, float, complex, bytes, bytearray, np.ndarray, np.generic, torch.Tensor, type(None))


class Leases:
    """Tickets of delivered samples: the last `keep` groups are held, or fewer if they pass `max_bytes` of files.

    Safe from many threads.
    """

    def __init__(self, keep: int = 1, max_bytes: int | None = None) -> None:
        self._keep = keep
        self._max_bytes = max_bytes
        self._groups: deque[tuple[list[Ticket], int, int]] = deque()  # tickets, bytes, and the thread they are for
        self._num_bytes = 0
        self._lock = threading.RLock()

    def hold(self, tickets: list[Ticket]) -> None:
        """Holds the tickets of a sample or batch that is about to be delivered; lets go of those that are past."""
        for ticket in tickets:
            ticket.hand_to(threading.get_ident())  # when this thread goes on, they come free
        size = sum(ticket.num_bytes for ticket in tickets) if self._max_bytes is not None else 0
        with self._lock:
            self._groups.append((tickets, size, threading.get_ident()))
            self._num_bytes += size
            while len(self._groups) > 1 and (
                len(self._groups) > self._keep or (self._max_bytes is not None and self._num_bytes > self._max_bytes)
            ):
                self._let_go()

    def trim(self) -> None:
        """Lets all go but the last of each thread that lives: somebody waits for room."""
        with self._lock:
            last = {thread: k for k, (_, _, thread) in enumerate(self._groups)}
            kept = {k for thread, k in last.items() if thread in sys._current_frames()} | {len(self._groups) - 1}
            groups = list(enumerate(self._groups))
            self._groups = deque(group for k, group in groups if k not in kept)
            while self._groups:
                self._let_go()
            self._groups.extend(group for k, group in groups if k in kept)

    def release(self) -> None:
        """Lets everything go."""
        with self._lock:
            while self._groups:
                self._let_go()

    def _let_go(self) -> None:
        tickets, size, _ = self._groups.popleft()
        self._num_bytes -= size
        for ticket in tickets:
            ticket.release()


def names_any(value: Any, paths: list[str]) -> bool:
    """Whether a sample (or anything in it) may still name one of the paths. Unknown objects may."""
    if type(value) in _USUAL:
        return False
    if isinstance(value, str):
        for path in paths:  # noqa: SIM110 (a generator costs more than the search itself)
            if path in value:
                return True
        return False
    if isinstance(value, _PLAIN):
        return False
    if isinstance(value, dict | list | tuple | set):
        for each in value.values() if isinstance(value, dict) else value:
            if type(each) not in _USUAL and names_any(each, paths):
                return True
        return False
    if isinstance(value, os.PathLike):
        return os.fspath(value) in paths
    return True


def must_hold(samples: list[Sample], ticket: Ticket) -> bool:
    """Whether samples need their ticket's files after the transforms."""
    return ticket.is_leased and any(names_any(sample, ticket.paths) for sample in samples)
