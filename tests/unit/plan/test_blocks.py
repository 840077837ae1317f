import numpy as np
import pytest

from sds.errors import OptionError
from sds.plan import BlockPermutation


def test_chunks_of_a_window_are_where_its_rows_come_from():
    sizes = np.array([50, 0, 70, 1, 30, 30, 0, 19])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    blocks = BlockPermutation(sizes, 5, reach=3)
    assert blocks.num_windows == 3
    assert sorted(np.concatenate([blocks.chunks(w) for w in range(3)]).tolist()) == list(range(8))
    for position in range(200):
        window, start, stop = blocks.window(position)
        assert start <= position < stop
        chunk = np.searchsorted(starts, blocks[position], side="right") - 1
        assert chunk in blocks.chunks(window)


def test_a_reach_of_one_keeps_each_chunk_together():
    blocks = BlockPermutation([10] * 20, 5, reach=1)
    chunks = (blocks[:] // 10).reshape(20, 10)
    assert (chunks == chunks[:, :1]).all()
    assert chunks[:, 0].tolist() != list(range(20))
    assert len({tuple((blocks[:] % 10).reshape(20, 10)[i]) for i in range(20)}) > 15  # no two chunks alike


def test_a_reach_over_everything_is_one_window():
    blocks = BlockPermutation([10] * 20, 5, reach=10**6)
    assert blocks.num_windows == 1
    assert blocks.window(199) == (0, 0, 200)


def test_many_chunks_of_billions_of_rows():
    sizes = np.full(100_000, 10**7 // 2)
    blocks = BlockPermutation(sizes, 11)
    positions = np.random.default_rng(0).integers(0, len(blocks), 200)
    rows = blocks[positions]
    assert (blocks.inverse[rows] == positions).all()
    assert [blocks[p] for p in positions[:20].tolist()] == rows[:20].tolist()
    assert [blocks.inverse[r] for r in rows[:20].tolist()] == positions[:20].tolist()
    assert blocks.inverse.inverse is blocks


def test_positions_in_any_order_and_shape():
    blocks = BlockPermutation([7] * 30, 2, reach=4)
    positions = np.random.default_rng(1).integers(0, 210, (5, 20))
    assert (blocks[positions] == blocks[:][positions]).all()
    assert blocks[[]].tolist() == []


@pytest.mark.parametrize("wrong", [-1, 210, [0, 210]])
def test_out_of_range_is_an_index_error(wrong):
    blocks = BlockPermutation([7] * 30, 2, reach=4)
    for way in (blocks, blocks.inverse):
        with pytest.raises(IndexError):
            way[wrong]


def test_windows_out_of_range_are_index_errors():
    blocks = BlockPermutation([7] * 30, 2, reach=4)
    for ask in (
        lambda: blocks.window(210),
        lambda: blocks.window(-1),
        lambda: blocks.chunks(8),
        lambda: blocks.chunks(-1),
    ):
        with pytest.raises(IndexError):
            ask()


@pytest.mark.parametrize("sizes", [[], [-1, 2], [0, 0], [1.5], [[1, 2]], [2**40, 1], [2**62] * 8, 5, "ab", [True]])
def test_impossible_sizes_are_named(sizes):
    with pytest.raises(OptionError, match=r"^chunk_sizes"):
        BlockPermutation(sizes, 0)


@pytest.mark.parametrize("reach", [0, -1, 1.5, None])
def test_an_impossible_reach_is_named(reach):
    with pytest.raises(OptionError, match=r"^reach"):
        BlockPermutation([1], 0, reach=reach)
