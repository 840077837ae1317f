"""Where built tables live: a folder with one file per index, named by what it was built from.

Another source, another version of a file, other options: another name, so nothing is ever overwritten by anything else.
Files come into being by rename, so what is there is whole. A table whose source can be used as it lies has only a note
of that. What an earlier version of a source left is removed when the next is built, once nobody opened it for a week.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple
from pathlib import Path

import msgspec
import pyarrow as pa

from sds.errors import CacheError, SourceError
from sds.index import lock
from sds.index.holding import open_table
from sds.index.options import IndexOptions
from sds.index.parts import Source
from sds.index.table import Manifest, TableIndex

__all__ = ["Store"]

_FORMAT = 3
_MIN_BATCH_ROWS = 1 << 15
_MANIFEST = b"sds.manifest"
_ENDINGS = ("arrow", "json", "lazy", "weights")
# A running process has mapped its table, but the workers that it starts later open it again, by its name
_KEEP_UNUSED_S = 7 * 24 * 3600

_KEEP_SHARES_S = 24 * 3600  # parts of a pass that was killed, and not begun again


class Store:
    """The place of one index in a folder.

    Attributes:
        name: what files are named by: the source's own name, for people, what was asked for, and what was there.
        folder: where they lie.
    """

    def __init__(self, folder: Path, source: Source, options: IndexOptions) -> None:
        identity = msgspec.json.encode([_FORMAT, source.kind, source.tokens, list(astuple(options))])
        asked = msgspec.json.encode([source.kind, source.asked, list(astuple(options))])
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", source.name)[:40].strip(".-") or "index"
        self._family = f"{stem}-{_digest(asked, 6)}-"
        self.name = f"{self._family}{_digest(identity, 12)}"
        self.folder = folder
        self._table = folder / f"{self.name}.arrow"
        self._note = folder / f"{self.name}.json"
        self._scratch = folder / f"{self.name}.tmp"

    def path(self, ending: str) -> Path:
        """Where a file of this index lies, by its ending."""
        return self.folder / f"{self.name}.{ending}"

    def adopt(self, made: Path, ending: str) -> None:
        """Gives a file that was made in the scratch folder its name; call it while building."""
        made.replace(self.path(ending))
        self._drop_superseded()

    def open(self) -> TableIndex | None:
        """Opens what was built before; None if nothing was, or it is damaged."""
        try:
            if self._table.exists():
                return open_table(self._read_manifest())
            if self._note.exists():
                return open_table(msgspec.json.decode(self._note.read_bytes(), type=Manifest))
        except (SourceError, msgspec.MsgspecError, pa.ArrowException, OSError):
            return None  # cut short by a crash of the machine, or not ours: it is built anew
        return None

    @contextmanager
    def building(self, timeout_s: float, meanwhile: Callable[[], bool] | None = None) -> Iterator[Path]:
        """Holds the right to build, with a scratch folder that is gone afterwards; clears what killed builders left.

        Args:
            timeout_s: how long to wait for another process that builds.
            meanwhile: what to do while waiting for it, again and again; true: there was something to do.

        Raises:
            CacheError: the folder cannot be written to, or another process builds for too long.
        """
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock.held(_lock(self._scratch), timeout_s=timeout_s, meanwhile=meanwhile))
                self._clear_left_behind()
                shutil.rmtree(self._scratch, ignore_errors=True)
                self._scratch.mkdir()
            except CacheError:
                raise
            except OSError as e:
                raise CacheError(
                    f"index folder cannot be written to: {self.folder}: {e}",
                    hint="choose another dst",
                    url=str(self.folder),
                ) from e
            stack.callback(shutil.rmtree, self._scratch, ignore_errors=True)
            yield self._scratch

    def publish(self, table: pa.Table, manifest: Manifest) -> Manifest:
        """Writes a table; call it while building.

        Raises:
            CacheError: it cannot be written, for want of room or otherwise.
        """
        manifest = _at(manifest, self._table)
        temporary = self._scratch / "table.arrow"
        schema = table.schema.with_metadata({_MANIFEST: msgspec.json.encode(manifest)})
        try:
            with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                writer.write_table(_in_large_batches(table))
            temporary.replace(self._table)
        except OSError as e:
            raise CacheError(
                f"index cannot be written: {self._table}: {e}",
                hint="make room there, or choose another dst",
                url=str(self._table),
            ) from e
        self._drop_superseded()
        return manifest

    def note(self, manifest: Manifest) -> Manifest:
        """Writes down that a table is used where it lies; call it while building."""
        temporary = self._scratch / "note.json"
        temporary.write_bytes(msgspec.json.encode(manifest))
        temporary.replace(self._note)
        self._drop_superseded()
        return manifest

    def _read_manifest(self) -> Manifest:
        with pa.memory_map(str(self._table)) as file:
            metadata = pa.ipc.open_file(file).schema.metadata or {}
        return _at(msgspec.json.decode(metadata[_MANIFEST], type=Manifest), self._table)

    def _drop_superseded(self) -> None:
        """Removes what was built for the same question when the source was another, if it is long unused."""
        before = time.time() - _KEEP_UNUSED_S
        for path in (path for ending in _ENDINGS for path in self.folder.glob(f"{self._family}*.{ending}")):
            with suppress(OSError):  # gone already, or not ours to remove
                if path.stem != self.name and path.stat().st_mtime < before:
                    path.unlink()

    def _clear_left_behind(self) -> None:
        for scratch in self.folder.glob("*.tmp"):
            if scratch == self._scratch:
                continue
            try:
                with lock.held(_lock(scratch), timeout_s=0):
                    shutil.rmtree(scratch, ignore_errors=True)
            except CacheError:
                continue  # somebody works in it
        before = time.time() - _KEEP_SHARES_S
        for shares in self.folder.glob("*.shares"):
            with suppress(OSError):
                if shares.stat().st_mtime < before and shares != self.path("shares"):
                    shutil.rmtree(shares, ignore_errors=True)


def _digest(content: bytes, size: int) -> str:
    return hashlib.blake2b(content, digest_size=size).hexdigest()


def _in_large_batches(table: pa.Table) -> pa.Table:
    """Many small batches (of many small files) would make opening slow; few large ones are not worth a copy."""
    num_chunks = max((column.num_chunks for column in table.columns), default=1)
    return table.combine_chunks() if num_chunks > 1 and table.num_rows / num_chunks < _MIN_BATCH_ROWS else table


def _lock(scratch: Path) -> Path:
    return scratch.with_suffix(".lock")


def _at(manifest: Manifest, path: Path) -> Manifest:
    # the folder may have moved since it was written
    return msgspec.structs.replace(manifest, facts=msgspec.structs.replace(manifest.facts, path=os.fspath(path)))
