"""What the tests of several rooms share: a folder of forty texts, and datasets over it that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fetching
import sds
import texts


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return texts.write(tmp_path_factory.mktemp("source") / "texts", 40)


@pytest.fixture
def make(source: Path, tmp_path: Path) -> Iterator[Callable[..., sds.StreamingDataset]]:
    """make(**options): a dataset over forty texts; make(src=...): over something else."""
    made: list[sds.StreamingDataset] = []

    def one(**options: Any) -> sds.StreamingDataset:
        made.append(texts.make(options.pop("src", source), tmp_path / "dst", **options))
        return made[-1]

    yield one
    was_remote = any(dataset.delivery.client.current_link() for dataset in made)
    for dataset in made:
        dataset.close()
    if was_remote:  # waiting for the fetch server's own end would cost a second each time
        for pid in fetching.server_pids(tmp_path / "dst"):
            fetching.kill(pid)
