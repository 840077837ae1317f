"""Sparse: a file of which some ranges are in memory, for readers that want a file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence

__all__ = ["Sparse"]


class Sparse(io.RawIOBase):
    """A file of which some ranges are in memory; others are read when they are asked for."""

    def __init__(
        self,
        size: int,
        ranges: Sequence[tuple[int, int]],
        pieces: Sequence[bytes],
        read: Callable[[int, int], bytes],
    ) -> None:
        self._size = size
        self._held = list(zip(ranges, pieces, strict=True))
        self._fallback = read
        self._at = 0

    def readable(self) -> bool:
        """As a file: yes."""
        return True

    def seekable(self) -> bool:
        """As a file: yes."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Sets where the next read begins."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The next bytes, from what is held or from the file."""
        start, stop = self._at, self._size if size < 0 else min(self._size, self._at + size)
        self._at = max(start, stop)
        if stop <= start:
            return b""
        for (first, end), piece in self._held:
            if first <= start and stop <= end:
                return piece[start - first : stop - first]
        return self._fallback(start, stop)
