"""Samples that are put where their batch will lie: the batch is the one that copies would have made, without them."""

from __future__ import annotations

import pytest
import torch

import sds
from sds.loader.collate import collate
from sds.loader.slabs import Slab, as_array
from sds.tensors.spare import Spare


def samples_of(*shapes, dtype=torch.float32):
    made = torch.Generator().manual_seed(0)
    return [{"x": (torch.rand(shape, generator=made) * 100).to(dtype), "n": k} for k, shape in enumerate(shapes)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.int64, torch.bool, torch.complex64])
def test_a_batch_is_there_when_its_samples_are(dtype):
    samples = samples_of(*[(3, 80, 80)] * 5, dtype=dtype)
    slab = Slab(5, Spare())
    placed = [slab.put(k, sample) for k, sample in reversed(list(enumerate(samples)))][::-1]
    batch = collate(placed, own=slab.memory)
    expected = collate(samples)
    assert torch.equal(batch["x"], expected["x"]) and torch.equal(batch["n"], expected["n"])
    assert batch["x"].data_ptr() == slab.memory[0].data_ptr()


def test_the_samples_that_were_given_stay_as_they_are():
    (sample,) = samples_of((3, 80, 80))
    kept = sample["x"]
    placed = Slab(1, Spare()).put(0, sample)
    assert sample["x"] is kept and placed["x"] is not kept and torch.equal(placed["x"], kept)


@pytest.mark.parametrize(
    "odd",
    [
        torch.rand(3, 81, 80),
        torch.rand(3, 80, 80, dtype=torch.float64),
        torch.rand(3, 80, 80, requires_grad=True),
        torch.rand(3, 80, 80).to(torch.bfloat16),
        None,
        "text",
    ],
    ids=["shape", "dtype", "gradient", "bfloat16", "none", "text"],
)
def test_what_does_not_fit_stays_what_it_is(odd):
    samples = [*samples_of(*[(3, 80, 80)] * 2), {"x": odd, "n": 2}]
    slab = Slab(3, Spare())
    placed = [slab.put(k, sample) for k, sample in enumerate(samples)]
    assert placed[2]["x"] is odd
    batch = collate(placed, own=slab.memory)
    expected = collate(samples)
    if isinstance(expected["x"], list):
        assert batch["x"][2] is odd and torch.equal(batch["x"][0], samples[0]["x"])
    else:
        assert torch.equal(batch["x"], expected["x"])


@pytest.mark.parametrize("last", [torch.rand(3, 81, 80), None, [1]], ids=["shape", "none", "list"])
@pytest.mark.parametrize("place", [0, 2])
def test_tensors_of_a_list_have_memory_of_their_own(last, place):
    samples = samples_of(*[(3, 80, 80)] * 2)
    samples.insert(place, {"x": last, "n": 2})
    slab = Slab(3, Spare())
    placed = [slab.put(k, sample) for k, sample in enumerate(samples)]
    listed = collate(placed, own=slab.memory)["x"]
    assert len(listed) == 3 and all(
        each.untyped_storage().nbytes() == each.nbytes for each in listed if isinstance(each, torch.Tensor)
    )


def test_what_lies_deeper_is_no_part_of_the_batch():
    piece = Spare().take(3 * 4096)
    rows = piece.view(torch.float32).view(3, 1024).fill_(7).unbind(0)
    samples = [{"x": row, "all": (row, {"array": row.numpy()}), "n": 1 if k else [row]} for k, row in enumerate(rows)]
    batch = collate(samples, own=[piece])
    assert batch["x"].data_ptr() == piece.data_ptr()
    batch["x"].zero_()
    for kept, arrays in batch["all"]:
        assert kept.untyped_storage().nbytes() == 4096
        assert float(kept.min()) == arrays["array"].min() == 7
    assert float(batch["n"][0][0].min()) == 7 and batch["n"][1:] == [1, 1]


def test_fields_of_several_shapes_are_left_alone_once_that_is_known():
    samples = samples_of((3, 80, 80), (3, 81, 80), (3, 80, 80))
    slab = Slab(3, Spare())
    placed = [slab.put(k, sample) for k, sample in enumerate(samples)]
    assert placed[0] is not samples[0] and placed[1] is samples[1] and placed[2] is samples[2]


def test_a_step_that_lost_a_sample_is_copied():
    samples = samples_of(*[(3, 80, 80)] * 4)
    slab = Slab(4, Spare())
    placed = [slab.put(k, sample) for k, sample in enumerate(samples) if k != 1]
    batch = collate(placed, own=slab.memory)
    assert torch.equal(batch["x"], torch.stack([samples[k]["x"] for k in (0, 2, 3)]))


def test_fields_without_memory_of_their_own_are_collated_beside_others():
    samples = [{**sample, "few": torch.eye(90).to_sparse()} for sample in samples_of(*[(3, 80, 80)] * 2)]
    slab = Slab(2, Spare())
    placed = [slab.put(k, sample) for k, sample in enumerate(samples)]
    batch = collate(placed, own=slab.memory)
    assert torch.equal(batch["few"].to_dense(), torch.eye(90).expand(2, 90, 90))
    assert batch["x"].data_ptr() == slab.memory[0].data_ptr()


def test_small_tensors_are_left_alone():
    (sample,) = samples_of((8,))
    slab = Slab(1, Spare())
    assert slab.put(0, sample) is sample and slab.memory == []


class Named(torch.Tensor):
    """A tensor of another kind, such as torchvision has them."""


@pytest.mark.parametrize(
    "value",
    [
        torch.rand(4).to(torch.complex64).conj(),
        torch.rand(4).to(torch.complex64).conj().imag,
        torch.rand(4, requires_grad=True),
        torch.eye(4).to_sparse(),
        torch.rand(4, device="meta"),
        torch.rand(4).as_subclass(Named),
    ],
    ids=["conjugate", "negative", "graph", "sparse", "meta", "subclass"],
)
def test_what_numpy_cannot_copy(value):
    assert as_array(value) is None


def large(sample):
    number = int(sample["__sample_key__"])
    return {"x": torch.full((3, 192, 192), number, dtype=torch.uint8), "key": sample["__sample_key__"]}


def test_memory_is_used_again_only_when_nobody_has_the_batch(make):
    dataset = make(transforms=[large], shuffle_seed=1)
    kept, places = [], []
    with sds.StreamingDataLoader(dataset, 4) as loader:
        for k, batch in enumerate(loader):
            assert batch["x"][:, 0, 0, 0].tolist() == [int(key) for key in batch["key"]]
            places.append(batch["x"].data_ptr())
            if k % 3 == 0:
                kept.append((batch["x"][1], int(batch["key"][1])))  # a part of it is enough to keep it
            del batch
    assert len(kept) == 4 and all(bool((x == number).all()) for x, number in kept)
    assert len(set(places)) < len(places)
