"""Work divided on boards: every share is done once, by whoever is there, and nobody waits for the dead."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from sds.index import lock
from sds.index.lazy_shares import FolderBoard, work_off


def result(share: int) -> bytes:
    return f"result {share}".encode()


class Claims:
    """A board of memory: what others claimed stays theirs."""

    def __init__(self, theirs: set[int] = frozenset(), done: dict[int, bytes] | None = None) -> None:
        self.theirs, self.done = set(theirs), done or {}

    def find(self, share: int) -> bytes | None:
        return self.done.get(share)

    @contextmanager
    def claimed(self, share: int):
        yield share not in self.theirs

    def publish(self, share: int, result: bytes) -> None:
        self.done[share] = result


def test_alone_all_shares_are_done(tmp_path: Path) -> None:
    board = FolderBoard(tmp_path)
    assert work_off(7, result, [board], until_done=True) == 7
    assert [board.find(k) for k in range(7)] == [result(k) for k in range(7)]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".done"] * 7, "no lock is left"
    assert work_off(7, result, [board], until_done=True) == 0, "what was done is not done again"


def test_threads_that_share_a_folder_do_each_share_once(tmp_path: Path) -> None:
    done: list[int] = []

    def work(share: int) -> bytes:
        done.append(share)
        time.sleep(0.002)
        return result(share)

    threads = [
        threading.Thread(target=work_off, args=(20, work, [FolderBoard(tmp_path)]), kwargs={"until_done": True})
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(done) == list(range(20))


def test_a_helper_leaves_to_others_what_they_have(tmp_path: Path) -> None:
    board = FolderBoard(tmp_path)
    with lock.held(tmp_path / "2.lock", timeout_s=0):
        assert work_off(4, result, [board], until_done=False) == 3
    assert board.find(2) is None


@pytest.mark.parametrize("is_locked", [True, False], ids=["a process that hangs", "a rank that died"])
def test_what_another_never_finishes_is_done_in_the_end(tmp_path: Path, is_locked: bool) -> None:
    board, common = FolderBoard(tmp_path), Claims(set() if is_locked else {2})
    with lock.held(tmp_path / ("2.lock" if is_locked else "other.lock"), timeout_s=0):
        assert work_off(4, result, [board, common], until_done=True, patience_s=0.05) == 4
    assert board.find(2) == common.find(2) == result(2)


def test_what_another_board_has_is_taken_over(tmp_path: Path) -> None:
    board, common = FolderBoard(tmp_path), Claims({0, 1}, {1: b"theirs", 3: b"theirs"})
    common.theirs.discard(0)
    assert work_off(4, result, [board, common], until_done=True) == 2
    assert [board.find(k) for k in range(4)] == [result(0), b"theirs", result(2), b"theirs"]
    assert [common.find(k) for k in (0, 2)] == [result(0), result(2)]


def test_an_error_ends_the_work_and_gives_the_share_back(tmp_path: Path) -> None:
    def fail(share: int) -> bytes:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work_off(3, fail, [FolderBoard(tmp_path)], until_done=True)
    assert work_off(3, result, [FolderBoard(tmp_path)], until_done=True) == 3


def test_a_folder_that_is_gone_has_no_work(tmp_path: Path) -> None:
    assert work_off(3, result, [FolderBoard(tmp_path / "gone")], until_done=False) == 0
