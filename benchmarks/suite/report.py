"""Results -> report.md and a plot (SVG) for each workload: medians, spread, ratios, versions and the commit.

Comes in: what __main__ wrote to results.json. `python benchmarks/suite/report.py RESULTS.json OUT` makes it anew.
"""

from __future__ import annotations

import importlib
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from plots import plot

HEADS = {
    "steady": "steady {unit}",
    "warm": "warm {unit}",
    "cold": "cold {unit}",
    "with_start": "with start-up",
    "first_batch_s": "first batch s",
    "rss_mb": "peak RSS MB",
    "cpu_ms_per_image": "CPU ms each",
    "downloaded_mb": "MB downloaded",
    "of_optimum": "of the least",
    "median_ms": "median ms",
    "p99_ms": "99th percentile ms",
    "open_s": "open s",
    "overhead_us": "CPU us a sample",
}


def median(runs: list[dict[str, Any]], key: str) -> float | None:
    """The middle of a figure over repeats."""
    values = [run[key] for run in runs if run.get(key) is not None]
    return statistics.median(values) if values else None


def spread(runs: list[dict[str, Any]], key: str) -> str:
    """From the least to the most."""
    values = [run[key] for run in runs if run.get(key) is not None]
    return f" ({number(min(values))}-{number(max(values))})" if len(values) > 1 else ""


def number(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ordered(workload: Any, results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Names, best first; limits last."""
    sign = 1 if getattr(workload, "LOWER", False) else -1

    def rank(name: str) -> tuple[bool, float]:
        return results[name][0]["kind"] == "limit", sign * (median(results[name], workload.FIGURE) or 0.0)

    return sorted(results, key=rank)


def table(workload: Any, results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A row for each contender: the figure that counts with its spread, medians of the others, the ratio to sds.

    There is no ratio where a workload says that its rows do different work (`COMPARED` is False).
    """
    is_compared = getattr(workload, "COMPARED", True)
    ours = [name for name in results if results[name][0]["kind"] == "ours"]
    mine = median(results[ours[0]], workload.FIGURE) if ours else None
    columns = [key for key in workload.COLUMNS if any(median(runs, key) is not None for runs in results.values())]
    known = {**HEADS, **getattr(workload, "HEADS", {})}
    heads = [known.get(key, key).format(unit=workload.UNIT) for key in columns] + ["of sds"] * is_compared
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for name in ordered(workload, results):
        runs = results[name]
        cells = []
        for key in columns:
            value = median(runs, key)
            cells.append("" if value is None else number(value) + (spread(runs, key) if key == workload.FIGURE else ""))
        figure = median(runs, workload.FIGURE)
        if is_compared:
            cells.append(f"{figure / mine:.2f}" if mine and figure is not None else "")
        shown = {"ours": f"**{name}**", "limit": f"*{name}*", "shards": f"{name} †"}.get(runs[0]["kind"], name)
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return lines


def provenance(facts: dict[str, Any]) -> str:
    """When, of what and on what."""
    return f"{facts['date']}, commit {facts['commit']}, {facts['cores']} cores, Python {facts['python']}"


def incomplete(results: dict[str, Any]) -> list[str]:
    """Notes on contenders that failed in some repeats and not in all."""
    repeats = results["facts"]["repeats"]
    return [
        f"{workload}: {name}: {len(runs)} of its {repeats} repeats count"
        for workload, found in results["workloads"].items()
        for name, runs in found.items()
        if 0 < len(runs) < repeats
    ]


def scrub(note: str) -> str:
    """What a failure said, without the folders and hosts of the machine that it happened on."""
    return re.sub(r"(?<![\w.])(?:/[\w.@+~-]+)+/([\w.@+~-]+)", r"…/\1", re.sub(r"\w+://[^\s'\"]+", "<URL>", note))


def sorted_workloads(results: dict[str, Any]) -> dict[str, tuple[Any, dict[str, list[dict[str, Any]]]]]:
    """Those that found something, by their number."""
    found = {name: (importlib.import_module(f"workloads.{name}"), each) for name, each in results["workloads"].items()}
    return {name: each for name, each in sorted(found.items(), key=lambda item: item[1][0].NUMBER) if each[1]}


def write(results: dict[str, Any], out: Path, assets: str = "") -> None:
    """report.md and its plots."""
    facts = results["facts"]
    packages = ", ".join(f"{name} {version}" for name, version in {**facts["versions"], **facts["peers"]}.items())
    lines = [
        "# Benchmark report",
        "",
        f"{provenance(facts)}, {facts['repeats']} repeats by turns; "
        "the figure that counts is a median with its least and most, the others are medians. † data converted before, "
        "which is not counted. Limits, in italics, are bare loops in the same run.",
        "",
        f"Versions: {packages}.",
    ]
    for name, (workload, found) in sorted_workloads(results).items():
        plot_name = f"bench-{name}.svg"
        (out / plot_name).write_text(plot(workload, found, ordered(workload, found), number))
        lines += ["", f"## ({workload.NUMBER}) {workload.TITLE}", "", workload.ABOUT, "", *table(workload, found)]
        lines += ["", f"![{workload.TITLE}]({assets}{plot_name})"]
    notes = [*results.get("notes", ()), *incomplete(results)]
    if notes:
        lines += ["", "## Left out", "", *(f"- {scrub(note)}" for note in dict.fromkeys(notes))]
    (out / "report.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
