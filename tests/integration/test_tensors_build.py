"""`sds tensors build`, killed at any moment and started again: the same samples in their order, none computed twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import torch

from sds.tensors import TensorCache
from sds.tensors.journal import keys_in_parts

NUM = 160
NUM_KILLS = 4
CODE = """
import os, time, torch

LOG = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def make(sample):
    key = sample["__sample_key__"]
    os.write(LOG, f"{key}\\n".encode())
    time.sleep(0.004 * (hash(key) % 3))  # rows are done in another order than they are asked for
    return {"x": torch.full((8, 8), float(key)), "text": "row " + key, "__sample_key__": key}

chain = [make]
"""


def furnish(folder: Path) -> Path:
    folder.mkdir()
    (folder / "rows.csv").write_text("\n".join(["index", *(f"{row:03d}" for row in range(NUM))]) + "\n")
    (folder / "users_code.py").write_text(CODE)
    return folder


def start(folder: Path) -> subprocess.Popen[bytes]:
    words = ["rows.csv", "made", "--transforms", "users_code:chain", "--dst", "cache", "--shard-size", "8kb"]
    command = [sys.executable, "-m", "sds", "tensors", "build", *words, "--threads", "3", "--version", "1", "--json"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def computed(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().split() if log.exists() else []


def on_disk(folder: Path) -> set[str]:
    """The keys that a killed build left: committed, or taken and noted in a journal."""
    made = folder / "made"
    taken = {key for keys in keys_in_parts(made / ".parts", "version 1").values() for key in keys}
    if list(made.glob("*.index")):
        with TensorCache(made) as cache:
            assert cache.fingerprint == "version 1"
            taken |= set(cache.keys())
    return taken


def samples(folder: Path) -> list[tuple[str, torch.Tensor, str]]:
    with TensorCache(folder / "made") as cache:
        cache.verify()
        made = cache.read(range(len(cache)))
        return [(key, each["x"], each["text"]) for key, each in zip(cache.keys(), made, strict=True)]


def test_a_build_that_is_killed_again_and_again(tmp_path: Path) -> None:
    whole, killed = furnish(tmp_path / "whole"), furnish(tmp_path / "killed")
    first = start(whole)
    moments, known = random.Random(17), set[str]()
    for _ in range(NUM_KILLS):
        before = len(computed(killed))
        wanted = before + moments.randrange(1, NUM // (NUM_KILLS + 1))
        process = start(killed)
        while len(computed(killed)) < wanted and process.poll() is None:
            time.sleep(0.001)
        time.sleep(moments.random() * 0.01)
        process.kill()
        process.communicate(timeout=60)
        assert not known & set(computed(killed)[before:]), "what was on disk is not computed again"
        known = on_disk(killed)
    before, last = len(computed(killed)), start(killed)
    facts = json.loads(last.communicate(timeout=120)[0])
    assert (last.returncode, facts["samples"], facts["failures"]) == (0, NUM, 0)
    assert 0 < len(known) < NUM and facts["already_there"] >= len(known)
    again = computed(killed)[before:]
    assert not known & set(again) and known | set(again) == {f"{row:03d}" for row in range(NUM)}
    assert len(again) == len(set(again))

    first.communicate(timeout=120)
    for (key, x, text), (other, y, same) in zip(samples(whole), samples(killed), strict=True):
        assert (key, text) == (other, same) and torch.equal(x, y)
    assert not (killed / "made" / ".parts").exists()
