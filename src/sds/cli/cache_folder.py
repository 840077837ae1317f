"""A cache folder, seen from outside: what is in it, and who works in it.

Comes in: a folder. Goes out: its files and tables, and a hold on it like that of its server. Nothing here deletes.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sds.errors import CacheError
from sds.view.cache import object_folders

if TYPE_CHECKING:
    from sds.fetch.folder import Found

__all__ = [
    "existing",
    "files_of",
    "held",
    "holder_of",
    "is_part",
    "is_readable",
    "is_unfinished",
    "made",
    "object_folders",
    "tables_of",
]

_PATIENCE_S = 4.0  # a fetch server ends within 2 s of its last client
_DEAD_S = 600.0  # as owner.py has it: a host that gave no sign of life for so long is gone
# tables of sources, and what stands for those that are used where they lie
_TABLE = re.compile(r"(.{1,40}-[0-9a-f]{12}-[0-9a-f]{24}\.(arrow|json)|tensors-[0-9a-f]{24}\.arrow)")


def existing(dst: str) -> Path:
    """The folder that was named.

    Raises:
        CacheError: it is not there, or is no cache.
    """
    folder = Path(os.path.abspath(os.path.expanduser(dst)))
    if not folder.is_dir():
        raise CacheError(f"no cache folder is there: {folder}", hint="a dataset's dst, or a folder in SDS_CACHE_DIR")
    if not any((folder / name).is_dir() for name in ("objects", "index", "hosts")):
        hint = "a cache has a folder 'objects' or 'index' in it: name a dataset's dst"
        raise CacheError(f"the folder is no cache: {folder}", hint=hint)
    return folder


def files_of(folder: Path) -> Iterator[Found]:
    """The files that the cache made: whole, unfinished or damaged."""
    from sds.fetch.folder import scan

    for objects in object_folders(folder):
        yield from scan(str(objects))


def tables_of(folder: Path) -> Iterator[Path]:
    """The indexes that were built there."""
    for path in sorted((folder / "index").glob("*")):
        if _TABLE.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            yield path


def is_part(path: str) -> bool:
    """Whether a file is a part of an object."""
    from sds.fetch.spans import origin_of

    return origin_of(path) is not None


def is_unfinished(path: str) -> bool:
    """Whether a file is being written, or was when its server died."""
    return os.path.basename(path).startswith("part-")


def is_readable(found: Found) -> bool:
    """Whether the disk gives every byte of it."""
    num_bytes = 0
    try:
        with open(found.path, "rb", buffering=0) as file:
            while data := file.read(2**20):
                num_bytes += len(data)
    except OSError:
        return False
    return num_bytes == found.size


def made(made_at: float | None) -> str | None:
    """A time for people."""
    return None if made_at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(made_at))


def holder_of(folder: Path) -> str | None:
    """Who works in the folder: the first line of the lock that its server holds."""
    from sds.fetch.owner import READING, lock_name

    try:
        descriptor = os.open(folder / lock_name("server"), READING)
    except OSError:
        return _other_host(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return _other_host(folder)
    except BlockingIOError:
        return os.pread(descriptor, 200, 0).decode(errors="replace").partition("\n")[0] or "a process"
    finally:
        os.close(descriptor)


def _other_host(folder: Path) -> str | None:
    """The name of another host whose server works in the folder, on a disk that hosts share."""
    from sds.fetch.owner import OWNER, host_key

    try:
        text = (folder / OWNER).read_text(errors="replace")
        age = time.time() - (folder / OWNER).stat().st_mtime
    except OSError:
        return None
    words = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    if words.get("host") in (None, host_key()) or age > _DEAD_S:
        return None
    return f"host {words.get('name', '?')}"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds the folder as its server would.

    Raises:
        CacheError: somebody works in it.
    """
    from sds.fetch.owner import open_lock

    hint = "end the programs that use it: its server ends two seconds after the last of them"
    other = _other_host(folder)
    if other is not None:
        raise CacheError(f"cache folder is in use: {folder}: {other}", hint=hint)
    descriptor = open_lock(folder, "server")
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CacheError(f"cache folder is in use: {folder}: {holder_of(folder)}", hint=hint) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)
