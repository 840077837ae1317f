"""Counting: what happened in one loader, out of what its datasets have counted for everybody.

Comes in: datasets, which may have been read by others before. Goes out: Stats that begin at zero when the loader is
made. Where two loaders read one dataset at the same time, each has its own batches and its own clock, and both have the
work of both: files and samples are the dataset's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sds.dataset.ordered import OrderedDataset
from sds.events import Counted, Stats, Tally
from sds.stats import merged_stats

__all__ = ["Counting"]


class Counting:
    """What a loader has handed out, and what its datasets have counted since it was made.

    Attributes:
        tally: the loader's own.
    """

    def __init__(self, datasets: Iterable[OrderedDataset]) -> None:
        self.tally = Tally()
        self._before = [(tally, tally.copied()) for tally in _tallies(datasets)]

    def stats(self, datasets: Iterable[OrderedDataset], crew: tuple[int, int]) -> Stats:
        """What happened so far; the crew is the loader's number of workers and threads."""
        parts = [tally.stats(self._since(tally)) for tally in _tallies(datasets)]
        whole = merged_stats(self.tally.stats(), parts)
        return replace(whole, num_workers=crew[0], num_threads=crew[1])

    def _since(self, tally: Tally) -> Counted | None:
        """What was counted before; None: the tally is newer than the loader, as in a forked process."""
        return next((before for known, before in self._before if known is tally), None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Counting, ((),)  # in another process, tallies begin at zero


def _tallies(datasets: Iterable[OrderedDataset]) -> list[Tally]:
    """Each once: a mix has one of its own, a dataset that of its delivery."""
    found = {id(tally): tally for each in datasets for tally in (each.tally, *(d.tally for d in each.deliveries))}
    return list(found.values())
