"""What happens to a sample that cannot be made: raised, or counted against a budget and quarantined.

Comes in: each attempt and each error. Goes out: nothing while the budget lasts, then TooManyFailures with the first
cause chained. Nothing is swallowed: every failure is counted, and the quarantine says which rows, where and why.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Sequence

from sds.dataset.options import FailureOptions
from sds.errors import CacheError, SdsError, TooManyFailures, TransformError
from sds.events import Tally
from sds.forks import renew_locks
from sds.types import Failure, Row

__all__ = ["FailurePolicy", "everything_dropped"]

log = logging.getLogger("sds")

_ALL_OF_THE_FIRST = 8  # when these all fail, something is wrong with all of them
_SHARE_FROM = 50  # a share of fewer attempts means little
_MAX_QUARANTINED = 10_000  # rows remembered with their reasons; the count goes on


class FailurePolicy:
    """Counts attempts and failures of one process. Safe from many threads."""

    def __init__(self, options: FailureOptions, tally: Tally) -> None:
        self.options = options
        self._tally = tally
        self._lock = threading.Lock()
        renew_locks(self, "_lock")
        self._quarantine: list[Failure] = []
        self._num_attempts = 0
        self._num_failures = 0
        self._num_dropped = 0
        self._num_reported = 0
        self._attempts_reported = 0
        self._first: SdsError | None = None

    def succeeded(self, num_samples: int) -> None:
        """One more row became samples; none, if the transforms dropped it."""
        with self._lock:
            self._num_attempts += 1
            self._num_dropped += not num_samples
        if not num_samples:
            self._tally.count("dropped")

    def failed(self, row: Row, error: SdsError) -> None:
        """One more sample could not be made: raises it, or counts it, or raises that it was one too many."""
        if self.options.on_error == "raise" or isinstance(error, CacheError):
            raise error  # a cache that is full or cannot be written is no fault of the sample
        self.record([Failure(row.key, row.id, error.url, error.stage or "transform", error.message)], 1, error)
        self._tally.count("failures")
        if self.options.print_exceptions or self.options.print_traceback:
            trace = error if self.options.print_traceback else None
            log.warning("sample %s failed: %s", row.key, error.message, exc_info=trace)
        elif self._num_failures == 1:  # once, so that nobody trains on less than they think
            told = (
                "sample %s failed and is skipped: %s (a loader puts another in its place; more are counted in silence)"
            )
            log.warning(told, row.key, error.message)
        else:
            log.debug("sample %s failed: %s", row.key, error.message)
        _drop_locals(error)
        self.check()

    def record(self, failures: Sequence[Failure], num_attempts: int, first: SdsError | None = None) -> None:
        """Counts failures, one's own or those that a worker process reports."""
        with self._lock:
            self._num_attempts += num_attempts
            self._num_failures += len(failures)
            self._quarantine += failures[: max(0, _MAX_QUARANTINED - len(self._quarantine))]
            self._first = self._first or first

    def check(self) -> None:
        """Raises TooManyFailures when the budget is spent."""
        with self._lock:
            spent = self._is_spent()
        if spent:
            raise self._too_many()

    def end_of_epoch(self) -> None:
        """An epoch in which everything failed, or was dropped, is an error."""
        with self._lock:
            attempts, failures, dropped = self._num_attempts, self._num_failures, self._num_dropped
        if attempts and failures == attempts and self.options.on_error == "skip":
            raise self._too_many()
        if dropped >= _ALL_OF_THE_FIRST and dropped + failures == attempts:
            raise everything_dropped(dropped, attempts)

    def quarantine(self) -> list[Failure]:
        """The rows that failed, each failure once."""
        with self._lock:
            return list(self._quarantine)

    def drain(self) -> tuple[list[Failure], int, SdsError | None]:
        """In a worker process: what came since the last drain, as the main process records it."""
        with self._lock:
            failures = self._quarantine[self._num_reported :]
            attempts = self._num_attempts - self._attempts_reported
            first = None if self._num_reported else self._first
            self._num_reported, self._attempts_reported = len(self._quarantine), self._num_attempts
            return failures, attempts, first

    def _is_spent(self) -> bool:
        budget = self.options.max_failures
        if isinstance(budget, int):
            return self._num_failures > budget
        if self._num_failures == self._num_attempts and self._num_attempts >= _ALL_OF_THE_FIRST:
            return True
        return self._num_attempts >= _SHARE_FROM and self._num_failures > budget * self._num_attempts

    def _too_many(self) -> TooManyFailures:
        first = self._quarantine[0]
        budget = self.options.max_failures
        allowed = f"max_failures={budget}" + ("" if isinstance(budget, int) else " as a share")
        parts = (self._first.hint or "").split("; ") if self._first is not None else []
        own = "".join(f"{part}; " for part in parts if part and "on_error='skip'" not in part)  # which it is already
        error = TooManyFailures(
            f"too many samples failed: {self._num_failures} of {self._num_attempts} ({allowed}); the first was "
            f"{first.key!r} at stage {first.stage}: {first.reason}",
            hint=f"{own}dataset.quarantine() lists them; mend the data, or raise max_failures",
            url=first.url,
            key=first.key,
            stage=first.stage,
        )
        error.__cause__ = self._first
        return error


def _drop_locals(error: BaseException | None) -> None:
    """The first error is kept; what its functions worked on, images and the memory of their batch, is not."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def everything_dropped(num_dropped: int, num_attempts: int) -> TransformError:
    """The error for transforms that leave nothing."""
    return TransformError(
        f"the transforms dropped every sample: {num_dropped} of {num_attempts}",
        hint="a transform that returns None drops its sample: does one of them forget its `return sample`?",
        stage="transform",
    )
