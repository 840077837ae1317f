"""What a trainer keeps of images: samples for the tests of tensor caches, and processes that build and read them."""

from __future__ import annotations

import os
from typing import Any

import torch

from sds.tensors import TensorCache, TensorCacheWriter

__all__ = ["build", "read_some", "sample_of"]


def sample_of(number: int, side: int = 4) -> dict[str, Any]:
    """A latent, a conditioning and a caption, all told by the number."""
    latent = torch.full((1, 4, side, side), float(number))
    pooled = torch.full((1, 8), -float(number))
    return {
        "latent": {"samples": latent},
        "conditioning": [[torch.full((1, 7, 8), number + 0.5), {"pooled_output": pooled, "mask": None}]],
        "caption": f"image {number}",
    }


def build(folder: str, num: int, log: str, rank: int = 0, size: int = 1, shard_size: int = 4000, **store: Any) -> None:
    """Builds a rank's share of a cache; each sample that is computed is noted first."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with TensorCacheWriter(folder, shard_size, **store) as writer:
        for number in range(rank, num, size):
            if str(number) not in writer:
                os.write(file, f"{number}\n".encode())
                writer.add(str(number), sample_of(number))
    os.close(file)


def read_some(cache: TensorCache, positions: list[int], answers: Any) -> None:
    """Reads in another process: the mean of each latent."""
    answers.put([float(sample["latent"]["samples"].mean()) for sample in cache.read(positions)])
