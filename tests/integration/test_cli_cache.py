"""Transcripts of `sds cache`: what is in a folder, is it whole, fill it, empty it, and never under somebody's feet."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fetching
import sds as sds_package
from commands import Sds
from sds.testing import S3Server

NUM = 20


@pytest.fixture(scope="module")
def bucket(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twenty objects of a kilobyte, and an index that names one more."""
    name = f"cli-cache-{os.getpid()}"
    folder = tmp_path_factory.mktemp("objects")
    for number in range(NUM):
        (folder / f"{number:02d}.bin").write_bytes(fetching.content(f"{number:02d}", 1000))
    urls = [f"{number:02d}.bin" for number in range(NUM)]
    pq.write_table(pa.table({"id": urls, "file": urls}), folder / "index.parquet")
    pq.write_table(pa.table({"id": [*urls, "gone"], "file": [*urls, "gone.bin"]}), folder / "gone.parquet")
    s3.upload_folder(folder, name)
    return name


@pytest.fixture
def sds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], s3: S3Server, tmp_path: Path
) -> Iterator[Sds]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    monkeypatch.setenv("AWS_REGION", s3.region)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    return Sds(monkeypatch, capsys)


def warm(sds: Sds, dst: Path, bucket: str, *words: str) -> str:
    return sds.well("cache", "warm", dst, f"s3://{bucket}/index.parquet", "--download", "file", "--id", "id", *words)


def test_a_life_of_a_cache(sds: Sds, dst: Path, bucket: str) -> None:
    assert warm(sds, dst, bucket) == f"{dst}: 20 rows: 20 files fetched (20 KB), 0 there already, 0 failures\n"
    assert warm(sds, dst, bucket) == f"{dst}: 20 rows: 0 files fetched (0 B), 20 there already, 0 failures\n"
    facts = json.loads(sds.well("cache", "info", dst, "--json"))
    assert (facts["files"], facts["bytes"], facts["unfinished"], facts["index_tables"]) == (20, 20_000, 0, 1)
    text = sds.well("cache", "info", dst)
    assert text.startswith(f"{dst}: 20 files, 20 KB\nindex tables: 1, ") and "made: 20" in text
    assert sds.well("cache", "verify", dst, "--read") == f"{dst}: 20 files, 20 KB: 0 damaged\n"

    # a file of the user's in there, one that was cut short, and one that was never finished
    mine = dst / "objects" / "mine.txt"
    mine.write_text("mine")
    cut = next(path for path in (dst / "objects").rglob("*-1000.bin"))
    os.truncate(cut, 10)
    (cut.parent / f"part-1-{cut.name[:32]}").write_bytes(b"half")
    for pid in fetching.server_pids(dst):
        fetching.kill(pid)
    done = sds("cache", "verify", dst)
    assert done.code == 1 and done.out == f"{dst}: 19 files, 19 KB: 2 damaged\n" and f"damaged: {cut}" in done.err
    assert sds.well("cache", "verify", dst, "--repair") == f"{dst}: 19 files, 19 KB: 2 damaged, 2 of them removed\n"
    assert sds.well("cache", "verify", dst) == f"{dst}: 19 files, 19 KB: 0 damaged\n"

    assert sds.well("cache", "clear", dst) == f"{dst}: 19 files deleted, 19 KB\n"
    assert [path.name for path in (dst / "objects").rglob("*")] == ["mine.txt"]
    assert json.loads(sds.well("cache", "info", dst, "--json"))["index_tables"] == 1
    assert re.match(r".*: 1 file deleted, ", sds.well("cache", "clear", dst, "--index"))
    assert list((dst / "index").iterdir()) == []
    assert sds.well("cache", "info", dst) == f"{dst}: 0 files, 0 B\nindex tables: 0, 0 B\nin use by: nobody\n"


