"""How long files stay: while a sample may name them, the last few groups, and no more bytes than allowed."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from sds.dataset.leases import Leases, must_hold, names_any

PATHS = ["/cache/objects/ab/abcd.jpg", "/cache/objects/cd/cdef.txt"]


class Held:
    """A ticket, as far as this room knows it."""

    def __init__(self, num_bytes: int = 1) -> None:
        self.num_bytes = num_bytes
        self.is_held = True
        self.is_leased = True
        self.paths = PATHS

    def release(self) -> None:
        self.is_held = False

    def hand_to(self, thread: int | None) -> None:
        self.holder = thread


def test_all_but_the_last_are_let_go_of_when_somebody_waits_for_room():
    leases, tickets = Leases(64), [Held() for _ in range(4)]
    for ticket in tickets:
        leases.hold([ticket])
    leases.trim()
    assert [ticket.is_held for ticket in tickets] == [False, False, False, True]
    assert tickets[3].holder == threading.get_ident(), "when this thread goes on, it comes free"


def test_each_thread_that_lives_keeps_its_last():
    leases, is_held, is_over = Leases(64), threading.Event(), threading.Event()
    tickets = [Held() for _ in range(6)]

    def take(own: list[Held]) -> None:
        for ticket in own:
            leases.hold([ticket])

    def take_and_stay() -> None:
        take(tickets[2:4])
        is_held.set()
        assert is_over.wait(30)

    dead, alive = threading.Thread(target=take, args=(tickets[:2],)), threading.Thread(target=take_and_stay)
    dead.start()
    alive.start()
    dead.join()
    assert is_held.wait(30)
    take(tickets[4:])
    leases.trim()
    kept = {k for k, ticket in enumerate(tickets) if ticket.is_held}
    is_over.set()
    alive.join()
    assert kept >= {3, 5} and not kept & {0, 2, 4}
    leases.release()
    assert not any(ticket.is_held for ticket in tickets)


@pytest.mark.parametrize(
    "value",
    [
        PATHS[0],
        Path(PATHS[1]),
        [1, PATHS[0]],
        (None, (PATHS[1],)),
        {PATHS[0]},
        {"deep": {"deeper": [PATHS[0]]}},
        f"file://{PATHS[0]}",
        f"ffmpeg -i {PATHS[1]} out.wav",
        object(),
        dataclasses.make_dataclass("Clip", ["path"])(PATHS[0]),
    ],
)
def test_what_may_name_a_file_does(value):
    assert names_any({"field": value}, PATHS)


@pytest.mark.parametrize(
    "value",
    [
        "a caption",
        "/cache/objects/ab",
        Path("/elsewhere.jpg"),
        5,
        2.5,
        None,
        True,
        b"bytes",
        torch.zeros(2),
        np.zeros(2),
        np.float32(1),
        [1, "text", {"a": (2, None)}],
        {},
        set(),
    ],
)
def test_what_cannot_name_a_file_does_not(value):
    assert not names_any({"field": value}, PATHS)


def test_a_ticket_without_cached_files_need_not_be_held():
    ticket = Held()
    assert must_hold([{"path": PATHS[0]}], ticket)
    assert not must_hold([{"image": torch.zeros(1)}], ticket)
    assert not must_hold([], ticket)
    ticket.is_leased = False
    assert not must_hold([{"path": PATHS[0]}], ticket)


@pytest.mark.parametrize("keep", [1, 2, 64])
def test_the_last_groups_are_held(keep):
    leases = Leases(keep)
    groups = [[Held(), Held()] for _ in range(keep + 3)]
    for group in groups:
        leases.hold(group)
    assert [all(t.is_held for t in group) for group in groups] == [False] * 3 + [True] * keep
    leases.release()
    assert not any(t.is_held for group in groups for t in group)


def test_a_sample_without_files_lets_go_of_the_one_before():
    leases, ticket = Leases(1), Held()
    leases.hold([ticket])
    leases.hold([])
    assert not ticket.is_held


def test_no_more_bytes_are_held_than_allowed_but_always_the_newest():
    leases = Leases(10, max_bytes=100)
    tickets = [Held(40) for _ in range(4)]
    for ticket in tickets:
        leases.hold([ticket])
    assert [t.is_held for t in tickets] == [False, False, True, True]
    large = Held(1000)
    leases.hold([large])
    assert [t.is_held for t in [*tickets, large]] == [False] * 4 + [True]
    small = Held(1)
    leases.hold([small])
    assert (large.is_held, small.is_held) == (False, True)
