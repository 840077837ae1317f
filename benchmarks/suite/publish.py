"""A report -> the documentation: all of it in benchmarks.md, three plots on the landing page and in the README.

What is made stands below or between marks, so that it is made anew by the next run; the words around it are people's.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from plots import bound_of, own_way
from report import median, number, ordered, provenance, sorted_workloads, spread, write

BELOW = "<!-- results -->"  # in benchmarks.md: what is below it is made
BETWEEN = re.compile(r"(<!-- bench:(\w+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
LEAST_REPEATS = 5  # fewer have no spread to speak of


def publish(out: Path, docs: Path) -> list[Path]:
    """Puts the last report into benchmarks.md, its plots among the assets, and three of them where people arrive.

    Returns:
        The pages that it has written.
    """
    if not (out / "results.json").exists():
        raise SystemExit(f"there is no report in {out}: run `python benchmarks/suite` before, or say --out")
    results = json.loads((out / "results.json").read_text())
    if why := unfit(results):
        raise SystemExit(f"not published: {why}")
    for old in (docs / "assets").glob("bench-*.svg"):
        old.unlink()
    write(results, docs / "assets", assets="assets/")
    made, page = docs / "assets" / "report.md", docs / "benchmarks.md"
    body = made.read_text().partition("\n")[2].replace("\n## ", "\n### ")
    page.write_text(page.read_text().partition(BELOW)[0] + BELOW + "\n" + body)
    made.unlink()
    pages = [page]
    for page, up in ((docs / "index.md", ""), (docs.parent / "README.md", "docs/")):
        page.write_text(filled(page.read_text(), results, up))
        pages.append(page)
    return pages


def unfit(results: dict[str, Any]) -> str | None:
    """Why a report is not published; None if it may be. Results of several runs in one file are not one report."""
    facts = results["facts"]
    if facts["repeats"] < LEAST_REPEATS or not facts["peers"]:
        return (
            f"{facts['repeats']} repeats and {len(facts['peers'])} peers: what is published has at least "
            f"{LEAST_REPEATS} repeats, and peers beside sds"
        )
    for name, found in results["workloads"].items():
        most = max(map(len, found.values()), default=0)
        if found and most != facts["repeats"]:
            return f"{name} has {most} repeats where the report says {facts['repeats']}: measure everything in one run"
    if not re.fullmatch(r"[\w.-]+", facts["commit"]):
        return f"{facts['commit']!r} is not one commit: measure everything in one run"
    return None


def filled(text: str, results: dict[str, Any], up: str) -> str:
    """A page with what is between its marks made anew; `up` is the way from it to the documentation."""
    known = sorted_workloads(results)

    def fill(found: re.Match[str]) -> str:
        name = found[2]
        if name == "facts":
            words = (
                f"{provenance(results['facts'])}; {results['facts']['repeats']} repeats by turns. "
                f"All workloads, tables, versions and failures: [benchmarks]({up}benchmarks.md).\n"
            )
        elif name in known:
            workload, runs = known[name]
            words = f"{sentence(workload, runs)}\n\n![{workload.TITLE}]({up}assets/bench-{name}.svg)\n"
        else:
            words = ""
        return found[1] + words + found[3]

    return BETWEEN.sub(fill, text)


def sentence(workload: Any, results: dict[str, list[dict[str, Any]]]) -> str:
    """The plot in words: sds, its limit, the best of those who read the same files, the best of the others."""
    best: dict[str, str] = {}
    for name in ordered(workload, results):
        best.setdefault(results[name][0]["kind"], name)
    figure = {name: median(runs, workload.FIGURE) or 0.0 for name, runs in results.items()}

    def told(name: str) -> str:
        return number(figure[name])

    ours = best.get("ours")
    if ours is None:
        return f"**{workload.TITLE}.**"
    words = f"**{workload.TITLE}**: {ours}: {told(ours)} {workload.UNIT}{spread(results[ours], workload.FIGURE)}"
    bound = bound_of({name: figure[name] for name in results if results[name][0]["kind"] == "limit"})
    if bound:
        words += f", {_share(figure[ours], figure[bound])} of what {bound} make"
        if (own := own_way(bound)) in figure:
            words += (
                f" as peers do them, and {_share(figure[ours], figure[own])} of the same loop with its own transforms"
            )
    if "peer" in best:
        words += f". The fastest of the others that read these files: {best['peer']}, {told(best['peer'])}"
    if "shards" in best:
        words += f". The fastest of those whose data was converted before: {best['shards']}, {told(best['shards'])}"
    return words + "."


def _share(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0.0:.0%}"
