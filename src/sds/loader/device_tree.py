"""Batches as trees: dicts, lists, tuples, named tuples and dataclasses, with tensors at their leaves.

Comes in: a batch of any nesting. Goes out: its tensors, or the same tree with other tensors. A container keeps its kind
and its attributes (`Batch` is a dict that has some); what holds no tensor is passed as it is.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

__all__ = ["is_plain", "mapped", "memory_of", "num_bytes", "tensors_of"]


_LEAVES = frozenset({str, int, float, bool, bytes, complex, type(None)})  # most of what is no tensor: known at once


def mapped(value: Any, change: Callable[[Any], Any], leaf: type = torch.Tensor) -> Any:
    """The tree with each tensor changed. What holds none that changed is passed on, the rest is copied.

    A container keeps its kind if its kind lets itself be copied; else it comes as the dict or tuple that it holds.

    Args:
        value: the tree.
        change: what a tensor becomes.
        leaf: what is changed instead of tensors, where something stands for them.
    """
    if type(value) in _LEAVES:
        return value
    if isinstance(value, leaf):
        return change(value)
    if isinstance(value, Mapping):
        parts = {key: mapped(each, change, leaf) for key, each in value.items()}
        return value if _are_same(parts.values(), value.values()) else _mapping_of(value, parts)
    if isinstance(value, PackedSequence):  # its lengths stay on the host: cuDNN reads them there
        held = (value.data, value.sorted_indices, value.unsorted_indices)
        data, *indices = (mapped(each, change, leaf) for each in held)
        return PackedSequence(data, value.batch_sizes, *indices)
    if isinstance(value, list | tuple):
        items = [each if type(each) in _LEAVES else mapped(each, change, leaf) for each in value]
        return value if _are_same(items, value) else _sequence_of(value, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _mapped_fields(value, change, leaf)
    return value


def _are_same(parts: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(map(operator.is_, parts, others))


def _mapping_of(value: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """Another mapping of this kind, with its attributes; a dict, if it has no copy that is other memory."""
    if type(value) is dict or not isinstance(value, MutableMapping):
        return parts
    try:
        clone = copy.copy(value)
        for key, part in parts.items():
            before = value[key]
            if part is not before:
                clone[key] = part
                if value[key] is part:
                    value[key] = before
                    return parts
    except (TypeError, AttributeError):
        return parts
    return clone


def _sequence_of(value: Any, items: list[Any]) -> Any:
    """Another list or tuple of this kind. Constructors of others may ask for anything: only ours are called."""
    kind = type(value)
    if kind is list:
        return items
    if isinstance(value, list):
        clone = copy.copy(value)
        clone[:] = items
        return clone
    try:
        other = tuple.__new__(kind, items)
    except TypeError:  # torch's own named tuples, such as that of `max`
        return kind(items)
    if hasattr(value, "__dict__"):
        other.__dict__.update(value.__dict__)
    return other


def _mapped_fields(value: Any, change: Callable[[Any], Any], leaf: type) -> Any:
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]  # some are set later
    before = [getattr(value, name) for name in names]
    parts = [mapped(each, change, leaf) for each in before]
    if _are_same(parts, before):
        return value
    other = copy.copy(value)
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(other, name, part)  # frozen ones too
    return other


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors of a tree, each once."""
    found: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found[id(tensor)] = tensor
        return tensor

    mapped(value, note)
    return list(found.values())


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is numbers in the host's memory and nothing else: what can be put into another buffer."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)
    )


def memory_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a tensor is made of: several, where it is sparse or a subclass that wraps others."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in memory_of(getattr(tensor, name))]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def num_bytes(tensor: torch.Tensor) -> int:
    """What a tensor takes where it is copied to."""
    return sum(part.numel() * part.element_size() for part in memory_of(tensor))
