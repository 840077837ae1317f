"""Draws the orders of the guide to shuffling, from the plans that datasets use: `python docs/assets/orders.py`.

Each picture is an epoch of 240 rows in six shards: left to right the positions, top to bottom the rows of the index,
one colour a shard. `make docs-test` compares the pictures with what this draws.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sds.plan import Plan

ROWS, SHARDS, SEED = 240, 6, 7
COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#9c6b4e", "#a463f2"]
WIDTH, HEIGHT, LEFT, TOP = 300, 150, 34, 10

_SIZES = [ROWS // SHARDS] * SHARDS


def chosen() -> np.ndarray:
    """The rows that a filter leaves: one in four, by a rule that has nothing to do with their order."""
    return np.flatnonzero(np.arange(ROWS) * 37 % 100 < 25)


def orders() -> dict[str, np.ndarray]:
    """Name of the picture -> the rows of an epoch, in the order in which they come."""
    rows = chosen()
    left = [int(((rows >= 40 * shard) & (rows < 40 * shard + 40)).sum()) for shard in range(SHARDS)]
    plain, shuffled = Plan(ROWS), Plan(ROWS, SEED)
    by_shard = Plan(ROWS, SEED, chunk_sizes=_SIZES, reach=2)
    filtered = {
        "order-filtered": Plan(len(rows)),
        "order-shards-filtered": Plan(len(rows), SEED, chunk_sizes=left, reach=2),
        "order-rows-filtered": Plan(len(rows), SEED),
    }
    whole = {"order-none": plain, "order-shards": by_shard, "order-rows": shuffled}
    return {name: plan.rows(0, 0, plan.length(0)) for name, plan in whole.items()} | {
        name: rows[plan.rows(0, 0, plan.length(0))] for name, plan in filtered.items()
    }


def draw(rows: np.ndarray) -> str:
    """One epoch as an SVG."""
    dots = []
    for position, row in enumerate(rows.tolist()):
        x = LEFT + 4 + position * (WIDTH - LEFT - 12) / max(len(rows) - 1, 1)
        y = TOP + 3 + row * (HEIGHT - TOP - 24) / (ROWS - 1)
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.9" fill="{COLOURS[row * SHARDS // ROWS]}"/>')
    bottom = HEIGHT - 16
    frame = f'x="{LEFT}" y="{TOP - 3}" width="{WIDTH - LEFT - 4}" height="{bottom - TOP + 3}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
            ' font-family="sans-serif" font-size="9" fill="#555">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            f'<rect {frame} fill="none" stroke="#ccc"/>',
            f'<text x="{LEFT - 4}" y="{TOP + 6}" text-anchor="end">row 0</text>',
            f'<text x="{LEFT - 4}" y="{bottom - 1}" text-anchor="end">{ROWS - 1}</text>',
            f'<text x="{LEFT}" y="{HEIGHT - 5}">first sample of the epoch</text>',
            f'<text x="{WIDTH - 4}" y="{HEIGHT - 5}" text-anchor="end">last</text>',
            *dots,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Writes them beside this file."""
    for name, rows in orders().items():
        Path(__file__).with_name(f"{name}.svg").write_text(draw(rows))


if __name__ == "__main__":
    main()
