"""LazyTensor: a tensor that is still on disk. It knows its shape and dtype, and becomes real when it is touched.

Comes in: a slot and the block it lies in. Goes out: a tensor, read once; `realize` makes many real at once, by reads
that are sorted and coalesced per shard. Tensors that shared memory when they were written share it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch

from sds.tensors.layout import DTYPES, Slot, unpack

__all__ = ["LazyBlock", "LazyTensor", "blocks_in", "lazy_in", "realize"]


class Reader(Protocol):
    """Who reads blocks: a cache."""

    def read_blocks(self, blocks: list[LazyBlock]) -> list[torch.Tensor]:
        """The bytes of blocks, each in memory of its own: [n] uint8."""
        ...


class LazyBlock:
    """Bytes of a shard that one sample's tensors lie in."""

    __slots__ = ("data", "digest", "num_bytes", "reader", "shard", "start")

    def __init__(self, reader: Reader, shard: int, start: int, num_bytes: int, digest: bytes) -> None:
        self.reader, self.shard, self.start, self.num_bytes, self.digest = reader, shard, start, num_bytes, digest
        self.data: torch.Tensor | None = None  # [n] uint8, once a tensor of it was touched


class LazyTensor:
    """A tensor of a tensor cache that has not been read yet.

    `shape`, `dtype`, `ndim`, `numel()`, `size()`, `nbytes` and `device` read nothing. Anything else (an operation, an
    attribute, indexing, a torch function) reads it, once. `tensor()` gives it as it is.
    """

    __slots__ = ("__weakref__", "_block", "_is_array", "_slot", "_value")
    __array_priority__ = 1000  # NumPy leaves operations to us

    def __init__(self, slot: Slot, block: LazyBlock, is_array: bool = False) -> None:
        self._slot, self._block, self._is_array = slot, block, is_array
        self._value: Any = None

    @property
    def shape(self) -> torch.Size:
        """Its shape."""
        return torch.Size(self._slot.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype."""
        return DTYPES[self._slot.dtype]

    @property
    def ndim(self) -> int:
        """Number of its dimensions."""
        return len(self._slot.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.numel() * self.dtype.itemsize

    @property
    def device(self) -> torch.device:
        """Where it will be."""
        return torch.device("cpu")

    @property
    def field(self) -> str:
        """The way to it in its sample, such as 'latent.samples'."""
        return self._slot.field

    @property
    def is_realized(self) -> bool:
        """Whether it was read."""
        return self._value is not None

    def numel(self) -> int:
        """Number of its elements."""
        return self.shape.numel()

    def size(self, dim: int | None = None) -> Any:
        """Its shape, or one side of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Number of its dimensions."""
        return self.ndim

    def tensor(self) -> Any:
        """The tensor (or array, if that is what was stored), read on the first call."""
        if self._value is None:
            realize_together([self])
        return self._value

    def __len__(self) -> int:
        if not self._slot.shape:
            raise TypeError("len() of a 0-d tensor")
        return self._slot.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tensor())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols that are looked for by name: a question, not a touch
            raise AttributeError(name)
        return getattr(self.tensor(), name)

    def __array__(self, *args: Any, **options: Any) -> Any:
        return np.asarray(self.tensor(), *args, **options)

    def __repr__(self) -> str:
        return f"LazyTensor({self._slot.field!r}, shape={tuple(self.shape)}, dtype={self.dtype})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.tensor(),)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return function(*realize(args), **realize(kwargs or {}))


def _itself(value: Any) -> Any:
    return value


def _forward(name: str) -> Callable[..., Any]:
    def call(self: LazyTensor, *args: Any) -> Any:
        return getattr(self.tensor(), name)(*realize(args))

    call.__name__ = name
    return call


_OPERATORS = """add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand
or ror xor rxor lshift rshift neg pos abs invert eq ne lt le gt ge getitem setitem bool int float index complex
contains"""
for _name in _OPERATORS.split():
    setattr(LazyTensor, f"__{_name}__", _forward(f"__{_name}__"))
LazyTensor.__hash__ = object.__hash__  # type: ignore[method-assign]  # __eq__ is by element, as a tensor's


def realize(value: Any, device: str | torch.device | None = None) -> Any:
    """The same sample (or samples, in any nesting), with tensors in the places of lazy ones.

    All that is lazy is read at once: sorted, adjacent blocks by one read, equal blocks once.

    Args:
        value: a sample, a list of samples, a LazyTensor, or anything that holds some.
        device: where to move the tensors; None leaves them on the CPU, with their sharing.
    """
    lazy: dict[int, LazyTensor] = {}
    _collect(value, lazy)
    if not lazy:
        return value if device is None else _replaced(value, {}, device)
    known = {key: each._value for key, each in lazy.items() if each._value is not None}
    missing = [each for each in lazy.values() if each._value is None]
    known.update(zip(map(id, missing), _read(missing, keep=False), strict=True))
    return _replaced(value, known, device)


def realize_together(tensors: Iterable[LazyTensor]) -> None:
    """Reads them, and lets them keep what was read."""
    missing = [each for each in tensors if each._value is None]
    for each, value in zip(missing, _read(missing, keep=True), strict=True):
        each._value = value


def _read(tensors: list[LazyTensor], keep: bool) -> list[Any]:
    """The tensors' values; those on one block share its memory."""
    data: dict[int, torch.Tensor] = {}
    missing: dict[int, dict[int, LazyBlock]] = {}
    for block in (each._block for each in tensors):
        if block.data is not None:
            data[id(block)] = block.data
        else:
            missing.setdefault(id(block.reader), {})[id(block)] = block
    for blocks in missing.values():
        wanted = list(blocks.values())
        data.update(zip(blocks, wanted[0].reader.read_blocks(wanted), strict=True))
    if keep:
        for each in tensors:
            each._block.data = data[id(each._block)]
    values = []
    for each in tensors:
        tensor = unpack(each._slot, data[id(each._block)])
        values.append(tensor.numpy() if each._is_array else tensor)
    return values


def lazy_in(value: Any) -> list[LazyTensor]:
    """The lazy tensors in a sample, in their order."""
    lazy: dict[int, LazyTensor] = {}
    _collect(value, lazy)
    return list(lazy.values())


def blocks_in(value: Any) -> list[LazyBlock]:
    """The blocks of all lazy tensors in a sample; whoever has their bytes may fill in `data`, and nothing is read."""
    return list({id(each._block): each._block for each in lazy_in(value)}.values())


def _collect(value: Any, found: dict[int, LazyTensor]) -> None:
    kind = type(value)
    if kind is LazyTensor:
        found[id(value)] = value
    elif kind is dict:
        for each in value.values():
            _collect(each, found)
    elif kind in (list, tuple):
        for each in value:
            _collect(each, found)


def _replaced(value: Any, known: dict[int, Any], device: Any) -> Any:
    kind = type(value)
    if kind is LazyTensor:
        value = known[id(value)]
        kind = type(value)
    if kind is dict:
        return {key: _replaced(each, known, device) for key, each in value.items()}
    if kind in (list, tuple):
        return kind(_replaced(each, known, device) for each in value)
    if device is not None and isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    return value
