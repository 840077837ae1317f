"""A progress bar around a loader: batches go through unchanged, stderr shows how far and how fast.

    bar = ProgressBar(loader, "epoch 1")
    for batch in bar:
        bar.note(f"loss {train(batch):.3f}")

On a terminal and in a notebook it is one line that moves; elsewhere (a file, a CI log) a plain line every few seconds
and one at the end. Around a loader of ours it also shows samples per second, the cache's hit rate and the bottleneck.
It counts what goes through: a loader that goes on in the middle of an epoch has fewer batches left than its length.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from sds.observe.wrapped import Wrapped, innermost
from sds.stats import Stats, format_rate

__all__ = ["ProgressBar", "progress"]

_LINE_EVERY_S = 5.0
_LOOK_EVERY_S = 0.2  # stats are summed over streams and locks: not with every batch


class ProgressBar(Wrapped):
    """Iterates over a loader and shows it. What the loader has, such as `stats()` and `state_dict()`, it has too.

    Args:
        batches: a StreamingDataLoader, or anything else to iterate over; one without a length may never end.
        label: stands before the bar.
        unit: what one item is called. Default: 'samples' around a dataset, else 'batches'.
        stream: where to show it. Default: stderr.
    """

    def __init__(
        self, batches: Iterable[Any], label: str = "", *, unit: str | None = None, stream: TextIO | None = None
    ) -> None:
        super().__init__(batches)
        self._label = label
        self._unit = unit or _unit_of(batches)
        self._stream = stream or sys.stderr
        self._note = ""
        self._seen: tuple[float, str] = (0.0, "")

    def note(self, text: str) -> None:
        """Stands behind the bar from now on: the loss, for one."""
        self._note = text

    def __iter__(self) -> Iterator[Any]:
        show = self._moving if self._stream.isatty() else self._rewritten if _is_notebook() else self._lines
        try:
            total = len(self._batches)
        except TypeError:
            total = None  # it never ends, or does not know when
        return show(iter(self._batches), total)

    def _lines(self, batches: Iterable[Any], total: int | None) -> Iterator[Any]:
        start = shown_at = time.monotonic()
        done = shown = 0
        for batch in batches:
            yield batch
            done += 1
            if time.monotonic() - shown_at >= _LINE_EVERY_S:
                shown, shown_at = done, time.monotonic()
                self._write_line(done, total, shown_at - start)
        if done != shown:
            self._write_line(done, done, time.monotonic() - start)

    def _write_line(self, done: int, total: int | None, seconds: float) -> None:
        self._stream.write(f"{self._words(done, total, seconds)}\n")
        self._stream.flush()

    def _words(self, done: int, total: int | None, seconds: float) -> str:
        count = f"{done}/{total}" if total is not None else f"{done}"
        rate = done / seconds if seconds > 0 else 0.0
        words = [f"{count} {self._unit}", f"{rate:.1f}/s", self._facts(is_last=done == total), self._note]
        return f"{self._label}: {', '.join(filter(None, words))}"

    def _facts(self, *, is_last: bool = False) -> str:
        """Samples per second, hit rate and bottleneck of a loader that has stats."""
        stats = getattr(self._batches, "stats", None)
        now = time.monotonic()
        if callable(stats) and (is_last or now - self._seen[0] >= _LOOK_EVERY_S):
            found = stats()
            self._seen = now, _facts(found, self._unit) if isinstance(found, Stats) else ""
        return self._seen[1]

    def _rewritten(self, batches: Iterable[Any], total: int | None) -> Iterator[Any]:
        """A notebook shows text that begins with a carriage return in the place of what was there."""
        start, width, shown_at = time.monotonic(), 0, 0.0
        done = 0

        def show(total: int | None) -> None:
            nonlocal width, shown_at
            shown_at = time.monotonic()
            line = self._words(done, total, shown_at - start)
            self._stream.write(f"\r{line.ljust(width)}")
            self._stream.flush()
            width = len(line)

        for batch in batches:
            yield batch
            done += 1
            if time.monotonic() - shown_at >= _LOOK_EVERY_S:
                show(total)
        if done:
            show(done)
            self._stream.write("\n")

    def _moving(self, batches: Iterable[Any], total: int | None) -> Iterator[Any]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            TextColumn("{task.fields[note]}", markup=False),
        )
        with Progress(*columns, console=Console(file=self._stream)) as progress:
            task = progress.add_task(self._label, total=total, note="", rate="", facts="")
            start = time.monotonic()
            done = 0
            for batch in batches:
                yield batch
                done += 1
                rate = done / max(1e-9, time.monotonic() - start)
                speed = f"{rate:.1f} {self._unit}/s"
                progress.update(task, completed=done, note=self._note, rate=speed, facts=self._facts())
            progress.update(task, total=done)  # all there was


def progress(
    loader: Iterable[Any], label: str = "", *, unit: str | None = None, stream: TextIO | None = None
) -> ProgressBar:
    """A progress bar around a loader: `for batch in sds.observe.progress(loader): ...`. See ProgressBar."""
    return ProgressBar(loader, label, unit=unit, stream=stream)


def _facts(stats: Stats, unit: str) -> str:
    words = []
    if stats.samples and unit == "batches":  # else the bar's own rate says it
        words.append(f"{format_rate(stats.rows_per_s)} samples/s")
    if stats.hits + stats.misses:
        words.append(f"{stats.hit_rate:.0%} hits")
    return ", ".join([*words, f"bottleneck {stats.bottleneck}"]) if stats.samples or words else ""


def _unit_of(batches: Any) -> str:
    """What one item is. Where there is a dataset, its module is loaded: nothing is imported for this."""
    ordered: Any = sys.modules.get("sds.dataset.ordered")
    is_dataset = ordered is not None and isinstance(innermost(batches), ordered.OrderedDataset)
    return "samples" if is_dataset else "batches"


def _is_notebook() -> bool:
    """Whether this process is the kernel of a notebook: its output is no terminal, and yet somebody looks at it."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
