"""Data providers: objects that give rows by number, and functions whose result becomes the index."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import sds
import texts
from sds.errors import OptionError, SchemaError, SourceError, StateMismatch
from sds.testing.resume import Topology, check_resume


class Rows:
    """30 rows, some with bytes, some with a path."""

    def __init__(self, size=30, **columns):
        self.size, self.columns, self.asked = size, columns, []

    def __len__(self):
        return self.size

    def rows(self, ids):
        self.asked.append(list(ids))
        return [{"index": f"r{i:03}", "n": i, **{k: v(i) for k, v in self.columns.items()}} for i in ids]


def make(src, tmp_path, **options):
    return sds.StreamingDataset(src, tmp_path / "dst", on_error="raise", **options)


class TestAnObject:
    def test_gives_rows_in_order_and_by_number(self, tmp_path):
        with make(Rows(), tmp_path) as ds:
            assert len(ds) == 30
            assert texts.keys(ds) == [f"r{i:03}" for i in range(30)]
            assert ds[-1]["n"] == 29
            assert [sample["n"] for sample in ds[3:5]] == [3, 4]

    def test_shuffles_and_is_divided_over_ranks(self, tmp_path):
        shares = [texts.keys(make(Rows(), tmp_path, shuffle_seed=1, world=sds.World(rank, 3))) for rank in range(3)]
        together = [key for share in shares for key in share]
        assert sorted(together) == [f"r{i:03}" for i in range(30)]
        assert together != sorted(together)

    def test_resumes_on_every_topology(self, tmp_path):
        def loader(topology, world):
            ds = make(Rows(11), tmp_path, shuffle_seed=3)
            return sds.StreamingDataLoader(ds, topology.batch_size, world=world)

        assert check_resume(loader, [Topology(1, 4), Topology(2, 3)]) > 10

    def test_bytes_and_paths_may_be_mixed(self, tmp_path):
        (tmp_path / "file.bin").write_bytes(b"from a file")
        data = lambda i: bytes([i]) if i % 2 else str(tmp_path / "file.bin")  # noqa: E731
        with make(Rows(data=data), tmp_path, columns_to_download=["data"]) as ds:
            assert ds[1]["data"] == b"\x01"
            assert Path(ds[2]["data"]).read_bytes() == b"from a file"

    def test_a_missing_value_is_the_rows_own_failure(self, tmp_path):
        src = Rows(data=lambda i: None if i == 2 else b"x")
        with make(src, tmp_path, columns_to_download=["data"]) as ds:
            assert ds[1]["data"] == b"x"
            with pytest.raises(SchemaError, match="lacks a value to download in 'data'"):
                ds[2]
        with make(src, tmp_path, columns_to_download=["data"], allow_missing_columns=True) as ds:
            assert ds[2]["data"] is None

    def test_says_what_it_is(self, tmp_path):
        with make(Rows(), tmp_path, max_size=7) as ds:
            assert len(ds) == 7
            assert ds.schema.field("n").type == pa.int64()
            assert "Rows (provider)\n" in ds.explain()
            assert "Rows.rows(ids) is asked for rows when they are needed\n" in ds.explain()
            assert "mapped" not in ds.explain()
            assert "0x" not in ds.explain() + repr(ds)

    def test_keeps_the_columns_asked_for(self, tmp_path):
        with make(Rows(a=lambda i: 1, b=lambda i: 2), tmp_path, index_cols_to_keep=["b"]) as ds:
            assert {k for k in ds[0] if not k.startswith("__")} == {"index", "b"}

    def test_its_fingerprint_decides_what_a_state_belongs_to(self, tmp_path):
        one, same, other = Rows(), Rows(), Rows()
        one.fingerprint = same.fingerprint = "v1"
        other.fingerprint = lambda: "v2"
        state = make(one, tmp_path).state_dict()
        make(same, tmp_path).load_state_dict(state)
        with pytest.raises(StateMismatch):
            make(other, tmp_path).load_state_dict(state)
        assert make(Rows(), tmp_path).fingerprint == make(Rows(), tmp_path).fingerprint
        assert make(Rows(), tmp_path).fingerprint != make(Rows(extra=str), tmp_path).fingerprint

    def test_travels_into_a_copy(self, tmp_path):
        ds = pickle.loads(pickle.dumps(make(Rows(), tmp_path)))
        assert ds[4]["n"] == 4

    def test_that_cannot_travel_says_so(self, tmp_path):
        src = Rows()
        src.lock = threading.Lock()
        with pytest.raises(OptionError, match="cannot be pickled") as caught:
            pickle.dumps(make(src, tmp_path))
        assert "fork" in caught.value.hint

    @pytest.mark.parametrize("keyword", ["sql_query", "weight_col_name", "lazy_index_chunk_size"])
    def test_has_no_table_to_query(self, tmp_path, keyword):
        value = 10 if keyword == "lazy_index_chunk_size" else "select * from dataframe"
        with pytest.raises(OptionError, match=f"{keyword} needs a table"):
            make(Rows(), tmp_path, **{keyword: value})

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            (lambda ids: [{}], "gave 1 rows for 16 ids"),
            (lambda ids: [1 for _ in ids], "gave no dict: int"),
            (lambda ids: 1 / 0, "ZeroDivisionError"),
        ],
    )
    def test_that_is_wrong_is_a_source_error(self, tmp_path, rows, message):
        src = Rows()
        src.rows = rows
        with pytest.raises(SourceError, match=message):
            make(src, tmp_path)

    def test_that_is_empty_is_a_source_error(self, tmp_path):
        with pytest.raises(SourceError, match="no rows"):
            make(Rows(0), tmp_path)

    def test_without_a_column_is_a_schema_error(self, tmp_path):
        with pytest.raises(SchemaError, match="'image'"):
            make(Rows(), tmp_path, columns_to_download=["image"])


class TestAFunction:
    def test_gives_records(self, tmp_path):
        records = [{"index": "a", "n": 1}, {"index": "b", "n": 2, "more": "x"}]
        with make(lambda: records, tmp_path, sql_query="SELECT * FROM dataframe WHERE n > 1") as ds:
            assert texts.keys(ds) == ["b"]
            assert ds[0]["more"] == "x"

    @pytest.mark.parametrize("kind", ["table", "generator", "path", "list of paths", "object"])
    def test_may_give_any_source(self, tmp_path, kind):
        table = pa.table({"index": ["a", "b"], "n": [1, 2]})
        (tmp_path / "t.csv").write_text("index,n\na,1\nb,2\n")

        class Two(Rows):
            def rows(self, ids):
                return [{"index": "ab"[i], "n": i + 1} for i in ids]

        given = {
            "table": lambda: table,
            "generator": lambda: iter(table.to_pylist()),
            "path": lambda: tmp_path / "t.csv",
            "list of paths": lambda: [tmp_path / "t.csv"],
            "object": lambda: Two(2),
        }[kind]
        with make(given, tmp_path) as ds:
            assert [(s["index"], s["n"]) for s in ds] == [("a", 1), ("b", 2)]

    def test_is_called_by_every_run_and_changes_are_noticed(self, tmp_path):
        found = [{"index": "a"}]
        assert texts.keys(make(lambda: found, tmp_path)) == ["a"]
        found.append({"index": "b"})
        assert texts.keys(make(lambda: found, tmp_path)) == ["a", "b"]

    def test_with_a_fingerprint_is_called_once(self, tmp_path):
        calls = []

        def records():
            calls.append(1)
            return [{"index": str(len(calls))}]

        records.fingerprint = "monday"
        assert [texts.keys(make(records, tmp_path)) for _ in range(3)] == [["1"]] * 3
        records.fingerprint = "tuesday"
        assert texts.keys(make(records, tmp_path)) == ["2"]
        assert len(calls) == 2

    def test_ranks_of_one_launch_share_an_answer(self, tmp_path, monkeypatch):
        calls = []

        def records():
            calls.append(1)
            return [{"index": str(len(calls))}]

        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        for run in ("1", "2"):
            for rank in ("1", "0"):
                monkeypatch.setenv("LOCAL_RANK", rank)
                assert texts.keys(make(records, tmp_path)) == [run]
        assert len(calls) == 2

    def test_relative_paths_are_relative_to_the_working_folder(self, tmp_path, monkeypatch):
        (tmp_path / "a.txt").write_text("hello")
        monkeypatch.chdir(tmp_path)
        with make(lambda: [{"index": "a", "file": "a.txt"}], tmp_path, columns_to_download=["file"]) as ds:
            assert ds[0]["file"] == str(tmp_path / "a.txt")

    @pytest.mark.parametrize(
        ("result", "error"),
        [(7, OptionError), ([7], OptionError), ([], SourceError), ([{"a": 1}, {"a": "x"}], SchemaError)],
    )
    def test_that_gives_something_else_is_an_error(self, tmp_path, result, error):
        with pytest.raises(error) as caught:
            make(lambda: result, tmp_path)
        assert caught.value.hint

    def test_that_fails_is_a_source_error_with_its_cause(self, tmp_path):
        with pytest.raises(SourceError, match="division by zero") as caught:
            make(lambda: 1 / 0, tmp_path)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
