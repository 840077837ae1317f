"""Whatever nesting of plain values and tensors goes in comes out: values, dtypes, strides and sharing."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sds.tensors import TensorCache, TensorCacheWriter, realize
from sds.tensors.layout import DTYPES

FAST = settings(
    derandomize=True, database=None, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)

NOT_IN_NUMPY = {dtype for dtype in DTYPES.values() if "float8" in str(dtype)} | {torch.bfloat16}

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
numbers = st.integers() | st.floats() | st.complex_numbers() | st.booleans()
texts = st.text(max_size=8) | st.sampled_from(["$t", "$$", "$", "a.b", "%25", "~0", ""])
scalars = st.none() | numbers | texts | st.binary(max_size=9)
keys = texts | st.integers() | st.booleans() | st.none() | st.binary(max_size=4) | st.tuples(st.integers(), texts)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    shape = draw(shapes)
    data = draw(st.binary(min_size=(n := math.prod(shape) * dtype.itemsize), max_size=n))
    if dtype is torch.bool:
        data = bytes(byte & 1 for byte in data)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


@st.composite
def with_views(draw: st.DrawFn) -> list[torch.Tensor]:
    """A tensor, and others that share its memory or have strides of their own."""
    base = draw(tensors())
    made = [base, base]
    if base.ndim:
        made.append(base.movedim(0, -1))
        made.append(base[:: draw(st.integers(1, 3))])
        made.append(base.transpose(0, -1).contiguous().transpose(0, -1))
        made.append(base.unsqueeze(0).expand(2, *base.shape))
    made.append(base.clone())
    return draw(st.lists(st.sampled_from(made), max_size=4))


values = st.recursive(
    scalars | tensors() | with_views(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(texts, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(left: Any, right: Any, seen: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape, left.stride()) == (right.dtype, right.shape, right.stride())
        assert raw(left) == raw(right)
        seen.append((left, right))
    elif isinstance(left, dict):
        assert len(left) == len(right)
        for (one, first), (other, second) in zip(left.items(), right.items(), strict=True):
            assert_same(one, other, seen)
            assert_same(first, second, seen)
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for first, second in zip(left, right, strict=True):
            assert_same(first, second, seen)
    else:
        assert repr(left) == repr(right)  # nan, -0.0


def shares(one: torch.Tensor, other: torch.Tensor) -> int | None:
    """How far apart two tensors of one memory lie; None if their memory has nothing in common."""
    spans = []
    for each in (one, other):
        steps = zip(each.shape, each.stride(), strict=True)
        extent = 1 + sum((side - 1) * step for side, step in steps)
        spans.append((each.data_ptr(), each.data_ptr() + extent * each.element_size()))
    (start, stop), (other_start, other_stop) = spans
    if not one.numel() or not other.numel() or stop <= other_start or other_stop <= start:
        return None
    return other_start - start


@FAST
@given(st.lists(values, min_size=1, max_size=4), st.sampled_from([1, 100, 10_000]))
def test_samples_come_back_as_they_were(samples: list[Any], shard_size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with TensorCacheWriter(folder, shard_size) as writer:
            for number, sample in enumerate(samples):
                writer.add(str(number), sample)
        cache = TensorCache(folder, verify=True)
        cache.verify()
        assert cache.keys() == [str(number) for number in range(len(samples))]
        together = realize(list(cache))
        for position, sample in enumerate(samples):
            pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
            assert_same(sample, together[position], pairs)
            assert_same(sample, realize(cache[position]), [])
            for place, (before, after) in enumerate(pairs):
                for other_before, other_after in pairs[place + 1 :]:
                    assert (before is other_before) == (after is other_after)
                    assert shares(before, other_before) == shares(after, other_after)
        cache.close()


@FAST
@given(st.lists(tensors(), min_size=1, max_size=5))
def test_plain_safetensors_opens_every_shard(values: list[torch.Tensor]) -> None:
    from safetensors import safe_open

    with tempfile.TemporaryDirectory() as folder:
        with TensorCacheWriter(folder) as writer:
            for number, value in enumerate(values):
                writer.add(str(number), {"x": value})
        (path,) = Path(folder).glob("*.safetensors")
        with safe_open(path, "pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys() if ".~" not in name}  # noqa: SIM118
        for name, tensor in stored.items():
            row = int(name.partition(".")[0])
            assert raw(tensor) == raw(values[row]) and tensor.dtype == values[row].dtype
        distinct = {raw(value) for value in values}
        assert len(stored) == len(distinct)


@FAST
@given(st.sampled_from([dtype for dtype in DTYPES.values() if dtype not in NOT_IN_NUMPY]), shapes)
def test_arrays_come_back_as_arrays(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    array = torch.ones(shape, dtype=dtype).numpy()
    with tempfile.TemporaryDirectory() as folder:
        with TensorCacheWriter(folder) as writer:
            writer.add("a", [array, array])
        one, other = realize(TensorCache(folder)[0])
        assert isinstance(one, np.ndarray) and one is other
        assert one.dtype == array.dtype and np.array_equal(one, array)
