"""Memory: what Remember keeps, as one process sees it. Rows in; their samples out, if a pass before this one made them.

A row's key says what it is, the fingerprint what the transforms do. Taken samples are on disk at once and committed
when a pass or the process ends; a new epoch sees what all processes committed, and what killed ones left. Processes
need no lock: each has a writer of its own, and of a sample that was computed twice the first is shown.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sds.errors import OptionError, TensorCacheError
from sds.tensors.catalog import load
from sds.tensors.lazy import realize
from sds.tensors.local import LocalPlace
from sds.tensors.reader import TensorCache
from sds.tensors.remember_code import tell_chain
from sds.tensors.remember_notes import tell_difference, write_note
from sds.tensors.source_table import POSITION
from sds.tensors.writer import Packed, TensorCacheWriter
from sds.transforms.remember import Remember
from sds.types import Row, Sample

__all__ = ["SEVERAL", "Memory", "MemoryOptions", "Remembered", "find_memory", "load_samples", "names_of", "unfolded"]

log = logging.getLogger("sds")

SEVERAL = "__samples__"  # the field of an entry that holds none or many samples, instead of being one
_PASS = ("__epoch__", "__random_seed__")  # facts of a pass, not of the sample: they are those of whoever reads it


@dataclass(frozen=True)
class MemoryOptions:
    """What is remembered, and where.

    Attributes:
        path: the folder.
        fingerprint: what made the samples.
        prefix: the transforms whose results are remembered.
        after: the transforms after them.
        by: what a result belongs to: 'row' or 'key'.
        shard_size: bytes of tensors per shard.
        parts: hashes of what the fingerprint was made of, by names for people.
        is_ordered: write rows in the order in which they were asked for, not as they are done. What comes after the
            prefix must leave its tensors as they are.
    """

    path: str
    fingerprint: str
    prefix: tuple[Any, ...]
    after: tuple[Any, ...] = ()
    by: str = "row"
    shard_size: str | int = "512mb"
    parts: tuple[tuple[str, str], ...] = ()
    is_ordered: bool = False


class Remembered(NamedTuple):
    """Where the samples of a row are."""

    cache: TensorCache
    position: int


def find_memory(
    transforms: tuple[Any, ...], before: tuple[Any, ...] = (), data_type: str | None = None
) -> MemoryOptions | None:
    """What a chain remembers; None: it has no Remember.

    Args:
        transforms: the chain.
        before: transforms that run before anything is fetched: they are remembered too.
        data_type: what samples are, which transforms can see.

    Raises:
        OptionError: more than one Remember, or one where it cannot be.
    """
    places = [place for place, each in enumerate(transforms) if isinstance(each, Remember)]
    if any(isinstance(each, Remember) for each in before):
        hint = "put it into `transforms`: what is remembered needs no download either"
        raise OptionError("pre_download_transforms has a Remember", hint=hint)
    if not places:
        return None
    remember: Remember = transforms[places[0]]
    if len(places) > 1 or any(isinstance(each, Remember) for each in remember.transforms):
        hint = "keep the last one: it remembers all that stands before it"
        raise OptionError("transforms have more than one Remember", hint=hint)
    prefix = (*transforms[: places[0]], *remember.transforms)
    told = tell_chain([data_type, *before, None, *prefix], remember.version)
    return MemoryOptions(
        remember.path,
        told.fingerprint,
        prefix,
        transforms[places[0] + 1 :],
        remember.by,
        remember.shard_size,
        tuple(told.parts.items()),
        remember.is_ordered,
    )


class Memory:
    """What one process knows and adds. Safe from many threads; belongs to the process that made it."""

    def __init__(self, options: MemoryOptions) -> None:
        self.options = options
        self._lock = threading.RLock()
        self._epoch: int | None = None
        self._cache: TensorCache | None = None
        self._writer: TensorCacheWriter | None = None
        self._on_the_way: set[str] = set()
        self._queue: dict[str, Packed | None] = {}  # where order counts: rows on their way, and what became of them
        self._is_ending = False
        self.num_found = 0  # rows that were there already

    def announce(self) -> None:
        """Says so if the folder has samples, but none that these transforms made; and what differs, if it can tell."""
        known = self._fingerprints()
        if known and self.options.fingerprint not in known:
            options = self.options
            what = tell_difference(Path(options.path), options.fingerprint, dict(options.parts), known[-1])
            log.warning(
                "the samples in %s were made by other transforms or arguments%s: they are computed anew, as another "
                "generation in the same folder",
                options.path,
                f" ({what})" if what else "",
            )

    def key_of(self, row: Row) -> str:
        """What a row's samples are remembered by."""
        if self.options.by == "key":
            return row.key
        values = sorted(each for each in row.values.items() if each[0] != POSITION)  # a place may change
        facts = [row.key, values, sorted((row.versions or {}).items())]
        mark = hashlib.blake2b(msgspec.msgpack.encode(facts, enc_hook=repr), digest_size=12).hexdigest()
        return f"{row.key}#{mark}"

    def _fingerprints(self) -> list[str]:
        """What made the samples that are in the folder, the last one last."""
        if not os.path.isdir(self.options.path):
            return []
        return [facts.fingerprint for facts in load(LocalPlace(self.options.path)).shards]

    def find(self, key: str, epoch: int) -> Remembered | None:
        """Where a row's samples are, as of the beginning of this epoch; None: they are yet to be made."""
        with self._lock:
            if self._epoch is None or epoch > self._epoch:
                self._look()
                self._epoch = epoch
            position = None if self._cache is None else self._cache.find(key)
            if self._cache is None or position is None:
                self._on_the_way.add(key)
                if self.options.is_ordered:
                    self._queue.setdefault(key, None)
                return None
            self.num_found += 1
            return Remembered(self._cache, position)

    def recover(self) -> None:
        """Commits what this process took and what killed ones left, so that all see it."""
        with self._lock:
            self._close_writer()
            parts = Path(self.options.path) / ".parts"
            if any(parts.glob("*.journal")):  # a new writer takes over those of dead ones
                self._begin_writer()
                self._close_writer()

    def _look(self) -> None:
        """Sees all that was committed."""
        self.recover()
        self._on_the_way.clear()
        self._queue.clear()
        self._is_ending = False
        is_there = self.options.fingerprint in self._fingerprints()
        self._cache = TensorCache(self.options.path, fingerprint=self.options.fingerprint) if is_there else None

    def put(self, key: str, samples: list[Sample], sample: Sample, names: Mapping[str, str]) -> list[Sample]:
        """Takes what became of a row; they are on disk when this returns.

        Args:
            key: the row's.
            samples: what the transforms made of it.
            sample: epoch and seed of this pass.
            names: local path -> URL: a path in the cache of files is good today, its URL for ever.

        Returns:
            The samples, as later passes will have them.
        """
        plain = [_plain(each, names) for each in samples]
        kept = [_of_no_pass(each, sample) for each in plain]
        entry = kept[0] if len(kept) == 1 and SEVERAL not in kept[0] else {SEVERAL: kept}
        while True:
            with self._lock:
                writer = self._begin_writer()
            if self.options.is_ordered:
                packed = writer.pack(key, entry)
                with self._lock:
                    self._queue[key] = packed
                    self._write_ready()
                return plain
            try:
                if key not in writer:
                    writer.add(key, entry)
                return plain
            except TensorCacheError:
                if key in writer:  # another thread was faster: a row may be on its way twice
                    return plain
                if writer is self._writer:
                    raise
                # it was closed meanwhile, because an epoch began: the next one takes it

    def done(self, key: str) -> None:
        """A row that was not found is through, well or not. The last one of a pass commits what was taken."""
        with self._lock:
            self._on_the_way.discard(key)
            if key in self._queue and self._queue[key] is None:  # nothing came of it
                del self._queue[key]
            self._write_ready()
            self._end_if_over()

    def begin_pass(self) -> None:
        """A new pass of this process begins: it sees all that was made before, by anybody."""
        with self._lock:
            self._epoch = None

    def end_pass(self) -> None:
        """No further rows come in this pass of this process."""
        with self._lock:
            self._is_ending = True
            self._end_if_over()

    def _end_if_over(self) -> None:
        if self._is_ending and not self._on_the_way:
            self._is_ending = False
            self._close_writer()

    def _write_ready(self, *, is_last: bool = False) -> None:
        """Where order counts: writes the rows that no earlier one is missing of; at last, all that are done."""
        for key, packed in [*self._queue.items()]:
            if packed is None and not is_last:
                return
            if packed is not None:
                writer = self._begin_writer()
                if key not in writer:  # a row may be on its way twice
                    writer.append(key, packed)
                del self._queue[key]

    def _begin_writer(self) -> TensorCacheWriter:
        if self._writer is None:
            options = self.options
            self._writer = TensorCacheWriter(options.path, options.shard_size, fingerprint=options.fingerprint)
            write_note(Path(options.path), options.fingerprint, dict(options.parts))
        return self._writer

    def _close_writer(self) -> None:
        self._write_ready(is_last=True)
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def close(self) -> None:
        """Commits what was taken. It can be used again."""
        with self._lock:
            self._close_writer()
            self._epoch = None
            self._cache = None


