"""Tar shards on S3: global shuffle by byte ranges, beside WebDataset's own sequential reading; and random access.

    pip install --no-deps --target /tmp/webdataset webdataset==1.0.2 braceexpand
    python benchmarks/tars.py --webdataset /tmp/webdataset [--samples 9000] [--shards 30] [--rounds 3] [--modes bytes]

JPEG files of 500x375 with a label, in shards on SeaweedFS. Each run is a fresh process with an empty cache; the index
of the shards is there, which is made once (the time that took is printed). `bytes` hands out what is in the shards, as
lists of 64 dicts on both sides, nothing decoded; `images` decodes and resizes to uint8 [3, 256, 256] with the same code
on both sides, in batches of 64. WebDataset reads shard after shard, through its own curl, and keeps nothing; sds
shuffles all samples of all shards, and keeps them in its cache. A rate is of a whole epoch, from construction to the
last batch, the start of sds's fetch server and of workers included. Rounds interleave; the ratio is of medians. Where
others work on the machine, CPU time says more: that of all processes of a run (workers, curl and fetch server too), and
that of the store beside it. Then `ds[i]` for random i, one at a time, cold and from the cache. `next epochs` of sds
find everything in the cache; WebDataset reads the store again.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

import sds
import sds.dataset
import sds.loader
from sds.testing import S3Server
from sds.testing.media import make_images
from sds.transforms import presets

BATCH, BUCKET = 64, "benchmark-tars"


def make_shards(folder: Path, num_samples: int, num_shards: int) -> int:
    """Writes the shards; the bytes they have. Few pictures are made, and used again and again."""
    pictures = [
        Path(record["path"]).read_bytes()
        for record in make_images(folder / "pictures", 64, size=(375, 500), quality=92)
    ]
    (folder / "shards").mkdir()
    total = 0
    for number in range(num_shards):
        path = folder / "shards" / f"train-{number:04}.tar"
        with tarfile.open(path, "w") as tar:
            for i in range(number, num_samples, num_shards):
                for ending, content in (("cls", str(i % 1000).encode()), ("jpg", pictures[i % len(pictures)])):
                    info = tarfile.TarInfo(f"{i:08}.{ending}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        total += path.stat().st_size
    return total


def chain() -> list[Any]:
    return presets.create_standard_image_pipeline("jpg", resolution=(256, 256))


class Decode:
    """The same transforms, on what WebDataset hands out."""

    def __init__(self) -> None:
        self.chain = chain()

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        for transform in self.chain:
            sample = transform(sample)
        return {"image": sample["image"], "__key__": sample["__key__"]}


def cpu_s() -> float:
    """CPU seconds of this process and its children, the store's aside."""
    own = psutil.Process()
    times = own.cpu_times()
    alive = [each.cpu_times() for each in own.children() if each.name() != "weed"]
    return sum((*times[:4], *(second for each in alive for second in each[:4])))


def store_cpu_s() -> float:
    """CPU seconds of the store so far."""
    found = [each.cpu_times() for each in psutil.Process().children(recursive=True) if each.name() == "weed"]
    return sum(each.user + each.system for each in found)


def run_webdataset(args: argparse.Namespace) -> dict[str, float]:
    sys.path.insert(0, args.webdataset)
    import webdataset as wds
    from torch.utils.data import DataLoader, default_collate

    urls = [f"{args.endpoint}/{BUCKET}/train-{number:04}.tar" for number in range(args.shards)]
    start, cpu = time.perf_counter(), cpu_s()
    pipeline = wds.WebDataset(urls, shardshuffle=False)
    if args.mode == "images":
        pipeline = pipeline.map(Decode())
    workers = min(args.workers, args.shards)
    collate = default_collate if args.mode == "images" else list
    loader = DataLoader(pipeline, BATCH, num_workers=workers, collate_fn=collate)
    num = count(loader)
    return {"samples": num, "rate": num / (time.perf_counter() - start), "cpu": cpu_s() - cpu}


def count(loader: Any) -> int:
    num = 0
    for batch in loader:
        num += len(batch["image"] if isinstance(batch, dict) else batch)
    return num


def dataset(args: argparse.Namespace, **more: Any) -> sds.StreamingDataset:
    return sds.StreamingDataset(
        f"s3://{BUCKET}/train-{{0000..{args.shards - 1:04}}}.tar",
        args.dst,
        shuffle_seed=1,
        storage_options=json.loads(args.storage),
        on_error="raise",
        cache_limit=None,
        **more,
    )


def run_sds(args: argparse.Namespace) -> dict[str, float]:
    start, cpu = time.perf_counter(), cpu_s()
    with dataset(args, transforms=chain() if args.mode == "images" else None) as ds:
        collate = None if args.mode == "images" else list
        with sds.StreamingDataLoader(ds, BATCH, collate_fn=collate, num_workers=args.workers) as loader:
            num = count(loader)
            found = {"samples": num, "rate": num / (time.perf_counter() - start), "cpu": cpu_s() - cpu}
            start = time.perf_counter()
            return {**found, "warm": count(loader) / (time.perf_counter() - start)}