def test_nothing_is_cleared_under_somebodys_feet(sds: Sds, dst: Path, bucket: str, monkeypatch) -> None:
    monkeypatch.setattr("sds.cli.cache_folder._PATIENCE_S", 0.2)
    with sds_package.StreamingDataset(
        f"s3://{bucket}/index.parquet", dst, columns_to_download=["file"], index_col_name="id"
    ) as dataset:
        path = dataset[3]["file"]
        done = sds("cache", "clear", dst)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith(f"error: cache folder is in use: {dst}: pid ")
        assert "hint: end the programs" in done.err
        assert Path(path).read_bytes() == fetching.content("03", 1000)
        assert "in use by: pid " in sds.well("cache", "info", dst)
    monkeypatch.setattr("sds.cli.cache_folder._PATIENCE_S", 20.0)  # its server ends by itself
    assert sds.well("cache", "clear", dst) == f"{dst}: 1 file deleted, 1 KB\n"


def test_a_folder_of_another_host_is_let_alone(sds: Sds, tmp_path: Path) -> None:
    (tmp_path / "c" / "objects").mkdir(parents=True)
    (tmp_path / "c" / ".owner").write_text("host 0123456789ab\nname elsewhere\nboot x\ntoken y\n")
    done = sds("cache", "clear", tmp_path / "c")
    assert done.code == 1 and "in use: " in done.err and "host elsewhere" in done.err


def test_what_could_not_be_fetched_is_named(sds: Sds, dst: Path, bucket: str) -> None:
    done = sds("cache", "warm", dst, f"s3://{bucket}/gone.parquet", "--download", "file", "--id", "id", "--json")
    facts = json.loads(done.out)
    assert done.code == 1 and (facts["rows"], facts["fetched"], facts["failures"]) == (21, 20, 1)
    assert "failed: gone at stage fetch" in done.err


def test_a_forgotten_column_of_files_is_named(sds: Sds, dst: Path, tmp_path: Path) -> None:
    urls = tmp_path / "urls.csv"
    urls.write_text("index,image,n\n" + "".join(f"{i},http://127.0.0.1:1/{i}.jpg,{i}\n" for i in range(3)))
    done = sds("cache", "warm", dst, urls)
    assert done.code == 2
    assert "nothing to fetch\nhint: column 'image' holds files: --download image\n" in done.err
    done = sds("cost", urls)
    assert done.code == 0 and "only metadata is read, no files: column 'image' holds files" in done.err
    done = sds("bench", urls, "--batches", 1, "--batch-size", 2)
    assert done.code == 0 and "--download image" in done.err


def test_local_files_are_not_cached(sds: Sds, dst: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"x")
    done = sds("cache", "warm", dst, tmp_path / "photos")
    assert done.code == 0 and done.out == f"{dst}: 1 row: 0 files fetched (0 B), 0 there already, 0 failures\n"
    assert "nothing to cache: local files, and bytes in local tables, are used where they lie" in done.err
    assert "samples/s" not in done.err  # the rate stands there once


def test_a_limit_that_is_too_small_is_told(sds: Sds, dst: Path, bucket: str) -> None:
    words = ["cache", "warm", dst, f"s3://{bucket}/index.parquet", "--download", "file", "--limit", "10kb", "--json"]
    done = sds(*words)
    assert done.code == 0 and json.loads(done.out)["evicted"] >= 10
    assert "the limit of 10kb is less than the files take" in done.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("info", 2, "Missing argument 'DST'"),
        ("info {tmp}/nothing", 1, "error: no cache folder is there: {tmp}/nothing\nhint: "),
        ("clear {tmp}", 1, "error: the folder is no cache: {tmp}\nhint: "),
        ("verify {tmp}", 1, "error: the folder is no cache: {tmp}\nhint: "),
        ("warm {tmp}/c", 2, "Missing argument 'SRC'"),
        ("warm {tmp}/c x.csv --limit much", 2, "error: --limit is not a byte size: 'much'"),
        ("empty", 2, "No such command 'empty'"),
    ],
)
def test_what_is_wrong_is_told(words: str, code: int, message: str, sds: Sds, tmp_path: Path) -> None:
    done = sds("cache", *words.format(tmp=tmp_path).split())
    assert done.code == code, done
    assert message.format(tmp=tmp_path) in done.err and "Traceback" not in done.err
