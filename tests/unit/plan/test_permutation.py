import pickle
import threading

import numpy as np
import pytest

from sds.errors import OptionError
from sds.plan import Permutation

# Written down once: a dataset that was half delivered by one version goes on with the next.
GOLDEN = [
    (1, 5, [0], [0]),
    (3, 5, [1, 0, 2], [1, 0, 2]),
    (10, 0, [8, 4, 3, 1, 5, 2, 9, 7, 0, 6], [8, 3, 5, 2, 1, 4, 9, 7, 0, 6]),
    (4096, 1, [218, 360, 2371, 2912], None),
    (4097, 0, [2201, 416, 3357, 2741], None),
    (10**6, 1, [662478, 550078, 300862, 902132], [848047]),
    (10**9, 7, [689230923, 233818575, 589472616, 580999576], [490004495]),
    (2**40, 2**63 - 1, [16290198614, 42484814007, 449326182905, 263843057922], [784980828848]),
    (2**40, -1, [728165534957, 440834812401, 411287038151, 619516036246], [69085330748]),
]


@pytest.mark.parametrize(("n", "key", "ids", "positions"), GOLDEN)
def test_the_numbers_never_change(n, key, ids, positions):
    p = Permutation(n, key)
    assert p[: len(ids)].tolist() == ids
    if positions is not None:
        assert p.inverse[: len(positions)].tolist() == positions


@pytest.mark.parametrize("n", [1, 3, 4096, 4097, 2**20 + 1, 2**40])
def test_an_int_gives_an_int_and_an_array_an_int64_array_of_the_same_shape(n):
    p = Permutation(n, 3)
    for way in (p, p.inverse):
        assert type(way[0]) is int
        assert type(way[np.int32(0)]) is int
        for dtype in (np.int64, np.int32, np.uint8, np.uint64):
            found = way[np.zeros((2, 3), dtype=dtype)]
            assert found.dtype == np.int64
            assert found.shape == (2, 3)
            assert (found == way[0]).all()
        assert way[[]].tolist() == []
        assert way[np.zeros((0, 4))].shape == (0, 4)
        assert way[[n - 1, 0]].tolist() == [way[n - 1], way[0]]
        assert way[np.array(n - 1)].tolist() == way[n - 1]


def test_positions_that_are_not_contiguous_in_memory():
    p = Permutation(10_000, 3)
    grid = np.arange(10_000).reshape(100, 100)
    assert (p[grid.T] == p[:].reshape(100, 100).T).all()
    assert (p[grid[::3, ::7]] == p[:].reshape(100, 100)[::3, ::7]).all()


def test_what_is_asked_for_is_left_as_it_was():
    for n in (100, 10_000):
        asked = np.arange(100)
        Permutation(n, 1)[asked]
        assert (asked == np.arange(100)).all()


@pytest.mark.parametrize("n", [5, 5000])
def test_slices_are_those_of_the_whole(n):
    p = Permutation(n, 9)
    whole = [p[i] for i in range(n)]
    for piece in (slice(None), slice(2, 4), slice(-2, None), slice(None, None, -1), slice(4, 2), slice(1, 10**9, 2)):
        assert p[piece].tolist() == whole[piece]
    assert list(p) == whole


@pytest.mark.parametrize("n", [1, 10, 4096, 4097, 10**9, 2**40])
def test_out_of_range_is_an_index_error(n):
    p = Permutation(n, 0)
    for way in (p, p.inverse):
        for wrong in (-1, n, 2**64, [0, n], [-1], np.array([2**64 - 1], dtype=np.uint64)):
            with pytest.raises(IndexError, match="out of range"):
                way[wrong]


def test_what_is_not_an_integer_is_refused():
    p = Permutation(10, 0)
    with pytest.raises(IndexError, match="only integers"):
        p[np.array([0.5])]
    with pytest.raises(IndexError, match="only integers"):
        p[np.array([True, False])]
    with pytest.raises(TypeError):
        p["0"]


@pytest.mark.parametrize("n", [0, -1, 2**40 + 1, 1.5, None, True, "10"])
def test_an_impossible_n_is_named(n):
    with pytest.raises(OptionError, match=r"^n is"):
        Permutation(n, 0)


def test_an_impossible_key_is_named():
    with pytest.raises(OptionError, match=r"^key is"):
        Permutation(10, 0.5)


def test_it_is_a_small_value():
    p = Permutation(10**9, 12)
    again = pickle.loads(pickle.dumps(p))
    assert again == p
    assert hash(again) == hash(p)
    assert p != Permutation(10**9, 13)
    assert p != 12
    assert len(again) == 10**9
    assert again[5] == p[5]
    assert p.key == 12
    assert repr(p) == "Permutation(1000000000, 12)"
    assert len(pickle.dumps(Permutation(4000, 1))) < 200


def test_the_inverse_of_the_inverse_is_the_way_there():
    for n in (100, 10_000):
        p = Permutation(n, 4)
        assert (p.inverse.inverse[:] == p[:]).all()


def test_a_nearly_equal_size_is_another_order():
    assert (Permutation(10**6, 1)[:1000] == Permutation(10**6 + 1, 1)[:1000]).sum() < 5


def test_threads_may_share_one():
    p = Permutation(10**6 + 3, 8)
    expected = p[:]
    wrong = []

    def ask():
        if not (p[:] == expected).all():
            wrong.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
