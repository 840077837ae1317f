"""Latents that are computed while you train, once: the first epoch encodes, all later ones (and runs) read.

    python examples/remember_latents.py --epochs 3
    python examples/remember_latents.py --epochs 1     # nothing is encoded any more

Needs nothing: it makes photos in a folder. `Encode` stands for your VAE; put a real one in its place.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import torch

import sds
from sds.testing.media import make_images
from sds.transforms import Remember, presets


class Encode:
    """Image -> latent, by a small convolution that stands for a VAE. Its weights belong to the fingerprint."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Conv2d(3, 4, kernel_size=8, stride=8).eval()

    @torch.no_grad()
    def __call__(self, sample: dict) -> dict:
        image = sample["image"].float() / 127.5 - 1  # [3, h, w]
        return {"latent": self.model(image[None])[0], "caption": sample["caption"]}  # [4, h / 8, w / 8]


def photos(folder: Path, num: int) -> Path:
    """An index of made-up photos."""
    index = folder / "photos.csv"
    if not index.exists():
        records = make_images(folder / "photos", num, size=(480, 640))
        with open(index, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "image", "caption"])
            writer.writerows([record["id"], record["path"], record["caption"]] for record in records)
    return index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("remember-latents"))
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="another VAE: another generation of latents")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    options.folder.mkdir(exist_ok=True)

    slow = [*presets.create_standard_image_pipeline("image", resolution=(256, 256)), Encode(options.seed)]
    dataset = sds.StreamingDataset(
        photos(options.folder, options.images),
        options.folder / "cache",
        columns_to_download=["image"],
        index_col_name="id",
        shuffle_seed=0,
        transforms=[Remember(slow, options.folder / "latents")],
    )
    with dataset, sds.StreamingDataLoader(dataset, 8) as loader:
        for epoch in range(options.epochs):
            begin, num = time.perf_counter(), 0
            for batch in loader:
                num += len(batch["latent"])  # [b, 4, 32, 32]
            print(f"epoch {epoch + 1}: {num} latents, {num / (time.perf_counter() - begin):.0f}/s")

    cache = sds.tensors.TensorCache(options.folder / "latents")
    print(
        f"{len(cache)} latents of {tuple(cache[0]['latent'].shape)} remembered, {len(cache.fingerprints)} generation(s)"
    )


if __name__ == "__main__":
    main()
