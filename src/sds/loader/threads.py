"""Batches made in the background of this process: a feeding thread, decode threads, delivery in order.

Decoders release the GIL, so threads decode side by side; the caller's thread only takes finished batches. Where
samples take long, spare threads join: one decodes while another waits to get the GIL back. At most `ahead` batches
wait, and as many are being made; fewer, where they would be more than `max_bytes`. Closing ends the threads, mid-step,
and lets go of every file. Nobody is kept waiting by a transform that runs: it ends by itself.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import cast

from sds.dataset.slots import Slot
from sds.errors import FetchTimeout, SdsError
from sds.fetch import Ticket
from sds.fetch.consumer import Consumer, Crew
from sds.fetch.watchdog import Watchdog
from sds.loader.budget import num_bytes
from sds.loader.slabs import Slabs
from sds.loader.steps import Batches, StepJob, finish_step, name_stream
from sds.types import Sample
from sds.urls import redact

__all__ = ["Cancelling", "ThreadedBatches", "cancelled"]

_POLL_S = 0.1
_SOON_S = 0.5  # who closes waits no longer for what runs
_LONG_S = 200e-6  # of a processor's time for a row: with less, spare threads would only stand in each other's way
_NUM_LONG = 3  # steps in a row that took so long: a single one may have loaded a module


class Cancelling:
    """Whether another thread ends the iteration."""

    is_set = False


def cancelled() -> SdsError:
    """What a caller gets that waits for a batch, when another thread ends the iteration."""
    hint = "begin another one: it goes on as after leaving a loop"
    return SdsError("the iteration was cancelled by another thread", hint=hint, stage="loader")


class _Step:
    """A step whose slots are being filled: each thread takes the next part, until there are no more."""

    def __init__(self, job: StepJob, pool: ThreadPoolExecutor, crew: Crew, slabs: Slabs) -> None:
        self.job = job
        self.held: list[Ticket] = []
        self._crew = crew
        self._parts = job.parts(pool._max_workers, slabs)
        self._todo = deque(range(len(self._parts)))
        self._made: list[list[Sample] | None] = [None] * len(self._parts)
        self._errors: dict[int, BaseException] = {}  # by part
        self._cpu_s = [0.0] * len(self._parts)
        num_threads = min(pool._max_workers, len(self._parts))
        self._filling: list[Future[None]] = [pool.submit(self._fill) for _ in range(num_threads)]

    def _fill(self) -> None:
        while True:
            try:
                k = self._todo.popleft()
            except IndexError:
                return
            start = time.thread_time()
            try:
                with self._crew.working():
                    self._made[k] = self.job.fill(self._parts[k], self.held, is_shared=True)
                self._cpu_s[k] = time.thread_time() - start
            except BaseException as error:
                self._errors[k] = error
                self._todo.clear()
                raise  # who waits is woken

    @property
    def is_filled(self) -> bool:
        """Whether nothing is left but to make a batch of it, or to raise the error of the first that has one."""
        if self._errors and all(part is not None for part in self._made[: self._first_error]):
            return True  # whatever threads still do with others
        return all(thread.done() for thread in self._filling)

    def wait(self, timeout_s: float) -> bool:
        """Whether it is filled, after that long at most."""
        wait(self._filling, timeout_s, ALL_COMPLETED if self._errors else FIRST_EXCEPTION)
        return self.is_filled

    @property
    def takes_long(self) -> bool:
        """Whether its rows took so much of the processor that spare threads are worth it."""
        num_samples = sum(len(part) for part in self._made if part is not None)
        return sum(self._cpu_s) > _LONG_S * max(len(self.job.slots), num_samples)  # some are dropped, or fanned out

    def samples(self) -> list[Sample]:
        """What its slots became, or the error of the first of them that could not be filled."""
        if self._errors:
            raise self._errors[self._first_error]
        return [sample for part in self._made for sample in cast(list[Sample], part)]

    @property
    def _first_error(self) -> int:
        return min(list(self._errors))  # a copy: threads may add to it

    @property
    def late(self) -> Slot | None:
        """The first slot that is not filled."""
        part = next((part for part, made in zip(self._parts, self._made, strict=True) if made is None), None)
        if part is None or not self.job.slots:
            return None
        return self.job.slots[self.job.in_hand.get(part.start, part.start)]

    def cancel(self) -> None:
        """Lets go of the files; a thread that waits for one is woken by that."""
        self._todo.clear()
        for thread in self._filling:
            thread.cancel()
        self.job.release()
        for ticket in self.held:
            ticket.release()


class ThreadedBatches:
    """An iterator of finished steps, made ahead in threads. Close it, or exhaust it."""

    def __init__(
        self,
        steps: Iterator[StepJob],
        num_threads: int,
        ahead: int,
        *,
        num_spare: int = 0,
        timeout_s: float = 0,
        warn_after_s: float = 60,
        max_bytes: float = math.inf,
        consumers: Iterable[Consumer] = (),
        cancelling: Cancelling | None = None,
    ) -> None:
        self._steps = steps
        self._ahead = ahead
        self._num_spare = num_spare
        self._num_long = 0  # steps that took long, in a row
        self._timeout_s = timeout_s
        self._warn_after_s = warn_after_s
        self._max_bytes = max_bytes
        self._cancelling = cancelling or Cancelling()
        self._sizes: dict[str | None, int] = {}  # bytes of the last batch of each stream
        self._waiting: deque[int] = deque()  # bytes of the batches that wait
        self._stopping = threading.Event()
        self._is_left = False  # a thread of its own waits for what runs
        self._making: deque[_Step] = deque()
        self._finished: queue.Queue[Batches | BaseException | None] = queue.Queue(maxsize=max(1, ahead))
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="sds-decode")
        self._crew = Crew()
        self._slabs = Slabs()
        self._consumers = list(consumers)
        for consumer in self._consumers:
            consumer.employ(self._crew)
        self._feeder = threading.Thread(target=self._feed, name="sds-feed", daemon=True)
        _running.add(self)  # first: Ctrl-C may come while the thread starts
        self._feeder.start()

    def __iter__(self) -> Iterator[Batches]:
        return self

    def __next__(self) -> Batches:
        since = time.monotonic()
        watchdog = Watchdog("the next batch", self._warn_after_s, math.inf, stage="loader")
        while True:
            try:
                item = self._finished.get(timeout=_POLL_S)
            except queue.Empty:
                if watchdog.is_due:
                    watchdog.bark(self._waits_for()[0])
                if self._timeout_s and time.monotonic() - since > self._timeout_s:
                    item = self._too_late()
                elif self._cancelling.is_set:
                    item = cancelled()
                elif self._feeder.is_alive() or not self._finished.empty():
                    continue
                else:
                    item = None
            if isinstance(item, Batches):
                self._waiting.popleft()
                return item
            self.close()
            if item is None:
                raise StopIteration
            raise item

    @property
    def num_threads(self) -> int:
        """Threads that decode, or would if there were enough to do."""
        return self._pool._max_workers

    @property
    def num_ready(self) -> int:
        """Batches that are finished and wait."""
        return self._finished.qsize()

    def _waits_for(self) -> tuple[str, str | None, str | None]:
        """What the next batch waits for: in words, the id of the sample, and the first of its URLs."""
        steps = list(self._making)
        late = steps[0].late if steps else None
        key, urls = (None, []) if late is None else (late.job.row.key, [redact(file.url) for file in late.job.files])
        return f"it waits for sample {key!r} {urls}", key, urls[0] if urls else None

    def _too_late(self) -> FetchTimeout:
        words, key, url = self._waits_for()
        late = next((step.job.stream for step in list(self._making)), None)
        error = FetchTimeout(
            f"no batch in {self._timeout_s:g} s: {words}",
            hint="is the store slow, or a transform stuck? raise the loader's timeout, or leave it out",
            url=url,
            key=key,
        )
        name_stream(error, late)
        return error

    def close(self) -> None:
        """Ends the threads; what runs for longer ends by itself. It may be interrupted, and called again."""
        self._stopping.set()
        if self._is_left:
            return
        if self._end_threads(_SOON_S):
            self._let_go()
        else:
            self._is_left = True
            threading.Thread(target=self._close_late, name="sds-end", daemon=True).start()

    def _close_late(self) -> None:
        self._end_threads(None)
        self._let_go()

    def _end_threads(self, patience_s: float | None) -> bool:
        """Whether all have ended."""
        deadline = None if patience_s is None else time.monotonic() + patience_s
        feeder = [self._feeder] if self._feeder.ident is not None else []
        if not _have_ended(feeder, deadline):
            return False
        self._pool.shutdown(wait=False, cancel_futures=True)
        return _have_ended(list(self._pool._threads), deadline)

    def _let_go(self) -> None:
        """When no thread takes any more."""
        for consumer in self._consumers:
            consumer.dismiss(self._crew)
        for step in self._making:  # what the decode threads took before they ended
            step.cancel()
        while True:
            try:
                item = self._finished.get_nowait()
            except queue.Empty:
                break
            if isinstance(item, Batches):
                for ticket in item.held:
                    ticket.release()
        _running.discard(self)

    def _feed(self) -> None:
        with self._crew.working():
            self._make_all()

    def _make_all(self) -> None:
        making = self._making
        try:
            for job in self._steps:
                making.append(_Step(job, self._pool, self._crew, self._slabs))
                # while this thread collates the oldest step, the pool decodes the others
                while self._is_due():
                    if not self._hand_over():
                        return
            while making:
                if not self._hand_over():
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 (a thread boundary: the caller's thread raises it)
            self._put(error)
        finally:
            for step in making:
                step.cancel()
            self._steps.close()  # type: ignore[attr-defined]  # a generator

    def _is_due(self) -> bool:
        """Whether the oldest step comes before the next one is begun: it is done, or there are enough of them."""
        making = self._making
        if making and making[0].is_filled and not self._finished.full():
            return True  # to find out what comes next may take long
        return len(making) > self._ahead or (len(making) > 1 and not self._has_room())

    def _has_room(self) -> bool:
        """Whether another step may be begun, by the size that batches of these streams usually have."""
        return sum(self._waiting) + sum(self._sizes.get(step.job.stream, 0) for step in self._making) < self._max_bytes

    def _hand_over(self) -> bool:
        step = self._making[0]
        try:
            made = self._finish(step)
        except BaseException as error:
            name_stream(error, step.job.stream)
            raise
        if made is None:
            return False
        self._making.popleft()
        del step  # its samples, while the batch waits to be taken
        return self._put(made)

    def _finish(self, step: _Step) -> Batches | None:
        """The batch of a step, when its slots are filled; None if nobody wants it any more."""
        if not step.is_filled:
            with self._crew.resting():
                while not step.wait(_POLL_S):
                    if self._stopping.is_set():
                        return None
        self._call_spare(step)
        made = finish_step(step.job, step.samples(), step.held)
        for ticket in step.held:
            ticket.hand_to(None)
        return made

    def _call_spare(self, step: _Step) -> None:
        """Has spare threads join, once steps have taken long for a while."""
        self._num_long = self._num_long + 1 if self._num_spare and step.takes_long else 0
        if self._num_long == _NUM_LONG:
            self._pool._max_workers += self._num_spare  # it starts them when there is more to do
            self._num_spare = 0

    def _put(self, item: Batches | BaseException | None) -> bool:
        if isinstance(item, Batches):
            size = num_bytes(item.batch) if self._max_bytes < math.inf else 0
            self._sizes[item.stream] = size
            while self._waiting and sum(self._waiting) + size > self._max_bytes and not self._stopping.is_set():
                self._stopping.wait(_POLL_S / 10)
            self._waiting.append(size)
        while not self._stopping.is_set():
            try:
                self._finished.put(item, timeout=_POLL_S)
                return True
            except queue.Full:
                continue
        if isinstance(item, Batches):
            for ticket in item.held:
                ticket.release()
        return False


def _have_ended(threads: Iterable[threading.Thread], deadline: float | None) -> bool:
    """Waits for them, until then at most."""
    for thread in threads:
        thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            return False
    return True


_running: weakref.WeakSet[ThreadedBatches] = weakref.WeakSet()


def _close_all() -> None:
    """Ends what an interrupted program left running: Python would wait for its decode threads, and they for files."""
    for batches in list(_running):
        batches.close()


# before concurrent.futures joins its threads, which is what an earlier registration (its own) does later
threading._register_atexit(_close_all)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_running.clear)  # a child has none of these threads
