"""What is in an index: the same however it is read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sds.errors import SourceError
from sds.index import IndexOptions, open_index
from sds.index.lazy_opening import open_lazy
from sds.index.survey import Duplicates, Survey, find_duplicates, survey


def nothing_remote() -> Any:
    raise AssertionError("nothing is remote")


@pytest.fixture
def tables(tmp_path: Path) -> str:
    """Two files; the second lacks a column, has an id of the first, and gaps."""
    first = {
        "id": ["a", "b", "c", "b"],
        "url": ["x", "", None, "y"],
        "n": [1, None, None, 4],
        "l": [[1], None, [], [2]],
    }
    pq.write_table(pa.table(first), tmp_path / "0.parquet", row_group_size=3)
    pq.write_table(pa.table({"id": ["a", None, ""], "n": [1, 2, None]}), tmp_path / "1.parquet")
    return str(tmp_path / "*.parquet")


def surveyed(src: str, folder: Path, *, lazily: bool, **options: Any) -> Survey:
    given = IndexOptions(index_col_name="id", allow_missing_columns=True, **options)
    if lazily:
        given = IndexOptions(index_col_name="id", allow_missing_columns=True, lazy_index_chunk_size=2, **options)
    index = (open_lazy if lazily else open_index)(src, given, folder=folder / "index", remote=nothing_remote)
    return survey(index, id_column="id", scratch=folder / "scratch", remote=nothing_remote)


@pytest.mark.parametrize("lazily", [False, True])
def test_gaps_and_duplicates(tables: str, tmp_path: Path, lazily: bool) -> None:
    found = surveyed(tables, tmp_path, lazily=lazily, columns_to_download=("url",))
    # footers do not tell how many lists are null
    assert found.nulls == {"id": 1, "url": 5, "n": 3, "l": None if lazily else 4}
    assert found.duplicates == Duplicates(2, 4, ("a", "b")) and found.num_bytes > 0


@pytest.mark.parametrize("lazily", [False, True])
def test_of_what_a_query_leaves(tables: str, tmp_path: Path, lazily: bool) -> None:
    found = surveyed(tables, tmp_path, lazily=lazily, sql_query="SELECT id, n FROM dataframe WHERE id <> 'b'")
    assert found.nulls == {"id": 0, "n": 2} and found.duplicates == Duplicates(1, 2, ("a",))


def test_a_missing_column_is_all_gaps(tables: str, tmp_path: Path) -> None:
    assert surveyed(tables, tmp_path, lazily=True, columns_to_download=("nope",)).nulls["nope"] == 7


def test_duplicates_are_those_that_occur_twice(tmp_path: Path) -> None:
    every = [f"{i * i % 1000}" for i in range(5000)]
    counts = Counter(every)
    twice = sorted(key for key in counts if counts[key] > 1)
    found = find_duplicates((pa.array(every[i : i + 700]) for i in range(0, 5000, 700)), tmp_path)
    assert found == Duplicates(len(twice), sum(counts[key] for key in twice), tuple(twice[:5]))
    assert find_duplicates(iter(()), tmp_path) == Duplicates()


def test_an_error_on_the_way_is_that_error(tmp_path: Path) -> None:
    def keys() -> Any:
        yield pa.array(["a"])
        raise SourceError("file is gone", hint="look for it")

    with pytest.raises(SourceError, match="file is gone"):
        find_duplicates(keys(), tmp_path)
