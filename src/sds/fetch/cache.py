"""The node's bounded folder of fetched files: who holds which file, what is on disk, what is promised.

Invariant: bytes on disk, temporary files included, never pass `used`, and `used` never passes the limit. A file's name
says its key and its size, so the folder is its own ledger: what a scan finds is the truth, and a file whose size is not
the one in its name is damaged and removed. Only names of this form are ever deleted. Not thread-safe: the server locks.
"""

from __future__ import annotations

import hashlib
import os
import re

from sds.errors import CacheError
from sds.fetch.evict import Idle

__all__ = ["Cache", "Entry", "key_of"]

_NAME = re.compile(r"([0-9a-f]{32})-(\d+)(\.[A-Za-z0-9]{1,16})?")
_PART = re.compile(r"[0-9a-f]{32}-\d+\.part")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,16}")


def key_of(url: str, version: str | None, endpoint: str | None) -> str:
    """The cache key: a hash of the whole URL, its version and where that URL leads."""
    # a separator that none of the parts can contain keeps the three apart
    text = "\0".join((url, version or "", endpoint or ""))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Entry:
    """One cached file."""

    __slots__ = ("key", "num_leases", "path", "size")

    def __init__(self, key: str, path: str, size: int) -> None:
        self.key = key
        self.path = path
        self.size = size
        self.num_leases = 0


class Cache:
    """Bookkeeping of one folder. Space is reserved before a body is written, and leased files stay."""

    def __init__(self, folder: str | os.PathLike[str], limit: int | None = None, policy: str = "keep") -> None:
        self.folder = os.fspath(folder)
        self.limit = limit
        self.policy = policy
        self.used = 0  # bytes on disk + reserved
        self.reserved = 0
        self.num_evictions = 0
        self._entries: dict[str, Entry] = {}
        self._idle = Idle()
        self._num_parts = 0
        self._buckets: set[str] = set()
        self._reconcile()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def leased_bytes(self) -> int:
        """Bytes of files that somebody holds."""
        return self.used - self.reserved - self._idle.num_bytes

    def find(self, key: str) -> Entry | None:
        """The file of a key, if it is there and whole; a damaged one is forgotten, so that it is fetched again."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        try:
            if os.stat(entry.path).st_size == entry.size:
                return entry
        except FileNotFoundError:
            pass
        self._forget(key)
        return None

    def lease(self, key: str) -> Entry:
        """Promises that a file stays until it is released as often as it was leased."""
        entry = self._entries[key]
        if not entry.num_leases:
            self._idle.remove(key)
        entry.num_leases += 1
        return entry

    def release(self, entry: Entry) -> None:
        """Takes one promise back."""
        entry.num_leases -= 1
        assert entry.num_leases >= 0, "released more often than leased"
        # a file that was found damaged while it was leased is forgotten, and may have a successor under its key
        if not entry.num_leases and self._entries.get(entry.key) is entry:
            self._idle.add(entry.key, entry.size)

    def reserve(self, size: int) -> bool:
        """Sets room aside for a body, evicting idle files if needed; False if there is not enough to be had now."""
        if self.limit is not None:
            missing = self.used + size - self.limit
            if missing > self._idle.num_bytes:
                return False
            if missing > 0:
                self._evict(missing)
        self.used += size
        self.reserved += size
        return True

    def cancel(self, size: int) -> None:
        """Gives reserved room back; the part file must be gone by then."""
        self.used -= size
        self.reserved -= size

    def part_path(self, key: str) -> str:
        """A name for a body that is being written, in the folder where it will stay."""
        self._num_parts += 1
        return f"{self._bucket(key)}/{key}-{self._num_parts}.part"

    def commit(self, key: str, part: str, size: int, suffix: str) -> Entry:
        """Publishes a whole body under its final name; its reservation becomes the file, leased once to the caller."""
        assert key not in self._entries
        suffix = suffix if _SUFFIX.fullmatch(suffix) else ""
        path = f"{self._bucket(key)}/{key}-{size}{suffix}"
        os.rename(part, path)
        self.reserved -= size
        entry = self._entries[key] = Entry(key, path, size)
        entry.num_leases = 1  # or it might be evicted before whoever asked for it has leased it
        return entry

    def shrink(self) -> None:
        """Evicts idle files until the limit holds, as far as that is possible now."""
        if self.limit is not None and self.used > self.limit:
            self._evict(self.used - self.limit)

    def _evict(self, num_bytes: int) -> None:
        for key in self._idle.victims(num_bytes, self.policy):
            self._forget(key)
            self.num_evictions += 1

    def _forget(self, key: str) -> None:
        entry = self._entries.pop(key)
        self._idle.remove(key)
        try:
            os.unlink(entry.path)
        except FileNotFoundError:
            pass
        self.used -= entry.size

    def _bucket(self, key: str) -> str:
        folder = f"{self.folder}/{key[:2]}"
        if folder not in self._buckets:
            os.makedirs(folder, exist_ok=True)
            self._buckets.add(folder)
        return folder

    def _reconcile(self) -> None:
        """Learns from the folder what is there; removes unfinished and damaged files that an earlier server made."""
        try:
            os.makedirs(self.folder, exist_ok=True)
            found: list[tuple[float, Entry]] = []
            for bucket in os.scandir(self.folder):
                if len(bucket.name) != 2 or not bucket.is_dir(follow_symlinks=False):
                    continue
                for item in os.scandir(bucket.path):
                    name = _NAME.fullmatch(item.name)
                    stat = item.stat(follow_symlinks=False)
                    if name is not None and int(name[2]) == stat.st_size and item.is_file(follow_symlinks=False):
                        found.append((stat.st_mtime, Entry(name[1], item.path, stat.st_size)))
                    elif name is not None or _PART.fullmatch(item.name):
                        os.unlink(item.path)
        except OSError as error:
            raise CacheError(
                f"cache folder cannot be used: {self.folder}: {error.strerror}",
                hint="choose another `dst`, or set SDS_CACHE_DIR to a folder that can be written",
            ) from error
        for _, entry in sorted(found, key=lambda item: item[0]):
            if entry.key in self._entries:  # the same key with another suffix: one of them is enough
                os.unlink(entry.path)
                continue
            self._entries[entry.key] = entry
            self._idle.add(entry.key, entry.size)
            self.used += entry.size
        self.shrink()
