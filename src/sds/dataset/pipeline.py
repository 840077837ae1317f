"""Row -> Sample: the path of one sample through fetch and transforms, in one place.

Comes in: a Row and the epoch. `prepare` makes its Job: the dict it starts as, and the files it needs. `finish` waits
for the files and runs the transforms. Goes out: the samples it became (one; none if dropped; several if fanned out),
or an error that names the row and the stage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sds.dataset.options import Options
from sds.dataset.ranges import Ranges
from sds.errors import DecodeError, SampleError, SchemaError, SdsError, TransformError
from sds.events import Event, Tally
from sds.fetch import File, RemoteFile, Ticket
from sds.index import Index
from sds.index.held import is_place
from sds.index.holding import HeldIndex
from sds.plan import Plan
from sds.seeds import derive_key, derive_keys
from sds.tensors.remember import Memory, Remembered, load_samples, names_of
from sds.tensors.source import TensorIndex
from sds.transforms.base import join_neighbours, name_of, several
from sds.types import Row, Sample, Transform
from sds.urls import is_remote, local_path, redact

__all__ = ["Job", "Pipeline"]

IntArray = npt.NDArray[np.int64]
_NO_WAIT_S = 50e-6  # files that were here before anybody wanted them
_BLOCK = 64  # rows are looked up in blocks: a lookup has a fixed cost


class Job:
    """One row on its way to being a sample."""

    __slots__ = (
        *("alike", "columns", "entry", "epoch", "error", "files", "memory_key", "position", "remembered", "row"),
        "sample",
    )

    def __init__(self, row: Row, epoch: int, position: int) -> None:
        self.row = row
        self.epoch = epoch
        self.position = position
        self.sample: Sample = {}
        self.columns: list[str] = []
        self.files: list[File] = []
        self.error: SdsError | None = None  # it failed before anything was fetched
        self.memory_key: str | None = None  # what its samples are remembered by
        self.remembered: Remembered | None = None  # where they are, if a pass before this one made them
        # (row id, a random number, attempt) -> row id: which row may stand in for this one; None: any
        self.alike: Callable[[int, int, int], int] | None = None
        self.entry: Callable[[], Any] | None = None  # what a tensor cache has of it, if that was read with others


class Pipeline:
    """What turns positions of an epoch into samples. Holds no position of its own, so any thread may use it."""

    def __init__(self, index: Index, options: Options, tally: Tally) -> None:
        self.index = index
        self.options = options
        self.tally = tally
        memory = options.memory
        self.memory = None if memory is None else Memory(memory)
        self._before = tuple(map(_OneForOne, options.pre_download_transforms))
        # what is remembered, and what comes after it
        self._prefix = () if memory is None else join_neighbours(memory.prefix)
        self._rest = join_neighbours(options.transforms if memory is None else memory.after)
        self._seeds = (0, 0), derive_keys(0, "sample", 0)  # of samples in an epoch, by their keys
        self._is_held = isinstance(index, HeldIndex)
        if isinstance(index, HeldIndex):
            index.use_room(options.fetch.limit)
        first = next(iter((*self._prefix, *self._rest)), None)
        # the columns whose files the first transform opens at once: nobody looks for them before
        self._opened = [getattr(first, "input_field", None)] if vars(type(first)).get("opens_input") else None
        columns = () if self._is_held else index.columns_to_download
        self._ranges = Ranges((*self._prefix, *self._rest), columns, options.fetch.limit)

    def jobs(self, plan: Plan, epoch: int, positions: Iterable[IntArray]) -> Iterator[Job]:
        """Jobs for arrays of positions, in order; positions past the end of the epoch are in those that follow."""
        for block in positions:
            for start in range(0, len(block), _BLOCK):
                for row, lap, position, copy in self._rows(plan, epoch, block[start : start + _BLOCK]):
                    yield self.prepare(row, epoch + lap, position, copy)

    def _rows(self, plan: Plan, epoch: int, block: IntArray) -> Iterator[tuple[Row, int, int, int]]:
        """The rows at some positions: each with how many epochs later, the position there, and which copy of it."""
        laps, places = plan.locate(epoch, block)
        row_ids, copies = np.empty_like(places), np.empty_like(places)
        for lap in dict.fromkeys(laps.tolist()):
            at = laps == lap
            row_ids[at], copies[at] = plan.find(epoch + lap, places[at])
            if plan.chunk_sizes is not None:
                ahead = plan.chunks(epoch + lap, int(places[at][0]), self.options.lazy.ahead)
                self.index.expect(ahead.tolist())
        return zip(self.index.rows(row_ids), laps.tolist(), places.tolist(), copies.tolist(), strict=True)

    @property
    def is_plain(self) -> bool:
        """Whether samples are rows as they are: there is nothing to fetch, and nothing to do."""
        has_work = self._rest or self._prefix or self.options.pre_download_transforms or self.memory is not None
        is_table = not (self._is_held or isinstance(self.index, TensorIndex))
        return is_table and not has_work and not self.index.columns_to_download

    def plain(self, plan: Plan, epoch: int, positions: IntArray) -> list[Sample]:
        """The samples at some positions, where `is_plain`: what `prepare` and `finish` would make, all at once."""
        return [self._begun(row, epoch + lap, copy) for row, lap, _, copy in self._rows(plan, epoch, positions)]

    def _begun(self, row: Row, epoch: int, copy: int = 0) -> Sample:
        """The dict that a row starts as; copies in one epoch have their own randomness."""
        key, seed = row.key, self.options.shuffle_seed or 0
        seeds = self._seeds  # once: another thread may be in another epoch
        if seeds[0] != (seed, epoch):
            seeds = self._seeds = (seed, epoch), derive_keys(seed, "sample", epoch)
        drawn = derive_key(seed, "sample", epoch, key, copy) if copy else seeds[1](key)
        sample = {**row.values, "__sample_key__": key, "__epoch__": epoch, "__random_seed__": drawn}
        if self.options.data_type is not None:
            sample["__data_type__"] = self.options.data_type
        return sample

    def prepare(self, row: Row, epoch: int, position: int, copy: int = 0) -> Job:
        """The dict that a row starts as, and the files that it needs."""
        job = Job(row, epoch, position)
        job.sample = self._begun(row, epoch, copy)
        try:
            if self.memory is not None:
                job.memory_key = self.memory.key_of(row)
                job.remembered = self.memory.find(job.memory_key, epoch)
                if job.remembered is not None:
                    return job  # nothing to fetch
            if self._before:
                (job.sample,) = self._run(self._before, [job.sample], row)
            if isinstance(self.index, TensorIndex):
                job.files = self.index.files(row)
            else:
                self._collect_files(job)
                if isinstance(self.index, HeldIndex):
                    job.files += self.index.files(row, job.sample)
        except SdsError as error:
            job.error = _told(error, row)
        return job

    def _collect_files(self, job: Job) -> None:
        values, versions = job.row.values, job.row.versions or {}
        # a file that a pre-download transform gave another name is fetched under that name
        origins = {column: column for column in self.index.columns_to_download}
        if self.options.pre_download_transforms:
            gone = {values[each]: each for each in origins if each not in job.sample and _is_text(values.get(each))}
            for field, value in job.sample.items():
                if field not in values and _is_text(value) and value in gone:
                    origins[field] = gone[value]
        for column, origin in origins.items():
            url = job.sample.get(column)
            if url is None:
                if column in job.sample and values.get(origin) is None and not self.options.index.allow_missing_columns:
                    # a table has none of these: only who gives rows by number finds out now
                    hint = "give it a value, or set allow_missing_columns=True"
                    raise SchemaError(f"row lacks a value to download in {column!r}", hint=hint)
                continue  # missing values are left out of the plan, or allowed
            if type(url) is dict and url.keys() == {"bytes", "path"}:
                url = job.sample[column] = _content_of(url, column)
                if url is None:
                    continue
            if isinstance(url, bytes | bytearray | memoryview) or (self._is_held and is_place(url)):
                continue  # the row has the bytes themselves, or the source does
            if not isinstance(url, str):
                hint = "columns_to_download names columns of URLs or paths; leave this one out, or make it text"
                raise SchemaError(f"column to download holds no text: {column!r} has {type(url).__name__}", hint=hint)
            is_far = is_remote(url)
            if not is_far:
                local_path(url)  # or an error, which is this row's, not that of all that are asked for
            job.columns.append(column)
            # a version belongs to the URL that the index gave; a pre-download transform may have chosen another
            version = versions.get(origin) if url == values.get(origin) else None
            job.files.append(self._ranges.file(column, url, version) if is_far else File(url, version))

    def finish(self, job: Job, ticket: Ticket) -> list[Sample]:
        """Waits for the files and runs the transforms; errors name row and stage."""
        try:
            samples = self._recalled(job) if job.remembered is not None else self._made(job, ticket)
        finally:
            if self.memory is not None and job.memory_key is not None and job.remembered is None:
                self.memory.done(job.memory_key)
            job.sample = {}  # a step keeps its jobs until it is over, and needs no second copy of what they became
        return samples

    @property
    def is_bare(self) -> bool:
        """Whether samples are handed out as they are in a tensor cache."""
        return not self._rest and not self._prefix

    def place_of(self, job: Job) -> Remembered | None:
        """Where a row's tensors are, if they are in a tensor cache here and may be read together with others."""
        try:
            if job.remembered is not None:
                is_lazy = bool(self._rest) and getattr(self._rest[0], "takes_lazy", False)
                return None if is_lazy else job.remembered
            if isinstance(self.index, TensorIndex) and job.error is None and not job.files:
                return Remembered(self.index.cache, self.index.position(job.row))
        except SdsError:  # whoever makes the sample says so, of this row
            pass
        return None

    def _recalled(self, job: Job) -> list[Sample]:
        """The samples of a row that a pass before this one made, and what comes after that."""
        assert job.remembered is not None
        start = time.perf_counter()
        try:
            is_lazy = bool(self._rest) and getattr(self._rest[0], "takes_lazy", False)
            samples = load_samples(job.remembered, job.sample, is_lazy=is_lazy, entry=job.entry)
            self.tally.add_busy("decode", start, subject=job.row.key)
            self.tally.count("from_tensors", len(samples))
            return self._run(self._rest, samples, job.row)
        except SdsError as error:
            raise _told(error, job.row)  # noqa: B904 (it is the same)

    def _made(self, job: Job, ticket: Ticket) -> list[Sample]:
        """The samples of a row, out of its files."""
        if job.error is not None:
            raise job.error
        files: list[str | RemoteFile] = []
        try:
            files = self._taken(job, ticket)
            if isinstance(self.index, TensorIndex):
                start = time.perf_counter()
                paths = [os.fspath(file) for file in files]
                samples = self.index.load(job.row, job.sample, job.files, paths, entry=job.entry)
                self.tally.add_busy("decode", start, subject=job.row.key)
                self.tally.count("from_tensors", len(samples))
            elif isinstance(self.index, HeldIndex):
                start = time.perf_counter()
                paths, num = [os.fspath(file) for file in files], len(job.columns)
                job.sample.update(zip(job.columns, paths, strict=False))  # what the source holds comes after them
                job.sample = self.index.load(job.row, job.sample, job.files[num:], paths[num:])
                samples = [job.sample]
                self.tally.add_busy("decode", start, subject=job.row.key)
            else:
                files = self._as_remote(job, files)
                job.sample.update(zip(job.columns, files, strict=True))
                samples = [job.sample]
            remotes = [file for file in files if not isinstance(file, str)]
            if self.memory is not None and job.memory_key is not None:
                begun = dict(job.sample)  # transforms may change the one they get
                samples = self._run(self._prefix, samples, job.row, remotes)
                names = names_of(map(_place_of, files), [file.url for file in job.files])
                samples = self.memory.put(job.memory_key, samples, begun, names)
            samples = self._run(self._rest, samples, job.row, remotes)
        except SdsError as error:
            if job.columns == self._opened and isinstance(error, DecodeError):
                error = _missing(ticket, error)
            places = map(_place_of, files)
            urls = [file.url for file in job.files]
            _name_source(_told(error, job.row), {p: u for p, u in zip(places, urls, strict=False) if p is not None})
            raise error
        finally:
            for column, file in zip(job.columns, files, strict=False):
                if not isinstance(file, str):
                    if file.is_ranged:
                        self._ranges.read(column, is_whole=file.fell_back)
                    file.close()
        return [{field: _named(value) for field, value in sample.items()} for sample in samples] if remotes else samples

    def _taken(self, job: Job, ticket: Ticket) -> list[str | RemoteFile]:
        """A job's files, when they are here."""
        must_look = job.columns != self._opened
        is_heard = self.tally.probe is not None
        if not ticket.is_leased and not is_heard:  # nobody waits for files of this disk
            return ticket.take_files(must_look=must_look)
        start = time.perf_counter()
        try:
            has_parts = job.columns and not self._is_held
            return ticket.take_files(must_look=must_look) if has_parts else [*ticket.take()]
        finally:
            waited_s = time.perf_counter() - start
            if is_heard or waited_s > _NO_WAIT_S:
                self.tally.add_wait("fetch", waited_s, start_s=start, subject=job.row.key)

    def _run(
        self, transforms: Iterable[Transform], samples: list[Sample], row: Row, remotes: Sequence[RemoteFile] = ()
    ) -> list[Sample]:
        """What a chain makes of samples."""
        busy: dict[str, float] = {}
        try:
            for transform in transforms:
                waited_s = sum(remote.waited_s for remote in remotes) if remotes else 0.0
                start = time.perf_counter()
                try:
                    samples = _apply(transform, samples)
                finally:
                    stage = getattr(transform, "stage", "transform")
                    if remotes:  # waiting for bytes is no work
                        start += sum(remote.waited_s for remote in remotes) - waited_s
                    seconds = time.perf_counter() - start
                    busy[stage] = busy.get(stage, 0.0) + seconds
                    if self.tally.probe is not None:
                        self.tally.probe.emit(Event(stage, start, seconds, row.key))
        finally:
            self.tally.add_all_busy(busy)
        return samples

    def _as_remote(self, job: Job, files: list[str | RemoteFile]) -> list[str | RemoteFile]:
        """The files, with a RemoteFile for each that is large enough to be one, also where a whole copy was there."""
        if not self._ranges:
            return files
        found: list[str | RemoteFile] = []
        for column, file, asked in zip(job.columns, files, job.files, strict=True):
            if column in self._ranges and is_remote(asked.url):
                size = file.size if isinstance(file, RemoteFile) else os.stat(file).st_size
                if self._ranges.saw(column, size) and isinstance(file, str):
                    file = RemoteFile.at(file, asked.url, size)
            found.append(file)
        return found


