"""Ten streams in one loop against the same streams one after the other, in the same proportions.

    python benchmarks/mixing.py [--batches 400] [--repeats 5] [--num-workers 0]

Four streams of JPEG images, three of latents, three of texts, all local, so that what is measured is the loader. The
mix and its parts run by turns, each with fresh loaders over the same datasets, after one round that warms up. Prints
one JSON object: `share` is samples per second of the mix over that of the parts, by medians, `best_share` by the
fastest runs, `cpu_share` by processor time (without workers), which says most on a machine that does other things too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

import sds
from sds.testing.media import make_images
from sds.transforms import presets

BATCH = 16
IMAGES, LATENTS, TEXTS = 192, 256, 256


def make_datasets(folder: Path) -> dict[str, sds.StreamingDataset]:
    """image0..3, latent0..2, text0..2."""
    make_images(folder / "images", IMAGES)
    for kind, count in (("latents", LATENTS), ("texts", TEXTS)):
        (folder / kind).mkdir()
        for i in range(count):
            if kind == "latents":
                moments = {"mean": torch.randn(4, 64, 64), "logvar": torch.zeros(4, 64, 64)}
                save_file(moments, folder / kind / f"{i:06d}.safetensors")
            else:
                (folder / kind / f"{i:06d}.txt").write_text(f"a caption of some words, number {i} " * 20)
    kinds = {
        "image": ("images", "jpg", presets.create_standard_image_pipeline("jpg", resolution=(256, 256))),
        "latent": ("latents", "safetensors", presets.create_standard_image_latent_pipeline("safetensors")),
        "text": ("texts", "txt", presets.create_standard_text_pipeline("txt")),
    }
    made = {}
    for kind, number in (("image", 4), ("latent", 3), ("text", 3)):
        source, column, transforms = kinds[kind]
        for i in range(number):
            made[f"{kind}{i}"] = sds.StreamingDataset(
                folder / source,
                folder / "cache",
                columns_to_download=[column],
                transforms=transforms,
                shuffle_seed=i,
                infinite_iteration=True,
            )
    return made


Times = tuple[float, float]  # seconds on the clock, and of processor time


def now() -> Times:
    return time.perf_counter(), time.process_time()


def run_mix(datasets: dict[str, sds.StreamingDataset], batches: int, num_workers: int) -> Times:
    options = [sds.StreamOptions(name, 0.1, i, batch_gpu=BATCH) for i, name in enumerate(datasets)]
    with sds.MultiStreamDataLoader(datasets, options, num_workers=num_workers) as loader:
        start = now()
        for _ in itertools.islice(loader, batches):
            pass
        stop = now()
    return stop[0] - start[0], stop[1] - start[1]


def run_parts(datasets: dict[str, sds.StreamingDataset], batches: int, num_workers: int) -> Times:
    seconds = cpu = 0.0
    for dataset in datasets.values():
        with sds.StreamingDataLoader(dataset, BATCH, num_workers=num_workers, prefetch_batches=4) as loader:
            start = now()
            for _ in itertools.islice(loader, batches // len(datasets)):
                pass
            stop = now()
        seconds, cpu = seconds + stop[0] - start[0], cpu + stop[1] - start[1]
    return seconds, cpu


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-workers", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        datasets = make_datasets(Path(name))
        run_parts(datasets, args.batches // 4, args.num_workers)
        mixes, parts = [], []
        for _ in range(args.repeats):
            mixes.append(run_mix(datasets, args.batches, args.num_workers))
            parts.append(run_parts(datasets, args.batches, args.num_workers))
    samples = args.batches * BATCH
    (mixes, mix_cpu), (parts, parts_cpu) = (zip(*times, strict=True) for times in (mixes, parts))
    found = {
        "mix_samples_per_s": round(samples / statistics.median(mixes)),
        "parts_samples_per_s": round(samples / statistics.median(parts)),
        "share": round(statistics.median(parts) / statistics.median(mixes), 3),
        "best_share": round(min(parts) / min(mixes), 3),
        "cpu_share": None if args.num_workers else round(statistics.median(parts_cpu) / statistics.median(mix_cpu), 3),
        "shares": [round(p / m, 3) for m, p in zip(mixes, parts, strict=True)],
        "num_workers": args.num_workers,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sds": sds.__version__,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
