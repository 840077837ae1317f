"""OrderedDataset: what every dataset of ours is to a loader. An epoch of positions, and work for any of them.

Comes in: how long an epoch is, which order that is (`plan_key`), and the work at positions. Goes out: torch's
IterableDataset, with lanes for ranks and workers, steps for loaders, epochs and a state. A dataset of one source and a
mix of datasets are both one; a loader asks for nothing else.
"""

from __future__ import annotations

import inspect
import multiprocessing
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset

from sds.dataset import options as opts
from sds.dataset.agree import Agreement
from sds.dataset.delivery import Delivery
from sds.dataset.foreign import check_foreign
from sds.dataset.leases import Leases
from sds.dataset.progress import Progress, Start
from sds.dataset.slots import Work, open_window
from sds.dataset.state import PlanKey, State
from sds.dataset.workers import is_batched, is_worker, worker_identity
from sds.errors import OptionError
from sds.events import Stats, Tally
from sds.fetch import Ticket
from sds.plan import Steps, lanes, steps
from sds.types import Failure, Sample
from sds.world import World

__all__ = ["INFINITE", "OrderedDataset"]

IntArray = npt.NDArray[np.int64]

INFINITE = 2**62
_BLOCK = 1024  # positions computed at once: a permutation has a fixed cost per call
_NUM_LEASES = 512  # where nobody can see batches, nor how far a loader's caller is: the files of so many samples stay


