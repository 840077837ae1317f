"""A folder of images with a .txt caption beside each: decoded, cropped at random, flipped, batched.

    python examples/images_with_captions.py                      # makes a few pictures in a temporary folder
    python examples/images_with_captions.py my/photos --resolution 512

0001.jpg and 0001.txt are one sample; folders inside work too, and so does s3://bucket/photos.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import sds
from sds.testing.media import make_images
from sds.transforms import FlipImage, presets


def make_photos(folder: Path) -> Path:
    """Twelve pictures with captions."""
    for record in make_images(folder / "photos", 12, size=(240, 320)):
        Path(record["path"]).with_suffix(".txt").write_text(record["caption"] + "\n")
    return folder / "photos"


def main(src: str | None, cache: str, args: argparse.Namespace) -> None:
    size = (args.resolution, args.resolution)
    dataset = sds.StreamingDataset(
        src or make_photos(Path(cache)),
        Path(cache, "cache"),
        columns_to_download=["jpg", "txt"],
        shuffle_seed=args.seed,
        transforms=[
            *presets.create_standard_image_pipeline("jpg", size, resize_kwargs={"fit": "random_crop"}),
            FlipImage("image"),
            *presets.create_standard_text_pipeline("txt", "caption", strip=True),
            presets.EnsureFieldsTransform(["image", "caption"], check_dummy_values=True, drop_others=True),
        ],
    )
    with dataset, sds.StreamingDataLoader(dataset, args.batch_size) as loader:
        for batch in loader:
            images, captions = batch["image"], batch["caption"]  # uint8 [b, 3, h, w], list of b texts
            print(tuple(images.shape), captions[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", nargs="?", help="folder of images and captions; default: made-up ones")
    parser.add_argument("--resolution", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seed", type=int, default=42)
    with tempfile.TemporaryDirectory() as temporary:
        options = parser.parse_args()
        main(options.src, temporary, options)
