"""Watchdog: says what something waits for when that takes long, once, and then at doubling intervals.

Comes in: what is waited for, and what is being done about it. Goes out: a warning that names the rank and the stage, or
in the end a FetchTimeout that says the same.
"""

from __future__ import annotations

import logging
import time

from sds.errors import FetchTimeout
from sds.world import World

__all__ = ["Watchdog"]

log = logging.getLogger("sds.fetch")


class Watchdog:
    """Watches one wait, which begins now."""

    def __init__(self, subject: str, first_s: float, patience_s: float, stage: str = "fetch") -> None:
        self._subject = subject
        self._stage = stage
        self._patience_s = patience_s
        self._first_s = first_s
        self.rest()

    def rest(self) -> None:
        """The time so far does not count."""
        self._since = time.monotonic()
        self._next_s = min(max(1.0, self._first_s), self._patience_s)

    @property
    def is_due(self) -> bool:
        """Whether it is time to say something."""
        return time.monotonic() - self._since > self._next_s

    @property
    def is_over(self) -> bool:
        """Whether it has lasted too long."""
        return time.monotonic() - self._since > self._patience_s

    def bark(self, doing: str | None) -> None:
        """Warns; raises FetchTimeout if it has lasted too long. `doing`: what is being done; None: nobody answers."""
        waited_s = time.monotonic() - self._since
        doing = doing or "the fetch server does not say why"
        rank = World.detect().rank
        if waited_s > self._patience_s:
            raise FetchTimeout(
                f"no answer in {waited_s:.0f} s: {self._subject}: {doing}",
                hint="is the store reachable, and `timeout` long enough?",
                url=self._subject,
                stage=self._stage,
                rank=rank,
            )
        self._next_s = min(2 * waited_s, self._patience_s)
        log.warning("waited %.0f s for %s (rank %d, stage %s): %s", waited_s, self._subject, rank, self._stage, doing)
