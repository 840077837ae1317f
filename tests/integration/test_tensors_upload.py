"""A cache that is written to a store: the same objects as a local build, after kills and by several writers too."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from obstore.store import S3Store

import remembering
import sds
from sds.errors import AccessDenied, FetchError, OptionError, TensorCacheError
from sds.fetch import FetchClient, FetchOptions
from sds.tensors import TensorCache, TensorCacheWriter

NUM = 40
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tensors") / "local"
    remembering.build(str(folder), NUM, str(folder.parent / "log"))
    return folder


@pytest.fixture
def store(s3, bucket, tmp_path):
    """Where to write, as keywords of a build; and a look at what is there."""
    client = FetchClient(FetchOptions(dst=str(tmp_path / "look"), settings=s3.storage_options))
    url = f"s3://{bucket}/some/latents"

    def objects() -> dict[str, bytes]:
        return {info.url.rsplit("/", 1)[1]: client.read(info.url) for info in client.list(url)}

    yield url, {"storage_options": s3.storage_options}, objects
    client.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_it_is_what_a_local_build_is(built, store, tmp_path):
    url, options, objects = store
    remembering.build(url, NUM, str(tmp_path / "log"), dst=tmp_path / "dst", **options)
    assert objects() == contents(built)
    assert not list((tmp_path / "dst").glob("*.safetensors")), "what was sent takes no room here"
    with TensorCache(url, dst=tmp_path / "reader", **options) as cache:
        cache.verify()
        assert list(cache.keys()) == [str(number) for number in range(NUM)]
    with sds.StreamingDataset(url, tmp_path / "cache", **options) as dataset:
        batch = next(iter(sds.StreamingDataLoader(dataset, 8)))
        assert batch["latent"]["samples"][:, 0, 0, 0, 0].tolist() == list(range(8))
    # again, on another machine: nothing is computed, more is appended, and another fingerprint begins anew
    remembering.build(url, NUM, str(tmp_path / "again"), dst=tmp_path / "other", **options)
    assert (tmp_path / "again").read_text() == ""
    with pytest.raises(TensorCacheError, match="samples already"):
        TensorCacheWriter(url, resume=False, dst=tmp_path / "third", **options)
    with TensorCacheWriter(url, fingerprint="vae-2", dst=tmp_path / "other", **options) as writer:
        writer.add("0", {"x": torch.ones(2)})
    with TensorCache(url, dst=tmp_path / "reader", **options) as cache:
        assert len(cache) == 1 and cache[0]["x"].sum() == 2


def test_after_kills_it_goes_on_and_nothing_that_was_added_is_computed_again(built, store, tmp_path):
    url, options, objects = store
    log, dst = tmp_path / "log", tmp_path / "dst"
    num_killed = 0
    for wanted in (3, 11, 26):
        process = FORK.Process(
            target=remembering.build, args=(url, NUM, str(log)), kwargs={"dst": dst, **options}, daemon=True
        )
        process.start()
        deadline = time.monotonic() + 60
        while process.is_alive() and time.monotonic() < deadline:
            if log.exists() and log.read_text().count("\n") >= wanted:
                os.kill(process.pid, signal.SIGKILL)
                num_killed += 1
                break
            time.sleep(0.001)
        process.join(60)
    assert num_killed, "a build took no time at all"
    remembering.build(url, NUM, str(log), dst=dst, **options)
    assert objects() == contents(built)
    computed = log.read_text().split()
    assert set(computed) == {str(number) for number in range(NUM)}
    assert len(computed) - NUM <= num_killed, "at most the one that was on its way"


def test_a_shard_whose_sending_was_interrupted_is_sent_by_the_next_writer(built, store, tmp_path):
    url, options, objects = store
    dst = tmp_path / "dst"
    TensorCacheWriter(url, dst=dst, **options).abandon()
    remembering.build(str(dst), NUM, str(tmp_path / "log"))  # all is made, nothing is sent
    (dst / "index.json").unlink()
    remembering.build(url, NUM, str(tmp_path / "again"), dst=dst, **options)
    assert (tmp_path / "again").read_text() == ""
    assert objects() == contents(built)
    # what somebody deleted from the store is no longer `in` a writer
    settings = {key: options["storage_options"][key] for key in ("endpoint", "access_key_id", "secret_access_key")}
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    there = S3Store(bucket, **settings, region="us-east-1", client_options={"allow_http": True})
    there.delete([f"{prefix}/{name}" for name in objects()])
    with TensorCacheWriter(url, dst=dst, **options) as writer:
        assert len(writer) == 0 and "0" not in writer


def test_writers_on_several_machines_at_once(store, tmp_path):
    url, options, objects = store
    processes = [
        FORK.Process(
            target=remembering.build,
            args=(url, NUM, str(tmp_path / "log"), rank, 3),
            kwargs={"dst": tmp_path / f"dst-{rank}", **options},
        )
        for rank in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
        assert process.exitcode == 0
    with TensorCache(url, dst=tmp_path / "reader", **options) as cache:
        cache.verify()
        assert sorted(cache.keys(), key=int) == [str(number) for number in range(NUM)]
        assert {f"{name}.index" for name in cache.shard_names} <= set(objects())


def test_writers_of_one_machine_share_a_folder(store, tmp_path, monkeypatch):
    url, options, objects = store
    put = FetchClient.put

    def put_slowly(client, name, data):
        if name.endswith(".safetensors"):
            time.sleep(0.1)  # the others end while a shard is committed here and on its way
        put(client, name, data)

    monkeypatch.setattr(FetchClient, "put", put_slowly)
    monkeypatch.setenv("SDS_CACHE_DIR", str(tmp_path / "user"))
    processes = [
        FORK.Process(target=remembering.build, args=(url, 24, str(tmp_path / "log"), rank, 3), kwargs=options)
        for rank in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
        assert process.exitcode == 0
    [outbox] = (tmp_path / "user").glob("tensors-*/writing")
    assert not list(outbox.glob("*.safetensors")) and (outbox / ".outbox").exists()
    with TensorCache(url, dst=tmp_path / "reader", **options) as cache:
        cache.verify()
        assert sorted(cache.keys(), key=int) == [str(number) for number in range(24)]
        assert {f"{name}.index" for name in cache.shard_names} == {n for n in objects() if n.endswith(".index")}
    # the same URL, spelt otherwise, has the same folder
    with TensorCacheWriter(f"{url}/", **options) as writer:
        assert writer.path == outbox and len(writer) == 24


def test_a_folder_belongs_to_one_url_and_is_no_cache(store, tmp_path):
    url, options, objects = store
    dst = tmp_path / "dst"
    writer = TensorCacheWriter(url, dst=dst, **options)
    writer.add("mine", {"x": torch.ones(2)})
    writer.abandon()
    for other, settings in ((f"{url}-2", {}), (url, {"endpoint": "http://127.0.0.1:9"})):
        with pytest.raises(OptionError, match=r"dst belongs to s3://[\s\S]*of its own"):
            TensorCacheWriter(other, dst=dst, storage_options={**options["storage_options"], **settings})
    with TensorCacheWriter(f"{url}/", dst=dst, **options) as writer:
        assert "mine" in writer
    assert options["storage_options"]["secret_access_key"] not in (dst / ".outbox").read_text()
    remembering.build(str(tmp_path / "local"), 4, str(tmp_path / "log"))
    before = contents(tmp_path / "local")
    with pytest.raises(OptionError, match="not on their way"):
        TensorCacheWriter(url, dst=tmp_path / "local", **options)
    assert contents(tmp_path / "local") == before
    assert sum(name.endswith(".index") for name in objects()) == 1


def test_a_commit_is_sent_at_once_and_shown_at_the_end(store, tmp_path):
    url, options, _ = store
    with TensorCacheWriter(url, dst=tmp_path / "dst", **options) as writer:
        writer.add("a", {"x": torch.ones(2)})
    writer = TensorCacheWriter(url, dst=tmp_path / "dst", **options)
    writer.add("b", {"x": torch.ones(2)})
    writer.commit()
    with TensorCacheWriter(url, dst=tmp_path / "other", **options) as other:
        assert "b" in other, "it is safe"
        with TensorCache(url, dst=tmp_path / "reader", **options) as cache:
            assert list(cache.keys()) == ["a"]
    writer.close()
    with TensorCache(url, dst=tmp_path / "reader", **options) as cache:
        assert list(cache.keys()) == ["a", "b"]


def test_a_sample_that_no_message_holds_is_refused_before_it_is_taken(store, tmp_path):
    url, options, objects = store
    with TensorCacheWriter(url, dst=tmp_path / "dst", **options) as writer:
        with pytest.raises(TensorCacheError, match="too large for a store"):
            writer.add("large", {"x": torch.empty((769 << 20), dtype=torch.uint8)})
        assert "large" not in writer
        writer.add("small", {"x": torch.ones(2)})
    assert sum(name.endswith(".index") for name in objects()) == 1


def test_a_store_that_refuses_is_told_and_what_was_added_is_kept(built, store, tmp_path):
    url, options, objects = store
    wrong = {**options["storage_options"], "secret_access_key": "no"}
    with pytest.raises(AccessDenied):
        TensorCacheWriter(url, dst=tmp_path / "dst", storage_options=wrong)
    with pytest.raises(FetchError):
        TensorCacheWriter("s3://no-such-bucket-here/latents", dst=tmp_path / "other", **options)
    remembering.build(url, NUM, str(tmp_path / "log"), dst=tmp_path / "dst", **options)
    assert objects() == contents(built)
