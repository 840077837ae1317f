"""Rows cut into parts and files: each once, in order, in pieces of the right size."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sds.index import export_parts
from sds.index.export_parts import in_files, in_parts


def tables(sizes: list[int]) -> list[pa.Table]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    ns = [list(range(a, a + n)) for a, n in zip(starts, sizes, strict=True)]
    return [pa.table({"n": pa.array(each, pa.int64())}) for each in ns]


@given(st.lists(st.integers(0, 12), max_size=12), st.one_of(st.none(), st.integers(1, 9)))
def test_files_have_every_row_once(sizes: list[int], file_rows: int | None) -> None:
    files = [[n for table in file for n in table["n"].to_pylist()] for file in in_files(iter(tables(sizes)), file_rows)]
    total = sum(sizes)
    assert [n for file in files for n in file] == list(range(total))
    if file_rows is None or not total:
        assert len(files) == 1
    else:
        assert all(len(file) == file_rows for file in files[:-1]) and 0 < len(files[-1]) <= file_rows


def test_parts_are_cut_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_parts, "_PART_ROWS", 10)
    assert [part.num_rows for part in in_parts(iter(tables([4] * 7)))] == [12, 12, 4]
    monkeypatch.setattr(export_parts, "_PART_BYTES", 8 * 5)  # five numbers
    assert [part.num_rows for part in in_parts(iter(tables([4] * 7)))] == [8, 8, 8, 4]
    assert list(in_parts(iter([]))) == []


def test_pages_of_other_types_meet_in_a_part() -> None:
    pages = [pa.table({"x": pa.nulls(2)}), pa.table({"x": [1, 2]}), pa.table({"x": [0.5]})]
    (part,) = in_parts(iter(pages))
    assert part["x"].to_pylist() == [None, None, 1.0, 2.0, 0.5]
