"""Locks in a forked child: free, whoever held the parent's."""

from __future__ import annotations

import gc
import os
import threading

from sds import forks
from sds.events import Tally


class Owner:
    """Has a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        forks.renew_locks(self, "lock")


def ends_well(work) -> bool:
    """Whether a forked child gets to the end of it."""
    pid = os.fork()
    if not pid:
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_gets_a_free_lock():
    owner = Owner()
    with owner.lock:
        assert ends_well(lambda: owner.lock.acquire(timeout=1))
        assert owner.lock.locked()  # the parent's is as it was


def test_a_tally_counts_in_a_child():
    tally = Tally()

    def count() -> bool:
        thread = threading.Thread(target=tally.count, args=("hits",), daemon=True)
        thread.start()
        thread.join(5)
        return tally.drain().counts == {"hits": 1}

    with tally._lock:
        assert ends_well(count)


def test_owners_are_not_kept():
    before = len(forks._owners)
    owner = Owner()
    assert len(forks._owners) == before + 1
    del owner
    gc.collect()
    assert len(forks._owners) == before
