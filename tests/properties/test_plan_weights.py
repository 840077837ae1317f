"""Weights hold exactly over epochs, whatever they are: each row less than one copy away from its share, always."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sds.plan import Plan

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=60)

WEIGHT = st.one_of(st.floats(0, 4, allow_nan=False), st.sampled_from([0.0, 0.25, 0.5, 1.0, 1 / 3, 3.0]))


@SETTINGS
@given(st.lists(WEIGHT, min_size=1, max_size=40), st.integers(0, 50), st.integers(1, 12), st.integers(0, 2))
def test_over_epochs_every_row_comes_by_its_weight(weights, first, num_epochs, kind):
    array = np.asarray([*weights, 1.0])
    size = len(array)
    options = [{}, {"seed": 7}, {"seed": 7, "chunk_sizes": [size // 2, 0, size - size // 2], "reach": 1}][kind]
    plan = Plan(size, weights=array, **options)
    found = np.zeros(size, int)
    for epoch in range(first, first + num_epochs):
        each = np.bincount(plan.rows(epoch, 0, plan.length(epoch)), minlength=size)
        assert ((each == np.floor(array)) | (each == np.ceil(array))).all()
        found += each
    assert (np.abs(found - num_epochs * array) < 1 + 1e-9).all()


@SETTINGS
@given(st.lists(st.floats(0, 3), min_size=1, max_size=2000), st.integers(0, 5), st.data())
def test_any_part_of_an_epoch_is_found_alone(weights, epoch, data):
    plan = Plan(len(weights) + 1, 3, weights=np.asarray([*weights, 1.0]))
    length = plan.length(epoch)
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    whole = plan.rows(epoch, 0, length)
    assert (plan.rows(epoch, start, stop) == whole[start:stop]).all()
    if stop > start:
        assert plan.row(epoch, start) == whole[start]


@SETTINGS
@given(st.floats(0, 2), st.integers(0, 1000))
def test_with_a_schedule_the_mean_over_rows_is_the_weight(weight, epoch):
    num_rows = 20_000
    plan = Plan(num_rows, weights=np.ones(num_rows), schedule=lambda _epoch, values: weight * values)
    expected = weight * num_rows
    if expected > 200:
        assert abs(plan.length(epoch) - expected) < 6 * np.sqrt(num_rows)
