"""What prefetching saves: a loop of a loader and training steps that take the same time, with one beside the other.

    python benchmarks/overlap.py [--steps 100] [--step-ms 20] [--repeats 5] [--json]

Both sleep, so that nothing but their order counts. The whole loop is given in units of the larger of the two alone:
they are equal. Medians of the repeats, with the least and the most. `spiky`: every fifth batch takes three times as
long as the mean, the others half of it. Each loop comes right after the loader alone, and depths take turns within a
repeat, so that a machine that slows down does so for all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator

import torch

import sds

DEPTHS = (0, 1, 2, 4)
Cost = Callable[[int], float]


def even(k: int) -> float:  # noqa: ARG001 (as the other)
    """Of the mean, what batch k takes."""
    return 1.0


def spiky(k: int) -> float:
    """Of the mean, what batch k takes."""
    return 3.0 if k % 5 == 4 else 0.5


def batches(cost: Cost, num_steps: int, step_s: float) -> Iterator[torch.Tensor]:
    for k in range(num_steps):
        time.sleep(step_s * cost(k))
        yield torch.tensor(k)


def alone_s(cost: Cost, num_steps: int, step_s: float) -> float:
    """The loader by itself."""
    start = time.perf_counter()
    for _ in batches(cost, num_steps, step_s):
        pass
    return time.perf_counter() - start


def loop_s(cost: Cost, num_steps: int, step_s: float, depth: int) -> float:
    """The loader with training steps."""
    start = time.perf_counter()
    for _ in sds.DevicePrefetcher(batches(cost, num_steps, step_s), depth=depth):
        time.sleep(step_s)
    return time.perf_counter() - start


def measure(num_steps: int, step_s: float, repeats: int) -> dict[str, dict[int, tuple[float, float, float]]]:
    """Median, least and most, by kind of loader and depth."""
    found: dict[str, dict[int, list[float]]] = {}
    for _ in range(repeats):
        for cost in (even, spiky):
            for depth in DEPTHS:
                alone = alone_s(cost, num_steps, step_s)
                ratio = loop_s(cost, num_steps, step_s, depth) / alone
                found.setdefault(cost.__name__, {}).setdefault(depth, []).append(ratio)
    return {
        name: {depth: (statistics.median(each), min(each), max(each)) for depth, each in ratios.items()}
        for name, ratios in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.steps, options.step_ms / 1000, options.repeats)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print("| `depth` | even loader | spiky loader |\n|---|---|---|")
    for depth in DEPTHS:
        cells = [f"{m:.2f} ({a:.2f} to {b:.2f})" for m, a, b in (found[name][depth] for name in ("even", "spiky"))]
        print(f"| {depth}{' (off)' * (not depth)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
