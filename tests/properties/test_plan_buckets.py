"""Batches of one bucket cover an epoch exactly, whatever the world looks like and however often it changes."""

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sds.errors import OptionError, StateMismatch
from sds.plan.buckets import bucket_steps

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=150)

BUCKETS = st.lists(st.integers(0, 5), max_size=200).map(lambda numbers: np.array(numbers, np.int32))
RANKS = st.integers(1, 5)
BATCHES = st.integers(1, 9)
FACTORS = {1: [1], 6: [1, 2, 3, 6], 8: [1, 2, 4, 8], 12: [1, 2, 3, 4, 6, 12]}


def global_batches(buckets, data_size, batch_size, drop_last=False, done=()):
    """What all ranks make together, without the repeats that make a small one equal on all of them."""
    ranks = [bucket_steps(buckets, data_size, rank, batch_size, drop_last, done=done) for rank in range(data_size)]
    assert len({len(mine) for mine in ranks}) == 1, "every rank makes the same number of batches"
    made = []
    for parts in zip(*ranks, strict=True):
        assert len({len(part) for part in parts}) == 1, "every rank has as many samples"
        positions = np.concatenate(parts).tolist()
        once = list(dict.fromkeys(positions))
        assert len(positions) - len(once) <= data_size - 1
        made.append(once)
    return made


def expected(buckets, size):
    """The same rules, spelled out sample by sample."""
    waiting, whole = {}, []
    for position, bucket in enumerate(buckets.tolist()):
        members = waiting.setdefault(bucket, [])
        members.append(position)
        if len(members) == size:
            whole.append(waiting.pop(bucket))
    return whole, sorted(waiting.values(), key=lambda members: members[-1])


@SETTINGS
@given(buckets=BUCKETS, data_size=RANKS, batch_size=BATCHES)
def test_each_position_is_in_one_batch_of_its_bucket(buckets, data_size, batch_size):
    whole, rest = expected(buckets, data_size * batch_size)
    assert global_batches(buckets, data_size, batch_size) == whole + rest
    assert global_batches(buckets, data_size, batch_size, drop_last=True) == whole
    steps = bucket_steps(buckets, data_size, 0, batch_size, drop_last=True)
    assert steps.num_dropped == sum(map(len, rest))


@SETTINGS
@given(
    buckets=BUCKETS,
    product=st.sampled_from(sorted(FACTORS)),
    picks=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    drop_last=st.booleans(),
)
def test_global_batches_depend_on_their_size_alone(buckets, product, picks, drop_last):
    one, other = (
        global_batches(buckets, ranks, product // ranks, drop_last)
        for ranks in (FACTORS[product][pick % len(FACTORS[product])] for pick in picks)
    )
    assert one == other


@SETTINGS
@given(buckets=BUCKETS, numbers=st.randoms(use_true_random=False))
def test_numbers_of_buckets_do_not_matter(buckets, numbers):
    names = numbers.sample(range(-(10**9), 10**9), 6)
    renamed = np.array([names[bucket] for bucket in buckets], np.int64)
    assert global_batches(renamed, 2, 3) == global_batches(buckets, 2, 3)


@SETTINGS
@given(buckets=BUCKETS, data_size=RANKS, batch_size=BATCHES, stop=st.integers(0, 100))
def test_a_stop_changes_nothing(buckets, data_size, batch_size, stop):
    batches = global_batches(buckets, data_size, batch_size)
    if not batches:
        return
    stop %= len(batches)
    steps = bucket_steps(buckets, data_size, 0, batch_size)
    assert steps.num_after(stop) == sum(map(len, batches[: stop + 1]))
    assert steps.done_after(stop) == ((data_size * batch_size, stop + 1),)
    assert global_batches(buckets, data_size, batch_size, done=steps.done_after(stop)) == batches[stop + 1 :]


@SETTINGS
@given(buckets=BUCKETS, moves=st.lists(st.tuples(RANKS, BATCHES, st.integers(1, 4)), min_size=1, max_size=6))
def test_nothing_is_lost_or_twice_when_the_world_changes_again_and_again(buckets, moves):
    handed_out, done = [], ()
    for ranks, batch_size, count in moves:
        batches = global_batches(buckets, ranks, batch_size, done=done)[:count]
        if batches:
            steps = bucket_steps(buckets, ranks, ranks - 1, batch_size, done=done)
            assert all(len(set(buckets[batch].tolist())) == 1 for batch in batches)
            handed_out += [position for batch in batches for position in batch]
            assert steps.num_after(len(batches) - 1) == len(handed_out)
            done = steps.done_after(len(batches) - 1)
    handed_out += [position for batch in global_batches(buckets, 2, 2, done=done) for position in batch]
    assert Counter(handed_out) == Counter(range(len(buckets)))


@SETTINGS
@given(buckets=BUCKETS, start=st.integers(0, 200))
def test_what_was_handed_out_without_buckets_is_a_beginning_too(buckets, start):
    start = min(start, len(buckets))
    rest = global_batches(buckets, 1, 4, done=[(1, start)])
    assert sorted(position for batch in rest for position in batch) == list(range(start, len(buckets)))
    assert rest == [[p + start for p in batch] for batch in global_batches(buckets[start:], 1, 4)]


@pytest.mark.parametrize("done", [[(4, 3)], [(0, 1)], [(4, -1)], [(3, 1), (4, 3)]])
def test_a_beginning_that_cannot_be_is_refused(done):
    with pytest.raises((OptionError, StateMismatch)):
        bucket_steps(np.zeros(8, np.int64), 1, 0, 2, done=done)


def test_a_million_positions_take_less_than_a_second():
    buckets = np.random.default_rng(0).integers(0, 300, 1_000_000)
    begun = time.perf_counter()
    steps = bucket_steps(buckets, 8, 3, 32, done=[(256, 1000), (128, 500)])
    assert time.perf_counter() - begun < 1.0  # some 0.1 s on a machine that has nothing else to do
    assert len({len(step) for step in steps[:1000]}) == 1
