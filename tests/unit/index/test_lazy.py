"""An index that is read in chunks has the rows of one that is read whole, whatever its files, row groups and chunks."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from sds.errors import OptionError, QueryError, SchemaError, SourceError
from sds.index import IndexOptions, lazy_opening, open_index
from sds.index.lazy import LazyReading
from sds.index.lazy_choice import choose
from sds.index.lazy_opening import open_lazy

NUM_ROWS = 230


def no_remote():
    raise AssertionError("a local source asked for the network")


def rows_of(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table(
        {
            "id": [f"{i:04}" for i in numbers],
            "file": [None if i % 17 == 3 else "" if i % 23 == 5 else f"pictures/{i}.jpg" for i in numbers],
            "x": pa.array([i if i % 11 else None for i in numbers], pa.int32()),
            "w": [i % 4 / 2 for i in numbers],
            "words": pa.array([f"word {i % 5}" for i in numbers]).dictionary_encode(),
            "list": [[i, i + 1] for i in numbers],
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four files of different lengths, row groups and columns, in two folders."""
    (tmp_path / "data/more").mkdir(parents=True)
    parquet.write_table(rows_of(0, 100), tmp_path / "data/a.parquet", row_group_size=7)
    parquet.write_table(rows_of(100, 103), tmp_path / "data/b.parquet")
    parquet.write_table(rows_of(0, 0), tmp_path / "data/c.parquet")
    last = rows_of(103, NUM_ROWS).drop_columns(["list"]).append_column("y", pa.array(range(NUM_ROWS - 103)))
    last = last.set_column(2, "x", last["x"].cast(pa.float64()))
    parquet.write_table(last, tmp_path / "data/more/d.parquet", row_group_size=64)
    return tmp_path


@pytest.fixture
def both(folder: Path):
    """The same, read in chunks and read whole."""

    def opened(src="data/**/*.parquet", *, chunk_size=16, **options):
        source = str(folder / src)
        lazy = IndexOptions(lazy_index_chunk_size=chunk_size, **options)
        whole = IndexOptions(**{name: options[name] for name in options if name != "lazy_index_plan"})
        return (
            open_lazy(source, lazy, folder=folder / "dst", remote=no_remote),
            open_index(source, whole, folder=folder / "dst", remote=no_remote),
        )

    return opened


