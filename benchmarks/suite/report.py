"""Results -> report.md and a plot (SVG) for each workload: medians, spread, ratios, versions and the commit.

Comes in: what __main__ wrote to results.json. `python benchmarks/suite/report.py RESULTS.json OUT` makes it anew.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

HEADS = {
    "steady": "steady {unit}",
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
MARK = "<!-- results -->"  # what is below it is made
COLOURS = {"ours": "#1f6f50", "peer": "#7a8ea8", "shards": "#b3bfd0", "limit": "#d9c59a"}
LEGEND = {"ours": "sds", "peer": "the same files", "shards": "data converted before", "limit": "physical limit"}


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
    """A row for each contender: the figure that counts with its spread, medians of the others, the ratio to sds."""
    ours = [name for name in results if results[name][0]["kind"] == "ours"]
    mine = median(results[ours[0]], workload.FIGURE) if ours else None
    columns = [key for key in workload.COLUMNS if any(median(runs, key) is not None for runs in results.values())]
    heads = [HEADS.get(key, key).format(unit=workload.UNIT) for key in columns]
    lines = [f"| | {' | '.join(heads)} | of sds |", f"|---|{'---|' * (len(heads) + 1)}"]
    for name in ordered(workload, results):
        runs = results[name]
        cells = []
        for key in columns:
            value = median(runs, key)
            cells.append("" if value is None else number(value) + (spread(runs, key) if key == workload.FIGURE else ""))
        figure = median(runs, workload.FIGURE)
        ratio = f"{figure / mine:.2f}" if mine and figure is not None else ""
        shown = {"ours": f"**{name}**", "limit": f"*{name}*", "shards": f"{name} †"}.get(runs[0]["kind"], name)
        lines.append(f"| {shown} | {' | '.join(cells)} | {ratio} |")
    return lines


def plot(workload: Any, results: dict[str, list[dict[str, Any]]]) -> str:
    """Bars with their spread."""
    names = ordered(workload, results)
    left, width, step, top = 210, 720, 26, 44
    height = top + step * len(names) + 34
    figure = workload.FIGURE
    values = {name: [run[figure] for run in results[name] if run.get(figure) is not None] for name in names}
    most = max((max(each) for each in values.values() if each), default=1.0) or 1.0
    scale = (width - left - 90) / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-size="15">({workload.NUMBER}) {escape(workload.TITLE)}: {workload.UNIT}</text>',
    ]
    for k, name in enumerate(names):
        y, each = top + k * step, values[name]
        if not each:
            continue
        middle = statistics.median(each)
        colour = COLOURS[results[name][0]["kind"]]
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{left}" y="{y + 2}" width="{middle * scale:.1f}" height="16" fill="{colour}"/>')
        low, high = left + min(each) * scale, left + max(each) * scale
        parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y + 10}" y2="{y + 10}" stroke="#222"/>')
        parts.append(f'<text x="{max(high, left + middle * scale) + 6:.1f}" y="{y + 14}">{number(middle)}</text>')
    x = left
    for kind, words in LEGEND.items():
        if any(results[name][0]["kind"] == kind for name in names):
            parts.append(f'<rect x="{x}" y="{height - 22}" width="10" height="10" fill="{COLOURS[kind]}"/>')
            parts.append(f'<text x="{x + 14}" y="{height - 13}">{words}</text>')
            x += 24 + 7 * len(words)
    return "\n".join([*parts, "</svg>"]) + "\n"


def write(results: dict[str, Any], out: Path, assets: str = "") -> None:
    """report.md and its plots."""
    facts = results["facts"]
    packages = ", ".join(f"{name} {version}" for name, version in {**facts["versions"], **facts["peers"]}.items())
    lines = [
        "# Benchmark report",
        "",
        f"{facts['date']}, commit {facts['commit']}, {facts['cores']} cores, Python {facts['python']}, "
        f"{facts['repeats']} repeats by turns; "
        "the figure that counts is a median with its least and most, the others are medians. † data converted before, "
        "which is not counted. Limits, in italics, are bare loops in the same run.",
        "",
        f"Versions: {packages}.",
    ]
    for name, found in results["workloads"].items():
        workload = importlib.import_module(f"workloads.{name}")
        if not found:
            continue
        plot_name = f"bench-{name}.svg"
        (out / plot_name).write_text(plot(workload, found))
        lines += ["", f"## ({workload.NUMBER}) {workload.TITLE}", "", workload.ABOUT, "", *table(workload, found)]
        lines += ["", f"![{workload.TITLE}]({assets}{plot_name})"]
    if results.get("notes"):
        lines += ["", "## Left out", "", *(f"- {note}" for note in dict.fromkeys(results["notes"]))]
    (out / "report.md").write_text("\n".join(lines) + "\n")


def publish(out: Path, docs: Path) -> Path:
    """Puts the last report into the documentation: below a mark in benchmarks.md, its plots among the assets."""
    results = json.loads((out / "results.json").read_text())
    write(results, docs / "assets", assets="assets/")
    made, page = docs / "assets" / "report.md", docs / "benchmarks.md"
    body = made.read_text().partition("\n")[2].replace("\n## ", "\n### ")
    page.write_text(page.read_text().partition(MARK)[0] + MARK + "\n" + body)
    made.unlink()
    return page


if __name__ == "__main__":
    write(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
