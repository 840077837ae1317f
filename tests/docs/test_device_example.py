"""The example of DevicePrefetcher trains, with prefetching and without."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT


@pytest.mark.parametrize("depth", ["0", "2"])
def test_prefetch_to_device(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], depth: str
):
    words = ["photos.parquet", "--depth", depth, "--max-bytes", "100mb", "--epochs", "2", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["prefetch_to_device.py", *words])
    runpy.run_path(str(ROOT / "examples" / "prefetch_to_device.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "epoch 0 on cpu: loss" in out and "epoch 1 on cpu: loss" in out
    assert "samples: 128 in" in out and "bottleneck:" in out
