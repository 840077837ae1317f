"""Foreign errors -> ours, and what may be tried again. The one boundary where the errors of client libraries are met.

Comes in: whatever a client library raised. Goes out: a FetchError with url and hint, and whether trying again may help:
yes for what passes (timeouts, resets, 5xx, 429), no for what stays (404, 403, 416, bad options).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import obstore.exceptions as obs

from sds.errors import AccessDenied, FetchError, FetchTimeout, IntegrityError, ObjectNotFound, OptionError, SdsError
from sds.redaction import redact, redact_text
from sds.seeds import jitter

__all__ = ["retrying", "translate"]

T = TypeVar("T")

_REASON = re.compile(r"(Connection refused|dns error|No route to host|Network is unreachable|invalid peer certificate)")
_STATUS = re.compile(r"status code: (\d{3})")
_TIMEOUT = re.compile(r"(?<!retry_)timed? ?out", re.IGNORECASE)  # obstore says it only in the dump
_MAX_PAUSE_S = 5.0


def translate(error: Exception, url: str) -> tuple[SdsError, bool]:
    """Our error for a foreign one, and whether the request may be tried again."""
    url = redact(url)
    # obstore appends a debug dump; its first paragraph has the cause. A signed URL inside it would leak its signature.
    whole = str(error)
    cause = redact_text(whole.split("\n\nDebug source")[0].strip())
    if isinstance(error, SdsError):
        return error, isinstance(error, FetchTimeout | IntegrityError)
    if isinstance(error, FileNotFoundError | obs.NotFoundError):
        place = "the address" if url.startswith("http") else "the bucket, the key and the endpoint"
        hint = f"check {place}; a deleted object must leave the index too"
        return ObjectNotFound(f"object not found: {url}", hint=hint, url=url), False
    if isinstance(error, PermissionError | obs.PermissionDeniedError | obs.UnauthenticatedError):
        return _denied(url), False
    if isinstance(error, obs.UnknownConfigurationKeyError):
        return OptionError(f"storage_options are not understood: {cause}", hint="see the guide on stores"), False
    if isinstance(error, obs.InvalidPathError | ValueError):
        return FetchError(f"URL cannot be addressed: {url}: {cause}", hint="is the key well-formed?", url=url), False
    status = _STATUS.search(cause)
    if status is not None:
        return of_status(int(status[1]), url, cause)
    reason = _REASON.search(whole)
    if reason is not None:  # the dump names it, the first paragraph does not
        hint = "is the endpoint right (storage_options={'endpoint': ...}), and does a server listen there?"
        return FetchError(f"object could not be fetched: {url}: {reason[1]}: {cause}", hint=hint, url=url), True
    if isinstance(error, TimeoutError) or _TIMEOUT.search(whole):
        return FetchTimeout(
            f"no answer in time: {url}: {cause}", hint="raise `timeout`, or look at the network", url=url
        ), True
    if "Missing" in cause and "Key" in cause:
        return _denied(url), False
    hint = "the network or the store failed; raise num_downloading_retries if this passes by itself"
    return FetchError(f"object could not be fetched: {url}: {cause}", hint=hint, url=url), True


def of_status(status: int, url: str, cause: str) -> tuple[SdsError, bool]:
    """Our error for an HTTP status, and whether it may pass."""
    if status in (401, 403):
        return _denied(url), False
    if status in (404, 410):
        return ObjectNotFound(f"object not found: {url}", hint="check the URL", url=url), False
    transient = status >= 500 or status in (408, 425, 429)
    hint = "the store is overloaded or failing" if transient else "the store refuses this request"
    return FetchError(f"the store answered {status}: {url}: {cause}", hint=hint, url=url), transient


def _denied(url: str) -> AccessDenied:
    hint = (
        "set the credentials (environment, or storage_options={'access_key_id': ..., 'secret_access_key': ...}); "
        "for public data storage_options={'anonymous': True}"
    )
    return AccessDenied(f"access denied: {url}", hint=hint, url=url)


def retrying(
    attempt: Callable[[], T],
    url: str,
    num_retries: int,
    on_retry: Callable[[], Any] = lambda: None,
    *,
    pause_s: float = 0.1,
) -> T:
    """Calls `attempt`; on an error that may pass, waits a growing, jittered pause and calls it again."""
    for remaining in range(num_retries, -1, -1):
        try:
            return attempt()
        except Exception as error:
            ours, transient = translate(error, url)
            if not (transient and remaining):
                raise ours from error
        on_retry()
        time.sleep(jitter(0.5, 1.5) * pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)
    raise AssertionError("the last attempt returns or raises")
