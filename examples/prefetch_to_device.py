"""The plain training loop on whatever device there is; batches are made and copied while the one before is trained on.

python examples/prefetch_to_device.py photos.parquet --depth 2
python examples/prefetch_to_device.py photos.parquet --depth 0    # off, to compare
"""

from __future__ import annotations

import time

import torch
from plain_training_loop import make_dataset, make_model, make_parser, train_step

import sds


def main() -> None:
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--device", help="such as cuda:0; default: what this machine has")
    parser.add_argument("--depth", type=int, default=2, help="batches ahead; 0: off")
    parser.add_argument("--max-bytes", help='at most so many bytes of them, such as "2gb"')
    args = parser.parse_args()

    dataset = make_dataset(args)
    loader = sds.StreamingDataLoader(dataset, args.batch_size)
    with dataset, sds.DevicePrefetcher(loader, args.device, depth=args.depth, max_bytes=args.max_bytes) as batches:
        model = make_model().to(batches.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for epoch in range(args.epochs):
            start = time.perf_counter()
            for batch in batches:
                images = batch["image"]  # float32 [b, 3, 64, 64], on the device already
                loss = train_step(model, optimizer, images)
            print(f"epoch {epoch} on {images.device}: loss {loss:.4f}, {time.perf_counter() - start:.2f} s")
        print(batches.stats())


if __name__ == "__main__":
    main()
