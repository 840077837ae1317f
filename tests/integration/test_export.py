"""`sds index export`: real databases, real kills. The files have every row once, whatever happened on the way."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import databases
from commands import Sds
from sds.errors import SdsError
from sds.fetch import FetchClient, FetchOptions
from sds.index import lock
from sds.index.export import export
from sds.index.export_config import ExportConfig, read_config
from sds.index.split import hash_ids
from sds.testing import S3Server

SDS = Path(sys.executable).with_name("sds")
PASSWORD = "hunter-2-of-sds"
COUNT = 3000
EXPECTED = [row for row in databases.rows(COUNT) if row[3] >= 0.25]
_HASHES = hash_ids(pa.array([row[0] for row in EXPECTED])).tolist()
VAL_IDS = sorted(row[0] for _, row in sorted(zip(_HASHES, EXPECTED, strict=True))[: round(0.1 * len(EXPECTED))])


class NoStore:
    """For local destinations, which need none."""

    def put(self, url: str, data: bytes) -> None:
        raise AssertionError(url)

    def head(self, url: str) -> Any:
        raise AssertionError(url)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """PostgreSQL with the rows; its connection, without the password."""
    if databases.find_postgres() is None:
        pytest.skip("PostgreSQL is not installed")
    import psycopg

    with databases.postgres(PASSWORD) as facts:
        with psycopg.connect(**facts) as connection:
            connection.execute("CREATE TABLE photos (id text, url text, caption text, quality float8)")
            with connection.cursor() as cursor, cursor.copy("COPY photos FROM STDIN") as copy:
                for row in databases.rows(COUNT):
                    copy.write_row(row)
        yield f"postgresql://sds@127.0.0.1:{facts['port']}/postgres"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the rows in SQLite, DuckDB and a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDS_CACHE_DIR", str(tmp_path / "caches"))
    databases.fill_sqlite(tmp_path / "photos.sqlite", COUNT)
    names = ("id", "url", "caption", "quality")
    columns = list(zip(*databases.rows(COUNT), strict=True))
    table = pa.table(dict(zip(names, map(list, columns), strict=True)))
    pq.write_table(table, tmp_path / "photos.parquet")
    with duckdb.connect("photos.duckdb") as connection:
        connection.execute("CREATE TABLE photos AS SELECT * FROM 'photos.parquet'")
    return tmp_path


@pytest.fixture
def sds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sds:
    return Sds(monkeypatch, capsys)


def write_config(**keys: Any) -> None:
    Path("export.yaml").write_text(json.dumps({"sql_query": databases.QUERY, "destination": "out.parquet", **keys}))


def read(*patterns: str) -> list[tuple[Any, ...]]:
    found = []
    for pattern in patterns:
        for path in sorted(Path().glob(pattern)):
            found += [tuple(row.values()) for row in pq.read_table(path).to_pylist()]
    return found


def engine_keys(engine: str, server: str) -> dict[str, Any]:
    if engine == "files":
        return {"sql_query": databases.QUERY.replace("photos", "'photos.parquet'")}
    if engine == "postgres":
        return {"engine": engine, "connection": server}
    return {"engine": engine, "database": f"photos.{engine}"}


@pytest.mark.parametrize("engine", ["files", "duckdb", "sqlite"])
def test_every_engine_gives_the_same_rows_and_the_same_split(engine: str, home: Path, sds: Sds) -> None:
    check_engine(engine, "", home, sds)


def test_postgres_gives_them_too(server: str, home: Path, sds: Sds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    check_engine("postgres", server, home, sds)


def check_engine(engine: str, server: str, home: Path, sds: Sds) -> None:
    write_config(**engine_keys(engine, server), row_group_size=1000)
    out = sds.well("index", "export", "export.yaml")
    size = Path("out.parquet").stat().st_size
    assert out == f"out.parquet: {len(EXPECTED):,} rows, {size / 1000:.3g} KB\n"
    assert read("out.parquet") == EXPECTED
    with pq.ParquetFile("out.parquet") as file:
        assert [file.metadata.row_group(i).num_rows for i in range(3)] == [1000, 1000, len(EXPECTED) - 2000]
        assert str(file.schema_arrow.field("quality").type) == "double"

    write_config(**engine_keys(engine, server), destination="split/", val_ratio=0.1)
    facts = json.loads(sds.well("index", "export", "export.yaml", "--json"))
    train, val = read("split/train.parquet"), read("split/val.parquet")
    assert len(val) == facts["val_rows"] == round(0.1 * len(EXPECTED))
    assert sorted([*train, *val]) == EXPECTED and not {row[0] for row in train} & {row[0] for row in val}
    assert [row[0] for row in val] == VAL_IDS  # by a hash of the id: the same from every engine
    assert PASSWORD not in "".join(path.read_text(errors="replace") for path in home.glob("caches/**/*.json"))


def test_shards_and_what_is_left_of_earlier_ones(home: Path, sds: Sds) -> None:
    keys = {"engine": "sqlite", "database": "photos.sqlite", "destination": "shards/o-*.parquet", "rows_per_file": 500}
    write_config(**keys, val_ratio=0.5, max_num_val_rows=700)
    sds.well("index", "export", "export.yaml")
    names = sorted(path.name for path in Path("shards").iterdir())
    assert names == [*(f"o-train-0000{i}.parquet" for i in range(4)), "o-val-00000.parquet", "o-val-00001.parquet"]
    assert [pq.read_metadata(f"shards/{name}").num_rows for name in names] == [500, 500, 500, 50, 500, 200]
    assert sorted(read("shards/*.parquet")) == EXPECTED

    done = sds("index", "export", "export.yaml")
    assert done.code == 0 and done.out.endswith("nothing to do: all of it was there (recompute: true makes it anew)\n")
    os.unlink("shards/o-train-00001.parquet")
    facts = json.loads(sds.well("index", "export", "export.yaml", "--json"))
    assert facts["files_kept"] == 5 and sorted(read("shards/*.parquet")) == EXPECTED

    with sqlite3.connect("photos.sqlite") as connection:
        connection.execute("DELETE FROM photos WHERE id >= '0001000'")
    connection.close()
    sds.well("index", "export", "export.yaml", "--recompute")
    few = [row for row in EXPECTED if row[0] < "0001000"]
    assert sorted(read("shards/*.parquet")) == few  # no file of the larger export is left
    (home / "other.parquet").write_bytes(b"somebody else's")
    write_config(engine="sqlite", database="photos.sqlite", destination="other.parquet")
    done = sds("index", "export", "export.yaml")
    assert done.code == 2 and "error: destination is there already, and is not of this export" in done.err
    assert (home / "other.parquet").read_bytes() == b"somebody else's"


def interrupted(config: ExportConfig, after: int) -> None:
    """Runs an export until some rows were read, and no further."""

    def stop(num_rows: int) -> None:
        if num_rows >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(config, NoStore(), on_rows=stop)


def test_a_part_whose_rows_changed_meanwhile_is_made_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sds.index.export_parts._PART_ROWS", 500)
    monkeypatch.setattr("sds.index.export_engines._BATCH", 100)
    config = ExportConfig(databases.QUERY, str(home / "out.parquet"), engine="sqlite", database="photos.sqlite")
    interrupted(config, 1500)
    with sqlite3.connect("photos.sqlite") as connection:
        connection.execute("UPDATE photos SET caption = 'changed' WHERE id = ?", [EXPECTED[700][0]])
    connection.close()
    done = export(config, NoStore())
    assert done.num_parts_kept == 2  # of the three; the second one has a row that is another now
    expected = list(EXPECTED)
    expected[700] = (expected[700][0], expected[700][1], "changed", expected[700][3])
    assert read("out.parquet") == expected


def test_types_that_differ_on_the_way_meet_in_the_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite has no types: a column of numbers may end in texts."""
    monkeypatch.setattr("sds.index.export_parts._PART_ROWS", 100)
    monkeypatch.setattr("sds.index.export_engines._BATCH", 100)
    with sqlite3.connect("odd.sqlite") as connection:
        connection.execute("CREATE TABLE t (id, value, gap)")
        values = [(i, i if i < 250 else f"text {i}", None if i < 150 else 1.5) for i in range(300)]
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", values)
    connection.close()
    config = ExportConfig("SELECT * FROM t", str(home / "odd.parquet"), engine="sqlite", database="odd.sqlite")
    assert export(config, NoStore()).num_rows() == 300
    table = pq.read_table("odd.parquet")
    assert [str(field.type) for field in table.schema] == ["int64", "string", "double"]
    assert table["value"].to_pylist() == [str(value) for _, value, _ in values]


