"""StreamingDataLoader: a dataset -> batches, in the background of this process or in worker processes, in order.

The state says what was handed to the caller: not what is prefetched, not what a worker has made. It is a few integers
and the same on all ranks, and a loader with another number of ranks, workers or batch size goes on from it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from sds.dataset import StreamingDataset
from sds.dataset.leases import Leases
from sds.dataset.options import check_choice, check_count, check_flag, check_world
from sds.dataset.shared import SharedBlock
from sds.dataset.state import State
from sds.dataset.streaming import INFINITE
from sds.errors import OptionError, SdsError, StateError
from sds.events import Stats
from sds.loader.collate import collate
from sds.loader.steps import step_jobs
from sds.loader.threads import ThreadedBatches
from sds.loader.workers import EPOCH, POSITION, Envelope, StepStream, WorkerTraceback
from sds.plan import Steps
from sds.types import Sample
from sds.world import World

__all__ = ["StreamingDataLoader"]

log = logging.getLogger("sds")


class StreamingDataLoader:
    """Batches of a StreamingDataset. One item is one step: this rank's share of a global batch.

    Args:
        dataset: what to load.
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
        dataset: StreamingDataset,
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
        if not isinstance(dataset, StreamingDataset):
            hint = "construct a sds.StreamingDataset first"
            raise OptionError(f"dataset is no StreamingDataset: {type(dataset).__name__}", hint=hint)
        if bucket_by is not None:
            hint = "leave bucket_by out in this version; the CHANGELOG says when it comes"
            raise OptionError("bucket_by is not available yet", hint=hint)
        check_count("batch_size", batch_size, minimum=1)
        check_count("num_workers", num_workers, minimum=0)
        check_count("prefetch_batches", prefetch_batches, minimum=1)
        if num_threads is not None:
            check_count("num_threads", num_threads, minimum=1)
        for keyword, flag in (
            ("drop_last", drop_last),
            ("pin_memory", pin_memory),
            ("persistent_workers", persistent_workers),
        ):
            check_flag(keyword, flag)
        check_world(world)
        if collate_fn is not None and not callable(collate_fn):
            raise OptionError(f"collate_fn cannot be called: {collate_fn!r}", hint="give a callable: samples -> batch")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
            raise OptionError(f"timeout is not a number of seconds: {timeout!r}", hint="0: no limit")
        if isinstance(multiprocessing_context, str):
            check_choice("multiprocessing_context", multiprocessing_context, multiprocessing.get_all_start_methods())
        of_workers = {"persistent_workers": persistent_workers, "multiprocessing_context": multiprocessing_context}
        for keyword, given in of_workers.items():
            if given and not num_workers:
                raise OptionError(f"{keyword} needs num_workers > 0", hint=f"leave {keyword} out")
        if num_threads is not None and num_workers:
            hint = "worker processes decode one step each: leave num_threads out, or num_workers"
            raise OptionError("num_threads needs num_workers=0", hint=hint)
        self.dataset = dataset
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.drop_last = drop_last
        self._num_threads = num_threads or len(os.sched_getaffinity(0))
        self._collate = collate_fn or collate
        self._pin_memory = pin_memory and _can_pin()
        self._ahead = prefetch_batches
        self._persistent = persistent_workers
        self._context = multiprocessing_context
        self._timeout = timeout
        self._world = world
        # the iteration that runs, if its caller still has it: leaving a loop ends it
        self._running: weakref.ref[Iterator[Any]] | None = None
        self._workers: DataLoader[Envelope] | None = None
        self._where = SharedBlock(2)
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
        batches = self._batches(start.epoch, start.position)
        self._running = weakref.ref(batches)
        return batches

    def _batches(self, epoch: int, start: int) -> Iterator[Any]:
        todo = self._steps(epoch, start)
        progress = self.dataset.progress
        tally = self.dataset.delivery.tally
        tally.begin()
        made = self._from_workers(epoch, start) if self.num_workers else self._from_threads(epoch, todo)
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

    def _from_threads(self, epoch: int, todo: Steps) -> Iterator[tuple[Any, int]]:
        delivery = self.dataset.delivery
        plan, _, _ = self.dataset.share(self.world)
        jobs = step_jobs(delivery, plan, epoch, todo, range(len(todo)), *self.dataset.window)
        batches = ThreadedBatches(delivery, jobs, self._collate, self._num_threads, self._ahead, self._timeout)
        leases = Leases(1)
        try:
            for made in batches:
                leases.hold(made.held)  # the paths of the batch before are past now
                yield self._pinned(made.batch), made.num_samples
        finally:
            batches.close()
            leases.release()

    def _from_workers(self, epoch: int, start: int) -> Iterator[tuple[Any, int]]:
        self._where[EPOCH], self._where[POSITION] = epoch, start
        if self._workers is None:
            self._workers = self._make_workers()
        policy, tally = self.dataset.delivery.policy, self.dataset.delivery.tally
        envelopes = _started(self._workers)
        stay = False
        try:
            for envelope in _received(envelopes):
                tally.merge(envelope.counts)
                policy.record(envelope.failures, envelope.num_attempts, envelope.first)
                if envelope.error is not None:
                    raise envelope.error from WorkerTraceback(f"\n{envelope.trace}")
                policy.check()
                stay = self._persistent  # for the next epoch; not after an error, theirs or torch's
                yield envelope.batch, envelope.num_samples
                stay = False
        finally:
            if not stay:
                self._workers = None
                envelopes._shutdown_workers()  # type: ignore[attr-defined]  # torch has no public word for it

    def _make_workers(self) -> DataLoader[Envelope]:
        stream = StepStream(
            self.dataset,
            self._collate,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            world=self.world,
            where=self._where,
            num_held=self._ahead + 2,
        )
        return DataLoader(
            stream,
            batch_size=None,
            num_workers=self.num_workers,
            pin_memory=self._pin_memory,
            timeout=self._timeout,
            multiprocessing_context=self._context,
            prefetch_factor=self._ahead,
            persistent_workers=self._persistent,
        )

    def _pinned(self, batch: Any) -> Any:
        if not self._pin_memory:
            return batch
        return pin_memory(batch)  # type: ignore[no-untyped-call]

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

    def close(self) -> None:
        """Ends threads and workers, mid-epoch or not. The loader can be used again."""
        self._stop()
        self._workers = None

    def _stop(self) -> None:
        running = None if self._running is None else self._running()
        if running is not None:
            running.close()  # type: ignore[attr-defined]  # a generator

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None, "_workers": None}

    def __enter__(self) -> StreamingDataLoader:  # noqa: PYI034 (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _started(workers: DataLoader[Envelope]) -> Iterator[Envelope]:
    try:
        return iter(workers)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise OptionError(
            f"worker processes cannot be started: {error}",
            hint="what is spawned is pickled: define transforms and collate_fn at the top of a module, "
            "or use multiprocessing_context='fork', or num_workers=0",
        ) from error


def _received(envelopes: Iterator[Envelope]) -> Iterator[Envelope]:
    """What workers send; torch has words for a worker's death, but not for one in the middle of a batch."""
    try:
        yield from envelopes
    except (EOFError, OSError) as error:
        raise SdsError(
            f"a worker process died while it sent a batch: {error!r}",
            hint="was it killed, for want of memory? the loader goes on from its state_dict()",
        ) from error


def _can_pin() -> bool:
    """Whether there is a device for which memory could be page-locked; torch, too, goes on without one."""
    accelerator = getattr(torch, "accelerator", torch.cuda)  # torch.accelerator is new in 2.6
    if not accelerator.is_available():
        log.warning("pin_memory=True does nothing here: there is no accelerator")
        return False
    return True
