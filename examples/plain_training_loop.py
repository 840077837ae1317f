"""A training loop that can be stopped at any step and goes on at the next sample.

python examples/plain_training_loop.py photos.parquet --checkpoint run.pt --stop-after 5
python examples/plain_training_loop.py photos.parquet --checkpoint run.pt
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import sds
from sds.observe import ProgressBar
from sds.transforms import presets


def make_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("src", help="index of images")
    parser.add_argument("--image", default="image", help="column with the paths or URLs of the images")
    parser.add_argument("--id", default="id", help="column with the ids")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--cache", help="cache folder; default: the user's")
    return parser


def make_dataset(args: argparse.Namespace) -> sds.StreamingDataset:
    return sds.StreamingDataset(
        args.src,
        args.cache,
        columns_to_download=[args.image],
        index_col_name=args.id,
        shuffle_seed=42,
        transforms=presets.create_standard_image_pipeline(args.image, (64, 64), normalize=True, output_field="image"),
    )


def make_model() -> nn.Module:
    """Guesses the mean brightness of an image: little to learn, and soon learnt."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 8, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1)
    )


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor) -> float:
    loss = (model(images) - images.mean((1, 2, 3))[:, None]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> None:
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--stop-after", type=int, help="end after so many steps, as if the machine were taken away")
    parser.add_argument("--log", type=Path, help="file that gets the ids of each step")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    dataset = make_dataset(args)
    loader = sds.StreamingDataLoader(dataset, args.batch_size)

    if args.checkpoint.exists():
        checkpoint = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["data"])
        print(f"going on at epoch {dataset.epoch}, position {checkpoint['data']['position']}")

    num_steps = 0
    while dataset.epoch < args.epochs:
        epoch = dataset.epoch
        bar = ProgressBar(loader, f"epoch {epoch}")
        for batch in bar:
            loss = train_step(model, optimizer, batch["image"])  # float32 [b, 3, 64, 64]
            bar.note(f"loss {loss:.4f}")
            num_steps += 1
            if args.log:
                with args.log.open("a") as log:
                    log.write(" ".join(batch["__sample_key__"]) + "\n")
            if num_steps == args.stop_after:
                break
        # the state says what was handed to us, so it fits the weights exactly
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": loader.state_dict()}
        torch.save(state, args.checkpoint)
        print(f"epoch {epoch}: loss {loss:.4f}")
        if num_steps == args.stop_after:
            break
    loader.close()
    dataset.close()


if __name__ == "__main__":
    main()
