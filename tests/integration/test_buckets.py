"""Batches in buckets with worker processes, other worlds after each stop, and a tensor cache in a store."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import sds
from sds.errors import SdsError, StateError
from sds.testing import Topology, check_resume
from sds.testing.resume import sample_keys

ROWS = 40


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """An index of 40 rows of three kinds, one of them rare."""
    path = tmp_path_factory.mktemp("source") / "rows.csv"
    kinds = [0 if i % 5 else 1 if i % 10 else 2 for i in range(ROWS)]
    path.write_text("\n".join(["index,kind", *(f"{i:03},{kind}" for i, kind in enumerate(kinds))]) + "\n")
    return path


@pytest.fixture
def make(source, tmp_path):
    made = []

    def make_dataset(**keywords):
        keywords = {"columns_to_download": [], "shuffle_seed": 7, **keywords}
        made.append(sds.StreamingDataset(source, tmp_path / "cache", **keywords))
        return made[-1]

    yield make_dataset
    for dataset in made:
        dataset.close()


def batches_of(loader):
    return [sample_keys(batch) for batch in loader]


def test_every_stop_and_every_restart(make):
    def make_loader(topology, world):
        return sds.StreamingDataLoader(make(), topology.batch_size, bucket_by="kind", num_threads=1, world=world)

    shapes = [Topology(1, 6), Topology(2, 3), Topology(3, 3)]
    assert check_resume(make_loader, shapes, is_ordered=False, every=2) > 40


def test_stops_and_restarts_with_worker_processes(make):
    def make_loader(topology, world):
        workers = topology.num_workers
        return sds.StreamingDataLoader(make(), topology.batch_size, bucket_by="kind", num_workers=workers, world=world)

    shapes = [Topology(1, 8), Topology(1, 8, num_workers=2), Topology(2, 3, num_workers=1)]
    assert check_resume(make_loader, shapes, is_ordered=False, every=7, num_epochs=1) >= 6


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_make_the_same_batches_also_by_a_function_that_cannot_travel(make, context):
    expected = sds.StreamingDataLoader(make(), 4, bucket_by="kind")
    keywords = {"num_workers": 2, "multiprocessing_context": context, "persistent_workers": True}
    loader = sds.StreamingDataLoader(make(), 4, bucket_by=lambda row: row["kind"], **keywords)
    try:
        for _ in range(2):
            assert batches_of(loader) == batches_of(expected)
    finally:
        loader.close()


def test_it_goes_on_after_a_worker_was_killed(make):
    loader = sds.StreamingDataLoader(make(), 4, bucket_by="kind", num_workers=1, prefetch_batches=1)
    seen = []
    with pytest.raises((SdsError, RuntimeError)):
        for batch in loader:
            seen.append(sample_keys(batch))
            if len(seen) == 3:
                (worker,) = multiprocessing.active_children()
                os.kill(worker.pid, signal.SIGKILL)
    state = loader.state_dict()
    loader.close()
    again = sds.StreamingDataLoader(make(), 4, bucket_by="kind", num_workers=1)
    again.load_state_dict(state)
    rest = batches_of(again)
    again.close()
    assert seen + rest == batches_of(sds.StreamingDataLoader(make(), 4, bucket_by="kind"))


def test_a_tensor_cache_in_a_store(s3, bucket, tmp_path):
    folder = tmp_path / "latents.tensors"
    with sds.tensors.TensorCacheWriter(folder, shard_size="64kb") as writer:
        for i in range(48):
            writer.add(f"{i:03}", {"latent": torch.full((4, 8, 8 + 8 * (i % 3)), float(i))})
    s3.upload_folder(folder, bucket, "latents.tensors")
    with sds.StreamingDataset(
        f"s3://{bucket}/latents.tensors", tmp_path / "cache", shuffle_seed=1, storage_options=s3.storage_options
    ) as dataset:
        loader = sds.StreamingDataLoader(dataset, 5, bucket_by="latent")
        assert len(loader) == 12
        assert dataset.stats().bytes_downloaded == 0, "shapes are known without a tensor"
        seen = []
        for batch in loader:
            assert isinstance(batch["latent"], torch.Tensor)
            assert batch["latent"].mean((1, 2, 3)).tolist() == [float(key) for key in sample_keys(batch)]
            seen += sample_keys(batch)
        assert sorted(seen) == [f"{i:03}" for i in range(48)]


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_workers_of_other_loaders_do_not_go_on_from_a_state_in_buckets(make, kind):
    loader = sds.StreamingDataLoader(make(), 4, bucket_by="kind")
    next(iter(loader))
    state = loader.state_dict()
    loader.close()
    dataset = make()
    keywords = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": "fork"}
    dataset.load_state_dict(state)
    with pytest.raises(StateError, match="batches in buckets"):
        list(kind(dataset, **keywords))
    # workers that live on are told as well, and another epoch is as good as ever
    dataset.set_epoch(1)
    lasting = kind(dataset, **keywords, persistent_workers=True)
    assert sum(len(sample_keys(batch)) for batch in lasting) == ROWS
    dataset.load_state_dict(state)
    with pytest.raises(StateError, match="batches in buckets"):
        list(lasting)
    lasting._iterator._shutdown_workers()  # else they live as long as pytest keeps the error
