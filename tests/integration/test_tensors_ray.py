"""`sds tensors build --engine ray`: the samples of a build in one process, also when workers are killed on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sds.errors import OptionError
from sds.tensors import TensorCache

NUM = 60
CODE = """
import os, signal, torch

def note(sample):
    key = sample["__sample_key__"]
    with open("log", "a") as file:
        file.write(key + "\\n")
    if int(key) % 20 == 7 and not os.path.exists("killed-" + key):
        open("killed-" + key, "w").close()
        if os.path.exists("deadly"):
            os.kill(os.getpid(), signal.SIGKILL)
    return {"x": torch.full((4, 4), float(key)), "text": "row " + key, "__sample_key__": key}

chain = [note]
"""


def build(folder: Path, *words: str) -> dict:
    command = [sys.executable, "-m", "sds", "tensors", "build", "rows.csv", "made", "--transforms", "users_code:chain"]
    done = subprocess.run(
        [*command, "--dst", "cache", "--threads", "1", "--version", "1", "--json", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def furnish(tmp_path):
    def make(name: str, *files: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "rows.csv").write_text("\n".join(["index", *map(str, range(NUM))]) + "\n")
        (folder / "users_code.py").write_text(CODE)
        for file in files:
            (folder / file).touch()
        return folder

    return make


def samples(folder: Path) -> dict[str, tuple[bytes, str]]:
    with TensorCache(folder / "made") as cache:
        cache.verify()
        made = cache.read(range(len(cache)))
        return {key: (each["x"].numpy().tobytes(), each["text"]) for key, each in zip(cache.keys(), made, strict=True)}


def test_without_ray_it_is_said_what_to_install(furnish, monkeypatch):
    from sds.cli.tensors_build import Build, compute_on_ray

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match="needs the package ray") as caught:
        compute_on_ray(Build("rows.csv", "made", "users_code:chain"), 2)
    assert "[ray]" in str(caught.value)


@pytest.mark.timeout(400)  # Ray, and torch in each worker that replaces a dead one
def test_workers_make_what_one_process_makes_and_survive_kills(furnish):
    pytest.importorskip("ray")
    alone, spread = furnish("alone"), furnish("spread", "deadly")
    build(alone)
    facts = build(spread, "--engine", "ray", "--num-workers", "2")
    assert facts["samples"] == NUM and facts["failures"] == 0
    assert samples(spread) == samples(alone)
    with TensorCache(spread / "made") as cache:  # each worker writes its rows in their order, whatever it survived
        in_shards = [[int(key) for key in keys] for keys, _ in cache.read_texts()]
    assert len(in_shards) >= 2 and all(keys == sorted(keys) for keys in in_shards)
    killed = [path.name for path in spread.glob("killed-*")]
    assert len(killed) == 3, "each of them was in the middle of a build"
    computed = (spread / "log").read_text().split()
    # what was journaled before a kill is not computed again; the one on its way is, and what fills up a last step
    assert NUM <= len(computed) <= NUM + len(killed) + 2
