"""Ranks agree before the first step: everybody is here, and everybody has the same index, query and seed.

Comes in: what this rank has. Goes out: nothing, or on *all* ranks an error that names the rank that differs, failed or
never came, within a set time. It talks through torch.distributed's key-value store, so no collective can hang on it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from sds.errors import OptionError, SdsError, SourceError, StateMismatch
from sds.world import World

__all__ = ["Agreement", "common_store", "count_as", "num_used", "tell_those_who_wait", "wait_for_reader"]

_POLL_S = 0.02
_FAREWELL_S = 2.0


class Agreement:
    """One dataset's place in the common store. Ranks must begin to iterate their datasets in the same order.

    A dataset with nobody to agree with (`world=World()`, such as one for validation on rank 0 alone) does not count.
    """

    _num_used = 0

    def __init__(self) -> None:
        self._number: int | None = None
        self._is_checked = False
        self._stands_for: tuple[int, ...] = ()

    @property
    def _name(self) -> str:
        """Its place in the store: the next free one, when it is first needed."""
        if self._number is None:
            self._number = Agreement._num_used
            Agreement._num_used += 1
        return f"sds/agreement/{self._number}"

    def stand_for(self, ranks: Sequence[int]) -> None:
        """These ranks have no dataset of their own: this one reads for them."""
        self._stands_for = tuple(ranks)

    def share_seed(self, world: World, draw: Callable[[], int], timeout_s: float) -> int:
        """A seed that rank 0 draws and all ranks use."""
        store = common_store(world)
        if store is None:
            if world.size > 1:
                raise OptionError(
                    "shuffle_seed=-1 needs torch.distributed to share the seed that rank 0 draws",
                    hint="call init_process_group before, or give all ranks the same shuffle_seed",
                )
            return draw()
        with _reaching_the_store():
            if world.rank == 0:
                store.set(f"{self._name}/seed", str(draw()))
            if not self._wait(store, f"{self._name}/seed", time.monotonic() + timeout_s):
                self._raise_failures(store, world)
                raise SourceError(
                    f"rank 0 did not come within {timeout_s:.0f} s to draw the seed",
                    hint="look at the log of rank 0; 5 * `timeout` is how long the others wait",
                    rank=0,
                )
            return int(store.get(f"{self._name}/seed"))

    def announce_failure(self, world: World, error: BaseException) -> None:
        """This rank cannot come: tells the others, so that they need not wait."""
        store = common_store(world)
        if store is not None:
            reason = {"rank": world.rank, "reason": f"{type(error).__name__}: {error}"}
            with contextlib.suppress(dist.DistError):  # the error itself says more
                store.set(f"{self._name}/failed", json.dumps(reason))

    def check(self, world: World, facts: dict[str, Any], timeout_s: float) -> None:
        """Compares what the ranks have, until they have agreed once."""
        if self._is_checked:
            return
        store = common_store(world)
        if store is not None:
            self._compare(store, world, facts, timeout_s)
        self._is_checked = True

    def _compare(self, store: Any, world: World, facts: dict[str, Any], timeout_s: float) -> None:
        with _reaching_the_store():
            for rank in {world.rank, *self._stands_for}:
                store.set(f"{self._name}/{rank}", json.dumps(facts))
            deadline = time.monotonic() + timeout_s
            others = {rank: self._read(store, rank, deadline) for rank in range(world.size)}
            store.set(f"{self._name}/{world.rank}/has read", "")
            try:
                self._raise_failures(store, world)
                _raise_differences(others, timeout_s)
            except SdsError:
                self._let_others_read(store, world)
                raise

    def _let_others_read(self, store: Any, world: World) -> None:
        """Stays a moment before this rank ends: if it holds the store, the others could not read what is wrong."""
        deadline = time.monotonic() + _FAREWELL_S
        with contextlib.suppress(dist.DistError):
            for rank in range(world.size):
                if rank not in self._stands_for and store.check([f"{self._name}/{rank}"]):
                    while not store.check([f"{self._name}/{rank}/has read"]) and time.monotonic() < deadline:
                        time.sleep(_POLL_S)

    def _read(self, store: Any, rank: int, deadline: float) -> dict[str, Any] | None:
        key = f"{self._name}/{rank}"
        if not self._wait(store, key, deadline):
            return None
        facts: dict[str, Any] = json.loads(store.get(key))
        return facts

    def _wait(self, store: Any, key: str, deadline: float) -> bool:
        while not store.check([key]):
            if time.monotonic() > deadline or store.check([f"{self._name}/failed"]):
                return bool(store.check([key]))
            time.sleep(_POLL_S)
        return True

    def _raise_failures(self, store: Any, world: World) -> None:
        if store.check([f"{self._name}/failed"]):
            failed = json.loads(store.get(f"{self._name}/failed"))
            if failed["rank"] != world.rank:
                raise SourceError(
                    f"rank {failed['rank']} could not make its dataset: {failed['reason']}",
                    hint="this rank is fine: look at the log of that one",
                    rank=failed["rank"],
                )


def _raise_differences(found: Mapping[int, dict[str, Any] | None], timeout_s: float) -> None:
    missing = [rank for rank, facts in found.items() if facts is None]
    if missing:
        raise SourceError(
            f"ranks did not come within {timeout_s:.0f} s: {missing}",
            hint="look at the logs of these ranks; 5 * `timeout` is how long the others wait; "
            "a dataset that only some ranks read needs a `world` of its own, such as world=sds.World()",
            rank=missing[0],
        )
    first = found[0] or {}
    for rank, facts in found.items():
        for name, value in (facts or {}).items():
            if value != first.get(name):
                raise StateMismatch(
                    f"ranks have different datasets: {name} is {value!r} on rank {rank} "
                    f"and {first.get(name)!r} on rank 0",
                    hint="give all ranks the same source, query and seed; is an index file stale on one node?",
                    rank=rank,
                )


def wait_for_reader(key: str, reader: int, timeout_s: float) -> Any:
    """For a rank that has no dataset: what the rank that reads for it says under `key` with `tell_those_who_wait`."""
    world = World.detect()
    store = common_store(world)
    agreement = Agreement()
    agreement._number = Agreement._num_used  # the place that the reader's dataset would have
    with _reaching_the_store():
        if not agreement._wait(store, key, time.monotonic() + timeout_s):
            agreement._raise_failures(store, world)
            raise SourceError(
                f"rank {reader}, which reads, did not come within {timeout_s:.0f} s",
                hint="look at the log of that rank",
                rank=reader,
            )
        word = json.loads(store.get(key))
    count_as(word["num_used"])
    return word["word"]


def num_used() -> int:
    """How many datasets of this rank have agreed so far."""
    return Agreement._num_used


def count_as(num_used: int) -> None:
    """For a rank that has no dataset: counts those that a rank that reads for it has used."""
    Agreement._num_used = max(Agreement._num_used, num_used)


def tell_those_who_wait(key: str, word: Any) -> None:
    """For a rank that reads for others: what `wait_for_reader` gives them."""
    with _reaching_the_store():
        common_store(World.detect()).set(key, json.dumps({"word": word, "num_used": Agreement._num_used}))


@contextlib.contextmanager
def _reaching_the_store() -> Iterator[None]:
    try:
        yield
    except dist.DistError as error:
        raise SourceError(
            f"the store of torch.distributed is gone; rank 0, or the launcher, holds it: {error}",
            hint="look at the log of rank 0: it probably ended before this rank",
            rank=0,
        ) from error


def common_store(world: World) -> Any:
    """torch.distributed's own key-value store, if ranks have been brought together."""
    if world.size <= 1 or not (dist.is_available() and dist.is_initialized()):
        return None
    if dist.get_world_size() != world.size:  # a world of the user's own, such as one simulated in a test
        return None
    try:
        return dist.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError) as error:
        raise SdsError(
            f"torch.distributed gives no store: {error}", hint="report this with your torch version"
        ) from error
