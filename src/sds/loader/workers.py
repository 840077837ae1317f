"""Batches made in torch worker processes: worker w of W makes the steps s = w (mod W), and torch keeps their order.

What crosses to the main process is an Envelope: the batch, or the error, and what the worker counted on the way. Where
to begin is read from a block that the main process writes before each epoch, so persistent workers follow too. A worker
does not end by itself: the files that its last batches name are its to hold while the caller has them.
"""

from __future__ import annotations

import gc
import io
import pickle
import threading
import time
import traceback
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import msgspec
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data._utils.signal_handling import _remove_worker_pids  # type: ignore[attr-defined]
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from sds.dataset.leases import Leases
from sds.dataset.shared import SharedBlock
from sds.dataset.workers import worker_identity
from sds.errors import SdsError, TransformError
from sds.events import Counted, Recorder, Slice
from sds.fetch import Ticket
from sds.loader.budget import Budget, num_bytes
from sds.loader.feeds import Feed
from sds.loader.forwarding import Sender
from sds.loader.slabs import Slabs
from sds.loader.steps import Batches, StepJob, finish_step, name_stream
from sds.loader.threads import Cancelling, cancelled
from sds.types import Failure, Sample

__all__ = ["Envelope", "StepStream", "WorkerLoader", "WorkerTraceback", "end_workers"]

IS_PAUSED, IS_HEARD, FIRST = 0, 1, 2  # places in the block that is shared: flags, and the first integer of a start
_GRACE_S = 0.25  # that workers have to end by themselves
_POLL_S = 0.1
_PLAIN = frozenset((str, bytes, int, float, bool, type(None)))
_MAX_LOOKS = 256  # lists and dicts that are looked into: more cost more than a copy, and pickle cannot go deep


class Report(msgspec.Struct):
    """What one source of a feed counted in a worker since the last report."""

    counts: Counted
    failures: list[Failure]
    num_attempts: int
    first: SdsError | None


class Envelope(msgspec.Struct):
    """One step from a worker, with the reports of all sources, and each piece of work if somebody listens."""

    batch: Any
    num_samples: int
    error: SdsError | None
    trace: str
    reports: list[Report]
    slices: list[Slice] = []
    num_bytes: int = 0

    def pin_memory(self) -> Envelope:
        """Called by torch, which looks into no object that it does not know."""
        self.batch = pin_memory(self.batch)  # type: ignore[no-untyped-call]
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {field: getattr(self, field) for field in self.__struct_fields__}
        if _is_plain(self.batch):  # it is sent as it is: in a pickle of its own, its bytes would be copied thrice more
            return Envelope, tuple(facts.values())
        try:
            buffer = io.BytesIO()
            ForkingPickler(buffer).dump(facts.pop("batch"))
            batch = buffer.getvalue()
        except Exception as error:  # noqa: BLE001 (a process boundary: torch would drop the batch and wait for ever)
            batch = pickle.dumps(None)
            facts["error"] = TransformError(
                f"batch cannot be sent from its worker process: {error!r}",
                hint="samples are made of tensors, arrays, numbers and text; or use num_workers=0",
                stage="collate",
            )
        return _opened, (batch, facts)


def _is_plain(batch: Any) -> bool:
    """Whether it is made of text, bytes and numbers alone, in a few lists and dicts: that can always be sent."""
    left, num = [batch], 0
    while left:
        value = left.pop()
        num += 1
        if type(value) is dict and _PLAIN.issuperset(map(type, value)):
            inner = list(value.values())
        elif type(value) in (list, tuple):
            inner = value
        elif type(value) in _PLAIN:
            continue
        else:
            return False
        if num > _MAX_LOOKS:
            return False
        if not _PLAIN.issuperset(map(type, inner)):
            left += [each for each in inner if type(each) not in _PLAIN]
    return True


def _opened(batch: bytes, facts: dict[str, Any]) -> Envelope:
    return Envelope(batch=pickle.loads(batch), **facts)  # noqa: S301 (from our own worker, as all that torch passes)


