"""BroadcastLoader: one rank of a group reads, the others get the same batches from it.

Comes in: a loader and a torch.distributed group whose ranks need the same samples (tensor-, sequence-, pipeline-
parallel). Goes out: the loader's batches, on all of them. The first rank of the group reads and decodes; tensors
travel by broadcast, the rest as a small structure. The end and errors travel too: nobody waits for what never comes.
"""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from sds.dataset.agree import count_as, num_used, tell_those_who_wait, wait_for_reader
from sds.errors import OptionError, SampleError, SdsError, StateError
from sds.loader.around import Around
from sds.loader.device_tree import mapped

__all__ = ["BroadcastLoader"]

_BATCH, _END, _ERROR = "batch", "end", "error"
_OVER = object()


class BroadcastLoader(Around):
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

    _num_made: ClassVar[dict[tuple[int, ...], int]] = {}  # by the ranks of the group: two may have the same reader

    def __init__(self, loader: Any, group: Any = None, *, device: Any = None, timeout: float = 300.0) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise OptionError("BroadcastLoader needs torch.distributed", hint="call init_process_group first")
        super().__init__()
        self._loader = loader
        self._group = group
        self._device = torch.device("cpu" if device is None else device)
        self._source = dist.get_global_rank(group, 0) if group is not None else 0
        self._reads = dist.get_rank() == self._source
        self._round = 0
        self._num_jumps = 0
        if self._reads and loader is None:
            raise OptionError("the first rank of the group reads, and has no loader", hint="give it one")
        self._meet(timeout)

    def _meet(self, timeout_s: float) -> None:
        """Everybody learns where the reading loader stands; through the store, so that nobody hangs on who fails."""
        all_ranks = range(dist.get_world_size())
        ranks = tuple(all_ranks if self._group is None else dist.get_process_group_ranks(self._group))
        number = BroadcastLoader._num_made.get(ranks, 0)
        BroadcastLoader._num_made[ranks] = number + 1
        key = f"sds/broadcast/{'-'.join(map(str, ranks))}/{number}"
        if self._reads:
            # a mix agrees as one, a loader of one dataset by that
            agrees = self._loader if hasattr(self._loader, "stand_for") else getattr(self._loader, "dataset", None)
            stand_for = getattr(agrees, "stand_for", None)
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
        self._begin_tally()
        batches: Iterator[Any] | None = None
        is_first = True
        try:
            while True:
                asked = time.perf_counter()
                if self._reads:
                    batches, kind, content, tensors, num_samples = self._read(batches)
                else:
                    kind, content, tensors, num_samples = self._receive()
                if kind == _END:
                    return
                if kind == _ERROR:
                    raise content
                batch = _filled(content, [self._broadcast(tensor) for tensor in tensors])
                if self._own is None:  # what takes the time is out of sight
                    self._tally.add_wait("loader", time.perf_counter() - asked, start_s=asked)
                self._note_wait(asked, is_first)
                self._tally.delivered(num_samples)
                is_first, given = False, time.perf_counter()
                yield batch
                self._tally.add_busy("consumer", given)
        finally:
            self._tally.probe = None
            if batches is not None and hasattr(batches, "close"):
                batches.close()

    def _read(self, batches: Iterator[Any] | None) -> tuple[Iterator[Any] | None, str, Any, list[torch.Tensor], int]:
        """The next batch, or the end, or an error, and how many samples it has; and tells the others which."""
        tensors: list[torch.Tensor] = []
        num_samples = 0
        try:
            before = 0 if self._own is None else self._own.num_given
            batches = iter(self._loader) if batches is None else batches
            batch = next(batches, _OVER)
            kind, content = (_END, None) if batch is _OVER else (_BATCH, _emptied(batch, tensors))
            tensors = [_as_plain(tensor, self._device) for tensor in tensors]
            num_samples = 0 if self._own is None else self._own.num_given - before
            state, length = self._where()
            word = self._packed(kind, content, state, length, tensors, num_samples)
            self._state, self._length = state, length
        except Exception as error:  # noqa: BLE001 (a process boundary: all ranks raise it)
            kind, content, tensors = _ERROR, _told(error, self._source), []
            word = self._packed(kind, content, self._state, self._length, tensors, 0)
        self._share(word)
        return batches, kind, content, tensors, num_samples

    def _packed(
        self, kind: str, content: Any, state: Any, length: int | None, tensors: list[torch.Tensor], num_samples: int
    ) -> bytes:
        """What the others are told. It is packed before anything is sent: what cannot be packed is an error for all."""
        shapes = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        try:
            return pickle.dumps((self._round, kind, content, state, length, num_used(), shapes, num_samples))
        except Exception as error:
            raise SampleError(
                f"batch cannot be sent to the other ranks: {error!r}",
                hint="what is not a tensor must be picklable: leave it out, in a transform or in `collate_fn`",
            ) from error

    def _receive(self) -> tuple[str, Any, list[torch.Tensor], int]:
        """What the reading rank told, with room for the tensors that follow."""
        told = pickle.loads(self._share(None))  # noqa: S301 (a rank's)
        number, kind, content, self._state, self._length, used, shapes, num_samples = told
        count_as(used)
        if number != self._round:
            raise SampleError(
                f"ranks of one group are in different iterations: {number} on rank {self._source}, which reads, "
                f"{self._round} here",
                hint="leave the loop on all ranks of the group after the same batch, or on none",
                rank=self._source,
            )
        tensors = [torch.empty(shape, dtype=dtype, device=self._device) for shape, dtype in shapes]
        return kind, content, tensors, num_samples

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
            raise StateError("the loader that reads has no state", hint="give BroadcastLoader a StreamingDataLoader")
        return copy.deepcopy(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on where the state says; call it on all ranks of the group."""
        if self._reads:
            self._loader.load_state_dict(state)
        self._state = copy.deepcopy(state)
        self._num_jumps += 1

    @property
    def num_jumps(self) -> int:
        """How often it was told to go on somewhere else, as far as this rank knows."""
        return self._num_jumps + int(getattr(self.reader, "num_jumps", 0))

    @property
    def reader(self) -> Any:
        """The loader that reads; None: another rank does."""
        return self._loader if self._reads else None

    @property
    def group(self) -> Any:
        """The group as it was given; None: all ranks."""
        return self._group

    def close(self) -> None:
        """Closes the loader that reads."""
        if self._reads and hasattr(self._loader, "close"):
            self._loader.close()
        self._end_listening()


def _told(error: Exception, rank: int) -> SdsError:
    """An error of the rank that reads, as all ranks raise it."""
    if isinstance(error, SdsError):
        told = error
    else:
        told = SampleError(f"the reading rank failed: {error!r}", hint=f"look at the log of rank {rank}, which reads")
        told.__cause__ = error  # which stays on that rank
    told.rank = rank
    return told


def _as_plain(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor with its values lying in memory as they are; a view may leave a sign for later."""
    return tensor.detach().resolve_conj().resolve_neg().to(device).contiguous()


class _Slot:
    """Stands for the n-th tensor of a batch."""

    def __init__(self, number: int) -> None:
        self.number = number


def _emptied(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The structure of a batch, with slots for its tensors, which are collected; one that is there twice, once."""
    slots: dict[int, _Slot] = {}

    def empty(tensor: torch.Tensor) -> _Slot:
        if id(tensor) not in slots:
            slots[id(tensor)] = _Slot(len(tensors))
            tensors.append(tensor)
        return slots[id(tensor)]

    return mapped(value, empty)


def _filled(value: Any, tensors: list[torch.Tensor]) -> Any:
    return mapped(value, lambda slot: tensors[slot.number], _Slot)
