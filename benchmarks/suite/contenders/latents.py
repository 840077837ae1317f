"""Latents in batches: what benchmarks/tensors.py measures, as a contender."""

import sys
import time
from pathlib import Path

from timing import given, tell

sys.path.append(str(Path(__file__).parents[2]))
import tensors
import torch

BATCH = 64


def memcpy():
    """Copies as much memory as a batch has, sample by sample from all over a large piece."""
    source, out = torch.randn(1000, *tensors.SHAPE), torch.empty(BATCH, *tensors.SHAPE)
    order = torch.randperm(1000).tolist()
    begun, num = time.perf_counter(), 0
    while time.perf_counter() - begun < 1:
        torch.stack([source[k] for k in order[num % 900 : num % 900 + BATCH]], out=out)
        num += BATCH
    return {"warm": num / (time.perf_counter() - begun)}


if __name__ == "__main__":
    args = given()
    if args["row"] == "memcpy":
        tell(**memcpy())
    kind, _, write, _, _ = tensors.ROWS[args["row"]]
    folder = Path(args["folder"], kind)
    if not (folder / ".done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, args["samples"])
        (folder / ".done").touch()
    num_batches = min(40, args["samples"] // BATCH - 1)
    tell(**tensors.measure(args["row"], folder, args["samples"], BATCH, num_batches))
