"""Image-to-image: a table of pairs (input, target), cropped and flipped alike, into a small network.

    python examples/image_to_image.py             # makes pairs of blurred and sharp pictures
    python examples/image_to_image.py pairs.csv   # columns: id, input, target

What is random belongs to the sample, not to the picture: both of a pair are cut at the same place and turned the same
way, also if one of them is smaller.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path

import torch
from PIL import Image, ImageFilter

import sds
from sds.testing.media import make_images
from sds.transforms import FlipImage, presets


def make_pairs(folder: Path) -> Path:
    """Sixteen sharp pictures, and the same at half the size, blurred."""
    rows = []
    for record in make_images(folder / "sharp", 16, size=(120, 160)):
        blurred = folder / "blurred" / Path(record["path"]).name
        blurred.parent.mkdir(exist_ok=True)
        with Image.open(record["path"]) as image:
            image.filter(ImageFilter.GaussianBlur(2)).resize((80, 60)).save(blurred)
        rows.append({"id": record["id"], "input": f"blurred/{blurred.name}", "target": f"sharp/{blurred.name}"})
    with (folder / "pairs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "input", "target"])
        writer.writeheader()
        writer.writerows(rows)
    return folder / "pairs.csv"


def pair(resolution: int) -> list:
    """Both pictures of a pair -> float32 [3, h, w] in [-1, 1], cut and turned alike."""
    chain = []
    for field in ("input", "target"):
        chain += presets.create_standard_image_pipeline(
            field, (resolution, resolution), output_field=field, resize_kwargs={"fit": "random_crop"}
        )
        chain += [FlipImage(field), presets.NormalizeFramesTransform(field)]
    return [*chain, presets.EnsureFieldsTransform(["input", "target"], drop_others=True)]


def main(src: str | None, temporary: str, args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 3, 3, padding=1)
    )
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    dataset = sds.StreamingDataset(
        src or make_pairs(Path(temporary)),
        Path(temporary, "cache"),
        columns_to_download=["input", "target"],
        index_col_name="id",
        shuffle_seed=1,
        transforms=pair(args.resolution),
    )
    with dataset, sds.StreamingDataLoader(dataset, args.batch_size, drop_last=True) as loader:
        for epoch in range(args.epochs):
            losses = []
            for batch in loader:
                loss = (model(batch["input"]) - batch["target"]).square().mean()  # [b, 3, h, w] both
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: loss {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", nargs="?", help="table of pairs; default: made-up ones")
    parser.add_argument("--resolution", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=4)
    with tempfile.TemporaryDirectory() as folder:
        options = parser.parse_args()
        main(options.src, folder, options)
