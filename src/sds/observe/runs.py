"""Runs: what `loader.record(path)` wrote -> values to draw.

Comes in: a file of JSON lines, or a folder of such files, one per rank. Goes out: a Run for each. A line that a killed
run did not finish is left out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from glob import escape
from pathlib import Path

import msgspec

from sds.errors import SourceError, SourceNotFound
from sds.stats import Beginning, Failed, Line, Moment, Stats
from sds.types import Failure

__all__ = ["Run", "read_run", "read_runs"]

_DECODER = msgspec.json.Decoder(Line)


@dataclass(frozen=True)
class Run:
    """What one rank recorded, in order of time."""

    path: Path
    beginning: Beginning
    moments: tuple[Moment, ...]
    failures: tuple[Failure, ...]

    @property
    def stats(self) -> Stats:
        """The last ones."""
        return self.moments[-1].stats if self.moments else Stats()


def read_run(path: str | os.PathLike[str]) -> Run:
    """The record of one rank.

    Raises:
        SourceNotFound: there is no such file.
        SourceError: the file is no record of a run.
    """
    place = Path(path)
    try:
        raw = place.read_bytes().splitlines()
    except OSError as error:
        hint = "the path that was given to loader.record(path)"
        raise SourceNotFound(f"record cannot be read: {place}: {error.strerror or error}", hint=hint) from error
    lines: list[Line] = []
    for number, text in enumerate(raw, start=1):
        try:
            lines.append(_DECODER.decode(text))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if number == len(raw) and number > 1:
                break  # a killed run
            hint = "it is written by loader.record(path), of this release of sds or an older one"
            raise SourceError(f"file is no record of a run: {place}: line {number}: {error}", hint=hint) from None
    if not lines or not isinstance(lines[0], Beginning):
        hint = "give the path that was given to loader.record(path)"
        raise SourceError(f"file is no record of a run: {place}", hint=hint)
    moments = tuple(line for line in lines if isinstance(line, Moment))
    return Run(place, lines[0], moments, tuple(line.failure for line in lines if isinstance(line, Failed)))


def read_runs(path: str | os.PathLike[str]) -> list[Run]:
    """The records of all ranks: of a folder, all its files of JSON lines; of a file, also those named after ranks."""
    place = Path(path)
    if place.is_dir():
        files = sorted(place.glob("*.jsonl"))
        if not files:
            hint = "files end with .jsonl: loader.record('runs/today.jsonl')"
            raise SourceNotFound(f"folder has no record of a run: {place}", hint=hint)
    else:
        files = [place, *sorted(place.parent.glob(f"{escape(place.stem)}.rank*{escape(place.suffix)}"))]
    return sorted((read_run(file) for file in files), key=lambda run: run.beginning.rank)
