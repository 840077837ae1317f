"""check_resume: puts anything stateful through every stop and every restart, and compares all that follows.

Comes in: a function that makes a loader, and the topologies it can be made for. For two epochs of each topology it
stops before the first and after *every* step, takes the state (through JSON), goes on with a fresh loader of every
topology, stops and goes on once more, and compares the samples with those of a run that was never stopped. A difference
is an AssertionError that says where. Ships with the package, for loaders and datasets of your own.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sds.world import World

__all__ = ["Topology", "check_resume", "sample_keys"]

_Keys = Callable[[Any], list[str]]
_Delivered = list[tuple[int, str]]  # (epoch, id), in the order of delivery


@dataclass(frozen=True)
class Topology:
    """How a loader is spread: ranks, samples per rank and batch, worker processes."""

    ranks: int = 1
    batch_size: int = 4
    num_workers: int = 0

    @property
    def global_batch_size(self) -> int:
        """Samples of a step, over all ranks."""
        return self.ranks * self.batch_size

    def worlds(self) -> list[World]:
        """The world of each rank."""
        return [World(rank, self.ranks) for rank in range(self.ranks)]


def sample_keys(batch: Any) -> list[str]:
    """The ids of a batch's samples, or of a bare sample."""
    keys = batch["__sample_key__"]
    return [keys] if isinstance(keys, str) else list(keys)


@dataclass(frozen=True)
class _Stop:
    """Where a run can be stopped: its state, after how many of its steps, and the epoch that is gone on with."""

    state: dict[str, Any]
    num_steps: int
    epoch: int


@dataclass
class _Run:
    """What all ranks delivered, step by step, and every place where it can be stopped."""

    steps: list[tuple[int, list[str]]] = field(default_factory=list)  # (epoch, ids of the global batch)
    stops: list[_Stop] = field(default_factory=list)

    is_ordered: bool = True

    def delivered(self, num_steps: int | None = None) -> _Delivered:
        """What was delivered until a stop; the repeats that fill up the last step of an epoch are left out.

        Without an order, any step may be one that was filled up.
        """
        last = {epoch: k for k, (epoch, _) in enumerate(self.steps)}
        return [
            (epoch, key)
            for k, (epoch, keys) in enumerate(self.steps[:num_steps])
            for key in (dict.fromkeys(keys) if k == last[epoch] or not self.is_ordered else keys)
        ]


def check_resume(
    make_loader: Callable[..., Any],
    topologies: Sequence[Topology] | None = None,
    *,
    num_epochs: int = 2,
    every: int = 1,
    keys: _Keys = sample_keys,
    max_state_bytes: int = 2048,
    is_ordered: bool = True,
) -> int:
    """Stops and restarts a loader everywhere, and compares.

    Args:
        make_loader: makes a fresh loader: `make_loader(topology, world)`, one call per rank; without topologies,
            `make_loader()`. It must have `__iter__`, `state_dict` and `load_state_dict`.
        topologies: each is stopped, and each goes on with what the others did.
        num_epochs: epochs to go through.
        every: stop after every so many steps.
        keys: the ids in a batch.
        max_state_bytes: a state that is longer, as JSON, is an error.
        is_ordered: False: the order of an epoch may depend on the global batch size, as it does for batches in buckets;
            what is delivered after a restart with another one is then compared without its order.

    Returns:
        How many restarts were compared.

    Raises:
        AssertionError: something was lost, repeated or reordered; the message says after which restart.
    """
    shapes = topologies or [Topology()]
    make = make_loader if topologies else lambda _topology, _world: make_loader()

    def run(topology: Topology, stop: _Stop | None = None) -> _Run:
        made = _run(make, topology, stop, num_epochs, keys)
        made.is_ordered = is_ordered
        for each in made.stops:
            num_bytes = len(json.dumps(each.state))
            assert num_bytes < max_state_bytes, f"state takes {num_bytes} bytes: {each.state}"
        return made

    def compare(where: str, expected: _Delivered, got: _Delivered, *, in_order: bool = is_ordered) -> None:
        _compare(where, *((expected, got) if in_order else (sorted(expected), sorted(got))))

    expected = run(shapes[0]).delivered()
    num_compared = 0
    for before in shapes:
        whole = run(before)
        compare(f"{before} without any stop", expected, whole.delivered())
        for number, (stop, after) in enumerate(itertools.product(whole.stops[::every], shapes)):
            where = f"{before} stopped after step {stop.num_steps}, gone on as {after}"
            in_order = is_ordered or after.global_batch_size == before.global_batch_size
            rest = whole.delivered()[len(whole.delivered(stop.num_steps)) :]
            second = run(after, stop)
            compare(where, rest, second.delivered(), in_order=in_order)
            num_compared += 1
            if second.stops:
                # and once more: stopped before its first step, or in the middle of what was gone on with
                again = second.stops[0 if number % 2 else len(second.stops) // 2]
                where = f"{where}, stopped again after {again.num_steps} more, gone on as {before}"
                rest = second.delivered()[len(second.delivered(again.num_steps)) :]
                compare(where, rest, run(before, again).delivered(), in_order=in_order)
                num_compared += 1
    return num_compared


def _run(make: Callable[..., Any], topology: Topology, stop: _Stop | None, num_epochs: int, keys: _Keys) -> _Run:
    """All ranks side by side, from the beginning or from a stop, to the end of the last epoch."""
    made = _Run()
    loaders = [make(topology, world) for world in topology.worlds()]
    try:
        for loader in loaders:
            if stop is not None:
                loader.load_state_dict(json.loads(json.dumps(stop.state)))
        for epoch in range(stop.epoch if stop else 0, num_epochs):
            iterators = [iter(loader) for loader in loaders]
            made.stops.append(_Stop(_common_state(loaders), len(made.steps), epoch))
            for batches in zip(*iterators, strict=True):  # strict: ranks make the same number of steps
                made.steps.append((epoch, [key for batch in batches for key in keys(batch)]))
                made.stops.append(_Stop(_common_state(loaders), len(made.steps), epoch))
            # the very end of an epoch is the beginning of the next
            made.stops = [
                replace(each, epoch=epoch + 1) if each.num_steps == len(made.steps) else each for each in made.stops
            ]
    finally:
        for loader in loaders:
            close = getattr(loader, "close", None)
            if close is not None:
                close()
    return made


def _common_state(loaders: Iterable[Any]) -> dict[str, Any]:
    texts = [json.dumps(loader.state_dict()) for loader in loaders]
    assert all(text == texts[0] for text in texts), f"ranks have different states: {texts}"
    state: dict[str, Any] = json.loads(texts[0])
    return state


def _compare(where: str, expected: _Delivered, got: _Delivered) -> None:
    if got == expected:
        return
    lost = list((Counter(expected) - Counter(got)).elements())
    extra = list((Counter(got) - Counter(expected)).elements())
    if lost or extra:
        raise AssertionError(
            f"{where}: {len(lost)} lost (first: {lost[:3]}), {len(extra)} repeated or unknown (first: {extra[:3]})"
        )
    k = next(i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b)
    raise AssertionError(
        f"{where}: same samples, other order from number {k} on: {expected[k : k + 3]} became {got[k : k + 3]}"
    )
