"""Train and validation: exact, disjoint, by ids alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sds.errors import OptionError
from sds.index.split import HashFile, check_ratio, hash_ids, num_wanted


def test_hashes_are_the_same_for_ever() -> None:
    assert hash_ids(pa.array(["a", "007", ""])).tolist() == [
        9507853304769242881,
        3374329781073338908,
        18386564387855665519,
    ]
    assert hash_ids(pa.array([7, 8])).tolist() == hash_ids(pa.array(["7", "8"])).tolist()


@pytest.mark.parametrize(
    ("rows", "ratio", "most", "wanted"), [(100, 0.1, None, 10), (100, 0.1, 5, 5), (3, 0.5, None, 2)]
)
def test_how_many_are_wanted(rows: int, ratio: float, most: int | None, wanted: int) -> None:
    assert num_wanted(rows, ratio, most) == wanted


@pytest.mark.parametrize("ratio", [1, 1.0, -0.1, "half", True, None, float("nan")])
def test_a_ratio_that_is_none(ratio: object) -> None:
    with pytest.raises(OptionError, match="val_ratio"):
        check_ratio("val_ratio", ratio)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=300), st.integers(0, 310))
def test_the_bound_has_as_many_below_it_as_wanted(tmp_path_factory, hashes: list[int], count: int) -> None:  # type: ignore[no-untyped-def]
    with HashFile(tmp_path_factory.mktemp("h") / "hashes") as file:
        for start in range(0, len(hashes), 7):
            file.append(np.array(hashes[start : start + 7], np.uint64))
        bound = file.bound(count)
        below = sum(value < bound for value in hashes)
        assert file.count_below(bound) == below <= count
        # one more hash would be too many: equal ones are never divided
        if count < len(hashes):
            assert sum(value <= bound for value in hashes) > count
        assert file.is_below(0, len(hashes), bound).tolist() == [value < bound for value in hashes]


def test_unique_ids_give_the_exact_count(tmp_path: Path) -> None:
    ids = pa.array([f"{i:06d}" for i in range(10_000)])
    with HashFile(tmp_path / "hashes") as file:
        file.append(hash_ids(ids))
        assert [file.count_below(file.bound(count)) for count in (0, 1, 999, 5000, 9999, 10_000)] == [
            0,
            1,
            999,
            5000,
            9999,
            10_000,
        ]
