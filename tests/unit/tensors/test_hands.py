"""Work that is shared is done once, whoever helps; errors come out; nobody waits for a helper that has not begun."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import weakref
from collections import deque
from functools import partial

import pytest

from sds.tensors.hands import MAX_HANDS, Hands


def taking(pieces: deque[int], done: list[tuple[int, int]]) -> None:
    while pieces:
        try:
            piece = pieces.popleft()
        except IndexError:
            return
        done.append((piece, threading.get_ident()))


@pytest.mark.parametrize("num", [0, 1, 2, 100])
def test_every_piece_is_done_once(num: int):
    hands = Hands()
    for _ in range(3):
        pieces, done = deque(range(500)), []
        hands.share(num, lambda pieces=pieces, done=done: taking(pieces, done))
        assert sorted(piece for piece, _ in done) == list(range(500))
        assert len({thread for _, thread in done}) <= max(1, min(num, MAX_HANDS))
        hands.close()


def test_threads_work_at_the_same_time():
    together = threading.Barrier(2, timeout=60)
    hands = Hands()
    hands.share(2, lambda: together.wait() and None)  # breaks after a minute if one has to wait for the other
    assert not together.broken
    hands.close()


@pytest.mark.parametrize("who", ["helper", "caller"])
def test_errors_come_out_when_all_are_through(who: str):
    here, together = threading.get_ident(), threading.Barrier(2, timeout=60)
    through = []

    def work() -> None:
        together.wait()
        if (threading.get_ident() == here) == (who == "caller"):
            raise ValueError(who)
        through.append(1)

    hands = Hands()
    with pytest.raises(ValueError, match=who):
        hands.share(2, work)
    assert through == [1]
    hands.close()


class Memory:
    """What a caller wants to be filled."""


@pytest.mark.parametrize("who", ["helper", "caller"])
def test_an_error_does_not_keep_memory(who: str):
    here, together, memory = threading.get_ident(), threading.Barrier(2, timeout=60), Memory()
    gone, not_mine = weakref.ref(memory), set(threading.enumerate())

    def work(memory: Memory) -> None:
        together.wait()
        if (threading.get_ident() == here) == (who == "caller"):
            raise ValueError(memory)

    gc.disable()
    try:
        hands = Hands()
        with contextlib.suppress(ValueError):
            hands.share(2, partial(work, memory))
        del memory
        hands.close()
        for thread in set(threading.enumerate()) - not_mine:
            thread.join(60)
        assert gone() is None
    finally:
        gc.enable()


def test_a_busy_helper_is_not_waited_for():
    hands, all_busy, release = Hands(), threading.Barrier(MAX_HANDS + 1, timeout=60), threading.Event()

    def hold() -> None:
        all_busy.wait()
        release.wait(60)

    other = threading.Thread(target=hands.share, args=(MAX_HANDS, hold))
    other.start()
    all_busy.wait()
    pieces, done = deque(range(9)), []
    hands.share(2, lambda: taking(pieces, done))
    assert not release.is_set() and len(done) == 9
    release.set()
    other.join()
    hands.close()


def test_callers_that_begin_at_once_have_the_same_threads():
    together, hands, before = threading.Barrier(6, timeout=60), Hands(), sys.getswitchinterval()
    not_mine = set(threading.enumerate())

    def share() -> None:
        together.wait()
        hands.share(MAX_HANDS, lambda: None)

    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            others = [threading.Thread(target=share) for _ in range(6)]
            for other in others:
                other.start()
            for other in others:
                other.join()
            hands.close()
    finally:
        sys.setswitchinterval(before)
    for thread in set(threading.enumerate()) - not_mine:
        thread.join(60)
        assert not thread.is_alive(), "a thread that nobody can end"
