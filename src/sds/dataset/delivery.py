"""Delivery: jobs in, samples out, under the failure policy. What bare iteration, random access and loaders share.

A slot is a place in a step: when its row fails under 'skip', a stand-in fills it, so that batches stay full and ranks
equal. Which row stands in depends on (seed, epoch, position, attempt) alone. A bare iteration leaves the row out.
"""

from __future__ import annotations

from sds.dataset.leases import must_hold
from sds.dataset.pipeline import Job, Pipeline
from sds.dataset.policy import FailurePolicy, everything_dropped
from sds.errors import SdsError, TooManyFailures
from sds.fetch import FetchClient, Ticket
from sds.seeds import derive_key
from sds.types import Sample

__all__ = ["Delivery"]

_MAX_STAND_INS = 64  # attempts at one slot; the failure budget usually ends it long before


class Delivery:
    """One process's way from rows to samples. Safe from many threads."""

    def __init__(self, pipeline: Pipeline, policy: FailurePolicy, client: FetchClient) -> None:
        self.pipeline = pipeline
        self.policy = policy
        self.client = client
        self.tally = pipeline.tally

    def deliver(self, job: Job, ticket: Ticket, held: list[Ticket]) -> list[Sample] | None:
        """The samples of a job, or None if it failed and that was counted; `held` gets the ticket if it must stay."""
        try:
            samples = self.pipeline.finish(job, ticket)
        except SdsError as error:
            if ticket.is_over:
                raise  # another thread let go of the files, to stop this: nobody asks for the sample any more
            ticket.release()
            self.policy.failed(job.row, error)
            return None
        except BaseException:
            ticket.release()
            raise
        self.policy.succeeded(len(samples))
        _settle(samples, ticket, held)
        return samples

    def fill(self, job: Job, ticket: Ticket, held: list[Ticket]) -> list[Sample]:
        """The samples of a slot: the job's own, or those of a stand-in."""
        samples = self.deliver(job, ticket, held)
        return self.stand_in(job, held) if samples is None else samples

    def stand_in(self, job: Job, held: list[Ticket]) -> list[Sample]:
        """Samples of another row, chosen by (seed, epoch, position, attempt), in the place of a job's."""
        pipeline = self.pipeline
        seed = pipeline.options.shuffle_seed or 0
        num_dropped = 0
        for attempt in range(1, _MAX_STAND_INS + 1):
            drawn = derive_key(seed, "stand-in", job.epoch, job.position, attempt)
            row_id = drawn % len(pipeline.index) if job.alike is None else job.alike(job.row.id, drawn, attempt)
            other = pipeline.prepare(pipeline.index.rows([row_id])[0], job.epoch, job.position)
            (ticket,) = self.client.submit([other.files])
            held.append(ticket)  # whoever stops the step lets go of it
            samples = self.deliver(other, ticket, held)
            if samples:
                self.tally.count("stand_ins")
                return samples
            num_dropped += samples is not None
        if num_dropped == _MAX_STAND_INS:
            raise everything_dropped(num_dropped, num_dropped)
        raise TooManyFailures(
            f"no stand-in could be made for sample {job.row.key!r}: {_MAX_STAND_INS} other rows failed or were dropped",
            hint="dataset.quarantine() says why; do the transforms drop nearly everything?",
            key=job.row.key,
        )

    def exactly(self, job: Job, ticket: Ticket, held: list[Ticket]) -> list[Sample]:
        """The samples of the row asked for, or its error, whatever the policy."""
        try:
            samples = self.pipeline.finish(job, ticket)
        except BaseException:
            ticket.release()
            raise
        _settle(samples, ticket, held)
        return samples


def _settle(samples: list[Sample], ticket: Ticket, held: list[Ticket]) -> None:
    """Holds the files that samples still name, and lets go of others."""
    if must_hold(samples, ticket):
        held.append(ticket)
    else:
        ticket.release()
