"""An index that is read in chunks: from real stores by ranges, in worker processes, and with memory that stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import sds
from integration.gang import Gangs
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

# one process of several that count together: nobody begins before there are two of them
COUNTING = """
import json, os, signal, sys, time
from pathlib import Path
from sds.index import IndexOptions, lazy_together
from sds.index.lazy_opening import open_lazy

source, folder, notes, name, query, mode = sys.argv[1:]
count, done = lazy_together.CountJob.count, []

def noted(job, pieces, weights):
    Path(notes, f"{name}.entered").touch()
    deadline = time.monotonic() + 60
    while mode != "alone" and len(list(Path(notes).glob("*.entered"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    found = count(job, pieces, weights)
    done.append(pieces[0].start)
    if mode == "dies" and len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with open(Path(notes, "log"), "a") as log:
        log.write(f"{name} {pieces[0].start}\\n")
    return found

lazy_together._SHARE_ROWS = 1
lazy_together.CountJob.count = noted
options = IndexOptions(lazy_index_chunk_size=70, sql_query=query, weight_col_name="x", columns_to_download=("file",))
index = open_lazy(source, options, folder=Path(folder), remote=lambda: None, timeout_s=60)
print(json.dumps([index.chunk_sizes.tolist(), float(index.weights[: len(index)].sum()), index.facts.rows_left_out]))
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


# ---- CSV and JSON lines ----------------------------------------------------------------------------------------------


def test_text_files_in_a_store_are_read_by_ranges(s3: S3Server, bucket: str, shards: Path, dst: Path) -> None:
    """Five Parquet files as two CSVs and a JSONL in a bucket, with line breaks in their captions."""
    table = pa.concat_tables([parquet.read_table(path) for path in sorted(shards.iterdir())])
    records = table.drop_columns(["text"]).slice(0, 3000).to_pylist()
    for number in range(3):
        lines = [f'{each["index"]},{each["x"]},"a ""good"" one,\n{"z" * 500}",{each["file"]}' for each in records]
        text = "\n".join(["index,x,text,file", *lines[1000 * number : 1000 * number + 1000]])
        s3.put(bucket, f"text/part-{number}.csv", text.encode())
    rows = "\n".join(json.dumps({**each, "text": "z" * 500}) for each in records)
    s3.put(bucket, "text/all.jsonl", rows.encode())

    def opened(source: str) -> sds.StreamingDataset:
        return sds.StreamingDataset(
            f"s3://{bucket}/text/{source}",
            dst,
            columns_to_download=["file"],
            index_cols_to_keep=["x"],
            lazy_index_chunk_size=256,
            sql_query=QUERY,
            storage_options=s3.storage_options,
        )

    made = {}
    for source in ("part-*.csv", "all.jsonl"):
        with opened(source) as dataset:
            assert len(dataset) == 1000
            made[source] = dataset._index.rows(range(1000))
    assert made["part-*.csv"] == made["all.jsonl"]
    with opened("all.jsonl") as dataset:  # its lines and counts are known by now
        (row,) = dataset._index.rows([500])
        assert dataset.stats().bytes_downloaded < len(rows) / 1.5, "a row was read by its block, not by its file"
    assert (row.key, row.values["x"]) == ("01500", 1500)
    assert row.values["file"] == f"s3://{bucket}/text/files/1500.txt"


def test_a_csv_of_a_web_server_is_read_by_workers(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str]
) -> None:
    name = new_name()
    http_server.put(f"{name}/index.csv", "\n".join(["index,x", *(f"{i:05},{i}" for i in range(2000))]).encode())
    with sds.StreamingDataset(
        http_server.url(f"{name}/index.csv"), dst, columns_to_download=[], lazy_index_chunk_size=100, shuffle_seed=1
    ) as dataset:
        expected = [sample["__sample_key__"] for sample in dataset]
        dataset.set_epoch(0)
        with sds.StreamingDataLoader(dataset, 50, num_workers=2, multiprocessing_context="fork") as loader:
            assert [key for batch in loader for key in batch["__sample_key__"]] == expected
    assert sorted(expected) == [f"{i:05}" for i in range(2000)]


# ---- counting together -----------------------------------------------------------------------------------------------


class Counters:
    """Processes that open the same index at once."""

    def __init__(self, source: str, folder: Path, notes: Path) -> None:
        self.notes, self._words = notes, [sys.executable, "-c", COUNTING, source, str(folder), str(notes)]
        notes.mkdir()

    def start(self, name: str, mode: str = "") -> subprocess.Popen[str]:
        process = subprocess.Popen([*self._words, name, QUERY, mode], stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not (self.notes / f"{name}.entered").exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return process

    def log(self) -> list[tuple[str, int]]:
        """Who counted which share, by its first row."""
        lines = (self.notes / "log").read_text().splitlines()
        return [(line.split()[0], int(line.split()[1])) for line in lines]


@pytest.fixture(scope="module")
def counted(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[int]]:
    """What one process alone counts, and its shares."""
    folder = tmp_path_factory.mktemp("alone")
    counters = Counters(f"{shards}/*.parquet", folder / "dst", folder / "notes")
    return finish(counters.start("alone", "alone")), sorted(share for _, share in counters.log())


def test_processes_that_share_a_folder_count_together(shards: Path, dst: Path, tmp_path: Path, counted) -> None:
    counters = Counters(f"{shards}/*.parquet", dst, tmp_path / "notes")
    processes = [counters.start("a"), counters.start("b")]
    assert [finish(each) for each in processes] == [counted[0], counted[0]]
    log = counters.log()
    assert sorted(share for _, share in log) == counted[1], "each share was counted once"
    assert {name for name, _ in log} == {"a", "b"}
    assert len(list(dst.iterdir())) == 2, "an index and its weights; no share, lock or scratch folder is left"


@pytest.mark.parametrize("first", ["dies", "lives"])
def test_who_dies_is_replaced_and_what_it_counted_stays(
    shards: Path, dst: Path, tmp_path: Path, counted, first: str
) -> None:
    """The first one holds the lock of the builder, the second one helps: each of them is killed once."""
    counters = Counters(f"{shards}/*.parquet", dst, tmp_path / "notes")
    one, two = counters.start("one", first), counters.start("two", "lives" if first == "dies" else "dies")
    dead, alive = (one, two) if first == "dies" else (two, one)
    assert finish(alive) == counted[0]
    dead.communicate(timeout=60)
    assert dead.returncode == -signal.SIGKILL
    log = counters.log()
    assert len({name for name, _ in log}) == 2, "the dead one did a share before"
    assert sorted(share for _, share in log) == counted[1], "which was not done again"


@pytest.fixture(scope="module")
def gangs() -> Iterator[Gangs]:
    gangs = Gangs()
    yield gangs
    gangs.close()


@pytest.mark.parametrize("dies", [None, 1])
def test_ranks_with_folders_of_their_own_exchange_counts(
    gangs: Gangs, shards: Path, tmp_path: Path, dies: int | None
) -> None:
    keywords = {"sql_query": QUERY, "lazy_index_chunk_size": 70, "shuffle_seed": 1}
    args = {"src": f"{shards}/*.parquet", "cache": str(tmp_path / "cache"), "keywords": keywords, "dies": dies}
    with sds.StreamingDataset(args["src"], tmp_path / "alone", columns_to_download=[], **keywords) as alone:
        expected = alone._index.chunk_sizes.tolist()
    ranks = gangs.run("lazy_counts", 2, tmp_path / "gang", args=args, allow_dead=True, linger=2)
    found = [each["result"] for each in ranks if "result" in each]
    assert len(found) == (2 if dies is None else 1), ranks
    assert all(each["counts"] == expected and each["length"] == sum(expected) for each in found)
    done = [share for each in found for share in each["done"]]
    assert len(done) == len(set(done)), "no share was counted twice"
    if dies is None:
        assert all(each["done"] for each in found), "each counted a part"
        assert len(done) == 15
    else:
        assert len(done) == 14, "one that the dead rank had counted, and told, was not counted again"
