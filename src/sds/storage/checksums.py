"""Checksums: what a store says that a body is -> whether the body that came is it.

An ETag of 32 hex digits is the body's MD5 on S3 and GCS, as a rule; not for objects encrypted with keys of KMS. So a
body that disagrees is fetched again. In a bucket where one has agreed before, only one that agrees will do. Elsewhere,
if the second equals the first, both are believed, and that bucket is no longer checked, of which users are told. What a
web server says in a header that is there for it (Content-MD5, x-goog-hash) always holds. Hashing takes time: a body is
hashed only where the user asked for it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import threading
from collections.abc import Callable, Iterable

from sds.redaction import redact

__all__ = ["Checks", "digest_of_headers", "digest_of_tag", "md5"]

_WEB = ("http://", "https://")  # of these, a digest comes from a header of its own, never from a tag
_MD5 = re.compile(r"[0-9a-f]{32}")


def digest_of_tag(tag: str) -> str | None:
    """The MD5 that an ETag is, if it looks like one: those of uploads in parts do not."""
    return tag if _MD5.fullmatch(tag) else None


def digest_of_headers(content_md5: str | None, goog_hash: str | None) -> str | None:
    """The MD5 in Content-MD5 or x-goog-hash, as hex digits."""
    found = re.search(r"(?:^|,|\s)md5=([A-Za-z0-9+/=]+)", goog_hash or "")
    text = content_md5 or (found[1] if found else None)
    try:
        digest = base64.b64decode(text or "", validate=True).hex()
    except (binascii.Error, ValueError):
        return None
    return digest_of_tag(digest)


def md5(chunks: Iterable[object]) -> str:
    """The MD5 of a body; other threads run meanwhile."""
    state = hashlib.md5(usedforsecurity=False)
    for chunk in chunks:
        state.update(memoryview(chunk))  # type: ignore[arg-type]
    return state.hexdigest()


class Checks:
    """Which buckets are checked, and where tags have proved to be checksums. Safe from many threads.

    `warn` is told, once, of each bucket that is no longer checked.
    """

    def __init__(self, warn: Callable[[str], None] = lambda _: None) -> None:
        self._warn = warn
        self._lock = threading.Lock()
        self._unchecked: set[str] = set()
        self._proven: set[str] = set()

    def wants(self, root: str, digest: str | None) -> bool:
        """Whether a body is worth hashing."""
        return digest is not None and root not in self._unchecked

    def agrees(self, root: str, digest: str | None, seen: str, before: str | None) -> bool:
        """Whether a body may be believed, given its MD5 and that of the attempt before, if it disagreed too."""
        with self._lock:
            if seen == digest:
                self._proven.add(root)
                return True
            if seen != before or root in self._proven or root.startswith(_WEB):
                return False
            is_news = root not in self._unchecked
            self._unchecked.add(root)  # tags are not MD5s there
        if is_news:
            self._warn(f"bodies are no longer checked, since ETags are no checksums there: {redact(root)}")
        return True
