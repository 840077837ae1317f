"""Ctrl-C: one line that says what is left of the work, and exit code 130."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from sds.cli.words import say

__all__ = ["told_when_interrupted"]


@contextmanager
def told_when_interrupted(text: str) -> Iterator[None]:
    """Ends the command with this line if it is interrupted inside."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; {text}")
        raise typer.Exit(130) from None
