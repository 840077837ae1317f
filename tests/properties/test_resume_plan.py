"""Stop anywhere, go on anywhere: what is delivered in pieces is what one uninterrupted run delivers. Pure, no I/O."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from sds.plan import Plan, lanes, steps

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=300)

ROWS = st.integers(1, 300)
SEEDS = st.none() | st.integers(0, 2**31)
# (ranks, batch size, workers, where to stop as a share of the steps that are left); global batches of up to 60
LEG = st.tuples(st.integers(1, 5), st.integers(1, 12), st.integers(1, 4), st.floats(0, 1))
LEGS = st.lists(LEG, min_size=1, max_size=4)


def run_leg(plan, epoch, start, leg, drop_last):
    """One stretch of an epoch: the positions in order of delivery, and where it was stopped."""
    data_size, batch_size, num_workers, share = leg
    by_rank = [steps(plan.length(epoch), start, data_size, rank, batch_size, drop_last) for rank in range(data_size)]
    (num_steps,) = {len(each) for each in by_rank}  # equal on all ranks
    num_taken = round(share * num_steps)
    made = {}
    for worker in range(num_workers):  # worker w makes the steps s = w (mod W), in whatever order they finish
        for s in reversed(range(worker, num_steps, num_workers)):
            made[s] = [int(p) for mine in by_rank for p in mine[s]]
    delivered = [made[s] for s in range(num_taken)]
    stop = by_rank[0].stop(num_taken - 1) if num_taken else start
    return delivered, stop, num_taken == num_steps


@SETTINGS
@given(num_rows=ROWS, seed=SEEDS, epoch=st.integers(0, 3), legs=LEGS, last=LEG, drop_last=st.booleans())
def test_an_epoch_in_pieces_is_the_epoch(num_rows, seed, epoch, legs, last, drop_last):
    plan, start, seen = Plan(num_rows, seed), 0, []
    for leg in legs:
        delivered, start, is_over = run_leg(plan, epoch, start, leg, drop_last)
        seen += delivered
        if is_over:
            break
    else:
        delivered, start, is_over = run_leg(plan, epoch, start, (*last[:3], 1.0), drop_last)
        seen += delivered
    assert is_over and (start == num_rows or drop_last)
    firsts = list(dict.fromkeys(position for batch in seen for position in batch))
    assert firsts == list(range(len(firsts))), "the order is the uninterrupted run's"
    repeats = Counter(position for batch in seen for position in batch)
    sizes = [leg[0] * leg[1] for leg in (*legs, last)]
    if drop_last:
        assert set(repeats.values()) <= {1}
        assert num_rows - len(firsts) < max(sizes), "less than one global batch is dropped, once, at the end"
    else:
        assert len(firsts) == num_rows, "nothing is lost"
        num_repeats = sum(repeats.values()) - num_rows
        assert num_repeats < max(leg[0] for leg in (*legs, last)), "only the last step is filled up, by ranks - 1"
        assert all(position in seen[-1] for position, count in repeats.items() if count > 1)
    rows = plan.rows(epoch, 0, num_rows)
    ids = [int(rows[position]) for position in firsts]
    assert len(set(ids)) == len(ids)
    if not drop_last:
        assert sorted(ids) == list(range(num_rows)), "the delivered ids are the index"


@SETTINGS
@given(
    num_rows=ROWS,
    first=st.tuples(st.integers(1, 6), st.floats(0, 1)),
    second=st.tuples(st.integers(1, 6), st.floats(0, 1)),
    third=st.integers(1, 6),
)
def test_bare_iteration_in_pieces_is_the_epoch(num_rows, first, second, third):
    """Single positions over ranks, as `iter(dataset)` without workers makes them."""
    start, seen = 0, []
    for data_size, share in (first, second, (third, 1.0)):
        by_rank = [lanes(num_rows, start, data_size, rank) for rank in range(data_size)]
        num_taken = round(share * len(by_rank[0]))
        seen += [int(mine[k]) for k in range(num_taken) for mine in by_rank]
        start = by_rank[0].stop(num_taken - 1) if num_taken else start
    assert list(dict.fromkeys(seen)) == list(range(num_rows))
    assert len(seen) - num_rows < max(first[0], second[0], third), "the repeats of one incomplete last group"
