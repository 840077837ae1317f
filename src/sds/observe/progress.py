"""A progress bar around a loader: batches go through unchanged, stderr shows how far and how fast.

    bar = ProgressBar(loader, "epoch 1")
    for batch in bar:
        bar.note(f"loss {train(batch):.3f}")

On a terminal it is one line that moves; elsewhere (a file, a CI log) a plain line every few seconds and one at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TextIO

__all__ = ["ProgressBar"]

_LINE_EVERY_S = 5.0


class Batches(Protocol):
    """Anything that gives batches and says how many."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


class ProgressBar:
    """Iterates over a loader and shows it.

    Args:
        batches: a StreamingDataLoader, or anything with a length.
        label: stands before the bar.
        unit: what one item is called.
        stream: where to show it. Default: stderr.
    """

    def __init__(
        self, batches: Batches, label: str = "", *, unit: str = "batches", stream: TextIO | None = None
    ) -> None:
        self._batches = batches
        self._label = label
        self._unit = unit
        self._stream = stream or sys.stderr
        self._note = ""

    def note(self, text: str) -> None:
        """Stands behind the bar from now on: the loss, for one."""
        self._note = text

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        show = self._moving if self._stream.isatty() else self._lines
        return show(iter(self._batches), len(self._batches))

    def _lines(self, batches: Iterable[Any], total: int) -> Iterator[Any]:
        start = shown = time.monotonic()
        for done, batch in enumerate(batches, start=1):
            yield batch
            now = time.monotonic()
            if done == total or now - shown >= _LINE_EVERY_S:
                shown = now
                rate = done / (now - start) if now > start else 0.0
                words = [f"{done}/{total} {self._unit}", f"{rate:.1f}/s", self._note]
                self._stream.write(f"{self._label}: {', '.join(filter(None, words))}\n")
                self._stream.flush()

    def _moving(self, batches: Iterable[Any], total: int) -> Iterator[Any]:
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
            for done, batch in enumerate(batches, start=1):
                yield batch
                rate = done / max(1e-9, time.monotonic() - start)
                progress.update(task, completed=done, note=self._note, rate=f"{rate:.1f} {self._unit}/s")
