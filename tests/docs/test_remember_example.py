"""The example of Remember runs, goes on in a second run without the photos, and makes a generation for another VAE."""

from __future__ import annotations

import shutil
from pathlib import Path


def test_remember_latents(tmp_path: Path, run_example):
    def run(*words: str) -> list[str]:
        return run_example("remember_latents.py", "--folder", str(tmp_path), "--images", "24", *words).splitlines()

    first = run("--epochs", "2")
    assert [line.partition(",")[0] for line in first] == [
        "epoch 1: 24 latents",
        "epoch 2: 24 latents",
        first[2].partition(",")[0],
    ]
    assert first[2] == "24 latents of (4, 32, 32) remembered, 1 generation(s)"
    assert run("--epochs", "1", "--seed", "1")[1].endswith("2 generation(s)")
    shutil.rmtree(tmp_path / "photos")
    assert run("--epochs", "1")[0].startswith("epoch 1: 24 latents")
