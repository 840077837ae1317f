"""Making: a feed -> finished batches, in threads of this process or in worker processes, in order. What loaders share.

Comes in: a start. Goes out: batches with their number of samples, one iteration at a time; failures and counts of
workers come home on the way. Leaving an iteration ends its threads, and its workers unless they are persistent.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from sds.dataset.leases import Leases
from sds.dataset.options import check_choice, check_count, check_flag
from sds.dataset.shared import SharedBlock
from sds.errors import OptionError, SdsError
from sds.loader.feeds import Feed
from sds.loader.steps import name_stream
from sds.loader.threads import ThreadedBatches
from sds.loader.workers import FIRST, IS_PAUSED, Envelope, StepStream, WorkerTraceback, end_workers

__all__ = ["Making", "MakingOptions"]

log = logging.getLogger("sds")


@dataclass(frozen=True)
class MakingOptions:
    """How batches are made; the arguments are those of the loaders."""

    num_workers: int = 0
    num_threads: int | None = None
    pin_memory: bool = False
    prefetch_batches: int = 2
    persistent_workers: bool = False
    multiprocessing_context: Any = None
    timeout: float = 0
    max_bytes: float = math.inf

    def __post_init__(self) -> None:
        check_count("num_workers", self.num_workers, minimum=0)
        check_count("prefetch_batches", self.prefetch_batches, minimum=1)
        if self.num_threads is not None:
            check_count("num_threads", self.num_threads, minimum=1)
        check_flag("pin_memory", self.pin_memory)
        check_flag("persistent_workers", self.persistent_workers)
        timeout, context = self.timeout, self.multiprocessing_context
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
            raise OptionError(f"timeout is not a number of seconds: {timeout!r}", hint="0: no limit")
        if isinstance(context, str):
            check_choice("multiprocessing_context", context, multiprocessing.get_all_start_methods())
        of_workers = {"persistent_workers": self.persistent_workers, "multiprocessing_context": context}
        for keyword, given in of_workers.items():
            if given and not self.num_workers:
                raise OptionError(f"{keyword} needs num_workers > 0", hint=f"leave {keyword} out")
        if self.num_threads is not None and self.num_workers:
            hint = "worker processes decode one step each: leave num_threads out, or num_workers"
            raise OptionError("num_threads needs num_workers=0", hint=hint)


class Making:
    """Makes the batches of a feed. One iteration at a time."""

    def __init__(self, feed: Feed, options: MakingOptions) -> None:
        self._feed = feed
        self._options = options
        self._num_threads = options.num_threads or len(os.sched_getaffinity(0))
        self._pin_memory = options.pin_memory and _can_pin()
        self._workers: DataLoader[Envelope] | None = None
        self._where = SharedBlock(FIRST + feed.start_size)

    def batches(self, start: Sequence[int]) -> Iterator[tuple[Any, int]]:
        """Batches from a start on, each with its number of samples. Close it to end it."""
        made = self._from_workers(start) if self._options.num_workers else self._from_threads(start)
        try:
            while True:
                with self._asking():
                    try:
                        batch = next(made)
                    except StopIteration:
                        return
                yield batch
        finally:
            self._where[IS_PAUSED] = False
            for _, delivery in self._feed.sources:
                delivery.client.consumer.end()
            made.close()  # type: ignore[attr-defined]  # a generator

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """The caller waits for a batch. Between two such blocks it does something else, for as long as it likes."""
        self._where[IS_PAUSED] = False
        with ExitStack() as stack:
            for _, delivery in self._feed.sources:
                stack.enter_context(delivery.client.consumer.asking())
            yield
        self._where[IS_PAUSED] = True

    def _from_threads(self, start: Sequence[int]) -> Iterator[tuple[Any, int]]:
        options = self._options
        batches = ThreadedBatches(
            self._feed.steps(start, 0, 1),
            self._num_threads,
            options.prefetch_batches,
            timeout_s=options.timeout,
            warn_after_s=max(delivery.client.options.timeout_s for _, delivery in self._feed.sources),
            max_bytes=options.max_bytes,
        )
        leases = Leases(1)
        try:
            for made in batches:
                leases.hold(made.held)  # the paths of the batch before are past now
                yield self._pinned(made.batch), made.num_samples
        finally:
            batches.close()
            leases.release()

    def _from_workers(self, start: Sequence[int]) -> Iterator[tuple[Any, int]]:
        for k, each in enumerate(start):
            self._where[FIRST + k] = each
        if self._workers is None:
            self._workers = self._make_workers()
        envelopes = _started(self._workers)
        stay = False
        try:
            for envelope in _received(envelopes):
                self._take_home(envelope)
                stay = self._options.persistent_workers  # for the next epoch; not after an error, theirs or torch's
                yield envelope.batch, envelope.num_samples
                stay = False
        finally:
            if not stay:
                self._workers = None
                end_workers(envelopes)

    def _take_home(self, envelope: Envelope) -> None:
        """Counts what a worker counted, and raises its error, or that there were too many failures."""
        sources = self._feed.sources
        for (_, delivery), report in zip(sources, envelope.reports, strict=True):
            delivery.tally.merge(report.counts)
            delivery.policy.record(report.failures, report.num_attempts, report.first)
        if envelope.error is not None:
            raise envelope.error from WorkerTraceback(f"\n{envelope.trace}")
        for stream, delivery in sources:
            try:
                delivery.policy.check()
            except SdsError as error:
                name_stream(error, stream)
                raise

    def _make_workers(self) -> DataLoader[Envelope]:
        options = self._options
        return DataLoader(
            StepStream(self._feed, where=self._where, num_held=options.prefetch_batches + 2),
            batch_size=None,
            num_workers=options.num_workers,
            pin_memory=self._pin_memory,
            timeout=options.timeout,
            multiprocessing_context=options.multiprocessing_context,
            prefetch_factor=options.prefetch_batches,
            persistent_workers=options.persistent_workers,
        )

    def _pinned(self, batch: Any) -> Any:
        if not self._pin_memory:
            return batch
        return pin_memory(batch)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Ends persistent workers."""
        iterator = getattr(self._workers, "_iterator", None)
        if iterator is not None:
            end_workers(iterator)
        self._workers = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_workers": None}


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
