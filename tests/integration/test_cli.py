"""Transcripts of `sds index`, `sds peek` and `sds bench`: what is typed, what is printed, how it ends."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import torch

import fetching
import sds as sds_package
from commands import Sds
from sds.fetch import FetchClient, FetchOptions
from sds.tensors import TensorCacheWriter
from sds.testing import HTTPServer, S3Server
from sds.testing.media import make_images
from sds.testing.videos import make_videos

NUM = 12


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos with captions; the same rows in every format that an index may have."""
    folder = tmp_path_factory.mktemp("home")
    rows = []
    for number, record in enumerate(make_images(folder / "photos", NUM, size=(48, 64))):
        (folder / "photos" / f"{record['id']}.txt").write_text(record["caption"])
        rows.append({"id": record["id"], "image": f"photos/{record['id']}.jpg", "n": number})
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, folder / "t.parquet")
    with pa.OSFile(str(folder / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    for name, comma in (("t.csv", ","), ("t.tsv", "\t")):
        with open(folder / name, "w", newline="") as file:
            lines = csv.DictWriter(file, list(rows[0]), delimiter=comma)
            lines.writeheader()
            lines.writerows(rows)
    (folder / "t.csv.gz").write_bytes(gzip.compress((folder / "t.csv").read_bytes()))
    (folder / "t.json").write_text(json.dumps(rows))
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for part in range(3):
        pq.write_table(table.slice(4 * part, 4), folder / f"part-{part}.parquet")
    (folder / "tables.txt").write_text("part-0.parquet\npart-1.parquet\npart-2.parquet\n")
    (folder / "files.txt").write_text("\n".join(f"photos/{i:06d}.jpg" for i in range(NUM)))
    with tarfile.open(folder / "t.tar", "w") as tar:
        for row in rows:
            for ending in ("jpg", "txt"):
                tar.add(folder / "photos" / f"{row['id']}.{ending}", f"{row['id']}.{ending}")
    with TensorCacheWriter(folder / "t.tensors") as cache:
        for row in rows:
            cache.add(row["id"], {"latent": torch.zeros(2, 3), "n": row["n"]})
    return folder


@pytest.fixture(scope="module")
def stored(furnished: Path, s3: S3Server, http_server: HTTPServer) -> str:
    """The same in a bucket, and the table behind http."""
    bucket = f"cli-{os.getpid()}"
    s3.upload_folder(furnished, bucket)
    http_server.put("cli/t.csv", (furnished / "t.csv").read_bytes())
    return bucket


@pytest.fixture
def home(furnished: Path, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it as the working folder, and the environment of a user of S3."""
    folder = tmp_path / "home"
    shutil.copytree(furnished, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SDS_CACHE_DIR", str(tmp_path / "caches"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    monkeypatch.setenv("AWS_REGION", s3.region)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    yield folder
    for place in (tmp_path / "caches").glob("*"):
        for pid in fetching.server_pids(place):
            fetching.kill(pid)


@pytest.fixture
def sds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sds:
    return Sds(monkeypatch, capsys)


KINDS = {
    "t.parquet": "file",
    "t.arrow": "file",
    "t.csv": "file",
    "t.tsv": "file",
    "t.csv.gz": "file",
    "t.json": "file",
    "t.jsonl": "file",
    "part-*.parquet": "wildcard",
    "tables.txt": "list",
    "files.txt": "list",
    "photos": "directory",
    "photos/*.jpg": "wildcard",
    "t.tar": "file",
    "t.tensors": "tensors",
    "s3://{bucket}/photos": "directory",
    "s3://{bucket}/t.parquet": "file",
    "s3://{bucket}/part-*.parquet": "wildcard",
    "s3://{bucket}/t.tar": "file",
    "s3://{bucket}/t.tensors": "tensors",
    "{http}": "file",
}


@pytest.mark.parametrize("src", KINDS)
def test_info_and_peek_know_each_kind_of_source(
    src: str, home: Path, sds: Sds, stored: str, http_server: HTTPServer
) -> None:
    kind = KINDS[src]
    src = src.format(bucket=stored, http=http_server.url("cli/t.csv"))
    is_table = kind not in ("directory", "tensors") and not src.endswith((".jpg", ".tar", "files.txt"))
    words = [src, "--id", "id"] if is_table else [src]
    facts = json.loads(sds.well("index", "info", *words, "--json"))
    assert (facts["kind"], facts["rows"], facts["duplicate_ids"]) == (kind, NUM, 0)
    assert len(facts["fingerprint"]) == 32 and facts["bytes"] > 0
    assert all(column["nulls"] == 0 for column in facts["columns"].values())
    shown = sds.well("peek", *words, "-n", "2", "--at", "3")
    assert "000003" in shown and "000004" in shown and "000005" not in shown
    assert shown.endswith(f"3 to 4 of {NUM} rows\n")


def test_info_in_full(home: Path, sds: Sds) -> None:
    assert "rows: 12, " in sds.well("index", "info", "photos")
    assert "  jpg    bytes  (files)" in sds.well("index", "info", "t.tar")
    assert "source: t.tensors (tensors: 1 index file)" in sds.well("index", "info", "t.tensors")
    rows = [{"id": "a", "url": "x.jpg"}, {"id": "a", "url": None}, {"id": "b", "url": "y.jpg"}]
    pq.write_table(pa.Table.from_pylist(rows), "twice.parquet")
    lines = sds.well("index", "info", "twice.parquet", "--id", "id", "--download", "url").splitlines()
    fingerprint = lines.pop()
    assert lines == [
        "source: twice.parquet (file: 1 index file)",
        f"rows: 3, {lines[1].split(', ')[1]}",
        "columns:",
        "  id   string",
        "  url  string  (1 null, files)",
        "duplicate ids: 1 ids of 2 rows, such as a",
    ]
    assert fingerprint.startswith("fingerprint: ")
    queried = sds.well("index", "info", "t.csv", "--sql", "SELECT * FROM dataframe WHERE n < 5")
    assert "rows: 5 of 12 at the source" in queried


def test_peek_in_full(home: Path, sds: Sds) -> None:
    assert sds.well("peek", "t.csv", "--id", "id", "-n", "2") == (
        "row  id      image              n\n"
        "---  ------  -----------------  -\n"
        "0    000000  photos/000000.jpg  0\n"
        "1    000001  photos/000001.jpg  1\n"
        "0 to 1 of 12 rows\n"
    )
    records = json.loads(sds.well("peek", "t.csv", "--sql", "SELECT n FROM dataframe WHERE n > 9", "--json"))
    assert records == [{"n": 10}, {"n": 11}]
    shuffled = json.loads(sds.well("peek", "t.parquet", "--shuffle", "7", "-n", "12", "--column", "n", "--json"))
    with sds_package.StreamingDataset("t.parquet", shuffle_seed=7) as dataset:
        assert [record["n"] for record in shuffled] == [sample["n"] for sample in dataset]
    assert "photos/00…" in sds.well("peek", "t.csv", "--width", "10")


def test_peek_in_the_order_of_a_lazy_index(home: Path, sds: Sds) -> None:
    words = ("peek", "t.parquet", "--lazy", "3", "--reach", "2", "--shuffle", "7", "-n", "12", "--column", "n")
    with sds_package.StreamingDataset(
        "t.parquet", shuffle_seed=7, lazy_index_chunk_size=3, lazy_index_reach=2
    ) as dataset:
        order = [sample["n"] for sample in dataset]
    assert [record["n"] for record in json.loads(sds.well(*words, "--json"))] == order != sorted(order)
    assert sds.well(*words, "--sql", "SELECT n FROM dataframe WHERE n > 9").splitlines()[-1] == (
        "0 to 1 of 2 rows of an epoch with seed 7"
    )


def test_peek_shows_pictures_and_no_commands_of_an_index(home: Path, sds: Sds, stored: str) -> None:
    out = sds.well("peek", "photos", "-n", "2", "--images", "blocks", "--column", "index")
    assert out.count("▀") == 2 * 32 * 12 and "000001\n\x1b[38;2;" in out
    assert sds.well("peek", f"s3://{stored}/t.tar", "-n", "1", "--images", "blocks").count("▀") == 32 * 12
    data = (home / "photos" / "000003.jpg").read_bytes()
    pq.write_table(pa.table({"id": ["a\x1b[2J\n", "b"], "picture": [data, b"no picture"]}), "bytes.parquet")
    done = sds("peek", "bytes.parquet", "--id", "id", "--images", "kitty")
    assert done.code == 0 and "\x1b_Ga=T" in done.out and "b: ValueError" in done.err
    assert "a\\x1b[2J\\n" in done.out and "\x1b[2J" not in done.out and re.search(r"<(\d+ )?bytes>", done.out)


def test_build_beside_the_data(home: Path, sds: Sds, stored: str) -> None:
    out = sds.well("index", "build", "photos", "-o", "photos.parquet", "--probe")
    size = (home / "photos.parquet").stat().st_size
    assert out == f"photos.parquet: 12 rows, {size / 1000:.3g} KB: index, jpg, txt, width, height\n"
    table = pq.read_table("photos.parquet")
    assert table.to_pylist()[3] == {
        "index": "000003",
        "jpg": "photos/000003.jpg",
        "txt": "photos/000003.txt",
        "width": 64,
        "height": 48,
    }
    # the same source, the same bytes; and the same rows as the store has, whose index lies beside them
    first = (home / "photos.parquet").read_bytes()
    sds.well("index", "build", "photos", "-o", "photos.parquet", "--probe")
    assert (home / "photos.parquet").read_bytes() == first
    facts = json.loads(
        sds.well("index", "build", f"s3://{stored}/photos", "-o", f"s3://{stored}/made.parquet", "--probe", "--json")
    )
    assert (facts["rows"], facts["files"], facts["probe_failures"]) == (NUM, ["jpg", "txt"], 0)
    with sds_package.StreamingDataset(f"s3://{stored}/made.parquet", columns_to_download=["txt", "jpg"]) as dataset:
        assert Path(dataset[5]["txt"]).read_text() == (home / "photos" / "000005.txt").read_text()
        assert dataset[5]["width"] == 64
    sds.well("index", "build", f"s3://{stored}/photos/*.jpg", "-o", "local.parquet")
    assert pq.read_table("local.parquet")["jpg"][0].as_py() == f"s3://{stored}/photos/000000.jpg"
    sds.well("index", "build", "photos", "-o", "photos/index.parquet", "--paths", "absolute")
    sds.well("index", "build", "photos", "-o", "photos/index.parquet", "--paths", "absolute")  # itself is no sample
    again = pq.read_table("photos/index.parquet")
    assert again.column_names == ["index", "jpg", "txt"] and again["jpg"][0].as_py() == str(home / "photos/000000.jpg")


def test_build_of_tables_checks_files(home: Path, sds: Sds) -> None:
    words = ["index", "build", "part-*.parquet", "-o", "all.parquet", "--download", "image", "--id", "id", "--check"]
    assert sds.well(*words, "--sql", "SELECT * FROM dataframe WHERE n >= 2").startswith("all.parquet: 10 rows")
    os.unlink("all.parquet")
    os.unlink("photos/000007.jpg")
    done = sds(*words)
    assert (done.code, done.out) == (1, "")
    assert f"error: 1 of 12 files are not there: {home}/photos/000007.jpg\nhint: nothing was written" in done.err
    assert not Path("all.parquet").exists()


def test_probe_measures_media_by_ranges(home: Path, sds: Sds, s3: S3Server, stored: str, tmp_path: Path) -> None:
    folder = tmp_path / "media"
    make_videos(folder, 2, size=(48, 64), duration=1.0)
    for path in folder.glob("*.wav"):
        path.unlink()
    (folder / "broken.mp4").write_bytes(b"no video")
    done = sds("index", "build", folder, "-o", tmp_path / "clips.parquet", "--probe")
    assert done.code == 0 and f"not to be probed: {folder}/broken.mp4" in done.err
    rows = {row["index"]: row for row in pq.read_table(tmp_path / "clips.parquet").to_pylist()}
    assert (rows["000000"]["width"], rows["000000"]["height"]) == (64, 48)
    assert rows["000000"]["duration"] == pytest.approx(1.0, abs=0.1)
    assert rows["broken"]["width"] is None
    from sds.cli.probe import probe_file

    soundfile.write(folder / "long.wav", np.zeros(44100 * 60, np.float32), 44100)
    size = (folder / "long.wav").stat().st_size
    s3.put(stored, "sound/long.wav", (folder / "long.wav").read_bytes())
    client = FetchClient(FetchOptions(dst=str(tmp_path / "caches" / "probe"), settings=s3.storage_options))
    try:
        assert probe_file(f"s3://{stored}/sound/long.wav", client) == {"duration": pytest.approx(60.0)}
        assert client.tally.stats().bytes_downloaded < size / 2
    finally:
        client.close()


@pytest.mark.parametrize("src", ["t.parquet", "t.csv", "part-*.parquet", "s3://{bucket}/part-*.parquet", "photos"])
def test_split_is_exact_disjoint_and_the_same_everywhere(src: str, home: Path, sds: Sds, stored: str) -> None:
    words = [] if src == "photos" else ["--id", "id", "--download", "image"]
    out = sds.well("index", "split", src.format(bucket=stored), "-o", "out", "--val-ratio", "0.25", *words)
    assert out == "out/train.parquet: 9 rows\nout/val.parquet: 3 rows\n"
    train, val = (pq.read_table(f"out/{name}.parquet") for name in ("train", "val"))
    key = "index" if src == "photos" else "id"
    assert val[key].to_pylist() == ["000000", "000004", "000008"]  # by a hash of the id, whatever the source
    assert sorted([*train[key].to_pylist(), *val[key].to_pylist()]) == [f"{i:06d}" for i in range(NUM)]
    paths = train["jpg" if src == "photos" else "image"].to_pylist()
    assert all(path.startswith("s3://") or (os.path.exists(path) and os.path.isabs(path)) for path in paths)


def test_split_to_a_bucket_with_a_limit_of_rows(home: Path, sds: Sds, stored: str) -> None:
    words = ["index", "split", "t.parquet", "-o", f"s3://{stored}/split", "--id", "id", "--val-ratio", "0.5"]
    facts = json.loads(sds.well(*words, "--max-val-rows", "2", "--json"))
    assert (facts["rows"], facts["train"]["rows"], facts["val"]["rows"], facts["by"]) == (12, 10, 2, "id")
    assert json.loads(sds.well("index", "info", f"s3://{stored}/split/val.parquet", "--json"))["rows"] == 2


def test_bench_names_a_bottleneck(home: Path, sds: Sds, stored: str) -> None:
    words = ["bench", f"s3://{stored}/photos", "--image", "jpg", "--resolution", "32", "--batches", "5"]
    out = sds.well(*words, "--batch-size", "4")
    assert out.startswith("5 batches of 4 in ") and "bottleneck: " in out
    facts = json.loads(sds.well(*words, "--batch-size", "4", "--shuffle", "1", "--json"))
    assert facts["samples"] == 20 and facts["failures"] == 0 and facts["bottleneck"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("index", 2, ""),
        ("index build photos", 2, "Missing option '--output'"),
        ("index build photos -o x.csv", 2, "error: the output is no Parquet file: x.csv\nhint: "),
        ("index build nowhere -o x.parquet", 1, "error: nothing is at the source: "),
        ("index build photos -o x.parquet --paths odd", 2, "error: --paths is unknown: 'odd'\nhint: auto or absolute"),
        ("index build t.csv -o x.parquet --download imgae", 1, "hint: did you mean 'image'?"),
        ("index build photos -o x.parquet --storage regoin=eu", 2, "hint: did you mean 'region'?"),
        ("index build photos -o x.parquet --storage secret_access_key=x", 2, "error: --storage takes no secrets"),
        ("index build photos -o x.parquet --storage region", 2, "error: --storage has no value: 'region'"),
        ("index build photos -o x.parquet --engine spark", 2, "error: engine is unknown: 'spark'\nhint: 'ray'"),
        ("index build photos -o x.parquet --num-workers 2", 2, "error: --num-workers is for an engine\nhint: "),
        ("index build t.tar -o x.parquet", 1, "error: samples lie inside the source: t.tar\nhint: "),
        ("index info", 2, "Missing argument"),
        ("index info t.csv --id nothing", 1, "error: index_col_name names a column"),
        ("index info t.csv --sql SELEC", 1, "error: sql_query is not SQL"),
        ("index split t.csv -o x", 2, "Missing option '--val-ratio'"),
        ("index split t.csv -o x --val-ratio 1.5", 2, "error: --val-ratio is no share: 1.5\nhint: "),
        (
            "index split t.parquet -o x --val-ratio 0.5 --id nothing",
            1,
            "error: the source has no such column: 'nothing'",
        ),
        ("index split t.tar -o x --val-ratio 0.5", 1, "error: samples lie inside the source"),
        ("peek", 2, "Missing argument"),
        ("peek t.csv --at 12", 2, "error: --at is past the end: 12\nhint: there are 12 rows: 0 to 11\n"),
        ("peek t.csv --column N", 2, "error: --column is unknown: 'N'\nhint: "),
        ("peek t.csv --images ascii", 2, "error: --images is unknown: 'ascii'\nhint: known: auto, off"),
        ("peek t.csv -n 0", 2, "Invalid value for '--num'"),
        ("peek t.csv --reach 4", 2, "error: --reach without --lazy: 4\nhint: --lazy ROWS says"),
        ("peek t.csv --lazy 3 --reach 4", 2, "error: --reach without --shuffle: 4\nhint: --shuffle SEED shows"),
        ("peek t.tensors --lazy 3", 2, "error: --lazy needs index files: t.tensors\nhint: leave --lazy out"),
        ("peek t.tar --lazy 4", 2, "error: lazy_index_chunk_size needs Parquet, CSV or JSON lines"),
        ("bench photos --image jpg --transforms a:b", 2, "error: --image and --transforms exclude each other"),
        ("bench photos --transforms nowhere:chain", 2, "error: transforms cannot be imported"),
        ("bench photos --limit big", 2, "error: --limit is not a byte size: 'big'"),
        ("nothing", 2, "No such command 'nothing'"),
    ],
)
def test_what_is_wrong_is_told(words: str, code: int, message: str, home: Path, sds: Sds) -> None:
    done = sds(*words.split())
    assert done.code == code, done
    assert message in done.err and "Traceback" not in done.err
    assert done.out == "" or words == "index"
