"""Scan or take: whether rows that a query left are read chunk by chunk with the others, or put aside once.

Comes in: how many rows are left, their bytes, and where they lie. Goes out: a Choice with its reason. It decides how
rows are read, never which or in what order.
"""

from __future__ import annotations

import msgspec

from sds.units import format_bytes
from sds.urls import is_remote

__all__ = ["Choice", "choose", "efficiency"]

# What one read at random costs, as bytes of reading on. A turning disk would be as slow as a store, but cannot be told
# apart: drives of virtual machines say that they turn.
_COSTS = {"cloud": 1_000_000, "local": 10_000}
_NAMES = {"cloud": "a store", "local": "a local drive"}
_MAX_TAKEN_BYTES = 4 << 30


class Choice(msgspec.Struct, frozen=True):
    """How rows are read.

    Attributes:
        kind: 'scan': in chunks, with what the query does not want; 'take': alone, from a copy made once.
        why: the reason, for people.
        row_bytes: what a row takes in the files, uncompressed.
        place: 'cloud' or 'local'.
    """

    kind: str
    why: str
    row_bytes: float
    place: str


def choose(asked: str, *, rows: int, rows_left: int, num_bytes: int, url: str, has_query: bool) -> Choice:
    """Decides.

    Args:
        asked: 'auto', or what the user wants.
        rows: at the source.
        rows_left: of them, after the query.
        num_bytes: of all rows.
        url: of one of the files.
        has_query: whether rows were chosen at all.
    """
    place, row_bytes = "cloud" if is_remote(url) else "local", num_bytes / rows
    cost, share = _COSTS[place], rows_left / rows
    limit = row_bytes / (cost + row_bytes)
    rule = (
        f"{share:.3%} of the rows are left, a take pays below {limit:.3%}: r/(B+r) for r = {row_bytes:.0f} bytes a row "
        f"and B = {format_bytes(cost)} a read on {_NAMES[place]}"
    )
    if asked != "auto":
        return Choice(asked, f"asked for ({rule})", row_bytes, place)
    if not has_query:
        return Choice("scan", "there is no query: all rows are wanted", row_bytes, place)
    if share >= limit:
        return Choice("scan", rule, row_bytes, place)
    if rows_left * row_bytes > _MAX_TAKEN_BYTES:
        most = format_bytes(_MAX_TAKEN_BYTES)
        return Choice("scan", f"what is left is more than {most} ({rule})", row_bytes, place)
    return Choice("take", rule, row_bytes, place)


def efficiency(choice: Choice, num_rows: int) -> float:
    """Which part of the time reads of so many rows at a time spend on reading, not on getting there."""
    num_bytes = num_rows * choice.row_bytes
    return num_bytes / (_COSTS[choice.place] + num_bytes)
