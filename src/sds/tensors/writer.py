"""TensorCacheWriter: samples -> shards on disk, a few megabytes in memory at a time.

Comes in: keys and samples. Goes out: committed shards, and index.json when it is closed. A sample is on disk when
`add` returns; a shard appears whole or not at all; writers work in one folder without waiting for each other.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from sds.errors import OptionError, SdsError, TensorCacheError
from sds.tensors import skeleton
from sds.tensors.catalog import hashes_of, load, publish
from sds.tensors.columns import Facts
from sds.tensors.format import VERSION, digest, order_of, to_json
from sds.tensors.journal import Beginning, Part, keys_in_parts, orphans
from sds.tensors.keys import Marks
from sds.tensors.layout import Block, pack
from sds.tensors.lazy import realize
from sds.tensors.local import LocalPlace
from sds.tensors.shards import write_shard
from sds.tensors.uploads import MAX_SAMPLE, MAX_SHARD, Uploads, check_url
from sds.units import format_bytes, parse_bytes
from sds.urls import is_remote, local_path

__all__ = ["Packed", "TensorCacheWriter"]

# Headers are parsed whole by readers of plain safetensors, and bounded by them
_MAX_HEADER = 48_000_000
_MAX_BLOCKS = 200_000


class Packed(NamedTuple):
    """A sample as it will lie on disk. Its blocks are the sample's own memory, which must stay as it is until then."""

    skeleton: bytes
    bucket: bytes
    blocks: Sequence[Block]
    digests: Sequence[bytes]


