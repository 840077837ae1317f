"""The one place where randomness is born: (seed, path) -> key or generator.

A path names what the randomness is for, such as ("order", epoch) or ("sample", epoch, key). The same path gives the
same numbers on every machine, in every process, after every resume; two different paths are independent.
"""

from __future__ import annotations

import hashlib
import secrets

import numpy as np

__all__ = ["derive", "derive_key", "draw_seed"]


def derive_key(seed: int, *path: int | str) -> int:
    """A 63-bit integer that is a pure function of seed and path (it fits an int64 tensor)."""
    # repr of a tuple of ints and strings is unambiguous: (1, '1') and ('1', 1) differ
    digest = hashlib.blake2b(repr((int(seed), *path)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def derive(seed: int, *path: int | str) -> np.random.Generator:
    """A NumPy generator that is a pure function of seed and path."""
    return np.random.Generator(np.random.PCG64(derive_key(seed, *path)))


def draw_seed() -> int:
    """A fresh seed from the system, for `shuffle_seed=-1`."""
    return secrets.randbits(31)
