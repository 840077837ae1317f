"""Orders are bijections, both ways, whatever the size, key, chunks and reach."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sds.plan import BlockPermutation, Permutation, Plan

# the same examples every time: a test that fails does so for everybody
SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=60)

PRIMES = [2, 3, 5, 7, 13, 97, 4093, 4099, 10_007, 65_537]
NEAR_POWERS = [2**k + d for k in (1, 2, 3, 8, 12, 13, 14, 15, 16) for d in (-1, 0, 1)]
KEYS = st.integers(-(2**64), 2**64)
CHUNKS = st.lists(st.integers(0, 60), min_size=1, max_size=40).filter(any)


@pytest.mark.parametrize("n", sorted({1, *PRIMES, *NEAR_POWERS, 100_000}))
def test_every_id_occurs_once_and_the_inverse_is_exact(n):
    for key in (0, 1):
        p = Permutation(n, key)
        ids = p[:]
        assert np.bincount(ids, minlength=n).tolist() == [1] * n
        assert (p.inverse[ids] == np.arange(n)).all()
        assert (p[p.inverse[:]] == np.arange(n)).all()


@SETTINGS
@given(n=st.integers(1, 9000), key=KEYS)
def test_any_size_and_key_is_a_bijection(n, key):
    p = Permutation(n, key)
    ids = p[:]
    assert (np.sort(ids) == np.arange(n)).all()
    assert (p.inverse[ids] == np.arange(n)).all()


@SETTINGS
@given(
    n=st.integers(1, 2**40), key=KEYS, fractions=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=40)
)
def test_large_sizes_by_sampling(n, key, fractions):
    p = Permutation(n, key)
    positions = np.unique([min(n - 1, int(f * n)) for f in fractions] + [0, n - 1])
    ids = p[positions]
    assert ((ids >= 0) & (ids < n)).all()
    assert len(np.unique(ids)) == len(positions)
    assert (p.inverse[ids] == positions).all()
    # one by one is the same arithmetic in Python ints
    assert [p[i] for i in positions.tolist()] == ids.tolist()
    assert [p.inverse[i] for i in ids.tolist()] == positions.tolist()


@pytest.mark.parametrize("n", [2**39 + 1, 10**12, 2**40 - 1, 2**40])
def test_the_largest_sizes_have_no_collisions(n):
    p = Permutation(n, 77)
    positions = np.concatenate([np.arange(20_000), np.arange(n - 20_000, n), np.arange(20_000) * (n // 20_000)])
    positions = np.unique(positions)
    ids = p[positions]
    assert len(np.unique(ids)) == len(positions)
    assert (p.inverse[ids] == positions).all()


@SETTINGS
@given(sizes=CHUNKS, key=KEYS, reach=st.integers(1, 45))
def test_a_block_shuffle_is_a_bijection_that_stays_in_its_windows(sizes, key, reach):
    blocks = BlockPermutation(sizes, key, reach=reach)
    n, rows = sum(sizes), blocks[:]
    assert len(blocks) == n
    assert (np.sort(rows) == np.arange(n)).all()
    assert (blocks.inverse[rows] == np.arange(n)).all()
    assert [blocks[p] for p in range(n)] == rows.tolist()
    assert [blocks.inverse[r] for r in rows.tolist()] == list(range(n))

    chunk_of_row = np.repeat(np.arange(len(sizes)), sizes)
    assert blocks.num_windows == -(-len(sizes) // reach)
    end = 0
    for window in range(blocks.num_windows):
        chunks = blocks.chunks(window)
        size = sum(sizes[c] for c in chunks)
        # the rows of a window are exactly the rows of its chunks
        expected = np.flatnonzero(np.isin(chunk_of_row, chunks))
        assert (np.sort(rows[end : end + size]) == expected).all()
        end += size
    assert end == n


@SETTINGS
@given(
    sizes=CHUNKS,
    seed=st.none() | st.integers(0, 2**31),
    chunked=st.booleans(),
    epoch=st.integers(0, 2**20),
    cuts=st.lists(st.integers(0, 2400), max_size=6),
)
def test_a_plan_read_in_pieces_is_the_plan_read_at_once(sizes, seed, chunked, epoch, cuts):
    n = sum(sizes)
    plan = Plan(n, seed, chunk_sizes=sizes if chunked else None, reach=3)
    bounds = sorted({0, n, *(min(c, n) for c in cuts)})
    pieces = [plan.rows(epoch, a, b) for a, b in pairwise(bounds)]
    assert (np.concatenate(pieces) == plan.rows(epoch, 0, n)).all()
    assert (np.sort(plan.rows(epoch, 0, n)) == np.arange(n)).all()
    assert plan.position(epoch, plan.row(epoch, n // 2)) == n // 2
