from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from remembering import sample_of
from sds.errors import OptionError, TensorCacheError
from sds.tensors import TensorCache, TensorCacheWriter, realize
from sds.tensors.places import cache_folder, store_of


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_samples_make_the_same_files(build: Callable[..., Path]):
    one, other = build(name="one"), build(name="other")
    assert files(one) == files(other)
    assert len(list(one.glob("*.index"))) > 2


def test_a_key_is_there_once_it_was_added(tmp_path: Path):
    with TensorCacheWriter(tmp_path) as writer:
        assert "a" not in writer and len(writer) == 0
        writer.add("a", {})
        assert "a" in writer and len(writer) == 1
        assert 5 not in writer
        with pytest.raises(TensorCacheError, match="key is there already: a"):
            writer.add("a", {})
    with TensorCacheWriter(tmp_path) as writer:
        assert "a" in writer and len(writer) == 1
        with pytest.raises(TensorCacheError, match="key is there already"):
            writer.add("a", {})


def test_a_refused_sample_leaves_no_trace(tmp_path: Path):
    with TensorCacheWriter(tmp_path) as writer:
        writer.add("a", {"x": 1})
        with pytest.raises(TensorCacheError, match="cannot be stored"):
            writer.add("b", {"x": torch.ones(3), "hook": object()})
        with pytest.raises(TensorCacheError, match="float32 or uint8"):
            writer.add("b", {"x": torch.ones(3, dtype=torch.complex128)})
        assert "b" not in writer
        writer.add("b", {"x": 2})
    assert [sample["x"] for sample in TensorCache(tmp_path)] == [1, 2]


def test_a_build_that_failed_goes_on_and_ends_in_the_same_files(tmp_path: Path, build: Callable[..., Path]):
    with pytest.raises(ZeroDivisionError), TensorCacheWriter(tmp_path / "cache", 2000) as writer:
        for number in range(7):
            writer.add(f"key {number}", sample_of(number, 4 + 2 * (number % 2)))
        raise ZeroDivisionError
    assert 0 < len(TensorCache(tmp_path / "cache")) < 7  # the rest is not committed yet
    with TensorCacheWriter(tmp_path / "cache", 2000) as writer:
        assert [number for number in range(10) if f"key {number}" in writer] == list(range(7))
        writer.abandon()
    assert files(build(name="cache")) == files(build(name="whole"))


@pytest.mark.parametrize("num_cut", [1, 5, 40])
def test_a_journal_that_was_cut_loses_its_last_record_only(tmp_path: Path, build: Callable[..., Path], num_cut: int):
    writer = TensorCacheWriter(tmp_path / "cache", 2000)
    for number in range(2):
        writer.add(f"key {number}", sample_of(number, 4 + 2 * (number % 2)))
    writer.abandon()
    (journal,) = (tmp_path / "cache" / ".parts").glob("*.journal")
    os.truncate(journal, journal.stat().st_size - num_cut)
    with TensorCacheWriter(tmp_path / "cache", 2000) as writer:
        assert "key 0" in writer and "key 1" not in writer
        writer.abandon()
    assert files(build(name="cache")) == files(build(name="whole"))


def test_data_that_never_reached_the_disk_are_noticed(tmp_path: Path, build: Callable[..., Path]):
    writer = TensorCacheWriter(tmp_path / "cache", 20000)
    for number in range(3):
        writer.add(f"key {number}", sample_of(number))
    writer.abandon()
    (data,) = (tmp_path / "cache" / ".parts").glob("*.data")
    with open(data, "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\0\0\1")
    writer = TensorCacheWriter(tmp_path / "cache", 20000)
    assert [number for number in range(3) if f"key {number}" in writer] == [0, 1]
    writer.close()
    TensorCache(tmp_path / "cache").verify()


def test_a_part_that_was_committed_but_not_removed_is_no_second_copy(tmp_path: Path):
    writer = TensorCacheWriter(tmp_path)
    writer.add("a", sample_of(1))
    writer.abandon()
    kept = {path: path.read_bytes() for path in (tmp_path / ".parts").iterdir()}
    TensorCacheWriter(tmp_path).close()
    (tmp_path / ".parts").mkdir()
    (tmp_path / "index.json").unlink()  # killed before that
    for path, data in kept.items():
        path.write_bytes(data)
    TensorCacheWriter(tmp_path).close()
    assert list(TensorCache(tmp_path).keys()) == ["a"]
    assert not (tmp_path / ".parts").exists()


