"""A feed: what threads and workers ask for steps. A few integers say where to begin; the rest is known beforehand.

Comes in: a start, and which worker of how many asks. Goes out: the steps that are its own, with their files on the way.
A feed travels to worker processes, so it holds what a dataset holds, and nothing that runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from sds.dataset.delivery import Delivery
from sds.dataset.ordered import IntArray, OrderedDataset
from sds.dataset.slots import Work
from sds.dataset.state import BucketsDone, State
from sds.loader.steps import Collate, StepJob, plain_jobs, step_jobs
from sds.plan import Steps
from sds.plan.buckets import BucketSteps
from sds.world import World

__all__ = ["DatasetFeed", "Feed", "Source"]

Source = tuple[str | None, Delivery]  # the name of its stream, if it has one, and a delivery


class Feed(Protocol):
    """Steps for threads and workers."""

    @property
    def sources(self) -> list[Source]:
        """Everything that steps are made by in this process, in one order everywhere."""
        ...

    @property
    def start_size(self) -> int:
        """How many integers a start has."""
        ...

    def follow(self) -> None:
        """In a worker: takes over what its parent learnt after the worker was made."""
        ...

    def steps(self, start: Sequence[int], worker: int, num_workers: int) -> Iterator[StepJob]:
        """The steps from a start on that are this worker's: every `num_workers`-th one. Close it to end it."""
        ...


class DatasetFeed:
    """The steps of one dataset. A start is (epoch, position)."""

    start_size = 2

    def __init__(
        self, dataset: OrderedDataset, collate: Collate, *, batch_size: int, drop_last: bool, world: World
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batch_size = batch_size
        self._drop_last = drop_last
        self.world = world  # as the process that trains knows it: a worker may not find out

    @property
    def sources(self) -> list[Source]:
        """The deliveries of the dataset."""
        return [(None, delivery) for delivery in self._dataset.deliveries]

    def follow(self) -> None:
        """In a worker: takes over a seed that its parent found in a state."""
        self._dataset.follow_seed()

    def start(self, epoch: int, position: int, done: BucketsDone | None = None) -> list[int]:  # noqa: ARG002 (a hook)
        """A start, as threads and workers are told it."""
        return [epoch, position]

    def todo(self, start: Sequence[int]) -> Steps | BucketSteps:
        """The steps of this rank from a start on, as positions."""
        epoch, position = start
        return self._dataset.steps(self.world, epoch, position, self._batch_size, self._drop_last)

    def after(self, start: Sequence[int], todo: Steps | BucketSteps, k: int) -> State:
        """Where delivery stands when step k of those from a start on was handed out, and it is not the last."""
        assert isinstance(todo, Steps)
        return self._dataset.progress.at(start[0], todo.stop(k))

    def steps(self, start: Sequence[int], worker: int, num_workers: int) -> Iterator[StepJob]:
        """The steps that are this worker's, from a start on."""
        todo = self.todo(start)
        mine = range(worker, len(todo), num_workers)
        plain = self._dataset.plain(self.world, start[0])
        if plain is not None:
            (delivery,) = self._dataset.deliveries
            return plain_jobs(((k, todo[k]) for k in mine), plain, delivery, self._collate)
        work = self._work(start[0], (todo[k] for k in mine))
        window = self._dataset.window_of(num_workers, self._batch_size)
        return step_jobs(work, ((k, len(todo[k])) for k in mine), self._collate, *window)

    def _work(self, epoch: int, blocks: Iterator[IntArray]) -> Iterator[Work]:
        return self._dataset.work(self.world, epoch, blocks)
