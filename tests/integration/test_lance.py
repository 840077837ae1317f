"""Lance tables: a pinned version, bytes taken by Lance itself, in whatever process asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest

import sds
from commands import Sds
from sds.errors import OptionError, SchemaError, SourceNotFound, StateMismatch, UnsupportedSource
from sds.index.lance import is_lance, pin_lance
from sds.testing.resume import Topology, check_resume


@pytest.fixture
def make(tmp_path):
    def made(src, **options):
        return sds.StreamingDataset(src, tmp_path / "dst", **{"on_error": "raise", **options})

    return made


@pytest.fixture
def table(tmp_path):
    lance = pytest.importorskip("lance")
    rows = pa.table(
        {"id": [f"r{i:02}" for i in range(30)], "image": [content(i) for i in range(30)], "n": list(range(30))}
    )
    lance.write_dataset(rows, tmp_path / "t.lance", max_rows_per_file=8)
    return tmp_path / "t.lance"


def content(i):
    return bytes([i]) * (50 + i)


class TestATable:
    def test_gives_rows_with_bytes(self, table, make):
        with make(table, index_col_name="id", shuffle_seed=1) as ds:
            assert {s["__sample_key__"]: (s["image"], s["n"]) for s in ds} == {
                f"r{i:02}": (content(i), i) for i in range(30)
            }
            assert ds[7]["image"] == content(7)
            assert "(lance: 1 index file)" in ds.explain()

    def test_is_pinned_to_a_version(self, table, make):
        import lance

        with make(table) as ds:
            state = ds.state_dict()
            lance.write_dataset(pa.table({"id": ["new"], "image": [b"x"], "n": [99]}), table, mode="append")
            assert len(list(ds)) == 30
        with make(table) as newer:
            assert len(newer) == 31 and newer[30]["image"] == b"x"
            with pytest.raises(StateMismatch):
                newer.load_state_dict(state)
        with make(f"{table}?version=1") as older:
            assert len(older) == 30
            older.load_state_dict(state)
        with pytest.raises(SourceNotFound, match="no version 7"):
            make(f"{table}?version=7")

    def test_is_queried_and_resumed(self, table, make):
        query = "SELECT * FROM dataframe WHERE n % 3 = 0"
        with make(table, sql_query=query) as ds:
            assert [s["image"] for s in ds] == [content(i) for i in range(0, 30, 3)]

        def loader(topology, world):
            return sds.StreamingDataLoader(make(table, shuffle_seed=1), topology.batch_size, world=world)

        assert check_resume(loader, [Topology(1, 10), Topology(2, 4)], num_epochs=1) > 3

    def test_is_told_by_the_command_line(self, table, tmp_path, monkeypatch, capsys):
        command = Sds(monkeypatch, capsys)
        words = [table, "--id", "id", "--dst", tmp_path / "dst"]
        facts = json.loads(command.well("index", "info", *words, "--json"))
        assert (facts["kind"], facts["rows"], facts["duplicate_ids"]) == ("lance", 30, 0)
        assert "r03" in command.well("peek", *words, "-n", "1", "--at", "3")

    def test_has_no_column_that_could_be_a_place(self, tmp_path, make):
        lance = pytest.importorskip("lance")
        places = pa.array([{"sds_column": 0, "sds_row": 7}])
        lance.write_dataset(pa.table({"image": [b"a"], "meta": places}), tmp_path / "p.lance")
        with pytest.raises(SchemaError, match="'meta' has the form in which an index notes where content lies"):
            make(tmp_path / "p.lance")

    def test_missing_bytes_are_left_out(self, tmp_path, make):
        lance = pytest.importorskip("lance")
        lance.write_dataset(pa.table({"image": [b"a", None, b"c"], "n": [1, 2, 3]}), tmp_path / "m.lance")
        with make(tmp_path / "m.lance") as ds:
            assert [(s["image"], s["n"]) for s in ds] == [(b"a", 1), (b"c", 3)]
        with make(tmp_path / "m.lance", columns_to_download=[]) as ds:
            assert [s["n"] for s in ds] == [1, 2, 3] and "image" not in ds[0]

    def test_blobs_are_bytes(self, tmp_path, make):
        lance = pytest.importorskip("lance")
        field = pa.field("video", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        rows = pa.table([pa.array([b"x" * 5000, b"y" * 10], pa.large_binary())], schema=pa.schema([field]))
        lance.write_dataset(rows, tmp_path / "b.lance")
        with make(tmp_path / "b.lance") as ds:
            assert [s["video"] for s in ds] == [b"x" * 5000, b"y" * 10]

    def test_is_opened_in_forked_workers_and_not_in_their_parent(self, table, tmp_path):
        # Lance warns when a process that has it loaded forks; warnings are errors here
        code = f"""
import sys, sds
with sds.StreamingDataset({str(table)!r}, {str(tmp_path / "dst")!r}, on_error="raise") as ds:
    with sds.StreamingDataLoader(
        ds, 10, num_workers=1, multiprocessing_context="fork", collate_fn=list, timeout=60
    ) as loader:
        print(sum(len(sample["image"]) for batch in loader for sample in batch), "lance" in sys.modules)
"""
        done = subprocess.run(
            [sys.executable, "-W", "error::UserWarning", "-c", code],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        assert done.stdout.split() == [str(sum(len(content(i)) for i in range(30))), "False"]


def test_names_tell_tables():
    assert is_lance("/a/t.lance") and is_lance("/a/t.lance/") and is_lance("s3://b/t.lance?version=3")
    assert not is_lance("/a/t.lance.parquet") and not is_lance("/a/lance")


@pytest.mark.parametrize(("names", "last"), [(["1.manifest", "12.manifest"], 12), ([f"{2**64 - 1 - 5}.manifest"], 5)])
def test_the_last_version_is_found_by_the_names_of_manifests(tmp_path, names, last):
    (tmp_path / "t.lance" / "_versions").mkdir(parents=True)
    for name in [*names, "latest_version_hint.json"]:
        (tmp_path / "t.lance" / "_versions" / name).touch()
    assert pin_lance(f"{tmp_path}/t.lance") == (f"{tmp_path}/t.lance", str(last))


def test_what_is_no_table_or_remote_is_refused(make, tmp_path):
    with pytest.raises(SourceNotFound, match="no Lance table"):
        make(tmp_path / "t.lance")
    with pytest.raises(UnsupportedSource, match="local disk"):
        make("s3://bucket/t.lance")


def test_without_pylance_the_error_says_what_to_install(make, tmp_path, monkeypatch):
    (tmp_path / "t.lance" / "_versions").mkdir(parents=True)
    (tmp_path / "t.lance" / "_versions" / "1.manifest").touch()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "lance.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "hidden"), *sys.path]))
    with pytest.raises(OptionError, match="pylance is not installed") as caught:
        make(tmp_path / "t.lance")
    assert "[lance]" in caught.value.hint
