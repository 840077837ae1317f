from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from remembering import sample_of
from sds.errors import OptionError, TensorCacheError
from sds.tensors import LazyTensor, TensorCache, TensorCacheWriter, TensorInfo, realize
from sds.tensors.places import coalesced


def test_a_cache_is_a_sequence(build: Callable[..., Path]):
    cache = TensorCache(build(10))
    assert len(cache) == 10
    assert [sample["caption"] for sample in cache] == [f"image {number}" for number in range(10)]
    assert cache[-1]["caption"] == "image 9" and [s["caption"] for s in cache[8:]] == ["image 8", "image 9"]
    assert cache[np.int64(3)]["caption"] == "image 3"
    for position in (10, -11):
        with pytest.raises(IndexError):
            cache[position]


def test_keys_are_found_by_position_and_by_name(build: Callable[..., Path]):
    cache = TensorCache(build(10))
    keys = cache.keys()
    assert len(keys) == 10 and keys[3] == "key 3" and keys[8:] == ["key 8", "key 9"] and keys == list(keys)
    assert "key 4" in keys and "key 10" not in keys and 4 not in keys
    assert [cache.find(key) for key in keys] == list(range(10)) and cache.find("nobody") is None


def test_shapes_are_known_without_reading_a_tensor(build: Callable[..., Path]):
    cache = TensorCache(build(10))
    assert cache.info(1) == {
        "latent.samples": TensorInfo((1, 4, 6, 6), torch.float32),
        "conditioning.0.0": TensorInfo((1, 7, 8), torch.float32),
        "conditioning.0.1.pooled_output": TensorInfo((1, 8), torch.float32),
    }
    assert cache[1]["latent"]["samples"].shape == (1, 4, 6, 6)
    numbers, infos = cache.buckets()
    assert numbers.tolist() == [0, 1] * 5
    assert [info["latent.samples"].shape for info in infos] == [(1, 4, 4, 4), (1, 4, 6, 6)]
    assert cache.num_reads == cache.num_bytes_read == 0


@pytest.mark.parametrize("access", ["pread", "mmap"])
def test_samples_are_real_after_realize(build: Callable[..., Path], access: str):
    cache = TensorCache(build(10), access=access)
    order = [7, 2, 9, 2]
    for number, sample in zip(order, cache.read(order), strict=True):
        expected = sample_of(number, 4 + 2 * (number % 2))
        assert torch.equal(sample["latent"]["samples"], expected["latent"]["samples"])
        assert torch.equal(sample["conditioning"][0][0], expected["conditioning"][0][0])
        assert sample["conditioning"][0][1]["mask"] is None


def test_neighbours_are_read_together(tmp_path: Path):
    with TensorCacheWriter(tmp_path) as writer:
        for number in range(100):
            writer.add(str(number), torch.full((1000,), number))
    cache = TensorCache(tmp_path)
    samples = realize([cache[position] for position in reversed(range(100))])
    assert [int(sample[0]) for sample in samples] == list(reversed(range(100)))
    assert cache.num_reads == 1 and cache.num_bytes_read == 100 * 8000


def test_runs_are_sorted_and_bounded():
    wants = [(start, memoryview(bytes(10))) for start in (100, 0, 15, 300, 310)]
    runs = [[start for start, _ in run] for run in coalesced(wants, 5)]
    assert runs == [[0, 15], [100], [300, 310]]


def test_overlapping_wants_are_separate_runs():
    wants = [(start, memoryview(bytes(10))) for start in (0, 5)]
    assert [len(run) for run in coalesced(wants, 5)] == [1, 1]


def test_a_field_of_one_bucket_is_stacked_in_place(build: Callable[..., Path]):
    cache = TensorCache(build(10), verify=True)
    assert cache.stack([8, 0, 4], "latent.samples")[:, 0, 0, 0, 0].tolist() == [8, 0, 4]
    with pytest.raises(TensorCacheError, match="cannot be stacked"):
        cache.stack([0, 1], "latent.samples")
    with pytest.raises(TensorCacheError, match="no such field"):
        cache.stack([0], "nothing")
    with pytest.raises(TensorCacheError, match="no positions"):
        cache.stack([], "nothing")
    out = torch.empty(2, 1, 4, 4, 4)
    assert cache.stack([6, 2], "latent.samples", out=out) is out and out[:, 0, 0, 0, 0].tolist() == [6, 2]
    for wrong in (torch.empty(3, 1, 4, 4, 4), out.half(), out.transpose(3, 4)):
        with pytest.raises(TensorCacheError, match="out does not fit"):
            cache.stack([6, 2], "latent.samples", out=wrong)


def test_large_blocks_of_several_shards_come_right(tmp_path: Path):
    with TensorCacheWriter(tmp_path, "3mb") as writer:
        for number in range(24):
            writer.add(str(number), torch.full((1 << 16,), number))  # 512 KB
    cache, order = TensorCache(tmp_path, verify=True), [7, 3, 22, 1, 14, 9, 18, 11, 5, 20, 16]
    for each in (cache, TensorCache(tmp_path, access="mmap")):
        assert torch.equal(each.stack(order, ""), torch.tensor(order)[:, None].expand(-1, 1 << 16))
    assert [int(sample[5]) for sample in cache.read(order)] == order
    (tmp_path / f"{cache._shards[2].name}.safetensors").unlink()
    with pytest.raises(TensorCacheError, match="its tensors are not there"):
        TensorCache(tmp_path).read(order)


