"""The example of DevicePrefetcher trains, with prefetching and without."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("depth", ["0", "2"])
def test_prefetch_to_device(run, depth: str):
    words = ["photos.parquet", "--depth", depth, "--max-bytes", "100mb", "--epochs", "2", "--device", "cpu"]
    out = run("prefetch_to_device.py", *words)
    assert "epoch 0 on cpu: loss" in out and "epoch 1 on cpu: loss" in out
    assert "samples: 128 in" in out and "bottleneck:" in out
