"""VAE latents and text embeddings that were computed before: each sample draws its latent and one of its captions.

    python examples/latents.py

An "encoder" (here: an average over patches) writes the moments of each picture as safetensors, and one embedding for
each of three captions. Training then reads no picture: a latent is drawn from its moments, and one caption is chosen
before anything is fetched, so that only its embedding is.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

import sds
from sds.testing.media import draw_image
from sds.transforms import ChooseField, LoadTextEmbedding, presets

STYLES, NUM_TOKENS = ("short", "long", "tags"), 8


def encode_image(pixels: np.ndarray) -> dict[str, torch.Tensor]:
    """The moments of a picture [h, w, 3]: what the encoder of a VAE gives before it draws."""
    image = torch.from_numpy(pixels).permute(2, 0, 1).float() / 127.5 - 1  # [3, h, w]
    mean = torch.nn.functional.avg_pool2d(image, 8)  # [3, h / 8, w / 8]
    return {"mean": mean, "logvar": torch.full_like(mean, -4.0)}


def encode_text(text: str) -> torch.Tensor:
    """One row of numbers for each word: [words, 16]."""
    return torch.stack([torch.full((16,), sum(word.encode()) % 97 / 97) for word in text.split()])


def make_latents(folder: Path, count: int = 24) -> Path:
    """Writes moments, embeddings, and the table that names them."""
    rows = []
    for number in range(count):
        pixels, caption = draw_image(number, (64, 96))
        captions = {"short": caption.split(" and ")[0], "long": f"a picture of {caption}", "tags": "drawing shapes"}
        save_file(encode_image(pixels), folder / f"{number}.latent.safetensors")
        row: dict[str, object] = {"id": f"{number:04d}", "latent": f"{number}.latent.safetensors"}
        for style, text in captions.items():
            save_file({"embeddings": encode_text(text)}, folder / f"{number}.{style}.safetensors")
            row |= {f"caption_{style}": text, f"emb_{style}": f"{number}.{style}.safetensors"}
        rows.append(row)
    pq.write_table(pa.Table.from_pylist(rows), folder / "latents.parquet")
    return folder / "latents.parquet"


def main(folder: Path) -> None:
    embeddings = [f"emb_{style}" for style in STYLES]
    captions = [f"caption_{style}" for style in STYLES]
    dataset = sds.StreamingDataset(
        make_latents(folder),
        folder / "cache",
        columns_to_download=["latent", *embeddings],
        index_col_name="id",
        data_type="image_latent",
        shuffle_seed=1,
        # half of the time the long caption; its embedding is the only one that is fetched
        pre_download_transforms=[ChooseField(embeddings, "emb", [0.3, 0.5, 0.2], companions={"caption": captions})],
        transforms=[
            *presets.create_standard_image_latent_pipeline("latent"),
            LoadTextEmbedding("emb", NUM_TOKENS, mask_field="emb_mask"),
            presets.EnsureFieldsTransform(["image", "emb", "emb_mask", "caption"], drop_others=True),
        ],
    )
    with dataset, sds.StreamingDataLoader(dataset, 8) as loader:
        for epoch in range(2):
            for batch in loader:
                latents, texts = batch["image"], batch["emb"]  # float32 [b, 3, 8, 12], [b, 8, 16]
            print(
                f"epoch {epoch}: latents {tuple(latents.shape)}, embeddings {tuple(texts.shape)}, {batch['caption'][0]}"
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
