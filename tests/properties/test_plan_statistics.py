"""The shuffle is a shuffle: what a random permutation would show by chance, ours shows, and no more.

Keys are fixed, so a test here either always passes or never. Bounds lie at about 3.5 standard deviations.
"""

from itertools import pairwise, permutations

import numpy as np
import pytest

from sds.plan import Permutation, Plan

# below and above the bound between tables and networks; primes, powers of two and their neighbours
SIZES = [1021, 4095, 4096, 4097, 5003, 2**13 - 1, 2**13, 2**13 + 1, 10_007, 2**16, 2**16 + 1]
LARGE = [10**6, 10**9, 2**31 - 1, 2**39 + 1, 2**40]


def chi_square_bound(df, z=3.5):
    """The value that chi-square with df degrees of freedom passes with the chance of z deviations (Wilson-Hilferty)."""
    return df * (1 - 2 / (9 * df) + z * np.sqrt(2 / (9 * df))) ** 3


def chi_square(counts, expected):
    return float((((counts - expected) ** 2) / expected).sum())


def assert_uniform(values, num_buckets, df=None):
    counts = np.bincount(values, minlength=num_buckets)
    assert len(counts) == num_buckets
    assert chi_square(counts, len(values) / num_buckets) < chi_square_bound(df or num_buckets - 1)


def bucket(values, num_buckets, n):
    return np.minimum((values * (num_buckets / n)).astype(np.int64), num_buckets - 1)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_all_permutations_of_a_few_occur_equally_often(n):
    names = {p: i for i, p in enumerate(permutations(range(n)))}
    seen = np.array([names[tuple(Permutation(n, key)[:].tolist())] for key in range(150 * len(names))])
    assert_uniform(seen, len(names))


@pytest.mark.parametrize("n", [7, 4097, 10_007])
def test_where_one_position_goes_is_uniform_over_keys(n):
    num_buckets = min(n, 40)
    for position in (0, n // 2, n - 1):
        there = np.array([Permutation(n, key)[position] for key in range(2000)])
        assert_uniform(bucket(there, num_buckets, n), num_buckets)


@pytest.mark.parametrize("n", SIZES)
def test_neighbours_do_not_stay_neighbours(n):
    # in a random permutation two neighbours stay so twice on average, and nobody moves once on average
    num_keys, adjacent, fixed = 60, 0, 0
    for key in range(num_keys):
        ids = Permutation(n, key)[:]
        adjacent += int((np.abs(np.diff(ids)) == 1).sum())
        fixed += int((ids == np.arange(n)).sum())
    assert abs(adjacent - 2 * num_keys) < 3.5 * np.sqrt(2 * num_keys)
    assert abs(fixed - num_keys) < 3.5 * np.sqrt(num_keys)


@pytest.mark.parametrize("n", SIZES)
def test_position_and_id_are_independent(n):
    for key in range(5):
        ids = Permutation(n, key)[:]
        cells = bucket(np.arange(n), 8, n) * 8 + bucket(ids, 8, n)
        assert_uniform(cells, 64, df=49)  # the margins are given
        assert abs(np.corrcoef(np.arange(n), ids)[0, 1]) < 3.5 / np.sqrt(n)


@pytest.mark.parametrize("n", SIZES)
def test_ids_at_any_distance_are_independent(n):
    # powers of two are where a Feistel network of too few rounds shows itself
    for key in range(5):
        ids = bucket(Permutation(n, key)[:], 8, n)
        for lag in (1, 2, 3, 32, 64, 128, 256, 512):
            assert_uniform(ids[:-lag] * 8 + ids[lag:], 64)


@pytest.mark.parametrize("n", LARGE)
def test_a_stretch_of_a_large_order_is_spread_evenly(n):
    for key in (1, 2):
        p = Permutation(n, key)
        for start in (0, n // 3):
            ids = p[start : start + 40_000]
            assert_uniform(bucket(ids, 64, n), 64)
            assert_uniform(ids & 63, 64)
            assert_uniform(bucket(np.diff(ids) % n, 64, n), 64)
            for lag in (1, 1024, 4096, 2**15):
                high = bucket(ids, 8, n)
                assert_uniform(high[:-lag] * 8 + high[lag:], 64)


@pytest.mark.parametrize("bits", [13, 16, 30, 31, 40])
def test_changing_one_bit_of_the_position_changes_half_of_the_id(bits):
    p = Permutation(2**bits, 3)
    positions = np.arange(4096)
    for bit in range(bits):
        changed = p[positions] ^ p[positions ^ (1 << bit)]
        for k in range(bits):
            # pairs that differ in a low bit are met twice, hence the wider bound
            assert abs(((changed >> k) & 1).mean() - 0.5) < 6 * 0.5 / np.sqrt(4096)


@pytest.mark.parametrize("n", [1021, 5003, 2**13 + 1])
@pytest.mark.parametrize("sizes", ["global", "chunks"])
def test_epochs_are_independent_of_each_other(n, sizes):
    chunks = None if sizes == "global" else [10] * (n // 10) + [n % 10]
    orders = [Plan(n, seed, chunk_sizes=chunks).order(epoch)[:] for seed in (0, 1) for epoch in range(5)]
    together = []
    for i, one in enumerate(orders):
        for other in orders[:i]:
            together.append(int((one == other).sum()))
            # with chunks the free choices are those of about n / 10 chunks
            assert abs(np.corrcoef(one, other)[0, 1]) < 3.5 / np.sqrt(n if sizes == "global" else n / 10)
    assert abs(sum(together) - len(together)) < 4.5 * np.sqrt(len(together))


def test_neighbouring_keys_give_independent_orders():
    n = 5003
    orders = [Permutation(n, key)[:] for key in range(12)]
    for one, other in pairwise(orders):
        assert_uniform(bucket(one, 8, n) * 8 + bucket(other, 8, n), 64, df=49)


def test_rows_are_mixed_well_inside_a_window():
    sizes = [1000] * 64
    order = Plan(64_000, 3, chunk_sizes=sizes, reach=8).order(0)
    for window in range(8):
        rows = order[window * 8000 : (window + 1) * 8000]
        names, chunk = np.unique(rows // 1000, return_inverse=True)
        assert len(names) == 8
        assert_uniform(bucket(np.arange(8000), 8, 8000) * 8 + chunk, 64, df=49)
