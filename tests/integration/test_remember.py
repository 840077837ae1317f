"""Remember over real files, processes and stores: quick second passes, kill -9, ranks and workers, lost sources.

And a tensor cache in a store as a source, fetched by ranges through the cache of files.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import recalling
import remembering
import sds
from sds.errors import ShardCorrupt
from sds.tensors import TensorCache
from sds.testing import HTTPServer, S3Server
from sds.testing.videos import make_videos
from sds.transforms import Remember, presets

NUM_ROWS = 120

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["sds.loader", "sds.tensors"])


def start(*args: Any, **keywords: Any) -> Any:
    process = PROCESSES.Process(target=recalling.go_through, args=args, kwargs=keywords)
    process.start()
    return process


def lines(log: Path) -> list[str]:
    return log.read_text().split("\n")[:-1] if log.exists() else []


def wait_for(log: Path, num: int) -> None:
    deadline = time.monotonic() + 60
    while len(lines(log)) < num and time.monotonic() < deadline:
        time.sleep(0.001)


def kill_tree(process: Any) -> None:
    """kill -9, the main process first; workers end with it, and are waited for."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.join()
    psutil.wait_procs(children, timeout=20)


def test_the_second_epoch_of_a_video_chain_is_ten_times_as_fast(tmp_path: Path) -> None:
    records = make_videos(tmp_path / "videos", 8, size=(480, 640), duration=1.5, has_sound=False)
    lines = ["id,video", *(f"{record['id']},{record['path']}" for record in records)]
    (tmp_path / "index.csv").write_text("\n".join(lines) + "\n")
    chain = presets.create_standard_video_pipeline("video", num_frames=32, resolution=(64, 64))
    dataset = sds.StreamingDataset(
        tmp_path / "index.csv",
        tmp_path / "dst",
        columns_to_download=["video"],
        index_col_name="id",
        shuffle_seed=1,
        transforms=[Remember(chain, tmp_path / "memory"), presets.EnsureFieldsTransform(["video"], drop_others=True)],
    )
    seconds, sums = [], []
    with sds.StreamingDataLoader(dataset, 4) as loader:
        for _ in range(4):
            begin = time.monotonic()
            batches = [batch["video"] for batch in loader]
            seconds.append(time.monotonic() - begin)
            sums.append(sum(int(batch.sum()) for batch in batches))
    assert batches[0].shape == (4, 32, 3, 64, 64) and len(set(sums)) == 1
    assert seconds[0] > 10 * min(seconds[1:]), seconds


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_killed_first_pass_goes_on(num_workers: int, tmp_path: Path) -> None:
    recalling.write_index(tmp_path, NUM_ROWS)
    log = tmp_path / "log"
    for wanted in (15, 50):
        process = start(str(tmp_path), str(log), num_workers, pause_s=0.005)
        wait_for(log, wanted)
        kill_tree(process)
    process = start(str(tmp_path), str(log), num_workers, 2)
    process.join(60)
    assert process.exitcode == 0
    computed = Counter(lines(log))
    assert len(computed) == NUM_ROWS
    num_at_once = num_workers or (psutil.cpu_count() or 1) + 1  # a thread for each core, and a spare one
    assert sum(computed.values()) <= NUM_ROWS + 2 * num_at_once  # what was being computed at the moment of a kill
    cache = TensorCache(tmp_path / "memory")
    cache.verify()
    assert sorted(sample["number"] for sample in cache) == list(range(NUM_ROWS))


def test_a_killed_worker_ends_the_pass_and_loses_nothing(tmp_path: Path) -> None:
    recalling.write_index(tmp_path, NUM_ROWS)
    log = tmp_path / "log"
    process = start(str(tmp_path), str(log), 2, pause_s=0.005)
    wait_for(log, 20)
    for worker in psutil.Process(process.pid).children()[:1]:
        worker.kill()
    process.join(60)
    assert process.exitcode == 1
    num_before = len(lines(log))
    process = start(str(tmp_path), str(log), 2)
    process.join(60)
    assert process.exitcode == 0
    assert len(set(lines(log)[:num_before])) == num_before  # nothing was computed twice before
    assert len(lines(log)) <= NUM_ROWS + 2 and set(lines(log)) == set(map(str, range(NUM_ROWS)))


