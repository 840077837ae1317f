"""Ordered prefetch: requests in, tickets out in the same order, with the next ones already on their way.

At most `ahead` tickets beyond the one in hand are out. Closing the generator lets go of all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from sds.fetch.client import FetchClient, Ticket
from sds.fetch.protocol import File

__all__ = ["prefetched"]

T = TypeVar("T")


def prefetched(
    client: FetchClient,
    items: Iterable[T],
    files: Callable[[T], list[File]],
    ahead: int,
    refill_below: int | None = None,
) -> Iterator[tuple[T, Ticket]]:
    """Each item with the ticket of its files; the receiver releases the ticket.

    `refill_below`: how many tickets may be left when the next ones are asked for; default: three quarters of `ahead`.
    """
    upcoming = iter(items)
    window: deque[tuple[T, Ticket]] = deque()
    # one frame asks for many, so that a sample costs a fraction of a system call
    low = ahead - max(1, ahead // 4) if refill_below is None else min(refill_below, ahead)
    try:
        while True:
            if len(window) <= max(0, low):
                for _, ticket in window:
                    if ticket.may_widen:
                        ticket.follow_up()
                batch = list(islice(upcoming, ahead + 1 - len(window)))
                window.extend(zip(batch, client.submit([files(item) for item in batch]), strict=True))
            if not window:
                return
            yield window.popleft()
    finally:
        for _, ticket in window:
            ticket.release()
