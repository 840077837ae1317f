"""The one place where randomness is born: (seed, path) -> key or generator.

A path names what the randomness is for, such as ("order", epoch) or ("sample", epoch, key). The same path gives the
same numbers on every machine, in every process, after every resume; two different paths are independent.
"""

from __future__ import annotations

import hashlib
import operator
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

__all__ = ["derive", "derive_key", "derive_keys", "draw_seed", "jitter"]


def derive_key(seed: int, *path: int | str) -> int:
    """A 63-bit integer that is a pure function of seed and path (it fits an int64 tensor)."""
    return _hashed(_spelled(seed, path))


def derive_keys(seed: int, *path: int | str) -> Callable[[str], int]:
    """A function of text: `derive_keys(seed, *path)(part)` is `derive_key(seed, *path, part)`, in half the time."""
    head = hashlib.blake2b(_spelled(seed, (*path, ""))[: -len("'')")].encode(), digest_size=8)

    def of(part: str) -> int:
        hashed = head.copy()
        hashed.update(f"{str(part)!r})".encode())
        return int.from_bytes(hashed.digest(), "little") >> 1

    return of


def _spelled(seed: int, path: tuple[int | str, ...]) -> str:
    # repr of a tuple of ints and strings is unambiguous: (1, '1') and ('1', 1) differ. NumPy's scalars have a repr of
    # their own, which changes between its versions, so they are made plain first.
    plain = (str(part) if isinstance(part, str) else operator.index(part) for part in path)
    return repr((operator.index(seed), *plain))


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def derive(seed: int, *path: int | str) -> np.random.Generator:
    """A NumPy generator that is a pure function of seed and path."""
    import numpy as np  # here, because the fetch server wants a jitter and must start fast

    return np.random.Generator(np.random.PCG64(derive_key(seed, *path)))


def draw_seed() -> int:
    """A fresh seed from the system, for `shuffle_seed=-1`."""
    return secrets.randbits(31)


def jitter(low: float, high: float) -> float:
    """A number between the two that nobody can repeat, for waits that must not fall together over processes."""
    return low + (high - low) * secrets.randbits(32) / 2**32
