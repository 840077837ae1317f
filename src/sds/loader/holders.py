"""Holders: whether anybody has a tensor beside those who are known to.

Told by reference counts: of the tensor, of its memory (other tensors, views and arrays), and of the object that stands
for that memory. Tensors are named by their number in a tuple: a name for one of them would count as one who has it, and
how many more a call of Python counts differs while torch.compile is at work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

__all__ = ["CAN_TELL", "is_held"]

# of C++: who has a storage, and who has a tensor; torch has no public names for them
_uses_of_storage: Callable[[int], int] = getattr(torch._C, "_storage_Use_Count", lambda _: 0)
_uses_of_tensor: Callable[[torch.Tensor], int] = getattr(torch.Tensor, "_use_count", lambda _: 0)
CAN_TELL = hasattr(torch._C, "_storage_Use_Count") and hasattr(torch.Tensor, "_use_count")


def _count(tensors: tuple[torch.Tensor, ...], k: int) -> tuple[int, ...]:
    storage: Any = tensors[k].untyped_storage()
    return (
        sys.getrefcount(tensors[k]),
        _uses_of_tensor(tensors[k]),
        _uses_of_storage(storage._cdata),
        sys.getrefcount(storage),
    )


_FREE = _count((torch.from_numpy(np.zeros(1)),), 0)  # whoever counts, and the tuple


def is_held(tensors: tuple[torch.Tensor, ...], k: int, *, num_known: int = 0) -> bool:
    """Whether anybody has the tensor at a place, or a part of it, beside the tuple and so many that are known."""
    tensor, *others = _count(tensors, k)
    return (tensor - num_known, *others) != _FREE
