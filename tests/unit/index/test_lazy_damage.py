"""What is kept of an index that is read in chunks: damaged, it is made anew; and names that look like others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from sds.errors import OptionError, SchemaError
from sds.index import IndexOptions, open_index
from sds.index.lazy import LazyIndex
from sds.index.lazy_opening import open_lazy

OPTIONS = {"weight_col_name": "w", "sql_query": "SELECT * FROM dataframe WHERE x < 300", "lazy_index_plan": "take"}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = {"x": range(1000), "w": [i % 3 + 0.5 for i in range(1000)]}
    parquet.write_table(pa.table({name: list(values) for name, values in rows.items()}), tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def open_(path: Path, **options: Any) -> LazyIndex:
    asked = IndexOptions(lazy_index_chunk_size=64, **options)
    return open_lazy(str(path), asked, folder=path.parent / "dst", remote=lambda: pytest.fail("nothing is remote"))


@pytest.mark.parametrize("more", [{}, {"max_size": 100}])
def test_what_is_whole_is_used_again(more: dict[str, Any], table: Path) -> None:
    open_(table, **OPTIONS, **more)
    kept = sorted((table.parent / "dst").glob("t.parquet-*"))
    assert {path.suffix for path in kept} == {".lazy", ".weights", ".arrow"}
    before = [path.stat().st_ino for path in kept]
    open_(table, **OPTIONS, **more)
    assert [path.stat().st_ino for path in kept] == before


@pytest.mark.parametrize("length", [100, 800])
@pytest.mark.parametrize("ending", ["weights", "arrow", "lazy"])
def test_what_is_cut_short_is_made_anew(ending: str, length: int, table: Path) -> None:
    whole = open_(table, **OPTIONS)
    rows = whole.rows([0, 299])
    whole.close()
    (path,) = (table.parent / "dst").glob(f"*.{ending}")
    size = path.stat().st_size
    os.truncate(path, length)
    again = open_(table, **OPTIONS)
    assert again.weights is not None and path.stat().st_size == size > length
    assert again.rows([0, 299]) == rows and again.weights[slice(0, 300)].sum() == np.array([0.5, 1.5, 2.5] * 100).sum()


def test_statistics_are_those_of_the_column_itself(tmp_path: Path) -> None:
    """'url.x' is a column of its own, and has no gaps; so has a struct, whose fields are not it."""
    files = ["a.jpg", None, "c.jpg", ""]
    rows = {"url.x": ["x"] * 4, "s": [{"url": "y", "s": 1}] * 4, "url": files, "n": list(range(4))}
    parquet.write_table(pa.table(rows), tmp_path / "t.parquet")
    lazy = open_(tmp_path / "t.parquet", columns_to_download=["url"])
    whole = open_index(
        str(tmp_path / "t.parquet"),
        IndexOptions(columns_to_download=("url",)),
        folder=tmp_path / "whole",
        remote=lambda: pytest.fail("nothing is remote"),
    )
    assert len(lazy) == len(whole) == 2
    assert [row.values for row in lazy.rows([0, 1])] == [row.values for row in whole.rows([0, 1])]


def test_tars_are_told_to_be_opened_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "t.tar").write_bytes(bytes(10_240))
    with pytest.raises(OptionError, match="needs Parquet, CSV or JSON lines") as caught:
        open_(tmp_path / "t.tar")
    assert caught.value.hint is not None and caught.value.hint.startswith("leave lazy_index_chunk_size out")


def test_rows_past_the_limit_weigh_nothing(table: Path) -> None:
    rows = pa.table({"w": [0.0, 0.0, 1.0]})
    parquet.write_table(rows, table)
    assert len(open_(table, weight_col_name="w", max_size=3)) == 3
    with pytest.raises(SchemaError, match="every weight is 0"):
        open_(table, weight_col_name="w", max_size=2)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_an_impossible_weight_is_an_error_wherever_it_is(chunk_size: int | None, table: Path) -> None:
    """Also past the limit, where an index that is read in chunks finds it before the limit is known."""
    parquet.write_table(pa.table({"w": [1.0, 1.0, 1.0, -1.0]}), table)
    options = IndexOptions(weight_col_name="w", max_size=2, lazy_index_chunk_size=chunk_size)
    opener: Any = open_index if chunk_size is None else open_lazy
    with pytest.raises(SchemaError, match=r"weight is impossible: -1.0 in column 'w', row 3"):
        opener(str(table), options, folder=table.parent / "dst", remote=lambda: pytest.fail("nothing is remote"))
