"""A text file cut into blocks of whole rows, read from its beginning to its end, some at a time.

Comes in: an address. Goes out: blocks, in order, with where they begin. A line break inside quotes ends no row; quotes
count where Arrow's reader counts them: at the beginning of a field, and then until they close.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from sds.index.lazy_files import damaged, read_range
from sds.index.remote import OpenRemote
from sds.units import format_bytes

__all__ = ["Block", "cut_csv", "cut_lines", "read_blocks"]

_BLOCK_BYTES = 512 << 10  # what is read and parsed for one row; a chunk of usual size is several of them
_READ_BYTES = 8 << 20  # what is read at a time: a request to a store is worth it
_MAX_ROW_BYTES = 64 << 20
_QUOTE, _NEWLINE, _RETURN = b'"\n\r'


class Block(NamedTuple):
    """Whole rows: where they begin in the file, and their text."""

    offset: int
    text: bytes


def read_blocks(url: str, size: int, cut: Callable[[bytes], int], open_remote: OpenRemote) -> Iterator[Block]:
    """Reads a file of `size` bytes; `cut` tells where the last whole row of a text ends, 0 if none does.

    Raises:
        SourceError: a row is larger than rows are.
        FetchError: it cannot be read.
    """
    held, at, place = b"", 0, 0  # what was read and not handed out yet begins at `place`; `at` was read last
    while at < size:
        stop = min(size, at + _READ_BYTES)
        held, at = held + read_range(url, at, stop, open_remote), stop
        start, window = 0, _BLOCK_BYTES
        while start < len(held):
            is_last = at == size and len(held) - start <= window
            end = len(held) - start if is_last else cut(held[start : start + window])  # the last line may have no end
            if end:
                yield Block(place + start, held[start : start + end])
                start, window = start + end, _BLOCK_BYTES
            elif start + window < len(held):
                window *= 2
            else:
                break  # the row goes on in what was not read yet
        held, place = held[start:], place + start
        if len(held) > _MAX_ROW_BYTES:
            most = format_bytes(_MAX_ROW_BYTES)
            raise damaged(
                url, f"a row has more than {most}, from byte {place} on", "does a quote not close, or do lines not end?"
            )


def cut_lines(text: bytes) -> int:
    """Where the last line ends."""
    return text.rfind(b"\n") + 1


def cut_csv(text: bytes, delimiter: bytes) -> int:
    """Where the last row ends; the text begins with a row."""
    letters = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(letters == _QUOTE)
    if not len(quotes):
        return cut_lines(text)
    opening = quotes[0::2]
    before = letters[np.maximum(opening, 1) - 1]
    # In usual files every second quote opens a field, or follows the one that would have closed it: then the number of
    # quotes before a line break tells whether it is inside
    is_usual = (opening == 0) | np.isin(before, [_QUOTE, _NEWLINE, _RETURN, delimiter[0]])
    if not is_usual.all():
        return _cut_slowly(text, delimiter)
    breaks = np.flatnonzero(letters == _NEWLINE)
    outside = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _cut_slowly(text: bytes, delimiter: bytes) -> int:
    """The same, by going from one quoted field to the next: other quotes are letters."""
    opening = re.compile(rb"(?:\A|[\r\n" + re.escape(delimiter) + rb'])"')
    end = at = 0
    while True:
        found = opening.search(text, at)
        end = max(end, text.rfind(b"\n", at, found.end() if found else len(text)) + 1)
        if found is None:
            return end
        at = text.find(b'"', found.end())
        while at >= 0 and text[at + 1 : at + 2] == b'"':
            at = text.find(b'"', at + 2)
        if at < 0:
            return end
        at += 1
