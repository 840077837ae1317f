"""Addresses: a URL or path as text -> what kind it is and its parts.

A URL has one of the known schemes; anything else is a local path. Nothing here touches a disk or a network.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from sds.errors import OptionError
from sds.redaction import redact

__all__ = ["SCHEMES", "Address", "host_of", "is_remote", "local_path", "redact", "root_of", "split"]

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
_HOST = re.compile(r"(https?)://([^\s/?#@:\[\]]+|\[[0-9a-f:.]+\])(?::(\d+))?/?", re.IGNORECASE)


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
        hint = f"known schemes: {', '.join(sorted(set(SCHEMES)))}"
        if match[1].lower() == "hf":
            hint = "a hub's own addresses need its client: download the files, or give their https:// URLs"
        raise OptionError(f"URL has an unknown scheme: {redact(url)}", hint=hint, url=redact(url))
    return scheme


def is_remote(url: str) -> bool:
    """Whether the text is a URL that must be fetched, rather than a local path or a file:// URL."""
    prefix, separator, _ = url.partition("://")
    if not separator:
        return False
    return (SCHEMES.get(prefix) or _scheme(url)) not in ("", "file")


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


def root_of(url: str) -> str:
    """The bucket or host of a URL, with its scheme: what is slow, overloaded, lying or paid for as one."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def host_of(url: str) -> str | None:
    """The host that a web URL without a path names, spelled in one way: https://H:443/ -> https://h; else None."""
    match = _HOST.fullmatch(url)
    if match is None:
        return None
    scheme, host, port = match[1].lower(), match[2].lower(), match[3]
    is_usual = port is None or port == {"http": "80", "https": "443"}[scheme]
    return f"{scheme}://{host}" if is_usual else f"{scheme}://{host}:{port}"
