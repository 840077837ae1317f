"""What the header of an HTTP answer says: version, digest, storage class, and when to come back.

Comes in: header fields whose names are looked up in small letters. Goes out: the same facts, spelt as obstore's client
spells them: one object, one version, whoever asks.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from sds.storage.checksums import digest_of_headers
from sds.storage.store import Body, Buffer, bare_tag, version_of

__all__ = ["body_of", "digest_in", "retry_after_s", "version_in"]

_NEVER = datetime.fromtimestamp(0, timezone.utc)  # what obstore takes for the time of change where none is given


def body_of(headers: Any, chunks: Sequence[Buffer]) -> Body | None:
    """A body that is here; None if it is empty, or the answer did not say how long it would be."""
    length = headers.get("content-length", "")
    size = sum(map(len, chunks))
    if not size or length != str(size):
        return None
    storage_class = headers.get("x-amz-storage-class", "standard").lower()
    return Body(size, version_in(headers, size), iter(chunks), None, None, storage_class)


def version_in(headers: Any, size: int | None) -> str:
    """The version of an object of this size."""
    tag = headers.get("etag")
    if tag or size is None:
        return bare_tag(tag or "")
    try:
        changed_at = email.utils.parsedate_to_datetime(headers.get("last-modified", ""))
        return version_of({"size": size, "last_modified": changed_at})
    except (ValueError, TypeError, OverflowError):
        return version_of({"size": size, "last_modified": _NEVER})


def digest_in(headers: Any) -> str | None:
    """The MD5 of the body. GCS tells that of the stored bytes, even if it undoes a compression on the way."""
    stored = headers.get("x-goog-stored-content-encoding", "identity")
    is_stored = stored in ("identity", headers.get("content-encoding"))
    return digest_of_headers(headers.get("content-md5"), headers.get("x-goog-hash") if is_stored else None)


def retry_after_s(text: str | None) -> float | None:
    """What a Retry-After header says, seconds or a date; None if it makes no sense."""
    if not text:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text.strip()):
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
