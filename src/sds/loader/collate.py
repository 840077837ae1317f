"""Samples -> one batch: what can be stacked is stacked, the rest stays a list.

Comes in: a list of dicts. Goes out: a dict of fields. Tensors and arrays of one shape become one tensor with a leading
batch axis, numbers a tensor, dicts are collated field by field; text, bytes, None and what does not fit stay lists.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from sds.errors import OptionError, TransformError
from sds.loader.slabs import as_array, has_memory
from sds.types import Sample

__all__ = ["check_collate", "collate"]

_SMALL = 4096  # bytes: of these, torch makes a batch without its other threads

log = logging.getLogger("sds")
_told: list[str] = []  # what was said of batches in this process: once is enough


class _Pieces:
    """Memory of a batch: which of it is free, and where all of it lies."""

    def __init__(self, own: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> None:
        taken = {piece.data_ptr() for piece in kept}
        self.free = {piece.data_ptr(): piece for piece in own if piece.data_ptr() not in taken}
        self._spans = [(piece.data_ptr(), piece.data_ptr() + piece.nbytes) for piece in own]

    def __bool__(self) -> bool:
        return bool(self._spans)

    def hold(self, value: torch.Tensor) -> bool:
        """Whether a tensor lies there."""
        if not has_memory(value):
            return False
        at = value.untyped_storage().data_ptr()
        return any(start <= at < end for start, end in self._spans)


def collate(
    samples: Sequence[Sample], *, own: Sequence[torch.Tensor] = (), kept: Sequence[torch.Tensor] = ()
) -> dict[str, Any]:
    """One batch of several samples, which must have the same fields.

    Args:
        samples: dicts.
        own: pieces of memory that were made for this batch: tensors that fill one, in order, are a batch as they lie.
        kept: those of them that somebody has a part of: the batch is a copy.
    """
    first = samples[0]
    for sample in samples:
        if sample.keys() != first.keys():
            differing = sorted(map(str, sample.keys() ^ first.keys()))
            raise TransformError(
                f"samples of one batch have different fields: {differing} are not in all of them",
                hint="end the transforms with EnsureFieldsTransform([...], drop_others=True)",
                stage="collate",
                key=str(sample.get("__sample_key__", "")) or None,
            )
    pieces = _Pieces(own, kept)
    return {field: _stack([sample[field] for sample in samples], pieces) for field in first}


def _stack(values: list[Any], pieces: _Pieces) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor):
        alike = all(isinstance(v, torch.Tensor) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        piece = pieces.free.get(first.data_ptr()) if alike and pieces and has_memory(first) else None
        if piece is not None and _fill(values, piece):
            del pieces.free[first.data_ptr()]  # a second field of the same memory gets memory of its own
            return piece.view(-1).view(first.dtype).view(len(values), *first.shape)  # [b, ...]
        if not alike:
            _tell(values)
        return _stacked(values) if alike else _apart(values, pieces)  # [b, ...]
    if isinstance(first, np.ndarray):
        alike = all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        if alike and first.dtype.kind in "biufc":
            return torch.from_numpy(np.stack(values))
        return _apart(values, pieces)
    if type(first) in (bool, int, float):
        numbers = _numbers(values)
        return _apart(values, pieces) if numbers is None else numbers
    if isinstance(first, np.generic) and all(isinstance(v, np.generic) for v in values) and first.dtype.kind in "biufc":
        return torch.from_numpy(np.array(values))
    if isinstance(first, dict) and all(isinstance(v, dict) and v.keys() == first.keys() for v in values):
        return {field: _stack([v[field] for v in values], pieces) for field in first}
    return _apart(values, pieces)


def _numbers(values: list[Any]) -> torch.Tensor | None:
    """Plain numbers as one tensor, made by NumPy in a tenth of torch's time; None if no tensor can hold them all."""
    kinds = set(map(type, values))
    if kinds == {bool} or kinds == {int}:
        dtype: Any = np.bool_ if bool in kinds else np.int64
    elif float in kinds and kinds <= {int, float}:
        dtype = np.float64
    else:
        return None
    try:
        return torch.from_numpy(np.array(values, dtype))
    except OverflowError:
        return None


def _apart(value: Any, pieces: _Pieces) -> Any:
    """What stays a list, its tensors in memory of their own: each would keep, and be saved with, all of the batch's."""
    if not pieces:
        return value
    if type(value) in (list, tuple):
        return type(value)([each if type(each) is str else _apart(each, pieces) for each in value])
    if type(value) is dict:
        return {key: _apart(each, pieces) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return value.copy() if isinstance(value.base, torch.Tensor) and pieces.hold(value.base) else value
    return value.clone() if isinstance(value, torch.Tensor) and pieces.hold(value) else value


def _tell(values: Sequence[Any]) -> None:
    """Says once that images of different sizes stay a list, which surprises whoever waits for a tensor."""
    shapes = sorted({tuple(each.shape) for each in values if isinstance(each, torch.Tensor)})
    if not _told and len(shapes) > 1 and get_worker_info() is None:
        _told.append("shapes")
        log.warning(
            "tensors of one field have different shapes, so the batch has a list of them: %s, ...; to have one tensor, "
            "resize them, put equal ones together by bucket_by, or give a collate_fn (this is said once)",
            ", ".join(str(list(shape)) for shape in shapes[:2]),
        )


def _stacked(values: list[torch.Tensor]) -> torch.Tensor:
    """One tensor [b, ...] of several alike.

    NumPy copies in this thread; torch would wake its others, which go on waiting busily for more where decode threads
    want the cores.
    """
    first = values[0]
    arrays = [as_array(value) for value in values] if as_array(first, _SMALL) is not None else [None]
    if any(array is None for array in arrays):
        return torch.stack(values)
    batch = torch.empty((len(values), *first.shape), dtype=first.dtype)
    room = batch.numpy()
    for k, array in enumerate(arrays):
        room[k] = array
    return batch


def _fill(values: Sequence[torch.Tensor], piece: torch.Tensor) -> bool:
    """Whether tensors lie one after the other, and fill a piece of memory."""
    start, size = piece.data_ptr(), values[0].nbytes
    return size * len(values) == piece.nbytes and all(
        has_memory(each) and each.data_ptr() == start + k * size and each.is_contiguous()
        for k, each in enumerate(values)
    )


def check_collate(collate_fn: Any) -> None:
    """A callable or None, or an OptionError."""
    if collate_fn is not None and not callable(collate_fn):
        raise OptionError(f"collate_fn cannot be called: {collate_fn!r}", hint="give a callable: samples -> batch")