class OrderedDataset(IterableDataset[Sample]):
    """A dataset whose order is a function of (key, epoch, position)."""

    progress: Progress
    _world: World | None
    _sender: tuple[int, World] | None  # in a copy for a spawned worker: who sent it, and its world
    _agreement: Agreement

    # ---- what each kind has of its own ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def name(self) -> str:
        """The dataset's name."""

    @property
    @abstractmethod
    def data_type(self) -> str | None:
        """What its samples are, where that was said."""

    @property
    @abstractmethod
    def plan_key(self) -> PlanKey:
        """What the order is a function of."""

    @property
    @abstractmethod
    def is_endless(self) -> bool:
        """Whether an iteration goes on with the next epoch for ever."""

    @abstractmethod
    def length(self, epoch: int) -> int:
        """How many positions an epoch has."""

    @abstractmethod
    def work(self, world: World, epoch: int, blocks: Iterable[IntArray], worker: int = 0) -> Iterator[Work]:
        """What is to be made for arrays of positions, in order; positions past the end are in the epochs that follow.

        Args:
            world: the process that asks, among others.
            epoch: the epoch that positions are counted from.
            blocks: the positions.
            worker: the worker that asks, among those of its process.
        """

    @property
    @abstractmethod
    def window(self) -> tuple[int, int | None]:
        """How many samples to fetch ahead, and how few may be left when the next are asked for."""

    @property
    @abstractmethod
    def deliveries(self) -> list[Delivery]:
        """This process's ways from rows to samples: one, or those of all members of a mix; each once."""

    @property
    @abstractmethod
    def tally(self) -> Tally:
        """What was handed out, and how long for."""

    @abstractmethod
    def stats(self) -> Stats:
        """What happened so far in this process (and, under our loaders, in its workers)."""

    @abstractmethod
    def explain(self) -> str:
        """What will happen, in words."""

    @property
    @abstractmethod
    def patience_s(self) -> float:
        """How long ranks wait for each other."""

    @abstractmethod
    def follow_seed(self) -> None:
        """In a worker: takes over a seed that the parent found in a state, after this worker was made."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of every cached file and of the fetch server."""

    def plain(self, world: World, epoch: int) -> Callable[[IntArray], list[Sample]] | None:  # noqa: ARG002 (a hook)
        """What makes samples of whole arrays of positions, if they are rows as they are; None: `work` makes them."""
        return None

    def _lease_bytes(self, num_workers: int) -> int | None:  # noqa: ARG002 (a hook)
        """How much of the cache one process may hold for samples that were handed out a while ago."""
        return None

    # ---- what is the same for all -----------------------------------------------------------------------------------

    @property
    def world(self) -> World:
        """This process among the others: given, or detected."""
        if self._world is not None:
            return self._world
        if self._sender is not None and is_worker() and self._sender[0] == _parent_pid():
            return self._sender[1]
        return World.detect()

    def window_of(self, num_workers: int, batch_size: int = 0) -> tuple[int, int | None]:
        """The window of one of so many workers: together they fetch `prefetch` ahead, the batches in hand included.

        What waits to be used takes room that the cache could keep, so the window must not grow with the workers.
        """
        ahead, refill_below = self.window
        mine = -(-ahead // num_workers)
        return max(mine - batch_size, min(mine, batch_size) // 2), refill_below

    def stand_for(self, ranks: Sequence[int]) -> None:
        """For a loader that broadcasts: these ranks read nothing themselves, so nobody waits for them."""
        self._agreement.stand_for(ranks)

    def quarantine(self) -> list[Failure]:
        """The rows that failed, with stage and reason."""
        return [failure for delivery in self.deliveries for failure in delivery.policy.quarantine()]

    def __len__(self) -> int:
        return self.length(self.epoch)

    if not TYPE_CHECKING:  # type checkers shall know what there is

        def __getattr__(self, name: str) -> Any:
            if inspect.getattr_static(type(self), name, None) is None:
                check_foreign(name)
            return self.__getattribute__(name)  # says what Python says, or what a property said

    def lane_of(self, world: World) -> tuple[int, int]:
        """Which share of the positions a process reads: (rank, size)."""
        return world.replica

    @property
    def num_shares(self) -> int:
        """Into how many shares the rows are divided for good."""
        return 1

    def horizon(self, epoch: int) -> int:
        """Where an iteration that begins in this epoch ends; positions past the epoch are in those that follow."""
        return INFINITE if self.is_endless else self.length(epoch)

    def steps(self, world: World, epoch: int, start: int, batch_size: int, drop_last: bool) -> Steps:
        """The batches of a process, for a loader: as positions, from `start` on."""
        rank, size = self.lane_of(world)
        lap = self.length(epoch)
        return steps(self.horizon(epoch), start, size, rank, batch_size, drop_last, shares=self.num_shares, lap=lap)

    def __iter__(self) -> Iterator[Sample]:
        """This rank's and worker's samples of the current epoch, from its start or from where a loaded state says."""
        worker, num_workers = worker_identity()
        begun = self._begin_lane(worker, num_workers) if is_worker() else self.begin(self.world)
        epoch, start, taken, offset, _ = begun
        rank, size = self.lane_of(self.world)
        lane_of = (0, 1) if self.plan_key.unaligned else (worker, num_workers)
        lane = lanes(self.horizon(epoch), start, size, rank, lane_of[1], lane_of[0])
        progress, tally = self.progress, self.tally
        held, is_unseen = Leases(_NUM_LEASES, self._lease_bytes(num_workers)), is_batched()
        tally.begin()
        # positions of this lane, from where it stands
        blocks = (np.asarray(lane[k : k + _BLOCK]) for k in range(taken, len(lane), _BLOCK))
        # -> rows -> slots: the files of the next ones are on their way
        window = open_window(self.work(self.world, epoch, blocks, worker), *self.window_of(num_workers))

        def after(num_rows: int, num_samples: int) -> State:
            """What was handed out: so many rows of the lane, and so many samples of the next one."""
            if is_worker():
                return State(progress.key, epoch, start, (worker, num_workers, num_rows, size), num_samples)
            return progress.at(epoch, lane.stop(num_rows - 1) if num_rows else start, num_samples)

        has_ended = False
        try:
            for k, slot in enumerate(window, start=taken):
                tickets: list[Ticket] = []
                # -> samples: decoded, transformed; a row that failed is counted and left out
                samples = slot.deliver(tickets) or []
                held.hold(tickets)
                done = offset if k == taken else 0  # of a row that was fanned out, what was handed out before
                for j, sample in enumerate(samples[done:], start=done + 1):
                    has_ended = j == len(samples) and k + 1 == len(lane)
                    if has_ended:  # the very end of an epoch is the beginning of the next
                        progress.finish(epoch)
                    else:
                        progress.reach(after(k + 1, 0) if j == len(samples) else after(k, j))
                    tally.delivered(1, batches=0)
                    yield sample
                if not is_unseen:
                    held.release()  # the caller asks for the next sample: the paths of this one are past
            if not has_ended:
                for delivery in self.deliveries:
                    delivery.policy.end_of_epoch()
                progress.finish(epoch)
        finally:
            window.close()  # type: ignore[attr-defined]  # a generator
            held.release()

    def _begin_lane(self, worker: int, num_workers: int) -> Start:
        self.follow_seed()
        return self.progress.begin_lane(worker, num_workers, self.lane_of(self.world)[1])

    def begin(self, world: World, buckets: str | None = None) -> Start:
        """Where an iteration begins; ranks agree on it before the first one. A loaded state is used up by it.

        Args:
            world: the process that asks, among others.
            buckets: for batches in buckets: a hash that says which rows are of one.
        """
        epoch, position, _ = self.progress.coming(in_buckets=buckets is not None)
        facts = {**msgspec.to_builtins(self.plan_key), "epoch": epoch, "position": position, "buckets": buckets}
        self._agreement.check(world, facts, self.patience_s)
        return self.progress.begin(in_buckets=buckets is not None)

    @property
    def epoch(self) -> int:
        """The epoch that the next (or current) iteration makes."""
        return self.progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration makes this epoch: from its start, or where a state of this epoch that was loaded says."""
        opts.check_count("epoch", epoch, minimum=0)
        self.progress.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where delivery stands: a small JSON-able copy, right at every yield."""
        return self.progress.state().to_dict()

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """The next iteration goes on where the state says.

        Args:
            state: what `state_dict()` returned, on any number of ranks and workers.
            strict: False lets a state of another index through, for one that was appended to.

        Raises:
            StateMismatch: the state is of another index, query or seed.
        """
        loaded = State.from_dict(state)
        key = self.expected_key(loaded.key.seed)
        loaded.check(key, strict=strict, length=self.length(loaded.epoch))
        self.adopt(key)
        self.progress.load(State(key, loaded.epoch, loaded.position, loaded.lane, loaded.offset, loaded.buckets))

    def expected_key(self, seed: int | None) -> PlanKey:  # noqa: ARG002 (a hook)
        """The key that a state with this seed must have: the dataset's own, unless its seed was to be drawn."""
        return self.plan_key

    def adopt(self, key: PlanKey) -> None:
        """Goes on with the seed of a key that `expected_key` gave."""


def check_dataset(dataset: Any) -> None:
    """One of our datasets, or an OptionError."""
    if not isinstance(dataset, OrderedDataset):
        hint = "construct a sds.StreamingDataset first, or a mix of them with sds.interleave or sds.concatenate"
        raise OptionError(f"dataset is no StreamingDataset: {type(dataset).__name__}", hint=hint)


def _parent_pid() -> int | None:
    """Who started this process, if multiprocessing did; under a forkserver that is not who forked it."""
    parent = multiprocessing.parent_process()
    return None if parent is None else parent.pid
