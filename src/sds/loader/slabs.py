"""Slab: the memory of a batch before the batch is there. Who makes a sample writes its tensors where they will lie.

Comes in: samples, each with its place in the step. Goes out: the same samples, with large tensors as rows of one piece
of memory for each field; collating them copies nothing. A transform may ask for its row and write there itself; what
lies elsewhere is copied by the thread that has just made it, so it is in its cache. Memory of batches that nobody has
any more is used again. What does not fit (another shape, another device) stays.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from typing import Any, TypeAlias

import numpy.typing as npt
import torch

from sds.loader.holders import CAN_TELL, is_held
from sds.tensors.spare import Spare
from sds.transforms.places import Place
from sds.types import Sample

__all__ = ["Berth", "Slab", "Slabs", "as_array", "has_memory"]

_LEAST = 16384  # bytes of a tensor that are worth it
_DTYPES = {
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
}
_libc = ctypes.CDLL(None)
_POPULATE_WRITE = 23  # of madvise, since Linux 5.14
_Form: TypeAlias = tuple[tuple[int, ...], torch.dtype]  # shape and dtype of one sample's tensor


class Slabs:
    """The slabs of a loop, one after the other: memory that is used again, and what was learnt of its batches.

    Args:
        is_shared: the memory can be sent to another process as it is; it is not used again.
    """

    def __init__(self, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        self.forms: dict[tuple[str | None, str], _Form] = {}  # of the last batch, by stream and field
        self.apart: set[tuple[str | None, str]] = set()  # fields that are not lent: a transform keeps what it got
        self.uneven: set[tuple[str | None, str]] = set()  # fields that get no memory
        self._spare = Spare()

    def slab(self, num_samples: int, stream: str | None = None) -> Slab:
        """Memory for the next step."""
        return Slab(num_samples, self, stream)

    def piece(self, num_bytes: int, *, is_sure: bool = False) -> torch.Tensor:
        """So many bytes: [n] uint8, with anything in them.

        `is_sure`: all of them will be written to.
        """
        if not self.is_shared:
            return self._spare.take(num_bytes)
        storage = torch.UntypedStorage._new_shared(num_bytes)  # type: ignore[no-untyped-call]
        if is_sure and sys.platform == "linux":
            _populate(storage)
        return torch.empty(0, dtype=torch.uint8).set_(storage)


class _Room:
    """The memory of a field: as it is, [n] uint8; as an array [b, ...]; and a tensor for each sample.

    Each tensor has a storage of its own, so that whoever saves or sends one does so without the others.
    """

    def __init__(self, piece: torch.Tensor, num_samples: int, form: _Form) -> None:
        shape, dtype = form
        self.piece = piece
        self.array: npt.NDArray[Any] = piece.view(dtype).view(num_samples, *shape).numpy()  # [b, ...]
        self.rows = tuple(map(torch.from_numpy, self.array))
        self.lent = bytearray(num_samples)
        self.is_there = bytearray(num_samples)  # which rows are in their samples
        self.form = form

    def place(self, k: int) -> Place:
        """The memory of a sample, for whoever writes there."""
        return Place(self.rows[k], self.array[k])


class Slab:
    """Memory for the tensors of so many samples. Threads may fill it side by side."""

    def __init__(self, num_samples: int, slabs: Slabs, stream: str | None = None) -> None:
        self._num = num_samples
        self._slabs = slabs
        self._stream = stream
        self._rooms: dict[str, _Room] = {}  # by field
        self._uneven: set[str] = set()  # fields that will be no tensor of this memory: their samples differ
        self._kept: set[str] = set()  # fields of which a transform has a part
        self._lock = threading.Lock()

    @property
    def memory(self) -> list[torch.Tensor]:
        """The pieces."""
        return [room.piece for room in self._rooms.values()]

    def find_kept(self) -> list[torch.Tensor]:
        """Pieces of which a transform has a part: no batch may lie there. Call it when the samples are made."""
        for field, room in self._rooms.items():
            if any(
                is_lent and is_held(room.rows, k, num_known=room.is_there[k]) for k, is_lent in enumerate(room.lent)
            ):
                self._keep_apart(field)
        return [room.piece for field, room in self._rooms.items() if field in self._kept]

    def lend(self, place: int, field: str, shape: tuple[int, ...], dtype: torch.dtype) -> Place | None:
        """Memory for a field of the sample at a place, if the last batch had such tensors there."""
        name = self._stream, field
        if self._slabs.forms.get(name) != (shape, dtype) or name in self._slabs.apart or field in self._uneven:
            return None
        if not CAN_TELL:  # whether somebody keeps it
            return None
        room = self._rooms.get(field) or self._room(field, (shape, dtype))
        if room is None or room.form != (shape, dtype):
            return None
        if room.lent[place] and is_held(room.rows, place):
            return None
        room.lent[place] = True
        return room.place(place)

    def put(self, place: int, sample: Sample) -> Sample:
        """Another dict, with large tensors in their place: what is not there yet is copied."""
        placed = dict(sample)
        for field, value in sample.items():
            room = self._rooms.get(field)
            if room is not None and value is room.rows[place]:
                room.is_there[place] = True
                continue
            if room is not None and room.lent[place] and is_held(room.rows, place):
                self._keep_apart(field)  # who has it would find another picture there
            array = as_array(value, _LEAST) if field not in self._uneven else None
            if array is not None:
                room = room or self._room(field, (array.shape, value.dtype))
                if room is not None and room.form == (array.shape, value.dtype):
                    room.array[place] = array
                    placed[field], room.is_there[place] = room.rows[place], True
                else:
                    self._be_uneven(field)
        return placed

    def _room(self, field: str, form: _Form) -> _Room | None:
        name = self._stream, field
        with self._lock:
            if field not in self._rooms and name not in self._slabs.uneven:
                shape, dtype = form
                is_sure = self._slabs.forms.get(name) == form  # as in the last batch
                try:
                    piece = self._slabs.piece(self._num * torch.Size(shape).numel() * dtype.itemsize, is_sure=is_sure)
                except (MemoryError, OSError, RuntimeError):  # no fault of the sample's: who sends the batch says so
                    return None
                self._rooms[field] = _Room(piece, self._num, form)
                self._slabs.forms[name] = form
            return self._rooms.get(field)

    def _be_uneven(self, field: str) -> None:
        """Its samples differ: they are left where they are."""
        self._uneven.add(field)
        if self._slabs.is_shared:  # memory for all of them, which is taken from few, for nothing
            self._slabs.uneven.add((self._stream, field))

    def _keep_apart(self, field: str) -> None:
        """A tensor that was lent is somebody else's too: the batch lies elsewhere, and the next ones are copied."""
        self._uneven.add(field)
        self._kept.add(field)
        self._slabs.apart.add((self._stream, field))


class Berth:
    """The places of one sample, as transforms see them."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self.place = 0

    def lend(self, field: str, shape: tuple[int, ...], dtype: torch.dtype) -> Place | None:
        """Memory for a field of the sample that is being made."""
        return self._slab.lend(self.place, field, shape, dtype)


def has_memory(value: torch.Tensor) -> bool:
    """Whether a tensor is a plain one over memory of this machine, and nothing but its values counts."""
    is_plain = type(value) is torch.Tensor and not value.requires_grad
    return is_plain and value.device.type == "cpu" and value.layout == torch.strided


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


def _populate(storage: torch.UntypedStorage) -> None:
    """Lets the kernel give all pages at once: one by one, as they are written to, they take several times as long.

    A kernel that knows nothing of it says no, and one that has too few says so when they are written to.
    """
    start = storage.data_ptr()
    page = start // mmap.PAGESIZE * mmap.PAGESIZE
    _libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(storage.nbytes() + start - page), _POPULATE_WRITE)
