"""A cache in a store: the same samples, read by ranges; and readers in other processes, however they are started."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import remembering
from sds.errors import ShardCorrupt, TensorCacheError
from sds.tensors import TensorCache, TensorCacheWriter, realize
from sds.testing import HTTPServer, S3Server

NUM_SAMPLES = 60


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tensors") / "latents"
    remembering.build(str(folder), NUM_SAMPLES, str(folder.parent / "log"), shard_size=8000)
    assert len(list(folder.glob("*.index"))) > 3
    return folder


@pytest.fixture(params=["s3", "http"])
def remote(
    request: pytest.FixtureRequest, built: Path, dst: Path, new_name: Callable[[], str]
) -> Iterator[TensorCache]:
    """The cache, copied to a store, and opened there."""
    if request.param == "s3":
        s3: S3Server = request.getfixturevalue("s3")
        bucket: str = request.getfixturevalue("bucket")
        s3.upload_folder(built, bucket, "some/latents")
        cache = TensorCache(f"s3://{bucket}/some/latents", storage_options=s3.storage_options, dst=dst)
    else:
        server: HTTPServer = request.getfixturevalue("http_server")
        name = new_name()
        for path in built.iterdir():
            server.put(f"{name}/{path.name}", path.read_bytes())
        cache = TensorCache(server.url(name), dst=dst)
    yield cache
    cache.close()


def upload_without(name: str, s3: S3Server, bucket: str, built: Path) -> None:
    for path in built.iterdir():
        if path.name != name:
            s3.put(bucket, f"latents/{path.name}", path.read_bytes())


def test_a_remote_cache_is_like_a_local_one(remote: TensorCache, built: Path) -> None:
    local = TensorCache(built)
    assert list(remote.keys()) == list(local.keys())
    assert [remote.info(position) for position in range(len(remote))] == [local.info(p) for p in range(len(local))]
    assert remote.num_reads == 0
    order = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(0)).tolist()
    for here, there in zip(local.read(order), remote.read(order), strict=True):
        assert torch.equal(here["latent"]["samples"], there["latent"]["samples"])
        assert torch.equal(here["conditioning"][0][0], there["conditioning"][0][0])
        assert here["caption"] == there["caption"]
    assert remote.num_reads <= len(list(built.glob("*.index")))  # one request per shard, whatever the order
    assert torch.equal(remote.stack([3, 50], "latent.samples"), local.stack([3, 50], "latent.samples"))
    remote.verify()
    copy = pickle.loads(pickle.dumps(remote))
    assert torch.equal(realize(copy[7])["latent"]["samples"], realize(local[7])["latent"]["samples"])
    copy.close()


def test_a_remote_shard_that_was_cut_is_told(s3: S3Server, bucket: str, built: Path, dst: Path) -> None:
    first, second = sorted(built.glob("*.safetensors"))[:2]
    upload_without(second.name, s3, bucket, built)
    s3.put(bucket, f"latents/{first.name}", first.read_bytes()[:3000])
    with TensorCache(f"s3://{bucket}/latents", storage_options=s3.storage_options, dst=dst) as cache:
        last = max(p for p in range(len(cache)) if cache._locate(p)[0] == 0)
        with pytest.raises(ShardCorrupt, match=first.stem):
            cache.read([last])
        with pytest.raises(ShardCorrupt, match="its tensors are not there"):
            cache.read([last + 1])
    with pytest.raises(TensorCacheError, match="no tensor cache"):
        TensorCache(f"s3://{bucket}/nothing", storage_options=s3.storage_options, dst=dst)


def test_a_remote_cache_without_its_summary_is_found_by_listing(
    s3: S3Server, bucket: str, built: Path, dst: Path
) -> None:
    upload_without("index.json", s3, bucket, built)
    with TensorCache(f"s3://{bucket}/latents", storage_options=s3.storage_options, dst=dst) as cache:
        assert list(cache.keys()) == list(TensorCache(built).keys())


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("access", ["pread", "mmap"])
def test_other_processes_read_an_open_cache(built: Path, method: str, access: str) -> None:
    cache = TensorCache(built, access=access)
    cache.read([0, 1, 2])  # its files are open when the others start
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    process = context.Process(target=remembering.read_some, args=(cache, [59, 3, 30], answers))
    process.start()
    assert answers.get(timeout=60) == [59, 3, 30]
    process.join(60)
    assert process.exitcode == 0
    assert cache.read([5])[0]["caption"] == "image 5"


def test_a_cache_is_a_dataset_of_torch(built: Path) -> None:
    loader = DataLoader(TensorCache(built), batch_size=16, num_workers=2, collate_fn=list)  # type: ignore[arg-type]
    seen = [float(sample["latent"]["samples"].mean()) for batch in loader for sample in batch]
    assert seen == [float(number) for number in range(NUM_SAMPLES)]


@pytest.mark.speed
def test_a_million_samples_open_in_milliseconds(tmp_path: Path) -> None:
    """250 shards of 4,000 samples; links to one shard, for opening looks at none of them."""
    import json
    import subprocess
    import sys

    with TensorCacheWriter(tmp_path / "one", "1gb") as writer:
        for number in range(4000):
            shape = (1, 4, 2, 2 + number % 3)
            writer.add(f"image-{number:08d}", {"latent": {"samples": torch.zeros(shape)}, "caption": "a cat"})
    (shard,) = (tmp_path / "one").glob("*.safetensors")
    summary = json.loads((tmp_path / "one" / "index.json").read_text())
    folder = tmp_path / "many"
    folder.mkdir()
    shards = []
    for number in range(250):
        name = f"shard-{number:05d}-{number:016x}"
        for suffix in (".safetensors", ".index"):
            os.link(shard.with_suffix(suffix), folder / f"{name}{suffix}")
        shards.append({**summary["shards"][0], "name": name})
    (folder / "index.json").write_text(json.dumps({**summary, "shards": shards}))
    program = """
import gc, json, sys, time, psutil
import sds.tensors
sds.tensors.TensorCache(sys.argv[2])
gc.collect()  # or Python looks through all that torch has made, at a moment of its own choice
me = psutil.Process()
rss, begin = me.memory_info().rss, time.perf_counter()
cache = sds.tensors.TensorCache(sys.argv[1])
length, shape = len(cache), cache.info(777_777)["latent.samples"].shape
took, grown = time.perf_counter() - begin, me.memory_info().rss - rss
numbers, infos = cache.buckets()
print(json.dumps([took, grown, length, shape, len(numbers), len(infos), cache.num_reads]))
"""
    runs = []
    for _ in range(3):  # the machine may be busy: the best counts
        command = [sys.executable, "-c", program, str(folder), str(tmp_path / "one")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
        runs.append(json.loads(done.stdout))
        if runs[-1][0] < 0.05:
            break
    took, grown, *facts = min(runs)
    assert facts == [1_000_000, [1, 4, 2, 2 + 777_777 % 4000 % 3], 1_000_000, 3, 0]
    assert took < 0.05 and grown < 50e6
