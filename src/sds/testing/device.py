"""SimulatedDevice: an accelerator in the host's memory that is as late as a real one may be, and notes mistakes.

Comes in: what a Copier asks of a Device. Streams are queues whose tasks run when a seeded draw says so, and memory that
is given back is used again at once, as a caching allocator does. Goes out: `mistakes`, a list of sentences. They are
found by what was ordered, not by luck: each stream and the host know which tasks of others are behind them.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from sds.seeds import derive

__all__ = ["Pending", "SimulatedDevice"]

_Clock: TypeAlias = dict[str, int]  # stream -> how many of its tasks are behind

_EARLY = "a batch is read before its copy has ended"
_SHARED = "memory goes to another batch before it has been read"
_OVERWRITTEN = "a pinned buffer is written before the copy from it has ended"
_STRANGER = "a thread copies that never made this its device"


@dataclass(eq=False)
class _Event:
    clock: _Clock = field(default_factory=dict)  # what is behind when it happens
    is_done: bool = False


@dataclass(eq=False)
class _Stream:
    name: str
    clock: _Clock = field(default_factory=dict)  # what is behind the task that is put in next
    tasks: deque[tuple[_Event | None, Callable[[], None]]] = field(default_factory=deque)  # (waits for, does)


@dataclass(eq=False)
class _Block:
    """Memory of the device, for one batch after the other."""

    memory: torch.Tensor  # uint8 [n]
    stream: _Stream
    written: int = 0  # the number of the copy, in the block's stream
    reads: _Clock = field(default_factory=dict)  # the last one of each stream
    held_by: list[_Stream] = field(default_factory=list)
    pending: list[_Event] = field(default_factory=list)  # what must have happened before it is used again


@dataclass(eq=False)
class _Copy:
    """A copy from pinned memory: which bytes it should read, and its number in its stream."""

    source: torch.Tensor
    seen: torch.Tensor
    stream: _Stream
    number: int


class Pending:
    """The result of a read that was put into a queue."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.event = _Event()
        self.found: torch.Tensor | None = None
        self._device = device

    def value(self) -> torch.Tensor:
        """What was read; waits for it."""
        self._device.finish(self.event)
        assert self.found is not None
        return self.found


