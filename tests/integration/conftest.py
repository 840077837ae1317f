"""A cache folder whose fetch server does not outlive the test: waiting for its end would cost a second each time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fetching


@pytest.fixture
def dst(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "dst"
    yield folder
    for pid in fetching.server_pids(folder):
        fetching.kill(pid)