def load_samples(
    found: Remembered, sample: Sample, *, is_lazy: bool = False, entry: Callable[[], Any] | None = None
) -> list[Sample]:
    """The samples of a row that was found.

    Args:
        found: what `Memory.find` gave.
        sample: the dict that the row begins as in this pass.
        is_lazy: leave the tensors on disk until they are touched.
        entry: gives what the cache has, if that was read with others.
    """
    if entry is not None:
        made = entry()
    else:
        made = found.cache[found.position] if is_lazy else realize(found.cache[found.position])
    return [_of_this_pass(each, sample) for each in unfolded(made)]


def unfolded(entry: Any) -> list[Sample]:
    """The samples of an entry of a tensor cache: itself, or the none or many that Remember put there."""
    if isinstance(entry, dict) and set(entry) == {SEVERAL} and isinstance(entry[SEVERAL], list):
        return [each if isinstance(each, dict) else {"sample": each} for each in entry[SEVERAL]]
    return [entry] if isinstance(entry, dict) else [{"sample": entry}]


def _of_no_pass(sample: Sample, begun: Sample) -> Sample:
    """The sample, with nothing where epoch and seed of the pass stood; what a transform put there itself stays."""
    return {key: None if key in _PASS and value == begun.get(key) else value for key, value in sample.items()}


def _of_this_pass(sample: Sample, begun: Sample) -> Sample:
    return {key: begun.get(key) if key in _PASS and value is None else value for key, value in sample.items()}


def _plain(value: Any, names: Mapping[str, str]) -> Any:
    """The value, with URLs for paths of fetched files and Python's numbers for NumPy's."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        url = getattr(value, "url", None)  # an object that was read by ranges has a name, but no path
        return url if isinstance(url, str) else names.get(os.fspath(value), os.fspath(value))
    if type(value) is dict:
        return {key: _plain(each, names) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(each, names) for each in value)
    return value


def names_of(paths: Iterable[Any], urls: Iterable[str]) -> dict[str, str]:
    """Local path -> URL, of files that were fetched."""
    return {path: url for path, url in zip(paths, urls, strict=False) if isinstance(path, str) and path != url}
