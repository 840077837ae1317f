"""A walk through a mix: from a cursor on, one item for every batch of this rank, and the cursor after it. Pure.

All ranks know what all of them choose, so the positions of a stream at a step are dealt to the ranks that chose it, in
the order of the ranks. Each stream's positions are used once and in order, on any number of ranks, whatever the ratios.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sds.errors import OptionError
from sds.loader.mixing import Mix
from sds.plan.bijection import IntArray

__all__ = ["Cursor", "Item", "Place", "Walk"]

_BLOCK = 256  # steps whose choices are computed at once
_LONG_BLOCK = 2048  # the same, where they are only counted
_PATIENCE = 1_000_000  # steps in which a stream has no turn, after which it is taken to have none any more


class Place(NamedTuple):
    """Where a stream stands: the next position of an epoch of its own."""

    epoch: int
    position: int


@dataclass(frozen=True)
class Cursor:
    """Where a mix stands.

    Attributes:
        step: the turn that comes next, or is under way.
        round: its batches that were handed out.
        epoch: passes through the mix that are complete, where it stops.
        begun_at: the step at which the current pass began.
        places: where each stream stands.
        since: samples of each stream that were handed out, over all ranks, since the pass began.
    """

    step: int
    round: int
    epoch: int
    begun_at: int
    places: tuple[Place, ...]
    since: tuple[int, ...]

    def to_ints(self) -> list[int]:
        """The cursor as integers."""
        flat = [number for place in self.places for number in place]
        return [self.step, self.round, self.epoch, self.begun_at, *flat, *self.since]

    @classmethod
    def from_ints(cls, ints: list[int]) -> Cursor:
        """What `to_ints` made."""
        num_streams = (len(ints) - 4) // 3
        flat, since = ints[4 : 4 + 2 * num_streams], ints[4 + 2 * num_streams :]
        places = tuple(Place(*flat[k : k + 2]) for k in range(0, len(flat), 2))
        return cls(ints[0], ints[1], ints[2], ints[3], places, tuple(since))


class Item(NamedTuple):
    """One batch of this rank: `size` samples of a stream, from `position` of `epoch` on.

    Attributes:
        stream: the number of the stream.
        epoch: the stream's epoch that the position is counted from.
        position: the first one of this rank; those past the end are in the epochs that follow.
        size: how many.
        rounds_left: batches that follow in the same turn.
        after: where the mix stands when it was handed out.
    """

    stream: int
    epoch: int
    position: int
    size: int
    rounds_left: int
    after: Cursor


@dataclass(frozen=True)
class Walk:
    """What decides about items.

    Attributes:
        mix: which stream comes when.
        batches: for each stream, samples per rank and round.
        rounds: for each stream, batches in a turn; 0 if it never has one.
        length: (stream, epoch) -> samples of that epoch.
        rank: this rank.
        size: how many there are.
        stop: 'never', 'first' or 'all'.
        names: of the streams, for errors.
    """

    mix: Mix
    batches: tuple[int, ...]
    rounds: tuple[int, ...]
    length: Callable[[int, int], int]
    rank: int
    size: int
    stop: str
    names: tuple[str, ...] = ()

    def items(self, cursor: Cursor) -> Iterator[Item]:
        """The batches from a cursor on; those of one pass, if the mix stops."""
        goals = [self.length(i, place.epoch) for i, place in enumerate(self.begun(cursor).places)]
        at = cursor
        for (stream, before, takers), (_, _, next_takers) in itertools.pairwise(self._turns(cursor.step)):
            num_rounds = self.rounds[stream]
            for number in range(at.round, num_rounds):
                place = at.places[stream]
                position = place.position + before * self.batches[stream]
                is_last = number + 1 == num_rounds
                after = self._advanced(at, takers)
                step = at.step + is_last
                begun_at = step if self.stop == "never" else at.begun_at  # where another rule would begin to count
                after = replace(after, step=step, round=0 if is_last else number + 1, begun_at=begun_at)
                has_ended = is_last and self._is_over(after.since, goals, next_takers)
                if has_ended:
                    none = (0,) * len(after.since)
                    after = replace(after, epoch=at.epoch + 1, begun_at=after.step, since=none)
                yield Item(stream, place.epoch, position, self.batches[stream], num_rounds - number - 1, after)
                if has_ended:
                    return
                at = after
            if at.round:  # a state with more rounds than there are now: this turn is over
                at = replace(at, step=at.step + 1, round=0)

    def _turns(self, step: int) -> Iterator[tuple[int, int, dict[int, int]]]:
        """From a step on: this rank's stream, how many ranks before it chose the same, and how many chose each."""
        while True:
            chosen = self.mix.choices(step, _BLOCK, self.size)
            mine = chosen[:, self.rank]
            before = (chosen[:, : self.rank] == mine[:, None]).sum(1)
            is_common = (chosen == mine[:, None]).all(1)
            for k in range(_BLOCK):
                takers = {int(mine[k]): self.size} if is_common[k] else _counted(chosen[k])
                yield int(mine[k]), int(before[k]), takers
            step += _BLOCK

    def _advanced(self, cursor: Cursor, takers: dict[int, int]) -> Cursor:
        places, since = list(cursor.places), list(cursor.since)
        for stream, num_ranks in takers.items():
            taken = num_ranks * self.batches[stream]
            places[stream] = self.moved(stream, places[stream], taken)
            since[stream] += taken if self.stop != "never" else 0
        return replace(cursor, places=tuple(places), since=tuple(since))

    def moved(self, stream: int, place: Place, by: int) -> Place:
        """A place so many samples on, or back."""
        epoch, position = place.epoch, place.position + by
        while position >= (length := self.length(stream, epoch)):
            position, epoch = position - length, epoch + 1
        while position < 0:
            epoch -= 1
            position += self.length(stream, epoch)
        return Place(epoch, position)

    def begun(self, cursor: Cursor) -> Cursor:
        """Where the current pass began."""
        places = tuple(self.moved(i, place, -cursor.since[i]) for i, place in enumerate(cursor.places))
        return replace(cursor, step=cursor.begun_at, round=0, places=places, since=(0,) * len(places))

    def _is_over(self, since: tuple[int, ...], goals: list[int], next_takers: Iterable[int]) -> bool:
        """Whether a stream that comes next has been gone through, or all that are used have."""
        if self.stop == "never":
            return False
        if self.stop == "first":
            return any(since[i] >= goals[i] for i in next_takers)
        return all(since[i] >= goals[i] for i, num_rounds in enumerate(self.rounds) if num_rounds)

    def rounds_at(self, step: int) -> int:
        """Batches of this rank in a turn."""
        return self.rounds[int(self.mix.choices(step, 1, self.size)[0, self.rank])]

    def num_items(self, cursor: Cursor) -> int:
        """Batches of this rank in the whole pass that the cursor is in.

        Whole meta-iterations hold known counts; only those at the pass's beginning and end are looked into.
        """
        begun = self.begun(cursor)
        goals = np.asarray([self.length(i, place.epoch) for i, place in enumerate(begun.places)])
        rounds, per_turn = np.asarray(self.rounds), np.asarray(self.batches) * np.asarray(self.rounds)
        since, found, step = np.zeros_like(goals), 0, begun.step
        last = np.full_like(goals, step)  # the step up to which each stream had turns
        while True:
            begin, end = self.mix.phase(step)
            schedule = self.mix.schedule(begin)
            count = _LONG_BLOCK
            if schedule.kind != "random":
                counts, sub = np.asarray(schedule.counts), (step - begin) % schedule.length
                room = _PATIENCE if end is None else (end - step) // schedule.length
                num = 0 if sub else self._num_whole(goals - since, counts * per_turn * self.size, room)
                if num:
                    since, found = since + num * counts * per_turn * self.size, found + num * int(counts @ rounds)
                    step += num * schedule.length
                    last[counts > 0] = step
                    self._check_turns(since < goals, step - last)
                    continue
                count = min(count, schedule.length - sub)
            chosen = self.mix.choices(step, count, self.size)  # [n, size]
            taken = np.stack([(chosen == i).sum(1) for i in range(len(goals))], axis=1) * per_turn  # [n, streams]
            so_far = since + np.cumsum(taken, axis=0)
            num_rounds = np.cumsum(rounds[chosen[:, self.rank]])
            if self.stop == "first":  # the pass is over before this turn
                over = ((so_far - taken >= goals) & (taken > 0)).any(1)
            else:  # after this one
                over = (so_far >= goals)[:, rounds > 0].all(1)
            if over.any():
                turn = int(over.argmax()) - (self.stop == "first")
                return found + (int(num_rounds[turn]) if turn >= 0 else 0)
            found, since, step = found + int(num_rounds[-1]), so_far[-1], step + count
            last[taken.any(0)] = step
            self._check_turns(since < goals, step - last)

    def _num_whole(self, left: IntArray, per_round: IntArray, room: int) -> int:
        """How many of the next meta-iterations the pass surely outlasts, given what is left of each stream."""
        comes = per_round > 0
        if self.stop == "first":
            return max(0, min(room, int((left[comes] // per_round[comes]).min())))
        if ((left > 0) & ~comes & (np.asarray(self.rounds) > 0)).any():
            return room
        return max(0, min(room, int(((left[comes] - 1) // per_round[comes]).max())))

    def _check_turns(self, is_left: IntArray, idle: IntArray) -> None:
        """With 'all', a stream that never comes again would keep a pass from ending."""
        waits = is_left & (idle >= _PATIENCE) & (np.asarray(self.rounds) > 0)
        if self.stop == "all" and waits.any():
            k = int(waits.argmax())
            raise OptionError(
                f"stop='all' does not come: stream {self.names[k] if self.names else k!r} has no turn in "
                f"{_PATIENCE:,} steps",
                hint="stop='first' or 'never', or let ratios leave it a share",
            )


def _counted(chosen: IntArray) -> dict[int, int]:
    streams, counts = np.unique(chosen, return_counts=True)
    return dict(zip(streams.tolist(), counts.tolist(), strict=True))
