"""Byte ranges as browsers ask for them: a header and a size -> [start, stop).

A video can only be moved in where its server answers ranges. Several ranges at once are answered with the whole.
"""

from __future__ import annotations

import re

__all__ = ["Unsatisfiable", "parse_range"]

_ONE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class Unsatisfiable(ValueError):
    """The range lies past the end of a file of this size."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the range lies past the end: {size} bytes")
        self.size = size


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The bytes [start, stop) that are asked for; None: all of them, or a header that is not understood.

    Raises:
        Unsatisfiable: there are no such bytes.
    """
    match = None if header is None else _ONE.fullmatch(header.strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:  # the last so many
        start, stop = max(0, size - int(match[2])), size
    else:
        start, stop = int(match[1]), min(size, int(match[2]) + 1) if match[2] else size
        if match[2] and int(match[2]) < start:
            return None
    if start >= size or start >= stop:
        raise Unsatisfiable(size)
    return start, stop
