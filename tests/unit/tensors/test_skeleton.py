from __future__ import annotations

import json
import math
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from sds.errors import ShardCorrupt, TensorCacheError
from sds.tensors.skeleton import MAX_DEPTH, Tensors, decode, encode


def both_ways(value: Any) -> tuple[Any, Any]:
    text = encode(value, tensors := Tensors())
    return json.loads(text), decode("a shard", text, len(tensors.values), lambda slot, _: tensors.values[slot])


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, None),
        ([1, True, 2.5, "x"], [1, True, 2.5, "x"]),
        ((1, (2,)), {"$tuple": [1, {"$tuple": [2]}]}),
        (b"\0\xff", {"$bytes": "AP8="}),
        (math.inf, {"$float": "inf"}),
        (-math.inf, {"$float": "-inf"}),
        (2**64, {"$int": "0x10000000000000000"}),
        (-(2**100), {"$int": hex(-(2**100))}),
        (1 + 2j, {"$complex": [1.0, 2.0]}),
        (complex(0, math.inf), {"$complex": [0.0, {"$float": "inf"}]}),
        (torch.bfloat16, {"$dtype": "bfloat16"}),
        ({"$t": 1, "$$": 2, "$": 3, "": 4}, {"$$t": 1, "$$$": 2, "$$": 3, "": 4}),
        ({1: "a", "b": None, None: 2}, {"$dict": [[1, "a"], ["b", None], [None, 2]]}),
        ({(1, "x"): {}}, {"$dict": [[{"$tuple": [1, "x"]}, {}]]}),
        ({}, {}),
    ],
    ids=repr,
)
def test_a_value_is_written_like_this_and_comes_back(value: Any, written: Any):
    text, back = both_ways(value)
    assert text == written
    assert back == value and type(back) is type(value)


def test_not_a_number_and_minus_zero_come_back():
    assert math.isnan(both_ways(math.nan)[1])
    assert math.copysign(1, both_ways(-0.0)[1]) == -1


def test_tensors_get_fields_and_slots():
    x, y = torch.zeros(2), torch.ones(3)
    encode({"a": {"b.c": x}, "list": [y, (x, y)], 5: y.clone(), "%~": np.zeros(1)}, tensors := Tensors())
    assert tensors.fields == ["a.b%2Ec", "list.0", "%2", "%25%7E"]
    assert tensors.values[0].data_ptr() == x.data_ptr()


class Hook:
    pass


Pair = namedtuple("Pair", "a b")  # noqa: PYI024


@pytest.mark.parametrize(
    "value",
    [
        Hook(),
        Hook,
        {1, 2},
        Pair(1, 2),
        lambda: 0,
        np.float32(1),
        np.array(["text"]),
        np.array([1], ">i4"),
        torch.zeros(2).to_sparse(),
        torch.zeros(2, device="meta"),
        {torch.zeros(1): 1},
        {(torch.zeros(1),): 1},
        "\ud800",
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_kept_is_refused_by_its_place(value: Any):
    with pytest.raises(TensorCacheError, match="sample cannot be stored") as caught:
        encode({"outer": [value]}, Tensors())
    assert caught.value.hint
    assert isinstance(value, str) or "outer.0" in str(caught.value)


def test_a_value_without_end_is_refused():
    value: list[Any] = []
    value.append(value)
    with pytest.raises(TensorCacheError, match=f"deeper than {MAX_DEPTH}"):
        encode(value, Tensors())


@pytest.mark.parametrize(
    "text",
    [
        b'{"$t": 2}',
        b'{"$t": -1}',
        b'{"$t": true}',
        b'{"$t": "../../etc/passwd"}',
        b'{"$t": 1.0}',
        b'{"$path": "/etc/passwd"}',
        b'{"$t": 0, "$x": 1}',
        b'{"$float": "1e9"}',
        b'{"$bytes": "%%%"}',
        b'{"$int": "zz"}',
        b'{"$dtype": "load"}',
        b'{"$dict": [[{"a": 1}, 2]]}',
        b'{"$dict": [[1, 2, 3]]}',
        b'{"$complex": [1]}',
        b'{"$complex": ["a", {}]}',
        b"[" * 100_000,
        b'{"$tuple": [' * 500 + b"]}" * 500,
        b"\xff",
        b"",
        b"{",
    ],
    ids=lambda text: text[:30].decode("latin-1"),
)
def test_a_skeleton_that_is_none_is_refused(text: bytes):
    with pytest.raises(ShardCorrupt, match="a shard"):
        decode("a shard", text, 2, lambda slot, _: slot)
