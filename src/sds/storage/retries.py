"""Trying again: pauses that grow, are jittered, and are as long as the store asked for.

Comes in: an attempt that may fail. Goes out: its result, or our error, after at most so many attempts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from sds.seeds import jitter
from sds.storage.failures import translate

__all__ = ["pause_before", "retrying"]

T = TypeVar("T")

_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0
_MAX_WISH_S = 60.0  # a store that wants to be left alone longer is asked sooner all the same


def pause_before(retry: int, retry_after_s: float | None = None) -> float:
    """How long to wait before a retry, the first is 0; never less than the store asked for, within reason."""
    pause_s = jitter(0.5, 1.5) * min(_FIRST_PAUSE_S * 2.0**retry, _MAX_PAUSE_S)
    if retry_after_s is None:
        return pause_s
    return max(pause_s, min(retry_after_s, _MAX_WISH_S) * jitter(1.0, 1.1))  # or all of them come back at once


def retrying(
    attempt: Callable[[], T],
    url: str,
    num_retries: int,
    on_retry: Callable[[], Any] = lambda: None,
    *,
    is_anonymous: bool = False,
) -> T:
    """Calls `attempt`; on an error that may pass, waits and calls it again."""
    for retry in range(num_retries + 1):
        try:
            return attempt()
        except Exception as error:
            verdict = translate(error, url, is_anonymous=is_anonymous)
            if not verdict.may_pass or retry == num_retries:
                raise verdict.error from error
        on_retry()
        time.sleep(pause_before(retry, verdict.retry_after_s))
    raise AssertionError("the last attempt returns or raises")
