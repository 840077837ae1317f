"""Ordered prefetch: the order, how many are out at once, and that whatever was not handed out is let go of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sds.fetch import prefetched


class FakeTicket:
    may_widen = True

    def __init__(self, files: Any, log: list[Any]) -> None:
        self.files = files
        self.is_released = False
        self._log = log

    def release(self) -> None:
        self.is_released = True

    def follow_up(self) -> bool:
        return False


class FakeClient:
    """Remembers what was asked for, and in how many goes."""

    def __init__(self) -> None:
        self.asked: list[FakeTicket] = []
        self.goes: list[int] = []

    def submit(self, requests: Sequence[Any]) -> list[FakeTicket]:
        tickets = [FakeTicket(files, self.asked) for files in requests]
        self.asked += tickets
        if tickets:
            self.goes.append(len(tickets))
        return tickets


def window(client: FakeClient, items: Any, ahead: int, refill_below: int | None = None) -> Any:
    return prefetched(client, items, lambda item: [(f"s3://b/{item}", None)], ahead, refill_below)  # type: ignore[arg-type]


@given(st.integers(0, 60), st.integers(0, 20), st.none() | st.integers(0, 30))
def test_order_and_bounds(num_items: int, ahead: int, refill_below: int | None) -> None:
    client = FakeClient()
    seen = []
    for item, ticket in window(client, range(num_items), ahead, refill_below):
        seen.append(item)
        assert ticket.files == [(f"s3://b/{item}", None)]
        assert len(client.asked) - len(seen) <= ahead
        assert not any(each.is_released for each in client.asked)
    assert seen == list(range(num_items)) and len(client.asked) == num_items


def test_refills_come_in_groups() -> None:
    client = FakeClient()
    list(window(client, range(1000), 64))
    assert client.goes[0] == 65 and max(client.goes[1:]) >= 16
    assert len(client.goes) < 1000 / 16 + 3
    eager = FakeClient()
    list(window(eager, range(100), 10, 10))
    assert set(eager.goes) == {11, 1}
    late = FakeClient()
    list(window(late, range(100), 9, 0))
    assert set(late.goes) == {10}


def test_the_next_ones_are_asked_for_before_the_first_is_handed_out() -> None:
    client = FakeClient()
    stream = window(client, range(100), 10)
    next(stream)
    assert len(client.asked) == 11


def test_closing_lets_go_of_what_was_not_handed_out() -> None:
    client = FakeClient()
    stream = window(client, range(100), 10)
    handed = [next(stream)[1] for _ in range(3)]
    stream.close()
    assert not any(ticket.is_released for ticket in handed)
    assert all(ticket.is_released for ticket in client.asked[3:]) and len(client.asked) > 10


def test_an_error_in_the_source_lets_go_too() -> None:
    client = FakeClient()

    def items() -> Any:
        yield from range(20)
        raise RuntimeError("the source broke")

    stream = window(client, items(), 10)
    with pytest.raises(RuntimeError):
        for _ in stream:
            pass
    handed = sum(not ticket.is_released for ticket in client.asked)
    assert handed + sum(ticket.is_released for ticket in client.asked) == len(client.asked)
