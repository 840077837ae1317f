"""BroadcastLoader: one rank of a group reads, the others get the same batches from it.

Comes in: a loader and a torch.distributed group whose ranks need the same samples (tensor-, sequence-, pipeline-
parallel). Goes out: the loader's batches, on all of them. The first rank of the group reads and decodes; tensors
travel by broadcast, the rest as a small structure. The end and errors travel too: nobody waits for what never comes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from sds.dataset.agree import count_as, num_used, tell_those_who_wait, wait_for_reader
from sds.errors import OptionError, SampleError, SdsError

__all__ = ["BroadcastLoader"]

_BATCH, _END, _ERROR = "batch", "end", "error"


class BroadcastLoader:
    """A loader for every rank of a group, of which one reads.

    All ranks of the group must take the same steps: who leaves the loop early must do so on all of them, after the same
    batch. When one of them has begun a new iteration and another has not, the others get an error, not a wrong batch.
    `len` and `state_dict` may be asked on any rank at any time: they are known everywhere.

    Args:
        loader: the loader of the rank that reads; the others may give None.
        group: the group, as `torch.distributed.new_group` or a mesh made it; None: all ranks.
        device: where tensors travel and arrive; NCCL groups need a CUDA device. Default: the CPU.
        timeout: seconds that the others wait for the rank that reads to come, when it makes its loader.
    """

    _num_made: ClassVar[dict[int, int]] = {}

    def __init__(self, loader: Any, group: Any = None, *, device: Any = None, timeout: float = 300.0) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise OptionError("BroadcastLoader needs torch.distributed", hint="call init_process_group first")
        self._loader = loader
        self._group = group
        self._device = torch.device("cpu" if device is None else device)
        self._source = dist.get_global_rank(group, 0) if group is not None else 0
        self._reads = dist.get_rank() == self._source
        self._round = 0
        if self._reads and loader is None:
            raise OptionError("the first rank of the group reads, and has no loader", hint="give it one")
        self._meet(timeout)

    def _meet(self, timeout_s: float) -> None:
        """Everybody learns where the reading loader stands; through the store, so that nobody hangs on who fails."""
        ranks = dist.get_process_group_ranks(self._group) if self._group is not None else range(dist.get_world_size())
        number = BroadcastLoader._num_made.get(self._source, 0)
        BroadcastLoader._num_made[self._source] = number + 1
        key = f"sds/broadcast/{self._source}/{number}"
        if self._reads:
            stand_for = getattr(getattr(self._loader, "dataset", None), "stand_for", None)
            if stand_for is not None:
                stand_for(ranks)
            self._state, self._length = self._where()
            if len(ranks) > 1:
                tell_those_who_wait(key, [self._state, self._length])
        else:
            self._state, self._length = wait_for_reader(key, self._source, timeout_s)

    def _where(self) -> tuple[dict[str, Any] | None, int | None]:
        """On the rank that reads: the loader's state and length, as far as it has them."""
        state = self._loader.state_dict() if hasattr(self._loader, "state_dict") else None
        try:
            return state, len(self._loader)
        except TypeError:
            return state, None  # it never ends

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the loader that reads has no length")
        return self._length

    def __iter__(self) -> Iterator[Any]:
        self._round += 1
        batches: Iterator[Any] | None = None
        try:
            while True:
                if self._reads:
                    batches, kind, content, tensors = self._read(batches)
                else:
                    kind, content, tensors = self._receive()
                if kind == _END:
                    return
                if kind == _ERROR:
                    raise content
                yield _filled(content, [self._broadcast(tensor) for tensor in tensors])
        finally:
            if batches is not None and hasattr(batches, "close"):
                batches.close()

    def _read(self, batches: Iterator[Any] | None) -> tuple[Iterator[Any] | None, str, Any, list[torch.Tensor]]:
        """The next batch, or the end, or an error; and tells the others which."""
        tensors: list[torch.Tensor] = []
        try:
            batches = iter(self._loader) if batches is None else batches
            kind, content = _BATCH, _emptied(next(batches), tensors)
        except StopIteration:
            kind, content = _END, None
        except Exception as error:  # noqa: BLE001 (a process boundary: all ranks raise it)
            told = error if isinstance(error, SdsError) else SampleError(f"the reading rank failed: {error!r}")
            told.rank = self._source
            kind, content = _ERROR, told
        if kind != _ERROR:
            self._state, self._length = self._where()
        tensors = [tensor.detach().to(self._device).contiguous() for tensor in tensors]
        shapes = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        self._share((self._round, kind, content, self._state, self._length, num_used(), shapes))
        return batches, kind, content, tensors

    def _receive(self) -> tuple[str, Any, list[torch.Tensor]]:
        """What the reading rank told, with room for the tensors that follow."""
        number, kind, content, self._state, self._length, used, shapes = self._share(None)
        count_as(used)
        if number != self._round:
            raise SampleError(
                f"ranks of one group are in different iterations: {number} on rank {self._source}, which reads, "
                f"{self._round} here",
                hint="leave the loop on all ranks of the group after the same batch, or on none",
                rank=self._source,
            )
        return kind, content, [torch.empty(shape, dtype=dtype, device=self._device) for shape, dtype in shapes]

    def _share(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=self._source, group=self._group, device=self._device)
        return box[0]

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel():
            # as bytes: no backend knows every dtype
            dist.broadcast(tensor.view(-1).view(torch.uint8), src=self._source, group=self._group)
        return tensor

    def state_dict(self) -> dict[str, Any]:
        """The reading loader's state after the batch that was handed out last; the same on all ranks of the group."""
        if self._state is None:
            raise OptionError("the loader that reads has no state", hint="give BroadcastLoader a StreamingDataLoader")
        return copy.deepcopy(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on where the state says; call it on all ranks of the group."""
        if self._reads:
            self._loader.load_state_dict(state)
        self._state = copy.deepcopy(state)

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
        clone = copy.copy(value)  # a dict of another kind, such as Batch, keeps its attributes
        for key, each in value.items():
            clone[key] = change(each)
        return clone
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(change(each) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(change(each) for each in value)
    return value
