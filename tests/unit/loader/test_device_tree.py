"""Batches as trees: every tensor is found, every container keeps its kind."""

from __future__ import annotations

from collections import Counter, OrderedDict, UserDict
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import sds
from sds.loader.device_tree import is_plain, mapped, memory_of, num_bytes, tensors_of


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass
class Plain:
    x: Any
    name: str = "n"
    late: Any = field(init=False)


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: list[Any]


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


ONE = torch.ones(2)


@pytest.mark.parametrize(
    ("tree", "number"),
    [
        (ONE, 1),
        ({"a": ONE, "b": [torch.zeros(3), "text", None]}, 2),
        ([ONE, torch.zeros(1)], 2),
        ((ONE, (torch.zeros(1), 3)), 2),
        (Pair(ONE, "b"), 1),
        (Plain(ONE), 1),
        (Frozen(ONE, [torch.zeros(1)]), 2),
        (OrderedDict(a=ONE), 1),
        (UserDict(a=ONE), 1),
        ("text", 0),
        (None, 0),
        (b"bytes", 0),
        (Plain, 0),  # the class itself
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_tree_keeps_its_kind_and_all_that_is_no_tensor(tree: Any, number: int):
    assert len(tensors_of(tree)) == number
    found = mapped(tree, double)
    assert type(found) is type(tree)
    assert [t.tolist() for t in tensors_of(found)] == [(t * 2).tolist() for t in tensors_of(tree)]
    assert ONE.tolist() == [1.0, 1.0]


def test_a_batch_keeps_its_attributes():
    batch = sds.Batch(x=ONE)
    batch.stream_name, batch.data_type, batch.num_accum_rounds_left = "faces", "image", 3
    batch.mine = "kept"  # type: ignore[attr-defined]
    found = mapped(batch, double)
    assert type(found) is sds.Batch and found is not batch
    assert found.__dict__ == batch.__dict__
    assert found["x"].tolist() == [2.0, 2.0] and batch["x"] is ONE


def test_fields_of_a_dataclass_that_are_set_later_may_be_missing():
    found = mapped(Plain(ONE), double)
    assert found.x.tolist() == [2.0, 2.0] and found.name == "n" and not hasattr(found, "late")


class Sized(list):
    """A list whose constructor asks for more."""

    def __init__(self, items: Any, size: int) -> None:
        super().__init__(items)
        self.size = size


class Point(tuple):
    """A tuple whose constructor asks for something else."""

    def __new__(cls, x: Any, y: Any) -> Point:  # noqa: PYI034 (typing.Self is Python 3.11)
        return super().__new__(cls, (x, y))


def test_a_list_and_a_tuple_of_another_kind_keep_it_whatever_their_constructors_ask_for():
    sized, point = Sized([ONE], 3), Point(ONE, "y")
    point.name = "p"
    found = mapped([sized, point], double)
    assert type(found[0]) is Sized and found[0].size == 3 and found[0][0].tolist() == [2.0, 2.0]
    assert type(found[1]) is Point and found[1].name == "p" and found[1][0].tolist() == [2.0, 2.0]
    assert sized[0] is ONE and point[0] is ONE


def test_torchs_own_named_tuples_keep_their_kind():
    largest = torch.eye(2).max(0)
    found = mapped(largest, double)
    assert type(found) is type(largest) and found.values.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "value",
    [Counter(a=1), Sized([1], 3), Point(1, 2), torch.Size((1, 2)), Plain(3), {"a": [1]}, UserDict(a=1)],
    ids=lambda value: type(value).__name__,
)
def test_what_holds_no_tensor_is_passed_on(value: Any):
    tree = {"x": ONE, "value": value}
    assert mapped(tree, double)["value"] is value


class Shared(MutableMapping[str, Any]):
    """A mapping whose copies share what it holds."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    def __getitem__(self, key: str) -> Any:
        return self.held[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.held[key] = value

    def __delitem__(self, key: str) -> None:
        del self.held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


class Frozendict(dict):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("frozen")


@pytest.mark.parametrize("kind", [Shared, Frozendict])
def test_a_mapping_that_cannot_be_rebuilt_becomes_a_dict_and_is_not_changed(kind: Any):
    tree = kind({"a": 1, "x": ONE})
    found = mapped(tree, double)
    assert type(found) is dict and found["a"] == 1 and found["x"].tolist() == [2.0, 2.0]
    assert tree["x"] is ONE


def test_a_mapping_that_cannot_be_changed_becomes_a_dict():
    assert mapped(MappingProxyType({"a": ONE}), double)["a"].tolist() == [2.0, 2.0]


def test_lengths_of_a_packed_sequence_stay_on_the_host():
    packed = pack_sequence([torch.ones(3, 2), torch.ones(2, 2)])
    found = mapped(packed, lambda tensor: tensor.to("meta"))
    assert found.data.device.type == "meta" and found.batch_sizes.tolist() == packed.batch_sizes.tolist()


@pytest.mark.parametrize(
    ("tensor", "is_so"),
    [
        (torch.ones(2), True),
        (torch.ones(2).expand(3, 2), True),
        (torch.ones(2, requires_grad=True), False),
        (torch.nn.Parameter(torch.ones(2)), False),
        (torch.eye(2).to_sparse(), False),
        (torch.ones(2, device="meta"), False),
    ],
    ids=str,
)
def test_what_is_plain(tensor: torch.Tensor, is_so: bool):
    assert is_plain(tensor) is is_so


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
def test_memory_of_a_sparse_tensor_is_that_of_its_parts():
    eye = torch.eye(4)
    assert memory_of(eye) == [eye]
    assert [len(memory_of(each)) for each in (eye.to_sparse(), eye.to_sparse_csr(), eye.to_sparse_csc())] == [2, 3, 3]
    assert len(memory_of(eye.to_sparse_bsr((2, 2)))) == 3
    assert all(part.layout is torch.strided for part in memory_of(eye.to_sparse()))
    assert num_bytes(eye) == 64 and num_bytes(eye.to_sparse()) == 4 * 4 + 2 * 4 * 8


class Wrapping(torch.Tensor):
    """As nested tensors are made: an outside, and tensors in attributes."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values", "offsets"], None


def test_memory_of_a_tensor_that_wraps_others_is_theirs():
    outside = torch.ones(2).as_subclass(Wrapping)
    outside.values, outside.offsets = torch.ones(5), torch.eye(2).to_sparse()
    assert [part.numel() for part in memory_of(outside)] == [5, 4, 2]
    assert not is_plain(outside)


def test_one_tensor_in_two_places_is_found_once():
    assert len(tensors_of({"a": ONE, "b": [ONE]})) == 1
