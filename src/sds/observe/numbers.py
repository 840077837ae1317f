"""Numbers: stats -> a flat dict, and a loader whose numbers go to a callback every so many batches.

Comes in: Stats, or a loader and a function that takes a dict of floats, as `wandb.log` and TensorBoard's writers do.
Goes out: the numbers; batches pass through unchanged. Rates are those since the last call, counts are of the whole run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sds.errors import OptionError
from sds.observe.metrics import COUNTS
from sds.observe.wrapped import Wrapped
from sds.stats import STAGES, Stats

__all__ = ["flat", "log"]


def flat(stats: Stats, before: Stats | None = None, seconds: float | None = None) -> dict[str, float]:
    """Stats as plain numbers: {"sds/rows_per_s": 812.5, "sds/wait_s/fetch": 0.8, ...}.

    "sds/bottleneck" is the number of a stage, in the order of `sds.stats.STAGES`: 0 fetch, 1 decode, 2 transform,
    3 collate, 4 device, 5 consumer, 6 loader.

    Args:
        stats: what happened so far.
        before: an earlier value, for rates since then; None: since the beginning.
        seconds: how long ago that was; None: by the time of the last batches.
    """
    earlier = before or Stats()
    elapsed = stats.wall_s - earlier.wall_s if seconds is None else seconds
    found = {f"sds/{name}": float(getattr(stats, name)) for name in COUNTS}
    rows, num_bytes = stats.samples - earlier.samples, stats.bytes_downloaded - earlier.bytes_downloaded
    hits, misses = stats.hits - earlier.hits, stats.misses - earlier.misses
    found["sds/rows_per_s"] = rows / elapsed if elapsed > 0 else 0.0
    found["sds/bytes_per_s"] = num_bytes / elapsed if elapsed > 0 else 0.0
    found["sds/hit_rate"] = hits / (hits + misses) if hits + misses else 0.0
    found["sds/wall_s"] = stats.wall_s
    if stats.time_to_first_batch is not None:
        found["sds/time_to_first_batch"] = stats.time_to_first_batch
    for kind, sums in (("wait_s", stats.wait_s), ("busy_s", stats.busy_s)):
        found |= {f"sds/{kind}/{stage}": float(each) for stage, each in sorted(sums.items())}
    found |= {f"sds/ready/{queue}": float(depth) for queue, depth in sorted(stats.queue_depths.items())}
    # a number, so that a chart can show it: which of the stages it is
    found["sds/bottleneck"] = float(STAGES.index(stats.bottleneck))
    return found


class Logged(Wrapped):
    """A loader whose numbers go to a callback; see `log`."""

    def __init__(self, loader: Iterable[Any], callback: Callable[[dict[str, float]], Any], every: int) -> None:
        super().__init__(loader)
        self._callback = callback
        self._every = every

    def __iter__(self) -> Iterator[Any]:
        stats = self._batches.stats
        before, since, number, told = stats(), time.perf_counter(), 0, 0
        try:
            for batch in self._batches:
                number += 1
                yield batch
                if number % self._every == 0:
                    now, at = stats(), time.perf_counter()
                    told = number
                    self._callback(flat(now, before, at - since))
                    before, since = now, at
        finally:  # also where the loop is left early
            if number != told:
                self._callback(flat(stats(), before, time.perf_counter() - since))


def log(loader: Iterable[Any], callback: Callable[[dict[str, float]], Any], *, every: int = 100) -> Logged:
    """A loader that tells its numbers: every so many batches, and when the loop ends or is left, to the callback.

    It has what the loader has (`len`, `stats()`, `state_dict()`), so `progress(log(loader, ...))` shows all of it.

    Args:
        loader: a loader of ours; anything with `stats()`.
        callback: takes a dict of floats, as `flat` makes it. It is called in the training loop's own thread, between
            two batches.
        every: batches between two calls.

    Raises:
        OptionError: the loader has no stats, or `every` is no number of batches.
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise OptionError(f"every is no number of batches: {every!r}", hint="a whole number from 1 on")
    if not callable(getattr(loader, "stats", None)):
        raise OptionError(f"loader has no stats(): {type(loader).__name__}", hint="give a loader of sds")
    if not callable(callback):
        raise OptionError(f"callback is no function: {callback!r}", hint="a function that takes a dict, as wandb.log")
    return Logged(loader, callback, every)
