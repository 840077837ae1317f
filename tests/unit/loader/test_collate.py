"""Samples -> one batch: what can be stacked is stacked, the rest stays a list."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sds.errors import TransformError
from sds.loader import collate


def stacked(*values):
    return collate([{"field": value} for value in values])["field"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, False], torch.tensor([True, False])),
        ([1, -(2**63), 2**63 - 1], torch.tensor([1, -(2**63), 2**63 - 1])),
        ([1.5, 2.0], torch.tensor([1.5, 2.0], dtype=torch.float64)),
        ([1, 2.5], torch.tensor([1.0, 2.5], dtype=torch.float64)),
        ([2.5, 1], torch.tensor([2.5, 1.0], dtype=torch.float64)),
        ([torch.ones(2), torch.zeros(2)], torch.tensor([[1.0, 1.0], [0.0, 0.0]])),
        ([torch.tensor(1), torch.tensor(2)], torch.tensor([1, 2])),
        ([np.ones(2, np.uint8), np.zeros(2, np.uint8)], torch.tensor([[1, 1], [0, 0]], dtype=torch.uint8)),
        ([np.float32(1), np.float32(2)], torch.tensor([1.0, 2.0])),
        ([np.bool_(True), np.bool_(False)], torch.tensor([True, False])),
    ],
)
def test_what_fits_is_stacked(values, expected):
    batch = stacked(*values)
    assert batch.dtype == expected.dtype
    assert torch.equal(batch, expected)


@pytest.mark.parametrize(
    "values",
    [
        ["a", "bc"],
        [b"a", b"b"],
        [None, None],
        [None, 1],
        [1, None],
        [1, "a"],
        [True, 1],
        [2**63, 1],
        [2**64 - 1],
        [(1, 2), (3, 4)],
        [[1], [2, 3]],
        [{"a": 1}, {"b": 1}],
        [object(), object()],
    ],
)
def test_what_does_not_stays_a_list(values):
    assert stacked(*values) == values


@pytest.mark.parametrize(
    "values",
    [
        [torch.ones(2), torch.ones(3)],
        [torch.ones(2), torch.ones(2, dtype=torch.int64)],
        [torch.ones(2), None],
        [np.ones(2), np.ones(3)],
        [np.array(["a"]), np.array(["b"])],
    ],
)
def test_tensors_of_different_shapes_and_types_stay_a_list(values):
    batch = stacked(*values)
    assert isinstance(batch, list)
    assert all(one is other for one, other in zip(batch, values, strict=True))


def test_dicts_are_collated_field_by_field():
    batch = stacked({"n": 1, "deep": {"t": torch.ones(1)}}, {"n": 2, "deep": {"t": torch.zeros(1)}})
    assert torch.equal(batch["n"], torch.tensor([1, 2]))
    assert batch["deep"]["t"].shape == (2, 1)


def test_the_type_does_not_depend_on_the_batch():
    assert stacked(1, 2.5).dtype == stacked(1.0, 2.5).dtype == stacked(0.1).dtype


def test_a_batch_does_not_share_memory_with_its_samples():
    one = np.zeros(2)
    batch = stacked(one, one)
    one[:] = 5
    assert torch.equal(batch, torch.zeros(2, 2, dtype=torch.float64))


def test_samples_must_have_the_same_fields():
    with pytest.raises(TransformError, match=r"different fields: \['b', 'c'\]") as caught:
        collate([{"a": 1, "b": 2}, {"a": 1, "c": 3}])
    assert caught.value.stage == "collate"
    assert "EnsureFields" in caught.value.hint


def test_the_sample_that_differs_is_named():
    with pytest.raises(TransformError) as caught:
        collate([{"__sample_key__": "good"}, {"__sample_key__": "odd", "extra": 1}])
    assert caught.value.key == "odd"
