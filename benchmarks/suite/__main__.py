"""Everybody on the same work, in one run.

    python benchmarks/suite [--workloads cold warm ...] [--repeats 5] [--quick] [--out FOLDER] [--home FOLDER]
    python benchmarks/suite --front          what the store itself can do
    python benchmarks/suite --publish docs   the last report into the documentation
    python benchmarks/suite --check [--update]   ratios to the physical limits, beside benchmarks/baseline.json

Makes the data, starts the store, installs the peers into an environment of their own (once), runs each contender in a
process of its own, by turns, and writes report.md, results.json and a plot for each workload.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import check
import report
from bench import Bench
from data import BUCKET, Images
from front import Front, compiled
from publish import publish
from runner import Case, Failed, clear_memory, run, sweep
from venvs import Venv, versions

NAMES = ("cold", "warm", "local", "half", "index", "resume", "access", "latents", "clips", "text", "processes")
OURS = ("streaming-dataset", "torch", "obstore", "simplejpeg", "numpy", "pyarrow")
PEERS = (
    "litdata",
    "mosaicml-streaming",
    "webdataset",
    "datasets",
    "s3torchconnector",
    "boto3",
    "fsspec",
    "spdl",
    "pylance",
)
UNCLEARED = "only root may empty the kernel's cache of files: it was as it was"
DEFAULT_HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sds-bench"


def measure(bench: Bench, workload: ModuleType, repeats: int, timeout_s: float) -> dict[str, list[dict[str, Any]]]:
    """All contenders by turns; who fails twice is left out."""
    todo: list[Case] = workload.cases(bench)
    found: dict[str, list[dict[str, Any]]] = {case.name: [] for case in todo}
    failed: dict[str, int] = {}
    for repeat in range(repeats):
        for case in todo if repeat % 2 == 0 else todo[::-1]:
            if failed.get(case.name, 0) >= 2:
                continue
            try:
                if case.prepare and not found[case.name]:
                    run(replace(case, wipe=(*case.wipe, *case.fresh)), timeout_s, bench.patience_s)
                before = bench.front.served() if bench.front else (0, 0)
                figures = run(case, timeout_s, bench.patience_s)
            except Failed as error:
                failed[case.name] = failed.get(case.name, 0) + 1
                bench.notes.append(f"{workload.NAME}: {case.name} failed: {error}")
                print(f"  {case.name}: failed: {error}", file=sys.stderr, flush=True)
                continue
            after = bench.front.served() if bench.front else (0, 0)
            figures["requests"], figures["downloaded_mb"] = after[0] - before[0], (after[1] - before[1]) / 1e6
            if hasattr(workload, "derive"):
                figures.update(workload.derive(bench, figures))
            found[case.name].append({**figures, "kind": case.kind})
            shown = ", ".join(f"{key} {figures[key]:.4g}" for key in workload.COLUMNS if key in figures)
            print(f"  {case.name}: {shown}", file=sys.stderr, flush=True)
    return {name: runs for name, runs in found.items() if runs}


def facts(venv: Venv | None) -> dict[str, Any]:
    """When, where and what was measured."""
    here = versions(sys.executable)
    theirs = venv.versions() if venv else {}
    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "commit": commit or "unknown",
        "date": time.strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": {name: here[name] for name in OURS if name in here},
        "peers": {name: theirs[name] for name in PEERS if name in theirs},
    }


def measure_front(home: Path, images: Images) -> None:
    """What the store alone can do, and what that costs it."""
    images.make()
    for delay_ms in (0.0, 20.0):
        with Front(compiled(home), images.root, delay_ms) as front:
            told = {
                "kind": "gets",
                "bucket": BUCKET,
                "endpoint": front.endpoint,
                "list": str(images.lists / "urls.txt"),
            }
            rates = [run(Case("gets", "bare.py", told))["steady"] for _ in range(3)]
            cost = 1e6 * front.cpu_s() / front.served()[0]
            most = f", of at most {64 / delay_ms * 1000:,.0f} (64 at once)" if delay_ms else ""
            print(
                f"{delay_ms:.0f} ms: {statistics.median(rates):,.0f} gets/s{most}; {cost:.0f} us CPU of the store a get"
            )


def at_least(least: int, kind: Callable[[str], float] = int) -> Callable[[str], float]:
    """A type of argparse's."""

    def number(text: str) -> float:
        if kind(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return kind(text)

    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=NAMES, choices=NAMES, metavar="NAME", help=" ".join(NAMES))
    parser.add_argument("--repeats", type=at_least(1), default=5)
    parser.add_argument("--images", type=at_least(64), default=3000)
    parser.add_argument(
        "--delay-ms", type=at_least(0, float), default=20.0, help="before the first byte of the store's answers"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: 300 images, one repeat")
    parser.add_argument("--no-peers", action="store_true", help="sds and the limits alone")
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME, help="data, caches and environments are kept there")
    parser.add_argument("--out", type=Path, default=None, help="where the report goes; default: HOME/report")
    parser.add_argument("--timeout", type=at_least(1, float), default=300.0, help="seconds that one run may take")
    parser.add_argument("--front", action="store_true", help="measure the store alone")
    parser.add_argument("--publish", type=Path, default=None, help="put the last report into this documentation")
    parser.add_argument("--check", action="store_true", help="compare with the baseline; exit 1 past 15 percent")
    parser.add_argument("--update", action="store_true", help="with --check: write the baseline anew")
    args = parser.parse_args()
    if args.quick:
        args.images, args.repeats = min(args.images, 300), 1
    home = args.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    images = Images(home, args.images)
    if args.front:
        return measure_front(home, images)
    if args.publish is not None:
        for page in publish(args.out or home / "report", args.publish):
            print(page)
        return None
    if args.check:
        sys.exit(check.main(home, update=args.update))
    images.make()
    venv = None if args.no_peers else Venv(home / "peers")
    if venv is not None:
        venv.make()
    out = args.out or home / "report"
    out.mkdir(parents=True, exist_ok=True)
    unfinished = out / "unfinished.json"  # the last results stay until there are others
    with Front(compiled(home), images.root, args.delay_ms) as front:
        bench = Bench(home, images, front, venv, args.quick)
        results: dict[str, Any] = {
            "facts": {**facts(venv), "images": args.images, "repeats": args.repeats},
            "workloads": {},
        }
        try:
            for name in args.workloads:
                workload = importlib.import_module(f"workloads.{name}")
                print(f"({workload.NUMBER}) {workload.TITLE}", file=sys.stderr, flush=True)
                if not args.quick and not clear_memory(images.root) and UNCLEARED not in bench.notes:
                    bench.notes.append(UNCLEARED)
                results["workloads"][name] = measure(bench, workload, args.repeats, args.timeout)
                results["notes"] = bench.notes
                unfinished.write_text(json.dumps(results, indent=1) + "\n")
        except KeyboardInterrupt:
            sys.exit(f"interrupted; the workloads that were done are in {unfinished}, the last report is as it was")
        finally:
            sweep(home / "caches" / str(images.num))
    if not any(results["workloads"].values()):
        sys.exit("nothing could be measured; why is above")
    unfinished.rename(out / "results.json")
    report.write(results, out)
    print(out / "report.md")
    return None


if __name__ == "__main__":
    main()
