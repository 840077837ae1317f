"""Slab: the memory of a batch before the batch is there. Who makes a sample writes its tensors where they will lie.

Comes in: samples, each with its place in the step. Goes out: the same samples, with large tensors as rows of one piece
of memory for each field; collating them copies nothing. A transform may ask for its row and write there itself; what
lies elsewhere is copied by the thread that has just made it, so it is in its cache. Memory of batches that nobody has
any more is used again. What does not fit (another shape, another device) stays.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, TypeAlias

import numpy.typing as npt
import torch

from sds.tensors.spare import Spare
from sds.transforms.places import Place
from sds.types import Sample

__all__ = ["Berth", "Slab", "Slabs", "as_array", "has_memory"]

_LEAST = 16384  # bytes of a tensor that are worth it
_DTYPES = {
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
}
_Form: TypeAlias = tuple[tuple[int, ...], torch.dtype]  # shape and dtype of one sample's tensor


class Slabs:
    """The slabs of a loop, one after the other: memory that is used again, and what was learnt of its batches.

    Args:
        is_shared: the memory can be sent to another process as it is; it is not used again.
    """

    def __init__(self, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        self.forms: dict[tuple[str | None, str], _Form] = {}  # of the last batch, by stream and field
        self.apart: set[tuple[str | None, str]] = set()  # fields that are not lent: somebody keeps what was, or copies
        self._spare = Spare()

    def slab(self, num_samples: int, stream: str | None = None) -> Slab:
        """Memory for the next step."""
        return Slab(num_samples, self, stream)

    def piece(self, num_bytes: int) -> torch.Tensor:
        """So many bytes: [n] uint8, with anything in them."""
        if self.is_shared:
            return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(num_bytes))  # type: ignore[no-untyped-call]
        return self._spare.take(num_bytes)


class _Room:
    """The memory of a field: as it is, [n] uint8; as an array [b, ...]; and a tensor for each sample.

    Each tensor has a storage of its own, so that whoever saves or sends one does so without the others.
    """

    def __init__(self, piece: torch.Tensor, num_samples: int, form: _Form) -> None:
        shape, dtype = form
        self.piece = piece
        self.array: npt.NDArray[Any] = piece.view(dtype).view(num_samples, *shape).numpy()  # [b, ...]
        self.rows = tuple(map(torch.from_numpy, self.array))
        self.singles = tuple(map(torch.from_numpy, self.array[:, None]))  # [1, ...] each
        self.lent = bytearray(num_samples)
        self.form = form


class Slab:
    """Memory for the tensors of so many samples. Threads may fill it side by side."""

    def __init__(self, num_samples: int, slabs: Slabs, stream: str | None = None) -> None:
        self._num = num_samples
        self._slabs = slabs
        self._stream = stream
        self._rooms: dict[str, _Room] = {}  # by field
        self._uneven: set[str] = set()  # fields that will be no tensor of this memory: their samples differ
        self._lock = threading.Lock()

    @property
    def memory(self) -> list[torch.Tensor]:
        """The pieces."""
        return [room.piece for room in self._rooms.values()]

    def kept(self) -> list[torch.Tensor]:
        """Pieces of which a transform has kept a part, when all samples were put: a batch needs other memory."""
        kept = []
        for field, room in self._rooms.items():
            if any(room.lent) and _are_kept(room.rows):
                self._keep_apart(field)
                kept.append(room.piece)
        return kept

    def lend(self, place: int, field: str, shape: tuple[int, ...], dtype: torch.dtype) -> Place | None:
        """Memory for a field of the sample at a place, if the last batch had such tensors there."""
        name = self._stream, field
        if self._slabs.forms.get(name) != (shape, dtype) or name in self._slabs.apart or field in self._uneven:
            return None
        room = self._rooms.get(field) or self._room(field, (shape, dtype))
        if room.lent[place] or room.form != (shape, dtype):
            return None
        room.lent[place] = True
        return Place(room.rows[place], room.singles[place])

    def put(self, place: int, sample: Sample) -> Sample:
        """The sample, its large tensors copied to their place; the dict that was given stays as it is."""
        moved = {}
        for field, value in sample.items():
            room = self._rooms.get(field)
            if room is not None and room.lent[place]:
                if value is not room.rows[place]:
                    self._keep_apart(field)
            elif field not in self._uneven and (array := as_array(value, _LEAST)) is not None:
                room = room or self._room(field, (array.shape, value.dtype))
                if room.form == (array.shape, value.dtype):
                    room.array[place] = array
                    moved[field] = room.rows[place]
                else:
                    self._uneven.add(field)
        return {**sample, **moved} if moved else sample

    def _room(self, field: str, form: _Form) -> _Room:
        with self._lock:
            if field not in self._rooms:
                shape, dtype = form
                num_bytes = self._num * torch.Size(shape).numel() * dtype.itemsize
                self._rooms[field] = _Room(self._slabs.piece(num_bytes), self._num, form)
                self._slabs.forms[self._stream, field] = form
            return self._rooms[field]

    def _keep_apart(self, field: str) -> None:
        """A tensor that was lent is not the one in the batch, or not there alone: from now on it is copied."""
        self._uneven.add(field)
        self._slabs.apart.add((self._stream, field))


class Berth:
    """The places of one sample, as transforms see them."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self.place = 0

    def lend(self, field: str, shape: tuple[int, ...], dtype: torch.dtype) -> Place | None:
        """Memory for a field of the sample that is being made."""
        return self._slab.lend(self.place, field, shape, dtype)


def _num_holders(rows: tuple[torch.Tensor, ...]) -> list[int]:
    return [sys.getrefcount(row) for row in rows]


def _usual_holders() -> int:
    """How many hold a row: the room, a sample, and whoever counts."""
    rows = (torch.empty(1),)
    sample = {"": rows[0]}
    return _num_holders(rows)[0] * len(sample)


_USUAL = _usual_holders()


def _are_kept(rows: tuple[torch.Tensor, ...]) -> bool:
    """Whether a transform still has one of these, or a view of it: it must not change with the batch."""
    uses = torch._C._storage_Use_Count
    is_viewed = any(uses(row.untyped_storage()._cdata) > 2 for row in rows)  # by the tensor, and by whoever counts
    return is_viewed or max(_num_holders(rows)) > _USUAL


def has_memory(value: torch.Tensor) -> bool:
    """Whether a tensor is a plain one over memory of this machine."""
    return type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided


def as_array(value: Any, least: int = 0) -> npt.NDArray[Any] | None:
    """A tensor's memory, for NumPy to copy in this thread, where torch would wake others of its own; or None.

    `least`: bytes, below which it is not worth it.
    """
    if type(value) is not torch.Tensor or value.dtype not in _DTYPES:
        return None
    try:
        return value.numpy() if value.nbytes >= least else None
    except (RuntimeError, TypeError):  # it is elsewhere, part of a graph, or not what its memory holds
        return None
