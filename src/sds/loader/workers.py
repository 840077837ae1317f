"""Batches made in torch worker processes: worker w of W makes the steps s = w (mod W), and torch keeps their order.

What crosses to the main process is an Envelope: the batch, or the error, and what the worker counted on the way. Where
to begin is read from a block that the main process writes before each epoch, so persistent workers follow too. A worker
does not end by itself: the files that its last batches name are its to hold while the caller has them.
"""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import msgspec
from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data._utils.signal_handling import _remove_worker_pids  # type: ignore[attr-defined]

from sds.dataset.leases import Leases
from sds.dataset.shared import SharedBlock
from sds.dataset.workers import worker_identity
from sds.errors import SdsError, TransformError
from sds.fetch import Ticket
from sds.loader.feeds import Feed
from sds.loader.steps import Batches, StepJob, finish_step, name_stream
from sds.types import Failure, Sample

__all__ = ["Envelope", "StepStream", "WorkerTraceback", "end_workers"]

IS_PAUSED, FIRST = 0, 1  # places in the block that is shared: a flag, and the first integer of a start
_GRACE_S = 0.25  # that workers have to end by themselves


class Report(msgspec.Struct):
    """What one source of a feed counted in a worker since the last report."""

    counts: dict[str, dict[str, float]]
    failures: list[Failure]
    num_attempts: int
    first: SdsError | None


class Envelope(msgspec.Struct):
    """One step from a worker, with the reports of all sources."""

    batch: Any
    num_samples: int
    error: SdsError | None
    trace: str
    reports: list[Report]

    def pin_memory(self) -> Envelope:
        """Called by torch, which looks into no object that it does not know."""
        self.batch = pin_memory(self.batch)  # type: ignore[no-untyped-call]
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {field: getattr(self, field) for field in self.__struct_fields__}
        try:
            batch = bytes(ForkingPickler.dumps(facts.pop("batch")))
        except Exception as error:  # noqa: BLE001 (a process boundary: torch would drop the batch and wait for ever)
            batch = pickle.dumps(None)
            facts["error"] = TransformError(
                f"batch cannot be sent from its worker process: {error!r}",
                hint="samples are made of tensors, arrays, numbers and text; or use num_workers=0",
                stage="collate",
            )
        return _opened, (batch, facts)


def _opened(batch: bytes, facts: dict[str, Any]) -> Envelope:
    return Envelope(batch=pickle.loads(batch), **facts)  # noqa: S301 (from our own worker, as all that torch passes)


def end_workers(envelopes: Any) -> None:
    """Ends torch's workers, whatever they wait for. Torch would wait for each of them, up to five seconds, in turn.

    What a worker holds is let go of by the kernel: nothing is lost with one that does not end by itself.
    """
    timer = threading.Timer(_GRACE_S, _terminate, [envelopes])
    timer.daemon = True
    timer.start()
    try:
        envelopes._shutdown_workers()
    finally:
        timer.cancel()


def _terminate(envelopes: Any) -> None:
    if envelopes._worker_pids_set:  # or torch takes their end for a failure
        _remove_worker_pids(id(envelopes))
        envelopes._worker_pids_set = False
    for worker in envelopes._workers:
        if worker.is_alive():
            worker.terminate()


class WorkerTraceback(Exception):
    """The traceback of an error that happened in a worker process. No error of its own: it shows where it was."""


class StepStream(IterableDataset[Envelope]):
    """The steps of a feed, as torch workers make them."""

    def __init__(self, feed: Feed, *, where: SharedBlock, num_held: int) -> None:
        self._feed = feed
        self._where = where
        self._num_held = num_held

    def __iter__(self) -> Iterator[Envelope]:
        try:
            yield from self._steps()
        except Exception as error:  # noqa: BLE001 (a process boundary: the main process raises it)
            yield self._envelope(None, 0, error)

    def _steps(self) -> Iterator[Envelope]:
        worker, num_workers = worker_identity()
        self._feed.follow()
        for _, delivery in self._feed.sources:
            delivery.client.consumer.follow(lambda: bool(self._where[IS_PAUSED]))
        start = [self._where[k] for k in range(FIRST, len(self._where))]
        leases = Leases(self._num_held)
        jobs = self._feed.steps(start, worker, num_workers)
        try:
            for step in jobs:
                made = _made(step)
                leases.hold(made.held)
                yield self._envelope(made.batch, made.num_samples)
            while True:  # torch asks ahead of the caller; nobody takes these
                yield self._envelope(None, 0)
        finally:
            jobs.close()  # type: ignore[attr-defined]  # a generator
            leases.release()

    def _envelope(self, batch: Any, num_samples: int, error: Exception | None = None) -> Envelope:
        reports = [Report(delivery.tally.drain(), *delivery.policy.drain()) for _, delivery in self._feed.sources]
        trace = "" if error is None else "".join(traceback.format_exception(error))
        if error is not None and not isinstance(error, SdsError):
            error = TransformError(
                f"step failed: {error!r}", hint="look at collate_fn and the transforms", stage="collate"
            )
        return Envelope(batch, num_samples, error, trace, reports)


def _made(step: StepJob) -> Batches:
    """One step, slot by slot."""
    held: list[Ticket] = []
    samples: list[Sample] = []
    try:
        for slot in step.slots:
            samples += slot.fill(held)
        return finish_step(step, samples, held)
    except BaseException as error:
        step.release()
        for ticket in held:
            ticket.release()
        name_stream(error, step.stream)
        raise