OPTIONS = [
    {},
    {"index_col_name": "id"},
    {"index_col_name": "id", "columns_to_download": ["file"]},
    {"columns_to_download": ["file"]},
    {"columns_to_download": ["file"], "allow_missing_columns": True},
    {"columns_to_download": ["file", "nothing"], "allow_missing_columns": True},
    {"index_col_name": "id", "index_cols_to_keep": ["x"]},
    {"index_cols_to_keep": ["w"]},
    {"max_size": 50},
    {"max_size": 50, "columns_to_download": ["file"]},
    {"max_index_files_to_use": 2},
    {"sql_query": "SELECT * FROM dataframe WHERE x > 40", "index_col_name": "id"},
    {"sql_query": "SELECT id, file, x * 2 AS double FROM dataframe WHERE x % 3 = 0", "columns_to_download": ["file"]},
    {"sql_query": "SELECT * EXCLUDE (list) FROM dataframe WHERE words = 'word 3' OR x IS NULL"},
    {"sql_query": "SELECT upper(file) AS file, x + 1 AS z FROM dataframe WHERE z > 7", "columns_to_download": ["file"]},
    {"sql_query": "FROM dataframe WHERE file LIKE '%more/pictures/1%'", "columns_to_download": ["file"]},
    {"sql_query": "SELECT * FROM dataframe WHERE x > 40", "index_cols_to_keep": ["w"], "max_size": 20},
    {"weight_col_name": "w"},
    {"weight_col_name": "w", "sql_query": "SELECT * FROM dataframe WHERE x > 40", "columns_to_download": ["file"]},
    {"weight_col_name": "v", "sql_query": "SELECT id, x / 2 AS v FROM dataframe WHERE x > 40"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(map(str, options.values()))[:60] or "plain")
def test_rows_are_those_of_the_index_that_is_read_whole(both, options):
    chunk_size = [1, 16, 30, 1000][OPTIONS.index(options) % 4]
    lazy, whole = both(chunk_size=chunk_size, **options)
    assert len(lazy) == len(whole)
    assert lazy.schema == whole.schema
    assert lazy.columns_to_download == whole.columns_to_download
    ids = np.random.default_rng(0).permutation(len(whole))
    for mine, other in zip(lazy.rows(ids), whole.rows(ids), strict=True):
        assert (mine.id, mine.key, mine.values) == (other.id, other.key, other.values)
    assert (lazy.chunk_sizes.sum(), lazy.chunk_sizes.max() <= chunk_size) == (len(whole), True)
    facts = ("rows", "rows_at_source", "rows_after_query", "rows_left_out", "num_index_files")
    assert [getattr(lazy.facts, name) for name in facts] == [getattr(whole.facts, name) for name in facts]
    if "weight_col_name" in options:
        assert (lazy.weights[: len(lazy)] == whole.weights[: len(whole)]).all()
    lazy.close()


@pytest.mark.parametrize("options", [each for each in OPTIONS if "sql_query" in each], ids=str)
def test_rows_that_are_taken_are_those_that_are_scanned(both, options):
    scanned, whole = both(lazy_index_plan="scan", **options)
    taken, _ = both(lazy_index_plan="take", **options)
    assert taken.fingerprint == scanned.fingerprint
    assert (taken.chunk_sizes == scanned.chunk_sizes).all()
    ids = range(len(whole))
    assert taken.rows(ids) == scanned.rows(ids) == whole.rows(ids)
    again = pickle.loads(pickle.dumps(taken))
    again.expect([0])
    assert again.rows([0]) == whole.rows([0])


@pytest.mark.parametrize(
    ("left", "num_bytes", "url", "kind"),
    [
        (9_000, 100_000_000, "/a.parquet", "take"),  # 100 bytes a row: below 1% of the rows
        (11_000, 100_000_000, "/a.parquet", "scan"),
        (9_000, 100_000_000, "s3://b/a.parquet", "scan"),  # there, below 0.01%
        (90, 100_000_000, "s3://b/a.parquet", "take"),
        (300_000, 10**12, "s3://b/a.parquet", "scan"),  # large rows: cheap to take, but too many bytes to copy
        (3_000, 10**12, "s3://b/a.parquet", "take"),
    ],
)
def test_scan_or_take_is_chosen_by_what_is_left_and_what_a_read_costs(left, num_bytes, url, kind):
    choice = choose("auto", rows=1_000_000, rows_left=left, num_bytes=num_bytes, url=url, has_query=True)
    assert choice.kind == kind
    assert "r/(B+r)" in choice.why
    other = {"scan": "take", "take": "scan"}[kind]
    forced = choose(other, rows=1_000_000, rows_left=left, num_bytes=num_bytes, url=url, has_query=True)
    assert (forced.kind, forced.why[:9]) == (other, "asked for")


@pytest.mark.parametrize("is_sequential", [False, True])
def test_chunks_in_order_and_expected_ahead_give_the_same(folder, both, is_sequential):
    _, whole = both()
    reading = LazyReading(num_threads=2, num_chunks=3, is_sequential=is_sequential)
    options = IndexOptions(lazy_index_chunk_size=10)
    lazy = open_lazy(str(folder / "data/**/*.parquet"), options, reading, folder=folder / "dst", remote=no_remote)
    found = []
    for chunk, size in enumerate(lazy.chunk_sizes.tolist()):
        lazy.expect([each for each in range(chunk, chunk + 3) if each < len(lazy.chunk_sizes)])
        found += lazy.rows(range(len(found), len(found) + size))
        assert len(lazy._chunks) <= 5, "no more than those expected, and two"
    assert [row.key for row in found] == [row.key for row in whole.rows(range(len(whole)))]
    lazy.close()


def test_opening_reads_no_rows_when_footers_tell_enough(folder, both, monkeypatch):
    from sds.index import lazy_files

    parquet.write_table(rows_of(0, 3), folder / "data/full.parquet", row_group_size=2)

    def fail(*_):
        raise AssertionError("rows were read")

    monkeypatch.setattr(lazy_files.ParquetPart, "read", fail)
    lazy, _ = both("data/full.parquet", columns_to_download=["file"])
    assert len(lazy) == 3
    with pytest.raises(AssertionError, match="rows were read"):
        both("data/a.parquet", columns_to_download=["file"])  # there, footers tell of missing values


def test_a_second_opening_reads_not_even_footers(folder, both, monkeypatch):
    from sds.index import lazy_layout

    first, _ = both()
    monkeypatch.setattr(lazy_layout, "read_footer", None)
    second, _ = both()
    assert second.fingerprint == first.fingerprint
    assert second.rows([5]) == first.rows([5])
    assert not list((folder / "dst").glob("*.tmp"))


def test_the_fingerprint_is_that_of_the_footers_wherever_they_lie(folder, both, tmp_path):
    first, _ = both()
    moved = tmp_path / "elsewhere"
    os.rename(folder / "data", moved)
    options = IndexOptions(lazy_index_chunk_size=1000)
    second = open_lazy(str(moved / "**/*.parquet"), options, folder=folder / "dst", remote=no_remote)
    assert second.fingerprint == first.fingerprint
    parquet.write_table(rows_of(1, 101), moved / "a.parquet", row_group_size=7)
    third = open_lazy(str(moved / "**/*.parquet"), options, folder=folder / "dst", remote=no_remote)
    assert third.fingerprint != first.fingerprint
    query = IndexOptions(lazy_index_chunk_size=1000, sql_query="FROM dataframe WHERE x > 1")
    assert open_lazy(str(moved / "*.parquet"), query, folder=folder / "dst", remote=no_remote).fingerprint not in (
        first.fingerprint,
        third.fingerprint,
    )


def test_a_file_that_changes_under_an_open_index_is_an_error(folder, both):
    lazy, _ = both()
    parquet.write_table(rows_of(0, 99), folder / "data/a.parquet")
    with pytest.raises(SourceError, match=r"changed since it was opened.*a\.parquet"):
        lazy.rows([0])
    os.remove(folder / "data/more/d.parquet")
    with pytest.raises(SourceError, match="changed since"):
        lazy.rows([200])


def test_pickled_and_forked_it_reads_on(both):
    lazy, _ = both(sql_query="SELECT * FROM dataframe WHERE x > 40")
    expected = lazy.rows([7, 100])
    assert pickle.loads(pickle.dumps(lazy)).rows([7, 100]) == expected
    lazy.expect([1, 2, 3])
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            lazy.expect([0, 1])
            os.write(writer, b"same" if lazy.rows([7, 100]) == expected else b"other")
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 10) == b"same"
    os.waitpid(pid, 0)
    os.close(reader)
    lazy.close()
    assert lazy.rows([7, 100]) == expected, "it can be used again"


