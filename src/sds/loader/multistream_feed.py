"""The steps of a mix for threads and workers, with a window of files for each stream.

Every stream fetches ahead in its own window, so that one whose files come slowly has been asked for them long before
its turn, and takes nothing from the others. Windows are sized by the streams' shares: together they are about as far
ahead as one or two windows of a dataset.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sds.dataset.ordered import OrderedDataset
from sds.dataset.slots import Slot, Work, open_window
from sds.loader.feeds import Source
from sds.loader.mixing import Mix
from sds.loader.multistream_options import StreamOptions
from sds.loader.multistream_walk import Cursor, Item, Walk
from sds.loader.steps import Collate, StepJob, name_stream, take_slots
from sds.world import World

__all__ = ["MixFeed", "Stream"]

_LOOK_AHEAD = 512  # batches of this process that are looked at for files to ask for


@dataclass(frozen=True)
class Stream:
    """A dataset with its share in a mix."""

    dataset: OrderedDataset
    options: StreamOptions

    @property
    def name(self) -> str:
        """Its name."""
        return self.options.name


class MixFeed:
    """The steps of a mix. A start is the step where its schedule begins, and a cursor."""

    def __init__(
        self, streams: Sequence[Stream], mix: Mix, collate: Collate, *, stop: str, world: World, used: Sequence[bool]
    ) -> None:
        self.streams = list(streams)
        self.mix = mix
        self.world = world
        self._collate = collate
        self._stop = stop
        self._used = tuple(used)

    @property
    def sources(self) -> list[Source]:
        """The deliveries of all streams, with their names."""
        return [(each.name, delivery) for each in self.streams for delivery in each.dataset.deliveries]

    @property
    def start_size(self) -> int:
        """How many integers a start has."""
        return 1 + 4 + 3 * len(self.streams)

    def start(self, cursor: Cursor) -> list[int]:
        """A start at a cursor."""
        return [self.mix.origin, *cursor.to_ints()]

    def follow(self) -> None:
        """In a worker: takes over seeds that its parent found in a state."""
        for stream in self.streams:
            stream.dataset.follow_seed()

    def walk(self, origin: int | None = None) -> Walk:
        """The walk of this rank."""
        rank, size = self.world.replica
        sizes = [stream.options.batches(size) for stream in self.streams]
        mix = self.mix if origin is None else self.mix.begun_at(origin)
        return Walk(
            mix,
            tuple(batch for batch, _ in sizes),
            tuple(rounds if used else 0 for (_, rounds), used in zip(sizes, self._used, strict=True)),
            lambda stream, epoch: self.streams[stream].dataset.length(epoch),
            rank,
            size,
            self._stop,
            tuple(stream.name for stream in self.streams),
        )

    def steps(self, start: Sequence[int], worker: int, num_workers: int) -> Iterator[StepJob]:
        """The steps that are this worker's, from a start on."""
        walk, cursor = self.walk(start[0]), Cursor.from_ints(list(start[1:]))
        items = (item for number, item in enumerate(walk.items(cursor)) if number % num_workers == worker)
        queues = [_Queue(stream, self.world) for stream in self.streams]
        windows = [
            open_window(q, *w) for q, w in zip(queues, self._windows(walk, cursor.step, num_workers), strict=True)
        ]
        coming: deque[Item] = deque()
        number = 0
        try:
            while True:
                while len(coming) < _LOOK_AHEAD and (item := next(items, None)) is not None:
                    coming.append(item)
                    queues[item.stream].items.append(item)
                if not coming:
                    return
                yield self._step(number, coming.popleft(), windows)
                number += 1
        finally:
            for window in windows:
                window.close()  # type: ignore[attr-defined]  # a generator

    def _step(self, number: int, item: Item, windows: list[Iterator[Slot]]) -> StepJob:
        stream = self.streams[item.stream]
        try:
            slots = take_slots(windows[item.stream], item.size)
        except Exception as error:
            name_stream(error, stream.name)
            raise
        return StepJob(number, slots, stream.options.collate_fn or self._collate, stream.name)

    def _windows(self, walk: Walk, step: int, num_workers: int) -> list[tuple[int, int | None]]:
        """How far each stream fetches ahead: its share of what it would alone, now or in a phase to come.

        But no less than an equal share, since a stream that seldom comes may be slow, and no less than two batches.
        """
        per_turn = np.asarray(walk.batches) * np.asarray(walk.rounds)
        taken = np.asarray([schedule.counts for schedule in walk.mix.from_step(step)]) * per_turn  # [phases, streams]
        shares = (taken / taken.sum(1, keepdims=True)).max(0)
        least = 1 / sum(rounds > 0 for rounds in walk.rounds)
        found: list[tuple[int, int | None]] = []
        for stream, batch, share in zip(self.streams, walk.batches, shares.tolist(), strict=True):
            ahead, refill_below = stream.dataset.window_of(num_workers)
            found.append((max(2 * batch, math.ceil(ahead * max(share, least))), refill_below))
        return found


class _Queue(Iterator[Work]):
    """Work of one stream, as far as it is known by now. It may have ended for a moment, and go on."""

    def __init__(self, stream: Stream, world: World) -> None:
        self.items: deque[Item] = deque()
        self._stream = stream
        self._world = world
        self._current: Iterator[Any] = iter(())

    def __next__(self) -> Work:
        while True:
            for work in self._current:
                return work  # type: ignore[no-any-return]
            if not self.items:
                raise StopIteration
            item = self.items.popleft()
            positions = item.position + np.arange(item.size, dtype=np.int64)
            self._current = self._stream.dataset.work(self._world, item.epoch, [positions])
