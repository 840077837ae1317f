"""Which stream comes at which step: ratios -> counts -> a choice for every step and rank. Pure NumPy, no I/O.

A *meta-iteration* is the smallest run of steps that holds every stream as often as its ratio says. Its steps have
*places* [0, M), and a schedule is an order of places. Any step is reached at once, on any rank, and all ranks can
compute what the others chose. Streams of one group are dealt to the ranks of a step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sds.errors import OptionError
from sds.plan import Permutation
from sds.plan.bijection import IntArray
from sds.plan.turns import apportion, balanced, count_turns, occurrences
from sds.seeds import derive_key

__all__ = ["SCHEDULES", "Mix", "Ratios", "Schedule"]

Ratios = Sequence[float] | Sequence[tuple[int, Sequence[float]]] | Callable[[int], Sequence[float]]

SCHEDULES = (
    "random",
    "consecutive",
    "consecutive_interleaved",
    "random_order",
    "fixed_random_order",
    "round_robin",
)
_BALANCED = ("consecutive_interleaved", "round_robin")
_MAX_META_ITERATION = 2_000_000
_FINE = 2**40  # steps of a uniform number: finer than any ratio
WINDOW = 1000  # steps for which ratios that are a function of the step are held


@dataclass(frozen=True)
class Schedule:
    """The choices of one set of counts, step by step from its beginning on.

    Attributes:
        kind: one of SCHEDULES.
        counts: turns of each stream in a meta-iteration.
        groups: for each stream the number of its group, from 0. Default: every stream is a group of its own.
        seed: what random kinds are drawn from.
        number: of this schedule among those that follow each other: who draws first in a group moves on with it.
    """

    kind: str
    counts: tuple[int, ...]
    groups: tuple[int, ...] = ()
    seed: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        if self.length > _MAX_META_ITERATION and self.kind != "random":
            raise OptionError(
                f"ratios and counts_precision make a meta-iteration of {self.length} steps",
                hint=f"at most {_MAX_META_ITERATION}: divide ratios by their sum, lower counts_precision, or use "
                "schedule='random'",
            )

    @property
    def length(self) -> int:
        """Steps of a meta-iteration."""
        return sum(self.counts)

    def choices(self, steps: IntArray, size: int = 1) -> IntArray:
        """The streams that `size` ranks take at these steps: [n, size]."""
        groups = self._members(size)
        totals = [sum(self.counts[i] for i in members) for members in groups]
        rounds, subs = np.divmod(steps, self.length)
        if self.kind == "random":
            places = _uniform(derive_key(self.seed, "mix", "step"), steps, self.length)
        else:
            places = self._places(tuple(totals), rounds, subs)
        first = np.cumsum([0, *totals])
        chosen = np.searchsorted(first, places, side="right") - 1  # [n]
        found = np.empty((len(steps), size), np.int64)
        for group in np.unique(chosen).tolist():
            at, members = chosen == group, groups[group]
            if len(members) == 1:
                found[at] = members[0]
            else:
                found[at] = self._dealt(group, members, steps[at], rounds[at], places[at] - first[group], size)
        return found

    def _members(self, size: int) -> list[list[int]]:
        """The streams of each group; with one rank there is nobody to deal them to, so each stands alone."""
        groups = self.groups if size > 1 and self.groups else tuple(range(len(self.counts)))
        return [[i for i, each in enumerate(groups) if each == group] for group in range(max(groups) + 1)]

    def _places(self, totals: tuple[int, ...], rounds: IntArray, subs: IntArray) -> IntArray:
        """The places of steps, given as meta-iteration and step in it; group g has those after the groups before."""
        if self.kind == "consecutive":
            return subs
        if self.kind in _BALANCED:
            return np.asarray(_balanced_places(totals)[subs], np.int64)
        if self.kind == "fixed_random_order":
            return self._permuted(subs, "order")
        places = np.empty_like(subs)
        for number in np.unique(rounds).tolist():
            at = rounds == number
            places[at] = self._permuted(subs[at], "order", number)
        return places

    def _permuted(self, values: IntArray, *path: int | str, length: int | None = None) -> IntArray:
        found: IntArray = Permutation(length or self.length, derive_key(self.seed, "mix", *path))[values]
        return found

    def _dealt(
        self, group: int, members: list[int], steps: IntArray, rounds: IntArray, turns: IntArray, size: int
    ) -> IntArray:
        """The members that ranks take at steps that are the `turns`-th of their group: [n, size].

        In a meta-iteration a group has `turns * size` draws, and each member its exact share of them.
        """
        counts = [self.counts[i] for i in members]
        # [n, size]; who draws first moves on with the turn and with the meta-iteration: in `size` of them every rank
        # has each draw once, and so its exact share
        moved: IntArray = turns + rounds + self.number
        draws = turns[:, None] * size + (np.arange(size) + moved[:, None]) % size
        total = size * sum(counts)
        if self.kind == "random":
            keys = [derive_key(self.seed, "mix", "rank", rank) for rank in range(size)]
            draws = np.stack([_uniform(key, steps, total) for key in keys], axis=1)
        elif self.kind in _BALANCED:
            divisor = math.gcd(*counts)
            order = balanced(tuple(count // divisor for count in counts))
            return np.asarray(np.asarray(members)[order[draws % len(order)]], np.int64)
        elif self.kind == "fixed_random_order":
            draws = self._permuted(draws.ravel(), "group", group, length=total).reshape(draws.shape)
        elif self.kind == "random_order":
            for number in np.unique(rounds).tolist():
                at = rounds == number
                mixed = self._permuted(draws[at].ravel(), "group", group, number, length=total)
                draws[at] = mixed.reshape(-1, size)
        first = size * np.cumsum([0, *counts])
        return np.asarray(members, np.int64)[np.searchsorted(first, draws, side="right") - 1]


@functools.lru_cache(maxsize=16)
def _balanced_places(totals: tuple[int, ...]) -> IntArray:
    order = balanced(totals)
    places: IntArray = np.cumsum([0, *totals])[order] + occurrences(order)
    return places


def _uniform(key: int, numbers: IntArray, below: int) -> IntArray:
    """A number in [0, below) for each of these, as if drawn."""
    drawn: IntArray = Permutation(_FINE, key)[numbers % _FINE]
    return (drawn.astype(np.float64) * (below / _FINE)).astype(np.int64)


@dataclass(frozen=True)
class Mix:
    """The choices of a whole run: a schedule for every phase, where ratios change with the step.

    Attributes:
        kind: one of SCHEDULES.
        ratios: one for each stream; or [(step, ratios), ...]: those from that step on; or a function of the step, which
            is asked every WINDOW steps and must give the same answer on all ranks and after every resume.
        precision: decimals that ratios are rounded to.
        groups: for each stream the number of its group, from 0.
        seed: what random kinds are drawn from.
        origin: the step at which the first meta-iteration begins: where a run went on with other ratios than before.
    """

    kind: str
    ratios: Ratios
    precision: int = 6
    groups: tuple[int, ...] = ()
    seed: int = 0
    origin: int = 0
    _phases: dict[int, Schedule] = field(default_factory=dict, repr=False, compare=False)

    def choices(self, first: int, count: int, size: int = 1) -> IntArray:
        """The streams that `size` ranks take at the steps [first, first + count): [count, size]."""
        parts: list[IntArray] = []
        step, stop = first, first + count
        while step < stop:
            begin, end = self.phase(step)
            upto = stop if end is None else min(stop, end)
            steps = np.arange(step - begin, upto - begin, dtype=np.int64)
            parts.append(self.schedule(begin).choices(steps, size))
            step = upto
        return np.concatenate(parts)

    def phase(self, step: int) -> tuple[int, int | None]:
        """The phase that a step is in: its first step, and the one after its last, if it ends."""
        if callable(self.ratios):
            begin = step - (step - self.origin) % WINDOW
            return begin, begin + WINDOW
        starts = [start for start, _ in self.pieces]
        at = max(i for i, start in enumerate(starts) if start <= step)
        return max(starts[at], self.origin), starts[at + 1] if at + 1 < len(starts) else None

    def begun_at(self, origin: int) -> Mix:
        """The same mix, whose first meta-iteration begins at a step."""
        return self if origin == self.origin else replace(self, origin=origin, _phases={})

    @property
    def pieces(self) -> list[tuple[int, tuple[float, ...]]]:
        """Ratios that are no function, as (first step, ratios)."""
        given: Any = self.ratios
        if isinstance(given[0], int | float):
            return [(0, tuple(given))]
        return [(step, tuple(ratios)) for step, ratios in given]

    def from_step(self, step: int) -> list[Schedule]:
        """The schedules of a step and of all phases after it, as far as they are known."""
        begin, _ = self.phase(step)
        later = [] if callable(self.ratios) else [start for start, _ in self.pieces if start > begin]
        return [self.schedule(each) for each in [begin, *later]]

    def schedule(self, begin: int) -> Schedule:
        """The schedule of the phase that begins at a step."""
        schedule = self._phases.get(begin)
        if schedule is None:
            number = 0
            if callable(self.ratios):
                number = (begin - self.origin) // WINDOW
                counts = apportion([float(ratio) for ratio in self.ratios(begin)], WINDOW)
                counts = tuple(count // math.gcd(*counts) for count in counts)
            else:
                counts = count_turns([r for start, r in self.pieces if start <= begin][-1], self.precision)
            # a fixed order is the same everywhere; another one is drawn anew for every phase
            is_same = begin == 0 or self.kind == "fixed_random_order"
            seed = self.seed if is_same else derive_key(self.seed, "phase", begin)
            schedule = Schedule(self.kind, counts, self.groups, seed, number)
            while len(self._phases) > 3:  # another thread may forget the same one
                self._phases.pop(next(iter(self._phases)), None)
            self._phases[begin] = schedule
        return schedule
