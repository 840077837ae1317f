"""Scratch: memory of a thread for pixels between two steps of one transform, which nobody keeps.

Comes in: a purpose and a shape. Goes out: a sheet with anything on it, good until this thread asks for the same purpose
again. Memory that was just used is still in the processor's cache, and costs no page faults.
"""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Sheet", "scratch"]

_MOST = 16 << 20  # bytes that a thread keeps for a purpose: what is larger is taken anew each time


class Sheet(NamedTuple):
    """Pixels [h, w, c] without gaps, and the same memory as torch resizes it: [1, c, h, w]."""

    pixels: npt.NDArray[Any]
    batch: torch.Tensor

    @classmethod
    def of(cls, pixels: npt.NDArray[Any]) -> Sheet:
        """The view is NumPy's: each view that torch makes lets another thread have Python, and waits to get it back."""
        return cls(pixels, torch.from_numpy(pixels[None].transpose(0, 3, 1, 2)))


class _Kept(threading.local):
    def __init__(self) -> None:
        self.memory: dict[str, npt.NDArray[np.uint8]] = {}
        self.sheets: dict[str, Sheet] = {}


_kept = _Kept()


def scratch(purpose: str, shape: tuple[int, ...], dtype: Any = np.uint8) -> Sheet:
    """A sheet of this thread's own."""
    sheet = _kept.sheets.get(purpose)
    if sheet is not None and sheet.pixels.shape == shape and sheet.pixels.dtype == dtype:
        return sheet
    dtype = np.dtype(dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes > _MOST:
        return Sheet.of(np.empty(shape, dtype))
    memory = _kept.memory.get(purpose)
    if memory is None or memory.nbytes < num_bytes:
        memory = _kept.memory[purpose] = np.empty(num_bytes, np.uint8)
    sheet = _kept.sheets[purpose] = Sheet.of(memory[:num_bytes].view(dtype).reshape(shape))
    return sheet
