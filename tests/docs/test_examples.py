"""Every example runs as a program of its own would, against the local servers."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs an example in this process, to save the import of torch, and returns what it printed."""

    def call(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return call


def test_images_with_captions_from_s3(run):
    options = ("--where", "quality >= 0.25", "--resolution", "64", "--batch-size", "8", "--epochs", "2")
    out = run("images_with_captions_from_s3.py", "s3://my-bucket/photos.parquet", *options)
    assert "epoch 1: 6 batches of (8, 3, 64, 64)" in out
    assert "bottleneck:" in out


@pytest.mark.parametrize("src", ["texts", "s3://my-bucket/texts"])
def test_text_folder(run, src: str):
    out = run("text_folder.py", src)
    assert "monday/00: text number 1" in out
    assert len(out.splitlines()) == 20


def test_urls_in_a_csv(run, home: Path):
    rows = list(csv.DictReader((home / "urls.csv").read_text().splitlines()))
    rows[3]["image"] += ".gone"
    with (home / "urls.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    out = run("urls_in_a_csv.py", "urls.csv")
    assert "63 of 64 images came" in out
    assert "000003: fetch: object not found" in out


def test_plain_training_loop_goes_on_where_it_stopped(run, home: Path):
    def ids(log: str) -> list[str]:
        return (home / log).read_text().split()

    run("plain_training_loop.py", "photos.parquet", "--checkpoint", "whole.pt", "--log", "whole.log")
    run("plain_training_loop.py", "photos.parquet", "--checkpoint", "run.pt", "--log", "run.log", "--stop-after", "5")
    assert len(ids("run.log")) == 5 * 8
    out = run("plain_training_loop.py", "photos.parquet", "--checkpoint", "run.pt", "--log", "run.log")
    assert "going on at epoch 0, position 40" in out
    assert ids("run.log") == ids("whole.log")
    assert len(ids("whole.log")) == 2 * 64


def test_no_example_is_forgotten():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    examples = "".join(path.read_text() for path in (ROOT / "examples").glob("*.py"))
    for path in (ROOT / "examples").glob("*.py"):
        assert path.stem in tests or f"import {path.stem}" in examples or f"from {path.stem}" in examples, path.name
