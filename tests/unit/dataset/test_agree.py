"""What an Agreement does after ranks did not agree; the ranks themselves: tests/integration/test_distributed.py."""

from __future__ import annotations

import json

import pytest
import torch.distributed as dist

from sds.dataset import agree
from sds.errors import SourceError, StateMismatch
from sds.world import World

WORLD = World(0, 2)


@pytest.fixture
def store(monkeypatch):
    """A store without processes, in which a test speaks for rank 1."""
    store = dist.HashStore()
    monkeypatch.setattr(agree, "common_store", lambda world: store)
    monkeypatch.setattr(agree, "_FAREWELL_S", 0.0)
    monkeypatch.setattr(agree.Agreement, "_num_used", 0)
    return store


def test_ranks_that_differ_are_told_so_every_time(store):
    store.set("sds/agreement/0/1", json.dumps({"seed": 8}))
    agreement = agree.Agreement()
    for _ in range(2):
        with pytest.raises(StateMismatch, match="seed is 8 on rank 1") as caught:
            agreement.check(WORLD, {"seed": 7}, 0.1)
        assert caught.value.rank == 1 and caught.value.hint


def test_a_rank_that_came_too_late_may_still_agree(store):
    agreement = agree.Agreement()
    with pytest.raises(SourceError, match=r"did not come within 0 s: \[1\]"):
        agreement.check(WORLD, {"seed": 7}, 0.05)
    store.set("sds/agreement/0/1", json.dumps({"seed": 7}))
    agreement.check(WORLD, {"seed": 7}, 0.05)
    store.set("sds/agreement/0/1", json.dumps({"seed": 8}))
    agreement.check(WORLD, {"seed": 7}, 0.05)  # once they have agreed, nobody asks again


def test_a_seed_that_nobody_draws_is_an_error_with_a_hint(store):
    with pytest.raises(SourceError, match="to draw the seed") as caught:
        agree.Agreement().share_seed(World(1, 2), lambda: 3, 0.05)
    assert caught.value.rank == 0 and "rank 0" in caught.value.hint
