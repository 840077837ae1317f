"""A loader's stats are its own, whoever else has read its datasets."""

import pickle
from itertools import islice

import pytest
import torch

import sds
from sds.errors import OptionError
from sds.transforms import Remember


def test_a_loader_begins_at_zero_whatever_was_read_before(make):
    dataset = make()
    with sds.StreamingDataLoader(dataset, 8, num_threads=1) as first:
        list(first)
        second = sds.StreamingDataLoader(dataset, 4, num_threads=3)
        fresh = second.stats()
        assert (fresh.samples, fresh.batches, fresh.wall_s, fresh.time_to_first_batch) == (0, 0, 0.0, None)
        assert not any(fresh.busy_s.values()) and not any(fresh.wait_s.values()) and not fresh.queue_depths
        assert fresh.num_threads == 3
        list(second)
        found = second.stats()
        assert (found.samples, found.batches, first.stats().samples) == (40, 10, 40)
        assert 0 < found.time_to_first_batch <= found.wall_s
        assert first.stats().num_threads == 1, "the crew is the loader's"
    assert (dataset.stats().samples, dataset.stats().batches) == (80, 15), "the dataset has seen both"


def test_a_pause_between_two_loaders_is_nobodys_time(make):
    dataset = make()
    list(sds.StreamingDataLoader(dataset, 8, num_threads=1))
    dataset.tally._started -= 1000.0  # as if that had been long ago
    later = sds.StreamingDataLoader(dataset, 8, num_threads=1)
    list(later)
    assert later.stats().wall_s < 500 < dataset.stats().wall_s


def test_mixes_begin_at_zero_too(make):
    mix = sds.interleave([make(), make()])
    list(sds.StreamingDataLoader(mix, 8, num_threads=1))
    fresh = sds.StreamingDataLoader(mix, 8, num_threads=1).stats()
    assert fresh.samples == 0 and not any(fresh.busy_s.values())
    datasets = [make(), make()]
    streams = [{"name": name, "ratio": 0.5, "batch_size": 4} for name in "ab"]
    for number in range(2):
        with sds.MultiStreamDataLoader(datasets, streams, stop="first", num_threads=1) as loader:
            assert (loader.stats().samples, sum(loader.stats().wait_s.values())) == (0, 0), number
            list(loader)
            assert loader.stats().samples > 0


def test_a_copy_in_another_process_begins_at_zero(make):
    loader = sds.StreamingDataLoader(make(), 8, num_threads=1)
    list(loader)
    twin = pickle.loads(pickle.dumps(loader))
    assert twin.stats().samples == 0
    list(twin)
    assert twin.stats().samples == 40


def test_limits_of_fetching_are_known(make):
    dataset = make(prefetch=7, num_downloading_workers=3, world=sds.World(0, 2, 0, 2))
    for stats in (dataset.stats(), sds.StreamingDataLoader(dataset, 4).stats()):
        assert (stats.prefetch, stats.num_connections, stats.num_sharing) == (7, 3, 2)
    assert make(prefetch="1mb").stats().prefetch == 0, "so many samples were never asked for"


def as_tensor(sample):
    return {"__sample_key__": sample["__sample_key__"], "x": torch.zeros(2)}


def test_what_was_remembered_is_counted(make, tmp_path):
    with make(transforms=[Remember([as_tensor], tmp_path / "kept")]) as dataset:
        loader = sds.StreamingDataLoader(dataset, 8, num_threads=1)
        list(loader)
        assert loader.stats().from_tensors == 0
        list(loader)
        assert loader.stats().from_tensors == 40
    with sds.StreamingDataset(tmp_path / "kept", tmp_path / "cache") as tensors:
        loader = sds.StreamingDataLoader(tensors, 8, num_threads=1)
        list(loader)
        assert loader.stats().from_tensors == 40


def test_a_second_trace_of_a_running_iteration_is_refused(make, tmp_path):
    with sds.StreamingDataLoader(make(), 8, num_threads=1) as loader:
        loader.trace(tmp_path / "one.json")
        batches = iter(loader)
        assert len(list(islice(batches, 2))) == 2
        with pytest.raises(OptionError, match="being written") as caught:
            loader.trace(tmp_path / "two.json")
        assert "leave the loop first" in caught.value.hint and "one.json" in caught.value.hint
        assert not (tmp_path / "two.json").exists()
        list(batches)
        loader.trace(tmp_path / "two.json")  # the iteration is over
        list(loader)
    assert "collate" in (tmp_path / "two.json").read_text()


def test_around_a_loader_of_somebody_else_too(tmp_path):
    with sds.DevicePrefetcher([1, 2, 3], device="cpu") as ahead:
        ahead.trace(tmp_path / "one.json")
        batches = iter(ahead)
        next(batches)
        with pytest.raises(OptionError, match="being written"):
            ahead.trace(tmp_path / "two.json")
        list(batches)
        ahead.trace(tmp_path / "two.json")
