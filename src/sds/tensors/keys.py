"""Keys: the keys of a cache as a sequence, read from the columns when they are asked for; and where a key is.

Comes in: how a key is read, or the hashes of all keys. Goes out: keys by position, positions by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

__all__ = ["Keys", "Marks"]


class Marks:
    """Hashes of keys, in an order in which one is found quickly: 24 bytes each, which a million can have in memory.

    Args:
        hashes: those of each shard, as `hashes_of` gives them.
    """

    def __init__(self, hashes: Iterable[npt.NDArray[Any]] = ()) -> None:
        joined = np.concatenate([np.zeros(0, "S16"), *hashes])
        self._order = np.argsort(joined, kind="stable")
        self._sorted = joined[self._order]

    def __len__(self) -> int:
        return len(self._sorted)

    def find(self, mark: bytes) -> int | None:
        """Where the first key with this hash stands among all, or None."""
        place = int(np.searchsorted(self._sorted, np.bytes_(mark)))
        # NumPy's texts end before their last zero bytes
        is_there = place < len(self._sorted) and bytes(self._sorted[place]) == mark.rstrip(b"\0")
        return int(self._order[place]) if is_there else None

    def __contains__(self, mark: bytes) -> bool:
        return self.find(mark) is not None


class Keys(Sequence[str]):
    """The keys of a cache by position."""

    def __init__(self, num: int, key: Callable[[int], str], find: Callable[[str], int | None]) -> None:
        self._num, self._key, self._find = num, key, find

    def __len__(self) -> int:
        return self._num

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> list[str]: ...
    def __getitem__(self, position: int | slice) -> str | list[str]:
        if isinstance(position, slice):
            return [self._key(each) for each in range(*position.indices(self._num))]
        return self._key(position)

    def __iter__(self) -> Iterator[str]:
        return (self._key(position) for position in range(self._num))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as for a list

    def __repr__(self) -> str:
        return f"Keys({self._num})"
