"""Results of a workload -> a plot, as SVG: bars from zero with their spread, the physical limit as a line beside them.

Nothing in it comes from another file or host. It has a ground of its own, light or dark as the reader's system is, so
that it can be read on any page.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any
from xml.sax.saxutils import escape

LEGEND = {
    "ours": "sds",
    "peer": "the same files",
    "shards": "† data converted before, not counted",
    "limit": "physical limit: bare loops",
}
STYLE = """<style>
text { fill: #1b1f24 } .ground { fill: #ffffff } .cut { stroke: #ffffff; stroke-width: 2 }
.spread { stroke: #1b1f24 } .axis { stroke: #8a929c } .bound { stroke: #a37a1c }
.ours { fill: #1f7a54 } .peer { fill: #6f86a6 } .shards { fill: #b0bdd0 } .limit { fill: #d9c08c }
@media (prefers-color-scheme: dark) {
text { fill: #e3e6ea } .ground { fill: #1e2129 } .cut { stroke: #1e2129 }
.spread { stroke: #e3e6ea } .axis { stroke: #78808c } .bound { stroke: #d9b45a }
.ours { fill: #35a878 } .peer { fill: #7f97b8 } .shards { fill: #515d72 } .limit { fill: #83703f }
}
</style>"""
ONE_LIMIT = ("cold", "warm", "local")  # workloads with one limit for all bars: the least of them, with sds's transforms
LEFT, RIGHT, WIDTH, STEP, TOP = 215, 96, 760, 26, 52


def plot(workload: Any, results: dict[str, list[dict[str, Any]]], names: list[str], number: Callable[..., str]) -> str:
    """One bar for each name, in that order.

    A limit that is far above everything else is cut off, and drawn so: else no other bar could be told from the next.
    """
    figure = workload.FIGURE
    values = {name: [run[figure] for run in results[name] if run.get(figure) is not None] for name in names}
    kinds = {name: results[name][0]["kind"] for name in names if values[name]}
    scale = (WIDTH - LEFT - RIGHT) / (top_of(values, kinds) or 1.0)
    height = TOP + STEP * len(kinds) + 48
    better = "less is better" if getattr(workload, "LOWER", False) else "more is better"
    title = f"({workload.NUMBER}) {workload.TITLE}: {workload.UNIT}, {better}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape('; '.join(f'{name}: {number(statistics.median(values[name]))}' for name in kinds))}</desc>",
        STYLE,
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text x="14" y="26" font-size="15">{escape(title)}</text>',
    ]
    bottom = TOP + STEP * len(kinds)
    for k, (name, kind) in enumerate(kinds.items()):
        parts += bar(name, kind, values[name], TOP + k * STEP, scale, number)
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{LEFT}" y1="{TOP - 6}" y2="{bottom}"/>')
    parts.append(f'<text x="{LEFT}" y="{bottom + 13}" text-anchor="middle" font-size="10">0</text>')
    bound = bound_of({name: statistics.median(values[name]) for name in kinds if kinds[name] == "limit"})
    bound = own_way(bound) if own_way(bound) in kinds else bound
    x = LEFT + (statistics.median(values[bound]) if bound else 0.0) * scale
    if bound and workload.NAME in ONE_LIMIT and x <= WIDTH:
        parts.append(
            f'<line class="bound" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}" stroke-dasharray="5 4" '
            'stroke-width="1.5"/>'
        )
    return "\n".join([*parts, *legend(set(kinds.values()), height - 14), "</svg>"]) + "\n"


def bound_of(limits: dict[str, float]) -> str | None:
    """The name of the least limit. Other ways to the same limit, such as 'bare decodes, processes', do not count."""
    return min((name for name in limits if "," not in name), key=limits.__getitem__, default=None)


def own_way(bound: str | None) -> str:
    """The name of the same limit with sds's transforms in it."""
    return f"{bound}, sds's way"


def top_of(values: dict[str, list[float]], kinds: dict[str, str]) -> float:
    """Where the axis ends: at the highest value, but for limits that are more than twice the best contender."""
    contenders = [max(values[name]) for name, kind in kinds.items() if kind != "limit"]
    most = max((max(values[name]) for name in kinds), default=1.0)
    if not contenders:
        return most
    near = [max(values[name]) for name in kinds if max(values[name]) <= 2 * max(contenders)]
    return max(near)


def bar(name: str, kind: str, each: list[float], y: int, scale: float, number: Callable[..., str]) -> list[str]:
    """A name, a bar, the least and the most, the median in figures."""
    middle, end = statistics.median(each), WIDTH - RIGHT
    shown = f"{name} †" if kind == "shards" else name
    weight = ' font-weight="bold"' if kind == "ours" else ""
    stop = min(LEFT + middle * scale, end)
    parts = [
        f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end"{weight}>{escape(shown)}</text>',
        f'<rect class="{kind}" x="{LEFT}" y="{y + 2}" width="{stop - LEFT:.1f}" height="16"/>',
    ]
    if LEFT + middle * scale > end + 1:  # cut off: two strokes through the bar
        strokes = (f'<line class="cut" x1="{x}" x2="{x + 6}" y1="{y + 20}" y2="{y}"/>' for x in (end - 22, end - 16))
        return [*parts, *strokes, f'<text x="{end + 6}" y="{y + 14}"{weight}>→ {number(middle)}</text>']
    low, high = LEFT + min(each) * scale, min(LEFT + max(each) * scale, end)
    if len(each) > 1:
        parts.append(f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{y + 10}" y2="{y + 10}"/>')
    return [*parts, f'<text x="{max(high, stop) + 6:.1f}" y="{y + 14}"{weight}>{number(middle)}</text>']


def legend(kinds: set[str], y: int) -> list[str]:
    """What the colours mean."""
    parts, x = [], 14
    for kind, words in LEGEND.items():
        if kind in kinds:
            parts.append(f'<rect class="{kind}" x="{x}" y="{y - 9}" width="10" height="10"/>')
            parts.append(f'<text x="{x + 15}" y="{y}" font-size="11">{words}</text>')
            x += 34 + 6 * len(words)
    return parts
