"""Order: positions of an epoch -> row ids, asked anywhere. Bijection: an order in which every row comes once.

Comes in: an int, a slice, or an array of positions. Goes out: an int, or an int64 array of the same shape.
`b.inverse[b[x]] == x` for every x in [0, n) of a bijection; anything outside is an IndexError, never a wrapped answer.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

__all__ = ["Bijection", "Identity", "IntArray", "Order"]

IntArray: TypeAlias = npt.NDArray[np.int64]

_ITERATION_BLOCK = 4096


class Order(ABC):
    """A map of the positions [0, n)."""

    def __init__(self, n: int) -> None:
        self._n = n

    @abstractmethod
    def _one(self, x: int) -> int:
        """Maps one number that is known to be in range."""

    @abstractmethod
    def _many(self, xs: IntArray) -> IntArray:
        """Maps a flat array of numbers that are known to be in range."""

    @overload
    def __getitem__(self, x: int | np.integer[Any], /) -> int: ...
    @overload
    def __getitem__(self, x: slice | Sequence[int] | npt.NDArray[np.integer[Any]], /) -> IntArray: ...

    def __getitem__(
        self, x: int | np.integer[Any] | slice | Sequence[int] | npt.NDArray[np.integer[Any]], /
    ) -> int | IntArray:
        if isinstance(x, slice):
            return self._many(np.arange(*x.indices(self._n), dtype=np.int64))
        if isinstance(x, np.ndarray | list | tuple):
            return self._checked(np.asarray(x))
        number = operator.index(x)  # type: ignore[arg-type]
        # a negative position is a mistake upstream, not a count from the end
        if not 0 <= number < self._n:
            raise IndexError(f"out of range: {number} of [0, {self._n})")
        return self._one(number)

    def _checked(self, xs: npt.NDArray[Any]) -> IntArray:
        if xs.size == 0:  # NumPy makes an empty list a float array
            return np.empty(xs.shape, dtype=np.int64)
        if xs.dtype.kind not in "iu":
            raise IndexError(f"only integers can be looked up: dtype {xs.dtype}")
        # compared before the conversion: a uint64 beyond int64 would come out negative
        low, high = int(xs.min()), int(xs.max())
        if low < 0 or high >= self._n:
            raise IndexError(f"out of range: {low if low < 0 else high} of [0, {self._n})")
        return self._many(xs.astype(np.int64, copy=False).ravel()).reshape(xs.shape)

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self._n, _ITERATION_BLOCK):
            yield from self[start : start + _ITERATION_BLOCK].tolist()


class Bijection(Order):
    """A one-to-one map of [0, n) onto itself."""

    @property
    @abstractmethod
    def inverse(self) -> Bijection:
        """The same map, asked backwards."""


class Identity(Bijection):
    """The order that rows have already."""

    @property
    def inverse(self) -> Identity:
        """Itself."""
        return self

    def _one(self, x: int) -> int:
        return x

    def _many(self, xs: IntArray) -> IntArray:
        return np.array(xs)
