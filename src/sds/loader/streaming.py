"""StreamingDataLoader: a dataset -> batches, in the background of this process or in worker processes, in order.

The state says what was handed to the caller: not what is prefetched, not what a worker has made. It is a few integers
and the same on all ranks, and a loader with another number of ranks, workers or batch size goes on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sds.dataset.options import check_count, check_flag, check_world
from sds.dataset.ordered import INFINITE, OrderedDataset, check_dataset
from sds.dataset.state import State
from sds.errors import OptionError, StateError
from sds.events import Stats
from sds.loader.collate import check_collate, collate
from sds.loader.feeds import DatasetFeed
from sds.loader.life import Life
from sds.loader.making import Making, MakingOptions
from sds.plan import Steps
from sds.types import Sample
from sds.world import World

__all__ = ["StreamingDataLoader"]


class StreamingDataLoader(Life):
    """Batches of a dataset. One item is one step: this rank's share of a global batch.

    Args:
        dataset: what to load: a StreamingDataset, or a mix of them (`sds.interleave`, `sds.concatenate`).
        batch_size: samples per batch and rank.
        num_workers: 0 decodes in threads of this process, the fast default; more runs worker processes, for transforms
            that are heavy in Python.
        num_threads: decode threads with num_workers=0. Default: the cores that this process may use.
        drop_last: drop the samples that do not fill a global batch, instead of handing out a smaller last one.
        collate_fn: samples -> batch. Default: `sds.loader.collate`.
        pin_memory: put tensors into page-locked memory, for faster copies to a GPU.
        prefetch_batches: batches made ahead (with workers: per worker).
        persistent_workers: keep worker processes between epochs.
        multiprocessing_context: 'fork', 'spawn' or 'forkserver'.
        timeout: seconds to wait for a batch; 0: no limit.
        world: this process among the others. Default: the dataset's, else detected.
        bucket_by: not available yet.
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
        bucket_by: Any = None,
    ) -> None:
        check_dataset(dataset)
        if bucket_by is not None:
            hint = "leave bucket_by out in this version; the CHANGELOG says when it comes"
            raise OptionError("bucket_by is not available yet", hint=hint)
        check_count("batch_size", batch_size, minimum=1)
        check_flag("drop_last", drop_last)
        check_world(world)
        check_collate(collate_fn)
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
        self._feed = DatasetFeed(
            dataset, collate_fn or collate, batch_size=batch_size, drop_last=drop_last, world=self.world
        )
        self._making = Making(self._feed, options)
        self._here: tuple[int, State] | None = None  # what was handed out, and how often the dataset had jumped then

    @property
    def world(self) -> World:
        """This process among the others."""
        return self._world or self.dataset.world

    def __len__(self) -> int:
        """Batches of a whole epoch, exactly."""
        if self.dataset.horizon(0) == INFINITE:
            raise TypeError("a loader of a dataset with infinite_iteration has no length")
        return len(self._steps(self.dataset.epoch, 0))

    def _steps(self, epoch: int, start: int) -> Steps:
        return self.dataset.steps(self.world, epoch, start, self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        """The batches of the current epoch, from its start or from where a loaded state says."""
        self._stop()
        start = self.dataset.begin(self.world)
        if start.offset:
            hint = "load it into the dataset and iterate that, or take a state between batches of a loader"
            raise StateError("state lies between the samples of one row", hint=hint)
        self._hand_out(self.dataset.progress.at(start.epoch, start.position))
        return self._run(self._batches(start.epoch, start.position))

    def _batches(self, epoch: int, start: int) -> Iterator[Any]:
        self._feed.world = self.world
        todo = self._steps(epoch, start)
        progress, tally = self.dataset.progress, self.dataset.tally
        tally.begin()
        made = self._making.batches((epoch, start))
        try:
            for k in range(len(todo)):
                with tally.waiting("consumer"):
                    batch, num_samples = next(made)
                tally.delivered(num_samples)
                if k + 1 < len(todo):
                    progress.reach(progress.at(epoch, todo.stop(k)))
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
        is_own = self._here is not None and self._here[0] == self.dataset.progress.num_jumps
        return self._here[1].to_dict() if self._here is not None and is_own else self.dataset.state_dict()

    def _hand_out(self, state: State) -> None:
        self._here = self.dataset.progress.num_jumps, state

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """The next iteration goes on where the state says, whatever loader it came from."""
        self._stop()
        self.dataset.load_state_dict(state, strict=strict)

    def stats(self) -> Stats:
        """What happened so far, over this process and its workers."""
        return self.dataset.stats()
