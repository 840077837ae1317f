"""Which columns are fetched in parts: the first transform to touch such a column says that it can read byte ranges.

Comes in: the chain of transforms, and the sizes of objects as they become known. Goes out: what to ask for. A column
whose objects turn out to be small, or to be needed whole after all, is asked for whole from then on: that is one
request, made ahead of time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sds.fetch import HEAD, File
from sds.types import Transform

__all__ = ["Ranges", "ranged_columns"]

_NUM_KNOWN = 8  # sizes, before their mean says something
_MEMORY = 64  # over about so many it is taken


@dataclass
class _Known:
    """What was seen of a column's objects: how many, their mean size; how many in parts, how many whole after all."""

    number: int = 0
    mean: float = 0.0
    num_ranged: int = 0
    num_whole: int = 0


class Ranges:
    """The columns that may be fetched in parts, and what is known of their objects. Safe from many threads."""

    def __init__(self, transforms: Iterable[Transform], columns: Iterable[str]) -> None:
        self._worth = ranged_columns(transforms, columns)
        self._known = {column: _Known() for column in self._worth}
        self._lock = threading.Lock()

    def file(self, column: str, url: str, version: str | None) -> File:
        """What to ask for: the first block of an object, or all of it."""
        worth = self._worth.get(column)
        if worth is None:
            return File(url, version)
        known = self._known[column]
        is_small = worth > 0 and known.number >= _NUM_KNOWN and known.mean <= worth
        is_useless = worth > 0 and known.num_ranged >= _NUM_KNOWN and 2 * known.num_whole > known.num_ranged
        return File(url, version) if is_small or is_useless else File(url, version, HEAD, worth)

    def saw(self, column: str, size: int) -> None:
        """Takes note of an object's size."""
        with self._lock:
            known = self._known[column]
            known.number += 1
            known.mean += (size - known.mean) / min(known.number, _MEMORY)

    def read(self, column: str, *, is_whole: bool) -> None:
        """Takes note of an object that was read by ranges, and whether it was fetched whole in the end."""
        with self._lock:
            self._known[column].num_ranged += 1
            self._known[column].num_whole += is_whole

    def __contains__(self, column: str) -> bool:
        return column in self._worth


def ranged_columns(transforms: Iterable[Transform], columns: Iterable[str]) -> dict[str, int]:
    """Columns whose first reader takes byte ranges, and the size from which on it is worth it."""
    found: dict[str, int] = {}
    for column in columns:
        for transform in transforms:
            worth: Mapping[str, int] = getattr(transform, "reads_ranges", {})
            if column in worth:
                found[column] = worth[column]
            if column in worth or _may_touch(transform, column):
                break
    return found


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
