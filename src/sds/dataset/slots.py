"""Work in, slots out: rows that are to become samples, with their files on the way, whichever dataset each is of.

A slot is a place in a step, or in a bare iteration: the row's job, the ticket of its files, and the delivery that makes
samples of them. The rows of a mix are of several datasets; each is asked for through its own dataset's client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from sds.dataset.delivery import Delivery
from sds.dataset.pipeline import Job
from sds.fetch import FetchClient, Ticket, prefetched
from sds.types import Sample

__all__ = ["Slot", "Work", "open_window"]


class Work(NamedTuple):
    """A row that is to become a sample, and by whom."""

    delivery: Delivery
    job: Job


class Slot(NamedTuple):
    """A row whose files are on the way."""

    delivery: Delivery
    job: Job
    ticket: Ticket

    def deliver(self, held: list[Ticket]) -> list[Sample] | None:
        """The row's samples, or None if it failed and that was counted."""
        return self.delivery.deliver(self.job, self.ticket, held)

    def stand_in(self, held: list[Ticket]) -> list[Sample]:
        """Samples of another row in the place of this one's."""
        return self.delivery.stand_in(self.job, held)


def open_window(work: Iterable[Work], ahead: int, refill_below: int | None = None) -> Iterator[Slot]:
    """Work with its files on the way, at most `ahead` beyond the one in hand. Close it to let go of them."""
    window = prefetched(cast(FetchClient, _Clients()), work, cast(Any, _as_is), ahead, refill_below)
    try:
        for (delivery, job), ticket in window:
            yield Slot(delivery, job, ticket)
    finally:
        window.close()  # type: ignore[attr-defined]  # a generator


def _as_is(work: Work) -> Work:
    return work


class _Clients:
    """The clients of several datasets, as one that is asked for work."""

    def submit(self, work: Sequence[Work]) -> list[Ticket]:
        """Asks each client once, for all that is its own; the order is kept."""
        by_client: dict[int, list[int]] = {}
        for k, each in enumerate(work):
            by_client.setdefault(id(each.delivery.client), []).append(k)
        tickets: dict[int, Ticket] = {}
        for places in by_client.values():
            client = work[places[0]].delivery.client
            asked = client.submit([work[k].job.files for k in places])
            tickets.update(zip(places, asked, strict=True))
        return [tickets[k] for k in range(len(work))]
