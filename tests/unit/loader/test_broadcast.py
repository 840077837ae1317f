"""How a batch is taken apart for its way to other ranks, and put together there."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import sds
from sds.loader.broadcast import _emptied, _filled


class Pair(NamedTuple):
    x: torch.Tensor
    name: str


@dataclass(frozen=True)
class Frames:
    pixels: torch.Tensor
    parts: list[Any]


def sent(batch: Any) -> tuple[Any, list[torch.Tensor]]:
    """The batch as another rank gets it, and the tensors that travelled."""
    tensors: list[torch.Tensor] = []
    word = pickle.dumps(_emptied(batch, tensors))
    return _filled(pickle.loads(word), [tensor.clone() for tensor in tensors]), tensors


def test_containers_of_every_kind_keep_it():
    batch = sds.Batch({"a": torch.arange(2), "rest": [Pair(torch.ones(1), "n"), (1, None)]})
    batch.stream_name = "photos"
    batch["frames"] = Frames(torch.full((2,), 7), [torch.zeros(3), "text"])
    found, tensors = sent(batch)
    assert len(tensors) == 4, "also those of dataclasses travel by themselves"
    assert type(found) is sds.Batch and found.stream_name == "photos"
    assert found["a"].tolist() == [0, 1]
    assert type(found["rest"][0]) is Pair and found["rest"][0].name == "n" and found["rest"][1] == (1, None)
    assert type(found["frames"]) is Frames and found["frames"].pixels.tolist() == [7, 7]
    assert found["frames"].parts[1] == "text"
    assert isinstance(batch["a"], torch.Tensor), "the batch itself stays as it was"


def test_a_packed_sequence_arrives_as_one():
    given = pack_sequence([torch.ones(2), torch.ones(3) * 2], enforce_sorted=False)
    found, tensors = sent({"words": given})
    assert type(found["words"]) is PackedSequence and len(tensors) == 3
    for one, other in zip(found["words"], given, strict=True):
        assert torch.equal(one, other)


def test_one_tensor_under_two_names_travels_once_and_stays_one():
    same = torch.ones(3)
    found, tensors = sent({"a": same, "b": [same]})
    assert len(tensors) == 1 and found["a"] is found["b"][0]


def test_what_holds_no_tensor_passes():
    assert sent({"a": [1, "b", None], "c": (2.0,)})[0] == {"a": [1, "b", None], "c": (2.0,)}
