"""The one place where randomness is born: (seed, path) -> key or generator.

A path names what the randomness is for, such as ("order", epoch) or ("sample", epoch, key). The same path gives the
same numbers on every machine, in every process, after every resume; two different paths are independent.
"""

from __future__ import annotations

import hashlib
import operator
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

__all__ = ["derive", "derive_key", "draw_seed", "jitter"]


def derive_key(seed: int, *path: int | str) -> int:
    """A 63-bit integer that is a pure function of seed and path (it fits an int64 tensor)."""
    # repr of a tuple of ints and strings is unambiguous: (1, '1') and ('1', 1) differ. NumPy's scalars have a repr of
    # their own, which changes between its versions, so they are made plain first.
    plain = (str(part) if isinstance(part, str) else operator.index(part) for part in path)
    digest = hashlib.blake2b(repr((operator.index(seed), *plain)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


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
