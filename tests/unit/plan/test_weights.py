"""Copies of rows by weight: how many an epoch has, which rows they are of, and what is refused."""

import pickle

import numpy as np
import pytest

from sds.errors import OptionError, SourceError
from sds.plan import Plan
from sds.plan.weights import Copies


def counts(weights, epoch, **options):
    """How often each row comes in an epoch."""
    plan = Plan(len(weights), weights=np.asarray(weights, float), **options)
    return np.bincount(plan.rows(epoch, 0, plan.length(epoch)), minlength=len(weights))


def test_whole_weights_are_exact_in_every_epoch():
    for epoch in (0, 1, 999, 10**6):
        assert counts([1, 3, 0, 2], epoch).tolist() == [1, 3, 0, 2]


def test_a_quarter_comes_once_in_any_four_epochs_in_a_row():
    each = np.array([counts([0.25] * 100, epoch) for epoch in range(12)])
    for first in range(9):
        assert (each[first : first + 4].sum(axis=0) == 1).all()
    assert (each.sum(axis=1) > 10).all(), "rows come in different epochs, not all in the same"


def test_two_and_a_half_is_two_or_three():
    each = np.array([counts([2.5] * 50, epoch) for epoch in range(10)])
    assert set(each.ravel().tolist()) == {2, 3}
    assert (each.sum(axis=0) == 25).all()


def test_the_length_is_that_of_the_epoch():
    weights = np.full(1000, 0.5)
    plan = Plan(1000, 7, weights=weights)
    assert plan.length(0) + plan.length(1) == 1000
    assert 400 < plan.length(0) < 600
    assert plan.length(0) == len(plan.order(0)) == len(plan.rows(0, 0, plan.length(0)))


def test_the_numbers_never_change_between_versions():
    plan = Plan(10, 42, weights=np.linspace(0, 2, 10))
    assert plan.rows(0, 0, plan.length(0)).tolist() == [7, 8, 6, 8, 9, 3, 6, 4, 5, 9]
    assert plan.rows(1, 0, plan.length(1)).tolist() == [8, 5, 2, 7, 8, 9, 9, 4, 6, 7]


def test_which_rows_come_does_not_depend_on_the_seed_nor_on_chunks():
    weights = np.random.default_rng(0).uniform(0, 3, 500)
    expected = counts(weights, 3)
    for options in ({"seed": 1}, {"seed": 2}, {"seed": 1, "chunk_sizes": [100, 0, 250, 150], "reach": 2}):
        assert (counts(weights, 3, **options) == expected).all()


def test_rows_at_the_borders_of_blocks_are_found():
    weights = np.random.default_rng(1).choice([0.0, 1.0, 2.0, 0.5], 2000)
    weights[500:1100] = 0  # a block without any copy, and parts of others
    copies = Copies(weights, 5)
    rows, numbers = copies.find(np.arange(copies.total))
    assert (np.diff(rows) >= 0).all()
    assert len({*zip(rows.tolist(), numbers.tolist(), strict=True)}) == copies.total
    assert set(numbers.tolist()) == {0, 1}
    found = np.bincount(rows, minlength=2000)
    assert (found[weights == 0] == 0).all()
    assert (found[weights == 2] == 2).all()
    everything = np.arange(2001)
    assert (copies.before(everything) == np.concatenate([[0], np.cumsum(found)])).all()


def test_a_row_is_found_at_the_position_of_its_first_copy():
    weights = np.array([2.0, 0.0, 1.0, 3.0])
    for options in ({}, {"seed": 5}, {"seed": 5, "chunk_sizes": [2, 2], "reach": 1}):
        plan = Plan(4, weights=weights, **options)
        rows = plan.rows(0, 0, 6).tolist()
        for row in (0, 2, 3):
            assert plan.position(0, row) == rows.index(row)
        with pytest.raises(IndexError, match="does not come"):
            plan.position(0, 1)


def test_weights_change_by_a_schedule():
    def growing(epoch, values):
        return np.where(values > 1, epoch, 1)

    plan = Plan(3, weights=np.array([0.0, 2.0, 5.0]), schedule=growing)
    assert [plan.length(epoch) for epoch in range(4)] == [1, 3, 5, 7]
    assert plan.rows(2, 0, 5).tolist() == [0, 1, 1, 2, 2]


def test_positions_past_the_end_are_in_the_epochs_that_follow():
    plan = Plan(4, 3, weights=np.array([0.5, 1.0, 1.5, 2.0]))
    lengths = [plan.length(epoch) for epoch in range(6)]
    assert len(set(lengths)) > 1
    positions = np.arange(sum(lengths))
    laps, places = plan.locate(0, positions)
    assert laps.tolist() == [epoch for epoch, length in enumerate(lengths) for _ in range(length)]
    assert places.tolist() == [place for length in lengths for place in range(length)]


def test_weights_are_read_by_slices_and_never_as_a_whole():
    class Ones:
        """Weights that nobody holds."""

        def __len__(self):
            return 3 * 10**6

        def __getitem__(self, rows):
            assert rows.stop - rows.start <= 2**18
            return np.ones(rows.stop - rows.start)

    plan = Plan(3 * 10**6, 1, weights=Ones())
    assert plan.length(0) == 3 * 10**6
    assert (np.sort(plan.rows(0, 0, 1000)) == np.sort(Plan(3 * 10**6, 1).rows(0, 0, 1000))).all()


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), -0.001])
def test_an_impossible_weight_is_named_with_its_row(wrong):
    with pytest.raises(OptionError, match="weight of row 2"):
        Plan(3, weights=np.array([1.0, 1.0, wrong])).length(0)


def test_an_epoch_without_samples_is_an_error_that_says_which():
    with pytest.raises(SourceError, match="0 samples in epoch 3"):
        Plan(2, weights=np.zeros(2)).length(3)


@pytest.mark.parametrize("wrong", [lambda e, v: v[:1], lambda e, v: "no", lambda e, v: [None] * len(v)])
def test_a_schedule_that_gives_no_weights_is_an_error(wrong):
    with pytest.raises(OptionError, match="weight_schedule gave no weights"):
        Plan(3, weights=np.ones(3), schedule=wrong).length(0)


def test_weights_of_another_number_of_rows_are_refused():
    with pytest.raises(OptionError, match="not one a row"):
        Plan(3, weights=np.ones(4))
    with pytest.raises(OptionError, match="shares and weights"):
        Plan(3, 1, weights=np.ones(3), shares=2)


def test_a_plan_with_weights_travels():
    plan = Plan(50, 3, weights=np.linspace(0, 2, 50), chunk_sizes=[20, 30])
    copy = pickle.loads(pickle.dumps(plan))
    assert (copy.rows(1, 0, copy.length(1)) == plan.rows(1, 0, plan.length(1))).all()
