"""Exports from BigQuery by Google's own client, against the emulator that `make bigquery` installs."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sds.errors import QueryError
from sds.index.export import export
from sds.index.export_config import ExportConfig

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("default")]  # other people's packages may warn
COUNT = 30_000
QUERY = "SELECT id, url, quality FROM d.photos WHERE quality >= 0.25 ORDER BY id"


class NoStore:
    def put(self, url: str, data: bytes) -> None:
        raise AssertionError(url)

    def head(self, url: str) -> Any:
        raise AssertionError(url)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = os.environ.get("SDS_BIGQUERY_EMULATOR")
    if not program:
        pytest.skip("make bigquery installs the emulator and names it")
    python = Path(program).with_name("python")
    load = "from duckdb_extensions import import_extension; import_extension('spatial')"
    subprocess.run([python, "-c", load], check=True, timeout=100)
    port, log = free_port(), tmp_path_factory.mktemp("bigquery") / "log"
    with open(log, "wb") as file:
        words = ["start", "--rest-port", str(port), "--grpc-port", str(free_port()), "--project", "test"]
        process = subprocess.Popen([program, *words], stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + 100
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline and process.poll() is None, log.read_text()
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def table(emulator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import bigquery

    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", emulator)
    client = bigquery.Client(project="test", credentials=AnonymousCredentials())
    client.query("CREATE SCHEMA IF NOT EXISTS d").result()
    client.query(
        "CREATE OR REPLACE TABLE d.photos AS SELECT LPAD(CAST(i AS STRING), 7, '0') AS id, "
        "CONCAT('s3://b/', CAST(i AS STRING)) AS url, MOD(i * 37, 100) / 100 AS quality "
        f"FROM UNNEST(GENERATE_ARRAY(0, {COUNT - 1})) AS i"
    ).result()
    client.close()


def config(tmp_path: Path, **more: Any) -> ExportConfig:
    keys = {"engine": "bigquery", "project": "test", "local_tmp_dir": str(tmp_path / "tmp"), **more}
    return ExportConfig(QUERY, str(tmp_path / "out.parquet"), **keys)


EXPECTED = [f"{i:07d}" for i in range(COUNT) if (i * 37 % 100) / 100 >= 0.25]


def test_rows_and_split(table: None, tmp_path: Path) -> None:
    done = export(config(tmp_path, val_ratio=0.1), NoStore())
    train, val = (pq.read_table(tmp_path / f"out-{side}.parquet")["id"].to_pylist() for side in ("train", "val"))
    assert len(val) == done.num_rows("val") == round(0.1 * len(EXPECTED))
    assert sorted([*train, *val]) == EXPECTED and not set(train) & set(val)


def test_an_interrupted_export_reads_on_in_the_same_job(
    table: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sds.index.export_parts._PART_ROWS", 2000)
    monkeypatch.setattr("sds.index.export_bigquery._PAGE", 1000)

    def stop(num_rows: int) -> None:
        if num_rows >= 6000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(config(tmp_path), NoStore(), on_rows=stop)
    asked: list[int] = []
    from sds.index.export_bigquery import BigQuery

    tables = BigQuery.tables
    monkeypatch.setattr(BigQuery, "tables", lambda self, start: asked.append(start) or tables(self, start))
    done = export(config(tmp_path), NoStore())
    assert done.num_parts_kept == 3 and asked == [6000]
    assert pq.read_table(tmp_path / "out.parquet")["id"].to_pylist() == EXPECTED


def test_a_query_that_is_wrong_is_told(table: None, tmp_path: Path) -> None:
    wrong = ExportConfig("SELECT nope FROM d.photos", str(tmp_path / "x.parquet"), engine="bigquery", project="test")
    with pytest.raises(QueryError, match="nope"):
        export(wrong, NoStore())
