"""Exports to places where something is: whose files they are, and what becomes of them."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sds.errors import ObjectNotFound, OptionError
from sds.index import export_parts
from sds.index.export import Exported, _Run, export
from sds.index.export_config import ExportConfig
from sds.index.export_engines import rows_to_table
from sds.index.unify import NamedTable, common_schema, concatenate, meet


class Info:
    def __init__(self, url: str, size: int) -> None:
        self.url, self.size, self.version = url, size, ""


class Bucket:
    """Objects in a dict."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, url: str, data: bytes) -> None:
        self.objects[url] = data

    def head(self, url: str) -> Any:
        if url not in self.objects:
            raise ObjectNotFound(f"no object: {url}", hint="", url=url)
        return Info(url, len(self.objects[url]))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setattr(export_parts, "_PART_ROWS", 100)
    fill(0)
    return tmp_path


def fill(first: int, count: int = 1000) -> None:
    Path("t.duckdb").unlink(missing_ok=True)
    with duckdb.connect("t.duckdb") as connection:
        connection.execute(f"CREATE TABLE t AS SELECT i + {first} AS id FROM range({count}) x(i)")


def run(destination: str, where: str = "true", target: Bucket | None = None, **more: Any) -> Exported:
    query = f"SELECT * FROM t WHERE {where} ORDER BY id"
    keys = {"rows_per_file": 400, "database": "t.duckdb", "local_tmp_dir": "tmp", **more}
    return export(ExportConfig(query, destination, **keys), target or Bucket())


def ids(folder: str) -> list[int]:
    return [each for path in sorted(Path(folder).iterdir()) for each in pq.read_table(path)["id"].to_pylist()]


def test_files_of_old_and_of_new_rows_are_never_mixed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("out/o-*.parquet")
    os.unlink("out/o-00001.parquet")
    fill(5000)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_Run, "write", killed)
        run("out/o-*.parquet")
    assert run("out/o-*.parquet").num_kept == 0
    assert ids("out") == list(range(5000, 6000))
    os.unlink("out/o-00001.parquet")
    assert run("out/o-*.parquet").num_kept == 2  # the rows are the same: what is there stays


def test_another_query_leaves_no_file_of_the_one_before(home: Path) -> None:
    run("out/o-*.parquet", rows_per_file=200)
    with pytest.raises(OptionError, match="not of this export: out/o-00000"):
        run("out/o-*.parquet", "id < 300", rows_per_file=200)
    assert run("out/o-*.parquet", rows_per_file=200).num_kept == 5  # it is still known whose they are
    done = run("out/o-*.parquet", "id < 300", rows_per_file=200, recompute=True)
    assert (ids("out"), done.left_over) == (list(range(300)), ())
    run("out/o-*.parquet", val_ratio=0.1, recompute=True)
    assert len(ids("out")) == 1000 and not Path("out/o-00000.parquet").exists()


def test_somebody_elses_files_stay(home: Path) -> None:
    os.mkdir("out")
    Path("out/o-00001.parquet").write_bytes(b"precious")
    with pytest.raises(OptionError, match="not of this export: out/o-00001"):
        run("out/o-*.parquet")
    done = run("out/o-*.parquet", "id < 300", recompute=True)
    assert done.left_over == ("out/o-00001.parquet",) and Path("out/o-00001.parquet").read_bytes() == b"precious"
    run("one.parquet", rows_per_file=None)
    run("one.parquet", rows_per_file=None, val_ratio=0.5)  # other names: one-train, one-val
    assert run("one.parquet", rows_per_file=None).num_kept == 1


def test_a_file_of_ours_that_somebody_replaced_is_not_deleted(home: Path) -> None:
    run("out/o-*.parquet")
    Path("out/o-00002.parquet").write_bytes(b"mine")
    done = run("out/o-*.parquet", "id < 300", recompute=True)
    assert done.left_over == ("out/o-00002.parquet",) and Path("out/o-00002.parquet").read_bytes() == b"mine"
    assert not Path("out/o-00001.parquet").exists()


def test_objects_are_named_and_not_written_over(home: Path) -> None:
    bucket = Bucket()
    run("s3://b/o-*.parquet", target=bucket)
    done = run("s3://b/o-*.parquet", "id < 300", target=bucket, recompute=True)
    assert done.left_over == ("s3://b/o-00001.parquet", "s3://b/o-00002.parquet")
    bucket.objects = {"s3://b/p-00001.parquet": b"precious"}  # with a number that none comes before
    with pytest.raises(OptionError, match="not of this export: s3://b/p-00001"):
        run("s3://b/p-*.parquet", target=bucket)
    assert bucket.objects["s3://b/p-00001.parquet"] == b"precious"


@pytest.mark.parametrize("given", ["file://{home}/x/o.parquet", "~/x//o.parquet", "./x/o.parquet"])
def test_a_local_place_has_one_spelling(given: str, home: Path) -> None:
    given = given.format(home=home)
    first, again = (run(given, rows_per_file=None) for _ in range(2))
    assert (first.num_kept, again.num_kept) == (0, 1)
    assert Path(first.files[0].address).is_file() and not Path("~").exists() and not Path("file:").exists()
    with pytest.raises(OptionError, match="not of this export"):
        run(given, "id < 5", rows_per_file=None)


@pytest.mark.parametrize("destination", ["out/*", "out/x*y", "s3://b/x*"])
def test_a_wildcard_is_of_parquet_files(destination: str) -> None:
    with pytest.raises(OptionError, match="is no Parquet file") as caught:
        ExportConfig("SELECT 1", destination)
    assert caught.value.hint == "such as out-*.parquet"


@pytest.mark.parametrize(
    ("pages", "type_", "last"),
    [
        (["7", "1.5"], "decimal128(20, 1)", Decimal("1.5")),
        (["1.5", "7"], "decimal128(20, 1)", Decimal("7.0")),
        (["1.5", "NaN"], "double", None),
        (["7", "NaN"], "double", None),
        (["1.5", "1e400"], "double", float("inf")),
        (["1.25", "123456.5"], "decimal128(8, 2)", Decimal("123456.50")),
        (["1e30", "1.5"], "decimal128(32, 1)", Decimal("1.5")),
    ],
)
def test_decimals_of_pages_meet(pages: list[str], type_: str, last: Any) -> None:
    tables = [NamedTable("a page", rows_to_table(["n"], [(Decimal(page),), (None,)])) for page in pages]
    column = concatenate(tables, common_schema(tables))["n"]
    assert str(column.type) == type_
    value = column.to_pylist()[2]
    assert value == last or (last is None and value != value)


def test_decimals_meet_other_types() -> None:
    assert meet(pa.decimal128(5, 2), pa.string()) == pa.string()
    assert meet(pa.uint64(), pa.decimal128(38, 30)) == pa.decimal256(50, 30)
    assert meet(pa.decimal256(76, 0), pa.decimal128(38, 38)) == pa.float64()
    assert meet(pa.decimal128(5, 2), pa.bool_()) is None