def test_a_folder_of_parquet_files_is_read_in_chunks(both):
    lazy, whole = both("data")
    assert lazy.rows([0, 120, NUM_ROWS - 1]) == whole.rows([0, 120, NUM_ROWS - 1])


def test_a_row_outside_is_an_index_error(both):
    lazy, _ = both()
    assert lazy.rows([]) == []
    for wrong in (-1, NUM_ROWS):
        with pytest.raises(IndexError, match=str(wrong)):
            lazy.rows([0, wrong])


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"columns_to_download": ["fle"]}, SchemaError, "columns_to_download names .* 'fle'"),
        ({"index_col_name": "nothing"}, SchemaError, "index_col_name names"),
        ({"columns_to_download": ["x"]}, SchemaError, "not URLs or paths"),
        ({"weight_col_name": "words"}, SchemaError, "not numbers"),
        ({"weight_col_name": "x"}, SchemaError, "weight is impossible: None in column 'x', row 0"),
        ({"weight_col_name": "v", "sql_query": "SELECT x, 0 AS v FROM dataframe"}, SchemaError, "every weight is 0"),
        ({"sql_query": "SELECT * FROM dataframe WHERE x < 0"}, SourceError, "query leaves none of 230 rows"),
        ({"sql_query": "SELECT * FROM dataframe WHERE wrong < 0"}, QueryError, "column that the source does not have"),
        (
            {"sql_query": "SELECT NULL::text AS file FROM dataframe", "columns_to_download": ["file"]},
            SourceError,
            "every row lacks a value to download",
        ),
    ],
)
def test_what_is_wrong_is_told_when_it_is_opened(both, folder, options, kind, message):
    with pytest.raises(kind, match=message) as caught:
        both(**options)
    assert caught.value.hint
    assert not list((folder / "dst").glob("*.lazy"))


