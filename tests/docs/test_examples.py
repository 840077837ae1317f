"""Every example runs as a program of its own would, against the local servers."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT


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


def test_distributed_training_on_two_ranks(home: Path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = [str(ROOT / "examples" / "distributed_training.py"), "photos.parquet", "--batch-size", "4"]
    done = subprocess.run([*torchrun, *program], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == [
        "epoch 0: 8 steps on 2 ranks",
        "epoch 1: 8 steps on 2 ranks",
    ]
    assert all(line.endswith("64 different samples of 64") for line in done.stdout.splitlines())


def test_the_playground_serves_its_bucket_until_it_is_interrupted(tmp_path: Path):
    program = [sys.executable, str(ROOT / "examples" / "playground.py"), "play", "--serve"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        lines = [line.strip() for line in iter(process.stdout.readline, "# serving s3://my-bucket; Ctrl-C ends it\n")]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    assert lines[0] == "cd play" and (tmp_path / "play" / "urls.csv").exists()
    told = dict(line.removeprefix("export ").split("=", 1) for line in lines[1:])
    assert set(told) == {"AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}


def test_no_example_is_forgotten():
    listed = (ROOT / "examples" / "README.md").read_text()
    assert [path.name for path in (ROOT / "examples").glob("*.py") if f"]({path.name})" not in listed] == []
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    examples = "".join(path.read_text() for path in (ROOT / "examples").glob("*.py"))
    for path in (ROOT / "examples").glob("*.py"):
        assert path.stem in tests or f"import {path.stem}" in examples or f"from {path.stem}" in examples, path.name
