"""This process among the worker processes of a torch DataLoader.

Comes in: nothing; asks torch. Goes out: (worker, number of workers), (0, 1) in a process that is none. A worker whose
parent was killed ends by itself at once, instead of at torch's next look after five seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time

from torch.utils.data import get_worker_info

from sds.dataset.shared import SharedBlock

__all__ = ["Epochs", "is_batched", "is_worker", "worker_identity"]

_watched = False


def worker_identity() -> tuple[int, int]:
    """Which worker this process is, of how many."""
    info = get_worker_info()
    if info is None:
        return 0, 1
    _end_with_parent()
    return info.id, info.num_workers


def is_worker() -> bool:
    """Whether this process is a worker of a torch DataLoader."""
    return get_worker_info() is not None


def is_batched() -> bool:
    """Whether others may make batches of what whoever calls this yields, where nobody sees them.

    They may in other processes and threads than the main ones, and if torch or torchdata is further up in this one.
    """
    if multiprocessing.parent_process() is not None or threading.current_thread() is not threading.main_thread():
        return True
    frame = sys._getframe()
    while frame.f_back is not None:  # other loaders, and wrappers of the dataset, may stand in between
        frame = frame.f_back
        if str(frame.f_globals.get("__name__")).partition(".")[0] in ("torch", "torchdata"):
            return True
    return False


def _end_with_parent() -> None:
    global _watched
    if _watched:
        return
    _watched = True
    parent, process = os.getppid(), multiprocessing.parent_process()

    def watch() -> None:
        # a forkserver is the parent of workers that are not its own; and siblings that were forked hold a process alive
        while os.getppid() == parent and (process is None or process.is_alive()):
            time.sleep(0.25)
        os._exit(1)  # nobody is left to clean up for; torch's own queues would block an orderly end

    threading.Thread(target=watch, name="sds-parent-watch", daemon=True).start()


class Epochs:
    """Where the next iteration begins, agreed between a dataset and its copies in worker processes.

    Workers of a plain DataLoader finish an epoch each for itself; the next one begins when all of them have. Their
    parent sees it here, so a new set of workers begins the next epoch, and not the first one again. A position that
    the parent loaded is where they all begin that one epoch. A process that is no worker, such as another rank, has
    epochs of its own.
    """

    _MAX_WORKERS = 1024
    _USED, _BASE, _START, _OFFSET, _WORKERS, _SEED, _SLOTS, _ENTERED = 0, 1, 2, 3, 4, 5, 8, 8 + _MAX_WORKERS

    def __init__(self) -> None:
        self._shared = SharedBlock(self._ENTERED + self._MAX_WORKERS)
        self._owner = os.getpid()

    @property
    def _block(self) -> SharedBlock:
        if self._owner != os.getpid() and not is_worker():
            self._shared, self._owner = self._shared.copy(), os.getpid()
        return self._shared

    @property
    def were_workers_used(self) -> bool:
        """Whether worker processes have iterated since the parent last said where things stand."""
        return bool(self._block[self._USED])

    def current(self) -> int:
        """The epoch that the next iteration makes."""
        return max(self._block[self._BASE], min(self._epochs_of(self._SLOTS), default=0))

    def next(self) -> tuple[int, int, int]:
        """(epoch, position, samples of its row already handed out) where the next iteration begins."""
        epoch = self.current()
        if epoch != self._block[self._BASE]:
            return epoch, 0, 0
        return epoch, self._block[self._START], self._block[self._OFFSET]

    def set(self, epoch: int, start: int = 0, offset: int = 0) -> None:
        """The parent says which epoch comes next, and from where."""
        with self._block.locked():
            self._block[self._USED] = self._block[self._WORKERS] = 0
            self._block[self._BASE], self._block[self._START], self._block[self._OFFSET] = epoch, start, offset

    @property
    def seed(self) -> int | None:
        """The seed that the parent found in a state; None: it found none."""
        return self._block[self._SEED] - 1 if self._block[self._SEED] else None

    @seed.setter
    def seed(self, seed: int | None) -> None:
        self._block[self._SEED] = 0 if seed is None else seed + 1

    def enter(self, worker: int, num_workers: int, epoch: int) -> None:
        """A worker was told by its loader to go on in an epoch. All of them are told before any begins."""
        with self._block.locked():
            self._count(num_workers)
            self._block[self._BASE] = min(self._block[self._BASE], epoch)
            self._block[self._START] = self._block[self._OFFSET] = 0
            self._block[self._SLOTS + worker] = self._block[self._ENTERED + worker] = epoch

    def begin(self, worker: int, num_workers: int, *, entered: bool = False) -> tuple[int, int, int]:
        """A worker begins, where `next` says. The epoch is the one that the slowest of them has yet to make."""
        with self._block.locked():
            self._count(num_workers)
            self._block[self._USED] = 1
            place = (min(self._epochs_of(self._ENTERED)), 0, 0) if entered else self.next()
            self._block[self._SLOTS + worker] = place[0]
            return place

    def finish(self, worker: int, epoch: int) -> None:
        """A worker has handed out all of its share of an epoch."""
        with self._block.locked():
            self._block[self._SLOTS + worker] = epoch + 1

    def _epochs_of(self, first: int) -> list[int]:
        return [self._block[first + w] for w in range(self._block[self._WORKERS])]

    def _count(self, num_workers: int) -> None:
        if self._block[self._WORKERS] != num_workers:
            epoch = self.current()
            for w in range(num_workers):
                self._block[self._SLOTS + w] = self._block[self._ENTERED + w] = epoch
            self._block[self._WORKERS] = num_workers