class _Attended(_MultiProcessingDataLoaderIter):
    """Torch's iterator of workers, but in any thread a worker's death and a cancel are noticed soon.

    Torch hears of deaths by a signal if it starts workers in the main thread; elsewhere it looks every five seconds.
    """

    def __init__(self, loader: WorkerLoader) -> None:
        self._cancelling = loader.cancelling
        super().__init__(loader)

    def _try_get_data(self, timeout: float = 5.0) -> tuple[bool, Any]:
        deadline = time.monotonic() + timeout
        while True:
            if self._cancelling.is_set:
                raise cancelled()
            left_s = deadline - time.monotonic()
            found: tuple[bool, Any] = super()._try_get_data(max(0.0, min(_POLL_S, left_s)))  # type: ignore[no-untyped-call]
            if found[0] or left_s <= _POLL_S:
                return found


class WorkerLoader(DataLoader[Envelope]):
    """Torch's loader of what workers make, whose iteration another thread can end."""

    def __init__(self, steps: StepStream, cancelling: Cancelling, **options: Any) -> None:
        super().__init__(steps, **options)
        self.cancelling = cancelling

    def _get_iterator(self) -> _Attended:
        self.check_worker_number_rationality()
        return _Attended(self)


def end_workers(envelopes: Any) -> None:
    """Ends torch's workers, whatever they wait for. Torch would wait for each of them, up to five seconds, in turn.

    What a worker holds is let go of by the kernel: nothing is lost with one that does not end by itself.
    """
    if envelopes._worker_pids_set:  # or torch takes their end for a failure, and raises in whatever runs just then
        _remove_worker_pids(id(envelopes))
        envelopes._worker_pids_set = False
    timer = threading.Timer(_GRACE_S, _terminate, [envelopes])
    timer.daemon = True
    timer.start()
    try:
        envelopes._shutdown_workers()
    finally:
        timer.cancel()


def _terminate(envelopes: Any) -> None:
    for worker in envelopes._workers:
        if worker.is_alive():
            worker.terminate()


class WorkerTraceback(Exception):
    """The traceback of an error that happened in a worker process. No error of its own: it shows where it was."""


class StepStream(IterableDataset[Envelope]):
    """The steps of a feed, as torch workers make them."""

    def __init__(
        self,
        feed: Feed,
        *,
        where: SharedBlock,
        num_held: int,
        budget: Budget | None = None,
        log: Sender | None = None,
    ) -> None:
        self._feed = feed
        self._where = where
        self._budget = budget
        self._num_held = num_held
        self._recorder: Recorder | None = None
        self._log = log
        self._is_frozen = False

    def __iter__(self) -> Iterator[Envelope]:
        try:
            yield from self._steps()
        except Exception as error:  # noqa: BLE001 (a process boundary: the main process raises it)
            yield self._envelope(None, 0, error)

    def _steps(self) -> Iterator[Envelope]:
        worker, num_workers = worker_identity()
        if not self._is_frozen:
            self._is_frozen = True
            gc.freeze()  # what the parent had: to look for garbage in it would copy its memory, page by page
        self._feed.follow()
        if self._log is not None:
            self._log.install(worker)
        for _, delivery in self._feed.sources:
            delivery.client.consumer.follow(lambda: bool(self._where[IS_PAUSED]))
        self._recorder = Recorder() if self._where[IS_HEARD] else None
        for _, delivery in self._feed.sources:
            delivery.tally.probe = self._recorder
        start = [self._where[k] for k in range(FIRST, len(self._where))]
        leases, slabs = Leases(self._num_held), Slabs(is_shared=True)
        jobs = self._feed.steps(start, worker, num_workers)
        try:
            for k, step in enumerate(jobs):
                made = _made(step, slabs)
                leases.hold(made.held)
                envelope = self._envelope(made.batch, made.num_samples)
                if self._budget is not None:
                    envelope.num_bytes = num_bytes(made.batch)
                    self._budget.wait(worker, worker + k * num_workers, envelope.num_bytes)
                yield envelope
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
        slices = self._recorder.take() if self._recorder is not None else []
        return Envelope(batch, num_samples, error, trace, reports, slices)


def _made(step: StepJob, slabs: Slabs) -> Batches:
    """One step, slot by slot."""
    held: list[Ticket] = []
    samples: list[Sample] = []
    try:
        for part in step.parts(1, slabs):
            samples += step.fill(part, held)
        return finish_step(step, samples, held)
    except BaseException as error:
        step.release()
        for ticket in held:
            ticket.release()
        name_stream(error, step.stream)
        raise
