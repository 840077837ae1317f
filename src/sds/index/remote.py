"""What this room asks of whoever reads remote objects: the client of sds.fetch, seen from here.

Comes in: a URL. Goes out: facts about objects, or their bytes. Calls may come from several threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

__all__ = ["ObjectFacts", "OpenRemote", "Remote"]


class ObjectFacts(Protocol):
    """What a listing or a head request tells of an object."""

    @property
    def url(self) -> str:
        """Its full URL."""
        ...

    @property
    def size(self) -> int:
        """Its length in bytes."""
        ...

    @property
    def version(self) -> str:
        """Its ETag, or else size and modification time."""
        ...


class Remote(Protocol):
    """Reads remote objects; raises ObjectNotFound, AccessDenied or another FetchError."""

    def head(self, url: str) -> ObjectFacts:
        """Tells about one object."""
        ...

    def read_ranges(self, url: str, ranges: list[tuple[int, int]], /) -> Sequence[bytes]:
        """The bytes of several ranges of an object."""
        ...

    def list(self, url: str) -> Sequence[ObjectFacts]:
        """Tells about everything below a folder."""
        ...

    def read(self, url: str, start: int | None = None, stop: int | None = None) -> bytes:
        """The bytes of an object, or a range of them."""
        ...

    def download(self, url: str, path: Path) -> Any:
        """Writes the whole object to a local path."""
        ...


OpenRemote: TypeAlias = Callable[[], Remote]
