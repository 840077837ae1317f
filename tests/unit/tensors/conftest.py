"""Small caches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remembering import sample_of
from sds.tensors import TensorCacheWriter


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    """Makes a cache of so many samples; sides alternate between 4 and 6."""

    def make(num: int = 10, name: str = "cache", shard_size: str | int = 2000, **options: Any) -> Path:
        with TensorCacheWriter(tmp_path / name, shard_size, **options) as writer:
            for number in range(num):
                if f"key {number}" not in writer:
                    writer.add(f"key {number}", sample_of(number, 4 + 2 * (number % 2)))
        return tmp_path / name

    return make
