"""One step: slots -> the batch that this rank hands out for it. What threads and workers share.

A row that fails or fans out stays inside its step: a failed one is replaced by a stand-in, several samples of one row
come one after the other, and a step whose samples were all dropped gets one stand-in, so that ranks stay equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch

from sds.dataset.delivery import Delivery
from sds.dataset.ordered import IntArray
from sds.dataset.slots import Slot, Work, open_window
from sds.errors import SdsError, TensorCacheError, TransformError
from sds.fetch import Ticket
from sds.loader.collate import collate
from sds.loader.slabs import Berth, Slab, Slabs
from sds.tensors.gather import Gathered, can_gather
from sds.transforms.places import lend_from
from sds.types import Sample

__all__ = ["Batches", "Collate", "StepJob", "finish_step", "name_stream", "plain_jobs", "step_jobs", "take_slots"]

Collate = Callable[[list[Sample]], Any]

_MAX_PART = 32  # slots that one thread fills one after the other, where they are read together
_MAX_SLOTS, _MIN_PARTS = 4, 4  # where they are not: a hand-over costs as much as a sample without anything to decode


class Plain(NamedTuple):
    """A step of rows that are samples as they are: nothing is fetched, nothing is done."""

    delivery: Delivery
    make: Callable[[IntArray], list[Sample]]
    positions: IntArray

    def fill(self) -> list[Sample]:
        """Its samples."""
        samples = self.make(self.positions)
        self.delivery.policy.record([], len(samples))
        return samples


class StepJob(msgspec.Struct):
    """One step on its way: its slots, how they are collated, and the stream they are of, if that has a name."""

    number: int
    slots: list[Slot]
    collate: Collate
    stream: str | None = None
    gathered: Gathered | None = None
    plain: Plain | None = None
    slab: Slab | None = None  # memory of the batch, which samples are put into as they are made
    in_hand: dict[int, int] = {}  # where a part begins -> the slot of it that its thread is at

    @property
    def delivery(self) -> Delivery:
        """Who makes its samples; of a mix, the first of them."""
        return self.slots[0].delivery if self.plain is None else self.plain.delivery

    def parts(self, num_threads: int, slabs: Slabs) -> list[range]:
        """The slots, as ranges for `fill` that threads may make side by side; with memory for their batch."""
        if self.plain is not None:
            return [range(1)]
        num = len(self.slots)
        self.gathered = _gather(self.slots, is_batch=self.collate is collate)
        if self.collate is collate and not self.memory:
            self.slab = slabs.slab(num, self.stream)
        if self.gathered is None:
            size = max(1, min(_MAX_SLOTS, num // (_MIN_PARTS * num_threads)))
        elif self.gathered.memory:
            size = num  # nothing is left to be decoded: threads would only wait for each other's Python
        else:
            size = min(_MAX_PART, -(-num // num_threads))
        return [range(start, min(num, start + size)) for start in range(0, num, size)]

    @property
    def memory(self) -> list[torch.Tensor]:
        """Pieces that were made for its batch, whose tensors may lie there already."""
        own = self.gathered if self.slab is None else self.slab
        return [] if own is None or self.collate is not collate else own.memory

    def fill(self, part: range, held: list[Ticket], *, is_shared: bool = False) -> list[Sample]:
        """The samples of some slots.

        `is_shared`: other threads make the rest, so files come free when the batch is past, whatever this one does.
        """
        if self.plain is not None:
            return self.plain.fill()
        self._read(part)
        samples: list[Sample] = []
        berth = None if self.slab is None else Berth(self.slab)
        lend_from(berth)
        try:
            for k in part:
                self.in_hand[part.start] = k
                slot = self.slots[k]
                if berth is not None:
                    berth.place = k
                made = slot.delivery.fill(slot.job, slot.ticket, held)
                if self.slab is not None and len(made) == 1:
                    made = [self.slab.put(k, made[0])]
                samples += made
                if is_shared:
                    slot.ticket.hand_to(None)
        finally:
            lend_from(None)
        return samples

    def _read(self, part: range) -> None:
        """What slots have in a tensor cache is read together."""
        if self.gathered is not None:
            start = time.perf_counter()
            try:
                self.gathered.read(part.start, part.stop)
                for k in part:
                    self.slots[k].job.entry = partial(self.gathered.sample, k)
            except TensorCacheError:
                pass  # each is read for itself, and the one that cannot be is counted
            self.slots[part.start].delivery.tally.add_busy("decode", start)

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


def plain_jobs(
    todo: Iterable[tuple[int, IntArray]],
    make: Callable[[IntArray], list[Sample]],
    delivery: Delivery,
    collate: Collate,
) -> Iterator[StepJob]:
    """Steps, given as (number, positions), of rows that are samples as they are."""
    for number, positions in todo:
        yield StepJob(number, [], collate, plain=Plain(delivery, make, positions))


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
        own, kept = step.memory, step.slab.find_kept() if step.slab is not None else ()
        batch = collate(samples, own=own, kept=kept) if own else step.collate(samples)
    except SdsError:
        raise
    except Exception as error:
        hint = "look at collate_fn and at what the transforms return"
        raise TransformError(f"samples cannot be collated: {error!r}", hint=hint, stage="collate") from error
    step.delivery.tally.add_busy("collate", start)
    return Batches(batch, len(samples), held, step.stream)


def name_stream(error: BaseException, stream: str | None) -> None:
    """Puts the name of the stream that an error is of before its message."""
    if stream is not None and isinstance(error, SdsError):
        prefix = f"stream {stream!r}: "
        if not error.message.startswith(prefix):
            error.message = prefix + error.message
            error.args = (error.message, *error.args[1:])
