"""Batches made in torch worker processes: worker w of W makes the steps s = w (mod W), and torch keeps their order.

What crosses to the main process is an Envelope: the batch, or the error, and what the worker counted on the way. Where
to begin is read from a block that the main process writes before each epoch, so persistent workers follow too. A worker
does not end by itself: the files that its last batches name are its to hold while the caller has them.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import msgspec
from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from sds.dataset import StreamingDataset
from sds.dataset.leases import Leases
from sds.dataset.shared import SharedBlock
from sds.dataset.workers import worker_identity
from sds.errors import SdsError, TransformError
from sds.fetch import Ticket
from sds.loader.steps import Collate, finish_step, step_jobs
from sds.types import Failure, Sample
from sds.world import World

__all__ = ["Envelope", "StepStream", "WorkerTraceback"]

EPOCH, POSITION = 0, 1


class Envelope(msgspec.Struct):
    """One step from a worker."""

    batch: Any
    num_samples: int
    error: SdsError | None
    trace: str
    counts: dict[str, dict[str, float]]
    failures: list[Failure]
    num_attempts: int
    first: SdsError | None

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


class WorkerTraceback(Exception):
    """The traceback of an error that happened in a worker process. No error of its own: it shows where it was."""


class StepStream(IterableDataset[Envelope]):
    """The steps of a dataset, as torch workers make them."""

    def __init__(
        self,
        dataset: StreamingDataset,
        collate: Collate,
        *,
        batch_size: int,
        drop_last: bool,
        world: World,
        where: SharedBlock,
        num_held: int,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._world = world
        self._where = where
        self._num_held = num_held

    def __iter__(self) -> Iterator[Envelope]:
        try:
            yield from self._steps()
        except Exception as error:  # noqa: BLE001 (a process boundary: the main process raises it)
            yield self._envelope(None, 0, error)

    def _steps(self) -> Iterator[Envelope]:
        worker, num_workers = worker_identity()
        dataset = self._dataset
        dataset.follow_seed()
        delivery = dataset.delivery
        epoch, start = self._where[EPOCH], self._where[POSITION]
        plan, _, _ = dataset.share(self._world)
        todo = dataset.steps(self._world, epoch, start, self._batch_size, self._drop_last)
        mine = range(worker, len(todo), num_workers)
        leases = Leases(self._num_held)
        jobs = step_jobs(delivery, plan, epoch, todo, mine, *dataset.window)
        try:
            for step in jobs:
                held: list[Ticket] = []
                samples: list[Sample] = []
                try:
                    for job, ticket in step.slots:
                        samples += delivery.fill(job, ticket, held)
                    made = finish_step(delivery, step, samples, held, self._collate)
                except BaseException:
                    for ticket in [*(ticket for _, ticket in step.slots), *held]:
                        ticket.release()
                    raise
                leases.hold(held)
                yield self._envelope(made.batch, made.num_samples)
            while True:  # torch asks ahead of the caller; nobody takes these
                yield self._envelope(None, 0)
        finally:
            jobs.close()  # type: ignore[attr-defined]  # a generator
            leases.release()

    def _envelope(self, batch: Any, num_samples: int, error: Exception | None = None) -> Envelope:
        delivery = self._dataset.delivery
        failures, num_attempts, first = delivery.policy.drain()
        counts = delivery.tally.drain()
        trace = "" if error is None else "".join(traceback.format_exception(error))
        if error is not None and not isinstance(error, SdsError):
            error = TransformError(
                f"step failed: {error!r}", hint="look at collate_fn and the transforms", stage="collate"
            )
        return Envelope(batch, num_samples, error, trace, counts, failures, num_attempts, first)
