"""Trains on whatever device there is; batches are made and copied while the one before is trained on.

python examples/prefetch_to_device.py photos.parquet --depth 2
python examples/prefetch_to_device.py photos.parquet --depth 0    # off, to compare
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import sds
from sds.transforms import presets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", help="index of images")
    parser.add_argument("--image", default="image", help="column with the paths or URLs of the images")
    parser.add_argument("--id", default="id", help="column with the ids")
    parser.add_argument("--device", help="such as cuda:0; default: what this machine has")
    parser.add_argument("--depth", type=int, default=2, help="batches ahead; 0: off")
    parser.add_argument("--max-bytes", help='at most so many bytes of them, such as "2gb"')
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--cache", help="cache folder; default: the user's")
    args = parser.parse_args()

    dataset = sds.StreamingDataset(
        args.src,
        args.cache,
        columns_to_download=[args.image],
        index_col_name=args.id,
        shuffle_seed=42,
        transforms=presets.create_standard_image_pipeline(args.image, (64, 64), normalize=True, output_field="image"),
    )
    loader = sds.StreamingDataLoader(dataset, args.batch_size)
    with dataset, sds.DevicePrefetcher(loader, args.device, depth=args.depth, max_bytes=args.max_bytes) as batches:
        model = nn.Sequential(nn.Conv2d(3, 8, 8, stride=8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 1))
        model.to(batches.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for epoch in range(args.epochs):
            start = time.perf_counter()
            for batch in batches:
                images = batch["image"]  # float32 [b, 3, 64, 64], on the device already
                loss = (model(images) - images.mean((1, 2, 3))[:, None]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch} on {images.device}: loss {loss.item():.4f}, {time.perf_counter() - start:.2f} s")
        print(batches.stats())


if __name__ == "__main__":
    main()
