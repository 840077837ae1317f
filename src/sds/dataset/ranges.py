"""Which columns are fetched in parts: the first transform to touch such a column says that it can read byte ranges.

Comes in: the chain of transforms, and the sizes of objects as they become known. Goes out: what to ask for. A column
whose objects turn out to be small, or to be needed whole after all, is asked for whole from then on: that is one
request, made ahead of time. One large object among the last ones, and the next are asked for their size again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sds.fetch import HEAD, File
from sds.forks import renew_locks
from sds.types import Transform, size_in

__all__ = ["Ranges", "ranged_columns"]

_NUM_KNOWN = 8  # sizes, before they say something
_MEMORY = 64  # sizes that count: those of the last objects
_MUCH = 64  # times what a small object has: a cache with room for that has room for most large ones


@dataclass
class _Known:
    """What was seen of a column's objects: the last sizes; how many were read in parts, how many whole after all."""

    sizes: deque[int] = field(default_factory=lambda: deque(maxlen=_MEMORY))
    num_ranged: int = 0
    num_whole: int = 0


class Ranges:
    """The columns that may be fetched in parts, and what is known of their objects. Safe from many threads."""

    def __init__(self, transforms: Iterable[Transform], columns: Iterable[str], limit: int | None = None) -> None:
        self._worth = ranged_columns(transforms, columns)
        self._limit = limit  # of the cache
        self._known = {column: _Known() for column in self._worth}
        self._lock = threading.Lock()
        renew_locks(self, "_lock")

    def file(self, column: str, url: str, version: str | None) -> File:
        """What to ask for: the first block of an object, or all of it."""
        worth = self._worth.get(column)
        if worth is None:
            return File(url, version)
        if worth == 0:
            return File(url, version, HEAD)
        size = size_in(version)
        with self._lock:
            known = self._known[column]
            sizes = known.sizes if size is None else [size] * _NUM_KNOWN
            is_small = len(sizes) >= _NUM_KNOWN and max(sizes) <= worth
            if size is None and self._limit is not None and self._limit < _MUCH * worth:
                is_small = False  # a large one after many small ones might not fit
            is_useless = known.num_ranged >= _NUM_KNOWN and 2 * known.num_whole > known.num_ranged
        return File(url, version) if is_small or is_useless else File(url, version, HEAD, worth)

    def saw(self, column: str, size: int) -> bool:
        """Takes note of an object's size; whether it is so large that it may be read by ranges, however it came."""
        with self._lock:
            self._known[column].sizes.append(size)
        return size > self._worth[column]

    def read(self, column: str, *, is_whole: bool) -> None:
        """Takes note of an object that was read by ranges, and whether it was fetched whole in the end."""
        with self._lock:
            self._known[column].num_ranged += 1
            self._known[column].num_whole += is_whole

    def __contains__(self, column: str) -> bool:
        return column in self._worth

    def __bool__(self) -> bool:
        return bool(self._worth)


def ranged_columns(transforms: Iterable[Transform], columns: Iterable[str]) -> dict[str, int]:
    """Columns whose first reader takes byte ranges, and the size from which on it is worth it."""
    found: dict[str, int] = {}
    for column in columns:
        for transform in transforms:
            worth: Mapping[str, int] = getattr(transform, "reads_ranges", {}) if _knows_ranges(transform) else {}
            if column in worth:
                found[column] = worth[column]
            if column in worth or _may_touch(transform, column):
                break
    return found


def _knows_ranges(transform: Transform) -> bool:
    """Whether whoever wrote its `__call__` knew of its `reads_ranges`: a subclass with another one may want a path."""
    for each in type(transform).__mro__:
        if "reads_ranges" in vars(each) or "__call__" in vars(each):
            return "reads_ranges" in vars(each)
    return False


def _may_touch(transform: Transform, column: str) -> bool:
    """Whether a transform may want the column's path: another's may, ours only if one of its options names it."""
    if not type(transform).__module__.startswith("sds.transforms."):
        return True
    options = {name: value for name, value in vars(transform).items() if not name.startswith("_")}
    return any(_names(value, column) for value in options.values())


def _names(value: Any, column: str) -> bool:
    if isinstance(value, str):
        return value == column
    if isinstance(value, dict):
        return any(_names(each, column) for pair in value.items() for each in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return any(_names(each, column) for each in value)
    return not isinstance(value, int | float | type(None))  # anything else may hold whatever it likes
