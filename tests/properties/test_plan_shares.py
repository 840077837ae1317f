"""Shares: each node keeps its rows for good, and nothing else about an epoch changes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sds.errors import OptionError
from sds.plan import Plan, steps

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=100)


@SETTINGS
@given(
    num_rows=st.integers(1, 500),
    shares=st.integers(1, 9),
    seed=st.none() | st.integers(0, 5),
    epoch=st.integers(0, 3),
)
def test_every_epoch_is_a_bijection_whose_positions_hold_rows_of_their_residue(num_rows, shares, seed, epoch):
    plan = Plan(num_rows, seed, shares=shares)
    rows = plan.rows(epoch, 0, num_rows)
    assert sorted(rows.tolist()) == list(range(num_rows))
    assert (rows % plan.shares == np.arange(num_rows) % plan.shares).all()
    assert [plan.position(epoch, row) for row in rows.tolist()] == list(range(num_rows))
    assert [plan.row(epoch, position) for position in range(num_rows)] == rows.tolist()


def test_shares_are_shuffled_apart_from_each_other_and_anew_every_epoch():
    plan = Plan(4000, 7, shares=4)
    orders = [plan.rows(epoch, 0, 4000)[share::4] // 4 for epoch in range(2) for share in range(4)]
    for one, other in [(0, 1), (1, 2), (0, 4), (3, 7)]:
        assert (orders[one] == orders[other]).mean() < 0.01


@SETTINGS
@given(
    num_rows=st.integers(1, 600),
    start=st.floats(0, 1),
    nodes=st.integers(1, 4),
    per_node=st.integers(1, 3),
    batch_size=st.integers(1, 6),
)
def test_the_ranks_of_a_node_read_its_own_share_from_any_start(num_rows, start, nodes, per_node, batch_size):
    data_size = nodes * per_node
    begin = int(start * num_rows)
    plain = [steps(num_rows, begin, data_size, rank, batch_size) for rank in range(data_size)]
    dealt = [steps(num_rows, begin, data_size, rank, batch_size, shares=nodes) for rank in range(data_size)]
    for k in range(len(plain[0])):
        everywhere = np.concatenate([mine[k] for mine in dealt])
        assert sorted(everywhere.tolist()) == sorted(np.concatenate([mine[k] for mine in plain]).tolist())
        if begin + (k + 1) * data_size * batch_size <= num_rows:
            for rank, mine in enumerate(dealt):
                assert set((mine[k] % nodes).tolist()) == {rank // per_node}


@SETTINGS
@given(num_rows=st.integers(4, 200), nodes=st.integers(1, 4), batch_size=st.integers(1, 6), num_laps=st.integers(1, 4))
def test_an_endless_epoch_keeps_the_shares_lap_after_lap(num_rows, nodes, batch_size, num_laps):
    for rank in range(nodes):
        mine = steps(num_laps * num_rows, 0, nodes, rank, batch_size, shares=nodes, lap=num_rows)
        for k, positions in enumerate(mine):
            first, last = k * nodes * batch_size, (k + 1) * nodes * batch_size - 1
            if last < num_laps * num_rows and first // num_rows == last // num_rows:
                assert set((positions % num_rows % nodes).tolist()) == {rank}


def test_a_step_that_cannot_be_divided_is_dealt_out_in_order():
    assert steps(100, 0, 3, 1, 5, shares=2)[0].tolist() == [5, 6, 7, 8, 9]


def test_chunks_and_shares_exclude_each_other():
    with pytest.raises(OptionError, match="exclude"):
        Plan(10, 1, chunk_sizes=[5, 5], shares=2)
