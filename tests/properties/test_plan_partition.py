"""Steps and lanes cover an epoch exactly, whatever the world looks like."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sds.plan import lanes, steps

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=150)

LENGTHS = st.integers(0, 400)
RANKS = st.integers(1, 9)
BATCHES = st.integers(1, 12)
SHARES = st.floats(0, 1)  # start, as a share of the length
FACTORS = {1: [1], 6: [1, 2, 3, 6], 8: [1, 2, 4, 8], 12: [1, 2, 3, 4, 6, 12]}


def global_batches(length, start, data_size, batch_size, drop_last, num_workers=1):
    """What all ranks make together, step by step; each rank's steps are made by its workers in turn."""
    by_rank = []
    for rank in range(data_size):
        mine = steps(length, start, data_size, rank, batch_size, drop_last)
        made = {s: mine[s] for worker in range(num_workers) for s in range(worker, len(mine), num_workers)}
        by_rank.append([made[s] for s in range(len(mine))])
    assert len({len(mine) for mine in by_rank}) == 1, "every rank makes the same number of steps"
    return [list(batches) for batches in zip(*by_rank, strict=True)]


@SETTINGS
@given(length=LENGTHS, share=SHARES, data_size=RANKS, batch_size=BATCHES, drop_last=st.booleans())
def test_steps_cover_once_and_follow_the_tail_rules(length, share, data_size, batch_size, drop_last):
    start, size = int(share * length), data_size * batch_size
    batches = global_batches(length, start, data_size, batch_size, drop_last)
    num_full, num_left = divmod(length - start, size)
    assert len(batches) == num_full + (num_left > 0 and not drop_last)
    for s, batch in enumerate(batches[:num_full]):
        first = start + s * size
        assert np.concatenate(batch).tolist() == list(range(first, first + size))
        assert {len(part) for part in batch} == {batch_size}
    if len(batches) > num_full:
        tail = batches[-1]
        assert {len(part) for part in tail} == {-(-num_left // data_size)}
        positions = np.concatenate(tail)
        assert set(positions.tolist()) == set(range(length - num_left, length))
        assert len(positions) - num_left <= data_size - 1
        # the first occurrences come in order, so the tail is split, not strided
        assert positions[:num_left].tolist() == list(range(length - num_left, length))


@SETTINGS
@given(
    length=LENGTHS,
    share=SHARES,
    product=st.sampled_from(sorted(FACTORS)),
    picks=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    workers=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    drop_last=st.booleans(),
)
def test_global_batches_depend_on_the_product_only(length, share, product, picks, workers, drop_last):
    start = int(share * length)
    found = []
    for pick, num_workers in zip(picks, workers, strict=True):
        data_size = FACTORS[product][pick % len(FACTORS[product])]
        batches = global_batches(length, start, data_size, product // data_size, drop_last, num_workers)
        num_full = (length - start) // product
        # full batches are equal in order too; a tail as a set, for its repeats depend on the number of ranks
        found.append([np.concatenate(b).tolist() for b in batches[:num_full]])
        found[-1] += [sorted(set(np.concatenate(b).tolist())) for b in batches[num_full:]]
    assert found[0] == found[1]


@SETTINGS
@given(
    length=LENGTHS,
    before=st.tuples(RANKS, BATCHES),
    after=st.tuples(RANKS, BATCHES),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_a_resume_at_any_step_in_any_world_covers_the_rest(length, before, after, drop_last, data):
    whole = steps(length, 0, before[0], 0, before[1], drop_last)
    if len(whole) == 0:
        return
    k = data.draw(st.integers(0, len(whole) - 1))
    batches = global_batches(length, 0, *before, drop_last)
    done = {int(p) for batch in batches[: k + 1] for part in batch for p in part}
    position = whole.stop(k)
    assert done == set(range(position)) or (drop_last and k == len(whole) - 1 and position == length)
    rest = global_batches(length, position, *after, False)
    assert {int(p) for batch in rest for part in batch for p in part} == set(range(position, length))
    # in the same world it is the very same steps
    same = global_batches(length, position, *before, drop_last)
    assert [np.concatenate(b).tolist() for b in same] == [np.concatenate(b).tolist() for b in batches[k + 1 :]]


@SETTINGS
@given(length=LENGTHS, share=SHARES, data_size=RANKS, num_workers=st.integers(1, 6))
def test_lanes_cover_once_with_the_repeat_rule(length, share, data_size, num_workers):
    start = int(share * length)
    num_left, seen, per_rank = length - start, Counter(), []
    for rank in range(data_size):
        by_worker = [list(lanes(length, start, data_size, rank, num_workers, w)) for w in range(num_workers)]
        per_rank.append(sum(map(len, by_worker)))
        seen.update(p for lane in by_worker for p in lane)
        # workers in turn give what a rank without workers gives
        merged = [by_worker[k % num_workers][k // num_workers] for k in range(per_rank[-1])]
        assert merged == list(lanes(length, start, data_size, rank))
    assert set(per_rank) == {-(-num_left // data_size)}
    assert set(seen) == set(range(start, length))
    assert sum(seen.values()) - num_left <= data_size - 1
    repeated = [p for p, times in seen.items() if times > 1]
    assert all(p >= length - num_left % data_size for p in repeated)


@SETTINGS
@given(length=LENGTHS, share=SHARES, data_size=RANKS, num_workers=st.integers(1, 4), data=st.data())
def test_lanes_look_the_same_by_item_slice_and_iteration(length, share, data_size, num_workers, data):
    rank, worker = data.draw(st.integers(0, data_size - 1)), data.draw(st.integers(0, num_workers - 1))
    lane = lanes(length, int(share * length), data_size, rank, num_workers, worker)
    items = list(lane)
    assert len(lane) == len(items)
    assert [lane[k] for k in range(len(lane))] == items
    piece = data.draw(st.slices(len(items)))
    assert lane[piece].tolist() == items[piece]
