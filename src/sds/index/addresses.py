"""Addresses as text: paths and URLs taken apart and put together, with no look at the disk or the network.

An address is an absolute path or a URL with a scheme. Its anchor is '/' or 'scheme://host', its parts are what follows.
Nothing here ever climbs above an anchor. Which schemes there are, and what a file:// URL names, is known to sds.urls.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from sds.urls import is_remote, local_path

__all__ = [
    "ESCAPES",
    "absolute",
    "common_folder",
    "folder_of",
    "is_absolute",
    "is_http",
    "join",
    "literal",
    "normalise",
    "split_anchor",
    "without_query",
]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")  # known or not: only the form matters here
_HTTP = ("http://", "https://")
# what a letter of a file name would mean in an http URL -> how it is written there; '%' comes first
ESCAPES = (("%", "%25"), ("#", "%23"), ("?", "%3F"))


def is_http(address: str) -> bool:
    """Whether an address is on a web server, where paths are written with escapes."""
    return address[:8].lower().startswith(_HTTP)


def is_absolute(text: str) -> bool:
    """Whether a text is an address, not a relative path."""
    return text.startswith("/") or _SCHEME.match(text) is not None


def absolute(text: str) -> str:
    """An address from what a user wrote: file:// becomes a path, a relative path is taken from the working folder.

    Raises:
        OptionError: the scheme is unknown, or a file:// URL names a host.
    """
    return text if is_remote(text) else os.path.abspath(local_path(text) or "/")


def split_anchor(address: str) -> tuple[str, str]:
    """'s3://bucket/a/b' -> ('s3://bucket', 'a/b'); '/a/b' -> ('/', 'a/b')."""
    scheme = _SCHEME.match(address)
    if scheme is None:
        return "/", address.strip("/")
    host, _, path = address[scheme.end() :].partition("/")
    return f"{scheme[0]}{host}", path.rstrip("/")


def join(folder: str, relative: str) -> str:
    """The address of what lies at a relative path below a folder; empty parts are the folder itself."""
    if not relative:
        return folder
    return f"{folder.rstrip('/')}/{relative}"


def literal(folder: str, relative: str) -> str:
    """A relative path as it is written below a folder: behind http, the '%', '#' and '?' of a file name are escaped."""
    if is_http(folder):
        for letter, escape in ESCAPES:
            relative = relative.replace(letter, escape)
    return relative


def folder_of(address: str) -> str:
    """The folder an address lies in; the query part of an http URL belongs to the file, not to the folder."""
    anchor, path = split_anchor(without_query(address))
    return join(anchor, path.rpartition("/")[0])


def without_query(address: str) -> str:
    """The address without the query and fragment that an http URL may have."""
    return re.split(r"[?#]", address, maxsplit=1)[0] if is_http(address) else address


def common_folder(folders: Iterable[str]) -> str | None:
    """The deepest folder that has them all below it, or None if they lie in different places."""
    split = [split_anchor(folder) for folder in dict.fromkeys(folders)]
    if len({anchor for anchor, _ in split}) != 1:
        return None
    shared = _shared([path.split("/") if path else [] for _, path in split])
    return join(split[0][0], "/".join(shared))


def _shared(paths: Sequence[Sequence[str]]) -> list[str]:
    shared: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) != 1:
            break
        shared.append(parts[0])
    return shared


def normalise(address: str) -> str | None:
    """Takes '.' and '..' out of an address; None if it climbs above a bucket or host. Above '/' there is only '/'."""
    anchor, path = split_anchor(address)
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not parts and anchor != "/":
                return None
            del parts[-1:]
        elif part != ".":
            parts.append(part)
    return join(anchor, "/".join(parts))
