"""Keys: the keys of a cache as a sequence, read from the columns when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

__all__ = ["Keys"]


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
