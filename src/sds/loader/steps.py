"""One step: slots -> the batch that this rank hands out for it. What threads and workers share.

A row that fails or fans out stays inside its step: a failed one is replaced by a stand-in, several samples of one row
come one after the other, and a step whose samples were all dropped gets one stand-in, so that ranks stay equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from sds.dataset.slots import Slot, Work, open_window
from sds.errors import SdsError, TransformError
from sds.fetch import Ticket
from sds.types import Sample

__all__ = ["Batches", "Collate", "StepJob", "finish_step", "name_stream", "step_jobs", "take_slots"]

Collate = Callable[[list[Sample]], Any]


class StepJob(msgspec.Struct):
    """One step on its way: its slots, how they are collated, and the stream they are of, if that has a name."""

    number: int
    slots: list[Slot]
    collate: Collate
    stream: str | None = None

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


def finish_step(step: StepJob, samples: list[Sample], held: list[Ticket]) -> Batches:
    """Collates what a step's slots became."""
    if not samples:
        samples = step.slots[0].stand_in(held)
    start = time.perf_counter()
    try:
        batch = step.collate(samples)
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
