"""StreamingDataLoader: a dataset -> batches, in the background of this process or in worker processes, in order.

The state says what was handed to the caller: not what is prefetched, not what a worker has made. It is a few integers
and the same on all ranks, and a loader with another number of ranks, workers or batch size goes on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from sds.dataset.keywords import check_keywords
from sds.dataset.options import check_count, check_flag, check_world
from sds.dataset.ordered import INFINITE, OrderedDataset, check_dataset
from sds.dataset.state import State
from sds.errors import StateError
from sds.events import Stats
from sds.loader.buckets import BucketBy, BucketFeed, Buckets, check_bucket_by
from sds.loader.collate import check_collate, collate
from sds.loader.counting import Counting
from sds.loader.feeds import DatasetFeed
from sds.loader.life import Life
from sds.loader.making import Making, MakingOptions
from sds.plan import Steps
from sds.plan.buckets import BucketSteps
from sds.types import Failure, Sample
from sds.world import World

__all__ = ["StreamingDataLoader"]


@check_keywords
class StreamingDataLoader(Life):
    """Batches of a dataset. One item is one step: this rank's share of a global batch.

    Args:
        dataset: what to load: a StreamingDataset, or a mix of them (`sds.interleave`, `sds.concatenate`).
        batch_size: samples per batch and rank.
        num_workers: 0 decodes in threads of this process, the fast default; more runs worker processes, for transforms
            that are heavy in Python.
        num_threads: decode threads with num_workers=0. Default: the cores that this process may use, and one more where
            samples take long.
        drop_last: drop the samples that do not fill a global batch, instead of handing out a smaller last one.
        collate_fn: samples -> batch. Default: `sds.loader.collate`.
        pin_memory: put tensors into page-locked memory, for faster copies to a GPU.
        prefetch_batches: batches made ahead (with workers: per worker).
        persistent_workers: keep worker processes between epochs.
        multiprocessing_context: 'fork', 'spawn' or 'forkserver'.
        timeout: seconds to wait for a batch; 0: no limit.
        world: this process among the others. Default: the dataset's, else detected.
        bucket_by: batches of samples that are alike, such as of one shape: a column, several columns, or a function of
            a row (a dict) that returns what is equal for rows of one bucket; for a tensor cache also 'shape', or the
            name of the tensor whose shape counts. What is left of the buckets comes last, as smaller batches.
    """

    def __init__(
        self,
        dataset: OrderedDataset,
        batch_size: int,
        *,
        num_workers: int = 0,
        num_threads: int | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[list[Sample]], Any] | None = None,
        pin_memory: bool = False,
        prefetch_batches: int = 2,
        persistent_workers: bool = False,
        multiprocessing_context: Any = None,
        timeout: float = 0,
        world: World | None = None,
        bucket_by: BucketBy | None = None,
    ) -> None:
        check_dataset(dataset)
        check_count("batch_size", batch_size, minimum=1)
        check_flag("drop_last", drop_last)
        check_world(world)
        check_collate(collate_fn)
        self._buckets = None if bucket_by is None else Buckets(check_bucket_by(dataset, bucket_by), bucket_by)
        options = MakingOptions(
            num_workers,
            num_threads,
            pin_memory,
            prefetch_batches,
            persistent_workers,
            multiprocessing_context,
            timeout,
        )
        self.dataset = dataset
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.drop_last = drop_last
        self._world = world
        feed = DatasetFeed if self._buckets is None else partial(BucketFeed, self._buckets)
        self._feed = feed(dataset, collate_fn or collate, batch_size=batch_size, drop_last=drop_last, world=self.world)
        self._making = Making(self._feed, options)
        self._counting = Counting([dataset])
        self._here: tuple[int, State] | None = None  # what was handed out, and how often the dataset had jumped then

    @property
    def world(self) -> World:
        """This process among the others."""
        return self._world or self.dataset.world

    def __len__(self) -> int:
        """Batches of a whole epoch, exactly."""
        if self.dataset.horizon(0) == INFINITE:
            raise TypeError("a loader of a dataset with infinite_iteration has no length")
        return len(self._todo(self._feed.start(self.dataset.epoch, 0)))

    @property
    def num_jumps(self) -> int:
        """How often it was told to go on somewhere else, by a state or an epoch."""
        return self.dataset.progress.num_jumps

    def _todo(self, start: Sequence[int]) -> Steps | BucketSteps:
        self._feed.world = self.world
        return self._feed.todo(start)

    @property
    def num_dropped(self) -> int:
        """Samples of a whole epoch that are in no batch, because of drop_last."""
        is_endless = self.dataset.horizon(0) == INFINITE
        return 0 if is_endless else self._todo(self._feed.start(self.dataset.epoch, 0)).num_dropped

    def __iter__(self) -> Iterator[Any]:
        """The batches of the current epoch, from its start or from where a loaded state says."""
        self._stop()
        if self._buckets is not None:
            self._buckets.check(self.dataset.progress.buckets)  # it may have been loaded into the dataset
        begun = self.dataset.begin(self.world, None if self._buckets is None else self._buckets.key)
        if begun.offset:
            hint = "load it into the dataset and iterate that, or take a state between batches of a loader"
            raise StateError("state lies between the samples of one row", hint=hint)
        self._feed.world = self.world
        start = self._feed.start(begun.epoch, begun.position, begun.buckets)
        self._hand_out(self.dataset.progress.at(begun.epoch, begun.position, buckets=begun.buckets))
        return self._run(self._batches(start))

    def _batches(self, start: Sequence[int]) -> Iterator[Any]:
        epoch, todo = start[0], self._todo(start)
        progress, tally = self.dataset.progress, self.dataset.tally
        own = self._counting.tally
        tally.begin()
        own.begin()
        made = self._making.batches(start, tally)
        try:
            for k in range(len(todo)):
                batch, num_samples = next(made)
                tally.delivered(num_samples)
                own.delivered(num_samples)
                if k + 1 < len(todo):
                    progress.reach(self._feed.after(start, todo, k))
                else:
                    progress.finish(epoch)
                self._hand_out(progress.state())
                yield batch
            if not len(todo):
                progress.finish(epoch)
                self._hand_out(progress.state())
        finally:
            made.close()  # type: ignore[attr-defined]  # a generator

    def state_dict(self) -> dict[str, Any]:
        """Where delivery stands: a small JSON-able copy, the same on all ranks."""
        # the dataset may be iterated elsewhere too: what counts is what this loader handed out, until somebody jumps
        is_own = self._here is not None and self._here[0] == self.num_jumps
        return self._here[1].to_dict() if self._here is not None and is_own else self.dataset.state_dict()

    def _hand_out(self, state: State) -> None:
        self._here = self.num_jumps, state

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """The next iteration goes on where the state says, whatever loader it came from."""
        self._stop()
        if self._buckets is not None:
            self._buckets.check_state(State.from_dict(state))
        self.dataset.load_state_dict(state, strict=strict)

    def stats(self) -> Stats:
        """What happened since this loader was made, over this process and its workers."""
        return self._counting.stats([self.dataset], self._making.crew)

    def _failures(self) -> list[Failure]:
        return self.dataset.quarantine()
