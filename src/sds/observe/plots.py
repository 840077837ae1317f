"""Plots: numbers over time -> SVG, as text. Pure: the same numbers are the same picture.

Comes in: a title, a unit, and lines of (seconds, value). Goes out: one `<svg>`, with axes, a legend and values that a
mouse can find. Colours are the page's variables, so that light and dark are one picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

__all__ = ["Points", "draw_lines", "draw_stack", "round_up"]

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 560, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 14, 30
_NUM_TICKS = 4
_MAX_POINTS = 400


def round_up(value: float) -> float:
    """The next 1, 2, 2.5, 5 or 10 times a power of ten: the end of an axis."""
    if not value > 0 or not math.isfinite(value):
        return 1.0
    scale: float = 10.0 ** math.floor(math.log10(value))
    return next(step * scale for step in (1, 2, 2.5, 5, 10, 20) if step * scale >= value * (1 - 1e-9))


def draw_lines(title: str, lines: Mapping[str, Points], show: Callable[[float], str], top: float | None = None) -> str:
    """Lines over time; `show` puts a value into words, `top` is the end of the axis."""
    shown = {name: _thinned(points) for name, points in lines.items() if points}
    end = max((x for points in shown.values() for x, _ in points), default=1.0) or 1.0
    high = top or round_up(max((y for points in shown.values() for _, y in points), default=0.0))
    marks: list[str] = []
    for number, (name, points) in enumerate(shown.items()):
        path = " ".join(f"{_x(x, end):.1f},{_y(y, high):.1f}" for x, y in points)
        marks.append(f'<polyline class="line c{number}" points="{path}"/>')
        marks += [
            f'<circle class="dot c{number}" cx="{_x(x, end):.1f}" cy="{_y(y, high):.1f}" r="5">'
            f"<title>{escape(name)}: {escape(show(y))} after {x:.0f} s</title></circle>"
            for x, y in points
        ]
    return _framed(title, list(shown), marks, end, high, show)


def draw_stack(title: str, parts: Mapping[str, Points], show: Callable[[float], str], top: float | None = None) -> str:
    """Areas on top of each other; all have the same times."""
    shown = {name: _thinned(points) for name, points in parts.items() if any(y > 0 for _, y in points)}
    times = [x for x, _ in next(iter(shown.values()), [])]
    end = max(times, default=1.0) or 1.0
    sums = [sum(points[k][1] for points in shown.values()) for k in range(len(times))]
    high = top or round_up(max(sums, default=0.0))
    below = [0.0] * len(times)
    marks: list[str] = []
    for number, (name, points) in enumerate(shown.items()):
        above = [low + points[k][1] for k, low in enumerate(below)]
        outline = [(x, above[k]) for k, x in enumerate(times)] + [(x, below[k]) for k, x in enumerate(times)][::-1]
        path = " ".join(f"{_x(x, end):.1f},{_y(min(y, high), high):.1f}" for x, y in outline)
        marks.append(f'<polygon class="area c{number}" points="{path}"><title>{escape(name)}</title></polygon>')
        below = above
    return _framed(title, list(shown), marks, end, high, show)


def _framed(
    title: str, names: list[str], marks: list[str], end: float, high: float, show: Callable[[float], str]
) -> str:
    frame: list[str] = []
    for k in range(_NUM_TICKS + 1):
        value = high * k / _NUM_TICKS
        y = _y(value, high)
        frame.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        frame.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(show(value))}</text>'
        )
    for k in range(_NUM_TICKS + 1):
        x = _x(end * k / _NUM_TICKS, end)
        anchor = "start" if not k else "end" if k == _NUM_TICKS else "middle"
        words = f"{end * k / _NUM_TICKS:.3g} s"
        frame.append(f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{words}</text>')
    if not marks:
        frame.append(f'<text class="tick" x="{_WIDTH / 2}" y="{_HEIGHT / 2}" text-anchor="middle">nothing yet</text>')
    legend = "".join(f'<li><i class="c{k}"></i>{escape(name)}</li>' for k, name in enumerate(names))
    head = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>{head}{''.join(frame + marks)}</svg>"
        f'<ul class="legend">{legend}</ul></figure>'
    )


def _x(value: float, end: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / end


def _y(value: float, high: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(value, high) / high


def _thinned(points: Points) -> list[tuple[float, float]]:
    """At most some hundred points: of neighbours, their mean."""
    every = -(-len(points) // _MAX_POINTS) or 1
    groups = [points[k : k + every] for k in range(0, len(points), every)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]
