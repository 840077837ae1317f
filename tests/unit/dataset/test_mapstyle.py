"""Random access is strict: the sample asked for, or its error; never another."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

import texts
from sds.dataset.pipeline import Pipeline
from sds.errors import ObjectNotFound, SdsError, TransformError


@pytest.mark.parametrize("seed", [None, 5])
def test_row_i_is_row_i_whatever_the_shuffle(make, seed):
    dataset = make(shuffle_seed=seed)
    assert [dataset[i]["__sample_key__"] for i in (0, 7, 39)] == texts.ids(0, 7, 39)


def test_negative_rows_count_from_the_end(make):
    dataset = make()
    assert texts.keys([dataset[-1], dataset[-40]]) == texts.ids(39, 0)


@pytest.mark.parametrize("i", [40, -41, 2**40])
def test_out_of_range_is_an_index_error(make, i):
    with pytest.raises(IndexError, match=str(i)):
        make()[i]
    with pytest.raises(IndexError):
        make().__getitems__([0, i])


@pytest.mark.parametrize("i", [np.int64(7), np.uint8(7), torch.tensor(7), np.array(7)])
def test_any_whole_number_is_a_row(make, i):
    assert make()[i]["__sample_key__"] == "007"


def test_a_bool_is_a_number_as_everywhere_in_python(make):
    assert make()[True]["__sample_key__"] == "001"


@pytest.mark.parametrize("i", [1.0, "1", None, (1, 2), b"1"])
def test_anything_else_is_a_type_error(make, i):
    with pytest.raises(TypeError, match="whole number"):
        make()[i]


def test_slices(make):
    dataset = make(shuffle_seed=1)
    for part in (
        slice(3, 6),
        slice(None, None, 13),
        slice(-3, None),
        slice(5, 2),
        slice(2, 99, 20),
        slice(None, None, -9),
    ):
        assert texts.keys(dataset[part]) == texts.ids(*range(40)[part])


def test_it_is_a_sequence_that_ends(make):
    """Python's old protocol asks for 0, 1, 2, ... until an IndexError."""
    view = make(max_size=3).as_map()
    assert texts.keys(view[i] for i in range(len(view))) == texts.ids(0, 1, 2)
    with pytest.raises(IndexError):
        view[3]


@pytest.mark.parametrize("transforms", [None, [texts.read]])
def test_several_rows_come_in_the_order_asked_for(make, transforms):
    wanted = [9, 3, 3, -1, 0]
    assert texts.keys(make(transforms=transforms).__getitems__(wanted)) == texts.ids(9, 3, 3, 39, 0)
    assert make(transforms=transforms).__getitems__([]) == []


def test_several_rows_are_decoded_side_by_side(make):
    both = threading.Barrier(2)

    def meet(sample):
        both.wait(timeout=10)
        return sample

    assert len(make(transforms=[meet])[0:2]) == 2


class TestStrictness:
    @pytest.fixture
    def broken(self, make, tmp_path):
        source = texts.write(tmp_path / "broken", 20)
        dataset = make(src=source, shuffle_seed=3)
        (source / "007.txt").unlink()
        return dataset

    def test_a_missing_file_raises_and_never_gives_another_sample(self, broken):
        for _ in range(3):
            with pytest.raises(ObjectNotFound, match=r"007\.txt") as caught:
                broken[7]
            assert (caught.value.key, caught.value.stage) == ("007", "fetch")
        assert broken[8]["__sample_key__"] == "008"

    def test_among_several_too(self, broken):
        with pytest.raises(ObjectNotFound, match=r"007\.txt"):
            broken[5:9]

    def test_it_is_no_matter_of_the_failure_policy(self, broken):
        for _ in range(20):
            with pytest.raises(SdsError):
                broken[7]
        assert broken.quarantine() == []
        assert len(list(broken)) == 19, "an iteration counts for itself"


def test_a_transforms_error_names_the_row(make):
    with pytest.raises(TransformError) as caught:
        make(transforms=[texts.FailOn("011")])[10:12]
    assert caught.value.key == "011"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_epoch_is_the_datasets(make):
    dataset = make()
    dataset.set_epoch(4)
    assert dataset[0]["__epoch__"] == 4


def test_a_row_is_made_once_per_call(make, monkeypatch):
    prepared = []
    prepare = Pipeline.prepare
    monkeypatch.setattr(
        Pipeline, "prepare", lambda self, row, *rest: prepared.append(row.id) or prepare(self, row, *rest)
    )
    make()[3:6]
    assert prepared == [3, 4, 5]


class TestTheMapView:
    def test_has_the_rows(self, make):
        view = make(shuffle_seed=1).as_map()
        assert len(view) == 40
        assert texts.keys([view[4], *view.__getitems__([5, -1])]) == texts.ids(4, 5, 39)

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_serves_torchs_samplers(self, make, num_workers):
        view = make(transforms=[texts.read]).as_map()
        sampler = RandomSampler(view, generator=torch.Generator().manual_seed(1))
        loader = DataLoader(view, batch_size=8, sampler=sampler, num_workers=num_workers)
        batches = list(loader)
        assert sorted(texts.keys(batches)) == texts.ids(*range(40))
        assert all(t == f"text {k}" for b in batches for t, k in zip(b["txt"], b["__sample_key__"], strict=True))

    def test_serves_a_distributed_sampler(self, make):
        view = make().as_map()
        shares = [
            texts.keys(DataLoader(view, batch_size=4, sampler=DistributedSampler(view, 3, rank, shuffle=True)))
            for rank in range(3)
        ]
        assert {len(share) for share in shares} == {14}
        assert set().union(*shares) == set(texts.ids(*range(40)))
