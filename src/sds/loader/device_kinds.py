"""Devices: what a Copier asks of one, and the three kinds that there are.

Comes in: a name, a torch.device or nothing. Goes out: a Device. An accelerator with streams copies asynchronously, one
without copies at once, and the CPU needs no copies. A Device does what it is told; in which order is the Copier's.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch

from sds.errors import OptionError
from sds.loader.device_tree import is_plain, memory_of

__all__ = ["Accelerator", "Device", "Host", "Simple", "check_device", "device_for"]


@runtime_checkable
class Device(Protocol):
    """Streams, events, pinned memory and copies. Streams and events are values of the device's own kind."""

    copies: bool  # False: batches stay where they are, and nothing below is asked for

    def enter(self) -> None:
        """Makes this the device of the calling thread."""
        ...

    def make_stream(self) -> Any:
        """A queue of its own for copies."""
        ...

    def current_stream(self) -> Any:
        """The queue that the calling thread's work goes to."""
        ...

    def use(self, stream: Any) -> None:
        """Work of the calling thread goes to this queue from now on."""
        ...

    def make_buffer(self, num_bytes: int) -> torch.Tensor:
        """Host memory that the device can read while the host goes on: uint8 [num_bytes]."""
        ...

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in such memory already."""
        ...

    def copy(self, source: torch.Tensor, stream: Any) -> torch.Tensor:
        """Takes memory of the device, and puts the copy into the queue."""
        ...

    def record(self, stream: Any) -> Any:
        """An event that has happened when all is done that is in the queue now."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """What is put into the queue from now on begins when the event has happened."""
        ...

    def hold(self, tensor: torch.Tensor, stream: Any) -> None:
        """Memory of the tensor is not used anew before what is in the queue when it is given back is done."""
        ...

    def finish(self, event: Any) -> None:
        """Blocks the calling thread until the event has happened."""
        ...


class Host:
    """The CPU: batches are where they should be."""

    copies = False

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def __str__(self) -> str:
        return str(self.device)

    def enter(self) -> None:
        """Nothing to do."""

    def make_stream(self) -> Any:
        """There are no streams."""

    def current_stream(self) -> Any:
        """There are no streams."""

    def use(self, stream: Any) -> None:
        """There are no streams."""

    def make_buffer(self, num_bytes: int) -> torch.Tensor:
        """Ordinary memory."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def is_pinned(self, tensor: torch.Tensor) -> bool:  # noqa: ARG002 (the protocol's)
        """As good as pinned: no detour helps."""
        return True

    def copy(self, source: torch.Tensor, stream: Any) -> torch.Tensor:  # noqa: ARG002
        """The tensor itself."""
        return source

    def record(self, stream: Any) -> Any:
        """Nothing is ever under way."""

    def wait(self, stream: Any, event: Any) -> None:
        """Nothing is ever under way."""

    def hold(self, tensor: torch.Tensor, stream: Any) -> None:
        """Memory is the host's."""

    def finish(self, event: Any) -> None:
        """Nothing is ever under way."""


class Simple(Host):
    """A device without streams of its own, such as MPS: a copy is made at once, in the thread that reads."""

    copies = True

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def copy(self, source: torch.Tensor, stream: Any) -> torch.Tensor:  # noqa: ARG002
        """Copies at once."""
        return source.to(self.device)


class Accelerator:
    """Any device that torch has streams for: CUDA, ROCm, XPU, and those of other makers that follow them."""

    copies = True

    def __init__(self, device: torch.device, api: Any = None) -> None:
        self.device = device
        self._api: Any = torch.get_device_module(device) if api is None else api  # torch.cuda, torch.xpu, ...

    def __str__(self) -> str:
        return str(self.device)

    def enter(self) -> None:
        """A thread begins with device 0, whatever the one that started it had."""
        self._api.set_device(self.device)

    def make_stream(self) -> Any:
        """A side stream."""
        return self._api.Stream(self.device)

    def current_stream(self) -> Any:
        """Of the calling thread."""
        return self._api.current_stream(self.device)

    def use(self, stream: Any) -> None:
        """For the calling thread."""
        if hasattr(self._api, "set_stream"):  # where it is missing, the thread keeps the default one
            self._api.set_stream(stream)

    def make_buffer(self, num_bytes: int) -> torch.Tensor:
        """Page-locked memory."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """As torch says."""
        return is_plain(tensor) and tensor.is_pinned()

    def copy(self, source: torch.Tensor, stream: Any) -> torch.Tensor:
        """On the stream, whose memory the copy is. What is there already stays."""
        if source.device == self.device:
            stream.wait_stream(self.current_stream())  # it may be in the making, by the thread that reads
            return source
        with self._api.stream(stream):
            return source.to(self.device, non_blocking=self.is_pinned(source))

    def record(self, stream: Any) -> Any:
        """An event on the stream."""
        # CUDA's would keep a core busy while the host waits for it
        event = self._api.Event(blocking=True) if self.device.type == "cuda" else self._api.Event()
        event.record(stream)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        """The stream waits, not the host."""
        event.wait(stream)

    def hold(self, tensor: torch.Tensor, stream: Any) -> None:
        """The allocator learns of the stream. Parts of nested tensors may be the host's."""
        for part in memory_of(tensor):
            if part.device.type == self.device.type:
                part.record_stream(stream)

    def finish(self, event: Any) -> None:
        """The host waits."""
        event.synchronize()


def check_device(device: Any) -> None:
    """That there is such a device. Which one is the current is not asked yet: that may change until it is used.

    Raises:
        OptionError: torch does not know it, or it is not there.
    """
    if device is not None:
        _known(device)


def device_for(device: Any) -> Device:
    """The device that was asked for: a name, an index, a torch.device, a Device; None: the current accelerator, or CPU.

    Raises:
        OptionError: torch does not know it, or it is not there.
    """
    found = _known(_current() if device is None else device)
    if not isinstance(found, torch.device):
        return found
    if found.type == "cpu":
        return Host()
    api = torch.get_device_module(found)
    if not all(hasattr(api, name) for name in ("Stream", "Event", "stream", "current_stream", "set_device")):
        return Simple(found)
    return Accelerator(torch.device(found.type, api.current_device()) if found.index is None else found)


def _known(device: Any) -> torch.device | Device:
    """A device that is there, as torch names it, or one of the caller's own."""
    if isinstance(device, str | int | torch.device) and not isinstance(device, bool):
        try:
            found = torch.device(device)
        except RuntimeError as error:
            raise _impossible(device, "torch does not know it, or has no accelerator") from error
    elif isinstance(device, Device) and not isinstance(device, type):
        return device
    else:
        raise _impossible(device, "it is no device")
    if found.type == "cpu":
        return found
    try:
        number = torch.get_device_module(found).device_count()
    except (RuntimeError, AttributeError) as error:
        raise _impossible(device, "nothing can be computed there") from error
    if (found.index or 0) >= number:
        raise _impossible(device, f"there are {number} of its kind")
    return found


def _current() -> torch.device:
    """The accelerator of this machine, else the CPU."""
    if not hasattr(torch, "accelerator"):  # new in torch 2.6
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def _impossible(device: Any, why: str) -> OptionError:
    hint = "a name such as 'cuda', 'cuda:1' or 'cpu', a torch.device, or None for what this machine has"
    return OptionError(f"device cannot be used: {device!r}: {why}", hint=hint)
