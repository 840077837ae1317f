"""State: the smallest value from which delivery goes on exactly, and what it is compared with.

Comes in: a dict from a checkpoint. Goes out: epoch and position, or an error that names what differs. A state is a few
integers and hashes; everything else is derived. It speaks of what was handed to the caller, not of what was prefetched.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, TypeVar

import msgspec

from sds.errors import StateError, StateMismatch, StateVersion

__all__ = ["BucketsDone", "Count", "State", "PlanKey", "hash_key", "read_state"]

S = TypeVar("S")

VERSION = 1
Count = Annotated[int, msgspec.Meta(ge=0)]
_MOST = 2**40  # samples of a batch, and batches of an epoch: more are a mistake


class PlanKey(msgspec.Struct, frozen=True):
    """What an order is a function of.

    Attributes:
        fingerprint: of the index.
        rows: of the index.
        seed: of the shuffle; None: the index's own order.
        query: a hash of the query.
        unaligned: whether every lane has an order of its own.
        shares: into how many the rows are divided for good.
        weights: the column of weights, and whether a schedule changes them.
        chunks: of a lazy index: rows in a chunk, and how many chunks are shuffled with each other.
    """

    fingerprint: str
    rows: int
    seed: int | None
    query: str | None
    unaligned: bool = False
    shares: int = 1
    weights: str | None = None
    chunks: tuple[int, int] | None = None

    @staticmethod
    def hash_query(query: str | None) -> str | None:
        """A query as a state remembers it."""
        return None if query is None else hashlib.blake2b(query.encode(), digest_size=8).hexdigest()


def read_state(kind: type[S], state: dict[str, Any], version: int) -> S:
    """What a dict with a version says; StateVersion if it is of another release, StateError if it is damaged."""
    if state["version"] != version:
        raise StateVersion(
            f"state has version {state['version']!r}, this release reads {version}",
            hint="load it with the release of sds that wrote it",
        )
    try:
        return msgspec.convert({k: v for k, v in state.items() if k != "version"}, kind)
    except msgspec.ValidationError as error:
        raise StateError(f"state is damaged: {error}", hint="give what state_dict() returned") from None


def hash_key(key: PlanKey) -> str:
    """A short hash of what an order is a function of."""
    return hashlib.blake2b(msgspec.json.encode(key), digest_size=6).hexdigest()


class BucketsDone(msgspec.Struct, frozen=True):
    """What a loader with `bucket_by` has handed out of an epoch.

    Attributes:
        key: a hash that says which rows are of one bucket.
        done: pairs of a global batch size and how many batches of it were handed out, one after the other.
    """

    key: str
    done: tuple[tuple[Annotated[int, msgspec.Meta(ge=1, le=_MOST)], Annotated[int, msgspec.Meta(ge=0, le=_MOST)]], ...]


class State(msgspec.Struct, frozen=True):
    """Where delivery stands.

    Attributes:
        key: the order it is about.
        epoch: the epoch.
        position: the next position of it.
        lane: inside a worker of a plain loader: (worker, number of workers, rows that this worker has handed out since
            `position`, number of shares that ranks read).
        offset: of the row that comes next, the samples that were handed out; not 0 only for a row that was fanned out.
        buckets: in the midst of an epoch in buckets: which batches it was. `position` counts their samples then.
    """

    key: PlanKey
    epoch: Count
    position: Count
    lane: tuple[int, int, int, int] | None = None
    offset: Count = 0
    buckets: BucketsDone | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able copy."""
        facts = msgspec.to_builtins(self)
        if self.buckets is None:
            del facts["buckets"]
        return {"version": VERSION, **facts}

    @classmethod
    def from_dict(cls, state: Any) -> State:
        """Reads what `to_dict` wrote."""
        if not isinstance(state, dict) or "version" not in state:
            hint = "give what state_dict() returned"
            raise StateError(f"this is not a state of sds: {type(state).__name__}", hint=hint)
        return read_state(cls, state, VERSION)

    def taken_by(self, worker: int, num_workers: int, data_size: int) -> int:
        """How many rows of its lane a worker has handed out since `position`; StateError if this is another's."""
        if self.lane is None:
            return 0
        if self.lane[3] != data_size:
            raise StateError(
                f"state is of a worker among {self.lane[3]} ranks, here are {data_size}",
                hint="a StatefulDataLoader goes on with the same number of ranks; StreamingDataLoader with any",
            )
        if self.lane[:2] != (worker, num_workers):
            raise StateError(
                f"state is of worker {self.lane[0]} of {self.lane[1]}, this is worker {worker} of {num_workers}",
                hint="a StatefulDataLoader goes on with the same num_workers; StreamingDataLoader with any",
            )
        return self.lane[2]

    def check(self, key: PlanKey, *, strict: bool = True, length: int | None = None) -> None:
        """Raises StateMismatch if this state belongs to another order than `key`'s; `length` is that of its epoch."""
        mine = self.key
        if mine.query != key.query:
            raise StateMismatch(
                "state is of another sql_query", hint="construct the dataset with the query of the checkpointed run"
            )
        if mine.seed != key.seed:
            raise StateMismatch(
                f"state is of another shuffle_seed: {mine.seed}, this dataset has {key.seed}",
                hint=f"construct the dataset with shuffle_seed={mine.seed}",
            )
        if mine.unaligned != key.unaligned:
            raise StateMismatch(
                f"state is of a dataset with unaligned_worker_index={mine.unaligned}",
                hint=f"construct the dataset with unaligned_worker_index={mine.unaligned}",
            )
        if mine.shares != key.shares:
            raise StateMismatch(
                f"state is of an order in {mine.shares} shares, this dataset has {key.shares}",
                hint=f"construct the dataset with node_affine={mine.shares if mine.shares > 1 else False}",
            )
        if mine.weights != key.weights:
            raise StateMismatch(
                f"state is of an order with other weights: {mine.weights}, this dataset has {key.weights}",
                hint="construct the dataset with the weight_col_name and weight_schedule of the checkpointed run",
            )
        if mine.chunks != key.chunks:
            raise StateMismatch(
                f"state is of an order in other chunks (rows, reach): {mine.chunks}, this dataset has {key.chunks}",
                hint="construct the dataset with lazy_index_chunk_size and lazy_index_reach as in the checkpointed run",
            )
        if self.buckets is not None and (mine.fingerprint, mine.rows) != (key.fingerprint, key.rows):
            raise StateMismatch(
                f"state is of batches in buckets of another index: {mine.rows} rows, this one has {key.rows}",
                hint="which batches those were is known for their index only: end the epoch with it, strict or not; "
                "or leave the state, and set_epoch(n) begins an epoch of this one",
            )
        if strict and (mine.fingerprint, mine.rows) != (key.fingerprint, key.rows):
            raise StateMismatch(
                f"state is of another index: {mine.rows} rows, fingerprint {mine.fingerprint}; "
                f"this one has {key.rows} rows, fingerprint {key.fingerprint}",
                hint="load_state_dict(state, strict=False) goes on at the same position of the new index",
            )
        most = key.rows if length is None else length
        if self.position > most:
            raise StateMismatch(
                f"state's position is outside the index: {self.position} of {most}", hint="is this the right index?"
            )
