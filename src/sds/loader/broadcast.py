"""BroadcastLoader: one rank of a group reads, the others get the same batches from it.

Comes in: a loader and a torch.distributed group whose ranks need the same samples (tensor-, sequence-, pipeline-
parallel). Goes out: the loader's batches, on all of them. The first rank of the group reads and decodes; tensors
travel by broadcast, the rest as a small structure. The end and errors travel too: nobody waits for what never comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from sds.errors import OptionError, SampleError, SdsError

__all__ = ["BroadcastLoader"]

_BATCH, _END, _ERROR = "batch", "end", "error"


class BroadcastLoader:
    """A loader for every rank of a group, of which one reads.

    Args:
        loader: the loader of the rank that reads; the others may give None.
        group: the group, as `torch.distributed.new_group` or a mesh made it; None: all ranks.
        device: where tensors travel and arrive; NCCL groups need a CUDA device. Default: the CPU.
    """

    def __init__(self, loader: Any, group: Any = None, *, device: Any = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise OptionError("BroadcastLoader needs torch.distributed", hint="call init_process_group first")
        self._loader = loader
        self._group = group
        self._device = torch.device("cpu" if device is None else device)
        self._source = dist.get_global_rank(group, 0) if group is not None else 0
        self._reads = dist.get_rank() == self._source
        if self._reads and loader is None:
            raise OptionError("the first rank of the group reads, and has no loader", hint="give it one")
        self._state: dict[str, Any] | None = None

    def __len__(self) -> int:
        length: int = self._share(len(self._loader) if self._reads else None)
        return length

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader) if self._reads else None
        try:
            while True:
                kind, content, self._state, tensors = self._next(batches)
                if kind == _END:
                    return
                if kind == _ERROR:
                    raise content
                yield _filled(content, [self._broadcast(tensor) for tensor in tensors])
        finally:
            if batches is not None and hasattr(batches, "close"):
                batches.close()

    def _next(self, batches: Iterator[Any] | None) -> tuple[str, Any, dict[str, Any] | None, list[torch.Tensor]]:
        if batches is None:
            kind, content, state, shapes = self._share(None)
            return (
                kind,
                content,
                state,
                [torch.empty(shape, dtype=dtype, device=self._device) for shape, dtype in shapes],
            )
        tensors: list[torch.Tensor] = []
        try:
            kind, content = _BATCH, _emptied(next(batches), tensors)
        except StopIteration:
            kind, content = _END, None
        except Exception as error:  # noqa: BLE001 (a process boundary: all ranks raise it)
            told = error if isinstance(error, SdsError) else SampleError(f"the reading rank failed: {error!r}")
            told.rank = self._source
            kind, content = _ERROR, told
        state = self._loader.state_dict() if hasattr(self._loader, "state_dict") else None
        self._share((kind, content, state, [(tuple(t.shape), t.dtype) for t in tensors]))
        return kind, content, state, [t.to(self._device).contiguous() for t in tensors]

    def _share(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=self._source, group=self._group, device=self._device)
        return box[0]

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel():
            dist.broadcast(tensor, src=self._source, group=self._group)
        return tensor

    def state_dict(self) -> dict[str, Any]:
        """The reading loader's state after the batch that was handed out last; the same on all ranks of the group."""
        if self._state is None:
            self._state = self._share(self._loader.state_dict() if self._reads else None)
        assert self._state is not None
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on where the state says; call it on all ranks of the group."""
        if self._reads:
            self._loader.load_state_dict(state)
        self._state = dict(state)

    def close(self) -> None:
        """Closes the loader that reads."""
        if self._reads and hasattr(self._loader, "close"):
            self._loader.close()


class _Slot:
    """Stands for the n-th tensor of a batch."""

    def __init__(self, number: int) -> None:
        self.number = number


def _emptied(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The structure of a batch, with slots for its tensors, which are collected."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Slot(len(tensors) - 1)
    return _mapped(value, lambda each: _emptied(each, tensors))


def _filled(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, _Slot):
        return tensors[value.number]
    return _mapped(value, lambda each: _filled(each, tensors))


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, dict):
        clone = value.copy() if type(value) is dict else _copied(value)
        for key, each in value.items():
            clone[key] = change(each)
        return clone
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(change(each) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(change(each) for each in value)
    return value


def _copied(value: Any) -> Any:
    import copy

    return copy.copy(value)  # a dict of another kind, such as Batch, keeps its attributes
