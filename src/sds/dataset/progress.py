"""Progress: where delivery stands in this process. What a state is made of, and where an iteration begins.

Comes in: what was handed to the caller, and states that were loaded. Goes out: states, and starts of iterations. A
worker process knows its own lane only; the epoch that comes next is agreed on with its siblings and its parent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sds.dataset.state import BucketsDone, PlanKey, State
from sds.dataset.workers import Epochs, is_worker, worker_identity
from sds.errors import StateError

__all__ = ["Progress", "Start"]

_IN_BUCKETS = -1  # in place of an offset, where workers see it too: the position counts samples in buckets


class Start(NamedTuple):
    """Where an iteration begins.

    Attributes:
        epoch: the epoch.
        position: the first position of it that counts.
        taken: how many rows of its lane a worker has handed out since that position.
        offset: how many samples of the first row were handed out before.
        buckets: which batches were handed out before, if they were in buckets.
    """

    epoch: int
    position: int
    taken: int = 0
    offset: int = 0
    buckets: BucketsDone | None = None


class Progress:
    """Of one dataset, in one process. `key` says which order it is about."""

    def __init__(self, key: PlanKey, *, is_endless: bool, length: Callable[[int], int] | None = None) -> None:
        self.key = key
        self._length = length  # of an epoch; None: all have as many positions as there are rows
        self._is_endless = is_endless
        self._epochs = Epochs()
        self._here: State | None = None  # what was handed out; None: nothing yet
        self._loaded: State | None = None  # in a worker: where its next iteration goes on
        self.buckets: BucketsDone | None = None  # what a loaded state says of them, until an iteration begins
        self.num_jumps = 0  # how often it was told to go on somewhere else

    @property
    def epoch(self) -> int:
        """The epoch that the next (or current) iteration makes."""
        return self._epochs.current()

    @property
    def seed(self) -> int | None:
        """The seed that a parent found in a state, which its workers must follow; None: nobody found one."""
        return self._epochs.seed

    def set_epoch(self, epoch: int) -> None:
        """The next iteration makes this epoch: from its start, or where a state of this epoch that was loaded says."""
        coming, position, offset = self._next()
        self._here = None
        self.num_jumps += 1
        self.buckets = self.buckets if epoch == coming else None
        offset = offset if self.buckets is None else _IN_BUCKETS
        self._epochs.set(epoch, *((position, offset) if epoch == coming else (0, 0)))

    def at(self, epoch: int, position: int, offset: int = 0, buckets: BucketsDone | None = None) -> State:
        """The state at a position; the very end of an epoch is the beginning of the next."""
        if self._length is None:
            laps, position = divmod(position, self.key.rows)
            epoch += laps
        else:
            while position and position >= (length := self._length(epoch)):
                epoch, position = epoch + 1, position - length
        return State(self.key, epoch, position, offset=offset, buckets=buckets)

    def coming(self, *, in_buckets: bool = False) -> tuple[int, int, int]:
        """(epoch, position, offset) where the next iteration begins; StateError if only one in buckets could."""
        if self.buckets is not None and not in_buckets:
            raise _in_buckets()
        return self._next()

    def _next(self) -> tuple[int, int, int]:
        epoch, position, offset = self._epochs.next()
        return epoch, position, max(0, offset)

    def begin(self, *, in_buckets: bool = False) -> Start:
        """The start of an iteration in a process that is no worker; a position that was loaded is used up by it."""
        epoch, position, offset = self.coming(in_buckets=in_buckets)
        start = Start(epoch, position, 0, offset, self.buckets)
        self._epochs.set(start.epoch)
        self.buckets = None
        self._here = self.at(start.epoch, start.position, start.offset, start.buckets)
        return start

    def begin_lane(self, worker: int, num_workers: int, data_size: int) -> Start:
        """The start of a worker's lane."""
        loaded, self._loaded = self._loaded, None
        epoch, position, offset = self._epochs.begin(worker, num_workers, entered=loaded is not None)
        taken = 0
        if loaded is None and offset == _IN_BUCKETS:
            raise _in_buckets()
        if loaded is not None and loaded.epoch > epoch:
            # its share of this epoch is done, those of other workers are not
            position = self.key.rows if self._length is None else self._length(epoch)
        elif loaded is not None:
            position, offset = loaded.position, loaded.offset
            taken = loaded.taken_by(worker, num_workers, data_size)
        elif worker:
            offset = 0  # the row that was begun is the first of the first lane
        self._here = State(self.key, epoch, position, (worker, num_workers, taken, data_size), offset)
        return Start(epoch, position, taken, offset)

    def reach(self, state: State) -> None:
        """All before this was handed out."""
        if self._is_endless and not is_worker() and state.epoch != self._epochs.current():
            self._epochs.set(state.epoch)
        self._here = state

    def finish(self, epoch: int) -> None:
        """An epoch was handed out, or this worker's share of it."""
        if is_worker():
            self._epochs.finish(worker_identity()[0], epoch)
        else:
            self._epochs.set(epoch + 1)
        self._here = self.at(epoch + 1, 0)

    def state(self) -> State:
        """Where delivery stands."""
        if is_worker():
            if self._loaded is None and self._here is None and self._epochs.next()[2] == _IN_BUCKETS:
                raise _in_buckets()
            return self._loaded or self._here or self.at(*self._epochs.next())
        if self._epochs.were_workers_used:
            raise StateError(
                "state is not known here: worker processes of a plain DataLoader deliver, unseen",
                hint="use sds.StreamingDataLoader, or torchdata's StatefulDataLoader, and take the state from it",
            )
        return self._here or self.at(*self._next(), self.buckets)

    def load(self, state: State) -> None:
        """The next iteration goes on there. The state has been checked against `key`."""
        self.num_jumps += 1
        if is_worker():
            if state.buckets is not None:
                raise _in_buckets()
            self._loaded = state
            self._epochs.enter(*worker_identity(), state.epoch)
        elif state.lane is not None:
            hint = "take the state from the loader, not from one of its workers"
            raise StateError(f"state is of a single worker: {state.lane[0]} of {state.lane[1]}", hint=hint)
        else:
            self._here = None
            self.buckets = state.buckets
            self._epochs.set(state.epoch, state.position, state.offset if state.buckets is None else _IN_BUCKETS)
            self._epochs.seed = state.key.seed


def _in_buckets() -> StateError:
    hint = "load it into a StreamingDataLoader with the bucket_by that it had; or set_epoch(n) begins another epoch"
    return StateError("state is of batches in buckets, which are not in the order of positions", hint=hint)