def test_more_shards_than_may_be_open_are_read_by_threads(build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    from concurrent.futures import ThreadPoolExecutor

    monkeypatch.setattr("sds.tensors.local._MAX_OPEN", 2)
    cache = TensorCache(build(40, shard_size=1), verify=True)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda position: cache.read([position])[0]["caption"], [*range(40)] * 5))
    assert found == [f"image {number}" for number in range(40)] * 5


def test_views_are_stacked_too(tmp_path: Path):
    base = torch.arange(12.0).reshape(3, 4)
    with TensorCacheWriter(tmp_path) as writer:
        for number in range(3):
            writer.add(str(number), {"base": base, "column": base[:, number], "turned": base.t().clone().t()})
            writer.add(f"empty {number}", {"none": torch.empty(0, 3)})
    cache = TensorCache(tmp_path)
    assert torch.equal(cache.stack([0, 2, 4], "column"), base.t()[:3])
    assert torch.equal(cache.stack([0, 2], "turned"), torch.stack([base, base]))
    assert cache.stack([1, 3], "none").shape == (2, 0, 3)


@pytest.mark.parametrize("access", ["pread", "mmap"])
def test_a_cache_and_its_lazy_tensors_travel(build: Callable[..., Path], access: str):
    cache = TensorCache(build(10), access=access)
    cache[1]["latent"]["samples"].sum()
    copy = pickle.loads(pickle.dumps(cache))
    assert (len(copy), copy.access) == (10, access)
    assert torch.equal(copy[3]["latent"]["samples"] + 0, realize(cache[3])["latent"]["samples"])
    sample = pickle.loads(pickle.dumps(cache[3]))
    assert isinstance(sample["latent"]["samples"], torch.Tensor) and sample["latent"]["samples"].unique() == 3


def test_a_closed_cache_opens_again(build: Callable[..., Path]):
    with TensorCache(build(4)) as cache:
        cache.read([0])
    assert cache.read([1])[0]["caption"] == "image 1"


def test_a_reader_needs_no_index_json(build: Callable[..., Path]):
    folder = build(10)
    (folder / "index.json").unlink()
    assert list(TensorCache(folder).keys()) == [f"key {number}" for number in range(10)]


def test_a_reader_sees_what_index_json_does_not_know_yet(build: Callable[..., Path]):
    folder = build(10)
    old = (folder / "index.json").read_bytes()
    with TensorCacheWriter(folder) as writer:
        writer.add("new", {"x": torch.zeros(1)})
    (folder / "index.json").write_bytes(old)
    cache = TensorCache(folder)
    assert list(cache.keys())[9:] == ["key 9", "new"]
    cache.verify()


def test_an_empty_cache_has_no_samples(tmp_path: Path):
    TensorCacheWriter(tmp_path).close()
    cache = TensorCache(tmp_path)
    assert len(cache) == 0 and list(cache.keys()) == [] and cache.find("a") is None
    assert cache.buckets()[1] == []
    cache.verify()


def test_no_cache_is_told(tmp_path: Path):
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(TensorCacheError, match="no tensor cache"):
            TensorCache(path)
    with pytest.raises(OptionError, match="access"):
        TensorCache(tmp_path, access="magic")


def test_lazy_tensors_become_real_when_touched(build: Callable[..., Path]):
    cache = TensorCache(build(10))
    x = cache[2]["latent"]["samples"]
    assert isinstance(x, LazyTensor) and not isinstance(x, torch.Tensor)
    assert (x.shape, x.dtype, x.ndim, x.numel(), len(x), x.nbytes) == ((1, 4, 4, 4), torch.float32, 4, 64, 1, 256)
    assert x.size() == (1, 4, 4, 4) and x.size(-1) == 4 and x.dim() == 4 and x.device.type == "cpu"
    assert repr(x) == "LazyTensor('latent.samples', shape=(1, 4, 4, 4), dtype=torch.float32)"
    assert cache.num_reads == 0 and not x.is_realized
    assert x.mean() == 2 and x.is_realized and cache.num_reads == 1
    assert torch.equal(x + 1, 3 + torch.zeros(1, 4, 4, 4)) and (1 - x).max() == -1 and (-x).min() == -2
    assert torch.stack([x, x]).shape == (2, 1, 4, 4, 4) and torch.cat((x, x * 2)).sum() == 384
    assert np.asarray(x).sum() == 128 and x[0, 0, 0, 0] == 2 and [row.shape for row in x] == [(4, 4, 4)]
    assert (x == x).all() and hash(x) == hash(x) and x.tensor() is x.tensor()
    assert cache.num_reads == 1


def test_realize_moves_to_a_device(build: Callable[..., Path]):
    sample = realize(TensorCache(build(1))[0], device="meta")
    assert sample["latent"]["samples"].device.type == "meta"
    assert realize({"plain": torch.zeros(1)}, device="meta")["plain"].device.type == "meta"


def test_what_is_read_is_checked_when_asked(build: Callable[..., Path]):
    folder = build(1)
    (shard,) = folder.glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    TensorCache(folder).read([0])  # the size is right: only a hash can tell
    for check in (
        lambda: TensorCache(folder).verify(),
        lambda: TensorCache(folder, verify=True).read([0]),
        lambda: TensorCache(folder, verify=True, access="mmap").read([0]),
        lambda: TensorCache(folder, verify=True).stack([0], "conditioning.0.1.pooled_output"),
    ):
        with pytest.raises(TensorCacheError, match="has another hash"):
            check()
