"""Buckets: which rows may be in one batch, by columns, by the shapes of a tensor cache, or by a function.

Comes in: a dataset and `bucket_by`. Goes out: a number for each row, equal for rows of one bucket, and the steps of an
epoch made of them. Nothing is fetched and no tensor is read for it; it is done once, and travels to worker processes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sds.dataset.ordered import IntArray, OrderedDataset
from sds.dataset.slots import Work
from sds.dataset.state import BucketsDone, State
from sds.dataset.streaming import StreamingDataset
from sds.errors import OptionError, SdsError, StateError, StateMismatch
from sds.loader.feeds import DatasetFeed
from sds.loader.steps import Collate
from sds.plan import Steps
from sds.plan.buckets import BucketSteps, bucket_steps, compact, merged
from sds.tensors.source import TensorIndex
from sds.world import World

__all__ = ["BucketBy", "BucketFeed", "Buckets", "check_bucket_by"]

log = logging.getLogger("sds")

BucketBy = str | Sequence[str] | Callable[[dict[str, Any]], Hashable]
Numbers = npt.NDArray[np.integer[Any]]

MAX_SEGMENTS = 48  # global batch sizes in one epoch: a state stays under 2 KB
_BLOCK = 4096  # rows that a function is asked about at a time


def check_bucket_by(dataset: OrderedDataset, bucket_by: Any) -> StreamingDataset:
    """The dataset, if it can be in buckets and this can be a bucket_by; an OptionError if not."""
    names = [bucket_by] if isinstance(bucket_by, str) else bucket_by
    is_list = isinstance(names, list | tuple) and bool(names) and all(isinstance(name, str) for name in names)
    if not is_list and not callable(bucket_by):
        hint = "a column, several columns, 'shape' or a tensor of a tensor cache, or a function of a row"
        raise OptionError(f"bucket_by is none of these: {bucket_by!r}", hint=hint)
    if not isinstance(dataset, StreamingDataset):
        hint = "a mix has no buckets: give its datasets a loader each, with bucket_by, and take turns among them"
        raise OptionError(f"bucket_by takes a StreamingDataset: {type(dataset).__name__}", hint=hint)
    refused = {
        "infinite_iteration": dataset.is_endless,
        "unaligned_worker_index": dataset.plan_key.unaligned,
        "node_affine": dataset.num_shares > 1,
    }
    for keyword, given in refused.items():
        if given:
            raise OptionError(f"bucket_by and {keyword} exclude each other", hint=f"leave {keyword} out of the dataset")
    return dataset


class Buckets:
    """The buckets of a dataset's rows. They are found when first asked for."""

    def __init__(self, dataset: StreamingDataset, bucket_by: BucketBy) -> None:
        self._dataset = dataset
        self._by: BucketBy | None = bucket_by
        self._numbers: Numbers | None = None
        self._key = ""
        self._members: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
        self._epoch: tuple[int, Any, Numbers] | None = None

    @property
    def numbers(self) -> Numbers:
        """The bucket of each row: 0 is that of the first row, 1 the next that comes, and so on."""
        if self._numbers is None:
            assert self._by is not None
            found = _find(self._dataset.delivery.pipeline.index, self._by)
            _, firsts, places = np.unique(found, return_index=True, return_inverse=True)
            rank = np.empty(len(firsts), np.int64)
            rank[np.argsort(firsts)] = np.arange(len(firsts))
            self._numbers = compact(rank[places.reshape(-1)])
        return self._numbers

    @property
    def key(self) -> str:
        """A hash that says which rows are of one bucket, whatever they are called."""
        if not self._key:
            self._key = hashlib.blake2b(self.numbers.astype("<i4").tobytes(), digest_size=8).hexdigest()
        return self._key

    def of_epoch(self, epoch: int) -> Numbers:
        """The bucket of each position of an epoch."""
        dataset = self._dataset
        known = self._epoch
        if known is None or known[:2] != (epoch, dataset.plan_key):
            rows = dataset.plan.rows(epoch, 0, dataset.length(epoch))
            known = self._epoch = epoch, dataset.plan_key, self.numbers[rows]
        return known[2]

    def steps(
        self, world: World, epoch: int, done: Sequence[Sequence[int]], batch_size: int, drop_last: bool
    ) -> BucketSteps:
        """The batches of a process."""
        rank, size = self._dataset.lane_of(world)
        return bucket_steps(self.of_epoch(epoch), size, rank, batch_size, drop_last, done=done)

    def alike(self, row_id: int, drawn: int, attempt: int) -> int:
        """A row that may stand in for another: one of its bucket, each once; then of the next buckets, in turn."""
        numbers = self.numbers
        if self._members is None:
            ends = np.cumsum(np.bincount(numbers))
            self._members = np.argsort(numbers, kind="stable"), ends
        rows, ends = self._members
        bucket = numbers.item(row_id)
        for _ in range(len(ends)):
            members = rows[ends.item(bucket - 1) if bucket else 0 : ends.item(bucket)]
            members = members[members != row_id]
            if attempt <= len(members):
                # `drawn` is another number in each attempt: the place where a bucket is entered must stay
                return int(members[(row_id * 0x9E3779B1 + attempt) % len(members)])
            attempt -= len(members)
            bucket = (bucket + 1) % len(ends)
        return drawn % len(numbers)

    def check_state(self, state: State) -> None:
        """StateMismatch if a state in buckets is of other ones; what is of another index is told by the dataset."""
        mine, theirs = self._dataset.plan_key, state.key
        if (mine.fingerprint, mine.rows) == (theirs.fingerprint, theirs.rows):
            self.check(state.buckets)

    def check(self, done: BucketsDone | None) -> None:
        """StateMismatch if what was handed out was in other buckets."""
        if done is not None and done.key != self.key:
            hint = "give the bucket_by of the checkpointed run; set_epoch(n) begins another epoch with this one"
            raise StateMismatch("state is of another bucket_by", hint=hint)

    def __getstate__(self) -> dict[str, Any]:
        # a spawned worker gets the numbers: a function may be one that cannot travel
        return {**self.__dict__, "_numbers": self.numbers, "_by": None, "_members": None, "_epoch": None}


