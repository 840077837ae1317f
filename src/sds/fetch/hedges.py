"""Hedges: when to ask a second time for an object that takes unusually long.

Comes in: how long requests took, by store and size. Goes out: after how many seconds one is a straggler, and whether a
second request may be spent on it: never more than one in twenty. Not thread-safe: the server locks.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Hedges"]

_FLOOR_S = 1.0  # what comes within this is no straggler
_TIMES = 3.0  # of the 95th percentile
_SHARE = 0.05  # of the requests, at most
_MEMORY = 128  # a percentile is one of so many latest requests
_FEW = 20  # of fewer, nothing is said
_REFRESH = 16
_MAX_SAVED = 8.0  # hedges that may be spent in a row
_MAX_KNOWN = 1000  # an index may name millions of hosts
_ANY = -1  # size


class _Times:
    """How long the latest requests took, and what follows from it."""

    def __init__(self) -> None:
        self.patience_s: float | None = None
        self._times: deque[float] = deque(maxlen=_MEMORY)
        self._number = 0

    def add(self, seconds: float) -> None:
        self._times.append(seconds)
        self._number += 1
        if self._number == _FEW or (self._number > _FEW and not self._number % _REFRESH):
            high = sorted(self._times)[int(0.95 * len(self._times))]
            self.patience_s = max(_FLOOR_S, _TIMES * high)


class Hedges:
    """What is usual, and what may be spent."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Times] = {}
        self._saved = 0.0

    def took(self, root: str, size: int, seconds: float) -> None:
        """A request came through."""
        self._saved = min(self._saved + _SHARE, _MAX_SAVED)
        for key in ((root, _class(size)), (root, _ANY)):
            times = self._known.get(key)
            if times is None:
                times = self._known[key] = _Times()
                if len(self._known) > _MAX_KNOWN:
                    del self._known[next(iter(self._known))]
            times.add(seconds)

    def patience_s(self, root: str, size: int | None) -> float | None:
        """After how long an object of this size (None: not known yet) is a straggler; None: nobody can say yet."""
        alike = None if size is None else self._known.get((root, _class(size)))
        times = alike if alike is not None and alike.patience_s else self._known.get((root, _ANY))
        return None if times is None else times.patience_s

    def spend(self) -> bool:
        """Whether a second request may be made; if so, it is spent."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


def _class(size: int) -> int:
    """Sizes within a factor of four are alike."""
    return size.bit_length() // 2
