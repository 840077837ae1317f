"""A progress bar around a loader: batches go through unchanged, stderr shows how far and how fast.

    bar = ProgressBar(loader, "epoch 1")
    for batch in bar:
        bar.note(f"loss {train(batch):.3f}")

On a terminal it is one line that moves; elsewhere (a file, a CI log) a plain line every few seconds and one at the end.
It counts what goes through: a loader that goes on in the middle of an epoch has fewer batches left than its length.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

__all__ = ["ProgressBar"]

_LINE_EVERY_S = 5.0


class ProgressBar:
    """Iterates over a loader and shows it.

    Args:
        batches: a StreamingDataLoader, or anything else to iterate over; one without a length may never end.
        label: stands before the bar.
        unit: what one item is called.
        stream: where to show it. Default: stderr.
    """

    def __init__(
        self, batches: Iterable[Any], label: str = "", *, unit: str = "batches", stream: TextIO | None = None
    ) -> None:
        self._batches: Any = batches
        self._label = label
        self._unit = unit
        self._stream = stream or sys.stderr
        self._note = ""

    def note(self, text: str) -> None:
        """Stands behind the bar from now on: the loss, for one."""
        self._note = text

    def __len__(self) -> int:
        num_batches: int = len(self._batches)
        return num_batches

    def __iter__(self) -> Iterator[Any]:
        show = self._moving if self._stream.isatty() else self._lines
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
        count = f"{done}/{total}" if total is not None else f"{done}"
        rate = done / seconds if seconds > 0 else 0.0
        words = [f"{count} {self._unit}", f"{rate:.1f}/s", self._note]
        self._stream.write(f"{self._label}: {', '.join(filter(None, words))}\n")
        self._stream.flush()

    def _moving(self, batches: Iterable[Any], total: int | None) -> Iterator[Any]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        with Progress(*columns, console=Console(file=self._stream)) as progress:
            task = progress.add_task(self._label, total=total, note="", rate="")
            start = time.monotonic()
            done = 0
            for batch in batches:
                yield batch
                done += 1
                rate = done / max(1e-9, time.monotonic() - start)
                progress.update(task, completed=done, note=self._note, rate=f"{rate:.1f} {self._unit}/s")
            progress.update(task, total=done)  # all there was
