"""Mixes, whatever is asked for: shares hold, and each stream is gone through once and in order, wherever it stops."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sds.loader.mixing import SCHEDULES, Mix, Schedule
from sds.loader.multistream_walk import Cursor, Place, Walk
from sds.plan.turns import balanced

COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any).map(tuple)


@given(counts=COUNTS)
def test_an_even_order_is_within_one_turn_of_the_shares_in_any_prefix(counts):
    order = balanced(counts)
    assert np.bincount(order, minlength=len(counts)).tolist() == list(counts)
    so_far = np.eye(len(counts), dtype=np.int64)[order].cumsum(0) * sum(counts)
    exact = np.arange(1, len(order) + 1)[:, None] * np.asarray(counts)
    assert np.abs(so_far - exact).max() <= sum(counts)


@given(
    counts=COUNTS,
    kind=st.sampled_from(SCHEDULES),
    seed=st.integers(0, 2**31),
    size=st.integers(1, 5),
    groups=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    steps=st.lists(st.integers(0, 2**40), min_size=1, max_size=5),
)
def test_a_choice_is_a_function_of_the_step(counts, kind, seed, size, groups, steps):
    ids = groups[: len(counts)]
    dense = tuple(sorted(set(ids)).index(each) for each in ids)
    schedule = Schedule(kind, counts, dense, seed)
    together = schedule.choices(np.asarray(steps), size)
    alone = np.concatenate([schedule.choices(np.asarray([step]), size) for step in steps])
    assert (together == alone).all()
    assert all(counts[stream] for stream in together.ravel()), "a stream without a share is never chosen"


@given(
    counts=st.tuples(st.integers(1, 12), st.integers(0, 12), st.integers(0, 12)),
    kind=st.sampled_from(["fixed_random_order", "consecutive", "round_robin"]),
    seed=st.integers(0, 2**31),
    size=st.integers(2, 6),
    groups=st.sampled_from([(0, 0, 0), (0, 0, 1), (0, 1, 0)]),
)
def test_every_rank_has_its_share_in_as_many_meta_iterations_as_ranks(counts, kind, seed, size, groups):
    chosen = Schedule(kind, counts, groups, seed).choices(np.arange(size * sum(counts)), size)
    for rank in range(size):
        found = np.bincount(chosen[:, rank], minlength=3).tolist()
        assert found == [size * count for count in counts]


RATIOS = st.tuples(*[st.integers(1, 9)] * 3)


@settings(max_examples=60)
@given(
    kind=st.sampled_from(SCHEDULES),
    stop=st.sampled_from(["first", "all"]),
    ratios=st.one_of(
        RATIOS,
        st.tuples(RATIOS, st.integers(1, 60), RATIOS).map(lambda each: [(0, each[0]), each[1:]]),
        RATIOS.map(lambda each: lambda step: each),
    ),
    groups=st.sampled_from([(0, 0, 0), (0, 1, 2), (0, 0, 1)]),
    size=st.integers(1, 3),
    batches=st.tuples(*[st.integers(1, 3)] * 3),
    rounds=st.integers(1, 2),
    lengths=st.tuples(*[st.integers(1, 120)] * 3),
    begin=st.integers(0, 100),
)
def test_the_length_of_a_pass_is_that_of_its_walk(kind, stop, ratios, groups, size, batches, rounds, lengths, begin):
    mix = Mix(kind, ratios, groups=groups, seed=1)
    walk = Walk(mix, batches, (rounds,) * 3, lambda i, epoch: lengths[i], size - 1, size, stop)
    cursor = Cursor(begin, 0, 0, begin, (Place(0, 0),) * 3, (0,) * 3)
    assert walk.num_items(cursor) == sum(1 for _ in walk.items(cursor))


LEG = st.tuples(
    st.integers(1, 4),  # ranks
    st.sampled_from(SCHEDULES),
    st.tuples(st.integers(1, 5), st.integers(0, 5), st.integers(0, 5)),  # ratios
    st.sampled_from([(0, 0, 0), (0, 1, 2), (0, 0, 1)]),
    st.tuples(*[st.integers(1, 4)] * 3),  # samples per rank
    st.integers(1, 3),  # rounds
    st.integers(0, 40),  # batches until the stop
)


@settings(max_examples=60)
@given(legs=st.lists(LEG, min_size=1, max_size=4), lengths=st.tuples(*[st.integers(1, 25)] * 3))
def test_each_stream_is_gone_through_once_and_in_order_whatever_changes_at_stops(legs, lengths):
    cursor = Cursor(0, 0, 0, 0, (Place(0, 0),) * 3, (0,) * 3)
    seen = [[], [], []]
    for size, kind, ratios, groups, batches, rounds, num in legs:
        mix = Mix(kind, ratios, groups=groups, seed=1).begun_at(cursor.step)
        walks = [
            Walk(mix, batches, (rounds,) * 3, lambda i, epoch: lengths[i], rank, size, "never").items(cursor)
            for rank in range(size)
        ]
        for _ in range(num):
            items = [next(each) for each in walks]
            assert all(item.after == items[0].after for item in items)
            assert all(item.rounds_left == items[0].rounds_left for item in items)
            if groups == (0, 1, 2):
                assert len({item.stream for item in items}) == 1
            for item in items:
                first = item.epoch * lengths[item.stream] + item.position
                seen[item.stream] += range(first, first + item.size)
            cursor = items[0].after
    for stream, positions in enumerate(seen):
        assert positions == list(range(len(positions)))
        place = cursor.places[stream]
        assert place.epoch * lengths[stream] + place.position == len(positions)
