"""Samples that are read together are those that are read one by one; a step of a loader is one set of sorted reads."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import sds
from sds.errors import ShardCorrupt, TensorCacheError, TooManyFailures
from sds.tensors import TensorCache, TensorCacheWriter, realize
from sds.tensors.gather import Gathered
from sds.tensors.runs import OpenFile

NUM = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Samples with equal, strided, shared, empty and nested tensors; every sixth one has another shape."""
    path = tmp_path_factory.mktemp("cache") / "mixed.tensors"
    common = torch.arange(64.0)
    with TensorCacheWriter(path, shard_size="6kb") as writer:
        for i in range(NUM):
            latent = torch.full((4, 8, 8 if i % 6 else 4), float(i))
            parts = [latent.transpose(0, 1), {"whole": common, "view": common[3:9]}, (torch.zeros(0), None, 1.5)]
            writer.add(f"{i:02}", {"latent": latent, "parts": parts, "array": np.arange(i), "odd": torch.zeros(3) + i})
    return path


@pytest.fixture
def alike(tmp_path):
    path = tmp_path / "alike.tensors"
    with TensorCacheWriter(path, shard_size="4kb") as writer:
        for i in range(NUM):
            writer.add(f"{i:02}", {"latent": {"samples": torch.full((4, 4, 4), float(i))}, "odd": torch.zeros(3) + i})
    return path


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("is_batch", [False, True])
def test_together_is_as_one_by_one(folder, is_batch):
    cache = TensorCache(folder)
    for positions in ([5, 3, 21, 5, 0], list(range(NUM)), [7]):
        gathered = Gathered(cache, positions, is_batch=is_batch)
        gathered.read(1, None)
        gathered.read(0, 1)
        for k, position in enumerate(positions):
            sample = gathered.sample(k)
            assert same(sample, realize(cache[position]))
            whole, view = sample["parts"][1]["whole"], sample["parts"][1]["view"]
            assert view.data_ptr() == whole.data_ptr() + 12, "what shared memory shares it again"
    assert all(map(same, cache.read([4, 9]), [realize(cache[4]), realize(cache[9])]))


def test_reads_are_sorted_and_coalesced(folder):
    cache = TensorCache(folder)
    order = np.random.default_rng(0).permutation(NUM).tolist()
    cache.read(order)
    assert cache.num_reads <= len(cache.shard_names)


def test_a_batch_is_there_as_soon_as_it_is_read(alike, tmp_path):
    with sds.StreamingDataset(alike, tmp_path / "cache", shuffle_seed=3) as dataset:
        loader = sds.StreamingDataLoader(dataset, 8, num_threads=2)
        for batch in loader:
            samples = batch["latent"]["samples"]
            assert samples.shape == (8, 4, 4, 4)
            assert samples[:, 0, 0, 0].tolist() == [float(key) for key in batch["__sample_key__"]]
            assert samples.untyped_storage().nbytes() == samples.nbytes, "nothing else is held"
            assert batch["odd"][:, 0].tolist() == [float(key) for key in batch["__sample_key__"]]
        assert dataset.delivery.pipeline.index.cache.num_reads <= 3 * len(TensorCache(alike).shard_names) * 2


@pytest.mark.parametrize("is_batch", [False, True])
def test_memory_comes_free_without_a_collection(alike, is_batch):
    gc.disable()
    try:
        gathered = Gathered(TensorCache(alike), [3, 1], is_batch=is_batch)
        gathered.read()
        sample = gathered.sample(1)
        watched = weakref.ref(gathered), weakref.ref(sample["latent"]["samples"])
        del gathered, sample
        assert [each() for each in watched] == [None, None]
    finally:
        gc.enable()


def test_samples_with_one_skeleton_are_several(alike):
    one, other = TensorCache(alike).read([3, 3])
    one["latent"]["new"] = one["odd"].zero_()
    assert other["latent"].keys() == {"samples"} and other["odd"].tolist() == [3, 3, 3]
    assert TensorCache(alike)[3]["latent"].keys() == {"samples"}


def test_samples_that_are_handed_out_share_no_memory(alike, tmp_path):
    with sds.StreamingDataset(alike, tmp_path / "cache") as dataset:
        for batch in sds.StreamingDataLoader(dataset, 8, collate_fn=list):
            assert all(sample["latent"]["samples"].untyped_storage().nbytes() == 256 for sample in batch)


def test_fields_of_one_tensor_share_no_memory_in_a_batch(tmp_path):
    with TensorCacheWriter(tmp_path / "same.tensors") as writer:
        for i in range(8):
            x = torch.full((4, 8), float(i))
            writer.add(f"{i}", {"a": x, "b": x, "c": {"again": x}})
    batch = next(iter(sds.StreamingDataLoader(sds.StreamingDataset(tmp_path / "same.tensors", tmp_path / "cache"), 8)))
    for field in (batch["a"], batch["b"], batch["c"]["again"]):
        assert field.mean((1, 2)).tolist() == list(range(8))
        field.zero_()


def test_a_disk_that_fails_is_told_with_the_file(alike):
    cache = TensorCache(alike)
    cache.read([0])
    place = cache.place
    [name] = place._files
    place._files[name] = OpenFile(Path("/proc/self/mem"))  # its first page is mapped by nobody: EIO
    with pytest.raises(TensorCacheError, match=f"cannot be read: .*{name}.safetensors: Input/output error"):
        cache.read([0])


def test_transforms_after_it_work_on_memory_of_their_own(alike, tmp_path):
    def change(sample):
        sample["latent"]["samples"] += 1
        return sample

    with sds.StreamingDataset(alike, tmp_path / "cache", transforms=[change]) as dataset:
        for batch in sds.StreamingDataLoader(dataset, 5):
            expected = [float(key) + 1 for key in batch["__sample_key__"]]
            assert batch["latent"]["samples"][:, 3, 3, 3].tolist() == expected


def test_a_damaged_shard_fails_its_own_samples_only(alike, tmp_path):
    damaged = sorted(alike.glob("*.safetensors"))[0]
    names = {damaged.stem}
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-100])
    cache = TensorCache(alike)
    lost = {cache.key(i) for i in range(NUM) if cache.columns_of(i).name in names}
    with sds.StreamingDataset(alike, tmp_path / "cache", max_failures=1000) as dataset:
        seen = [key for batch in sds.StreamingDataLoader(dataset, 8) for key in batch["__sample_key__"]]
        assert len(seen) == NUM and not lost & set(seen)
        assert {failure.key for failure in dataset.quarantine()} == lost
    with sds.StreamingDataset(alike, tmp_path / "cache", on_error="raise") as dataset:
        with pytest.raises((ShardCorrupt, TooManyFailures)) as caught:
            list(sds.StreamingDataLoader(dataset, 8))
        assert caught.value.key in lost


def test_remembered_samples_are_read_together_too(tmp_path):
    (tmp_path / "rows.csv").write_text("\n".join(["index", *map(str, range(NUM))]) + "\n")

    def make(sample):
        return {"x": torch.full((2, 3), float(sample["index"])), "__sample_key__": sample["__sample_key__"]}

    def load():
        with sds.StreamingDataset(
            tmp_path / "rows.csv",
            tmp_path / "cache",
            columns_to_download=[],
            transforms=[sds.transforms.Remember([make], tmp_path / "made", version="1")],
        ) as dataset:
            return [batch["x"] for batch in sds.StreamingDataLoader(dataset, 6)]

    first, second = load(), load()
    assert len(list(Path(tmp_path / "made").glob("*.index"))) == 1
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
