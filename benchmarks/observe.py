"""What observing costs: events off (against a build without the calls), a trace, a record, and both.

    python benchmarks/observe.py [--images 192] [--pairs 80] [--workers] [--json]

CPU seconds of an epoch of JPEG files, over all threads (with `--workers`: and worker processes): what others do on the
machine changes them least. `without` replaces every reporting method of Tally by one that returns at once. Two variants
are compared by many pairs of short epochs, one right after the other, the order turned around each time: the median of
their ratios, with the interval that holds it in 95 of 100 such benchmarks. Beside them: the shares that follow from the
fastest times of a single call and of a sample.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

import sds
from sds.events import Tally
from sds.loader.trace import Trace
from sds.testing.media import make_images
from sds.transforms import presets

COMPARED = (("off", "without"), ("trace", "off"), ("record", "off"))
REPORTS = ("count", "add_busy", "add_wait", "add_depth", "add_traffic", "add_download")


@contextmanager
def without_calls(calls: Counter[str] | None = None) -> Iterator[None]:
    """Tally reports nothing: what a build without the calls would do. Counts what would have been reported."""
    before = {name: getattr(Tally, name) for name in (*REPORTS, "waiting")}

    def nothing(name: str):
        def report(*_, **__):
            if calls is not None:
                calls[name] += 1
            return nullcontext() if name == "waiting" else None

        return report

    for name in before:
        setattr(Tally, name, nothing(name))
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(Tally, name, method)


def cpu_s() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@contextmanager
def images(folder: Path, num_workers: int = 0) -> Iterator[sds.StreamingDataLoader]:
    chain = presets.create_standard_image_pipeline("jpg", resolution=(256, 256))
    options = {"columns_to_download": ["jpg"], "transforms": chain}
    with (
        sds.StreamingDataset(folder / "images", folder / "dst", **options) as dataset,
        sds.StreamingDataLoader(dataset, 16, num_workers=num_workers) as loader,
    ):
        yield loader


def epoch_s(loader: sds.StreamingDataLoader, folder: Path, variant: str, calls: Counter[str] | None = None) -> float:
    """CPU seconds of an epoch; what is written at its end counts."""
    with without_calls(calls) if variant == "without" else nullcontext():
        start = cpu_s()
        if variant == "trace":
            loader.trace(folder / "trace.json")
        if variant == "record":
            loader.record(folder / "run.jsonl")
        for _ in loader:
            pass
        loader.close()
        return cpu_s() - start


def compare(folder: Path, num_pairs: int, num_workers: int = 0) -> dict[str, tuple[float, float, float]]:
    """The median of the ratios of two variants, and where it lies for sure."""
    found: dict[str, tuple[float, float, float]] = {}
    with images(folder, num_workers) as loader:
        for variant, base in COMPARED:
            epoch_s(loader, folder, variant)  # warm
            ratios: list[float] = []
            for number in range(num_pairs):
                order = (variant, base) if number % 2 else (base, variant)
                seconds = {each: epoch_s(loader, folder, each) for each in order}
                ratios.append(seconds[variant] / seconds[base])
            found[f"{variant}/{base}"] = median_of(ratios)
    return found


def median_of(values: list[float]) -> tuple[float, float, float]:
    """With its interval of 95%, by the order of the values."""
    values, half = sorted(values), 0.98 * math.sqrt(len(values))
    low, high = math.floor((len(values) - 1) / 2 - half), math.ceil((len(values) - 1) / 2 + half)
    return statistics.median(values), values[max(0, low)], values[min(len(values) - 1, high)]


def per_call_s(tally: Tally, number: int = 2000, repeats: int = 25) -> dict[str, float]:
    """CPU seconds of one call, the fastest of many tries."""

    def wait() -> None:
        with tally.waiting("fetch", "key"):
            pass

    begun = time.perf_counter()
    calls = {
        "add_busy": lambda: tally.add_busy("decode", begun, subject="key"),
        "add_wait": lambda: tally.add_wait("consumer", 0.1, start_s=begun),
        "add_depth": lambda: tally.add_depth("batches", 1),
        "count": lambda: tally.count("hits"),
        "waiting": wait,
    }
    found: dict[str, float] = {}
    for name, call in calls.items():
        times = []
        for _ in range(repeats):
            start = time.thread_time()
            for _ in range(number):
                call()
            times.append((time.thread_time() - start) / number)
        found[name] = min(times)
    return found


def shares(folder: Path, num_images: int) -> dict[str, float]:
    """What the calls of a sample take of the CPU seconds of a sample."""
    calls: Counter[str] = Counter()
    with images(folder) as loader:
        sample_s = min(epoch_s(loader, folder, "without", calls) for _ in range(5)) / num_images
    per_sample = {name: number / 5 / num_images for name, number in calls.items()}
    off = per_call_s(Tally())
    trace = Trace(folder / "calls.json")
    on = per_call_s(Tally(trace))
    trace.close()
    found = {"calls a sample": sum(per_sample.values()), "sample (CPU ms)": 1000 * sample_s}
    for name, each in (("off", off), ("trace", on)):
        found[f"add_busy, {name} (us)"] = 1e6 * each["add_busy"]
        found[f"share, {name}"] = sum(number * each[call] for call, number in per_sample.items()) / sample_s
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=192)
    parser.add_argument("--pairs", type=int, default=80)
    parser.add_argument("--workers", action="store_true", help="two worker processes instead of threads")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads of torch that spin while they wait would be measured, too
    with tempfile.TemporaryDirectory(prefix="sds-observe-") as name:
        folder = Path(name)
        make_images(folder / "images", options.images, size=(375, 500))
        ratios = compare(folder, options.pairs, 2 * options.workers)
        by_calls = shares(folder, options.images)
    if options.json:
        print(json.dumps({"ratios": ratios, "by calls": by_calls}, indent=2))
        return
    for what, (median, low, high) in ratios.items():
        print(f"{what:28} {median:.4f} ({low:.4f} to {high:.4f})")
    for what, value in by_calls.items():
        print(f"{what:28} {value:.4f}")


if __name__ == "__main__":
    main()
