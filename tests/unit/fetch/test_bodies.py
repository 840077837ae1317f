"""Bodies on their way to the disk: how much is in memory, and that those that grow neither stop nor flood it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sds.errors import CacheError, FetchError
from sds.fetch import errands
from sds.fetch import protocol as p
from sds.fetch.bodies import Budget, gather, write_whole
from sds.storage import Body, StoreOptions


def test_of_those_that_grow_one_always_goes_on() -> None:
    budget, at_once = Budget(100), threading.Barrier(8)
    most: list[int] = []

    def grow(who: int) -> None:
        budget.grow(who, 10)
        at_once.wait(10)  # all of them hold some, and want more
        for _ in range(9):
            budget.grow(who, 10)
            most.append(budget._taken)
        budget.give(100, who)

    threads = [threading.Thread(target=grow, args=(i,), daemon=True) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert budget._taken == 0 and not budget._growing and max(most) <= 200


def test_who_was_given_up_while_it_waits_goes_on_to_its_end() -> None:
    budget = Budget(10)
    budget.grow("first", 10)
    budget._taken += 5
    late = threading.Thread(target=budget.grow, args=("late", 10), daemon=True)
    late.start()
    deadline = time.monotonic() + 10
    while "late" not in budget._growing and time.monotonic() < deadline:
        time.sleep(0.001)
    budget.give(5, "late")
    late.join(10)
    assert not late.is_alive() and budget._taken == 20


class Endless:
    """A store whose objects have no end; `closed` says whether they were let go of."""

    def __init__(self) -> None:
        self.closed = False

    def call(self, url: str, options: StoreOptions, verb: object) -> object:
        return verb(self, url)  # type: ignore[operator]

    def open(self, key: str) -> Body:
        return Body(None, "v", self.chunks())

    def chunks(self) -> Iterator[bytes]:
        try:
            for _ in range(100):
                yield bytes(100)
            raise AssertionError("far too many")
        finally:
            self.closed = True


def test_an_endless_body_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[int] = []
    store = Endless()
    with pytest.raises(FetchError, match="body of unknown length passes"):
        gather(store.open("x"), "http://h/x", 1000, charged.append)
    assert charged == list(range(100, 1001, 100)) and store.closed
    monkeypatch.setattr(errands, "_MAX_READ", 1000)
    reply = errands.run_errand(Endless(), StoreOptions(), p.Read(1, "http://h/x?sig=SECRET", None))  # type: ignore[arg-type]
    assert isinstance(reply, p.Failed) and "unknown length" in reply.message and "SECRET" not in repr(reply)


def test_a_folder_that_is_not_there_is_made_and_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    path = write_whole(f"{tmp_path}/ab/part-1", "name", [b"12", b"3"])
    assert path == f"{tmp_path}/ab/name" and Path(path).read_bytes() == b"123"
    (tmp_path / "outside").mkdir()
    (tmp_path / "cd").symlink_to(tmp_path / "outside")
    with pytest.raises(CacheError, match=r"link .* where a folder should be"):
        write_whole(f"{tmp_path}/cd/part-1", "name", [b"123"])
    assert not list((tmp_path / "outside").iterdir())


def test_what_cannot_be_written_says_where_and_why(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    with pytest.raises(CacheError, match="part-1: Is a directory"):
        write_whole(f"{tmp_path}/part-1", "name", [b"123"])