class _OneForOne:
    """A pre-download transform: whatever others may do, it takes one dict and returns one."""

    def __init__(self, transform: Transform) -> None:
        self._transform = transform
        self.stage = getattr(transform, "stage", "transform")

    def __call__(self, sample: Sample) -> Sample:
        result: Any = self._transform(sample)
        if not isinstance(result, Mapping):
            hint = "a pre-download transform takes one dict and returns one"
            raise TransformError(f"{self!r} returned no dict: {type(result).__name__}", hint=hint)
        return result if isinstance(result, dict) else dict(result)

    def __repr__(self) -> str:
        return name_of(self._transform)


def _apply(transform: Transform, samples: list[Sample]) -> list[Sample]:
    """What a transform makes of samples: of each none, one or many; a generator's work, and its errors, are its own."""
    made: list[Sample] = []
    try:
        for sample in samples:
            result: Any = transform(sample)
            made += [result] if type(result) is dict else several(transform, result)
    except SdsError:
        raise
    except Exception as error:
        hint = "on_error='skip' goes on without such samples, within max_failures"
        raise TransformError(f"transform failed: {name_of(transform)}: {error!r}", hint=hint) from error
    return made


def _content_of(value: dict[str, Any], column: str) -> Any:
    """The bytes of a struct{bytes, path}; its path, if that is a URL: nobody has looked at where others lead to."""
    if value["bytes"] is not None or value["path"] is None:
        return value["bytes"]
    if not is_remote(value["path"]):
        hint = "of Arrow and JSON files, and of a lazy index, only bytes and URLs are followed: use Parquet, or URLs"
        raise SchemaError(f"value has a local path and no bytes: {value['path']!r} in column {column!r}", hint=hint)
    return value["path"]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _told(error: SdsError, row: Row) -> SdsError:
    """The error, with the row and the stage it speaks of filled in."""
    error.key = error.key or row.key
    error.stage = error.stage or ("transform" if isinstance(error, SampleError) else "fetch")
    return error


def _missing(ticket: Ticket, error: SdsError) -> SdsError:
    """The error of whoever opened a file; or that the file is not there, if that is why."""
    try:
        ticket.look()
    except SdsError as missing:
        missing.__cause__ = error
        return missing
    return error


def _place_of(file: str | RemoteFile) -> str | None:
    """Where it is, if it is here."""
    return file.path if isinstance(file, RemoteFile) else file


def _named(value: Any) -> Any:
    """The value, with URLs in the place of objects that may be read by ranges: nobody can batch them."""
    if isinstance(value, RemoteFile):
        return value.url
    if type(value) is dict:
        return {key: _named(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_named(each) for each in value)
    return value


def _name_source(error: SdsError, sources: dict[str, str]) -> None:
    """Speaks of where a file came from: its place in the cache may be another's by the time somebody reads this."""
    for path, url in sources.items():
        shown = redact(url)
        error.message = error.message.replace(path, shown)
        error.url = shown if error.url == path else error.url
    if error.url is None and len(sources) == 1:
        (error.url,) = map(redact, sources.values())
    error.args = (error.message,)