class SimulatedDevice:
    """A device for `sds.DevicePrefetcher(loader, device=SimulatedDevice(seed))`. Its tensors are the host's.

    Args:
        seed: what the moments are drawn from at which tasks run.
        eagerness: tasks that run at each call, on average; 0: none before somebody waits for it.
    """

    copies = True

    def __init__(self, seed: int = 0, *, eagerness: float = 1.0) -> None:
        self.mistakes: list[str] = []
        self.num_streams = 0
        self.num_copies = 0
        self._random = derive(seed, "device")
        self._eagerness = eagerness
        self._lock = threading.RLock()  # garbage is collected anywhere
        self._host: _Clock = {}
        self._streams = [_Stream("default")]
        self._free: list[_Block] = []  # the last one given back is used first
        self._home: dict[int, _Block] = {}  # tensor -> its memory
        self._pinned: list[torch.Tensor] = []  # for ever, or other tensors would come to lie there
        self._copies: list[_Copy] = []
        self._here = threading.local()
        self.enter()  # the thread that trains has done so; others begin with another

    # ---- what a Device does -----------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Makes this the device of the calling thread."""
        self._here.is_entered = True

    def make_stream(self) -> Any:
        """A queue whose tasks run in order, but not in step with others."""
        with self._lock:
            self.num_streams += 1
            self._streams.append(_Stream(f"stream {self.num_streams}"))
            return self._streams[-1]

    def current_stream(self) -> Any:
        """The default stream, or that of `on`."""
        return getattr(self._here, "stream", self._streams[0])

    def use(self, stream: Any) -> None:
        """Work of the calling thread goes there."""
        self._here.stream = stream

    def make_buffer(self, num_bytes: int) -> torch.Tensor:
        """Memory that copies read later."""
        buffer = torch.empty(max(1, num_bytes), dtype=torch.uint8)
        with self._lock:
            self._pinned.append(buffer)
        return buffer[:num_bytes]

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in a buffer of ours."""
        start = tensor.untyped_storage().data_ptr()
        return any(start == buffer.data_ptr() for buffer in self._pinned)

    def copy(self, source: torch.Tensor, stream: Any) -> torch.Tensor:
        """Puts a copy into the queue. It reads pinned memory when its turn comes, other memory at once."""
        with self._lock:
            self._pass_time()
            self.num_copies += 1
            self._check(getattr(self._here, "is_entered", False), _STRANGER)
            size = source.numel() * source.element_size()
            block = self._allocate(size, stream)
            strides = torch.empty_like(source, device="meta").stride()
            target = block.memory[:size].view(source.dtype).as_strided(source.shape, strides)
            self._home[id(target)] = block
            weakref.finalize(target, self._give_back, id(target), block)
            # not the source itself: a device keeps nothing alive
            pinned = source.detach() if self.is_pinned(source) else None
            seen, place = source.clone(), target.detach()

            def run() -> None:
                self._check(pinned is None or _is_same(pinned, seen), _OVERWRITTEN)
                place.copy_(seen if pinned is None else pinned)

            block.written = self._put(stream, run)
            if pinned is not None:
                self._check_buffer(_Copy(pinned, seen, stream, block.written))
            return target

    def record(self, stream: Any) -> Any:
        """An event that has happened when its turn in the queue comes."""
        with self._lock:
            self._pass_time()
            return self._record(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """The queue stops here until the event has happened."""
        with self._lock:
            self._pass_time()
            stream.tasks.append((event, _nothing))
            _learn(stream.clock, event.clock)

    def hold(self, tensor: torch.Tensor, stream: Any) -> None:
        """Given back, the memory waits for what is in the queue then."""
        with self._lock:
            block = self._home[id(tensor)]
            if stream is not block.stream and stream not in block.held_by:
                block.held_by.append(stream)

    def finish(self, event: Any) -> None:
        """Runs tasks until the event has happened."""
        with self._lock:
            while not event.is_done:
                if not self._run_one():
                    raise RuntimeError("the device waits for an event that never happens")
            _learn(self._host, event.clock)

    # ---- what a training step does ----------------------------------------------------------------------------------

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Work of the calling thread goes to this stream inside the block."""
        before, self._here.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._here.stream = before

    def read(self, tensor: torch.Tensor) -> Pending:
        """Puts a read of a tensor into the current stream, as a kernel would be. It keeps nothing alive."""
        with self._lock:
            self._pass_time()
            stream, block, place = self.current_stream(), self._home[id(tensor)], tensor.detach()
            pending = Pending(self)

            def run() -> None:
                pending.found = place.clone()
                pending.event.is_done = True

            block.reads[stream.name] = self._put(stream, run)
            self._check(stream.clock.get(block.stream.name, 0) >= block.written, _EARLY)
            pending.event.clock = dict(stream.clock)
            return pending

    def synchronize(self) -> None:
        """Runs all tasks."""
        with self._lock:
            while self._run_one():
                pass
            if any(stream.tasks for stream in self._streams):
                raise RuntimeError("the device waits for an event that never happens")

    # ---- order ------------------------------------------------------------------------------------------------------

    def _check(self, is_right: bool, mistake: str) -> None:
        if not is_right:
            self.mistakes.append(mistake)

    def _put(self, stream: _Stream, run: Callable[[], None]) -> int:
        """Puts a task into a queue; its number there. What the host knows to be over is behind it."""
        _learn(stream.clock, self._host)
        number = stream.clock[stream.name] = stream.clock.get(stream.name, 0) + 1
        stream.tasks.append((None, run))
        return number

    def _record(self, stream: _Stream) -> _Event:
        event = _Event()
        self._put(stream, lambda: setattr(event, "is_done", True))
        event.clock = dict(stream.clock)
        return event

    def _check_buffer(self, copy: _Copy) -> None:
        """Other bytes than an earlier copy should read are there: the host must have waited for that one."""
        for other in self._copies:
            is_behind = self._host.get(other.stream.name, 0) >= other.number
            self._check(is_behind or _is_same(other.source, other.seen), _OVERWRITTEN)
        self._copies = [c for c in self._copies if self._host.get(c.stream.name, 0) < c.number]
        self._copies.append(copy)

    # ---- time and memory --------------------------------------------------------------------------------------------

    def _pass_time(self) -> None:
        for _ in range(self._random.poisson(self._eagerness)):
            self._run_one()

    def _run_one(self) -> bool:
        """Runs the first task of some stream that can go on; False: none can."""
        able = [s for s in self._streams if s.tasks and (s.tasks[0][0] is None or s.tasks[0][0].is_done)]
        if not able:
            return False
        _, run = able[self._random.integers(len(able))].tasks.popleft()
        run()
        return True

    def _allocate(self, num_bytes: int, stream: _Stream) -> _Block:
        for block in reversed(self._free):
            is_free = all(event.is_done for event in block.pending)
            if block.stream is stream and block.memory.numel() >= num_bytes and is_free:
                self._free.remove(block)
                return _Block(block.memory, stream)
        return _Block(torch.empty(max(1, num_bytes), dtype=torch.uint8), stream)

    def _give_back(self, tensor: int, block: _Block) -> None:
        """The last name of a tensor is gone."""
        with self._lock:
            del self._home[tensor]
            holders = {stream.name for stream in block.held_by}
            for name, number in block.reads.items():
                self._check(name in holders or block.stream.clock.get(name, 0) >= number, _SHARED)
            block.pending = [self._record(stream) for stream in block.held_by]
            self._free.append(block)


def _nothing() -> None:
    pass


def _learn(clock: _Clock, other: _Clock) -> None:
    """What is behind the other is behind this one, too."""
    for name, number in other.items():
        clock[name] = max(clock.get(name, 0), number)


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit by bit."""
    return torch.equal(*(each.contiguous().view(-1).view(torch.uint8) for each in (a, b)))
