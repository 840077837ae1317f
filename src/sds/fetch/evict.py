"""Which cached file goes first: pure bookkeeping of idle files, in the order in which they were released.

With each row used once per epoch in random order, evicting the file released *last* reaches the best possible hit rate;
the oldest-first order of LRU does not (docs/decisions/0001-design.md, decision 7).
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["POLICIES", "Idle"]

POLICIES = ("keep", "lru")


class Idle:
    """The files that nobody holds."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, key: str) -> bool:
        return key in self._sizes

    def add(self, key: str, size: int) -> None:
        """A file was released just now."""
        assert key not in self._sizes
        self._sizes[key] = size
        self.num_bytes += size

    def remove(self, key: str) -> None:
        """A file is held again, or gone."""
        size = self._sizes.pop(key, None)
        self.num_bytes -= size or 0

    def victims(self, num_bytes: int, policy: str) -> list[str]:
        """The files to evict so that at least `num_bytes` become free; all of them if that is not enough."""
        chosen: list[str] = []
        freed = 0
        for key in reversed(self._sizes) if policy == "keep" else self._sizes:
            if freed >= num_bytes:
                break
            chosen.append(key)
            freed += self._sizes[key]
        return chosen
