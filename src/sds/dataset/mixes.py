"""Mixes of datasets, sample by sample, that are datasets again: interleave and concatenate.

Comes in: datasets (or mixes). Goes out: a dataset whose every position is a position of one of its members, by a pure
function: so it can be iterated, loaded, mixed again, stopped and gone on with like any other. Each member's own
positions are used once and in their order, epoch after epoch of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from sds.dataset import options as opts
from sds.dataset.keywords import check_keywords
from sds.dataset.mixes_base import MixedDataset
from sds.dataset.ordered import IntArray, OrderedDataset
from sds.dataset.progress import Progress
from sds.dataset.slots import Work
from sds.errors import OptionError
from sds.plan import Permutation
from sds.plan.plan import find_laps
from sds.plan.turns import balanced, count_turns, occurrences
from sds.seeds import derive_key
from sds.world import World

__all__ = ["Concatenation", "Interleaving", "concatenate", "interleave"]

_MIN_RANDOM = 256  # samples that a random order of members spans at least
_MAX_TURNS = 2_000_000


class Interleaving(MixedDataset):
    """Samples of several datasets in turn, in shares."""

    def __init__(
        self,
        members: Sequence[OrderedDataset],
        ratios: Sequence[float] | None,
        seed: int | None,
        stop: str,
        world: World | None,
    ) -> None:
        super().__init__(members, seed, world)
        opts.check_choice("stop", stop, ("first", "all", "never"))
        self._stop = stop
        self._counts = _counts(ratios, len(self.members))
        if seed is not None and (total := sum(self._counts)) < _MIN_RANDOM:
            self._counts = tuple(count * (_MIN_RANDOM // total) for count in self._counts)
        self._orders: dict[int, tuple[IntArray, IntArray]] = {}
        self._length = self._find_length()
        self.progress = Progress(self.plan_key, is_endless=self.is_endless)

    @property
    def is_endless(self) -> bool:
        """Whether an iteration goes on for ever."""
        return self._stop == "never"

    @property
    def _kind(self) -> str:
        return f"interleave {','.join(map(str, self._counts))} {self._stop}"

    def length(self, epoch: int) -> int:  # noqa: ARG002 (the same for all)
        """Samples until the turn of a member that has been gone through, or until all have been."""
        return self._length

    def __len__(self) -> int:
        if self.is_endless:
            raise TypeError("a mix with stop='never' has no length: it goes on for ever ('first' and 'all' have one)")
        return super().__len__()

    def _find_length(self) -> int:
        order = balanced(self._counts)
        ends = []
        for number, (count, member) in enumerate(zip(self._counts, self.members, strict=True)):
            if count:
                is_first = self._stop == "first"  # then the turn after its last one is left out
                rounds, rest = divmod(member.length(0) - (not is_first), count)
                ends.append(rounds * len(order) + int(np.flatnonzero(order == number)[rest]) + (not is_first))
        return min(ends) if self._stop == "first" else max(ends)

    def _locate(self, epoch: int, positions: IntArray) -> tuple[IntArray, int, IntArray]:
        """Members go on where they were, over epochs of the mix: positions count from the beginning of all of them."""
        rounds, subs = np.divmod(epoch * self._length + positions, sum(self._counts))
        numbers, turns = np.empty_like(subs), np.empty_like(subs)
        for each in np.unique(rounds).tolist() if self._seed is not None else [0]:
            at = rounds == each if self._seed is not None else slice(None)
            order, before = self._order(each)
            numbers[at], turns[at] = order[subs[at]], before[subs[at]]
        return numbers, 0, rounds * np.asarray(self._counts, np.int64)[numbers] + turns

    def _order(self, number: int) -> tuple[IntArray, IntArray]:
        """Whose turn it is in a round of turns, and how many turns of the same member come before."""
        found = self._orders.get(number)
        if found is None:
            order = balanced(self._counts)
            if self._seed is not None:
                order = order[Permutation(len(order), derive_key(self._seed, "interleave", number))[:]]
            found = order, occurrences(order)
            for old in list(self._orders)[:-3]:  # threads may get here together: that is no harm
                self._orders.pop(old, None)
            self._orders[number] = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_orders": {}}


class Concatenation(MixedDataset):
    """All samples of several datasets: one after the other, or shuffled over all of them."""

    def __init__(self, members: Sequence[OrderedDataset], seed: int | None, world: World | None) -> None:
        super().__init__(members, seed, world)
        self.progress = Progress(self.plan_key, is_endless=False, length=self.length)

    @property
    def is_endless(self) -> bool:
        """An epoch has an end."""
        return False

    @property
    def _kind(self) -> str:
        return "concatenate"

    def length(self, epoch: int) -> int:
        """Samples of all members."""
        return sum(member.length(epoch) for member in self.members)

    def work(self, world: World, epoch: int, blocks: Iterable[IntArray], worker: int = 0) -> Iterator[Work]:
        """The members' work at arrays of positions; those past the end are in the epochs that follow."""
        for block in blocks:
            laps, places = find_laps(self.length, epoch, block)
            cuts = np.flatnonzero(np.diff(laps)) + 1
            for part, lap in zip(np.split(places, cuts), laps[np.r_[0, cuts]].tolist(), strict=True):
                yield from super().work(world, epoch + lap, [part], worker)

    def _locate(self, epoch: int, positions: IntArray) -> tuple[IntArray, int, IntArray]:
        starts = np.cumsum([0, *(member.length(epoch) for member in self.members)])
        if self._seed is not None:
            positions = Permutation(int(starts[-1]), derive_key(self._seed, "concatenate", epoch))[positions]
        numbers = np.searchsorted(starts, positions, side="right") - 1
        return numbers, epoch, positions - starts[numbers]


