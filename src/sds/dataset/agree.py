"""Ranks agree before the first step: everybody is here, and everybody has the same index, query and seed.

Comes in: what this rank has. Goes out: nothing, or on *all* ranks an error that names the rank that differs, failed or
never came, within a set time. It talks through torch.distributed's key-value store, so no collective can hang on it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from sds.errors import OptionError, SdsError, SourceError, StateMismatch
from sds.world import World

__all__ = ["Agreement"]

_POLL_S = 0.02


class Agreement:
    """One dataset's place in the common store. Ranks must construct their datasets in the same order."""

    _num_made = 0

    def __init__(self) -> None:
        self._name = f"sds/agreement/{Agreement._num_made}"
        Agreement._num_made += 1
        self._is_checked = False

    def share_seed(self, world: World, draw: Callable[[], int], timeout_s: float) -> int:
        """A seed that rank 0 draws and all ranks use."""
        store = _store(world)
        if store is None:
            if world.size > 1:
                raise OptionError(
                    "shuffle_seed=-1 needs torch.distributed to share the seed that rank 0 draws",
                    hint="call init_process_group before, or give all ranks the same shuffle_seed",
                )
            return draw()
        if world.rank == 0:
            store.set(f"{self._name}/seed", str(draw()))
        if not self._wait(store, f"{self._name}/seed", time.monotonic() + timeout_s):
            self._raise_failures(store, world)
            raise SourceError(f"rank 0 did not come within {timeout_s:.0f} s to draw the seed", rank=0)
        return int(store.get(f"{self._name}/seed"))

    def announce_failure(self, world: World, error: BaseException) -> None:
        """This rank cannot come: tells the others, so that they need not wait."""
        store = _store(world)
        if store is not None:
            reason = {"rank": world.rank, "reason": f"{type(error).__name__}: {error}"}
            store.set(f"{self._name}/failed", json.dumps(reason))

    def check(self, world: World, facts: dict[str, Any], timeout_s: float) -> None:
        """Compares what the ranks have, once."""
        if self._is_checked:
            return
        self._is_checked = True
        store = _store(world)
        if store is None:
            return
        store.set(f"{self._name}/{world.rank}", json.dumps(facts))
        deadline = time.monotonic() + timeout_s
        others = {rank: self._read(store, rank, deadline) for rank in range(world.size)}
        self._raise_failures(store, world)
        missing = [rank for rank, theirs in others.items() if theirs is None]
        if missing:
            hint = "look at the logs of these ranks; `timeout` sets how long the others wait"
            raise SourceError(f"ranks did not come within {timeout_s:.0f} s: {missing}", hint=hint, rank=missing[0])
        for rank, theirs in others.items():
            assert theirs is not None
            differing = [name for name in facts if theirs.get(name) != (others[0] or {}).get(name)]
            if differing:
                name = differing[0]
                raise StateMismatch(
                    f"ranks have different datasets: {name} is {theirs.get(name)!r} on rank {rank} "
                    f"and {(others[0] or {}).get(name)!r} on rank 0",
                    hint="give all ranks the same source, query and seed; is an index file stale on one node?",
                    rank=rank,
                )

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


def _store(world: World) -> Any:
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
