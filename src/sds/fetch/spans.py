"""Parts of objects as cached files: whose name says how large the whole is, and which version of it.

A span is the bytes [start, stop) of an object. It is cached, leased and evicted like any file. All spans asked for lie
on one grid of blocks, so that whoever needs some bytes of an object meets what others fetched before.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple, TypeAlias

from sds.errors import UnsupportedSource

__all__ = ["HEAD", "Origin", "Span", "block", "blocks_between", "origin_of", "suffix_of"]

Span: TypeAlias = tuple[int, int]

# The first block. A quarter of what one request costs on a cloud store, in bytes: several come side by side.
HEAD: Span = (0, 256 * 2**10)

_SUFFIX = re.compile(r"\.of(\d{1,15})\.([0-9a-f]{16})$")
_LONGEST = len(".of") + 15 + 1 + 16


class Origin(NamedTuple):
    """What a part was cut from: the size of the object, and a tag that differs for other versions of it."""

    size: int
    tag: str


def block(number: int, size: int) -> Span:
    """The span of a block, on a grid of blocks of one size; the last one of an object is shorter."""
    return number * size, (number + 1) * size


def blocks_between(start: int, stop: int, size: int) -> range:
    """The numbers of the blocks that hold the bytes [start, stop)."""
    return range(start // size, -(-stop // size)) if stop > start else range(0)


def suffix_of(total: int | None, version: str) -> str:
    """How the cached file of a part ends."""
    if total is None:
        raise UnsupportedSource("the server does not say how large the whole object is", hint="it is fetched whole")
    return f".of{total}.{hashlib.blake2b(version.encode(), digest_size=8).hexdigest()}"


def origin_of(path: str) -> Origin | None:
    """What a cached file was cut from; None: it is a whole object."""
    match = _SUFFIX.search(path, max(0, len(path) - _LONGEST))
    return None if match is None else Origin(int(match[1]), match[2])