def test_two_ranks_with_two_workers_each_share_one_folder(tmp_path: Path) -> None:
    recalling.write_index(tmp_path, NUM_ROWS)
    log = tmp_path / "log"
    ranks = [start(str(tmp_path), str(log), 2, rank=rank, size=2) for rank in range(2)]
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [0, 0]
    assert sorted(map(int, lines(log))) == list(range(NUM_ROWS))
    ranks = [start(str(tmp_path), str(log), 2, num_epochs=2, rank=rank, size=2) for rank in range(2)]
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [0, 0]
    assert len(lines(log)) == NUM_ROWS  # each of them had what all of them made
    assert len(TensorCache(tmp_path / "memory")) == NUM_ROWS


def test_sources_that_are_gone_are_not_missed(tmp_path: Path, dst: Path, s3: S3Server, bucket: str) -> None:
    recalling.write_index(tmp_path, 30, f"s3://{bucket}/files/")
    s3.upload_folder(tmp_path / "files", bucket, "files")
    log = str(tmp_path / "log")
    with recalling.dataset(tmp_path, log, storage_options=s3.storage_options) as data:
        first = {sample["number"]: sample["x"] for sample in data}
        assert data.stats().misses == 30
    for path in (tmp_path / "dst" / "objects").rglob("*"):
        if path.is_file():
            path.unlink()
    nobody = {**s3.storage_options, "endpoint": "http://127.0.0.1:9"}
    with recalling.dataset(tmp_path, log, storage_options=nobody) as data:
        again = {sample["number"]: sample["x"] for sample in data}
        assert data.stats().requests == data.stats().misses == data.stats().hits == 0
    assert first.keys() == again.keys() and all(torch.equal(first[key], again[key]) for key in first)
    assert len(lines(Path(log))) == 30


# ---- a tensor cache in a store ---------------------------------------------------------------------------------------


@pytest.fixture(params=["s3", "http"])
def stored(
    request: pytest.FixtureRequest, tmp_path: Path, new_name: Callable[[], str]
) -> tuple[str, dict[str, Any], Callable[[str, bytes], None]]:
    """A cache of sixty samples in a store: its URL, the options for it, and a way to replace a file."""
    folder = tmp_path / "latents"
    remembering.build(str(folder), 60, str(tmp_path / "log"), shard_size=8000)
    name = new_name()
    if request.param == "s3":
        s3: S3Server = request.getfixturevalue("s3")
        s3.create_bucket(name)
        s3.upload_folder(folder, name, "some/latents")
        put = lambda file, data: s3.put(name, f"some/latents/{file}", data)  # noqa: E731
        return f"s3://{name}/some/latents", s3.storage_options, put
    server: HTTPServer = request.getfixturevalue("http_server")
    for path in folder.iterdir():
        server.put(f"{name}/{path.name}", path.read_bytes())
    return server.url(name), {}, lambda file, data: server.put(f"{name}/{file}", data)


def test_a_remote_tensor_cache_is_a_source(
    stored: tuple[str, dict[str, Any], Callable[[str, bytes], None]], dst: Path, tmp_path: Path
) -> None:
    url, options, _ = stored
    query = "SELECT * FROM dataframe WHERE caption != 'image 7'"
    with sds.StreamingDataset(url, dst, shuffle_seed=4, sql_query=query, storage_options=options) as dataset:
        assert len(dataset) == 59
        for num_workers in (0, 2):
            with sds.StreamingDataLoader(dataset, 8, num_workers=num_workers) as loader:
                seen = []
                for batch in loader:
                    numbers = [float(text.split()[1]) for text in batch["caption"]]
                    assert batch["latent"]["samples"].mean((1, 2, 3, 4)).tolist() == numbers
                    assert [c[0][0][0, 0, 0].item() for c in batch["conditioning"]] == [n + 0.5 for n in numbers]
                    seen += numbers
                assert sorted(seen) == [float(number) for number in range(60) if number != 7]
            stats = dataset.stats()
            assert stats.failures == 0
            if num_workers == 0:
                assert stats.misses >= 59 and stats.bytes_downloaded < 2 * TensorCache(tmp_path / "latents").nbytes
                before = stats.misses
        assert dataset.stats().misses == before  # the second pass had everything in the cache of files


def test_a_remote_shard_that_was_cut_short_is_named(
    stored: tuple[str, dict[str, Any], Callable[[str, bytes], None]], dst: Path, tmp_path: Path
) -> None:
    url, options, put = stored
    with sds.StreamingDataset(url, dst, storage_options=options, on_error="raise") as dataset:
        shard = min((tmp_path / "latents").glob("*.safetensors"))
        data = shard.read_bytes()
        put(shard.name, data[: len(data) - len(data) // 3])
        with pytest.raises(ShardCorrupt, match=shard.stem):
            list(dataset)
