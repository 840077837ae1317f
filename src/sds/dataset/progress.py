"""Progress: where delivery stands in this process. What a state is made of, and where an iteration begins.

Comes in: what was handed to the caller, and states that were loaded. Goes out: states, and starts of iterations. A
worker process knows its own lane only; the epoch that comes next is agreed on with its siblings and its parent.
"""

from __future__ import annotations

from typing import NamedTuple

from sds.dataset.state import PlanKey, State
from sds.dataset.workers import Epochs, is_worker, worker_identity
from sds.errors import StateError

__all__ = ["Progress", "Start"]


class Start(NamedTuple):
    """Where an iteration begins.

    Attributes:
        epoch: the epoch.
        position: the first position of it that counts.
        taken: how many rows of its lane a worker has handed out since that position.
        offset: how many samples of the first row were handed out before.
    """

    epoch: int
    position: int
    taken: int = 0
    offset: int = 0


class Progress:
    """Of one dataset, in one process. `key` says which order it is about."""

    def __init__(self, key: PlanKey, *, is_endless: bool) -> None:
        self.key = key
        self._is_endless = is_endless
        self._epochs = Epochs()
        self._here: State | None = None  # what was handed out; None: nothing yet
        self._loaded: State | None = None  # in a worker: where its next iteration goes on
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
        coming, position, offset = self._epochs.next()
        self._here = None
        self.num_jumps += 1
        self._epochs.set(epoch, *((position, offset) if epoch == coming else (0, 0)))

    def at(self, epoch: int, position: int, offset: int = 0) -> State:
        """The state at a position; the very end of an epoch is the beginning of the next."""
        laps, place = divmod(position, self.key.rows)
        return State(self.key, epoch + laps, place, offset=offset)

    def coming(self) -> tuple[int, int, int]:
        """(epoch, position, offset) where the next iteration begins."""
        return self._epochs.next()

    def begin(self) -> Start:
        """The start of an iteration in a process that is no worker; a position that was loaded is used up by it."""
        epoch, position, offset = self.coming()
        start = Start(epoch, position, 0, offset)
        self._epochs.set(start.epoch)
        self._here = self.at(start.epoch, start.position, start.offset)
        return start

    def begin_lane(self, worker: int, num_workers: int, data_size: int) -> Start:
        """The start of a worker's lane."""
        loaded, self._loaded = self._loaded, None
        epoch, position, offset = self._epochs.begin(worker, num_workers, entered=loaded is not None)
        taken = 0
        if loaded is not None and loaded.epoch > epoch:
            position = self.key.rows  # its share of this epoch is done, those of other workers are not
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
            return self._loaded or self._here or self.at(*self._epochs.next())
        if self._epochs.were_workers_used:
            raise StateError(
                "state is not known here: worker processes of a plain DataLoader deliver, unseen",
                hint="use sds.StreamingDataLoader, or torchdata's StatefulDataLoader, and take the state from it",
            )
        return self._here or self.at(*self._epochs.next())

    def load(self, state: State) -> None:
        """The next iteration goes on there. The state has been checked against `key`."""
        self.num_jumps += 1
        if is_worker():
            self._loaded = state
            self._epochs.enter(*worker_identity(), state.epoch)
        elif state.lane is not None:
            hint = "take the state from the loader, not from one of its workers"
            raise StateError(f"state is of a single worker: {state.lane[0]} of {state.lane[1]}", hint=hint)
        else:
            self._here = None
            self._epochs.set(state.epoch, state.position, state.offset)
            self._epochs.seed = state.key.seed
