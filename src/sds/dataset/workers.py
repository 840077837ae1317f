"""This process among the worker processes of a torch DataLoader.

Comes in: nothing; asks torch. Goes out: (worker, number of workers), (0, 1) in a process that is none. A worker whose
parent was killed ends by itself at once, instead of at torch's next look after five seconds.
"""

from __future__ import annotations

import os
import threading
import time

from torch.utils.data import get_worker_info

from sds.dataset.shared import SharedBlock

__all__ = ["Epochs", "is_worker", "worker_identity"]

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


def _end_with_parent() -> None:
    global _watched
    if _watched:
        return
    _watched = True
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.25)
        os._exit(1)  # nobody is left to clean up for; torch's own queues would block an orderly end

    threading.Thread(target=watch, name="sds-parent-watch", daemon=True).start()


class Epochs:
    """Which epoch comes next, agreed between a dataset and its copies in worker processes.

    Workers of a plain DataLoader finish an epoch each for itself; the next one begins when all of them have. Their
    parent sees it here, so a new set of workers begins the next epoch, and not the first one again.
    """

    _USED, _BASE, _WORKERS, _SLOTS = 0, 1, 2, 8
    _MAX_WORKERS = 1024

    def __init__(self) -> None:
        self._block = SharedBlock(self._SLOTS + self._MAX_WORKERS)

    @property
    def were_workers_used(self) -> bool:
        """Whether worker processes have iterated since the parent last said where things stand."""
        return bool(self._block[self._USED])

    def current(self) -> int:
        """The epoch that the next iteration makes."""
        slots = [self._block[self._SLOTS + w] for w in range(self._block[self._WORKERS])]
        return max(self._block[self._BASE], min(slots, default=0))

    def set(self, epoch: int) -> None:
        """The parent says which epoch comes next."""
        with self._block.locked():
            self._block[self._USED] = self._block[self._WORKERS] = 0
            self._block[self._BASE] = epoch

    def begin(self, worker: int, num_workers: int) -> int:
        """A worker begins: the epoch is the one that the slowest of them has yet to make."""
        with self._block.locked():
            if self._block[self._WORKERS] != num_workers:
                epoch = self.current()
                for w in range(num_workers):
                    self._block[self._SLOTS + w] = epoch
                self._block[self._WORKERS] = num_workers
            self._block[self._USED] = 1
            epoch = self.current()
            self._block[self._SLOTS + worker] = epoch
            return epoch

    def finish(self, worker: int, epoch: int) -> None:
        """A worker has handed out all of its share of an epoch."""
        with self._block.locked():
            self._block[self._SLOTS + worker] = epoch + 1
