"""`sds report`: a page about a run that was recorded with `loader.record(path)`."""

from __future__ import annotations

from typing import Annotated

import typer

from sds.cli.words import AsJson, show

__all__ = ["EXAMPLES", "HELP", "command"]

HELP = "Write a page about a recorded run: throughput, waits, hit rate, cost, slow downloads, failures."
EXAMPLES = "Examples:  sds report run.jsonl -o report.html  |  sds report runs/today --prices prices.json --json"


def command(
    run: Annotated[str, typer.Argument(help="What loader.record(path) wrote: a file, or a folder of several ranks'.")],
    out: Annotated[str, typer.Option("--out", "-o", help="The HTML file to write.")] = "report.html",
    prices: Annotated[str | None, typer.Option(help="A JSON or YAML table of prices.")] = None,
    as_json: AsJson = False,
) -> None:
    """Writes the page."""
    from sds.observe.costs import cost
    from sds.observe.numbers import flat
    from sds.observe.page import report
    from sds.observe.runs import read_runs

    place = report(run, out, prices)
    ranks = [
        {
            "rank": each.beginning.rank,
            **flat(each.stats),
            "bottleneck": each.stats.bottleneck,
            "cost": cost(each.stats, prices).to_dict(),
        }
        for each in read_runs(run)
    ]
    show({"report": str(place), "ranks": ranks}, f"report: {place}", as_json)
