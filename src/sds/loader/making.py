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
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from sds.dataset.leases import Leases
from sds.dataset.options import check_choice, check_count, check_flag
from sds.dataset.shared import SharedBlock
from sds.errors import FetchTimeout, OptionError, SdsError
from sds.events import Tally
from sds.loader.budget import Budget
from sds.loader.feeds import Feed
from sds.loader.forwarding import Forwarding
from sds.loader.steps import name_stream
from sds.loader.threads import Cancelling, ThreadedBatches
from sds.loader.trace import Trace
from sds.loader.workers import (
    FIRST,
    IS_HEARD,
    IS_PAUSED,
    Envelope,
    StepStream,
    WorkerLoader,
    WorkerTraceback,
    end_workers,
)
from sds.world import World

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
        self._num_spare = 1 if options.num_threads is None else 0
        self._pin_memory = options.pin_memory and _can_pin()
        self._workers: WorkerLoader | None = None
        self._logs: Forwarding | None = None
        self._where = SharedBlock(FIRST + feed.start_size)
        is_bounded = options.num_workers and options.max_bytes < math.inf
        self._budget = Budget(options.max_bytes, options.num_workers) if is_bounded else None
        self.trace: Trace | None = None  # what hears of each piece of work
        self.num_given = 0  # samples that were handed out
        self.cancelling = Cancelling()

    def batches(self, start: Sequence[int], tally: Tally) -> Iterator[tuple[Any, int]]:
        """Batches from a start on, each with its number of samples. Close it to end it.

        `tally` is told how long the caller waited for them, and what it did in between.
        """
        made = self._from_workers(start, tally) if self._options.num_workers else self._from_threads(start, tally)
        self._listen(tally)
        num_new = max(1, self._options.num_workers)  # whose first batch is yet to come
        try:
            while True:
                asked = time.perf_counter()
                with self._asking():
                    try:
                        batch = next(made)
                    except StopIteration:
                        return
                given = time.perf_counter()
                tally.add_wait("consumer", given - asked, start_s=asked)
                if num_new:
                    tally.add_wait("startup", given - asked)
                    num_new -= 1
                self.num_given += batch[1]
                yield batch
                tally.add_busy("consumer", given)
        finally:
            self._where[IS_PAUSED] = False
            tally.probe = None
            for _, delivery in self._feed.sources:
                delivery.client.consumer.end()
                delivery.tally.probe = None
            made.close()  # type: ignore[attr-defined]  # a generator

    @property
    def crew(self) -> tuple[int, int]:
        """Who makes batches: worker processes, or threads."""
        return self._options.num_workers, 0 if self._options.num_workers else self._num_threads

    def _listen(self, tally: Tally) -> None:
        """Says who makes batches, and to whom each piece of work is told."""
        self._where[IS_HEARD] = self.trace is not None
        self._tell_crew(tally)
        for each in self._tallies(tally):
            each.probe = self.trace

    def _tell_crew(self, tally: Tally) -> None:
        for each in self._tallies(tally):
            each.set_crew(*self.crew)

    def _tallies(self, tally: Tally) -> list[Tally]:
        return [tally, *(delivery.tally for _, delivery in self._feed.sources)]

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """The caller waits for a batch. Between two such blocks it does something else, for as long as it likes."""
        self._where[IS_PAUSED] = False
        with ExitStack() as stack:
            for _, delivery in self._feed.sources:
                stack.enter_context(delivery.client.consumer.asking())
            yield
        self._where[IS_PAUSED] = True

    def _from_threads(self, start: Sequence[int], tally: Tally) -> Iterator[tuple[Any, int]]:
        options = self._options
        batches = ThreadedBatches(
            self._feed.steps(start, 0, 1),
            self._num_threads,
            options.prefetch_batches,
            num_spare=self._num_spare,
            timeout_s=options.timeout,
            warn_after_s=max(delivery.client.options.timeout_s for _, delivery in self._feed.sources),
            max_bytes=options.max_bytes,
            consumers=[delivery.client.consumer for _, delivery in self._feed.sources],
            cancelling=self.cancelling,
        )
        leases = Leases(1)
        try:
            for made in batches:
                tally.add_depth("batches", batches.num_ready)
                if batches.num_threads > self._num_threads:
                    self._num_threads, self._num_spare = batches.num_threads, 0  # from the start, the next time
                    self._tell_crew(tally)
                leases.hold(made.held)
                yield self._pinned(made.batch), made.num_samples
                leases.release()  # the caller asks for the next batch: the paths of this one are past
        finally:
            batches.close()
            leases.release()

    def _from_workers(self, start: Sequence[int], tally: Tally) -> Iterator[tuple[Any, int]]:
        for k, each in enumerate(start):
            self._where[FIRST + k] = each
        if self._budget is not None:
            self._budget.begin()
        if self._workers is None:
            self._workers = self._make_workers()
        envelopes = _started(self._workers)
        stay = False
        try:
            for envelope in _received(envelopes, self._options.timeout):
                tally.add_depth("batches", _num_ready(envelopes))
                if self._budget is not None:
                    self._budget.take(envelope.num_bytes)
                self._take_home(envelope)
                stay = self._options.persistent_workers  # for the next epoch; not after an error, theirs or torch's
                yield envelope.batch, envelope.num_samples
                stay = False
        finally:
            if not stay:
                self._workers = None
                end_workers(envelopes)
                self._end_logs()

    def _take_home(self, envelope: Envelope) -> None:
        """Counts what a worker counted, and raises its error, or that there were too many failures."""
        sources = self._feed.sources
        if self.trace is not None and envelope.slices:
            self.trace.add(envelope.slices)
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

    def _make_workers(self) -> WorkerLoader:
        options = self._options
        self._end_logs()
        self._logs = Forwarding(World.detect().rank)
        return WorkerLoader(
            StepStream(
                self._feed,
                where=self._where,
                num_held=options.prefetch_batches + 2,
                budget=self._budget,
                log=self._logs.sender,
            ),
            self.cancelling,
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
        self._end_logs()

    def _end_logs(self) -> None:
        logs, self._logs = self._logs, None
        if logs is not None:
            logs.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_workers": None, "_logs": None, "trace": None}


def _started(workers: WorkerLoader) -> Iterator[Envelope]:
    try:
        return iter(workers)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise OptionError(
            f"worker processes cannot be started: {error}",
            hint="what is spawned is pickled: define transforms and collate_fn at the top of a module, "
            "or use multiprocessing_context='fork', or num_workers=0",
        ) from error
    except RuntimeError as error:
        if "bootstrapping phase" not in str(error):
            raise
        raise OptionError(
            "this is a worker process, which ran the whole script again",
            hint="spawned workers import the script: put what it does under `if __name__ == '__main__':`",
        ) from None  # Python's own words are about executables that are frozen


def _num_ready(envelopes: Any) -> int:
    """Batches that workers have made and nobody has taken: torch counts what it was sent out of turn, too."""
    in_order = sum(len(task) == 2 for task in envelopes._task_info.values())
    return in_order + int(envelopes._data_queue.qsize())


def _received(envelopes: Iterator[Envelope], timeout_s: float) -> Iterator[Envelope]:
    """What workers send; torch has words for a worker's death, but not for one in the middle of a batch."""
    try:
        yield from envelopes
    except (EOFError, OSError) as error:
        raise SdsError(
            f"a worker process died while it sent a batch: {error!r}",
            hint="was it killed, for want of memory? the loader goes on from its state_dict()",
        ) from error
    except RuntimeError as error:
        if "timed out" not in str(error):
            raise
        raise FetchTimeout(
            f"no batch in {timeout_s:g} s from the worker processes",
            hint="is the store slow, or a transform stuck? raise the loader's timeout, or leave it out",
        ) from error


def _can_pin() -> bool:
    """Whether there is a device for which memory could be page-locked; torch, too, goes on without one."""
    accelerator = getattr(torch, "accelerator", torch.cuda)  # torch.accelerator is new in 2.6
    if not accelerator.is_available():
        log.warning("pin_memory=True does nothing here: there is no accelerator")
        return False
    return True
