"""An index that is read in chunks: from real stores by ranges, in worker processes, and with memory that stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import sds
from sds.errors import SourceError
from sds.testing import HTTPServer, S3Server

NUM_ROWS = 4000
QUERY = "SELECT * FROM dataframe WHERE x % 3 = 0"

# without torch: it starts sooner, and there is less memory beside what is measured
GROWING = """
import json, os, sys, time
from pathlib import Path
from sds.index import IndexOptions
from sds.index.lazy_opening import open_lazy
from sds.plan import Plan

start = time.perf_counter()
options = IndexOptions(lazy_index_chunk_size=20_000, sql_query=sys.argv[3] or None)
index = open_lazy(sys.argv[1], options, folder=Path(sys.argv[2]), remote=lambda: None)
opened = time.perf_counter() - start
plan = Plan(len(index), 1, chunk_sizes=index.chunk_sizes)
for position in range(0, min(6400, len(index) - 64), 64):
    index.expect(plan.chunks(0, position, 6).tolist())
    rows = index.rows(plan.rows(0, position, position + 64))
with open("/proc/self/statm") as file:
    rss = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
print(json.dumps({"rows": len(index), "fingerprint": index.fingerprint, "open_s": opened, "rss": rss}))
"""


def write(folder: Path) -> Path:
    """Five files; the texts are most of their bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number, numbers in enumerate(np.array_split(np.arange(NUM_ROWS), 5)):
        texts = [rng.bytes(300).hex() for _ in numbers]
        ids = [f"{i:05}" for i in numbers]
        table = pa.table({"index": ids, "x": numbers, "text": texts, "file": [f"files/{i}.txt" for i in numbers]})
        parquet.write_table(table, folder / f"part-{number}.parquet", row_group_size=300, compression="none")
    return folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("lazy") / "shards")


@pytest.fixture
def remote(s3: S3Server, bucket: str, shards: Path, dst: Path) -> Iterator[Callable[..., sds.StreamingDataset]]:
    """make(**options): a dataset over the shards in a bucket."""
    s3.upload_folder(shards, bucket, "some/shards")
    made: list[sds.StreamingDataset] = []

    def make(**options: Any) -> sds.StreamingDataset:
        options = {"columns_to_download": [], "lazy_index_chunk_size": 256, "shuffle_seed": 3, **options}
        source = f"s3://{bucket}/some/shards/*.parquet"
        made.append(sds.StreamingDataset(source, dst, storage_options=s3.storage_options, **options))
        return made[-1]

    yield make
    for dataset in made:
        dataset.close()


def test_shards_in_a_store_are_read_by_ranges(remote, shards: Path, tmp_path: Path) -> None:
    local = sds.StreamingDataset(
        shards / "*.parquet", tmp_path / "here", columns_to_download=[], lazy_index_chunk_size=256, shuffle_seed=3
    )
    dataset = remote()
    assert dataset.fingerprint == local.fingerprint, "the same footers, wherever they lie"
    assert [sample["x"] for sample in dataset] == [sample["x"] for sample in local]
    narrow = remote(index_cols_to_keep=["x"], lazy_index_chunk_size=300)
    assert len(list(narrow)) == NUM_ROWS
    total = sum(path.stat().st_size for path in shards.iterdir())
    assert narrow.stats().bytes_downloaded < total / 5, "the texts, which are most of it, were not read"
    assert remote(sql_query=QUERY)[100]["x"] == 300
    local.close()


def test_relative_paths_are_relative_to_their_shard(remote, s3: S3Server, bucket: str) -> None:
    dataset = remote(columns_to_download=["file"], max_size=20, shuffle_seed=None)
    for number in range(20):
        s3.put(bucket, f"some/shards/files/{number}.txt", f"text {number}".encode())
    assert [Path(sample["file"]).read_text() for sample in dataset] == [f"text {i}" for i in range(20)]


def test_an_object_that_changes_under_a_run_is_an_error(remote, s3: S3Server, bucket: str, tmp_path: Path) -> None:
    dataset = remote(shuffle_seed=None)
    assert dataset[0]["x"] == 0
    other = write(tmp_path / "other")
    for number in range(5):
        parquet.write_table(pa.table({"index": ["a"], "x": [1]}), other / f"part-{number}.parquet")
    s3.upload_folder(other, bucket, "some/shards")
    with pytest.raises((SourceError, sds.errors.FetchError)):
        _ = dataset[NUM_ROWS - 1]


def test_a_file_of_a_web_server_is_read_by_ranges(
    http_server: HTTPServer, shards: Path, dst: Path, new_name: Callable[[], str]
) -> None:
    name = new_name()
    http_server.put(f"{name}/index.parquet", (shards / "part-1.parquet").read_bytes())
    with sds.StreamingDataset(
        http_server.url(f"{name}/index.parquet"), dst, columns_to_download=[], lazy_index_chunk_size=100
    ) as dataset:
        assert [sample["x"] for sample in dataset] == list(range(800, 1600))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_chunks_of_their_own(remote, method: str) -> None:
    dataset = remote(sql_query=QUERY)
    expected = [sample["x"] for sample in dataset]  # threads, connections and queries of this process are in use
    loader = sds.StreamingDataLoader(remote(sql_query=QUERY), 50, num_workers=2, multiprocessing_context=method)
    assert [x for batch in loader for x in batch["x"].tolist()] == expected
    loader.close()
    assert sorted(expected) == list(range(0, NUM_ROWS, 3))


def start(source: str, folder: Path, query: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", GROWING, source, str(folder), query]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(process.communicate(timeout=100)[0].splitlines()[-1])
    assert process.returncode == 0
    return found


def test_processes_that_open_it_at_once_count_once(shards: Path, dst: Path) -> None:
    found = [finish(each) for each in [start(f"{shards}/*.parquet", dst, QUERY) for _ in range(3)]]
    assert {(each["rows"], each["fingerprint"]) for each in found} == {(-(-NUM_ROWS // 3), found[0]["fingerprint"])}
    assert len(list(dst.glob("*.lazy"))) == 1
    assert len(list(dst.iterdir())) == 1, "no lock and no scratch folder is left"


def test_memory_and_opening_do_not_grow_with_the_index(tmp_path: Path) -> None:
    size = 100_000
    words = pa.DictionaryArray.from_arrays(pa.array(np.arange(size) % 100), pa.array([f"word {i}" for i in range(100)]))
    parquet.write_table(pa.table({"word": words, "n": np.arange(size)}), tmp_path / "real", row_group_size=50_000)
    found = []
    for number in (10, 400):
        folder = tmp_path / f"of-{number}"
        folder.mkdir()
        for k in range(number):
            os.link(tmp_path / "real", folder / f"{k:04}.parquet")
        found.append(finish(start(f"{folder}/*.parquet", tmp_path / f"dst-{number}")))
    small, large = found
    assert large["rows"] == 40 * small["rows"] == 40_000_000
    assert large["rss"] < small["rss"] + 50e6, found
    assert large["open_s"] < 20, found
