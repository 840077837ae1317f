"""A folder of small text files, datasets over it, and transforms that a spawned worker can import."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import sds
from sds.transforms import rng


def write(folder: Path, number: int) -> Path:
    """000.txt, 001.txt, ...; each holds its own name."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(number):
        (folder / f"{i:03d}.txt").write_text(f"text {i:03d}")
    return folder


def keys(items: Iterable[dict[str, Any]]) -> list[str]:
    """The ids of samples or batches, one after the other."""
    found: list[str] = []
    for item in items:
        key = item["__sample_key__"]
        found += [key] if isinstance(key, str) else key
    return found


def ids(*numbers: int) -> list[str]:
    return [f"{i:03d}" for i in numbers]


def read(sample: dict[str, Any]) -> dict[str, Any]:
    """The text instead of its path."""
    sample["txt"] = Path(sample["txt"]).read_text()
    return sample


def draw(sample: dict[str, Any]) -> dict[str, Any]:
    """A number drawn from the sample's own randomness."""
    sample["drawn"] = float(rng(sample).random())
    return sample


class FailOn:
    """Raises for some keys; a cause of its own kind, so that a test can find it again."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if sample["__sample_key__"] in self.failing:
            raise ZeroDivisionError(f"no luck with {sample['__sample_key__']}")
        return sample

    def __repr__(self) -> str:
        return "FailOn()"


class DropOn(FailOn):
    """Drops some keys."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any] | None:
        return None if sample["__sample_key__"] in self.failing else sample


class Slow:
    """Takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.seconds)
        return sample


def twins(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Two samples of one."""
    for part in (0, 1):
        yield {**sample, "part": part}


def make(source: Path, dst: Path, **options: Any) -> sds.StreamingDataset:
    """A dataset over a folder of texts."""
    return sds.StreamingDataset(source, dst, **{"columns_to_download": ["txt"], **options})
