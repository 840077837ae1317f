"""Copies to a device: their order, held against a device that is as late as it may be. Seeded mistakes are found."""

from __future__ import annotations

import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from sds.loader import device_copies
from sds.loader.device_copies import Copier
from sds.loader.device_kinds import Accelerator, Host, Simple, device_for
from sds.loader.device_tree import memory_of
from sds.testing import SimulatedDevice

SEEDS = range(10)
EARLY = "a batch is read before its copy has ended"
SHARED = "memory goes to another batch before it has been read"
OVERWRITTEN = "a pinned buffer is written before the copy from it has ended"


def batches(number: int, length: int = 64) -> Iterator[dict[str, torch.Tensor]]:
    for k in range(number):
        yield {"x": torch.full((length,), float(k)), "y": torch.arange(8) + k}


def train(copier: Copier, device: SimulatedDevice, number: int = 12, ahead: int = 2) -> None:
    """Sends batches ahead, reads each on a stream of its own, gives it back before the read has run; checks values."""
    compute = device.make_stream()
    line, results = [], []
    source = batches(number)
    with device.on(compute):
        while True:
            while len(line) < ahead and (batch := next(source, None)) is not None:
                line.append(copier.send(batch))
            if not line:
                break
            batch = copier.receive(line.pop(0))
            results.append((device.read(batch["x"]), device.read(batch["y"])))
            del batch
    for k, (x, y) in enumerate(results):
        x, y = x.value(), y.value()
        if not device.mistakes:
            assert x.tolist() == [float(k)] * 64 and y.tolist() == [k + i for i in range(8)]
    device.synchronize()


