"""Train and validation: which rows are whose, by a hash of their ids alone.

Comes in: ids. Goes out: the bound below which an id's hash belongs to validation. The count is exact where ids are
unique; rows of one id are always on one side. The same ids give the same split on any machine, in any order; of a
larger index with the same share, most stay where they were. Hashes are kept in a file: memory does not grow with rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sds.errors import OptionError

__all__ = ["HashFile", "check_ratio", "hash_ids", "num_wanted"]

Hashes = npt.NDArray[np.uint64]

_PERSON = b"sds split"
_BITS = 16  # of a hash that one pass looks at
_BLOCK = 1 << 20


def hash_ids(ids: pa.ChunkedArray | pa.Array) -> Hashes:
    """The hashes of ids, by their text."""
    blake = hashlib.blake2b
    digests = [blake(text.encode(), digest_size=8, person=_PERSON).digest() for text in _texts(ids)]
    return np.frombuffer(b"".join(digests), np.dtype(">u8")).astype(np.uint64)


def _texts(ids: pa.ChunkedArray | pa.Array) -> list[str]:
    return ["" if text is None else text for text in ids.cast(pa.string()).to_pylist()]


def check_ratio(name: str, ratio: Any) -> float:
    """A share between 0 and 1, or an OptionError that names it."""
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio < 1:
        raise OptionError(f"{name} is no share: {ratio!r}", hint="a number from 0 to less than 1, such as 0.1")
    return float(ratio)


def num_wanted(num_rows: int, ratio: float, most: int | None) -> int:
    """How many rows validation gets."""
    wanted = round(num_rows * ratio)
    return wanted if most is None else min(wanted, most)


class HashFile:
    """Hashes of rows, in their order, on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO = open(path, "w+b")  # noqa: SIM115 (closed by `close`)
        self.num_rows = 0

    def append(self, hashes: Hashes) -> None:
        """Adds the hashes of the next rows."""
        self._file.write(hashes.tobytes())
        self.num_rows += len(hashes)

    def blocks(self) -> Iterator[Hashes]:
        """All of them, some at a time."""
        self._file.flush()
        with open(self._path, "rb") as file:
            while data := file.read(_BLOCK * 8):
                yield np.frombuffer(data, np.uint64)

    def read(self, start: int, count: int) -> Hashes:
        """Those of some rows."""
        self._file.flush()
        self._file.seek(start * 8)
        data = self._file.read(count * 8)
        self._file.seek(0, 2)
        return np.frombuffer(data, np.uint64)

    def bound(self, count: int) -> int:
        """The bound below which `count` hashes lie; fewer where rows share a hash, since those stay together."""
        if count >= self.num_rows:
            return 1 << 64
        prefix, left = 0, count  # the hash that is number `count` (from 0) begins with `prefix`
        for shift in range(64 - _BITS, -1, -_BITS):
            counts = np.zeros(1 << _BITS, np.int64)
            for block in self.blocks():
                if shift + _BITS < 64:
                    block = block[block >> np.uint64(shift + _BITS) == np.uint64(prefix)]
                digits = (block >> np.uint64(shift)) & np.uint64((1 << _BITS) - 1)
                counts += np.bincount(digits.astype(np.int64), minlength=1 << _BITS)
            ends = counts.cumsum()
            digit = int(np.searchsorted(ends, left, "right"))
            left -= int(ends[digit - 1]) if digit else 0
            prefix = prefix << _BITS | digit
        return prefix

    def count_below(self, bound: int) -> int:
        """How many are below a bound."""
        if bound >> 64:
            return self.num_rows
        return sum(int((block < np.uint64(bound)).sum()) for block in self.blocks())

    def is_below(self, start: int, count: int, bound: int) -> npt.NDArray[np.bool_]:
        """Which of some rows are below a bound."""
        hashes = self.read(start, count)
        return np.ones(len(hashes), bool) if bound >> 64 else hashes < np.uint64(bound)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> HashFile:  # noqa: PYI034 (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
