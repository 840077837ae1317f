"""One step: slots -> the batch that this rank hands out for it. What threads and workers share.

A row that fails or fans out stays inside its step: a failed one is replaced by a stand-in, several samples of one row
come one after the other, and a step whose samples were all dropped gets one stand-in, so that ranks stay equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from sds.dataset.slots import Slot, Work, open_window
from sds.errors import SdsError, TensorCacheError, TransformError
from sds.fetch import Ticket
from sds.loader.collate import collate
from sds.tensors.gather import Gathered, can_gather
from sds.types import Sample

__all__ = ["Batches", "Collate", "StepJob", "finish_step", "name_stream", "step_jobs", "take_slots"]

Collate = Callable[[list[Sample]], Any]

_MAX_PART = 32  # slots that one thread fills one after the other


class StepJob(msgspec.Struct):
    """One step on its way: its slots, how they are collated, and the stream they are of, if that has a name."""

    number: int
    slots: list[Slot]
    collate: Collate
    stream: str | None = None
    gathered: Gathered | None = None

    def parts(self, num_threads: int) -> list[range]:
        """The slots, as ranges for `fill` that threads may make side by side."""
        num = len(self.slots)
        self.gathered = _gather(self.slots, is_batch=self.collate is collate)
        if self.gathered is None:
            size = 1
        elif self.gathered.memory:
            size = num  # nothing is left to be decoded: threads would only wait for each other's Python
        else:
            size = min(_MAX_PART, -(-num // num_threads))
        return [range(start, min(num, start + size)) for start in range(0, num, size)]

    def fill(self, part: range, held: list[Ticket]) -> list[Sample]:
        """The samples of some slots; those of a tensor cache are read together."""
        if self.gathered is not None:
            start = time.perf_counter()
            try:
                self.gathered.read(part.start, part.stop)
                for k in part:
                    self.slots[k].job.entry = partial(self.gathered.sample, k)
            except TensorCacheError:
                pass  # each is read for itself, and the one that cannot be is counted
            self.slots[part.start].delivery.tally.add_busy("decode", start)
        return [sample for k in part for sample in self.slots[k].fill(held)]

    def release(self) -> None:
        """Lets go of the files."""
        for slot in self.slots:
            slot.ticket.release()


class Batches(msgspec.Struct):
    """A finished step: the batch, how many samples are in it, and the tickets of files that it still names."""

    batch: Any
    num_samples: int
    held: list[Ticket]
    stream: str | None = None


def step_jobs(
    work: Iterable[Work], sizes: Iterable[tuple[int, int]], collate: Collate, prefetch: int, refill_below: int | None
) -> Iterator[StepJob]:
    """Steps, given as (number, size), their files on the way `prefetch` samples ahead, over the borders of steps."""
    window = open_window(work, prefetch, refill_below)
    try:
        for number, size in sizes:
            yield StepJob(number, take_slots(window, size), collate)
    finally:
        window.close()  # type: ignore[attr-defined]  # a generator


def take_slots(window: Iterator[Slot], size: int) -> list[Slot]:
    """The next slots of a window."""
    slots: list[Slot] = []
    try:
        for _ in range(size):
            slots.append(next(window))  # noqa: PERF401 (what was taken before an error must be let go)
    except BaseException:
        for slot in slots:
            slot.ticket.release()
        raise
    return slots


def _gather(slots: Sequence[Slot], *, is_batch: bool) -> Gathered | None:
    """The samples of a step, if they are all in one tensor cache here; None if they are made one by one."""
    cache, positions = None, []
    for slot in slots:
        found = slot.delivery.pipeline.place_of(slot.job)
        if found is None or (cache is not None and found.cache is not cache) or not can_gather(found.cache):
            return None
        cache = found.cache
        positions.append(found.position)
        is_batch = is_batch and slot.delivery.pipeline.is_bare
    try:
        return None if cache is None else Gathered(cache, positions, is_batch=is_batch)
    except (TensorCacheError, IndexError):  # one of them: it says so when it is made
        return None


def finish_step(step: StepJob, samples: list[Sample], held: list[Ticket]) -> Batches:
    """Collates what a step's slots became."""
    if not samples:
        samples = step.slots[0].stand_in(held)
    start = time.perf_counter()
    try:
        own = None if step.gathered is None or step.collate is not collate else step.gathered.memory
        batch = step.collate(samples) if own is None else collate(samples, own=own)
    except SdsError:
        raise
    except Exception as error:
        hint = "look at collate_fn and at what the transforms return"
        raise TransformError(f"samples cannot be collated: {error!r}", hint=hint, stage="collate") from error
    step.slots[0].delivery.tally.add_busy("collate", start)
    return Batches(batch, len(samples), held, step.stream)


def name_stream(error: BaseException, stream: str | None) -> None:
    """Puts the name of the stream that an error is of before its message."""
    if stream is not None and isinstance(error, SdsError):
        prefix = f"stream {stream!r}: "
        if not error.message.startswith(prefix):
            error.message = prefix + error.message
            error.args = (error.message, *error.args[1:])