@pytest.mark.parametrize("eagerness", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_batches_arrive_whole_whenever_the_device_works(eagerness: float, ahead: int):
    for seed in SEEDS:
        device = SimulatedDevice(seed, eagerness=eagerness)
        train(Copier(device), device, ahead=ahead)
        assert device.mistakes == [], seed


def mutated(line: str, instead: str) -> type[Copier]:
    """The Copier of a source in which one line is another."""
    source = inspect.getsource(device_copies)
    assert source.count(line) == 1, line
    module = types.ModuleType("mutated")
    exec(compile(source.replace(line, instead), "mutated", "exec"), module.__dict__)
    return module.Copier


class TestMistakes:
    """A line that is gone, or another: the simulated device says so, in every run."""

    @pytest.fixture(autouse=True)
    def as_module(self, monkeypatch: pytest.MonkeyPatch):
        # dataclasses look their module up by name
        monkeypatch.setitem(sys.modules, "mutated", types.ModuleType("mutated"))

    @pytest.mark.parametrize(
        ("line", "instead", "mistake"),
        [
            ("device.wait(current, sent.event)", "pass", EARLY),
            ("self.device, self.device.current_stream()", "self.device, self._stream", EARLY),
            ("device.hold(tensor, current)", "pass", SHARED),
            ("self.device.finish(buffer.event)\n        buffer.event,", "pass\n        buffer.event,", OVERWRITTEN),
            ("(self._turn + 1) % len(self._ring)", "0; buffer.event = None", OVERWRITTEN),
            ("buffer.event = device.record(self._stream)", "buffer.event = device.record(device.make_stream())", EARLY),
            (
                "for tensor in sent.tensors:\n                device.hold(tensor, current)",
                "device.hold(sent.tensors[0], current)",
                SHARED,
            ),
        ],
        ids=[
            "no wait",
            "another stream waits",
            "no record_stream",
            "buffer reused at once",
            "one buffer",
            "event of another stream",
            "first only",
        ],
    )
    def test_are_found(self, line: str, instead: str, mistake: str):
        changed = mutated(line, instead)
        for seed in SEEDS:
            for eagerness in (0.0, 1.0, 20.0):  # on time or not: it is not what orders things
                device = SimulatedDevice(seed, eagerness=eagerness)
                train(changed(device), device)
                assert mistake in device.mistakes

    def test_a_thread_that_does_not_enter_is_found(self):
        device = SimulatedDevice()
        thread = threading.Thread(target=lambda: Copier(device).send(next(batches(1))))
        thread.start()
        thread.join()
        assert device.mistakes == ["a thread copies that never made this its device"] * 2


class TestBuffers:
    def test_grow_with_the_batches_and_stay(self):
        made: list[int] = []

        class Noting(SimulatedDevice):
            def make_buffer(self, num_bytes: int) -> torch.Tensor:
                made.append(num_bytes)
                return super().make_buffer(num_bytes)

        device = Noting()
        copier = Copier(device)
        for length in (100, 100, 50, 100, 400, 400, 10, 400):
            copier.receive(copier.send({"x": torch.zeros(length, dtype=torch.uint8)}))
        assert made == [128, 128, 448, 448]
        copier.close()
        device.synchronize()

    def test_the_batch_may_change_as_soon_as_it_is_sent(self):
        device = SimulatedDevice(eagerness=0)
        copier = Copier(device)
        batch = {"x": torch.ones(10)}
        sent = copier.send(batch)
        batch["x"].zero_()
        assert device.read(copier.receive(sent)["x"]).value().tolist() == [1.0] * 10
        assert device.mistakes == []

    def test_what_is_pinned_takes_no_detour_and_stays_until_it_is_copied(self):
        device = SimulatedDevice(eagerness=0)
        copier = Copier(device)
        pinned = device.make_buffer(16)
        pinned[:] = 7
        sent = copier.send([pinned])
        seen = weakref.ref(pinned)
        del pinned
        assert seen() is not None
        assert device.read(copier.receive(sent)[0]).value().tolist() == [7] * 16
        copier.send([torch.ones(1)])
        copier.send([torch.ones(1)])  # the turn of the same buffer
        assert seen() is None

    def test_are_given_back_when_nobody_reads_them_any_more(self):
        device = SimulatedDevice(eagerness=0)
        copier = Copier(device)
        sent = copier.send([torch.ones(3)])
        assert not sent.event.is_done
        copier.close()
        assert sent.event.is_done

    def test_keep_nothing_that_is_copied_at_once(self):
        device = SimulatedDevice()
        copier = Copier(device)
        wrapped = torch.nn.Parameter(torch.ones(2))
        seen = weakref.ref(wrapped)
        copier.send([wrapped])
        del wrapped
        assert seen() is None

    def test_of_a_batch_that_could_not_be_sent_are_not_written_too_early(self):
        class Full(SimulatedDevice):
            def copy(self, source: torch.Tensor, stream: object) -> torch.Tensor:
                if source.numel() == 3:
                    raise MemoryError("the device is full")
                return super().copy(source, stream)

        device = Full(eagerness=0)
        copier = Copier(device)
        with pytest.raises(MemoryError):
            copier.send([torch.zeros(2), torch.zeros(3)])
        for number in range(4):
            copier.receive(copier.send([torch.full((2,), float(number))]))
        device.synchronize()
        assert device.mistakes == []


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.zeros(0, 4),
        torch.arange(24).reshape(2, 3, 4),
        torch.arange(24).reshape(2, 3, 4).transpose(0, 2),
        torch.arange(96).reshape(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.arange(6).expand(4, 6),
        torch.arange(20)[3::2],
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.randn(5).to(torch.bfloat16),
        torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
        torch.randn(3, dtype=torch.float64),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{list(tensor.shape)}-{list(tensor.stride())}",
)
def test_a_tensor_keeps_values_kind_and_layout(tensor: torch.Tensor):
    device = SimulatedDevice(eagerness=0)
    copier = Copier(device)
    sent = copier.send({"a": torch.ones(3, dtype=torch.uint8), "x": tensor})  # an odd start in the buffer
    copied = copier.receive(sent)["x"]
    device.synchronize()
    expected = tensor.to("cpu", copy=True)  # what torch would make of it
    assert copied is not tensor and copied.dtype == tensor.dtype and copied.shape == tensor.shape
    assert copied.stride() == expected.stride()
    assert copied.to(torch.complex128).tolist() == expected.to(torch.complex128).tolist()


def test_one_tensor_under_two_names_stays_one():
    device = SimulatedDevice()
    same = torch.ones(3)
    copier = Copier(device)
    batch = copier.receive(copier.send({"a": same, "b": [same]}))
    assert batch["a"] is batch["b"][0] and device.num_copies == 1


class Calls(TorchFunctionMode):
    """Stands for torch.cuda, and for the calls of tensors that need a device: notes each with what it is about."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: list[str] = []
        self._pinned: list[torch.Tensor] = []
        self._num_streams = self._num_events = 0
        self._current = "current"

    def taken(self) -> list[str]:
        """What was noted since it was asked last."""
        noted, self._noted = self._noted, []
        return noted

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        self._pinned.append(tensor)
        return tensor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensor = args[0] if args else None
        if func is torch.Tensor.is_pinned:
            return any(tensor.untyped_storage().data_ptr() == p.untyped_storage().data_ptr() for p in self._pinned)
        if func is torch.Tensor.to and kwargs:
            self._noted.append(
                f"to {args[1]} of {tensor.numel()} on {self._current}, non_blocking={kwargs['non_blocking']}"
            )
        return func(*args, **(kwargs or {}))

    def hold(self, tensor: torch.Tensor, stream: Any) -> None:
        self._noted.append(f"record_stream {tensor.numel()} {stream}")

    # ---- torch.cuda -----------------------------------------------------------------------------------------------

    def set_device(self, device: torch.device) -> None:
        self._noted.append(f"set_device {device}")

    def set_stream(self, stream: Any) -> None:
        self._noted.append(f"use {stream}")

    def current_stream(self, device: torch.device) -> Any:
        return "current"

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self._current = self._current, str(stream)
        yield
        self._current = before

    def Stream(self, device: torch.device) -> Any:
        self._num_streams += 1
        return _NotedStream(self._noted_by, f"s{self._num_streams}")

    def Event(self) -> Any:
        self._num_events += 1
        self._noted.append("event")
        return _NotedEvent(self._noted_by, self._num_events)

    def _noted_by(self, words: str) -> None:
        self._noted.append(words)


class _NotedStream:
    def __init__(self, note: Callable[[str], None], name: str) -> None:
        self._note, self._name = note, name

    def __str__(self) -> str:
        return self._name

    def wait_stream(self, other: Any) -> None:
        self._note(f"{self} after {other}")


class _NotedEvent:
    def __init__(self, note: Callable[[str], None], number: int) -> None:
        self._note, self._number = note, number

    def record(self, stream: Any = "nothing") -> None:
        self._note(f"{self._number} on {stream}")

    def wait(self, stream: Any = "nothing") -> None:
        self._note(f"{stream} after {self._number}")

    def synchronize(self) -> None:
        self._note(f"wait for {self._number}")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    with Calls() as found:
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: found.hold(tensor, stream))
        yield found


class TestDevices:
    def test_the_cpu_copies_nothing(self):
        batch = {"x": torch.ones(3)}
        copier = Copier(Host())
        sent = copier.send(batch)
        assert sent.num_bytes == 12
        assert copier.receive(sent) is batch

    def test_one_without_streams_copies_at_once(self):
        copier = Copier(Simple(torch.device("meta")))
        batch = copier.receive(copier.send({"x": torch.ones(3), "name": "a"}))
        assert batch["x"].device.type == "meta" and batch["name"] == "a"

    def test_the_calls_of_an_accelerator_are_torchs(self):
        """torch.cpu has streams and events that do nothing: the calls are right, whatever they do elsewhere."""

        class OnTheCpu(Accelerator):
            num_held = 0

            def make_buffer(self, num_bytes: int) -> torch.Tensor:
                return torch.empty(num_bytes, dtype=torch.uint8)

            def hold(self, tensor: torch.Tensor, stream: object) -> None:
                self.num_held += 1

        device = OnTheCpu(torch.device("cpu"))
        device.enter()
        copier = Copier(device)
        for k, batch in enumerate(batches(5)):
            received = copier.receive(copier.send(batch))
            assert received["x"].tolist() == [float(k)] * 64
        copier.close()
        assert device.num_held == 10

    def test_an_accelerator_is_asked_in_this_order(self, calls: Calls, monkeypatch: pytest.MonkeyPatch):
        """Each call with what it is about, of a device that only notes them; `to` and `record_stream` are torch's."""
        device = Accelerator(torch.device("meta"), calls)
        pinned = lambda num_bytes: calls.pin(torch.empty(num_bytes, dtype=torch.uint8))  # noqa: E731
        monkeypatch.setattr(device, "make_buffer", pinned)
        copier = Copier(device)
        copier.enter(copier.begin())
        assert calls.taken() == ["event", "1 on current", "set_device meta", "use s1", "s1 after 1"]
        # a plain tensor goes through the buffer, a pinned one does not, one that cannot be pinned is waited for
        there = torch.ones(5, device="meta")
        sent = copier.send([torch.ones(2), calls.pin(torch.ones(3)), torch.eye(2).to_sparse(), there])
        assert calls.taken() == [
            "to meta of 2 on s2, non_blocking=True",
            "to meta of 3 on s2, non_blocking=True",
            "to meta of 4 on s2, non_blocking=False",
            "s2 after current",  # what is there may be in the making
            "event",
            "2 on s2",
        ]
        received = copier.receive(sent)
        assert received[3] is there and all(tensor.device.type == "meta" for tensor in received)
        asked = calls.taken()
        assert asked[0] == "current after 2"
        assert [words.split()[0] for words in asked[1:]] == ["record_stream"] * 5  # a sparse one has two parts
        assert asked[1:3] == ["record_stream 2 current", "record_stream 3 current"]
        assert asked[5] == "record_stream 5 current"
        copier.close()
        assert calls.taken() == ["wait for 2"]

    def test_parts_of_a_tensor_that_are_the_hosts_are_not_held(self, calls: Calls):
        """As the lengths of a jagged tensor."""
        jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged).to("meta")
        assert {part.device.type for part in memory_of(jagged)} == {"cpu", "meta"}
        Accelerator(torch.device("meta"), calls).hold(jagged, "current")
        assert calls.taken() == ["record_stream 18 current", "record_stream 3 current"]

    @pytest.mark.parametrize("kind", ["cuda", "xpu", "mtia"])
    def test_torch_has_the_same_calls_for_accelerators(self, kind: str):
        api = torch.get_device_module(kind)
        for name in ("Stream", "Event", "stream", "current_stream", "current_device", "set_device", "device_count"):
            assert callable(getattr(api, name)), name
        assert all(hasattr(api.Event, name) for name in ("record", "wait", "synchronize"))
        assert hasattr(api.Stream, "wait_stream")

    def test_none_is_what_the_machine_has(self):
        found = device_for(None)
        assert isinstance(found, Host) != torch.accelerator.is_available()

    @pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
    def test_the_cpu_has_a_name(self, device: object):
        assert isinstance(device_for(device), Host)

    def test_a_device_may_be_one_of_yours(self):
        device = SimulatedDevice()
        assert device_for(device) is device


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator here")
class TestAccelerator:
    def test_batches_arrive_while_the_device_works(self):
        device = device_for(None)
        assert isinstance(device, Accelerator)
        device.enter()
        copier, line, sums = Copier(device), [], []
        for batch in batches(50, length=1_000_000):
            line.append(copier.send(batch))
            if len(line) == 3:
                x = copier.receive(line.pop(0))["x"]
                sums.append(sum(x.sin().cos().sum() * 0 for _ in range(20)) + x.double().sum())
        assert [float(each) for each in sums] == [k * 1e6 for k in range(48)]
        copier.close()