@check_keywords
def interleave(
    datasets: Sequence[OrderedDataset],
    ratios: Sequence[float] | None = None,
    shuffle_seed: int | None = None,
    stop: str = "first",
    *,
    world: World | None = None,
) -> Interleaving:
    """Mixes datasets sample by sample.

    Args:
        datasets: the members: datasets, or mixes of them.
        ratios: the members' shares. None: equal ones.
        shuffle_seed: None takes turns as evenly as can be; a number draws their order, with exact shares.
        stop: 'first': an epoch is over when it is the turn of a member that has been gone through; 'all': when all
            have been, and shorter ones come again meanwhile; 'never'. Members go on in the next epoch where they were.
        world: this process among the others. Default: detected when iteration begins.
    """
    return Interleaving(datasets, ratios, shuffle_seed, stop, world)


@check_keywords
def concatenate(
    datasets: Sequence[OrderedDataset], shuffle_seed: int | None = None, *, world: World | None = None
) -> Concatenation:
    """All samples of several datasets, each once an epoch.

    Args:
        datasets: the members: datasets, or mixes of them.
        shuffle_seed: None: one member after the other, each in its own order; a number shuffles over all of them.
        world: this process among the others. Default: detected when iteration begins.
    """
    return Concatenation(datasets, shuffle_seed, world)


def _counts(ratios: Any, number: int) -> tuple[int, ...]:
    if ratios is None:
        return (1,) * number
    if not isinstance(ratios, Sequence) or len(ratios) != number:
        raise OptionError(f"ratios are not one for each dataset: {ratios!r}", hint=f"there are {number} datasets")
    for ratio in ratios:
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio < float("inf"):
            raise OptionError(f"ratios hold what is no share: {ratio!r}", hint="numbers of at least 0")
    counts = count_turns(ratios)
    if sum(counts) > _MAX_TURNS:
        raise OptionError(f"ratios repeat only after {sum(counts)} samples", hint=f"at most {_MAX_TURNS}: round them")
    return counts
