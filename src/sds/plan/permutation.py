"""Permutation: a keyed bijection on [0, n), the global shuffle that takes no memory.

Comes in: positions. Goes out: ids; through `inverse`, positions again. A Feistel network permutes the smallest power
of two that holds n, and an answer outside [0, n) is put through again until it falls inside (cycle-walking), which
keeps it a bijection and costs less than two passes on average. The numbers are pinned: they never change.
"""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np

from sds import seeds
from sds.plan.arguments import whole
from sds.plan.bijection import Bijection, IntArray

__all__ = ["MAX_ROWS", "Permutation"]

MAX_ROWS = 2**40

# Below this a Feistel network has too few bits in each half to reach a fair share of all permutations, and a table of
# them is small; so small n get an exact shuffle.
_TABLE_LIMIT = 2**12

# With four rounds, neighbours at a distance of a power of two are visibly correlated; with five, no statistic that we
# tried (tests/properties) tells the answer from a random permutation. Eight leave a margin.
_NUM_ROUNDS = 8

# Four arrays of this many uint64 lie in the L2 cache of current processors: 1.6 times as fast as whole arrays.
_BLOCK = 1 << 14

# A pass of NumPy calls over a short array costs about as much as this many numbers one by one.
_FEW = 12

# The round function: add the round key, multiply, fold the high half down, multiply, keep the highest bits.
_MULTIPLY_1 = 0x9E3779B97F4A7C15
_MULTIPLY_2 = 0xD6E8FEB86659FD93
_FOLD = 32
_WORD = 64
_MASK = 2**_WORD - 1


class Permutation(Bijection):
    """A keyed bijection on [0, n): `p[positions] -> ids`, `p.inverse[ids] -> positions`.

    Ints give ints; slices and integer arrays give int64 arrays. What is out of range raises IndexError.

    Args:
        n: how many there are, from 1 to 2**40.
        key: any int; another key is another, independent permutation.
    """

    def __init__(self, n: SupportsIndex, key: SupportsIndex) -> None:
        super().__init__(whole("n", n, least=1, most=MAX_ROWS))
        self._key = whole("key", key)
        make = _make_table if self._n <= _TABLE_LIMIT else _make_network
        self._forward = make(self._n, self._key)
        self._backward = self._forward.inverse

    @property
    def key(self) -> int:
        """The key that it was made with."""
        return self._key

    @property
    def inverse(self) -> Bijection:
        """The map from ids back to positions."""
        return self._backward

    def _one(self, x: int) -> int:
        return self._forward._one(x)

    def _many(self, xs: IntArray) -> IntArray:
        return self._forward._many(xs)

    def __repr__(self) -> str:
        return f"Permutation({self._n}, {self._key})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Permutation):
            return NotImplemented
        return (self._n, self._key) == (other._n, other._key)

    def __hash__(self) -> int:
        return hash((self._n, self._key))

    def __reduce__(self) -> tuple[Any, ...]:
        return Permutation, (self._n, self._key)


def _make_table(n: int, key: int) -> Bijection:
    # Sorting random words is an exact shuffle. Raw words of a bit generator are stable between versions of NumPy,
    # which Generator.permutation need not be.
    words = np.asarray(seeds.derive(key, "table", n).bit_generator.random_raw(n))
    ids = np.argsort(words, kind="stable").astype(np.int64, copy=False)
    positions = np.empty_like(ids)
    positions[ids] = np.arange(n)
    return _Table(ids, positions)


def _make_network(n: int, key: int) -> Bijection:
    # n is part of the key: else two datasets of nearly the same size would come in nearly the same order
    return _Network(n, tuple((i % 2 == 0, seeds.derive_key(key, "round", n, i)) for i in range(_NUM_ROUNDS)))


class _Table(Bijection):
    """A bijection written down, with its inverse."""

    def __init__(self, there: IntArray, back: IntArray) -> None:
        super().__init__(len(there))
        self._there = there
        self._back = back

    @property
    def inverse(self) -> _Table:
        return _Table(self._back, self._there)

    def _one(self, x: int) -> int:
        return int(self._there[x])

    def _many(self, xs: IntArray) -> IntArray:
        return self._there[xs]


class _Network(Bijection):
    """An unbalanced Feistel network with cycle-walking. A round is (whether it changes the high half, its key)."""

    def __init__(self, n: int, rounds: tuple[tuple[bool, int], ...]) -> None:
        super().__init__(n)
        num_bits = (n - 1).bit_length()
        self._low = num_bits // 2
        self._high = num_bits - self._low
        self._rounds = rounds

    @property
    def inverse(self) -> _Network:
        # each round XORs one half with a hash of the other, so it is its own inverse: the way back is the same rounds
        # in reverse
        return _Network(self._n, self._rounds[::-1])

    def _one(self, x: int) -> int:
        # the same arithmetic as _pass in Python ints: a NumPy call on one number costs more than the whole network
        low, low_mask, high_shift, low_shift = self._low, (1 << self._low) - 1, _WORD - self._high, _WORD - self._low
        while True:
            hi, lo = x >> low, x & low_mask
            for changes_high, key in self._rounds:
                word = ((lo if changes_high else hi) + key) * _MULTIPLY_1 & _MASK
                word = (word ^ word >> _FOLD) * _MULTIPLY_2 & _MASK
                if changes_high:
                    hi ^= word >> high_shift
                else:
                    lo ^= word >> low_shift
            x = hi << low | lo
            if x < self._n:
                return x

    def _many(self, xs: IntArray) -> IntArray:
        ids = self._pass(xs)
        outside = np.flatnonzero(ids >= self._n)
        while outside.size > _FEW:
            walked = self._pass(ids[outside])
            ids[outside] = walked
            outside = outside[walked >= self._n]
        for i in outside.tolist():
            ids[i] = self._one(int(ids[i]))
        return ids

    def _pass(self, xs: IntArray) -> IntArray:
        """Puts every number through the network once; answers lie in the power of two, not yet in [0, n)."""
        out = np.empty_like(xs)
        spare = np.empty((2, min(_BLOCK, xs.size)), dtype=np.uint64)
        low, low_mask = np.uint64(self._low), np.uint64((1 << self._low) - 1)
        high_shift, low_shift = np.uint64(_WORD - self._high), np.uint64(_WORD - self._low)
        multiply_1, multiply_2, fold = np.uint64(_MULTIPLY_1), np.uint64(_MULTIPLY_2), np.uint64(_FOLD)
        rounds = [(changes_high, np.uint64(key)) for changes_high, key in self._rounds]
        for start in range(0, xs.size, _BLOCK):
            block = xs[start : start + _BLOCK].view(np.uint64)
            hi, lo = block >> low, block & low_mask
            word, folded = spare[:, : block.size]
            for changes_high, key in rounds:
                np.add(lo if changes_high else hi, key, out=word)
                np.multiply(word, multiply_1, out=word)
                np.right_shift(word, fold, out=folded)
                np.bitwise_xor(word, folded, out=word)
                np.multiply(word, multiply_2, out=word)
                np.right_shift(word, high_shift if changes_high else low_shift, out=word)
                half = hi if changes_high else lo
                np.bitwise_xor(half, word, out=half)
            np.left_shift(hi, low, out=hi)
            np.bitwise_or(hi, lo, out=out[start : start + _BLOCK].view(np.uint64))
        return out
