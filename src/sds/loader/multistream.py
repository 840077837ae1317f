"""MultiStreamDataLoader: several datasets -> one sequence of batches, each of one stream. A pure function of the step.

Comes in: datasets, and for each its options. Goes out: Batch after Batch, with the name of its stream and how many more
batches its optimizer step has. The state says what was handed out; ranks, workers and ratios may change with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sds.dataset.agree import Agreement
from sds.dataset.keywords import check_keywords
from sds.dataset.options import check_choice, check_count, check_world
from sds.dataset.ordered import OrderedDataset
from sds.dataset.state import hash_key
from sds.errors import FetchTimeout, OptionError, TransformError
from sds.events import Stats
from sds.loader.collate import check_collate, collate
from sds.loader.counting import Counting
from sds.loader.life import Life
from sds.loader.making import Making, MakingOptions
from sds.loader.mixing import SCHEDULES, Mix, Ratios
from sds.loader.multistream_checks import check_shares, checked_ratios, checked_streams, numbered_groups, used_streams
from sds.loader.multistream_feed import MixFeed, Stream
from sds.loader.multistream_options import StreamOptions
from sds.loader.multistream_state import MixState, hashed
from sds.loader.multistream_walk import Cursor, Place
from sds.loader.steps import name_stream
from sds.types import Batch, Failure, Sample
from sds.units import parse_bytes
from sds.world import World

__all__ = ["MultiStreamDataLoader"]

_STOPS = ("never", "first", "all")


@check_keywords
class MultiStreamDataLoader(Life):
    """Batches of several streams, in shares. One item is one batch of one stream, a `sds.Batch`.

    Args:
        datasets: one for each of `stream_opts`, in their order; or a dict by the streams' names.
        stream_opts: StreamOptions, or dicts of their fields.
        num_workers: 0 decodes in threads of this process; more runs worker processes, each of which makes whole
            batches of whatever stream comes next.
        shuffle_seed: what random schedules are drawn from; None is 0.
        schedule: 'fixed_random_order', 'random_order', 'consecutive', 'consecutive_interleaved', 'round_robin' (exact
            shares in every meta-iteration), or 'random'.
        counts_precision: decimals that ratios are rounded to.
        stop: 'never'; 'first': a pass is over when it is the turn of a stream that has been gone through; 'all': when
            all have been. Streams go on in the next pass where they were.
        ratios: instead of those in `stream_opts`: [(step, ratios), ...], or a function of the step.
        num_threads: decode threads with num_workers=0, for all streams. Default: the cores that this process may use,
            and one more where samples take long.
        collate_fn: samples -> dict, for streams without one of their own. Default: `sds.loader.collate`.
        pin_memory: put tensors into page-locked memory.
        prefetch_batches: batches made ahead (with workers: per worker), over all streams.
        prefetch_bytes: and at most so many bytes of them, over all streams and workers. None: no limit.
        persistent_workers: keep worker processes between iterations.
        multiprocessing_context: 'fork', 'spawn' or 'forkserver'.
        timeout: seconds to wait for a batch; 0: no limit.
        world: this process among the others. Default: the first dataset's, else detected.
    """

    def __init__(
        self,
        datasets: Sequence[OrderedDataset] | Mapping[str, OrderedDataset],
        stream_opts: Sequence[StreamOptions | Mapping[str, Any]],
        *,
        num_workers: int = 0,
        shuffle_seed: int | None = 42,
        schedule: str = "fixed_random_order",
        counts_precision: int = 6,
        stop: str = "never",
        ratios: Ratios | None = None,
        num_threads: int | None = None,
        collate_fn: Callable[[list[Sample]], Any] | None = None,
        pin_memory: bool = False,
        prefetch_batches: int = 4,
        prefetch_bytes: int | str | None = "2gb",
        persistent_workers: bool = False,
        multiprocessing_context: Any = None,
        timeout: float = 0,
        world: World | None = None,
    ) -> None:
        check_choice("schedule", schedule, SCHEDULES)
        check_choice("stop", stop, _STOPS)
        check_count("counts_precision", counts_precision, minimum=0)
        if shuffle_seed is not None:
            check_count("shuffle_seed", shuffle_seed, minimum=0)
        check_world(world)
        check_collate(collate_fn)
        max_bytes = math.inf if prefetch_bytes is None else parse_bytes(prefetch_bytes, option="prefetch_bytes")
        options = MakingOptions(
            num_workers,
            num_threads,
            pin_memory,
            prefetch_batches,
            persistent_workers,
            multiprocessing_context,
            timeout,
            max_bytes,
        )
        self.streams = checked_streams(datasets, stream_opts)
        self.stop = stop
        self.num_workers = num_workers
        self._world = world
        groups = numbered_groups([stream.options for stream in self.streams])
        shares = checked_ratios(ratios, [stream.options for stream in self.streams], counts_precision)
        self._mix = Mix(schedule, shares, counts_precision, groups, shuffle_seed or 0)
        check_shares(self._mix, stop, [stream.name for stream in self.streams])
        self._feed = MixFeed(
            self.streams, self._mix, collate_fn or collate, stop=stop, world=self.world, used=used_streams(self._mix)
        )
        self._check_rounds()
        self._making = Making(self._feed, options)
        self._counting = Counting(self._datasets.values())
        self._agreement = Agreement()
        self._here: Cursor | None = None  # what was handed out; None: nothing yet
        self._num_jumps = 0
        self._length: tuple[Any, int] | None = None  # of a pass, known by where it began
        self._goes_on = True  # whether the next iteration begins here, or where the current pass began

    # ---- what it was asked for --------------------------------------------------------------------------------------

    def _check_rounds(self) -> None:
        """Ranks of one step must make equally many batches."""
        walk = self._feed.walk()
        rounds: dict[int, tuple[int, str]] = {}
        for group, stream, number in zip(self._mix.groups, self.streams, walk.rounds, strict=True):
            if not number:
                continue
            first, name = rounds.setdefault(group, (number, stream.name))
            if number != first and walk.size > 1:
                raise OptionError(
                    f"streams of one mixing group have different num_accum_rounds: {first} of {name!r}, "
                    f"{number} of {stream.name!r}",
                    hint="ranks take them at the same step: give them the same rounds, or another mixing_group_id",
                )

    @property
    def world(self) -> World:
        """This process among the others."""
        return self._world or self.streams[0].dataset.world

    @property
    def main_stream(self) -> Stream:
        """The stream that was said to be the main one, else the one with the largest ratio."""
        said = [stream for stream in self.streams if stream.options.is_main]
        return said[0] if said else max(self.streams, key=lambda stream: stream.options.ratio)

    @property
    def _datasets(self) -> dict[str, OrderedDataset]:
        return {stream.name: stream.dataset for stream in self.streams}

    @property
    def _mix_key(self) -> str:
        """A hash of what the choices are a function of; two functions of the step are taken for the same."""
        mix = self._mix
        ratios = "function" if callable(mix.ratios) else mix.pieces
        names = [stream.name for stream in self.streams]
        return hashed([mix.kind, ratios, mix.precision, mix.groups, mix.seed, names])

    def stand_for(self, ranks: Sequence[int]) -> None:
        """For a loader that broadcasts: these ranks read nothing themselves, so nobody waits for them."""
        self._agreement.stand_for(ranks)

    # ---- iteration --------------------------------------------------------------------------------------------------

    @property
    def num_jumps(self) -> int:
        """How often it was told to go on somewhere else, by a state."""
        return self._num_jumps

    @property
    def epoch(self) -> int:
        """Passes through the mix that are complete; 0 for ever where it never stops."""
        return self._cursor.epoch

    def __len__(self) -> int:
        """Batches of this rank in the current pass."""
        if self.stop == "never":
            raise TypeError("a mix that never stops has no length")
        walk = self._feed.walk()
        key = walk.begun(self._cursor), walk.mix.origin, walk.rank, walk.size
        if self._length is None or self._length[0] != key:
            self._length = key, walk.num_items(self._cursor)
        return self._length[1]

    @property
    def _cursor(self) -> Cursor:
        """What was handed out; before anything was, datasets may still be told where to begin."""
        if self._here is None:
            places = tuple(Place(*stream.dataset.progress.coming()[:2]) for stream in self.streams)
            return Cursor(0, 0, 0, 0, places, (0,) * len(places))
        return self._here

    def __iter__(self) -> Iterator[Batch]:
        """Batches from where the mix stands; one that stops begins its current pass again, unless it was loaded."""
        self._stop()
        self._feed.world = self.world
        self._check_rounds()
        cursor = self._cursor
        if self.stop != "never" and not self._goes_on:
            cursor = self._feed.walk().begun(cursor)
        facts = {stream.name: hash_key(stream.dataset.plan_key) for stream in self.streams}
        facts |= {"mix": self._mix_key, "position": str(self._feed.start(cursor))}
        self._agreement.check(self.world, facts, max(stream.dataset.patience_s for stream in self.streams))
        self._here, self._goes_on = cursor, False
        return self._run(self._batches(cursor))

    def _batches(self, cursor: Cursor) -> Iterator[Batch]:
        tally = self._counting.tally
        tally.begin()
        made = self._making.batches(self._feed.start(cursor), tally)
        try:
            for item in self._feed.walk().items(cursor):
                stream = self.streams[item.stream]
                try:
                    raw, num_samples = next(made)
                except FetchTimeout as error:  # workers do not say whose batch they are late with
                    name_stream(error, stream.name)
                    raise
                tally.delivered(num_samples)
                stream.dataset.tally.begin()
                stream.dataset.tally.delivered(num_samples)
                batch = _labelled(raw, stream)
                batch.num_accum_rounds_left = item.rounds_left
                self._here = item.after
                yield batch
        finally:
            made.close()  # type: ignore[attr-defined]  # a generator

    # ---- state and life ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where delivery stands: a small JSON-able copy, the same on all ranks."""
        cursor = self._cursor
        rounds = self._feed.walk().rounds_at(cursor.step) if cursor.round else 0
        return MixState.of(self._mix_key, self._mix.origin, cursor, self._datasets, rounds).to_dict()

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """The next iteration goes on where the state says, on any number of ranks and workers.

        With other ratios or another schedule, every stream goes on where it was, and the first meta-iteration of the
        new schedule begins there. In the midst of a turn that has other rounds now, as much of them is left as was.

        Args:
            state: what `state_dict()` returned.
            strict: False lets streams of other indexes, new ones and missing ones through.

        Raises:
            StateMismatch: a stream is of another index, query or seed; it is named.
        """
        self._stop()
        loaded = MixState.from_dict(state)
        loaded.check(self._datasets, strict=strict)
        cursor = loaded.adopt(self._datasets, self._cursor)
        is_same = loaded.mix == self._mix_key
        if not is_same and cursor.round:  # the turn that was under way is not in the new schedule
            cursor = replace(cursor, step=cursor.step + 1, round=0)
        self._mix = self._feed.mix = self._mix.begun_at(loaded.origin if is_same else cursor.step)
        if cursor.round and loaded.rounds:
            rounds = self._feed.walk().rounds_at(cursor.step)
            cursor = replace(cursor, round=min(cursor.round * rounds // loaded.rounds, rounds - 1))
        self._here, self._goes_on = cursor, True
        self._num_jumps += 1

    def stats(self) -> Stats:
        """What happened since this loader was made, over all streams, this process and its workers."""
        return self._counting.stats(self._datasets.values(), self._making.crew)

    def quarantine(self) -> dict[str, list[Failure]]:
        """The rows that failed, by stream."""
        return {stream.name: stream.dataset.quarantine() for stream in self.streams}

    def _failures(self) -> list[Failure]:
        return [failure for stream in _distinct(self.streams) for failure in stream.dataset.quarantine()]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_agreement": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _agreement=Agreement())


def _distinct(streams: Sequence[Stream]) -> list[Stream]:
    return list({id(stream.dataset): stream for stream in streams}.values())


def _labelled(raw: Any, stream: Stream) -> Batch:
    """A collated batch with the name of its stream."""
    if not isinstance(raw, Mapping):
        hint = "in a mix, collate_fn returns a dict"
        raise TransformError(
            f"stream {stream.name!r}: batch is no dict: {type(raw).__name__}", hint=hint, stage="collate"
        )
    batch = raw if type(raw) is Batch else Batch(raw)
    batch.stream_name, batch.data_type = stream.name, stream.dataset.data_type
    return batch
