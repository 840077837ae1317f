"""The cache folder on disk: what its files are called, and what lies in it.

A file's name says its key and its size, so a scan finds out what is whole and what is damaged. Names of other forms, in
other places, are not ours; links are never followed.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple

from sds.errors import CacheError

__all__ = [
    *("Found", "free_bytes", "key_of", "make_folder", "name_of", "part_name", "publish", "scan", "unlink", "unusable"),
    "written_bytes",
]

# a part of an object ends in the size and the version of the whole: .of75000000.0123456789abcdef
_ENDING = r"\.of\d{1,15}\.[0-9a-f]{16}|\.[A-Za-z0-9]{1,16}"
_NAME = re.compile(rf"([0-9a-f]{{32}})-(\d+)({_ENDING})?")
_PART = re.compile(r"part-\d+-[0-9a-f]{32}")  # never to be mistaken for a whole file, whatever its size
_SUFFIX = re.compile(_ENDING)


def key_of(url: str, version: str | None, endpoint: str | None, span: tuple[int, int] | None = None) -> str:
    """The cache key: a hash of the whole URL, its version, where that URL leads, and which bytes of it are meant."""
    # a separator that none of the parts can contain keeps them apart
    text = "\0".join((url, version or "", endpoint or "", *(map(str, span) if span else ())))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def name_of(key: str, size: int, suffix: str) -> str:
    """The name of a whole file; a suffix that could lead elsewhere is left out."""
    return f"{key}-{size}{suffix if _SUFFIX.fullmatch(suffix) else ''}"


def part_name(key: str, number: int) -> str:
    """The name of a body that is being written."""
    return f"part-{number}-{key}"


def publish(part: str, key: str, size: int, suffix: str) -> str:
    """Gives a body that is whole its final name; its path."""
    path = f"{os.path.dirname(part)}/{name_of(key, size, suffix)}"
    try:
        os.rename(part, path)
    except OSError as error:
        raise unusable(path, error) from error
    return path


class Found(NamedTuple):
    """A file of ours. `key` is None if it is unfinished, or its size is not the one in its name: it is of no use."""

    path: str
    key: str | None
    size: int
    made_at: float


def scan(folder: str) -> Iterator[Found]:
    """Every file of ours in a folder, which is made if need be. What vanishes meanwhile is left out."""
    make_folder(folder)
    try:
        for facts, path, name in _files(folder):
            match = _NAME.fullmatch(name)
            if match is not None and int(match[2]) == facts.st_size and path.endswith(f"/{match[1][:2]}/{name}"):
                yield Found(path, match[1], facts.st_size, facts.st_mtime)
            elif match is not None or _PART.fullmatch(name):
                yield Found(path, None, facts.st_size, facts.st_mtime)
    except OSError as error:
        raise unusable(folder, error) from error


def _files(folder: str) -> Iterator[tuple[os.stat_result, str, str]]:
    """The regular files in the buckets: facts, path, name."""
    with os.scandir(folder) as buckets:
        for bucket in buckets:
            if not re.fullmatch("[0-9a-f]{2}", bucket.name) or not bucket.is_dir(follow_symlinks=False):
                continue
            with os.scandir(bucket.path) as items:
                for item in items:
                    try:
                        facts = item.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if stat.S_ISREG(facts.st_mode):
                        yield facts, item.path, item.name


def make_folder(folder: str) -> None:
    """Makes a folder, or takes the one that is there; a link in its place would lead out of the cache."""
    try:
        try:
            facts = os.lstat(folder)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            facts = os.lstat(folder)
        if stat.S_ISDIR(facts.st_mode):
            return
    except OSError as error:
        raise unusable(folder, error) from error
    raise CacheError(
        f"cache folder holds a link (or a file) where a folder should be: {folder}",
        hint="remove it; `dst` itself may be a link",
    )


def unlink(path: str) -> bool:
    """Deletes a file; whether it is gone now."""
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):  # somebody put a folder there: it is not ours
        pass
    except OSError:
        return False
    return True


def free_bytes(folder: str) -> int:
    """What the disk has left for us, by its own word; a quota may allow less."""
    try:
        facts = os.statvfs(folder)
    except OSError:
        return 0
    return facts.f_bavail * facts.f_frsize


def written_bytes(path: str) -> int:
    """What a file takes on the disk by now; nothing if it is not there."""
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0


def unusable(folder: str, error: OSError) -> CacheError:
    """The error that says so."""
    return CacheError(
        f"cache folder cannot be used: {folder}: {error.strerror}",
        hint="choose another `dst`, or set SDS_CACHE_DIR to a folder that can be written",
    )
