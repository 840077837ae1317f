"""Samples -> one batch: what can be stacked is stacked, the rest stays a list.

Comes in: a list of dicts. Goes out: a dict of fields. Tensors and arrays of one shape become one tensor with a leading
batch axis, numbers a tensor, dicts are collated field by field; text, bytes, None and what does not fit stay lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sds.errors import OptionError, TransformError
from sds.types import Sample

__all__ = ["check_collate", "collate"]


def collate(samples: Sequence[Sample], *, own: Sequence[torch.Tensor] = ()) -> dict[str, Any]:
    """One batch of several samples, which must have the same fields.

    Args:
        samples: dicts.
        own: pieces of memory that were made for this batch: tensors that fill one, in order, are a batch as they lie.
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
    pieces = {piece.data_ptr(): piece for piece in own}
    return {field: _stack([sample[field] for sample in samples], pieces) for field in first}


def _stack(values: list[Any], pieces: dict[int, torch.Tensor]) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor):
        alike = all(isinstance(v, torch.Tensor) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        if alike and pieces and (piece := pieces.get(first.data_ptr())) is not None and _fill(values, piece):
            del pieces[first.data_ptr()]  # a second field of the same memory gets memory of its own
            return piece.view(-1).view(first.dtype).view(len(values), *first.shape)  # [b, ...]
        return torch.stack(values) if alike else values  # [b, ...]
    if isinstance(first, np.ndarray):
        alike = all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        return torch.from_numpy(np.stack(values)) if alike and first.dtype.kind in "biufc" else values
    if type(first) in (bool, int, float):
        kinds = {type(v) for v in values}
        if kinds in ({bool}, {int}) and all(-(2**63) <= v < 2**63 for v in values):
            return torch.tensor(values)
        return torch.tensor(values, dtype=torch.float64) if float in kinds and kinds <= {int, float} else values
    if isinstance(first, np.generic) and all(isinstance(v, np.generic) for v in values) and first.dtype.kind in "biufc":
        return torch.from_numpy(np.array(values))
    if isinstance(first, dict) and all(isinstance(v, dict) and v.keys() == first.keys() for v in values):
        return {field: _stack([v[field] for v in values], pieces) for field in first}
    return values


def _fill(values: Sequence[torch.Tensor], piece: torch.Tensor) -> bool:
    """Whether tensors lie one after the other, and fill a piece of memory."""
    start, size = piece.data_ptr(), values[0].nbytes
    return size * len(values) == piece.nbytes and all(
        each.data_ptr() == start + k * size and each.is_contiguous() for k, each in enumerate(values)
    )


def check_collate(collate_fn: Any) -> None:
    """A callable or None, or an OptionError."""
    if collate_fn is not None and not callable(collate_fn):
        raise OptionError(f"collate_fn cannot be called: {collate_fn!r}", hint="give a callable: samples -> batch")
