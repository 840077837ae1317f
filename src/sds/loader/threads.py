"""Batches made in the background of this process: a feeding thread, decode threads, delivery in order.

Decoders release the GIL, so threads decode side by side; the caller's thread only takes finished batches. At most
`ahead` batches wait, and as many are being made. Closing ends the threads, mid-step, and lets go of every file.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

from sds.dataset.delivery import Delivery
from sds.errors import FetchTimeout
from sds.fetch import Ticket
from sds.loader.steps import Batches, Collate, StepJob, finish_step
from sds.types import Sample

__all__ = ["ThreadedBatches"]

_POLL_S = 0.1


class _Step:
    """A step whose slots are being filled."""

    def __init__(self, job: StepJob, pool: ThreadPoolExecutor, delivery: Delivery) -> None:
        self.job = job
        self.held: list[Ticket] = []
        self.slots: list[Future[list[Sample]]] = [
            pool.submit(delivery.fill, each, ticket, self.held) for each, ticket in job.slots
        ]

    def cancel(self) -> None:
        """Lets go of the files; a thread that waits for one is woken by that."""
        for slot in self.slots:
            slot.cancel()
        for ticket in [*(ticket for _, ticket in self.job.slots), *self.held]:
            ticket.release()


class ThreadedBatches:
    """An iterator of finished steps, made ahead in threads. Close it, or exhaust it."""

    def __init__(
        self,
        delivery: Delivery,
        steps: Iterator[StepJob],
        collate: Collate,
        num_threads: int,
        ahead: int,
        timeout_s: float = 0,
    ) -> None:
        self._delivery = delivery
        self._steps = steps
        self._collate = collate
        self._ahead = ahead
        self._timeout_s = timeout_s
        self._stopping = threading.Event()
        self._making: deque[_Step] = deque()
        self._finished: queue.Queue[Batches | BaseException | None] = queue.Queue(maxsize=max(1, ahead))
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="sds-decode")
        self._feeder = threading.Thread(target=self._feed, name="sds-feed", daemon=True)
        self._feeder.start()

    def __iter__(self) -> Iterator[Batches]:
        return self

    def __next__(self) -> Batches:
        since = time.monotonic()
        while True:
            try:
                item = self._finished.get(timeout=_POLL_S)
            except queue.Empty:
                if self._timeout_s and time.monotonic() - since > self._timeout_s:
                    item = self._too_late()
                elif self._feeder.is_alive() or not self._finished.empty():
                    continue
                else:
                    item = None
            if isinstance(item, Batches):
                return item
            self.close()
            if item is None:
                raise StopIteration
            raise item

    def _too_late(self) -> FetchTimeout:
        """Names what the next batch waits for."""
        steps = list(self._making)
        slots = zip(steps[0].slots, steps[0].job.slots, strict=True) if steps else ()
        waits = next((job for future, (job, _) in slots if not future.done()), None)
        key, urls = (waits.row.key, [url for url, _ in waits.files]) if waits is not None else (None, [])
        return FetchTimeout(
            f"no batch in {self._timeout_s:g} s: it waits for sample {key!r} {urls}",
            hint="is the store slow, or a transform stuck? raise the loader's timeout, or leave it out",
            url=urls[0] if urls else None,
            key=key,
        )

    def close(self) -> None:
        """Ends the threads."""
        self._stopping.set()
        self._feeder.join()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for step in self._making:  # what the decode threads took before they ended
            step.cancel()
        while True:
            try:
                item = self._finished.get_nowait()
            except queue.Empty:
                return
            if isinstance(item, Batches):
                for ticket in item.held:
                    ticket.release()

    def _feed(self) -> None:
        making = self._making
        try:
            for job in self._steps:
                making.append(_Step(job, self._pool, self._delivery))
                # while this thread collates the oldest step, the pool decodes the others
                if len(making) > self._ahead and not self._hand_over():
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

    def _hand_over(self) -> bool:
        step = self._making[0]
        samples: list[Sample] = []
        for slot in step.slots:
            while not slot.done():
                if self._stopping.is_set():
                    return False
                wait([slot], timeout=_POLL_S)
            samples += slot.result()
        made = finish_step(self._delivery, step.job, samples, step.held, self._collate)
        self._making.popleft()
        return self._put(made)

    def _put(self, item: Batches | BaseException | None) -> bool:
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
