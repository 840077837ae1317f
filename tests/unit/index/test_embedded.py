"""Bytes inside the table: binary columns and struct{bytes, path}, read from Parquet where it lies."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sds
import texts
from sds.errors import OptionError, SchemaError, SourceError
from sds.index.embedded import _fallbacks
from sds.index.formats import Format
from sds.index.leaves import leaves_of
from sds.index.parts import IndexFile
from sds.testing.resume import Topology, check_resume

FILES = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def content(i):
    return bytes([i % 256]) * (2000 + i)


def hub(rows, **more):
    """A table as model hubs write it."""
    images = [{"bytes": content(i), "path": f"{i}.jpg"} for i in rows]
    return pa.table({"image": pa.array(images, FILES), "label": list(rows), **more})


@pytest.fixture
def folder(tmp_path):
    """data/train-0000{0,1}-of-00002.parquet: 25 and 15 rows, in row groups of 10."""
    place = tmp_path / "data"
    place.mkdir()
    pq.write_table(hub(range(25)), place / "train-00000-of-00002.parquet", row_group_size=10)
    pq.write_table(hub(range(25, 40)), place / "train-00001-of-00002.parquet", row_group_size=10)
    return place


@pytest.fixture
def make(tmp_path):
    def made(src, **options):
        return sds.StreamingDataset(src, tmp_path / "dst", **{"on_error": "raise", **options})

    return made


class TestAFolderOfAHub:
    def test_gives_bytes(self, folder, make):
        with make(folder / "train-*.parquet") as ds:
            assert len(ds) == 40
            assert [(s["image"], s["label"]) for s in ds] == [(content(i), i) for i in range(40)]
            assert ds[33]["image"] == content(33)
            assert "download: ['image']" in ds.explain()

    def test_is_not_copied(self, folder, make, tmp_path):
        with make(folder / "*.parquet") as ds:
            assert ds[0]["image"]
            copied = sum(path.stat().st_size for path in (tmp_path / "dst").rglob("*") if path.is_file())
            assert copied < 20_000 < 40 * 2000

    def test_is_shuffled_queried_and_resumed(self, folder, make):
        query = "SELECT image, label FROM dataframe WHERE label % 2 = 1"
        options = {"sql_query": query, "shuffle_seed": 3}
        with make(folder / "*.parquet", **options) as ds:
            seen = [(s["label"], s["image"]) for s in ds]
            assert sorted(seen) == [(i, content(i)) for i in range(1, 40, 2)] and seen != sorted(seen)

        def loader(topology, world):
            return sds.StreamingDataLoader(
                make(folder / "*.parquet", **options), topology.batch_size, world=world, collate_fn=collate
            )

        assert check_resume(loader, [Topology(1, 4), Topology(2, 3)]) > 10

    def test_a_query_may_rename_the_column(self, folder, make):
        query = "SELECT image AS picture FROM dataframe"
        with make(folder / "*.parquet", sql_query=query, columns_to_download=["picture"]) as ds:
            assert ds[7]["picture"] == content(7)

    def test_metadata_only(self, folder, make):
        with make(folder / "*.parquet", columns_to_download=[]) as ds:
            assert {name for name in ds[0] if not name.startswith("__")} == {"label"}

    def test_travels_into_a_copy(self, folder, make):
        assert pickle.loads(pickle.dumps(make(folder / "*.parquet")))[30]["image"] == content(30)

    def test_that_changes_under_a_dataset_is_an_error(self, folder, make):
        with make(folder / "*.parquet") as ds:
            os.utime(folder / "train-00000-of-00002.parquet", ns=(1, 1))
            with pytest.raises(SourceError, match="changed since it was indexed"):
                ds[0]
            assert ds[30]["image"] == content(30)


def collate(samples):
    return {"__sample_key__": [sample["__sample_key__"] for sample in samples]}


class TestPathsInStructs:
    def table(self, tmp_path, path):
        rows = [{"bytes": content(0), "path": "gone.jpg"}, {"bytes": None, "path": path}, {"bytes": None, "path": None}]
        pq.write_table(pa.table({"image": pa.array([*rows, None], FILES), "n": range(4)}), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    def test_are_fetched_where_there_are_no_bytes(self, tmp_path, make):
        (tmp_path / "pictures").mkdir()
        (tmp_path / "pictures" / "b.jpg").write_bytes(b"from a file")
        with make(self.table(tmp_path, "pictures/b.jpg")) as ds:
            assert len(ds) == 2 and "left out: 2 rows" in ds.explain()
            assert ds[0]["image"] == content(0)
            assert Path(ds[1]["image"]).read_bytes() == b"from a file"
        with make(self.table(tmp_path, "pictures/b.jpg"), allow_missing_columns=True) as ds:
            assert [s["image"] is None for s in ds] == [False, False, True, True]

    def test_of_other_files_than_parquet_may_not_be_local(self, tmp_path, make):
        (tmp_path / "a.jpg").write_bytes(b"x")
        rows = pa.table({"image": pa.array([{"bytes": None, "path": str(tmp_path / "a.jpg")}], FILES)})
        with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        with make(tmp_path / "t.arrow") as ds, pytest.raises(SchemaError, match="local path and no bytes"):
            ds[0]

    def test_of_a_web_server_may_not_be_local(self, tmp_path):
        part = IndexFile("http://host/t.parquet", Format("parquet"), "v")
        values = pa.array([{"bytes": None, "path": "/etc/hostname"}], FILES)
        with pytest.raises(SchemaError, match="names a local file"):
            _fallbacks(values, part, "image")


class TestBinaryColumns:
    def test_of_some_size_stay_where_they_lie(self, tmp_path, make):
        rows = {"id": [f"{i:02}" for i in range(30)], "a": [content(i) for i in range(30)], "b": [b"x" * 1500] * 30}
        pq.write_table(pa.table(rows), tmp_path / "t.parquet", row_group_size=7)
        with make(tmp_path / "t.parquet", columns_to_download=["a"], index_col_name="id", shuffle_seed=1) as ds:
            assert {s["__sample_key__"]: (s["a"], s["b"]) for s in ds} == {
                f"{i:02}": (content(i), b"x" * 1500) for i in range(30)
            }
        with make(tmp_path / "t.parquet", index_cols_to_keep=["b"], index_col_name="id") as ds:
            assert {name for name in ds[0] if not name.startswith("__")} == {"id", "b"}

    def test_of_small_values_are_metadata(self, tmp_path, make):
        pq.write_table(pa.table({"hash": [b"abc", None], "n": [1, 2]}), tmp_path / "t.parquet")
        with make(tmp_path / "t.parquet") as ds:
            assert [s["hash"] for s in ds] == [b"abc", None]
            assert "used where it lies" in ds.explain()
        with make(tmp_path / "t.parquet", columns_to_download=["hash"]) as ds:
            assert [s["hash"] for s in ds] == [b"abc"]

    def test_of_an_arrow_file_are_mapped(self, tmp_path, make):
        rows = hub(range(5))
        with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        with make(tmp_path / "t.arrow") as ds:
            assert [s["image"] for s in ds] == [content(i) for i in range(5)]
            assert "used where it lies" in ds.explain()

    def test_beside_columns_of_paths(self, tmp_path, make):
        (tmp_path / "mask.png").write_bytes(b"mask")
        pq.write_table(hub(range(3), mask=["mask.png"] * 3), tmp_path / "t.parquet")
        with make(tmp_path / "t.parquet", columns_to_download=["image", "mask"]) as ds:
            assert ds[2]["image"] == content(2)
            assert Path(ds[2]["mask"]).read_bytes() == b"mask"

    def test_with_weights_and_missing_files(self, tmp_path, make):
        pq.write_table(hub(range(6), w=[0.0, 1.0, 2.0, 0.0, 0.0, 1.0]), tmp_path / "t.parquet")
        with make(tmp_path / "t.parquet", weight_col_name="w") as ds:
            assert sorted(s["label"] for s in ds) == [1, 2, 2, 5]
        with pytest.raises(SchemaError, match="'png'"):
            make(tmp_path / "t.parquet", columns_to_download=["png"])

    def test_different_columns_in_two_files(self, tmp_path, make):
        pq.write_table(hub([0]), tmp_path / "a.parquet")
        pq.write_table(pa.table({"label": [1]}), tmp_path / "b.parquet")
        with make(tmp_path / "*.parquet", allow_missing_columns=True) as ds:
            assert [s["image"] for s in ds] == [content(0), None]


def test_a_damaged_row_group_is_an_error(tmp_path, make):
    path = tmp_path / "t.parquet"
    pq.write_table(hub(range(20)), path, compression="none", use_dictionary=False)
    with make(path) as ds:
        raw, stat = bytearray(path.read_bytes()), path.stat()
        raw[10:2000] = os.urandom(1990)
        with path.open("r+b") as file:
            file.write(raw)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        with pytest.raises(SourceError, match="cannot be read"):
            ds[3]


def test_a_hubs_own_addresses_are_refused(make):
    with pytest.raises(OptionError, match="hf://") as caught:
        make("hf://datasets/some/thing")
    assert "https://" in caught.value.hint


def test_keys_are_row_numbers(folder, make):
    assert texts.keys(make(folder / "*.parquet"))[:3] == ["0", "1", "2"]


class TestAColumnThatIsNotOurs:
    @pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"deep": [{"er": x}]}])
    def test_is_never_taken_for_a_place(self, wrap, tmp_path, make):
        place = {"sds_part": 0, "sds_column": 0, "sds_group": 0, "sds_row": 0, "sds_path": "/etc/hostname"}
        pq.write_table(hub([0], meta=pa.array([wrap(place)])), tmp_path / "t.parquet")
        with pytest.raises(SchemaError, match="'meta' has the form in which an index notes where content lies"):
            make(tmp_path / "t.parquet")
        with make(tmp_path / "t.parquet", index_cols_to_keep=["image"]) as ds:
            assert ds[0]["image"] == content(0)

    def test_may_hold_other_structs(self, tmp_path, make):
        meta = {"part": 1, "offset": 2, "size": 3}
        pq.write_table(hub([0], meta=pa.array([meta])), tmp_path / "t.parquet")
        assert make(tmp_path / "t.parquet")[0]["meta"] == meta

    def test_of_text_is_no_content(self, tmp_path, make):
        pq.write_table(pa.table({"b": [content(0)]}), tmp_path / "a.parquet")
        pq.write_table(pa.table({"b": ["/etc/hostname"]}), tmp_path / "b.parquet")
        with pytest.raises(SchemaError, match="'b' holds files in one table, and string in another"):
            make(tmp_path / "*.parquet")

    def test_of_nulls_is_missing(self, tmp_path, make):
        pq.write_table(pa.table({"b": [content(0)]}), tmp_path / "a.parquet")
        pq.write_table(pa.table({"b": pa.nulls(2)}), tmp_path / "b.parquet")
        with make(tmp_path / "*.parquet", allow_missing_columns=True) as ds:
            assert [s["b"] for s in ds] == [content(0), None, None]


class TestNames:
    def test_with_dots_are_columns_like_others(self, tmp_path, make):
        dotted = pa.table({"image.bytes": [content(7)], "image.path": ["x"], "image": hub([1])["image"]})
        pq.write_table(dotted, tmp_path / "t.parquet")
        with make(tmp_path / "t.parquet", columns_to_download=["image", "image.bytes"]) as ds:
            assert (ds[0]["image"], ds[0]["image.bytes"]) == (content(1), content(7))

    def test_of_one_column_in_two_forms(self, tmp_path, make):
        pq.write_table(hub([0]), tmp_path / "a.parquet")
        pq.write_table(pa.table({"image": [content(1)]}), tmp_path / "b.parquet")
        with make(tmp_path / "*.parquet") as ds:
            assert [s["image"] for s in ds] == [content(0), content(1)]


def test_every_column_has_its_leaves(tmp_path):
    rows = {
        "a.b": [1],
        "a": [{"b": 1, "c": {"d": [1], "e": "x"}}],
        "m": pa.array(
            [[("k", {"x": 1, "y": 2})]], pa.map_(pa.string(), pa.struct([("x", pa.int8()), ("y", pa.int8())]))
        ),
        "l": [[[{"p": 1, "q": 2}]]],
        "n": pa.nulls(1),
        "d": pa.array(["x"]).dictionary_encode(),
        "z": [0],
    }
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    facts = pq.read_metadata(tmp_path / "t.parquet")
    found = leaves_of(facts.schema.to_arrow_schema())
    paths = {name: [facts.schema.column(i).path for i in numbers] for name, numbers in found.items()}
    assert [len(each) for each in paths.values()] == [1, 3, 3, 2, 1, 1, 1]
    assert paths["a"] == ["a.b", "a.c.d.list.element", "a.c.e"] and paths["z"] == ["z"]
