"""A tensor cache as a source: rows, columns, queries, samples; like any other index."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import sds
from remembering import sample_of
from sds.errors import OptionError, SchemaError, SourceError, TensorCacheError
from sds.tensors import TensorCacheWriter
from sds.tensors.source_table import make_table
from sds.testing.resume import check_resume

Build = Callable[..., Path]


def open_cache(path: Path, dst: Path, **keywords: Any) -> sds.StreamingDataset:
    return sds.StreamingDataset(str(path), dst, **keywords)


def test_samples_come_in_the_order_of_the_cache_with_real_tensors(build: Build, tmp_path: Path) -> None:
    dataset = open_cache(build(10), tmp_path / "dst")
    samples = list(dataset)
    assert [sample["__sample_key__"] for sample in samples] == [f"key {number}" for number in range(10)]
    for number, sample in enumerate(samples):
        wanted = sample_of(number, 4 + 2 * (number % 2))
        assert type(sample["latent"]["samples"]) is torch.Tensor
        assert torch.equal(sample["latent"]["samples"], wanted["latent"]["samples"])
        assert torch.equal(sample["conditioning"][0][1]["pooled_output"], wanted["conditioning"][0][1]["pooled_output"])
        assert sample["caption"] == wanted["caption"] and sample["index"] == f"key {number}"
        assert not [name for name in sample if name.endswith(".shape") or name == "__position__"]


def test_a_query_sees_metadata_and_shapes(build: Build, tmp_path: Path) -> None:
    where = """"latent.samples.shape"[3] = 6 AND caption != 'image 3'"""
    query = f"SELECT *, length(caption) AS num FROM dataframe WHERE {where}"
    dataset = open_cache(build(10), tmp_path / "dst", sql_query=query, max_size=3)
    assert [(s["caption"], s["num"], s["latent"]["samples"].shape[2]) for s in dataset] == [
        ("image 1", 7, 6),
        ("image 5", 7, 6),
        ("image 7", 7, 6),
    ]
    assert dataset.schema.field("latent.samples.shape").type.value_type == pa.int64()
    assert "10 at the source" in dataset.explain() and "tensors" in dataset.explain()


def test_a_query_may_drop_all_columns_but_the_id(build: Build, tmp_path: Path) -> None:
    query = "SELECT index FROM dataframe ORDER BY caption DESC"
    dataset = open_cache(build(10), tmp_path / "dst", sql_query=query)
    assert [float(s["latent"]["samples"].mean()) for s in dataset] == [float(number) for number in range(9, -1, -1)]
    broken = open_cache(build(10), tmp_path / "dst", sql_query="SELECT 'x' || index AS index FROM dataframe")
    with pytest.raises(SchemaError, match="no sample of the cache"):
        broken[0]


def test_a_cache_is_shuffled_mixed_and_gone_on_with(build: Build, tmp_path: Path) -> None:
    path = build(24)
    query = 'SELECT * FROM dataframe WHERE "latent.samples.shape"[3] = 4'

    def make() -> sds.StreamingDataLoader:
        dataset = open_cache(path, tmp_path / "dst", shuffle_seed=3, sql_query=query)
        return sds.StreamingDataLoader(dataset, 4)

    batch = next(iter(make()))
    assert batch["latent"]["samples"].shape == (4, 1, 4, 4, 4)
    assert batch["latent"]["samples"][:, 0, 0, 0, 0].tolist() == [float(text.split()[1]) for text in batch["caption"]]
    check_resume(make)
    other = open_cache(build(6, "other", fingerprint="x"), tmp_path / "dst2")
    mixed = sds.concatenate([open_cache(path, tmp_path / "dst"), other])
    assert len(list(mixed)) == 30


def test_the_fingerprint_is_of_rows_and_of_what_made_them(build: Build, tmp_path: Path) -> None:
    paths = [build(6, "a"), build(6, "b"), build(7, "c"), build(6, "d", fingerprint="vae 2")]
    a, b, c, d = (open_cache(path, tmp_path / "dst").fingerprint for path in paths)
    assert a == b and len({a, c, d}) == 3


def test_the_table_is_made_once_and_noticed_when_the_cache_grows(build: Build, tmp_path: Path) -> None:
    path = build(6)
    open_cache(path, tmp_path / "dst")
    tables = {each: each.stat().st_mtime_ns for each in (tmp_path / "dst" / "index").glob("tensors-*.arrow")}
    assert len(tables) == 1
    again = open_cache(path, tmp_path / "dst")
    assert {each: each.stat().st_mtime_ns for each in tables} == tables and len(again) == 6
    assert len(open_cache(build(9), tmp_path / "dst")) == 9


def test_random_access_pickling_and_a_worker(build: Build, tmp_path: Path) -> None:
    dataset = pickle.loads(pickle.dumps(open_cache(build(10), tmp_path / "dst")))
    assert [s["caption"] for s in dataset[3:6]] == ["image 3", "image 4", "image 5"]
    assert dataset[-1]["caption"] == "image 9"


def test_columns_are_plain_values_of_one_type(tmp_path: Path) -> None:
    with TensorCacheWriter(tmp_path / "c", 1) as writer:  # a shard for each sample
        writer.add("a", {"n": 1, "x": 1, "mixed": 1, "yes": True, "$odd": "o", "big": 2**80, "nested": {"n": 1}})
        writer.add("b", {"n": 2, "x": 0.5, "mixed": "one", "none": None, "bytes": b"", "late": 7, "index": 5})
        writer.add("c", {"x": 3, "t": torch.zeros(2, 3), "__epoch__": 4})
        writer.add("d", [torch.zeros(1)])
    with sds.tensors.TensorCache(tmp_path / "c") as cache:
        table = make_table(cache, "index").to_pydict()
    assert table == {
        "index": ["a", "b", "c", "d"],
        "n": [1, 2, None, None],
        "x": [1.0, 0.5, 3.0, None],
        "yes": [True, None, None, None],
        "$odd": ["o", None, None, None],
        "late": [None, 7, None, None],
        "t.shape": [None, None, [2, 3], None],
        "0.shape": [None, None, None, [1]],
        "__position__": [0, 1, 2, 3],
    }
    samples = list(open_cache(tmp_path / "c", tmp_path / "dst"))
    assert samples[0]["big"] == 2**80 and samples[0]["nested"] == {"n": 1}
    assert samples[1]["index"] == 5 and samples[1]["__sample_key__"] == "b"  # what a sample has is its own
    assert samples[2]["__epoch__"] == 0
    assert samples[3]["sample"][0].shape == (1,)


def test_transforms_before_and_after(build: Build, tmp_path: Path) -> None:
    def rename(sample: dict[str, Any]) -> dict[str, Any]:
        assert "latent" not in sample and sample["latent.samples.shape"][:2] == [1, 4]
        return {**sample, "caption": sample["caption"].upper()}

    def halve(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "half": sample["latent"]["samples"] / 2}

    dataset = open_cache(build(4), tmp_path / "dst", pre_download_transforms=[rename], transforms=[halve])
    assert [(s["caption"], float(s["half"].mean())) for s in dataset][3] == ("IMAGE 3", 1.5)


def test_what_is_refused(build: Build, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no columns to download"):
        open_cache(build(2), tmp_path / "dst", columns_to_download=["caption"])
    with pytest.raises(SourceError, match="query leaves none"):
        open_cache(build(2), tmp_path / "dst", sql_query="SELECT * FROM dataframe WHERE caption = ''")
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "index.json").write_text(json.dumps({"format": "sds.tensors", "version": 99}))
    with pytest.raises(TensorCacheError, match="no known version"):
        open_cache(newer, tmp_path / "dst")


def test_a_folder_with_another_index_json_is_no_cache(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "index.json").write_text(json.dumps([{"id": "a", "n": 1}]))
    (folder / "a.txt").write_text("x")
    assert "tensors" not in open_cache(folder, tmp_path / "dst", columns_to_download=["txt"]).explain()


def test_a_cache_that_was_never_closed_is_one(tmp_path: Path) -> None:
    writer = TensorCacheWriter(tmp_path / "c")
    writer.add("a", sample_of(1))
    writer.commit()
    writer.add("b", sample_of(2))
    writer.abandon()
    assert not os.path.exists(tmp_path / "c" / "index.json")
    assert [s["caption"] for s in open_cache(tmp_path / "c", tmp_path / "dst")] == ["image 1"]
