"""A program as users write it, for their type checker: `make lint` runs mypy over it; it is never run.

What is right has the type that it says; what is wrong is an error there, which an unneeded `type: ignore` would tell.
"""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import assert_type

import sds
from sds.transforms import presets


def brighten(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "image": sample["image"].clamp(min=10)}


dataset = sds.StreamingDataset(
    "photos",
    columns_to_download=["jpg"],
    shuffle_seed=42,
    transforms=[*presets.create_standard_image_pipeline("jpg", resolution=(64, 64)), brighten],
)
loader = sds.StreamingDataLoader(dataset, batch_size=4, num_workers=2)
for batch in sds.DevicePrefetcher(loader, "cpu", depth=2):
    images: torch.Tensor = batch["image"]
state: dict[str, Any] = loader.state_dict()
loader.load_state_dict(state)
assert_type(dataset[0], dict[str, Any])
assert_type(dataset[0:2], list[dict[str, Any]])
assert_type(loader.stats().rows_per_s, float)
assert_type(len(sds.interleave([dataset, dataset], ratios=[3, 1])), int)

dataset.map(brighten)  # type: ignore[attr-defined]
sds.interleave([dataset], probabilities=[1.0])  # type: ignore[call-arg]
sds.StreamingDataset("photos", shufle_seed=3)  # type: ignore[call-arg]
sds.StreamingDataset("photos", shuffle_seed="42")  # type: ignore[arg-type]
sds.StreamingDataLoader(dataset, batch_sise=4)  # type: ignore[call-arg]
sds.DevicePrefetcher(loader, dept=2)  # type: ignore[call-arg]
