"""Images, videos and latents in one training loop, with gradient accumulation; killed and gone on with at any step.

    python examples/mixed_streams.py [--steps 20] [--checkpoint run.pt]

Half of the optimizer steps are on images, three of ten on videos and two of ten on latents, exactly, in every ten
steps. Videos are large: their batch of 4 comes in two rounds of 2, and gradients add up over the rounds. Run it a
second time with the same checkpoint and more steps, and it goes on. Needs `pip install 'streaming-dataset[video]'`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import save_file

import sds
from sds.testing.media import make_images
from sds.testing.videos import make_videos
from sds.transforms import FilterFields, presets


def make_datasets(folder: Path) -> dict[str, sds.StreamingDataset]:
    """Three sources, and how a sample of each is made: all give a `pixels` of [t, 3, h, w]."""
    make_images(folder / "images", 30, size=(48, 64))
    make_videos(folder / "videos", 8, size=(48, 64), has_sound=False)
    (folder / "latents").mkdir()
    for i in range(12):
        moments = {"mean": torch.full((3, 8, 8), i / 12), "logvar": torch.full((3, 8, 8), -6.0)}
        save_file(moments, folder / "latents" / f"{i:06d}.safetensors")
    single = {"return_image_as_single_frame_video": True, "video_output_field": "pixels"}
    chains = {
        "images": ("jpg", presets.create_standard_image_pipeline("jpg", (32, 32), normalize=True, **single)),
        "videos": (
            "mp4",
            presets.create_standard_video_pipeline("mp4", 4, (32, 32), normalize=True, output_field="pixels"),
        ),
        "latents": ("safetensors", presets.create_standard_image_latent_pipeline("safetensors", **single)),
    }
    return {
        name: sds.StreamingDataset(
            folder / name,
            folder / "cache",
            columns_to_download=[column],
            data_type={"images": "image", "videos": "video", "latents": "image_latent"}[name],
            shuffle_seed=0,
            transforms=[*chain, FilterFields(fields_to_keep=["pixels"])],
        )
        for name, (column, chain) in chains.items()
    }


STREAMS = sds.StreamOptions.init_group(
    [
        {"name": "images", "ratio": 0.5, "batch_size": 8, "is_main": True},
        {"name": "videos", "ratio": 0.3, "batch_size": 4, "num_accum_rounds": 2},
        {"name": "latents", "ratio": 0.2, "batch_size": 8},
    ],
    mixing_strategy="no_mixing",  # all ranks take the same stream at a step
)


def train(folder: Path, num_steps: int, checkpoint: Path) -> None:
    loader = sds.MultiStreamDataLoader(make_datasets(folder), STREAMS, schedule="random_order")
    model = torch.nn.Conv3d(3, 3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    step, steps = 0, Counter()
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["data"])
        step, steps = saved["step"], Counter(saved["steps"])
        print(f"going on at step {step}")
    with loader:
        for batch in loader:  # it never stops by itself
            pixels = batch["pixels"].float().transpose(1, 2)  # [b, 3, t, h, w]
            num_rounds = next(each.num_accum_rounds for each in STREAMS if each.name == batch.stream_name)
            loss = (model(pixels) - pixels).square().mean()
            (loss / num_rounds).backward()
            if batch.num_accum_rounds_left:
                continue  # this optimizer step has more batches
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            steps[batch.stream_name] += 1
            print(f"step {step}: {batch.stream_name} ({batch.data_type}) {tuple(pixels.shape)} loss {loss:.4f}")
            saved = {"model": model.state_dict(), "data": loader.state_dict(), "step": step, "steps": dict(steps)}
            torch.save(saved, checkpoint)
            if step >= num_steps:
                break
    print("steps by stream:", ", ".join(f"{name} {steps[name]}" for name in ("images", "videos", "latents")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoint", type=Path, default=Path("mixed_streams.pt"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        train(Path(name), args.steps, args.checkpoint)


if __name__ == "__main__":
    main()
