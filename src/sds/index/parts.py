"""Source: every file that an index is made from, named with its version, before any is opened.

A source is parts in order: tables to read, and groups of sample files. Equal tokens mean equal content, and each part
says what its relative paths are relative to and whether it may name files of this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sds.index import addresses
from sds.index.formats import Format
from sds.index.listing import ListedFile
from sds.urls import is_remote, split

__all__ = ["IndexFile", "SampleFiles", "Source"]


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A table to read.

    Attributes:
        url: its address.
        format: how to read it.
        version: what changes when its content does.
        from_web: whether a list on a web server named it.
    """

    url: str
    format: Format
    version: str
    from_web: bool = False

    @property
    def folder(self) -> str:
        """What relative paths in the table are relative to."""
        return addresses.folder_of(self.url)

    @property
    def may_name_local(self) -> bool:
        """Whether its paths may be on this machine's own disks (docs/decisions/0006)."""
        return not (self.from_web or addresses.is_http(self.url))

    @property
    def token(self) -> str:
        """Address and version: equal tokens mean an equal file."""
        return f"index {self.url} {self.version}{' from the web' if self.from_web else ''}"


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """Files to be grouped into samples: from a directory, a wildcard, or the lines of a list.

    Attributes:
        origin: the directory, pattern or list, for messages.
        folder: what the paths are relative to.
        files: relative paths with versions, or lines of a list (relative or absolute) whose versions are ''.
        token: equal tokens mean equal files.
        from_list: whether they are lines of a list: their order is meant, and nobody has looked for them.
    """

    origin: str
    folder: str
    files: tuple[ListedFile, ...]
    token: str
    from_list: bool = False

    @property
    def may_name_local(self) -> bool:
        """Whether its paths may be on this machine's own disks (docs/decisions/0006)."""
        return not addresses.is_http(self.origin)


@dataclass(frozen=True, slots=True)
class Source:
    """Everything that an index is made from, in order.

    Attributes:
        kind: 'file', 'directory', 'wildcard', 'list' or 'several'.
        name: for people.
        parts: its files with their versions.
        asked: what the user asked for, whatever is there now: addresses, patterns.
    """

    kind: str
    name: str
    parts: tuple[IndexFile | SampleFiles, ...]
    asked: tuple[str, ...] = ()

    @property
    def index_files(self) -> list[IndexFile]:
        """The tables among the parts."""
        return [part for part in self.parts if isinstance(part, IndexFile)]

    @property
    def sample_files(self) -> list[SampleFiles]:
        """The groups of sample files among the parts."""
        return [part for part in self.parts if isinstance(part, SampleFiles)]

    @property
    def tokens(self) -> list[str]:
        """Address and version of every file."""
        return [part.token for part in self.parts]

    def has(self, address: str) -> bool:
        """Whether a file is one of its own, under this name or behind a link."""
        wanted = _place(address)
        return any(_place(each) == wanted for each in self._addresses(address.rpartition("/")[2]))

    def _addresses(self, name: str) -> Iterator[str]:
        """All tables, and the sample files with a name."""
        for part in self.parts:
            if isinstance(part, IndexFile):
                yield part.url
            else:
                for file in part.files:
                    if file.path.rpartition("/")[2] == name:
                        yield file.path if addresses.is_absolute(file.path) else addresses.join(part.folder, file.path)

    def without(self, address: str) -> Source:
        """The same source without one of its tables, if there are others."""
        wanted = _place(address)
        others = tuple(part for part in self.parts if not isinstance(part, IndexFile) or _place(part.url) != wanted)
        return replace(self, parts=others or self.parts)

    def limited(self, max_index_files: int | None) -> Source:
        """The same source with only its first index files."""
        if max_index_files is None:
            return self
        left_out = set(map(id, self.index_files[max_index_files:]))
        return replace(self, parts=tuple(part for part in self.parts if id(part) not in left_out))


def _place(address: str) -> object:
    """Equal for two spellings of one place."""
    address = addresses.absolute(address)
    return split(addresses.without_query(address)) if is_remote(address) else os.path.realpath(address)