def run_random(args: argparse.Namespace) -> dict[str, float]:
    choose, found = random.Random(0), {}
    with dataset(args) as ds:
        rows = [choose.randrange(len(ds)) for _ in range(200)]
        for name in ("cold", "cached"):
            times = []
            for row in rows:
                start = time.perf_counter()
                ds[row]
                times.append(time.perf_counter() - start)
            found[f"{name}_ms"] = 1000 * statistics.median(times)
    return found


def run_index(args: argparse.Namespace) -> dict[str, float]:
    start = time.perf_counter()
    with dataset(args) as ds:
        return {"samples": len(ds), "seconds": time.perf_counter() - start}


RUNS = {"webdataset": run_webdataset, "sds": run_sds, "random": run_random, "index": run_index}


def measure(run: str, args: argparse.Namespace, mode: str = "bytes", workers: int = 0) -> dict[str, Any]:
    """Runs in a fresh process."""
    command = [sys.executable, __file__, "--run", run, "--mode", mode, "--workers", str(workers)]
    for name in ("webdataset", "endpoint", "storage", "dst", "shards"):
        command += [f"--{name}", str(getattr(args, name))]
    # one thread for each decode: several that wait for each other are slow where others want the cores too
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--webdataset", default="", help="the folder that webdataset was installed to")
    parser.add_argument("--samples", type=int, default=9000)
    parser.add_argument("--shards", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", nargs="+", choices=["bytes", "images"], default=["bytes", "images"])
    for name in ("run", "mode", "endpoint", "storage", "dst"):
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(RUNS[args.run](args)))
        return
    with tempfile.TemporaryDirectory() as folder, S3Server(anonymous=True) as server:
        total = make_shards(Path(folder), args.samples, args.shards)
        server.upload_folder(Path(folder) / "shards", BUCKET)
        args.endpoint, args.storage = server.endpoint, json.dumps(server.storage_options)
        args.dst = str(Path(folder) / "dst")
        print(f"{args.samples} samples, {args.shards} shards, {total / 1e6:.0f} MB")
        made = measure("index", args)
        print(f"index of {made['samples']} samples made in {made['seconds']:.1f} s, once")

        rows = [(f"sds, global shuffle, {n} workers", "sds", n) for n in (0, 2)]
        if args.webdataset:
            rows += [(f"webdataset, sequential, {n} workers", "webdataset", n) for n in (0, 2)]
        for mode in args.modes:
            rates: dict[str, list[float]] = {name: [] for name, _, _ in rows}
            warm: dict[str, list[float]] = {name: [] for name, _, _ in rows}
            costs: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in rows}
            for _ in range(args.rounds):
                for name, run, workers in rows:
                    shutil.rmtree(Path(args.dst) / "objects", ignore_errors=True)
                    before = store_cpu_s()
                    found = measure(run, args, mode, workers)
                    costs[name].append((found["cpu"], store_cpu_s() - before))
                    assert found["samples"] == args.samples, (name, found)
                    rates[name].append(found["rate"])
                    warm[name].append(found.get("warm", 0.0))
            medians = {name: statistics.median(each) for name, each in rates.items()}
            best = {run: max(medians[name] for name, each, _ in rows if each == run) for _, run, _ in rows}
            cpu_us = {
                name: [1e6 * statistics.median(each) / args.samples for each in zip(*runs, strict=True)]
                for name, runs in costs.items()
            }
            for name, rate in medians.items():
                shown = ", ".join(f"{each:.0f}" for each in rates[name])
                cpu = "{:.0f} us CPU a sample, the store's {:.0f} us".format(*cpu_us[name])
                print(f"{mode:7} {name:34} {rate:7.0f} samples/s  ({shown}), {cpu}")
            if args.webdataset:
                again = max(statistics.median(each) for each in warm.values())
                first, next_ = best["sds"] / best["webdataset"], again / best["webdataset"]
                print(
                    f"{mode:7} best sds / best webdataset: {first:.2f}; next epochs, {again:.0f} samples/s: {next_:.2f}"
                )
                fastest = {run: max((medians[name], name) for name, each, _ in rows if each == run)[1] for run in best}
                own, other = (sum(cpu_us[fastest[run]]) for run in ("sds", "webdataset"))
                print(f"{mode:7} CPU time of these two, with the store's: {own:.0f} and {other:.0f} us a sample")
        shutil.rmtree(Path(args.dst) / "objects", ignore_errors=True)
        found = measure("random", args)
        print(f"ds[i], median of 200: {found['cold_ms']:.1f} ms cold, {found['cached_ms']:.2f} ms from the cache")


if __name__ == "__main__":
    main()