class TensorCacheWriter:
    """Writes samples into a tensor cache.

    An interrupted build goes on: whatever `add` took, even right before a kill, is `in` the next writer of the folder.
    Several writers (ranks, Ray tasks, processes) may work in one folder at once; each should have keys of its own, for
    it knows what the others had taken when it was opened (or at `refresh`). Of a key that was written twice, readers
    show the first. One writer may be used by several threads.

    Args:
        path: a local folder, made if it is not there; or the URL of one (s3://, gs://, az://).
        shard_size: bytes of tensors after which a shard is committed, as a number or as text such as '512mb'. Shards
            that are sent to a store are of 128 MB at most.
        resume: go on with what is there. False: the folder must hold no samples yet.
        fingerprint: says what made the samples, for example a hash of the model and its settings. Samples of another
            fingerprint are not `in` this writer; readers show those of the last one unless asked otherwise.
        storage_options: endpoint, region, keys, ... of a store.
        dst: for a store: the local folder where shards are made before they are sent, and where what was added last is
            found again after a kill. It belongs to this URL; several writers may share it. Default: a folder in the
            user's cache folder.

    Raises:
        TensorCacheError: the folder cannot be used, or has samples although `resume` is False.
        FetchError: the store cannot be written to. What was added is kept, and sent by the next writer.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        shard_size: str | int = "512mb",
        resume: bool = True,
        *,
        fingerprint: str = "",
        storage_options: dict[str, Any] | None = None,
        dst: str | os.PathLike[str] | None = None,
    ) -> None:
        text = os.fspath(path)
        if not isinstance(fingerprint, str):
            raise OptionError(f"fingerprint is no text: {fingerprint!r}", hint="such as a hash of model and settings")
        self._shard_size = max(1, parse_bytes(shard_size, option="shard_size"))
        self._uploads: Uploads | None = None
        if is_remote(text):
            check_url(text)
            self._uploads = Uploads(text, None if dst is None else Path(dst), storage_options)
            self._shard_size = min(self._shard_size, MAX_SHARD)
        elif dst is not None or storage_options is not None:
            hint = "they belong to a path such as s3://bucket/latents: leave them out"
            raise OptionError(f"dst and storage_options are for a store: {text}", hint=hint)
        self.path = Path(local_path(text)) if self._uploads is None else self._uploads.folder
        self.fingerprint = fingerprint
        self._parts = self.path / ".parts"
        self._place = LocalPlace(self.path)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._part: Part | None = None
        self._is_closed = False
        self._new: set[bytes] = set()
        self._hashes: dict[str, Facts] = {}
        try:
            with self._writing():
                self.path.mkdir(parents=True, exist_ok=True)
                self._open(resume)
        except BaseException:
            self.abandon()
            raise

    def _open(self, resume: bool) -> None:
        if self._uploads is not None:
            self._uploads.claim()
            self._uploads.learn()
        taken = keys_in_parts(self._parts, self.fingerprint)  # before the shards: what is no longer here is there
        catalog = load(self._place)
        if not resume and (catalog.shards or any(self._parts.glob("*.journal"))):
            hint = "choose another folder, delete this one yourself, or let resume=True go on with it"
            raise TensorCacheError(f"folder has samples already: {self.path}", hint=hint, url=str(self.path))
        self.generation = catalog.generation + 1
        self._numbers = [order_of(0, facts.name)[1] for facts in catalog.shards]
        self._committed = self._known(catalog.chosen(self.fingerprint))
        for part in orphans(self._parts):
            taken.pop(part.stem, None)  # it knows better which of its samples are whole
            self._adopt(part)
        self._learn(taken)
        self._send()

    def _learn(self, taken: dict[Path, list[str]]) -> None:
        marks = [digest(key.encode()) for keys in taken.values() for key in keys]
        self._new.update(mark for mark in marks if mark not in self._committed)

    def _known(self, shards: Sequence[Facts]) -> Marks:
        return Marks(hashes_of(self._place.columns(facts.name)) for facts in shards)

    def _adopt(self, part: Part) -> None:
        """Goes on with a part that a dead writer left; with a second one, commits it as it is."""
        marks = [digest(record.key.encode()) for record in part.records]
        is_ours = part.beginning.fingerprint == self.fingerprint
        if not marks or (is_ours and all(mark in self._new or mark in self._committed for mark in marks)):
            part.remove()  # the writer was killed between commit and tidying up, or before its first sample
            return
        if is_ours:
            self._new.update(marks)
        is_like_ours = is_ours and part.beginning.generation == self.generation
        if is_like_ours and self._part is None and not self._is_full(part):
            self._part = part
        else:
            self._commit(part)

    def __contains__(self, key: object) -> bool:
        """Whether a sample of this key is there: committed, or taken by a writer, even by one that died."""
        if not isinstance(key, str):
            return False
        mark = digest(_utf8(key))
        return mark in self._new or mark in self._committed

    def __len__(self) -> int:
        """Keys that are `in` this writer."""
        return len(self._committed) + len(self._new)

    def refresh(self) -> None:
        """Learns what other writers have taken since."""
        with self._lock, self._writing():
            if self._uploads is not None:
                self._uploads.learn()
            taken = keys_in_parts(self._parts, self.fingerprint)
            self._committed = self._known(load(self._place).chosen(self.fingerprint))
            self._new = {mark for mark in self._new if mark not in self._committed}
            self._learn(taken)

    def add(self, key: str, sample: Any) -> None:
        """Takes a sample: it is on disk when this returns.

        Args:
            key: unique text.
            sample: dicts, lists, tuples of tensors, arrays, text, bytes, numbers and None.

        Raises:
            TensorCacheError: the key is there already, the sample holds other objects, or the disk is full.
        """
        self.append(key, self.pack(key, sample))

    def pack(self, key: str, sample: Any) -> Packed:
        """The first half of `add`: what takes time, outside of the lock, so that threads do it side by side."""
        if not isinstance(key, str):
            raise OptionError(f"key is no text: {key!r}", hint="such as the file's name, or str(number)")
        _utf8(key)
        tensors = skeleton.Tensors()
        text = skeleton.encode(realize(sample), tensors)
        bucket, blocks = pack(tensors.values, tensors.fields)
        if self._uploads is not None and (size := sum(bucket.blocks)) > MAX_SAMPLE:
            hint = f"samples in a store have {format_bytes(MAX_SAMPLE)} at most: split it, or write to a local folder"
            raise TensorCacheError(f"sample is too large for a store: {format_bytes(size)}", hint=hint, key=key)
        return Packed(text, to_json(bucket), blocks, [digest(block.data.numpy()) for block in blocks])

    def append(self, key: str, packed: Packed) -> None:
        """The second half of `add`: writes what `pack` gave."""
        mark = digest(_utf8(key))
        with self._lock:
            self._check_open()
            if mark in self._new or mark in self._committed:
                raise TensorCacheError(f"key is there already: {key}", hint="ask `if key not in writer` first", key=key)
            with self._writing():
                if self._part is None:
                    self._part = Part.begin(self._parts, Beginning(VERSION, self.generation, self.fingerprint))
                self._part.append(key, *packed)
                self._new.add(mark)
                if self._is_full(self._part):
                    self._commit_rest()

    def _is_full(self, part: Part) -> bool:
        return (
            part.num_bytes >= self._shard_size
            or part.num_header_bytes >= _MAX_HEADER
            or part.num_places >= _MAX_BLOCKS
            or len(part.records) >= _MAX_BLOCKS
        )

    def _commit(self, part: Part) -> None:
        number = max([-1, *self._numbers, *(order_of(0, name)[1] for name in self._place.names())]) + 1
        self._numbers = [number]
        facts = write_shard(self.path, number, part)
        self._hashes[facts.name] = facts
        part.remove()

    def commit(self) -> None:
        """Commits what was taken so far as a shard, so that readers see it.

        Of a store, readers see what its index.json lists, and `close` writes that: until then the shard is sent and
        safe, and `in` other writers, but not shown.
        """
        with self._lock, self._writing():
            self._check_open()
            self._commit_rest()

    def _commit_rest(self) -> None:
        if self._part is not None:
            self._commit(self._part)
            self._part = None
        self._send()

    def _send(self) -> None:
        """What is committed here goes to the store; what cannot be sent now is sent by the next who tries."""
        if self._uploads is not None:
            self._uploads.send()

    def close(self) -> None:
        """Commits the rest and writes index.json. Harmless when repeated."""
        with self._lock:
            if self._is_closed:
                return
            self._check_open()
            with self._writing():
                self._commit_rest()
                if self._uploads is None:
                    publish(self._place, self._with_hashes)
                else:
                    self._uploads.publish(self._place, self._with_hashes)
            try:
                self._parts.rmdir()
            except OSError:  # not there, or other writers are at work in it
                pass
            self._end()

    def _with_hashes(self, facts: Facts) -> Facts:
        """A shard's facts, with the hashes that whoever lists it shall not have to compute."""
        if facts.sha256:
            return facts
        known = self._hashes.get(facts.name)
        if known is not None:
            return msgspec.structs.replace(known, skip=facts.skip)
        columns = self._place.columns(facts.name)
        place = self._place if self._uploads is None else self._uploads.place
        header = place.chunk(columns, 8, columns.data_start)
        index = self._place.read_file(f"{facts.name}.index") or b""
        sha256, index_sha256 = (hashlib.sha256(data).hexdigest() for data in (header, index))
        return msgspec.structs.replace(facts, sha256=sha256, index_sha256=index_sha256)

    def abandon(self) -> None:
        """Ends without committing the rest: it stays where the next writer finds it."""
        with self._lock:
            if not self._is_closed:
                if self._part is not None and os.getpid() == self._pid:
                    self._part.release()
                self._end()

    def _end(self) -> None:
        self._place.close()
        if self._uploads is not None:
            self._uploads.close()
        self._part = None
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise TensorCacheError(f"writer is closed: {self.path}", hint="make a new one: it goes on where this ended")
        if os.getpid() != self._pid:
            hint = "make a writer in each process: they work side by side in one folder"
            raise TensorCacheError(f"writer belongs to another process: {self.path}", hint=hint)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Errors of the disk become ours; those of a store are."""
        try:
            yield
        except SdsError:
            raise
        except OSError as error:
            hint = "is the disk full, or the folder not yours? What was added before is kept; a new writer goes on"
            message = f"tensor cache cannot be written: {self.path}: {error}"
            raise TensorCacheError(message, hint=hint, url=str(self.path)) from error

    def __del__(self) -> None:
        # in a forked child it is the parent's, and so is its lock, which a thread may have held at that moment
        if not getattr(self, "_is_closed", True) and os.getpid() == self._pid:
            self.abandon()

    def __enter__(self) -> TensorCacheWriter:  # noqa: PYI034 - typing.Self is not in Python 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def _utf8(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise OptionError(f"key is no Unicode text: {key!a}", hint="decode it properly first") from None
