"""A look at some rows opens Parquet files by their footers, and everything else as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from sds.cli.index_glance import open_glance
from sds.fetch import FetchClient, FetchOptions
from sds.index import IndexOptions


@pytest.fixture
def glance(tmp_path: Path) -> Any:
    client = FetchClient(FetchOptions(dst=str(tmp_path / "dst")))  # local files: it never connects
    parquet.write_table(pa.table({"id": ["a", "b"], "x": [1, 2]}), tmp_path / "t.parquet")
    parquet.write_table(pa.table({"id": ["a"], "image": [b"picture"]}), tmp_path / "bytes.parquet")
    (tmp_path / "t.csv").write_text("id,x\na,1\n")

    def opened(name: str, **options: Any) -> Any:
        src = str(tmp_path / name)
        return open_glance(src, IndexOptions(**options), folder=tmp_path / "dst" / "index", client=client)

    return opened


def test_rows_of_parquet_files_are_read_in_chunks(glance: Any) -> None:
    index = glance("*t.parquet", index_col_name="id")
    assert [row.key for row in index.rows([1])] == ["b"]
    assert index.facts.in_place


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("t.csv", {}),
        ("bytes.parquet", {}),
        ("bytes.parquet", {"columns_to_download": ["image"]}),
        ("t.parquet", {"sql_query": "SELECT * FROM dataframe ORDER BY x"}),
        ("t.parquet", {"columns_to_download": ["imgae"], "allow_missing_columns": True}),
    ],
)
def test_other_sources_are_opened_whole(glance: Any, name: str, options: dict[str, Any]) -> None:
    assert glance(name, **options) is None
