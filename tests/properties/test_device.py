"""A loader behind a DevicePrefetcher is the loader: whatever is done with it, in whatever order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sds
import texts
from sds.testing import SimulatedDevice

ACTS = ["next", "next", "next", "leave", "finish", "pause", "resume", "drain", "save", "load", "close"]


class Pair:
    """The same acts, with and without prefetching; what each gives is compared at once."""

    def __init__(self, bare: Any, prefetcher: sds.DevicePrefetcher) -> None:
        self.bare, self.ahead = bare, prefetcher
        self.batches: tuple[Any, Any] | None = None
        self.saved: dict[str, Any] | None = None

    def _iterators(self) -> tuple[Any, Any]:
        self.batches = self.batches or (iter(self.bare), iter(self.ahead))
        return self.batches

    def _compare(self, batch: Any) -> None:
        expected = next(self._iterators()[0], None)
        assert (batch and batch["__sample_key__"]) == (expected and expected["__sample_key__"])
        self.batches = None if batch is None else self.batches

    def do(self, act: str, number: int) -> None:
        if act == "next":
            for _ in range(number):
                self._compare(next(self._iterators()[1], None))
        elif act == "drain":
            for _, batch in zip(range(number), self.ahead.drain(), strict=False):
                self._compare(batch)
        elif act == "finish":
            self._iterators()
            while self.batches:
                self._compare(next(self.batches[1], None))
        elif act == "leave":
            self.batches = None
        elif act == "save":
            self.saved = self.ahead.state_dict()
        elif act == "load" and self.saved is not None:
            self.bare.load_state_dict(self.saved)
            self.ahead.load_state_dict(self.saved)
            self.batches = None
        elif act == "close":
            self.bare.close()
            self.ahead.close()
            self.batches = None
        elif act == "pause":
            self.ahead.pause()
        elif act == "resume":
            self.ahead.resume()
        assert self.ahead.state_dict() == self.bare.state_dict(), act


@pytest.mark.parametrize("kind", ["streaming", "mix"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    acts=st.lists(st.tuples(st.sampled_from(ACTS), st.integers(1, 4)), max_size=14),
    depth=st.integers(0, 4),
    seed=st.integers(0, 99),
)
def test_prefetching_changes_nothing(
    kind: str, acts: list[tuple[str, int]], depth: int, seed: int, source: Path, tmp_path: Path
) -> None:
    def dataset() -> sds.StreamingDataset:
        return texts.make(source, tmp_path / "dst", shuffle_seed=3, max_size=18)

    def mix() -> Any:
        options = [{"name": "a", "ratio": 1, "batch_size": 3}, {"name": "b", "ratio": 2, "batch_size": 2}]
        return sds.MultiStreamDataLoader([dataset(), dataset()], options, stop="first", num_threads=1)

    make: Callable[[], Any] = mix if kind == "mix" else lambda: sds.StreamingDataLoader(dataset(), 4, num_threads=1)
    device = SimulatedDevice(seed)
    pair = Pair(make(), sds.DevicePrefetcher(make(), device, depth=depth))
    try:
        for act, number in acts:
            pair.do(act, number)
        assert device.mistakes == []
    finally:
        pair.do("close", 1)
