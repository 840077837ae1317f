"""What a client has asked for and not yet let go of: bookkeeping without a connection."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from sds.errors import SdsError
from sds.fetch import protocol as p

__all__ = ["Pending", "all_again", "copy", "given_back"]


class Pending:
    """Something asked for: its request, and its reply when there is one."""

    __slots__ = ("doing", "error", "holder", "in_use", "is_deferred", "reply", "request", "trips")

    def __init__(self, request: Any) -> None:
        self.request = request
        self.reply: Any = None
        self.error: SdsError | None = None
        self.trips: Sequence[p.Trip] = ()  # what stores were asked for, in vain or not
        self.in_use = False
        self.holder: int | None = None  # the thread that lets go of it in the end; None: whoever takes the batches
        self.is_deferred = False  # the server waits for room before it begins
        self.doing: str | None = None  # what the server does for it, if it was asked

    @property
    def is_here(self) -> bool:
        """Whether there is an answer."""
        return self.reply is not None or self.error is not None


def all_again(live: Mapping[int, Pending], awaited: Container[int]) -> list[p.Request]:
    """What to ask a new server for: first what is in use, at any price, then the rest, in the order of asking."""
    urgent: list[p.Request] = []
    others: list[p.Request] = []
    for id, pending in sorted(live.items()):
        if pending.error is not None:
            continue
        if pending.in_use:
            urgent += [pending.request, p.Want(id)]
        else:
            pending.reply, pending.is_deferred = None, False  # what the dead server said holds no more
            others += [pending.request, *([p.Want(id)] if id in awaited else [])]
    return urgent + others


def given_back(live: Mapping[int, Pending], awaited: Container[int]) -> list[p.Request]:
    """Lets go of what was prefetched and nobody uses or waits for, and asks for it again, behind the others."""
    spare = [
        pending
        for id, pending in sorted(live.items())
        if isinstance(pending.reply, p.Got) and not pending.in_use and id not in awaited
    ]
    for pending in spare:
        pending.reply = None
    if not spare:
        return []
    return [p.Release([pending.request.id for pending in spare]), *(pending.request for pending in spare)]


def copy(error: SdsError) -> SdsError:
    """An error of one's own: whoever handles it writes into it."""
    return type(error)(error.message, **error.facts)
