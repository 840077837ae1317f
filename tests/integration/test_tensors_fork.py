"""A cache that copies by threads is forked, and copies by threads again, there and here."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch

from sds.tensors import TensorCache, TensorCacheWriter

NUM, SIDE = 24, 64_000  # 250 KB each: a batch is worth several threads


def is_right(cache: TensorCache, order: list[int]) -> bool:
    """NumPy compares: torch's own threads do not survive a fork."""
    expected = np.repeat(np.array(order, np.float32)[:, None], SIDE, 1)
    return all(np.array_equal(cache.stack(order, "x").numpy(), expected) for _ in range(3))


def in_child(cache: TensorCache, order: list[int]) -> None:
    assert torch.get_num_threads() == 2
    assert is_right(cache, order)
    cache.close()
    assert is_right(cache, order)


@pytest.mark.parametrize("access", ["pread", "mmap"])
def test_threads_are_begun_again_in_a_child(tmp_path: Path, access: str) -> None:
    with TensorCacheWriter(tmp_path, "2mb") as writer:
        for number in range(NUM):
            writer.add(str(number), {"x": torch.full((SIDE,), float(number))})
    order, num_threads = list(range(0, NUM, 2)), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with TensorCache(tmp_path, access=access) as cache:
            assert is_right(cache, order)
            process = multiprocessing.get_context("fork").Process(target=in_child, args=(cache, order[::-1]))
            process.start()
            assert is_right(cache, order)
            process.join(60)
            is_through = process.exitcode
            process.kill()
            process.join()
            assert is_through == 0
            assert is_right(cache, order)
    finally:
        torch.set_num_threads(num_threads)
