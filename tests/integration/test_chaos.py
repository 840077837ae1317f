"""Chaos: several readers, datasets and limits on one folder, a network that fails, and kill -9 of anybody.

No wrong byte, the limit never passed, nothing leaked, everything delivered exactly once. `make soak` has three minutes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import chaos
import fetching
from sds.fetch.launch import _name_of, _runtime_folder
from sds.testing import Fault, FaultyProxy, S3Server

NUM_OBJECTS = 80
LIMITS = [900_000, 1_500_000]  # of about 3 x 80 x 16 KB = 3.8 MB
# one of twenty requests fails, in one way or another
FAULTS = [
    Fault("reset", share=0.01),
    Fault("status", share=0.01, status=503),
    Fault("short", share=0.01),
    Fault("empty", share=0.005),
    Fault("refuse", share=0.005),
    Fault("flip", share=0.005),
    Fault("delay", share=0.005, seconds=0.3),
]


def sources(s3: S3Server, new_name, folder: Path) -> list[str]:
    """Three datasets of objects whose bytes follow from their names."""
    made = []
    for _ in range(3):
        bucket = new_name()
        s3.create_bucket(bucket)
        files = folder / bucket
        files.mkdir(parents=True)
        sizes = {f"{bucket}-{i}": 4_000 + 300 * i for i in range(NUM_OBJECTS)}
        for name, size in sizes.items():
            (files / name).write_bytes(fetching.content(name, size))
        s3.upload_folder(files, bucket)
        src = folder / f"{bucket}.csv"
        rows = [f"{name},s3://{bucket}/{name},{size}" for name, size in sizes.items()]
        src.write_text("\n".join(["id,file,size", *rows]))
        made.append(str(src))
    return made


@pytest.mark.parametrize("seconds", [12, pytest.param(180, marks=pytest.mark.soak)])
@pytest.mark.timeout(600)
def test_chaos(s3: S3Server, new_name, tmp_path: Path, dst: Path, seconds: int) -> None:
    seed = int(os.environ.get("SDS_CHAOS_SEED", "0"))
    indexes = sources(s3, new_name, tmp_path / "source")
    (tmp_path / "run").mkdir()
    with FaultyProxy(s3.endpoint, FAULTS, seed=seed) as proxy, fetching.Watch(dst) as watch:
        plan = {
            "folder": str(tmp_path / "run"),
            "dst": str(dst),
            "sources": indexes,
            "limits": LIMITS,
            "storage_options": {**s3.storage_options, "endpoint": proxy.endpoint, "checksums": True},
            "seconds": seconds,
            "seed": seed,
        }
        command = [sys.executable, chaos.__file__, json.dumps(plan)]
        found = subprocess.run(command, stdout=subprocess.PIPE, timeout=seconds + 180, check=True, text=True)
    answer = json.loads(found.stdout)
    assert not answer["failed"], answer["failed"][0]
    assert not answer["hung"] and not answer["left"], answer
    num_epochs = [check_log(tmp_path / "run" / f"reader-{k}.jsonl") for k in range(len(chaos.NUM_WORKERS))]
    fetching.say(
        f"{seconds} s: killed {answer['killed']}; epochs {num_epochs}; requests {len(proxy.exchanges())}, faults "
        f"{dict(proxy.injected)}; at most {watch.most} of {max(LIMITS)} bytes in {watch.num_samples} samples"
    )
    assert sum(proxy.injected.values()) > 0 and answer["killed"]
    assert watch.most <= max(LIMITS)
    check_folder(dst)


def check_log(log: Path) -> int:
    """How many epochs a reader finished; each has every sample once, in the order of its states."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    by_epoch: dict[int, list[str]] = {}
    for line in lines:
        by_epoch.setdefault(line["epoch"], []).extend(line["keys"])
    assert sorted(by_epoch) == list(range(len(by_epoch)))
    for epoch, keys in by_epoch.items():
        counts = Counter(keys)
        repeated = {key: n for key, n in counts.items() if n > 1}
        assert not repeated and len(counts) == NUM_OBJECTS, f"{log.name}, epoch {epoch}: {len(counts)}, {repeated}"
    return len(by_epoch)


def check_folder(dst: Path) -> None:
    """What is left on disk: whole files under their names, within the limit; no unfinished ones, no socket."""
    fetching.until(lambda: not fetching.server_pids(dst), 10)
    files = [path for path in (dst / "objects").rglob("*") if path.is_file()]
    for path in files:
        size = re.fullmatch(r"[0-9a-f]{32}-(\d+)(\.\w+)?", path.name)
        assert size and path.stat().st_size == int(size[1]), f"not a whole file: {path}"
    assert sum(path.stat().st_size for path in files) <= max(LIMITS)
    assert not (_runtime_folder() / f"{_name_of(str(dst))}.sock").exists()