@pytest.mark.parametrize("cut", [0, 3, 11, 400, -5])
def test_a_damaged_file_is_named(folder, tmp_path, cut):
    whole = (folder / "data/a.parquet").read_bytes()
    path = tmp_path / "cut.parquet"
    path.write_bytes(whole[:cut])
    with pytest.raises(SourceError, match=r"cannot be read: .*cut\.parquet") as caught:
        open_lazy(str(path), IndexOptions(lazy_index_chunk_size=5), folder=tmp_path / "dst", remote=no_remote)
    assert caught.value.url == str(path)


def test_files_inside_the_table_are_refused_with_a_way_out(tmp_path):
    parquet.write_table(pa.table({"image": [b"one", b"two"]}), tmp_path / "bytes.parquet")
    options = IndexOptions(lazy_index_chunk_size=5, columns_to_download=("image",))
    with pytest.raises(OptionError, match="files inside the table: 'image'"):
        open_lazy(str(tmp_path / "bytes.parquet"), options, folder=tmp_path / "dst", remote=no_remote)
    as_value = open_lazy(
        str(tmp_path / "bytes.parquet"),
        IndexOptions(lazy_index_chunk_size=5),
        folder=tmp_path / "dst",
        remote=no_remote,
    )
    assert as_value.rows([1])[0].values == {"image": b"two"}


def test_damage_inside_is_found_when_it_is_met(folder, tmp_path):
    content = bytearray((folder / "data/a.parquet").read_bytes())
    content[4:3000] = b"\xff" * 2996
    path = tmp_path / "bad.parquet"
    path.write_bytes(content)
    lazy = open_lazy(str(path), IndexOptions(lazy_index_chunk_size=5), folder=tmp_path / "dst", remote=no_remote)
    with pytest.raises(SourceError, match=r"cannot be read: .*bad\.parquet"):
        lazy.rows(range(10))


def test_files_inside_the_table_are_refused_unasked_too(tmp_path: Path) -> None:
    table = pa.table({"id": ["a"], "image": [{"bytes": b"x", "path": "a.jpg"}]})
    parquet.write_table(table, tmp_path / "t.parquet")

    def opened(columns: tuple[str, ...] | None):
        options = IndexOptions(lazy_index_chunk_size=4, columns_to_download=columns, index_col_name="id")
        return open_lazy(tmp_path / "t.parquet", options, folder=tmp_path / "index", remote=no_remote)

    for columns in (None, ("image",)):
        with pytest.raises(OptionError, match="does not go with files inside the table: 'image'") as caught:
            opened(columns)
        assert "leave lazy_index_chunk_size out" in caught.value.hint
    index = opened(())
    assert index.rows([0])[0].values["image"] == {"bytes": b"x", "path": "a.jpg"}
    index.close()


def test_a_first_opening_that_takes_long_says_so(both, monkeypatch, caplog) -> None:
    told = threading.Event()
    caplog.handler.addFilter(lambda record: told.set() or True)
    monkeypatch.setattr(lazy_opening, "_SLOW_S", 0.01)
    monkeypatch.setattr(lazy_opening, "_count", lambda *args, count=lazy_opening._count: told.wait(30) and count(*args))
    both(sql_query="SELECT * FROM dataframe WHERE x > 3")
    assert len([r for r in caplog.records if "looked through once, and what is found is kept" in r.getMessage()]) == 1
