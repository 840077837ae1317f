import pickle
import tracemalloc

import numpy as np
import pytest

from sds.errors import OptionError
from sds.plan import Lanes, Steps, lanes, steps


def as_lists(sequence):
    return [item.tolist() for item in sequence]


def test_full_steps_are_slices_of_the_global_batch():
    assert as_lists(steps(12, 0, 2, 0, 3)) == [[0, 1, 2], [6, 7, 8]]
    assert as_lists(steps(12, 0, 2, 1, 3)) == [[3, 4, 5], [9, 10, 11]]


def test_the_tail_is_split_evenly():
    # 16 positions, steps of 6, a tail of 4: two for each rank
    assert as_lists(steps(16, 0, 2, 0, 3))[-1] == [12, 13]
    assert as_lists(steps(16, 0, 2, 1, 3))[-1] == [14, 15]


def test_an_uneven_tail_repeats_inside_itself():
    assert [steps(17, 0, 2, d, 3)[-1].tolist() for d in (0, 1)] == [[12, 13, 14], [15, 16, 12]]
    assert [steps(13, 0, 4, d, 3)[-1].tolist() for d in range(4)] == [[12], [12], [12], [12]]
    assert [steps(17, 0, 4, d, 3)[-1].tolist() for d in range(4)] == [[12, 13], [14, 15], [16, 12], [13, 14]]


def test_a_dropped_tail_is_left_out():
    for d in (0, 1):
        found = steps(17, 0, 2, d, 3, drop_last=True)
        assert len(found) == 2
        assert found[-1].max() < 12
    assert len(steps(5, 0, 2, 0, 3, drop_last=True)) == 0


def test_a_resume_begins_at_start():
    assert as_lists(steps(16, 6, 2, 1, 3)) == [[9, 10, 11], [14, 15]]
    assert as_lists(steps(16, 16, 2, 1, 3)) == []
    assert as_lists(steps(0, 0, 2, 1, 3)) == []


def test_stop_is_where_a_resume_goes_on():
    whole = steps(17, 2, 2, 0, 3)
    assert [whole.stop(k) for k in range(len(whole))] == [8, 14, 17]
    assert whole.stop(-1) == 17
    for k in range(len(whole)):
        assert as_lists(steps(17, whole.stop(k), 2, 0, 3)) == as_lists(whole)[k + 1 :]


def test_a_dropped_tail_ends_the_epoch():
    dropped = steps(17, 2, 2, 0, 3, True)
    assert [dropped.stop(k) for k in range(len(dropped))] == [8, 17]


def test_steps_are_a_sequence():
    found = steps(17, 0, 2, 0, 3)
    assert found[0].dtype == np.int64
    assert found[-1].tolist() == found[2].tolist()
    assert as_lists(found[1:]) == as_lists(found)[1:]
    assert as_lists(reversed(found)) == as_lists(found)[::-1]
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            found[wrong]
        with pytest.raises(IndexError):
            found.stop(wrong)
    assert pickle.loads(pickle.dumps(found)) == found
    assert isinstance(found, Steps)
    assert found.global_batch_size == 6


def test_lanes_stride_over_ranks_then_workers():
    assert list(lanes(12, 0, 2, 0)) == [0, 2, 4, 6, 8, 10]
    assert list(lanes(12, 0, 2, 1, 2, 0)) == [1, 5, 9]
    assert list(lanes(12, 0, 2, 1, 2, 1)) == [3, 7, 11]
    assert list(lanes(12, 3, 2, 1)) == [4, 6, 8, 10, 11]


def test_lanes_repeat_inside_the_last_group():
    assert [lanes(10, 0, 4, d)[-1] for d in range(4)] == [8, 9, 8, 9]
    assert [list(lanes(1, 0, 3, d)) for d in range(3)] == [[0], [0], [0]]


def test_a_worker_may_have_nothing():
    assert [list(lanes(2, 0, 1, 0, 4, w)) for w in range(4)] == [[0], [1], [], []]
    assert list(lanes(5, 5, 1, 0)) == []
    assert list(lanes(0, 0, 3, 2)) == []


def test_lanes_are_steps_of_one():
    for rank in range(3):
        assert list(lanes(11, 1, 3, rank)) == [int(step[0]) for step in steps(11, 1, 3, rank, 1)]


def test_lanes_are_a_sequence():
    found = lanes(23, 1, 4, 3, 2, 1)
    items = list(found)
    assert isinstance(found, Lanes)
    assert [found[k] for k in range(len(found))] == items
    assert all(type(item) is int for item in items)
    assert found[-1] == items[-1]
    assert found[1:].dtype == np.int64
    for piece in (slice(1, None), slice(None, None, -1), slice(5, 2), slice(-1, None)):
        assert found[piece].tolist() == items[piece]
    for wrong in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            found[wrong]
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_lane_stops_after_the_group_of_all_ranks():
    found = lanes(11, 1, 4, 2)
    assert [found.stop(k) for k in range(len(found))] == [5, 9, 11]
    for k in range(len(found)):
        assert list(lanes(11, found.stop(k), 4, 2)) == list(found)[k + 1 :]


def test_a_billion_positions_take_no_memory():
    tracemalloc.start()
    try:
        found = lanes(10**9 + 1, 0, 8, 7, 4, 3)
        batches = steps(10**9 + 1, 0, 8, 7, 256)
        assert len(found) == 31_250_000
        assert found[-1] == 10**9 - 1
        assert lanes(10**9 + 1, 0, 8, 7, 4, 0)[-1] == 10**9  # wrapped: the last group has one position
        assert found[10**6 : 10**6 + 3].tolist() == [32_000_031, 32_000_063, 32_000_095]
        assert next(iter(found)) == 31
        assert batches[-1].tolist()[-1] <= 10**9
        assert next(iter(batches))[0] == 7 * 256
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"length": -1}, "length"),
        ({"length": 1.0}, "length"),
        ({"start": -1}, "start"),
        ({"start": 11}, "start"),
        ({"data_size": 0}, "data_size"),
        ({"data_rank": 2}, "data_rank"),
        ({"data_rank": -1}, "data_rank"),
        ({"data_rank": None}, "data_rank"),
    ],
)
def test_impossible_shares_are_named(change, name):
    share = {"length": 10, "start": 0, "data_size": 2, "data_rank": 0} | change
    for make in (lambda: steps(**share, batch_size=2), lambda: lanes(**share)):
        with pytest.raises(OptionError, match=f"^{name} ") as caught:
            make()
        assert name in caught.value.hint


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, None, True])
def test_an_impossible_batch_size_is_named(batch_size):
    with pytest.raises(OptionError, match=r"^batch_size "):
        steps(10, 0, 1, 0, batch_size)


def test_impossible_workers_are_named():
    with pytest.raises(OptionError, match=r"^num_workers "):
        lanes(10, 0, 1, 0, 0, 0)
    with pytest.raises(OptionError, match=r"^worker "):
        lanes(10, 0, 1, 0, 2, 2)
