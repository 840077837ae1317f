"""Slab: the memory of a batch before the batch is there. Who makes a sample writes its tensors where they will lie.

Comes in: samples, each with its place in the step. Goes out: the same samples, with large tensors as rows of one piece
of memory for each field; collating them copies nothing. A thread copies what it has just made, so it is in its cache;
memory of batches that nobody has any more is used again. What does not fit (another shape, another device) stays.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy.typing as npt
import torch

from sds.tensors.spare import Spare
from sds.types import Sample

__all__ = ["Slab", "as_array", "has_memory"]

_LEAST = 16384  # bytes of a tensor that are worth it
_DTYPES = {
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
}


class _Room(NamedTuple):
    """The memory of a field: as it is, [n] uint8; a tensor for each sample, made at once; and as an array [b, ...]."""

    piece: torch.Tensor
    rows: tuple[torch.Tensor, ...]
    array: npt.NDArray[Any]


class Slab:
    """Memory for the tensors of so many samples. Threads may fill it side by side."""

    def __init__(self, num_samples: int, spare: Spare) -> None:
        self._num = num_samples
        self._spare = spare
        self._rooms: dict[str, _Room] = {}  # by field
        self._uneven: set[str] = set()  # fields that will be no tensor: their samples differ
        self._lock = threading.Lock()

    @property
    def memory(self) -> list[torch.Tensor]:
        """The pieces."""
        return [room.piece for room in self._rooms.values()]

    def put(self, place: int, sample: Sample) -> Sample:
        """The sample, its large tensors copied to their place; the dict that was given stays as it is."""
        moved = {}
        for field, value in sample.items():
            array = as_array(value) if field not in self._uneven else None
            if array is not None and array.nbytes >= _LEAST:
                room = self._rooms.get(field) or self._room(field, value)
                if room.array.shape[1:] == array.shape and room.array.dtype == array.dtype:
                    room.array[place] = array
                    moved[field] = room.rows[place]
                else:
                    self._uneven.add(field)
        return {**sample, **moved} if moved else sample

    def _room(self, field: str, like: torch.Tensor) -> _Room:
        with self._lock:
            if field not in self._rooms:
                piece = self._spare.take(self._num * like.nbytes)
                batch = piece.view(like.dtype).view(self._num, *like.shape)  # [b, ...]
                self._rooms[field] = _Room(piece, batch.unbind(0), batch.numpy())
            return self._rooms[field]


def has_memory(value: torch.Tensor) -> bool:
    """Whether a tensor is a plain one over memory of this machine."""
    return type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided


def as_array(value: Any) -> npt.NDArray[Any] | None:
    """A tensor's memory, for NumPy to copy in this thread, where torch would wake others of its own; or None."""
    if type(value) is not torch.Tensor or value.dtype not in _DTYPES:
        return None
    try:
        return value.numpy()
    except (RuntimeError, TypeError):  # it is elsewhere, part of a graph, or not what its memory holds
        return None
