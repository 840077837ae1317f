"""The example of Remember runs, goes on in a second run without the photos, and makes a generation for another VAE."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT


def test_remember_latents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["remember_latents.py", "--folder", str(tmp_path), "--images", "24", *words])
        runpy.run_path(str(ROOT / "examples" / "remember_latents.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

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
