"""One step: a list of positions -> the batch that this rank hands out for it. What threads and workers share.

A row that fails or fans out stays inside its step: a failed one is replaced by a stand-in, several samples of one row
come one after the other, and a step whose samples were all dropped gets one stand-in, so that ranks stay equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from sds.dataset.delivery import Delivery
from sds.dataset.pipeline import Job
from sds.errors import SdsError, TransformError
from sds.fetch import Ticket, prefetched
from sds.plan import Plan, Steps
from sds.types import Sample

__all__ = ["Batches", "Collate", "StepJob", "step_jobs"]

Collate = Callable[[list[Sample]], Any]


class StepJob(msgspec.Struct):
    """One step on its way: its jobs with their tickets."""

    number: int
    slots: list[tuple[Job, Ticket]]


class Batches(msgspec.Struct):
    """A finished step: the batch, how many samples are in it, and the tickets of files that it still names."""

    batch: Any
    num_samples: int
    held: list[Ticket]


def step_jobs(
    delivery: Delivery,
    plan: Plan,
    epoch: int,
    steps: Steps,
    numbers: range,
    prefetch: int,
    refill_below: int | None,
) -> Iterator[StepJob]:
    """Steps with their files on the way, `prefetch` samples ahead over the borders of steps."""
    # positions of each step -> jobs -> tickets, in one stream
    jobs = delivery.pipeline.jobs(plan, epoch, (steps[k] for k in numbers))
    window = prefetched(delivery.client, jobs, lambda job: job.files, prefetch, refill_below)
    try:
        for k in numbers:
            size = len(steps[k])
            slots: list[tuple[Job, Ticket]] = []
            try:
                for _ in range(size):
                    slots.append(next(window))  # noqa: PERF401 (what was taken before an error must be let go)
            except BaseException:
                for _, ticket in slots:
                    ticket.release()
                raise
            yield StepJob(k, slots)
    finally:
        window.close()  # type: ignore[attr-defined]  # a generator


def finish_step(
    delivery: Delivery, step: StepJob, samples: list[Sample], held: list[Ticket], collate: Collate
) -> Batches:
    """Collates what a step's slots became."""
    if not samples:
        samples = delivery.stand_in(step.slots[0][0], held)
    start = time.perf_counter()
    try:
        batch = collate(samples)
    except SdsError:
        raise
    except Exception as error:
        hint = "look at collate_fn and at what the transforms return"
        raise TransformError(f"samples cannot be collated: {error!r}", hint=hint, stage="collate") from error
    delivery.tally.add_busy("collate", start)
    return Batches(batch, len(samples), held)
