"""A page about a run: one HTML file with everything in it, and nothing fetched from anywhere.

Comes in: records of runs. Goes out: text: throughput, what the time went to, hit rate and cost over time, the slowest
downloads, traffic by bucket, and the rows that failed. Whatever comes from outside is escaped, and the page forbids
itself scripts and requests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from sds.errors import OptionError
from sds.observe.costs import cost, dollars, priced
from sds.observe.plots import draw_lines, draw_stack
from sds.observe.prices import read_prices
from sds.observe.runs import Run, read_runs
from sds.observe.style import CSS
from sds.stats import Moment, Stats
from sds.units import format_bytes

__all__ = ["make_page", "report"]

_MAX_ROWS = 100
_WINDOW = 5  # moments that a rate is taken over
_BUSY = {"fetch": "waiting for files", "loader": "waiting for the loader"}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def report(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    prices: Mapping[str, Any] | str | os.PathLike[str] | None = None,
) -> Path:
    """Writes a page about a recorded run.

    Args:
        path: what `loader.record(path)` wrote: a file, or a folder of files of several ranks.
        out: the HTML file to write.
        prices: see `read_prices`.
    """
    page = make_page(read_runs(path), prices)
    place = Path(out)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(page, encoding="utf-8")
    except OSError as error:
        hint = "give the path of a file in a folder that you may write to"
        raise OptionError(f"page cannot be written: {place}: {error.strerror or error}", hint=hint) from error
    return place


def make_page(runs: Sequence[Run], prices: Mapping[str, Any] | str | os.PathLike[str] | None = None) -> str:
    """The page, as text; one part for each rank."""
    table = read_prices(prices)
    begun = runs[0].beginning
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(begun.at))
    parts = [_part(run, table, is_alone=len(runs) == 1) for run in runs]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>sds run {escape(when)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width"><style>{CSS}</style></head><body>'
        f'<h1>{escape(runs[0].path.stem)}</h1><p class="faint">began {escape(when)}, '
        f"{len(runs)} rank{'s' if len(runs) > 1 else ''}, sds {escape(begun.version)}</p>"
        f"{''.join(parts)}</body></html>\n"
    )


def _part(run: Run, prices: Mapping[str, Any], *, is_alone: bool) -> str:
    stats = run.stats
    paid = cost(stats, prices)
    first = "-" if stats.time_to_first_batch is None else f"{stats.time_to_first_batch:.2f} s"
    facts = {
        "samples": f"{stats.samples:,}",
        "samples/s": f"{stats.rows_per_s:,.0f}",
        "downloaded": format_bytes(stats.bytes_downloaded),
        "hit rate": f"{stats.hit_rate:.1%}",
        "first batch": first,
        "cost": dollars(paid.total),
        "retries": f"{stats.retries:,}",
        "failures": f"{stats.failures:,}",
    }
    listed = "".join(
        f"<li><span class=faint>{escape(name)}</span><b>{escape(text)}</b></li>" for name, text in facts.items()
    )
    head = "" if is_alone else f"<h2>Rank {run.beginning.rank}</h2>"
    slowest = [(f"{slow.seconds:.2f} s", format_bytes(slow.num_bytes), slow.url) for slow in stats.slowest]
    stores = [
        (line.store, line.storage_class, f"{line.requests:,}", format_bytes(line.num_bytes), dollars(line.total))
        for line in paid.lines
    ]
    failures = [(f.key, f.stage, f.reason, f.url or "") for f in run.failures]
    return (
        f'{head}<ul class="facts">{listed}</ul>'
        f'<p class="verdict">Bottleneck: <b>{escape(stats.bottleneck)}</b> · {escape(stats.knob)}</p>'
        f'<div class="plots">{"".join(_plots(run, prices))}</div>'
        f"{_table('Traffic and cost', ('store', 'class', '#requests', '#downloaded', '#cost'), stores)}"
        f"{_table('Slowest downloads', ('#took', '#size', 'URL'), slowest)}"
        f"{_table('Rows that failed', ('id', 'stage', 'reason', 'URL'), failures)}"
    )


def _plots(run: Run, prices: Mapping[str, Any]) -> Iterable[str]:
    rates = _over_time(run, lambda now, before, s: (now.samples - before.samples) / s)
    yield draw_lines("Samples per second", {"samples/s": rates}, lambda value: f"{value:,.4g}")
    num_bytes = _over_time(run, lambda now, before, s: (now.bytes_downloaded - before.bytes_downloaded) / s)
    yield draw_lines("Downloaded per second", {"bytes/s": num_bytes}, lambda value: f"{format_bytes(value)}/s")
    percent: Callable[[float], str] = lambda value: f"{value:.0%}"  # noqa: E731 (a name for the type)
    waits = {
        "training step": _over_time(run, lambda now, before, _: _share(now, before, "busy_s")),
        "waiting for a batch": _over_time(run, lambda now, before, _: _share(now, before, "wait_s")),
    }
    yield draw_stack("The training loop's time", waits, percent, top=1.0)
    stages = {
        _BUSY.get(stage, stage): _over_time(run, _load(stage))
        for stage in ("fetch", "decode", "transform", "collate", "device", "loader")
    }
    busy = {name: points for name, points in stages.items() if any(y > 0.001 for _, y in points)}
    yield draw_lines("How busy each stage was (share of its threads)", busy, percent, top=1.0)
    hits = _over_time(run, lambda now, before, _: _hit_rate(now, before))
    yield draw_lines("Hit rate of the cache", {"hit rate": hits}, percent, top=1.0)
    paid = [(moment.after_s, priced(moment.stats.traffic, prices).total) for moment in run.moments]
    yield draw_lines("Cost so far", {"dollars": paid}, dollars)


def _over_time(run: Run, value: Callable[[Stats, Stats, float], float | None]) -> list[tuple[float, float]]:
    """What happened within some moments, where there is something to say: a wait counts when it is over."""
    points: list[tuple[float, float]] = []
    earlier = [Moment(0.0, Stats())] * _WINDOW + [*run.moments]
    for before, now in zip(earlier, run.moments, strict=False):
        seconds = now.after_s - before.after_s
        found = value(now.stats, before.stats, seconds) if seconds > 1e-3 else None
        if found is not None:
            points.append((now.after_s, max(0.0, found)))
    return points


def _share(now: Stats, before: Stats, kind: str) -> float | None:
    """How much of the training loop's time was its own work, or waiting for batches."""
    spent = {
        each: getattr(now, each).get("consumer", 0.0) - getattr(before, each).get("consumer", 0.0)
        for each in ("busy_s", "wait_s")
    }
    return float(spent[kind] / sum(spent.values())) if sum(spent.values()) > 0 else None


def _load(stage: str) -> Callable[[Stats, Stats, float], float]:
    def load(now: Stats, before: Stats, seconds: float) -> float:
        spent = [next((group[stage] for group in each.groups if stage in group), 0.0) for each in (now, before)]
        return (spent[0] - spent[1]) / seconds

    return load


def _hit_rate(now: Stats, before: Stats) -> float | None:
    hits, misses = now.hits - before.hits, now.misses - before.misses
    return hits / (hits + misses) if hits + misses else None


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; columns whose names begin with # hold numbers."""
    if not rows:
        return f"<h2>{escape(title)}</h2><p class=faint>none</p>"
    kinds = [" class=number" if name.startswith("#") else "" for name in columns]
    head = "".join(f"<th{kind}>{escape(name.lstrip('#'))}</th>" for name, kind in zip(columns, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows[:_MAX_ROWS]
    )
    more = f"<p class=faint>and {len(rows) - _MAX_ROWS} more</p>" if len(rows) > _MAX_ROWS else ""
    return f'<h2>{escape(title)}</h2><div class="table"><table><tr>{head}</tr>{body}</table></div>{more}'
