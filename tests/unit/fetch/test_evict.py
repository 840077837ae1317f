"""Which file goes first: the order, the sums, and that `keep` reaches the best possible hit rate where LRU does not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sds.fetch.evict import Idle


def idle_of(**sizes: int) -> Idle:
    idle = Idle()
    for key, size in sizes.items():
        idle.add(key, size)
    return idle


def test_keep_takes_the_last_released_and_lru_the_first() -> None:
    idle = idle_of(a=1, b=2, c=3)
    assert idle.victims(1, "keep") == ["c"] and idle.victims(4, "keep") == ["c", "b"]
    assert idle.victims(1, "lru") == ["a"] and idle.victims(2, "lru") == ["a", "b"]
    assert idle.victims(0, "keep") == [] and idle.victims(99, "lru") == ["a", "b", "c"]
    idle.remove("a")
    idle.add("a", 1)  # used again: now it was released last
    assert idle.victims(1, "keep") == ["a"] and idle.victims(1, "lru") == ["b"]


def test_removing_what_is_not_there_changes_nothing() -> None:
    idle = idle_of(a=5)
    idle.remove("b")
    assert (len(idle), idle.num_bytes, "a" in idle) == (1, 5, True)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50))), st.integers(0, 300), st.sampled_from(["keep", "lru"])
)
def test_victims_are_enough_and_no_more_than_needed(adds: list[tuple[int, int]], wanted: int, policy: str) -> None:
    idle = Idle()
    sizes: dict[str, int] = {}
    for number, size in adds:
        key = str(number)
        idle.remove(key)
        idle.add(key, size)
        sizes.pop(key, None)
        sizes[key] = size
    assert idle.num_bytes == sum(sizes.values()) and len(idle) == len(sizes)
    victims = idle.victims(wanted, policy)
    freed = sum(sizes[key] for key in victims)
    assert freed >= min(wanted, idle.num_bytes)
    assert not victims or freed - sizes[victims[-1]] < wanted
    order = list(sizes)[::-1] if policy == "keep" else list(sizes)
    assert victims == order[: len(victims)]


def hit_rate(policy: str, share: float, num_samples: int = 20_000, num_epochs: int = 5) -> float:
    """Mean hit rate of the warm epochs, each a fresh random order of all samples, one file of one byte each."""
    rng = random.Random(f"{policy} {share}")
    room = int(share * num_samples)
    idle, hits = Idle(), 0
    samples = [str(i) for i in range(num_samples)]
    for epoch in range(num_epochs):
        rng.shuffle(samples)
        for key in samples:
            if key in idle:
                hits += epoch > 0
                idle.remove(key)
            elif len(idle) >= room:
                for victim in idle.victims(1, policy):
                    idle.remove(victim)
            idle.add(key, 1)
    return hits / (num_samples * (num_epochs - 1))


@pytest.mark.parametrize(("share", "lru"), [(0.25, 0.034), (0.50, 0.154), (0.75, 0.406)])
def test_keep_reaches_the_optimum_and_lru_does_not(share: float, lru: float) -> None:
    assert hit_rate("keep", share) == pytest.approx(share, abs=0.01)
    assert hit_rate("lru", share) == pytest.approx(lru, abs=0.01)
