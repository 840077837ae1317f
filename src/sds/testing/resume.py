"""check_resume: puts anything stateful through every stop and every restart, and compares all that follows.

Comes in: a function that makes a loader, and the topologies it can be made for. For two epochs of each topology it
stops after *every* step, takes the state (through JSON), goes on with a fresh loader of every topology, stops and goes
on once more, and compares the samples with those of a run that was never stopped. A difference is an AssertionError
that says where. Ships with the package, for loaders and datasets of your own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sds.world import World

__all__ = ["Topology", "check_resume"]

_MAX_STATE = 2048


@dataclass(frozen=True)
class Topology:
    """How a loader is spread: ranks, samples per rank and batch, worker processes."""

    ranks: int = 1
    batch_size: int = 4
    num_workers: int = 0

    def worlds(self) -> list[World]:
        """The world of each rank."""
        return [World(rank, self.ranks) for rank in range(self.ranks)]


def sample_keys(batch: Any) -> list[str]:
    """The ids of a batch's samples, or of a bare sample."""
    keys = batch["__sample_key__"]
    return [keys] if isinstance(keys, str) else list(keys)


def check_resume(
    make_loader: Callable[..., Any],
    topologies: Sequence[Topology] | None = None,
    *,
    num_epochs: int = 2,
    every: int = 1,
    keys: Callable[[Any], list[str]] = sample_keys,
) -> int:
    """Stops and restarts a loader everywhere, and compares.

    Args:
        make_loader: makes a fresh loader: `make_loader(topology, world)`, one call per rank; without topologies,
            `make_loader()`. It must have `__iter__`, `state_dict` and `load_state_dict`.
        topologies: each is stopped, and each goes on with what the others did.
        num_epochs: epochs to go through.
        every: stop after every so many steps.
        keys: the ids in a batch.

    Returns:
        How many restarts were compared.

    Raises:
        AssertionError: something was lost, repeated or reordered; the message says after which restart.
    """
    shapes = topologies or [Topology()]
    make = make_loader if topologies else lambda _topology, _world: make_loader()
    expected = _flat(_run(make, shapes[0], None, num_epochs, keys)[0])
    compared = 0
    for before in shapes:
        steps, states = _run(make, before, None, num_epochs, keys)
        assert _flat(steps) == expected, f"{before} delivers another order than {shapes[0]} without any restart"
        for k, after in itertools.product(range(0, len(states), every), shapes):
            compared += _restart(make, before, after, states[k], k, num_epochs, expected, keys)
    return compared


def _restart(
    make: Callable[..., Any],
    before: Topology,
    after: Topology,
    state: dict[str, Any],
    k: int,
    num_epochs: int,
    expected: list[tuple[int, str]],
    keys: Callable[[Any], list[str]],
) -> int:
    where = f"{before} stopped after step {k + 1}, gone on as {after}"
    left = num_epochs - state["epoch"]
    seen = len(expected) - _remaining(expected, state)
    steps, states = _run(make, after, state, left, keys)
    first = _flat(steps, state["epoch"])
    assert first == expected[seen:], _difference(where, expected[seen:], first)
    if not states:
        return 1
    # and once more: a second stop in the middle of what was gone on with
    again = states[len(states) // 2]
    steps, _ = _run(make, before, again, num_epochs - again["epoch"], keys)
    second, rest = _flat(steps, again["epoch"]), expected[len(expected) - _remaining(expected, again) :]
    assert second == rest, _difference(f"{where}, stopped again, gone on as {before}", rest, second)
    return 2


def _run(
    make: Callable[..., Any],
    topology: Topology,
    state: dict[str, Any] | None,
    num_epochs: int,
    keys: Callable[[Any], list[str]],
) -> tuple[list[tuple[int, list[str]]], list[dict[str, Any]]]:
    """All steps as (epoch, ids of the global batch), and the state after each."""
    loaders = [make(topology, world) for world in topology.worlds()]
    steps: list[tuple[int, list[str]]] = []
    states: list[dict[str, Any]] = []
    try:
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        for epoch in range(num_epochs):
            iterators = [iter(loader) for loader in loaders]
            for batches in zip(*iterators, strict=True):  # strict: ranks make the same number of steps
                taken = [loader.state_dict() for loader in loaders]
                assert all(each == taken[0] for each in taken), f"ranks have different states: {taken}"
                text = json.dumps(taken[0])
                assert len(text) < _MAX_STATE, f"state takes {len(text)} bytes"
                steps.append((epoch, [key for batch in batches for key in keys(batch)]))
                states.append(json.loads(text))
    finally:
        for loader in loaders:
            close = getattr(loader, "close", None)
            if close is not None:
                close()
    return steps, states


def _flat(steps: Iterable[tuple[int, list[str]]], first_epoch: int = 0) -> list[tuple[int, str]]:
    """(epoch, id) in the order of delivery; the repeats that fill up a last step are left out."""
    return list(dict.fromkeys((first_epoch + epoch, key) for epoch, keys in steps for key in keys))


def _remaining(expected: list[tuple[int, str]], state: dict[str, Any]) -> int:
    """How many of the expected samples come at or after the state's position."""
    later = sum(1 for epoch, _ in expected if epoch > state["epoch"])
    here = sum(1 for epoch, _ in expected if epoch == state["epoch"])
    return later + max(0, here - int(state["position"]))


def _difference(where: str, expected: list[tuple[int, str]], got: list[tuple[int, str]]) -> str:
    lost = [item for item in expected if item not in set(got)]
    extra = [item for item in got if item not in set(expected)]
    if not lost and not extra:
        k = next(i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b)
        return f"{where}: same samples, other order from number {k} on: {expected[k : k + 3]} became {got[k : k + 3]}"
    return f"{where}: {len(lost)} lost (first: {lost[:3]}), {len(extra)} repeated or unknown (first: {extra[:3]})"
