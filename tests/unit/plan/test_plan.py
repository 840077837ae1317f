import dataclasses
import pickle
import threading
import tracemalloc

import numpy as np
import pytest

from sds import seeds
from sds.errors import OptionError
from sds.plan import Permutation, Plan


def test_the_order_never_changes_between_versions():
    assert Plan(10**9, 0).rows(0, 0, 4).tolist() == [273366176, 447920649, 908091255, 142329661]
    assert Plan(10**9, 0).rows(1, 0, 4).tolist() == [845252269, 653545158, 896395042, 655024777]
    assert Plan(10**9, 42).rows(3, 10**9 - 2, 10**9).tolist() == [434934665, 114080567]
    assert Plan(7, 42).rows(0, 0, 7).tolist() == [0, 4, 6, 2, 5, 3, 1]


def test_the_order_of_blocks_never_changes_between_versions():
    small = Plan(12, 42, chunk_sizes=[3, 0, 4, 1, 4], reach=2)
    assert small.rows(0, 0, 12).tolist() == [0, 1, 2, 5, 6, 7, 3, 4, 11, 9, 10, 8]
    assert small.rows(1, 0, 12).tolist() == [2, 0, 1, 9, 3, 11, 8, 5, 4, 6, 10, 7]
    large = Plan(10**7, 42, chunk_sizes=[10**4] * 1000)
    assert large.rows(0, 0, 4).tolist() == [4149671, 1052593, 3232768, 8676366]
    assert large.rows(1, 10**7 - 2, 10**7).tolist() == [389930, 9316413]


def test_no_seed_keeps_the_order():
    for plan in (Plan(100, None), Plan(100), Plan(100, None, chunk_sizes=[40, 60])):
        for epoch in (0, 7):
            assert plan.rows(epoch, 10, 20).tolist() == list(range(10, 20))
            assert plan.row(epoch, 99) == plan.position(epoch, 99) == 99


def test_the_key_is_made_of_seed_and_epoch():
    expected = Permutation(1000, seeds.derive_key(5, "order", 3))
    assert (Plan(1000, 5).rows(3, 0, 1000) == expected[:]).all()


@pytest.mark.parametrize("sizes", [None, [250, 0, 750], [10] * 100])
def test_every_epoch_and_seed_is_another_order(sizes):
    orders = {tuple(Plan(1000, seed, chunk_sizes=sizes).rows(e, 0, 1000)) for seed in (0, 1) for e in range(5)}
    assert len(orders) == 10
    assert all(sorted(order) == list(range(1000)) for order in orders)


@pytest.mark.parametrize("plan", [Plan(50), Plan(50, 1), Plan(50, 1, chunk_sizes=[20, 25, 5], reach=2)])
def test_row_position_rows_and_order_agree(plan):
    rows = plan.rows(2, 0, 50)
    assert rows.dtype == np.int64
    assert plan.length(2) == 50
    assert [plan.row(2, p) for p in range(50)] == rows.tolist()
    assert [plan.position(2, r) for r in rows.tolist()] == list(range(50))
    assert (plan.order(2).inverse[rows] == np.arange(50)).all()
    assert plan.rows(2, 50, 50).tolist() == []
    assert type(plan.row(2, 0)) is type(plan.position(2, 0)) is int


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 11), (5, 4), (11, 11)])
def test_a_range_outside_the_epoch_is_an_index_error(start, stop):
    with pytest.raises(IndexError):
        Plan(10, 0).rows(0, start, stop)


def test_a_row_or_position_outside_is_an_index_error():
    for ask in (Plan(10, 0).row, Plan(10, 0).position):
        for wrong in (-1, 10):
            with pytest.raises(IndexError):
                ask(0, wrong)


@pytest.mark.parametrize(
    ("arguments", "options", "name"),
    [
        ((0, 0), {}, "num_rows"),
        ((2**40 + 1, 0), {}, "num_rows"),
        ((10, -1), {}, "seed"),
        ((10, 1.5), {}, "seed"),
        ((10, 0), {"chunk_sizes": [5, 4]}, "chunk_sizes"),
        ((10, 0), {"chunk_sizes": [11, -1]}, "chunk_sizes"),
        ((10, 0), {"reach": 0}, "reach"),
    ],
)
def test_impossible_arguments_are_named(arguments, options, name):
    with pytest.raises(OptionError, match=f"^{name} ") as caught:
        Plan(*arguments, **options)
    assert caught.value.hint


def test_an_impossible_epoch_is_named():
    for ask in (lambda e: Plan(10, 0).length(e), lambda e: Plan(10, 0).row(e, 0), lambda e: Plan(10).rows(e, 0, 1)):
        with pytest.raises(OptionError, match=r"^epoch "):
            ask(-1)


def test_it_is_a_frozen_value_that_travels():
    sizes = np.array([20, 25, 5])
    plan = Plan(50, 1, chunk_sizes=sizes, reach=2)
    sizes[0] = 0  # the plan has its own copy
    expected = plan.rows(4, 0, 50)
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert hash(again) == hash(plan)
    assert (again.rows(4, 0, 50) == expected).all()
    assert plan not in (Plan(50, 1), Plan(50, 2, chunk_sizes=[20, 25, 5], reach=2), "plan")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.seed = 3
    with pytest.raises(ValueError, match="read-only"):
        plan.chunk_sizes[0] = 1
    assert repr(plan) == "Plan(num_rows=50, seed=1, reach=2, shares=1)"


def test_it_is_cheap_to_send_after_use():
    plan = Plan(10**9, 1)
    plan.rows(0, 0, 1000)
    assert len(pickle.dumps(plan)) < 200


def test_a_global_shuffle_takes_no_memory():
    tracemalloc.start()
    try:
        plan = Plan(2**40, 1)
        plan.row(0, 2**39)
        plan.rows(1, 2**39, 2**39 + 1000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_only_the_latest_epochs_are_remembered():
    plan = Plan(100, 1, chunk_sizes=[50, 50])
    for epoch in range(50):
        plan.row(epoch, 0)
    assert len(plan._orders) <= 2


def test_threads_that_ask_for_different_epochs_get_the_right_ones():
    plan, wrong = Plan(5000, 1, chunk_sizes=[50] * 100), []
    expected = [Plan(5000, 1, chunk_sizes=[50] * 100).row(e, 17) for e in range(6)]

    def ask(offset):
        wrong.extend(e for i in range(60) if plan.row(e := (i + offset) % 6, 17) != expected[e])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
