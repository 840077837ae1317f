"""Places: where the tensors of a sample will lie in their batch, for transforms that can write there at once.

A loader that has seen what its batches look like lends each sample its place while the transforms run. Who makes a
tensor for a field asks for it, and makes memory of its own where there is none. Nobody has to ask: what lies elsewhere
is copied when the sample is done.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt
import torch

__all__ = ["Lender", "Place", "lend_from", "place_for"]


class Place(NamedTuple):
    """Memory for one tensor, and the same memory as an array, to be written to."""

    tensor: torch.Tensor
    array: npt.NDArray[Any]


class Lender(Protocol):
    """Whoever has places for the sample that this thread makes."""

    def lend(self, field: str, shape: tuple[int, ...], dtype: torch.dtype) -> Place | None:
        """A place that nobody has, or None."""


class _Here(threading.local):
    lender: Lender | None = None


_here = _Here()


def lend_from(lender: Lender | None) -> None:
    """What this thread makes from now on may be put there."""
    _here.lender = lender


def place_for(field: str, shape: tuple[int, ...], dtype: torch.dtype) -> Place | None:
    """Memory for a field of the sample that this thread makes, to be filled and put into that field; or None."""
    lender = _here.lender
    return None if lender is None else lender.lend(field, shape, dtype)
