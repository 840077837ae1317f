"""What commands write: never over their own source, never half, and JSON that is JSON; and what they need not read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import Sds
from sds.index import parquet
from sds.testing import S3Server

NUM = 100


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a table of a hundred rows, and a file that they name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDS_CACHE_DIR", str(tmp_path / "caches"))
    (tmp_path / "a.jpg").write_bytes(b"x")
    table = pa.table({"id": [f"{i:03}" for i in range(NUM)], "image": ["a.jpg"] * NUM})
    pq.write_table(table, tmp_path / "train.parquet")
    return tmp_path


@pytest.fixture
def sds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sds:
    return Sds(monkeypatch, capsys)


def split(sds: Sds, src: str, out: str, *more: str) -> tuple[int, str]:
    done = sds("index", "split", src, "-o", out, "--val-ratio", "0.1", "--id", "id", "--download", "image", *more)
    return done.code, done.err


def ids(path: str) -> list[str]:
    return [str(each) for each in pq.read_table(path)["id"].to_pylist()]


class TestSplit:
    def test_never_writes_over_its_source(self, home: Path, sds: Sds) -> None:
        before = (home / "train.parquet").read_bytes()
        os.symlink("train.parquet", "link.parquet")
        for src in ("train.parquet", "*.parquet", "link.parquet", f"file://{home}/train.parquet"):
            code, said = split(sds, src, ".", "--force")
            assert code == 2 and "error: the output is one of the source's own files: train.parquet" in said
        assert (home / "train.parquet").read_bytes() == before and not Path("val.parquet").exists()

    def test_writes_over_what_is_there_only_when_told_to(self, home: Path, sds: Sds) -> None:
        assert split(sds, "train.parquet", "out")[0] == 0
        before = [Path(f"out/{side}.parquet").read_bytes() for side in ("train", "val")]
        os.unlink("out/train.parquet")
        code, said = split(sds, "train.parquet", "out")
        assert code == 2 and "error: the output is there already: out/val.parquet\nhint: --force" in said
        assert not Path("out/train.parquet").exists()
        assert split(sds, "train.parquet", "out", "--force")[0] == 0
        assert [Path(f"out/{side}.parquet").read_bytes() for side in ("train", "val")] == before
        assert sorted([*ids("out/train.parquet"), *ids("out/val.parquet")]) == ids("train.parquet")

    def test_asks_a_bucket_too(
        self, home: Path, sds: Sds, s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in (("ENDPOINT_URL", s3.endpoint), ("REGION", s3.region)):
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
        s3.put(bucket, "x/val.parquet", b"precious")
        code, said = split(sds, "train.parquet", f"s3://{bucket}/x")
        assert code == 2 and "there already" in said
        s3.put(bucket, "x/val.parquet", (home / "train.parquet").read_bytes())
        code, said = split(sds, f"s3://{bucket}/x/val.parquet", f"s3a://{bucket}/x", "--force")
        assert code == 2 and "one of the source's own files" in said

    def test_that_is_interrupted_leaves_both_as_they_were(
        self, home: Path, sds: Sds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert split(sds, "train.parquet", "out")[0] == 0
        before = [Path(f"out/{side}.parquet").read_bytes() for side in ("train", "val")]
        pq.write_table(pa.table({"id": [f"{i}" for i in range(50)], "image": ["a.jpg"] * 50}), "other.parquet")
        copied: list[object] = []

        def stop(*paths: object) -> None:  # when the first of both is nearly there
            copied.append(paths)
            if len(copied) == 2:
                raise KeyboardInterrupt

        monkeypatch.setattr(parquet.shutil, "copyfile", stop)
        assert split(sds, "other.parquet", "out", "--force")[0] == 130
        assert [Path(f"out/{side}.parquet").read_bytes() for side in ("train", "val")] == before
        assert sorted(os.listdir("out")) == ["train.parquet", "val.parquet"]

    def test_says_what_may_not_be_meant(self, home: Path, sds: Sds) -> None:
        done = sds("index", "split", "train.parquet", "-o", "out", "--val-ratio", "0.1")
        assert done.code == 0 and "split by row number" in done.err
        assert "paths are made absolute in: image\n" in done.err
        assert pq.read_table("out/val.parquet")["image"].to_pylist() == [str(home / "a.jpg")] * 10
        assert split(sds, "train.parquet", "other") == (0, "")


def test_an_earlier_output_among_the_tables_is_none_of_them(home: Path, sds: Sds) -> None:
    os.mkdir("tabs")
    for i in range(2):
        pq.write_table(pa.table({"id": [f"{i}"]}), f"tabs/{i}.parquet")
    for _ in range(2):
        assert "tabs/all.parquet: 2 rows" in sds.well("index", "build", "tabs/*.parquet", "-o", "tabs/all.parquet")
    assert "all.parquet: 2 rows" in sds.well("index", "build", "tabs/all.parquet", "-o", "tabs/all.parquet")


def test_json_has_null_for_what_is_no_number(home: Path, sds: Sds) -> None:
    values = [{"x": float("nan"), "s": {"y": [1.5, float("-inf")]}}]
    pq.write_table(pa.Table.from_pylist(values), "nan.parquet")
    text = sds.well("peek", "nan.parquet", "--json")
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) == [{"x": None, "s": {"y": [1.5, None]}}]


def test_a_file_is_no_tensor_cache_and_a_tensor_cache_no_table(home: Path, sds: Sds) -> None:
    from sds.tensors import TensorCacheWriter

    done = sds("tensors", "info", "a.jpg")
    assert done.code == 1 and "error: no tensor cache: a.jpg\nhint: " in done.err
    with TensorCacheWriter(home / "t.tensors") as cache:
        cache.add("a", {"n": 1})
    for words in (["build", "t.tensors", "-o", "x.parquet"], ["split", "t.tensors", "-o", "x", "--val-ratio", "0.5"]):
        done = sds("index", *words)
        assert done.code == 1 and "error: source is a tensor cache: t.tensors\nhint: it is an index of" in done.err


def test_large_tables_are_looked_at_in_chunks(home: Path, sds: Sds, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["train.parquet", "--id", "id", "--download", "image", "--json"]
    queried = ["train.parquet", "--sql", "SELECT * FROM dataframe WHERE id >= '050'", "--json"]
    commands = [
        ("index", "info", *words),
        ("index", "info", *queried),
        ("peek", *words, "--at", "97"),
        ("peek", *queried),
    ]
    small = [json.loads(sds.well(*command)) for command in commands]
    monkeypatch.setattr("sds.cli.words._LARGE", 0)
    monkeypatch.setattr("sds.cli.words._CHUNK_ROWS", 16)
    monkeypatch.setattr("sds.index.open_index", lambda *_, **__: pytest.fail("it was read whole"))
    large = [json.loads(sds.well(*command)) for command in commands]
    for facts in (*small[:2], *large[:2]):
        assert facts.pop("read_in_chunks") == (facts in large)
        del facts["bytes"], facts["fingerprint"]
    assert large == small and small[0]["rows"] == NUM and len(small[3]) == 10
    done = sds("peek", "train.parquet", "--download", "imgae")
    assert done.code == 1 and "hint: did you mean 'image'?" in done.err
    monkeypatch.undo()
    monkeypatch.chdir(home)
    monkeypatch.setattr("sds.cli.words._LARGE", 0)
    ordered = sds.well("peek", "train.parquet", "--sql", "SELECT id FROM dataframe ORDER BY id DESC LIMIT 1", "--json")
    assert json.loads(ordered) == [{"id": "099"}]  # which needs all rows
