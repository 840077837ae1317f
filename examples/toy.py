"""What the resume examples share: a toy index, its dataset, a model of one layer, and a list of the ids seen so far."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import sds

ROWS, EPOCHS, BATCH_SIZE = 52, 3, 8


def arguments() -> argparse.Namespace:
    """FOLDER [--stop-after STEPS]: a second run over the same folder goes on where the first was stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="where data, cache and checkpoints go")
    parser.add_argument("--stop-after", type=int, help="steps after which the process ends without a word")
    parser.add_argument("--num-workers", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    return args


def to_tensors(row: dict) -> dict:
    x = torch.tensor([row["a"], row["b"]], dtype=torch.float32)  # [2]
    return {"id": row["number"], "x": x, "y": x.sum(0, keepdim=True)}


def make_dataset(folder: Path, **keywords: object) -> sds.StreamingDataset:
    index = folder / "rows.csv"
    if not index.exists():
        lines = [f"{i:04},{i},{i % 7},{i % 5}" for i in range(ROWS)]
        index.write_text("\n".join(["index,number,a,b", *lines]) + "\n")
    return sds.StreamingDataset(
        index, folder / "cache", columns_to_download=[], transforms=[to_tensors], shuffle_seed=1, **keywords
    )


class Toy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(x) - y).square().mean()}


class Seen:
    """The ids that the model has trained on, in order. It is part of every checkpoint, as the model is."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def add(self, ids: torch.Tensor) -> None:
        self.ids += ids.tolist()

    def state_dict(self) -> dict[str, list[int]]:
        return {"ids": list(self.ids)}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self.ids = list(state["ids"])


def check(folder: Path, seen: Seen, num_samples: int = EPOCHS * ROWS) -> None:
    """What was seen, over all processes, is what a run that is never stopped sees: each epoch once, in its order."""
    with make_dataset(folder) as ds:
        expected = [sample["id"] for _ in range(EPOCHS) for sample in ds]
    assert seen.ids == expected[:num_samples], f"{seen.ids} is not {expected[:num_samples]}"
    print(f"{len(seen.ids)} samples seen, each epoch once and in its order")