def test_the_part_of_a_living_writer_is_left_alone(tmp_path: Path):
    first = TensorCacheWriter(tmp_path)
    first.add("a", sample_of(1))
    with TensorCacheWriter(tmp_path) as second:
        assert "a" in second  # it is safe with the first: nobody needs to compute it again
        second.add("b", sample_of(2))
    assert list(TensorCache(tmp_path).keys()) == ["b"]
    first.add("c", sample_of(3))
    first.close()
    assert sorted(TensorCache(tmp_path).keys()) == ["a", "b", "c"]


def test_writers_side_by_side_lose_nothing(tmp_path: Path):
    writers = [TensorCacheWriter(tmp_path, 1000) for _ in range(3)]
    for number in range(30):
        writers[number % 3].add(str(number), sample_of(number))
    for writer in writers:
        writer.close()
    cache = TensorCache(tmp_path)
    cache.verify()
    assert sorted(map(int, cache.keys())) == list(range(30))
    for position, sample in enumerate(realize(list(cache))):
        assert sample["latent"]["samples"].unique().tolist() == [float(cache.key(position))]


def test_a_key_of_two_writers_is_shown_once(tmp_path: Path):
    one, other = TensorCacheWriter(tmp_path, 1), TensorCacheWriter(tmp_path, 1)
    for key in "ab":
        one.add(key, {"from": 1})
    for key in "bc":
        other.add(key, {"from": 2})
    one.commit()
    other.commit()
    before = TensorCache(tmp_path)  # index.json is not written yet
    one.close()
    other.close()
    for cache in (before, TensorCache(tmp_path)):
        assert sorted(cache.keys()) == ["a", "b", "c"] and len(cache) == 3
        assert sorted(sample["from"] for sample in cache) in ([1, 1, 2], [1, 2, 2])
        assert cache.find("b") is not None and [cache.key(cache.find(key)) for key in "abc"] == ["a", "b", "c"]


def test_refresh_tells_what_others_committed(tmp_path: Path):
    with TensorCacheWriter(tmp_path) as one, TensorCacheWriter(tmp_path) as other:
        other.add("b", {})
        assert "b" not in one
        one.refresh()
        assert "b" in one and len(one) == 1
        other.commit()
        one.refresh()
        assert "b" in one and len(one) == 1
        assert "b" in other and len(other) == 1


