"""Runs over a dataset whose first transforms are remembered, for tests: each row that is computed is noted in a log."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

import sds
from sds.transforms import Remember

__all__ = ["Number", "dataset", "go_through", "write_index"]


class Number:
    """The number in a file as a tensor; a log gets the sample's key first."""

    def __init__(self, log: str, factor: int = 1, pause_s: float = 0.0) -> None:
        self.log = log
        self.factor = factor
        self.pause_s = pause_s  # so that there is something to interrupt

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        file = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, f"{sample['__sample_key__']}\n".encode())
        os.close(file)
        time.sleep(self.pause_s)
        number = int(Path(sample["file"]).read_text())
        return {"number": number, "x": torch.full((4, 16), float(number * self.factor))}


def write_index(folder: Path, num: int, prefix: str | None = None) -> Path:
    """Files of a number each, and an index of them: by their paths, or by URLs that begin so."""
    (folder / "files").mkdir(parents=True)
    lines = ["id,file"]
    for number in range(num):
        path = folder / "files" / f"{number}.txt"
        path.write_text(str(number))
        lines.append(f"{number},{path if prefix is None else f'{prefix}{number}.txt'}")
    (folder / "index.csv").write_text("\n".join(lines) + "\n")
    return folder / "index.csv"


def dataset(folder: str | Path, log: str, pause_s: float = 0.0, factor: int = 1, **keywords: Any) -> Any:
    """A dataset over such an index, whose results are remembered beside it."""
    remember = Remember([Number(log, factor, pause_s)], Path(folder) / "memory", version=f"times {factor}")
    keywords = {"columns_to_download": ["file"], "index_col_name": "id", "shuffle_seed": 2, **keywords}
    return sds.StreamingDataset(
        Path(folder) / "index.csv", Path(folder) / "dst", transforms=[remember], on_error="raise", **keywords
    )


def go_through(
    folder: str, log: str, num_workers: int, num_epochs: int = 1, rank: int = 0, size: int = 1, pause_s: float = 0.0
) -> None:
    """Goes through epochs; checks what it gets, and that each rank gets its share."""
    fork = "fork" if num_workers else None  # a process of a forkserver would start another one
    data = dataset(folder, log, pause_s, world=sds.World(rank=rank, size=size))
    with data, sds.StreamingDataLoader(data, 4, num_workers=num_workers, multiprocessing_context=fork) as loader:
        for _ in range(num_epochs):
            numbers = []
            for batch in loader:
                assert (batch["x"][:, 0, 0] == batch["number"]).all()
                numbers += batch["number"].tolist()
            assert len(set(numbers)) == len(numbers) == data.length(0) // size, numbers
