"""Parquet files: the same rows, the same bytes; whole or not there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sds.errors import CacheError, OptionError
from sds.index import parquet
from sds.index.parquet import RowGroups, publish, write_parquet

TABLE = pa.table({"id": [f"{i:04d}" for i in range(1000)], "n": list(range(1000))})


def refuse(url: str, data: bytes) -> None:
    raise AssertionError(url)


def write(tables: list[pa.Table], folder: Path, name: str) -> bytes:
    write_parquet(tables, TABLE.schema, str(folder / name), put=refuse, scratch=folder, row_group_size=300)
    return (folder / name).read_bytes()


def test_how_rows_come_in_leaves_no_trace(tmp_path: Path) -> None:
    whole = write([TABLE], tmp_path, "a.parquet")
    pieces = [TABLE.slice(start, 7) for start in range(0, 1000, 7)]
    assert write(pieces, tmp_path, "b.parquet") == whole
    file = pq.ParquetFile(tmp_path / "b.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [300, 300, 300, 100]
    assert file.read().equals(TABLE)
    file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]


def test_no_rows_are_a_file_with_columns(tmp_path: Path) -> None:
    write([], tmp_path, "none.parquet")
    assert pq.read_table(tmp_path / "none.parquet").equals(TABLE.slice(0, 0))


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def tables():
        yield TABLE
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        write_parquet(tables(), TABLE.schema, str(tmp_path / "x.parquet"), put=refuse, scratch=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_object_is_put_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put: dict[str, bytes] = {}
    size = write_parquet([TABLE], TABLE.schema, "s3://b/x.parquet", put=put.__setitem__, scratch=tmp_path)
    assert len(put["s3://b/x.parquet"]) == size and put["s3://b/x.parquet"][:4] == b"PAR1"
    monkeypatch.setattr(parquet, "_MAX_PUT", 100)
    with pytest.raises(OptionError, match="too large") as caught:
        write_parquet([TABLE], TABLE.schema, "s3://b/x.parquet", put=refuse, scratch=tmp_path)
    assert "rows_per_file" in str(caught.value)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with RowGroups(tmp_path / "x.parquet", TABLE.schema) as groups:
        groups.write(TABLE)
    with pytest.raises(CacheError, match="cannot be written"):
        publish(tmp_path / "x.parquet", str(tmp_path / "taken" / "y.parquet"), refuse)
