"""What an export is told: keys, names of files, secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from sds.errors import OptionError, SourceNotFound
from sds.index.export_config import ExportConfig, read_config


def config(**more: object) -> ExportConfig:
    return ExportConfig(**{"sql_query": "SELECT 1", "destination": "/x/out.parquet", **more})  # type: ignore[arg-type]


def read(tmp_path: Path, text: str) -> ExportConfig:
    (tmp_path / "c.yaml").write_text(text)
    return read_config(tmp_path / "c.yaml")


def test_a_file_is_read(tmp_path: Path) -> None:
    found = read(
        tmp_path, "sql_query: |\n  SELECT *\n  FROM t\ndestination: out.parquet\nval_ratio: 0.1\nrecompute: true\n"
    )
    assert found == ExportConfig(
        sql_query="SELECT *\nFROM t\n", destination="out.parquet", val_ratio=0.1, recompute=True
    )
    assert (found.engine, found.file_rows, found.storage_options) == ("duckdb", None, {})


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("sql_querry: x\ndestination: y", "key is unknown: 'sql_querry'", "did you mean 'sql_query'"),
        ("destination: y", "lacks a key: sql_query", "sql_query: ..."),
        ("[1, 2]", "holds no keys", "sql_query"),
        ("a: b: c", "no YAML", "key: value"),
        ("sql_query: [1]\ndestination: y", "sql_query is no text: list", "some text"),
        ("sql_query: x\ndestination: y\nengine: duckdbb", "engine is unknown", "did you mean 'duckdb'"),
        ("sql_query: x\ndestination: y\nval_ratio: 1.5", "val_ratio is no share", "0.1"),
        ("sql_query: x\ndestination: y\nrow_group_size: 0", "row_group_size is impossible", "at least 1"),
        ("sql_query: x\ndestination: y\nmax_num_val_rows: -1", "max_num_val_rows is impossible", "at least 0"),
        ("sql_query: x\ndestination: y\nrecompute: 3", "recompute is neither", "true"),
        ("sql_query: x\ndestination: y\nproject: p", "project is not for the engine duckdb", "bigquery"),
        ("sql_query: x\ndestination: y\nengine: sqlite", "needs a database", "database:"),
        ("sql_query: x\ndestination: a*/b*.parquet", "wildcard in the wrong place", "file name"),
        ("sql_query: x\ndestination: https://x/y.parquet", "cannot be written", "s3://"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        read(tmp_path, text)
    assert message in caught.value.message and hint in (caught.value.hint or "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound):
        read_config(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("more", "split", "name"),
    [
        ({}, None, "/x/out.parquet"),
        ({}, "val", "/x/out-val.parquet"),
        ({"rows_per_file": 5}, None, "/x/out-00002.parquet"),
        ({"destination": "s3://b/o-*.parquet"}, None, "s3://b/o-00002.parquet"),
        ({"destination": "s3://b/o-*.parquet"}, "train", "s3://b/o-train-00002.parquet"),
        ({"destination": "s3://b/folder/"}, None, "s3://b/folder/index.parquet"),
        ({"destination": "s3://b/folder"}, "val", "s3://b/folder/val.parquet"),
        ({"destination": "s3://b/folder", "rows_per_file": 5}, "val", "s3://b/folder/val-00002.parquet"),
    ],
)
def test_names_of_files(more: dict[str, object], split: str | None, name: str) -> None:
    assert config(**more).address(split, 2) == name


def test_a_region_is_the_buckets_or_that_of_the_query() -> None:
    assert config(region="eu").storage_options == {"region": "eu"}
    assert config(engine="bigquery", region="eu").storage_options == {}
    assert config(engine="bigquery", region="eu", bucket_region="us").storage_options == {"region": "us"}


def test_a_password_decides_nothing_and_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    one = config(engine="postgres", connection="postgresql://me:hunter2@host/db")
    other = config(engine="postgres", connection="postgresql://me:hunter3@host/db")
    assert one.digest == other.digest != config(engine="postgres", connection="postgresql://me@other/db").digest
    assert one.digest == config(engine="postgres", connection=one.connection, recompute=True, local_tmp_dir="x").digest
    monkeypatch.setenv("PG_URL", "postgresql://me:hunter2@host/db")
    assert config(engine="postgres", connection="${PG_URL}").connection_text == "postgresql://me:hunter2@host/db"
    monkeypatch.delenv("PG_URL")
    with pytest.raises(OptionError, match="PG_URL"):
        assert config(engine="postgres", connection="$PG_URL").connection_text
