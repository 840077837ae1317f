"""What observing costs: events off (against a build without the calls), a trace, a record, and both.

    python benchmarks/observe.py [--images 600] [--repeats 7] [--json]

CPU seconds of an epoch of JPEG files, over all threads and worker processes: what others do on the machine changes them
least. Variants take turns within each repeat, and the median of the ratios to their neighbour is printed. `without`
replaces every reporting method of Tally by one that returns at once. Beside the ratios, which have noise of some
percent on a busy machine: the shares that follow from the fastest times of a single call and of a sample.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch

import sds
from sds.events import Tally
from sds.loader.trace import Trace
from sds.testing.media import make_images
from sds.transforms import presets

VARIANTS = ("without", "off", "trace", "record", "both")
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


def run(folder: Path, variant: str, num_workers: int, calls: Counter[str] | None = None) -> float:
    """CPU seconds of an epoch."""
    with ExitStack() as stack:
        if variant == "without":
            stack.enter_context(without_calls(calls))
        chain = presets.create_standard_image_pipeline("jpg", resolution=(256, 256))
        dataset = sds.StreamingDataset(folder / "images", folder / "dst", columns_to_download=["jpg"], transforms=chain)
        stack.enter_context(dataset)
        loader = stack.enter_context(sds.StreamingDataLoader(dataset, 16, num_workers=num_workers))
        start = cpu_s()
        if variant in ("trace", "both"):
            loader.trace(folder / "trace.json")
        if variant in ("record", "both"):
            loader.record(folder / "run.jsonl")
        for _ in loader:
            pass
        loader.close()  # what is written at the end counts
        return cpu_s() - start


def measure(folder: Path, num_workers: int, repeats: int) -> dict[str, float]:
    """CPU seconds by variant (medians), and ratios, each taken within one repeat."""
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    run(folder, "off", num_workers)  # warm
    for repeat in range(repeats):
        for variant in VARIANTS if repeat % 2 else VARIANTS[::-1]:
            seconds[variant].append(run(folder, variant, num_workers))
    found = {f"{variant} (CPU s)": statistics.median(times) for variant, times in seconds.items()}
    for variant in VARIANTS[1:]:
        base = "without" if variant == "off" else "off"
        ratios = [a / b for a, b in zip(seconds[variant], seconds[base], strict=True)]
        found[f"{variant}/{base}"] = statistics.median(ratios)
    return found


def per_call_s(tally: Tally, number: int = 2000, repeats: int = 25) -> dict[str, float]:
    """Seconds of one call, the fastest of many tries."""

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
            start = time.perf_counter()
            for _ in range(number):
                call()
            times.append((time.perf_counter() - start) / number)
        found[name] = min(times)
    return found


def shares(folder: Path, num_images: int) -> dict[str, float]:
    """What the calls of a sample take of the CPU seconds of a sample."""
    calls: Counter[str] = Counter()
    sample_s = min(run(folder, "without", 0, calls) for _ in range(2)) / num_images
    per_sample = {name: number / 2 / num_images for name, number in calls.items()}
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
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads of torch that spin while they wait would be measured, too
    with tempfile.TemporaryDirectory(prefix="sds-observe-") as name:
        folder = Path(name)
        make_images(folder / "images", options.images, size=(375, 500))
        results = {
            "threads": measure(folder, 0, options.repeats),
            "2 workers": measure(folder, 2, options.repeats),
            "by calls": shares(folder, options.images),
        }
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for label, figures in results.items():
        print(label)
        for what, value in figures.items():
            print(f"  {what:28} {value:.4f}")


if __name__ == "__main__":
    main()
