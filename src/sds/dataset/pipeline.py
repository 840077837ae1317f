"""Row -> Sample: the path of one sample through fetch and transforms, in one place.

Comes in: a Row and the epoch. `prepare` makes its Job: the dict it starts as, and the files it needs. `finish` waits
for the files and runs the transforms. Goes out: the samples it became (one; none if dropped; several if fanned out),
or an error that names the row and the stage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sds.dataset.options import Options
from sds.dataset.ranges import Ranges
from sds.errors import SampleError, SchemaError, SdsError, TransformError
from sds.events import Tally
from sds.fetch import File, RemoteFile, Ticket
from sds.index import Index
from sds.plan import Plan
from sds.seeds import derive_key
from sds.tensors.remember import Memory, Remembered, load_samples, names_of
from sds.tensors.source import TensorIndex
from sds.types import Row, Sample, Transform
from sds.urls import is_remote, local_path, redact

__all__ = ["Job", "Pipeline"]

IntArray = npt.NDArray[np.int64]
_BLOCK = 64  # rows are looked up in blocks: a lookup has a fixed cost


class Job:
    """One row on its way to being a sample."""

    __slots__ = ("columns", "epoch", "error", "files", "memory_key", "position", "remembered", "row", "sample")

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


class Pipeline:
    """What turns positions of an epoch into samples. Holds no position of its own, so any thread may use it."""

    def __init__(self, index: Index, options: Options, tally: Tally) -> None:
        self.index = index
        self.options = options
        self.tally = tally
        memory = options.memory
        self.memory = None if memory is None else Memory(memory)
        # what is remembered, and what comes after it
        self._prefix: tuple[Transform, ...] = () if memory is None else memory.prefix
        self._rest: tuple[Transform, ...] = options.transforms if memory is None else memory.after
        self._ranges = Ranges((*self._prefix, *self._rest), index.columns_to_download, options.fetch.limit)

    def jobs(self, plan: Plan, epoch: int, positions: Iterable[IntArray]) -> Iterator[Job]:
        """Jobs for arrays of positions, in order; positions past the end of the epoch are in those that follow."""
        length = plan.length(epoch)
        for block in positions:
            for start in range(0, len(block), _BLOCK):
                laps, places = np.divmod(block[start : start + _BLOCK], length)
                row_ids = np.empty_like(places)
                for lap in dict.fromkeys(laps.tolist()):
                    row_ids[laps == lap] = plan.order(epoch + lap)[places[laps == lap]]
                rows = self.index.rows(row_ids)
                for row, lap, position in zip(rows, laps.tolist(), places.tolist(), strict=True):
                    yield self.prepare(row, epoch + lap, position)

    def prepare(self, row: Row, epoch: int, position: int) -> Job:
        """The dict that a row starts as, and the files that it needs."""
        job = Job(row, epoch, position)
        sample = job.sample = {
            **row.values,
            "__sample_key__": row.key,
            "__epoch__": epoch,
            "__random_seed__": derive_key(self.options.shuffle_seed or 0, "sample", epoch, row.key),
        }
        if self.options.data_type is not None:
            sample["__data_type__"] = self.options.data_type
        try:
            if self.memory is not None:
                job.memory_key = self.memory.key_of(row)
                job.remembered = self.memory.find(job.memory_key, epoch)
                if job.remembered is not None:
                    return job  # nothing to fetch
            for transform in self.options.pre_download_transforms:
                result = self._call(transform, job.sample, row)
                if not isinstance(result, dict):
                    hint = "a pre-download transform takes one dict and returns one"
                    raise TransformError(f"{transform!r} returned no dict: {type(result).__name__}", hint=hint)
                job.sample = result
            if isinstance(self.index, TensorIndex):
                job.files = self.index.files(row)
            else:
                self._collect_files(job)
        except SdsError as error:
            job.error = _told(error, row)
        return job

    def _collect_files(self, job: Job) -> None:
        values, versions = job.row.values, job.row.versions or {}
        # a file that a pre-download transform gave another name is fetched under that name
        origins = {column: column for column in self.index.columns_to_download}
        if gone := {values[each]: each for each in origins if each not in job.sample and _is_text(values.get(each))}:
            for field, value in job.sample.items():
                if field not in values and _is_text(value) and value in gone:
                    origins[field] = gone[value]
        for column, origin in origins.items():
            url = job.sample.get(column)
            if url is None:
                continue  # missing values are left out of the plan, or allowed
            if not isinstance(url, str):
                hint = "columns_to_download names columns of URLs or paths; leave this one out, or make it text"
                raise SchemaError(f"column to download holds no text: {column!r} has {type(url).__name__}", hint=hint)
            is_remote(url) or local_path(url)  # or an error, which is this row's, not that of all that are asked for
            job.columns.append(column)
            # a version belongs to the URL that the index gave; a pre-download transform may have chosen another
            version = versions.get(origin) if url == values.get(origin) else None
            job.files.append(self._ranges.file(column, url, version) if is_remote(url) else File(url, version))

    def finish(self, job: Job, ticket: Ticket) -> list[Sample]:
        """Waits for the files and runs the transforms; errors name row and stage."""
        try:
            samples = self._recalled(job) if job.remembered is not None else self._made(job, ticket)
        finally:
            if self.memory is not None and job.memory_key is not None and job.remembered is None:
                self.memory.done(job.memory_key)
        return samples

    def _recalled(self, job: Job) -> list[Sample]:
        """The samples of a row that a pass before this one made, and what comes after that."""
        assert job.remembered is not None
        start = time.perf_counter()
        try:
            is_lazy = bool(self._rest) and getattr(self._rest[0], "takes_lazy", False)
            samples = load_samples(job.remembered, job.sample, is_lazy=is_lazy)
            self.tally.add_busy("decode", start, subject=job.row.key)
            return self._run(self._rest, samples, job.row)
        except SdsError as error:
            raise _told(error, job.row)  # noqa: B904 (it is the same)

    def _made(self, job: Job, ticket: Ticket) -> list[Sample]:
        """The samples of a row, out of its files."""
        if job.error is not None:
            raise job.error
        files: list[str | RemoteFile] = []
        try:
            with self.tally.waiting("fetch"):
                files = ticket.take_files() if job.columns else [*ticket.take()]
            if isinstance(self.index, TensorIndex):
                start = time.perf_counter()
                samples = self.index.load(job.row, job.sample, job.files, [os.fspath(file) for file in files])
                self.tally.add_busy("decode", start, subject=job.row.key)
            else:
                files = self._as_remote(job, files)
                job.sample.update(zip(job.columns, files, strict=True))
                samples = [job.sample]
            remotes = [file for file in files if isinstance(file, RemoteFile)]
            if self.memory is not None and job.memory_key is not None:
                begun = dict(job.sample)  # transforms may change the one they get
                samples = self._run(self._prefix, samples, job.row, remotes)
                names = names_of(map(_place_of, files), [file.url for file in job.files])
                samples = self.memory.put(job.memory_key, samples, begun, names)
            samples = self._run(self._rest, samples, job.row, remotes)
        except SdsError as error:
            paths = map(_place_of, files)
            urls = [file.url for file in job.files]
            _name_source(_told(error, job.row), {p: u for p, u in zip(paths, urls, strict=False) if p is not None})
            raise
        finally:
            for column, file in zip(job.columns, files, strict=False):
                if isinstance(file, RemoteFile):
                    if file.is_ranged:
                        self._ranges.read(column, is_whole=file.fell_back)
                    file.close()
        return [{field: _named(value) for field, value in sample.items()} for sample in samples] if remotes else samples

    def _run(
        self, transforms: Iterable[Transform], samples: list[Sample], row: Row, remotes: Sequence[RemoteFile] = ()
    ) -> list[Sample]:
        """What a chain makes of samples."""
        for transform in transforms:
            samples = [after for before in samples for after in self._several(transform, before, row, remotes)]
        return samples

    def _as_remote(self, job: Job, files: list[str | RemoteFile]) -> list[str | RemoteFile]:
        """The files, with a RemoteFile for each that is large enough to be one, also where a whole copy was there."""
        found: list[str | RemoteFile] = []
        for column, file, asked in zip(job.columns, files, job.files, strict=True):
            if column in self._ranges and is_remote(asked.url):
                size = file.size if isinstance(file, RemoteFile) else os.stat(file).st_size
                if self._ranges.saw(column, size) and isinstance(file, str):
                    file = RemoteFile.at(file, asked.url, size)
            found.append(file)
        return found

    def _several(
        self, transform: Transform, sample: Sample, row: Row, remotes: Sequence[RemoteFile] = ()
    ) -> list[Sample]:
        """What a transform makes of a sample, as a list: [] dropped, one, or many."""
        result = self._call(transform, sample, row, remotes)
        if result is None:
            return []
        if isinstance(result, dict):
            return [result]
        several = result if isinstance(result, list) else None
        if several is None or not all(isinstance(each, dict) for each in several):
            hint = "a transform returns a dict, several dicts (list or generator), or None to drop the sample"
            raise TransformError(f"{transform!r} returned {type(result).__name__}", hint=hint)
        return several

    def _call(self, transform: Transform, sample: Sample, row: Row, remotes: Sequence[RemoteFile] = ()) -> Any:
        start = time.perf_counter() - sum(remote.waited_s for remote in remotes)
        try:
            result = transform(sample)
            if result is not None and not isinstance(result, dict | str | bytes) and isinstance(result, Iterable):
                # a generator's work, and its errors, belong to this call; a Mapping of another kind becomes a dict
                result = dict(result) if isinstance(result, Mapping) else list(result)
        except SdsError:
            raise
        except Exception as error:
            hint = "on_error='skip' goes on without such samples, within max_failures"
            raise TransformError(f"transform failed: {transform!r}: {error!r}", hint=hint) from error
        finally:
            start += sum(remote.waited_s for remote in remotes)  # waiting for bytes is no work
            self.tally.add_busy(getattr(transform, "stage", "transform"), start, subject=row.key)
        return result


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _told(error: SdsError, row: Row) -> SdsError:
    """The error, with the row and the stage it speaks of filled in."""
    error.key = error.key or row.key
    error.stage = error.stage or ("transform" if isinstance(error, SampleError) else "fetch")
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
