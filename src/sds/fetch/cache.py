"""The node's bounded folder of fetched files: who holds which file, what is on disk, what is promised.

Invariant: bytes on disk, temporary files included, never pass `used`, and `used` never passes the limit. A file's name
says its key and its size, so the folder is its own ledger: what a scan finds is the truth, and a file whose size is not
the one in its name is damaged and removed. Only regular files with such names are ever deleted, and links are never
followed. Not thread-safe: the server locks.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator

from sds.errors import CacheError
from sds.fetch.evict import Idle

__all__ = ["Cache", "Entry", "key_of"]

_NAME = re.compile(r"([0-9a-f]{32})-(\d+)(\.[A-Za-z0-9]{1,16})?")
_PART = re.compile(r"part-\d+-[0-9a-f]{32}")  # never to be mistaken for a whole file, whatever its size
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

    def __init__(
        self,
        folder: str | os.PathLike[str],
        limit: int | None = None,
        policy: str = "keep",
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = os.fspath(folder)
        self.limit = limit
        self.policy = policy
        self.used = 0  # bytes on disk + reserved
        self.reserved = 0
        self.num_evictions = 0
        self._entries: dict[str, Entry] = {}
        self._idle = Idle()
        self._num_parts = 0
        self._parts: set[str] = set()
        self._buckets: set[str] = set()
        self._reconcile(_at_times(on_progress))

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
            facts = os.lstat(entry.path)
            if facts.st_size == entry.size and stat.S_ISREG(facts.st_mode):
                return entry
        except OSError:
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
            self.shrink()  # the limit may have been lowered while the file was held

    def reserve(self, size: int) -> bool:
        """Sets room aside for a body, evicting idle files if needed; False if there is not enough to be had now."""
        if self.limit is not None:
            missing = self.used + size - self.limit
            if missing > self._idle.num_bytes:
                return False
            if missing > 0 and not self._evict(missing):
                return False
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
        part = f"{self._bucket(key)}/part-{self._num_parts}-{key}"
        self._parts.add(part)
        return part

    def drop_part(self, part: str) -> None:
        """Removes a body that will not be finished."""
        _unlink(part)
        self._parts.discard(part)

    def commit(self, key: str, part: str, size: int, suffix: str) -> Entry:
        """Publishes a whole body under its final name; its reservation becomes the file, leased once to the caller."""
        assert key not in self._entries
        suffix = suffix if _SUFFIX.fullmatch(suffix) else ""
        path = f"{self._bucket(key)}/{key}-{size}{suffix}"
        try:
            os.rename(part, path)
        except OSError as error:
            raise _unusable(path, error) from error
        self._parts.discard(part)
        self.reserved -= size
        entry = self._entries[key] = Entry(key, path, size)
        entry.num_leases = 1  # or it might be evicted before whoever asked for it has leased it
        return entry

    def shrink(self) -> None:
        """Evicts idle files until the limit holds, as far as that is possible now."""
        if self.limit is not None and self.used > self.limit:
            self._evict(self.used - self.limit)

    def sweep(self) -> None:
        """Removes the unfinished files: the server ends, and nobody will finish them."""
        for part in list(self._parts):
            self.drop_part(part)

    def _evict(self, num_bytes: int) -> bool:
        """Frees at least so many bytes; False if it could not, since files do not let themselves be deleted."""
        goal = self.used - num_bytes
        while self.used > goal and len(self._idle):
            for key in self._idle.victims(self.used - goal, self.policy):
                self._forget(key)
                self.num_evictions += 1
        return self.used <= goal

    def _forget(self, key: str) -> None:
        """Deletes a file. One that cannot be deleted still takes its room: `used` goes on counting it."""
        entry = self._entries.pop(key)
        self._idle.remove(key)
        if _unlink(entry.path):
            self.used -= entry.size

    def _bucket(self, key: str) -> str:
        folder = f"{self.folder}/{key[:2]}"
        if folder not in self._buckets:
            _make_folder(folder)
            self._buckets.add(folder)
        return folder

    def _files(self) -> Iterator[tuple[os.stat_result, str, str]]:
        """The regular files in the buckets: facts, path, name. What vanishes meanwhile is left out."""
        with os.scandir(self.folder) as buckets:
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

    def _reconcile(self, on_progress: Callable[[], None]) -> None:
        """Learns from the folder what is there; removes unfinished and damaged files that an earlier server made."""
        found: list[tuple[float, Entry]] = []
        try:
            _make_folder(self.folder)
            for facts, path, name in self._files():
                on_progress()
                match = _NAME.fullmatch(name)
                if match is not None and int(match[2]) == facts.st_size and path.endswith(f"/{match[1][:2]}/{name}"):
                    found.append((facts.st_mtime, Entry(match[1], path, facts.st_size)))
                elif (match is not None or _PART.fullmatch(name)) and not _unlink(path):
                    self.used += facts.st_size  # it stays, and takes its room
        except CacheError:  # which is an OSError too
            raise
        except OSError as error:
            raise _unusable(self.folder, error) from error
        for _, entry in sorted(found, key=lambda item: item[0]):
            on_progress()
            if entry.key in self._entries:  # the same key with another suffix or size: one of them is enough
                self._forget(entry.key)
            self._entries[entry.key] = entry
            self._idle.add(entry.key, entry.size)
            self.used += entry.size
        self.shrink()


def _at_times(call: Callable[[], None]) -> Callable[[], None]:
    """The same, but once a second at most."""
    last = time.monotonic()

    def now_and_then() -> None:
        nonlocal last
        if time.monotonic() - last > 1.0:
            last = time.monotonic()
            call()

    return now_and_then


def _make_folder(folder: str) -> None:
    """Makes a folder, or takes the one that is there; a link in its place would lead out of the cache."""
    try:
        os.makedirs(folder, exist_ok=True)
        if stat.S_ISDIR(os.lstat(folder).st_mode):
            return
    except OSError as error:
        raise _unusable(folder, error) from error
    raise CacheError(
        f"cache folder holds a link where a folder should be: {folder}",
        hint="remove the link; `dst` itself may be one",
    )


def _unlink(path: str) -> bool:
    """Deletes a file; whether it is gone now."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def _unusable(folder: str, error: OSError) -> CacheError:
    return CacheError(
        f"cache folder cannot be used: {folder}: {error.strerror}",
        hint="choose another `dst`, or set SDS_CACHE_DIR to a folder that can be written",
    )
