"""The node's bounded folder of fetched files: who holds which file, what is on disk, what is promised.

Invariant: bytes on disk, temporary files included, never pass `used`, and `used` never passes the limit. A file's name
says its key and its size, so the folder is its own ledger: what a scan finds is the truth, and a file whose size is not
the one in its name is damaged and removed. Only regular files with such names are ever deleted, and links are never
followed. A disk that is full before the limit is reached counts as the limit for a while. Not thread-safe: the server
locks.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Callable

from sds.fetch.evict import Idle
from sds.fetch.folder import free_bytes, key_of, make_folder, part_name, publish, scan, unlink, written_bytes

__all__ = ["Cache", "Entry", "key_of"]

_FULL_S = 60.0  # how long a full disk is believed to be full


class Entry:
    """One cached file."""

    __slots__ = ("key", "made_at", "num_leases", "path", "size")

    def __init__(self, key: str, path: str, size: int, made_at: float) -> None:
        self.key = key
        self.path = path
        self.size = size
        self.made_at = made_at  # seconds since 1970
        self.num_leases = 0


class Cache:
    """Bookkeeping of one folder. Space is reserved before a body is written, and leased files stay.

    `distrust_s`: files that were made so shortly before the newest one are removed: the machine went down since, and
    their bytes may not have reached the disk.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        limit: int | None = None,
        policy: str = "keep",
        on_progress: Callable[[], None] = lambda: None,
        distrust_s: float | None = None,
    ) -> None:
        self.folder = os.fspath(folder)
        self.limit = limit
        self.policy = policy
        self.ttl_s: float | None = None  # how old a file may be
        self.on_full_disk: Callable[[], None] = lambda: None
        self.used = 0  # bytes on disk + reserved
        self.reserved = 0
        self.num_evictions = 0
        self._entries: dict[str, Entry] = {}
        self._idle = Idle()
        self._num_parts = secrets.randbits(40)  # nobody can put something else there before
        self._parts: set[str] = set()
        self._ceiling = 0  # what a full disk has for us
        self._free = 0  # what it said was left when it refused a body
        self._full_until = 0.0
        self._reconcile(_at_times(on_progress), distrust_s)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        """Whether a file is known, without a look at the disk."""
        return key in self._entries

    @property
    def leased_bytes(self) -> int:
        """Bytes of files that somebody holds."""
        return self.used - self.reserved - self._idle.num_bytes

    @property
    def is_disk_full(self) -> bool:
        """Whether the disk refused a body, a while ago at most."""
        return time.monotonic() < self._full_until

    @property
    def room(self) -> int | None:
        """Bytes that there may be now: the limit, or what the disk has, if that is less."""
        if not self.is_disk_full:
            return self.limit
        return self._ceiling if self.limit is None else min(self.limit, self._ceiling)

    def find(self, key: str) -> Entry | None:
        """The file of a key, if it is there, whole and not too old; otherwise it is forgotten, to be fetched again."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        try:
            facts = os.lstat(entry.path)
            is_whole = facts.st_size == entry.size and stat.S_ISREG(facts.st_mode)
        except OSError:
            is_whole = False
        if is_whole and (entry.num_leases or not self._is_old(entry)):  # one that is in use is handed out once more
            return entry
        self._forget(key)
        return None

    def _is_old(self, entry: Entry) -> bool:
        return self.ttl_s is not None and time.time() - entry.made_at > self.ttl_s

    def expire(self) -> None:
        """Removes the files that are too old and that nobody holds."""
        old: list[str] = []
        for entry in self._entries.values():  # in the order in which they were made
            if not self._is_old(entry):
                break
            if not entry.num_leases:
                old.append(entry.key)
        for key in old:
            self._forget(key)

    def note_full_disk(self) -> bool:
        """The disk refused a body, whose room was given back: for a while, what we have there is all that there may be.

        Room that was only set aside counts as far as the disk has it. False if nothing else of ours is there: no
        eviction will help.
        """
        if not self.used:
            self._full_until = 0.0
            return False
        self._free = free_bytes(self.folder)
        self._ceiling = min(self.used, self._on_disk + self._free)
        self._full_until = time.monotonic() + _FULL_S
        self.on_full_disk()
        return True

    @property
    def _on_disk(self) -> int:
        """Bytes of files and of unfinished ones, without what is only set aside for them."""
        return self.used - self.reserved + sum(map(written_bytes, self._parts))

    def look_at_disk(self, wanted: int) -> None:
        """If somebody else has freed so many bytes of a full disk, they are ours to use."""
        if not self.is_disk_full or self._free >= wanted:  # it refused what it said it had: its word is worth nothing
            return
        free = free_bytes(self.folder)
        if free - self._free >= wanted:
            self._free, self._ceiling = free, self._on_disk + free

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
        if (room := self.room) is not None:
            missing = self.used + size - room
            # on a full disk, what is larger than all that we have there is tried when all of that is gone
            is_last_try = (
                self.is_disk_full and self.used == self._idle.num_bytes and (self.limit is None or size <= self.limit)
            )
            if missing > self._idle.num_bytes and not is_last_try:
                return False
            if missing > 0 and not self._evict(min(missing, self._idle.num_bytes)):
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
        part = self.name_part(key)
        make_folder(os.path.dirname(part))  # each time: somebody may have deleted it, or put a link in its place
        return part

    def name_part(self, key: str) -> str:
        """The same, without a look at the disk: whoever writes the file makes its folder."""
        self._num_parts += 1
        part = f"{self.folder}/{key[:2]}/{part_name(key, self._num_parts)}"
        self._parts.add(part)
        return part

    def drop_part(self, part: str) -> None:
        """Removes a body that will not be finished."""
        unlink(part)
        self._parts.discard(part)

    def commit(self, key: str, part: str, size: int, suffix: str) -> Entry:
        """Publishes a whole body under its final name; its reservation becomes the file, leased once to the caller."""
        assert key not in self._entries
        return self.enter(key, part, publish(part, key, size, suffix), size)

    def enter(self, key: str, part: str, path: str, size: int) -> Entry:
        """Takes a body into the books that was published already."""
        assert key not in self._entries
        self._parts.discard(part)
        self.reserved -= size
        self._ceiling = max(
            self._ceiling, self.used - self.reserved
        )  # it was on its way when the disk was full, and fits
        entry = self._entries[key] = Entry(key, path, size, time.time())
        entry.num_leases = 1  # or it might be evicted before whoever asked for it has leased it
        return entry

    def shrink(self) -> None:
        """Evicts idle files until the limit holds, as far as that is possible now."""
        if self.limit is not None and self.used > self.limit:  # a full disk needs no files to go until one shall come
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
        if unlink(entry.path):
            self.used -= entry.size

    def _reconcile(self, on_progress: Callable[[], None], distrust_s: float | None) -> None:
        """Learns from the folder what is there; removes unfinished and damaged files that an earlier server made."""
        found: list[Entry] = []
        now = time.time()
        for each in scan(self.folder):
            on_progress()
            if each.key is not None:
                made_at = min(each.made_at, now)  # some clocks were ahead, and age is told in the order of making
                found.append(Entry(each.key, each.path, each.size, made_at))
            elif not unlink(each.path):
                self.used += each.size  # it stays, and takes its room
        found.sort(key=lambda entry: entry.made_at)
        newest = found[-1].made_at if found else 0.0
        doubtful_from = float("inf") if distrust_s is None else newest - distrust_s
        for entry in found:
            on_progress()
            if entry.key in self._entries:  # the same key with another suffix or size: one of them is enough
                self._forget(entry.key)
            self._entries[entry.key] = entry
            self._idle.add(entry.key, entry.size)
            self.used += entry.size
            if entry.made_at >= doubtful_from:
                self._forget(entry.key)
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
