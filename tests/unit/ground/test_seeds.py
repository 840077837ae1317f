import subprocess
import sys

import numpy as np
import pytest

from sds import seeds


def test_keys_never_change_between_versions():
    assert seeds.derive_key(0) == 2631537505891389924
    assert seeds.derive_key(1, "order", 3) == 8281894338015695980
    assert seeds.derive_key(-1, "a", 1) == 6550763763829745880
    assert seeds.derive_key(2**70, "1") == 5614170378774159939
    assert seeds.derive_key(0, "ü") == 1809063103204635596


def test_generators_never_change_between_versions():
    raw = seeds.derive(1, "order", 3).bit_generator.random_raw(3).tolist()
    assert raw == [6110684162893041603, 11046963854799444237, 13702917575575502947]
    assert seeds.derive(0).random() == 0.2332938630029735


def test_another_process_gets_the_same_key():
    code = "from sds import seeds; print(seeds.derive_key(1, 'order', 3))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == seeds.derive_key(1, "order", 3)


def test_paths_that_look_alike_differ():
    paths = [(), (1,), ("1",), (1, 1), (11,), ("1", 1), (1, "1"), ("1, 1",), ("a", "b"), ("ab",), ("a', 'b",), ("",)]
    keys = {seeds.derive_key(seed, *path) for seed in (0, 1, 11) for path in paths}
    assert len(keys) == 3 * len(paths)


def test_numbers_of_numpy_are_numbers():
    assert seeds.derive_key(np.int64(5), np.str_("order"), np.int32(3)) == seeds.derive_key(5, "order", 3)


def test_what_is_neither_number_nor_text_is_refused():
    for wrong in (1.5, None, (1,)):
        with pytest.raises(TypeError):
            seeds.derive_key(0, wrong)


def test_a_key_fits_an_int64():
    keys = np.array([seeds.derive_key(0, i) for i in range(2000)])
    assert keys.dtype == np.int64
    assert (keys >= 0).all()
    assert len(np.unique(keys)) == 2000
    assert abs((keys >> 62).mean() - 0.5) < 0.05  # the highest bit is used


def test_a_drawn_seed_is_a_shuffle_seed():
    drawn = {seeds.draw_seed() for _ in range(20)}
    assert len(drawn) > 15
    assert all(0 <= seed < 2**31 for seed in drawn)


def test_jitter_lies_between():
    drawn = [seeds.jitter(0.5, 1.5) for _ in range(100)]
    assert all(0.5 <= wait < 1.5 for wait in drawn)
    assert len(set(drawn)) > 90


@pytest.mark.parametrize("part", ["", "a", "it's", 'a "b"', "ü", "\n", "\udcff", np.str_("a")])
def test_many_keys_below_one_path_are_those_of_the_whole_paths(part):
    assert seeds.derive_keys(7, "sample", 3)(part) == seeds.derive_key(7, "sample", 3, part)