def test_threads_may_share_a_writer(tmp_path: Path):
    with TensorCacheWriter(tmp_path, 4000) as writer:
        threads = [
            threading.Thread(target=lambda k=k: [writer.add(f"{k}-{n}", sample_of(n)) for n in range(20)])
            for k in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    cache = TensorCache(tmp_path)
    cache.verify()
    assert sorted(cache.keys()) == sorted(f"{k}-{n}" for k in range(4) for n in range(20))
    for position in range(len(cache)):
        number = float(cache.key(position).partition("-")[2])
        assert cache[position]["latent"]["samples"].unique().tolist() == [number]


def test_what_is_appended_is_a_new_generation_after_the_old(tmp_path: Path):
    for generation, keys in enumerate(["ab", "cd", "e"], start=1):
        old = TensorCache(tmp_path) if generation > 1 else None
        with TensorCacheWriter(tmp_path, 1) as writer:
            assert writer.generation == generation
            for key in keys:
                writer.add(key, {"key": key})
        if old is not None:
            assert "".join(old.keys()) == "abcd"[: 2 * generation - 2]  # a reader keeps what it has opened
    assert "".join(TensorCache(tmp_path).keys()) == "abcde"
    with TensorCacheWriter(tmp_path):
        pass
    assert '"generation":3,"shards"' in (tmp_path / "index.json").read_text()  # nothing added: no generation


def test_another_fingerprint_is_another_set_of_samples(tmp_path: Path):
    for fingerprint in ("vae-1", "vae-2"):
        with TensorCacheWriter(tmp_path, fingerprint=fingerprint) as writer:
            assert "a" not in writer
            writer.add("a", {"by": fingerprint})
    cache = TensorCache(tmp_path)
    assert (len(cache), cache[0]["by"], cache.fingerprint) == (1, "vae-2", "vae-2")
    assert cache.fingerprints == ("vae-1", "vae-2")
    assert TensorCache(tmp_path, fingerprint="vae-1")[0]["by"] == "vae-1"
    with pytest.raises(TensorCacheError, match="no samples of this fingerprint") as caught:
        TensorCache(tmp_path, fingerprint="vae-3")
    assert "'vae-1', 'vae-2'" in str(caught.value)


def test_equal_tensors_are_stored_once_per_shard(tmp_path: Path):
    empty_prompt = torch.randn(77, 64)
    with TensorCacheWriter(tmp_path) as writer:
        for number in range(50):
            writer.add(str(number), {"n": torch.tensor(number), "prompt": empty_prompt.clone()})
    (shard,) = tmp_path.glob("*.safetensors")
    assert shard.stat().st_size < 2 * empty_prompt.nbytes
    one, other = realize(TensorCache(tmp_path)[:2])
    assert torch.equal(one["prompt"], empty_prompt)
    one["prompt"].zero_()
    assert torch.equal(other["prompt"], empty_prompt)  # equal, but not one: nobody said that they share memory


def test_memory_stays_small_whatever_the_shard_size(tmp_path: Path):
    with TensorCacheWriter(tmp_path, "512mb") as writer:
        for number in range(4):
            writer.add(str(number), torch.full((1 << 20,), number))
        assert sum(path.stat().st_size for path in (tmp_path / ".parts").glob("*.data")) == 4 * 8 << 20


def test_resume_off_refuses_a_folder_with_samples(tmp_path: Path):
    with TensorCacheWriter(tmp_path, resume=False) as writer:
        writer.add("a", {})
    with pytest.raises(TensorCacheError, match="folder has samples already"):
        TensorCacheWriter(tmp_path, resume=False)


def test_impossible_options_are_told(tmp_path: Path):
    with pytest.raises(OptionError, match="shard_size"):
        TensorCacheWriter(tmp_path, "many")
    with pytest.raises(OptionError, match="web server"):
        TensorCacheWriter("https://example.com/cache")
    with pytest.raises(OptionError, match="for a store"):
        TensorCacheWriter(tmp_path, dst=tmp_path)
    with pytest.raises(OptionError, match="fingerprint"):
        TensorCacheWriter(tmp_path, fingerprint=5)  # type: ignore[arg-type]
    with TensorCacheWriter(tmp_path) as writer, pytest.raises(OptionError, match="key is no text"):
        writer.add(5, {})  # type: ignore[arg-type]
    with pytest.raises(TensorCacheError, match="writer is closed"):
        writer.add("a", {})
    writer.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(TensorCacheError, match="cannot be written"):
        TensorCacheWriter(tmp_path / "file" / "cache")
    with TensorCacheWriter(f"file://{tmp_path}/by-url") as writer:
        writer.add("a", {})
    assert len(TensorCache(f"file://{tmp_path}/by-url")) == 1


def test_the_folder_of_a_url_is_that_of_its_store(monkeypatch, tmp_path):
    monkeypatch.setenv("SDS_CACHE_DIR", str(tmp_path))
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    here, there = "http://127.0.0.1:1", "http://127.0.0.1:2/"
    usual = cache_folder("s3://bucket/latents")
    assert cache_folder("s3://bucket/latents/", {"region": "x", "gs": {"endpoint": here}}) == usual
    one = cache_folder("s3://bucket/latents", {"endpoint": here})
    assert len({usual, one, cache_folder("s3://bucket/latents", {"s3": {"aws_endpoint_url": there}})}) == 3
    assert store_of("s3://bucket/latents", {"s3": {"aws_endpoint_url": there}}) == there.rstrip("/")
    assert store_of("az://bucket/latents", {"account_name": "me", "account_key": "no"}) == "me"
    monkeypatch.setenv("AWS_ENDPOINT_URL", here)
    assert cache_folder("s3://bucket/latents") == one
    assert store_of("https://host/latents") == ""
