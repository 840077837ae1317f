"""Rows that are samples as they are: made a step at a time, and the same as if each had been made by itself."""

from __future__ import annotations

import pytest
import torch

import sds
from sds.errors import SdsError
from sds.loader.slabs import Slabs
from sds.loader.steps import StepJob


def identity(sample):
    return sample


def batches(dataset, batch_size, **options):
    with sds.StreamingDataLoader(dataset, batch_size, **options) as loader:
        return [{field: _plain(value) for field, value in batch.items()} for batch in loader]


def _plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("options", [{}, {"shuffle_seed": 3}, {"shuffle_seed": 3, "data_type": "text"}], ids=str)
@pytest.mark.parametrize("size", [7, 40, 64])
def test_batches_are_those_of_samples_made_one_by_one(make, options, size):
    rows = make(columns_to_download=[], transforms=[], **options)
    ones = make(columns_to_download=[], transforms=[identity], **options)
    assert rows.delivery.pipeline.is_plain and not ones.delivery.pipeline.is_plain
    for _ in range(2):  # another epoch has another order, and other seeds
        assert batches(rows, size) == batches(ones, size)
    assert rows.state_dict()["epoch"] == 2
    assert rows.stats().samples == ones.stats().samples == 80


def test_a_custom_collate_gets_the_samples(make):
    dataset = make(columns_to_download=[], transforms=[], shuffle_seed=1)
    with sds.StreamingDataLoader(dataset, 8, collate_fn=list) as loader:
        found = [sample for batch in loader for sample in batch]
    again = make(columns_to_download=[], transforms=[], shuffle_seed=1)
    assert found == list(again)


def test_a_loader_goes_on_in_the_middle(make):
    whole = batches(make(columns_to_download=[], transforms=[], shuffle_seed=1), 8)
    with sds.StreamingDataLoader(make(columns_to_download=[], transforms=[], shuffle_seed=1), 8) as loader:
        for _, _ in zip(range(2), loader, strict=False):
            state = loader.state_dict()
    rest = make(columns_to_download=[], transforms=[], shuffle_seed=1)
    rest.load_state_dict(state)
    assert batches(rest, 8) == whole[2:]


@pytest.mark.parametrize(
    "options",
    [
        {"columns_to_download": ["txt"], "transforms": []},
        {"columns_to_download": [], "transforms": [identity]},
        {"columns_to_download": [], "transforms": [], "pre_download_transforms": [identity]},
    ],
    ids=["files", "a transform", "a transform before"],
)
def test_what_has_files_or_transforms_is_not_plain(make, options):
    assert not make(**options).delivery.pipeline.is_plain


def test_an_error_of_the_index_reaches_the_loop(make, monkeypatch):
    dataset = make(columns_to_download=[], transforms=[])

    def broken(plan, epoch, positions):
        raise SdsError("the index cannot be read", hint="look at it")

    monkeypatch.setattr(dataset.delivery.pipeline, "plain", broken)
    with pytest.raises(SdsError, match="cannot be read"):
        batches(dataset, 8)


def test_a_step_has_no_slots(make):
    dataset = make(columns_to_download=[], transforms=[])
    with sds.StreamingDataLoader(dataset, 8) as loader:
        step = next(loader._feed.steps([0, 0], 0, 1))
    assert isinstance(step, StepJob) and step.slots == [] and step.parts(4, Slabs()) == [range(1)]
