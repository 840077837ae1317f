"""The state of a mix: step, and each stream's place in its own order. JSON-able, equal on all ranks, small.

Comes in: a dict from a checkpoint. Goes out: a cursor, or an error that names the stream that differs. Streams are
found by their names; ratios may be others than before, then the schedule begins anew where the state says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from sds.dataset.ordered import OrderedDataset
from sds.dataset.state import Count, State, hash_key, read_state
from sds.errors import StateError, StateMismatch
from sds.loader.multistream_walk import Cursor, Place

__all__ = ["MixState", "hashed"]

VERSION = 1


class StreamState(msgspec.Struct, frozen=True):
    """Where one stream stands, in an order that is known by a short hash."""

    key: str
    rows: int
    seed: int | None
    epoch: Count
    position: Count
    since: Count


class MixState(msgspec.Struct, frozen=True):
    """Where a mix stands.

    Attributes:
        mix: a hash of what its choices are a function of, beside the step.
        origin: the step at which that mix began.
        step: the turn that comes next, or is under way.
        round: its batches that were handed out.
        epoch: passes that are complete.
        begun_at: the step at which the current pass began.
        streams: by name.
        rounds: the batches that the turn under way has; 0: unknown, or none is under way.
    """

    mix: str
    origin: Count
    step: Count
    round: Count
    epoch: Count
    begun_at: Count
    streams: dict[str, StreamState]
    rounds: Count = 0

    @classmethod
    def of(
        cls, mix: str, origin: int, cursor: Cursor, datasets: Mapping[str, OrderedDataset], rounds: int = 0
    ) -> MixState:
        """The state at a cursor, in a turn of so many rounds."""
        streams = {}
        for (name, dataset), place, since in zip(datasets.items(), cursor.places, cursor.since, strict=True):
            key = dataset.plan_key
            streams[name] = StreamState(hash_key(key), key.rows, key.seed, place.epoch, place.position, since)
        return cls(mix, origin, cursor.step, cursor.round, cursor.epoch, cursor.begun_at, streams, rounds)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able copy."""
        return {"version": VERSION, **msgspec.to_builtins(self)}

    @classmethod
    def from_dict(cls, state: Any) -> MixState:
        """Reads what `to_dict` wrote."""
        if not isinstance(state, dict) or "version" not in state or "streams" not in state:
            hint = "give what state_dict() of a MultiStreamDataLoader returned"
            raise StateError(f"this is not a state of a mix: {type(state).__name__}", hint=hint)
        return read_state(cls, state, VERSION)

    def check(self, datasets: Mapping[str, OrderedDataset], *, strict: bool) -> None:
        """Raises StateMismatch, which names the stream, if a stream is missing or its order is another."""
        for name, dataset in datasets.items():
            here = self.streams.get(name)
            if here is None and not strict:
                continue
            if here is None:
                raise StateMismatch(
                    f"stream {name!r}: the state has no such stream, it has {sorted(self.streams)}",
                    hint="load_state_dict(state, strict=False) begins it at its start",
                )
            key = dataset.expected_key(here.seed)
            if here.seed != key.seed:
                raise StateMismatch(
                    f"stream {name!r}: state is of another shuffle_seed: {here.seed}, this dataset has {key.seed}",
                    hint=f"construct the dataset with shuffle_seed={here.seed}",
                )
            if strict and here.key != hash_key(key):
                raise StateMismatch(
                    f"stream {name!r}: state is of another index or query: {here.rows} rows, this one has {key.rows}",
                    hint="load_state_dict(state, strict=False) goes on at the same position of the new index",
                )
            if here.position > (length := dataset.length(here.epoch)):
                raise StateMismatch(
                    f"stream {name!r}: state's position is outside the index: {here.position} of {length}",
                    hint="is this the right index?",
                )
        gone = [name for name in self.streams if name not in datasets]
        if gone and strict:
            raise StateMismatch(
                f"stream {gone[0]!r}: the state has it, this loader has not",
                hint="give it a ratio of 0 to keep its place; load_state_dict(state, strict=False) forgets it",
            )

    def adopt(self, datasets: Mapping[str, OrderedDataset], default: Cursor) -> Cursor:
        """Hands the places, and seeds that were drawn, to the datasets; streams that are new stay where they are."""
        places, since = list(default.places), list(default.since)
        for k, (name, dataset) in enumerate(datasets.items()):
            here = self.streams.get(name)
            if here is not None:
                key = dataset.expected_key(here.seed)
                dataset.adopt(key)
                dataset.progress.load(State(key, here.epoch, here.position))
                places[k], since[k] = Place(here.epoch, here.position), here.since
        return Cursor(self.step, self.round, self.epoch, self.begun_at, tuple(places), tuple(since))


def hashed(facts: Any) -> str:
    """A hash of plain values."""
    return hashlib.blake2b(msgspec.json.encode(facts), digest_size=6).hexdigest()
