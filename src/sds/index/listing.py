"""Directories: a local folder or a remote prefix -> the files below it, each with its version.

Paths are relative to the folder, in byte order. Hidden names are left out, and so are the folders of a cache that lies
in there, and tables that were built in the folder `index` of another cache. Links to folders are followed,
but never round in a circle.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass

from sds.errors import ObjectNotFound, SourceError, SourceNotFound
from sds.index.addresses import is_http
from sds.index.remote import Remote

__all__ = ["ListedFile", "file_version", "list_local", "list_remote", "version_of"]

# what sds.index.store calls the tables that it builds: name, what was asked for, what was there
_BUILT = re.compile(r".+-[0-9a-f]{12}-[0-9a-f]{24}\.(?:arrow|json|lazy|weights)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file below a folder: where it is, relative to the folder, and which version of it."""

    path: str
    version: str


def version_of(stat: os.stat_result) -> str:
    """The version of a local file: its size and modification time."""
    return f"{stat.st_size}-{stat.st_mtime_ns}"


def file_version(stat: os.stat_result) -> str:
    """The version of an index file: the inode tells one that was replaced in the same moment by one of equal size."""
    return f"{version_of(stat)}-{stat.st_ino}"


def list_local(root: str, *, exclude: Collection[str] = ()) -> list[ListedFile]:
    """Lists what lies below a local folder; `exclude` has folders that are left out."""
    files: list[ListedFile] = []
    _walk(root, "", exclude, (os.stat(root).st_ino,), files)
    files.sort(key=lambda file: file.path)  # UTF-8 keeps the order of code points: this is byte order
    return files


def _walk(folder: str, prefix: str, exclude: Collection[str], above: tuple[int, ...], files: list[ListedFile]) -> None:
    try:
        entries = list(os.scandir(folder))
    except PermissionError as e:
        raise SourceError(
            f"folder cannot be read: {folder}", hint="give this user read access, or choose another folder", url=folder
        ) from e
    may_be_built = f"/{prefix}".endswith("/index/")
    for entry in entries:
        name = entry.name
        if name.startswith(".") or (may_be_built and _BUILT.fullmatch(name)):
            continue
        if entry.is_dir():
            if entry.path in exclude or (ino := entry.stat().st_ino) in above:
                continue
            _walk(entry.path, f"{prefix}{name}/", exclude, (*above, ino), files)
            continue
        path = f"{prefix}{name}"
        try:
            path.encode()
        except UnicodeEncodeError:
            raise SourceError(
                f"file name is not UTF-8: {os.fsencode(entry.path)!r}", hint="rename the file: an index holds text"
            ) from None
        try:
            files.append(ListedFile(path, version_of(entry.stat())))
        except FileNotFoundError:  # a link to nothing, or deleted while we look: it is not there
            continue


def list_remote(root: str, remote: Remote) -> list[ListedFile]:
    """Lists what lies below a remote folder; an empty or absent one gives nothing, an absent bucket SourceNotFound."""
    below = f"{root.rstrip('/')}/"
    try:
        objects = remote.list(below)
    except ObjectNotFound as e:
        if is_http(root):
            return []
        raise SourceNotFound(f"nothing is at the source: {root}", hint=e.hint, url=root) from e  # there is no bucket
    files = []
    for info in objects:
        if not info.url.startswith(below):
            raise SourceError(
                f"listing of {below} names an object that is not below it: {info.url}",
                hint="write the URL as the store names it: same scheme, same bucket, no '..'",
                url=root,
            )
        path = info.url[len(below) :]
        # stores show a folder as an empty object whose key ends in '/'
        if path and not path.endswith("/") and not path.startswith(".") and "/." not in path:
            files.append(ListedFile(path, info.version))
    files.sort(key=lambda file: file.path)
    return files
