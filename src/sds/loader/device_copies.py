"""Copies to a device that cannot corrupt: who waits for which event, and when memory may be used again.

Comes in: batches of the host, from one thread. Goes out: batches of the device, to another. A pinned buffer is written
only after the copy that reads it has ended; the caller's stream reads a batch only after its copies; memory of a batch
goes to another only after what the caller's stream does with it. Nothing here knows CUDA: see `Device`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from sds.loader.device_kinds import Device
from sds.loader.device_tree import is_plain, mapped, num_bytes, tensors_of

__all__ = ["Copier", "Sent"]

_NUM_BUFFERS = 2  # one is written while the other is read; copies are faster than batches
_ALIGNMENT = 64


@dataclass(frozen=True)
class Sent:
    """A batch on its way: `tensors` are on the device, and right when `event` has happened."""

    batch: Any
    tensors: list[torch.Tensor]
    event: Any
    num_bytes: int


@dataclass
class _Buffer:
    """Pinned memory, and the event of the copies that read it last."""

    memory: torch.Tensor | None = None  # uint8 [n]
    event: Any = None
    sources: list[torch.Tensor] = field(default_factory=list)  # pinned by somebody else: they stay until then, too


class Copier:
    """Sends batches in one thread, receives them in another. One stream, made once."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._stream: Any = None
        self._reading: Any = None  # the stream of the threads that read
        self._ring = [_Buffer() for _ in range(_NUM_BUFFERS)]
        self._turn = 0

    def enter(self, begun: Any) -> None:
        """Prepares a thread that reads: what its loader does on the device goes to a queue of its own.

        In the default one it would wait for training steps, and they for it. It begins behind the event `begun`.
        """
        device = self.device
        if device.copies:
            device.enter()
            if self._reading is None:
                self._reading = device.make_stream()
            device.use(self._reading)
            device.wait(self._reading, begun)

    def begin(self) -> Any:
        """An event behind what the caller has put into its queue so far: a loader's transforms may build on it."""
        return self.device.record(self.device.current_stream()) if self.device.copies else None

    def send(self, batch: Any, tensors: list[torch.Tensor] | None = None) -> Sent:
        """Puts the copies of a batch into the queue.

        The batch may change as soon as this returns, if its tensors are not pinned. Those that are (and on the CPU all
        of them) are read, or handed out, as they are: they may not change any more.

        Args:
            batch: any tree.
            tensors: its tensors, where they are known already.
        """
        device, tensors = self.device, tensors_of(batch) if tensors is None else tensors
        total = sum(map(num_bytes, tensors))
        if not device.copies or not tensors:
            return Sent(batch, [], None, total)
        if self._stream is None:
            self._stream = device.make_stream()
        buffer = self._ring[self._turn]
        self._turn = (self._turn + 1) % len(self._ring)
        self._free(buffer)
        staged = self._staged(buffer, tensors)
        buffer.sources = [tensor for tensor in tensors if staged[id(tensor)] is tensor and device.is_pinned(tensor)]
        try:
            copies = {key: device.copy(source, self._stream) for key, source in staged.items()}
        finally:  # if the device has no more memory, the first copies are on their way nevertheless
            buffer.event = device.record(self._stream)
        return Sent(mapped(batch, lambda tensor: copies[id(tensor)]), list(copies.values()), buffer.event, total)

    def receive(self, sent: Sent) -> Any:
        """The batch, for work on the calling thread's current stream."""
        if sent.tensors:
            device, current = self.device, self.device.current_stream()
            device.wait(current, sent.event)
            for tensor in sent.tensors:
                device.hold(tensor, current)
        return sent.batch

    def finish(self, sent: Sent) -> None:
        """Blocks until a batch is on the device."""
        if sent.tensors:
            self.device.finish(sent.event)

    def close(self) -> None:
        """Gives pinned memory back, when nobody reads it any more."""
        for buffer in self._ring:
            self._free(buffer)
            buffer.memory = None

    def _free(self, buffer: _Buffer) -> None:
        if buffer.event is not None:
            self.device.finish(buffer.event)
        buffer.event, buffer.sources = None, []

    def _staged(self, buffer: _Buffer, tensors: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Where to copy each tensor from: the buffer, or itself, if it is pinned or no plain numbers."""
        plain = [tensor for tensor in tensors if is_plain(tensor) and not self.device.is_pinned(tensor)]
        needed = sum(_room(tensor) for tensor in plain)
        if buffer.memory is None or buffer.memory.numel() < needed:
            had = 0 if buffer.memory is None else buffer.memory.numel()
            buffer.memory = None  # given back first
            buffer.memory = self.device.make_buffer(max(needed, had * 5 // 4))
        staged, start = {id(tensor): tensor for tensor in tensors}, 0
        for tensor in plain:
            room = buffer.memory[start : start + num_bytes(tensor)]
            start += _room(tensor)
            staged[id(tensor)] = _like(tensor, room.view(tensor.dtype)).copy_(tensor)
        return staged


def _room(tensor: torch.Tensor) -> int:
    return -(-num_bytes(tensor) // _ALIGNMENT) * _ALIGNMENT


def _like(tensor: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """A tensor in other memory, whose axes lie as `Tensor.to` would lay them: channels_last stays so."""
    strides = torch.empty_like(tensor, device="meta").stride()
    return flat.as_strided(tensor.shape, strides, flat.storage_offset())