class BucketFeed(DatasetFeed):
    """The steps of one dataset, in buckets. A start is (epoch, number of segments, and their two numbers each)."""

    start_size = 2 + 2 * MAX_SEGMENTS

    def __init__(
        self,
        buckets: Buckets,
        dataset: OrderedDataset,
        collate: Collate,
        *,
        batch_size: int,
        drop_last: bool,
        world: World,
    ) -> None:
        super().__init__(dataset, collate, batch_size=batch_size, drop_last=drop_last, world=world)
        self._buckets = buckets

    def start(self, epoch: int, position: int, done: BucketsDone | None = None) -> list[int]:
        """A start, as threads and workers are told it."""
        # of an epoch that was begun without buckets, the first positions are done
        segments = merged(done.done if done is not None else ((1, position),))
        if len(segments) > MAX_SEGMENTS:
            hint = "give what state_dict() returned"
            raise StateError(f"state is damaged: {len(segments)} sizes of batches in one epoch", hint=hint)
        size = self._dataset.lane_of(self.world)[1] * self._batch_size
        if len(segments) == MAX_SEGMENTS and segments[-1][0] != size:
            raise StateError(
                f"the number of ranks or the batch size changed too often in one epoch: {len(segments)} times",
                hint=f"go on with batches of {segments[-1][0]} over all ranks until the epoch ends",
            )
        flat = [number for segment in segments for number in segment]
        return [epoch, len(segments), *flat, *[0] * (self.start_size - 2 - len(flat))]

    def todo(self, start: Sequence[int]) -> BucketSteps:
        """The steps of this rank, as positions."""
        epoch, num_segments = start[:2]
        done = [start[k : k + 2] for k in range(2, 2 + 2 * num_segments, 2)]
        return self._buckets.steps(self.world, epoch, done, self._batch_size, self._drop_last)

    def after(self, start: Sequence[int], todo: Steps | BucketSteps, k: int) -> State:
        """Where delivery stands when step k of those from a start on was handed out, and it is not the last."""
        assert isinstance(todo, BucketSteps)
        done = BucketsDone(self._buckets.key, todo.done_after(k))
        return self._dataset.progress.at(start[0], todo.num_after(k), buckets=done)

    def _work(self, epoch: int, blocks: Iterator[IntArray]) -> Iterator[Work]:
        for work in super()._work(epoch, blocks):
            work.job.alike = self._buckets.alike
            yield work


def _find(index: Any, by: BucketBy) -> Numbers:
    """A number for each row."""
    if isinstance(by, str):
        return _of_column(index, by)
    if callable(by):
        return _of_function(index, by)
    numbers = np.zeros(len(index), np.int64)
    for name in by:
        _, numbers = np.unique(numbers, return_inverse=True)  # small again, or the product could be too large
        _, column = np.unique(_of_column(index, name), return_inverse=True)
        numbers = numbers.reshape(-1) * (int(column.max()) + 1) + column.reshape(-1)
    return numbers


def _of_column(index: Any, name: str) -> Numbers:
    """A number for each value of a column, or of a shape; missing values are a bucket too."""
    if name in index.schema.names:
        if hasattr(index, "column"):
            return _encoded(index.column(name))
        return _of_function(index, lambda row: _frozen(row[name]))
    if isinstance(index, TensorIndex):
        try:
            found = index.shapes(None if name == "shape" else name)
        except KeyError:
            found = None
        if found is not None:
            return found[0]
    known = ", ".join(map(repr, index.schema.names))
    hint = f"there are: {known}; a tensor cache has 'shape' and its tensors' names too"
    raise OptionError(f"bucket_by is no column of the dataset: {name!r}", hint=hint)


def _encoded(column: pa.ChunkedArray) -> Numbers:
    kind = column.type
    if pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type):
        column = pc.binary_join(column.cast(pa.list_(pa.string())), ",")
    elif pa.types.is_nested(kind):
        column = pa.chunked_array([pa.array([repr(_frozen(value)) for value in column.to_pylist()], pa.string())])
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode(null_encoding="encode")
    parts = column.unify_dictionaries().chunks
    return np.concatenate([np.zeros(0, np.int64), *(part.indices.fill_null(-1).to_numpy() for part in parts)])


def _of_function(index: Any, by: Callable[[dict[str, Any]], Hashable]) -> Numbers:
    known: dict[Hashable, int] = {}
    numbers = np.empty(len(index), np.int64)
    for first in range(0, len(index), _BLOCK):
        for row in index.rows(range(first, min(len(index), first + _BLOCK))):
            try:
                numbers[row.id] = known.setdefault(by(dict(row.values)), len(known))
            except SdsError:
                raise
            except Exception as error:
                hint = "it takes the dict of a row's columns, and returns what is equal for rows of one bucket"
                raise OptionError(f"bucket_by failed: {error!r}", hint=hint, key=row.key) from error
    return numbers


def _frozen(value: Any) -> Hashable:
    """The same value, so that it can be looked up."""
    if isinstance(value, dict):
        return tuple((key, _frozen(each)) for key, each in value.items())
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
