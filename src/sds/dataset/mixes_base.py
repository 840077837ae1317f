"""What mixes of samples share: members, and for every position the member and the position in it that it stands for.

Comes in: datasets (or mixes). Goes out: all that an OrderedDataset has, made of what its members have. Counts, clients
and failure budgets stay with the members; what was handed out is counted here.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np

from sds.dataset import options as opts
from sds.dataset.agree import Agreement
from sds.dataset.delivery import Delivery
from sds.dataset.ordered import IntArray, OrderedDataset, check_dataset
from sds.dataset.slots import Work
from sds.dataset.state import PlanKey, State, hash_key
from sds.errors import OptionError, StateMismatch
from sds.events import Stats, Tally
from sds.stats import merged_stats
from sds.world import World

__all__ = ["MixedDataset"]

_BLOCK = 64  # positions looked up at once, as rows are


class MixedDataset(OrderedDataset):
    """What interleavings and concatenations share. Made by `interleave` and `concatenate`."""

    def __init__(self, members: Sequence[OrderedDataset], seed: int | None, world: World | None) -> None:
        self.members = checked_members(members)
        opts.check_world(world)
        if seed is not None:
            opts.check_count("shuffle_seed", seed, minimum=0)
        self._seed = seed
        self._world = world
        self._sender = None
        self._agreement = Agreement()
        self._pid, self._tally = os.getpid(), Tally()

    @abstractmethod
    def _locate(self, epoch: int, positions: IntArray) -> tuple[IntArray, int, IntArray]:
        """(number of the member, epoch that is counted from, position in it) of positions of an epoch."""

    @property
    @abstractmethod
    def _kind(self) -> str:
        """What, beside members and seed, the order is a function of; as text."""

    # ---- what a dataset has -----------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The names of the members."""
        return "+".join(member.name for member in self.members)

    @property
    def data_type(self) -> str | None:
        """What the samples of all members are, if that is the same."""
        kinds = {member.data_type for member in self.members}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def fingerprint(self) -> str:
        """What the members are, and how they are mixed."""
        return "-".join([self._kind, *(hash_key(member.plan_key) for member in self.members)])

    @property
    def plan_key(self) -> PlanKey:
        """What the order is a function of."""
        return PlanKey(self.fingerprint, self.length(0), self._seed, None)

    @property
    def window(self) -> tuple[int, int | None]:
        """As far ahead as the member that looks farthest."""
        return max(member.window[0] for member in self.members), None

    @property
    def deliveries(self) -> list[Delivery]:
        """Those of all members, each once."""
        found = {id(each): each for member in self.members for each in member.deliveries}
        return list(found.values())

    @property
    def tally(self) -> Tally:
        """What was handed out."""
        if self._pid != os.getpid():
            self._pid, self._tally = os.getpid(), Tally()
        return self._tally

    def stats(self) -> Stats:
        """What happened so far, over all members."""
        return merged_stats(self.tally.stats(), [each.tally.stats() for each in self.deliveries])

    @property
    def patience_s(self) -> float:
        """How long ranks wait for each other."""
        return max(member.patience_s for member in self.members)

    def _lease_bytes(self, num_workers: int) -> int | None:
        """As little of the cache as the member that may hold least, shared by all: they may have one cache."""
        limits = [member._lease_bytes(num_workers) for member in self.members]
        least = min((limit for limit in limits if limit is not None), default=None)
        return None if least is None else least // len(self.members)

    def follow_seed(self) -> None:
        """Seeds of members are given, never drawn."""

    def work(self, world: World, epoch: int, blocks: Iterable[IntArray], worker: int = 0) -> Iterator[Work]:
        """The members' work at arrays of positions, in order."""
        for block in blocks:
            for start in range(0, len(block), _BLOCK):
                yield from self._work(world, epoch, block[start : start + _BLOCK], worker)

    def _work(self, world: World, epoch: int, positions: IntArray, worker: int) -> Iterator[Work]:
        numbers, base, places = self._locate(epoch, positions)
        parts = {
            number: self.members[number].work(world, base, [places[numbers == number]], worker)
            for number in np.unique(numbers).tolist()
        }
        for number in numbers.tolist():
            yield next(parts[number])

    def explain(self) -> str:
        """What will happen, in words, member by member."""
        lines = [f"{self._kind.partition(' ')[0]} of {len(self.members)} datasets: {self.length(0)} samples an epoch"]
        for number, member in enumerate(self.members):
            lines += [f"member {number}:", *(f"  {line}" for line in member.explain().splitlines())]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.members))})"

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """The next iteration goes on where the state says. A member that is another one is named."""
        theirs, mine = State.from_dict(state).key.fingerprint.split("-"), self.fingerprint.split("-")
        if strict and theirs[0] == mine[0] and len(theirs) == len(mine):
            for number, (a, b) in enumerate(zip(theirs[1:], mine[1:], strict=True)):
                if a != b:
                    raise StateMismatch(
                        f"state is of another mix: its member {number} was not {self.members[number].name!r} as it is",
                        hint="give the members the sources, queries and seeds of the checkpointed run",
                    )
        super().load_state_dict(state, strict=strict)

    def close(self) -> None:
        """Closes the members."""
        for member in self.members:
            member.close()

    def __enter__(self) -> MixedDataset:  # noqa: PYI034 (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = {k: v for k, v in self.__dict__.items() if k not in ("_tally", "_agreement")}
        if get_spawning_popen() is not None:  # a spawned worker may not find out
            state["_sender"] = os.getpid(), self.world
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._agreement = Agreement()
        self._pid, self._tally = os.getpid(), Tally()


def checked_members(members: Any) -> list[OrderedDataset]:
    """The members of a mix, or an OptionError."""
    if isinstance(members, OrderedDataset) or not isinstance(members, Sequence) or not members:
        raise OptionError(f"datasets is no list of datasets: {members!r}", hint="sds.interleave([a, b])")
    for number, member in enumerate(members):
        check_dataset(member)
        if member.plan_key.unaligned:
            hint = "a mix deals rows to ranks itself: leave unaligned_worker_index out"
            raise OptionError(f"member {number} has unaligned_worker_index, which is impossible in a mix", hint=hint)
        if member.expected_key(1).seed != member.expected_key(2).seed:
            hint = "give it a seed, which a state can be compared with"
            raise OptionError(f"member {number} has shuffle_seed=-1, which is impossible in a mix", hint=hint)
    return list(members)