def wait_for(path: Path, enough: Any, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if enough(json.loads(path.read_text())):
                return
        except (OSError, ValueError):
            pass
        assert process.poll() is None, "it was over before it could be killed"
        time.sleep(0.002)
    raise AssertionError("it never came so far")


def killed(folder: Path, enough: Any) -> None:
    """Runs the export of the working folder, and kills it when its state says enough."""
    process = subprocess.Popen([SDS, "index", "export", "export.yaml"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (found := list(folder.glob("export-*/state.json"))) and time.monotonic() < deadline:
            time.sleep(0.002)
        wait_for(found[0], enough, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_killed_while_it_reads_and_while_it_writes_it_goes_on(
    home: Path, dst: Path, sds: Sds, s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ENDPOINT_URL", s3.endpoint), ("REGION", s3.region)):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    query = "SELECT printf('%07d', i) AS id, i * i AS n FROM range(200000) t(i) ORDER BY i"
    keys = {"destination": f"s3://{bucket}/o-*.parquet", "rows_per_file": 10_000, "val_ratio": 0.1}
    write_config(sql_query=query, **keys, local_tmp_dir="tmp", bucket_region=s3.region)

    killed(home / "tmp", lambda state: len(state["parts"]) >= 2)
    (state,) = (home / "tmp").glob("export-*/state.json")
    num_parts = len(json.loads(state.read_text())["parts"])
    killed(home / "tmp", lambda state: len(state["files"]) >= 3)
    facts = json.loads(sds.well("index", "export", "export.yaml", "--json"))
    assert facts["parts_kept"] == 4 >= num_parts  # all of them: the query is not run a third time
    assert facts["files_kept"] >= 3
    assert (facts["train_rows"], facts["val_rows"], len(facts["files"])) == (180_000, 20_000, 20)
    client = FetchClient(FetchOptions(dst=str(dst), settings=s3.storage_options))
    rows = []
    for info in client.list(f"s3://{bucket}"):
        rows += pq.read_table(pa.BufferReader(client.read(info.url)))["n"].to_pylist()
    client.close()
    assert sorted(rows) == [i * i for i in range(200_000)]
    assert list((home / "tmp").glob("export-*/parts/*")) == []
    assert json.loads(sds.well("index", "export", "export.yaml", "--json"))["files_kept"] == 20


def test_interrupted_it_says_how_to_go_on_and_then_what_it_kept(home: Path, sds: Sds) -> None:
    query = "SELECT printf('%07d', i) AS id, i * i AS n FROM range(500000) t(i) ORDER BY i"
    write_config(sql_query=query, destination="out/o-*.parquet", rows_per_file=250_000, local_tmp_dir="tmp")
    process = subprocess.Popen([SDS, "index", "export", "export.yaml"], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (found := list((home / "tmp").glob("export-*/state.json"))) and time.monotonic() < deadline:
            time.sleep(0.002)
        wait_for(found[0], lambda state: len(state["parts"]) >= 2, process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, said.splitlines()[-1]) == (130, "interrupted; run it again to go on"), said
    assert "Traceback" not in said
    done = sds("index", "export", "export.yaml")
    assert done.code == 0 and re.search(r"going on: an earlier run left [1-9][\d,]* rows on this disk", done.err)
    assert re.search(r"kept from an earlier run: [1-9]\d* parts? of the rows, \d files?\n", done.out)
    assert sum(pq.read_metadata(path).num_rows for path in Path("out").glob("*.parquet")) == 500_000


def test_two_at_once_are_refused(home: Path, sds: Sds) -> None:
    write_config(sql_query="SELECT 1 AS id", local_tmp_dir="tmp")
    (home / "tmp").mkdir()
    with lock.held(home / "tmp" / f"export-{read_config('export.yaml').destination_digest}.lock", timeout_s=0):
        done = sds("index", "export", "export.yaml")
    assert done.code == 1 and f"pid {os.getpid()} on " in done.err and "hint: " in done.err


MEASURE = """
import resource, sys
from pathlib import Path
import sds.index.export_parts
from sds.index.export import export
from sds.index.export_config import ExportConfig
sds.index.export_parts._PART_BYTES = 2**22
query = f"SELECT printf('%09d', i) AS id, repeat('x', 2000) || i AS caption FROM range({sys.argv[1]}) t(i)"
class Nothing: put = head = None
done = export(ExportConfig(query, sys.argv[2], val_ratio=0.1, row_group_size=1000), Nothing())
assert done.num_rows() == int(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_rows(home: Path) -> None:
    peaks = []
    for count in (15_000, 100_000):  # 30 MB, 200 MB
        words = [sys.executable, "-c", MEASURE, str(count), str(home / f"{count}.parquet")]
        peaks.append(int(subprocess.run(words, capture_output=True, text=True, check=True, timeout=100).stdout))
    assert peaks[1] - peaks[0] < 80, peaks


@pytest.mark.parametrize(
    ("keys", "code", "message"),
    [
        ({"engine": "sqlite", "database": "nothing.db"}, 1, "error: no database is there: nothing.db"),
        ({"engine": "sqlite", "database": "photos.parquet"}, 1, "error: sql_query failed: file is not a database"),
        (
            {"engine": "sqlite", "database": "photos.sqlite", "sql_query": "SELECT nope FROM photos"},
            1,
            "no such column",
        ),
        ({"engine": "sqlite", "database": "photos.sqlite", "sql_query": "DELETE FROM photos"}, 1, "error: sql_query"),
        ({"sql_query": "SELECT nope FROM 'photos.parquet'"}, 1, "error: sql_query failed: "),
        ({"sql_query": "SELECT 1; SELECT 2"}, 1, "error: sql_query is not one SELECT"),
        ({"sql_query": "SELECT * FROM 'photos.parquet' WHERE false"}, 1, "error: sql_query gives no rows"),
        ({"sql_query": "SELECT 1 AS x", "val_ratio": 0.5}, 2, "error: there is no column of ids to split by"),
        (
            {"sql_query": "SELECT 1 AS x", "destination": "/proc/x/y.parquet"},
            1,
            "error: file cannot be written: /proc/x",
        ),
        ({"engine": "postgres", "connection": f"host=127.0.0.1 port=1 password={PASSWORD}"}, 1, "cannot be reached"),
        ({"engine": "postgres", "connection": f"postgresql//me:{PASSWORD}@x"}, 2, "connection is no connection"),
        ({"sql_querry": "x"}, 2, "error: key is unknown: 'sql_querry'\nhint: did you mean 'sql_query'?"),
    ],
)
def test_what_is_wrong_is_told(keys: dict[str, Any], code: int, message: str, home: Path, sds: Sds) -> None:
    write_config(**keys)
    done = sds("index", "export", "export.yaml")
    assert (done.code, done.out) == (code, ""), done
    assert message in done.err and "hint: " in done.err and PASSWORD not in done.err
    assert read("photos.parquet")[:1] == [databases.rows(1)[0]]


def test_a_wrong_password_is_told_and_not_repeated(home: Path, server: str) -> None:
    wrong = server.replace("sds@", "sds:wrong-pass-word@")
    with pytest.raises(SdsError) as caught:
        export(ExportConfig(databases.QUERY, str(home / "x.parquet"), engine="postgres", connection=wrong), NoStore())
    assert "password authentication failed" in str(caught.value) and "wrong-pass-word" not in str(caught.value)
    assert sum("wrong-pass-word" in path.read_text(errors="replace") for path in home.rglob("*.json")) == 0
