"""Addresses: a URL or path as text -> what kind it is and its parts.

A URL has one of the known schemes; anything else is a local path. Nothing here touches a disk or a network.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from sds.errors import OptionError

__all__ = ["SCHEMES", "Address", "is_remote", "local_path", "redact", "split"]

# what people write -> what it is
SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "az",
    "http": "http",
    "https": "https",
    "file": "file",
}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class Address(NamedTuple):
    """A remote URL in parts: s3://bucket/a/b.jpg -> ("s3", "bucket", "a/b.jpg")."""

    scheme: str
    root: str
    key: str


def _scheme(url: str) -> str:
    match = _SCHEME.match(url)
    if match is None:
        return ""
    scheme = SCHEMES.get(match[1].lower())
    if scheme is None:
        known = ", ".join(sorted(set(SCHEMES)))
        raise OptionError(f"URL has an unknown scheme: {redact(url)}", hint=f"known schemes: {known}", url=redact(url))
    return scheme


def is_remote(url: str) -> bool:
    """Whether the text is a URL that must be fetched, rather than a local path or a file:// URL."""
    return "://" in url and _scheme(url) not in ("", "file")


def local_path(url: str) -> str:
    """The path that a local path or a file:// URL names."""
    if "://" in url and _scheme(url) == "file":
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            hint = "a file URL has three slashes: file:///data/x.jpg"
            raise OptionError(f"file URL names a host: {url}", hint=hint, url=url)
        return unquote(parts.path)
    return url


def split(url: str) -> Address:
    """Takes a remote URL apart. For http(s) the key keeps escapes and query; elsewhere it is the literal key."""
    scheme = _scheme(url)
    rest = url.split("://", 1)[1]
    root, _, key = rest.partition("/")
    if scheme in ("http", "https"):
        key = key.partition("#")[0]
    if not root:
        kind = "host" if scheme.startswith("http") else "bucket"
        raise OptionError(f"URL names no {kind}: {redact(url)}", hint=f"{scheme}://<{kind}>/<path>", url=redact(url))
    return Address(scheme, root, key)


def redact(url: str) -> str:
    """The URL without what may be secret in it: user, password and the values of its query (signatures, tokens)."""
    if "://" not in url:
        return url
    head, _, query = url.partition("?")
    scheme, _, rest = head.partition("://")
    root, slash, path = rest.partition("/")
    clean = f"{scheme}://{root.rpartition('@')[2]}{slash}{path}"
    return f"{clean}?..." if query else clean
