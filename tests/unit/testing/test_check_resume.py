"""The checker finds what it is there to find: each broken loader here has a defect that a user once met."""

import pytest

from sds.testing import Topology, check_resume

ROWS = [f"{i:02}" for i in range(11)]


class Loader:
    """Exact: positions of an epoch whose order is the rows, turned by the epoch."""

    def __init__(self, topology=None, world=None):
        topology = topology or Topology()
        self.size, self.batch = topology.ranks * topology.batch_size, topology.batch_size
        self.rank, self.ranks = (world.rank, world.size) if world else (0, 1)
        self.epoch = self.position = 0
        self.is_loaded = False

    def order(self, epoch):
        return ROWS[epoch:] + ROWS[:epoch]

    def state_dict(self):
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state):
        self.epoch, self.position = state["epoch"], state["position"]
        self.is_loaded = True

    def start(self):
        start = self.position if self.is_loaded else 0
        self.is_loaded = False
        self.position = start
        return start

    def __iter__(self):
        epoch, start = self.epoch, self.start()
        return self.batches(self.order(epoch), start)

    def batches(self, order, start):
        for first in range(start, len(order), self.size):
            part = order[first : first + self.size]
            share = -(-len(part) // self.ranks)
            mine = [part[k % len(part)] for k in range(self.rank * share, (self.rank + 1) * share)]
            self.position = first + self.size
            if self.position >= len(order):
                self.epoch, self.position = self.epoch + 1, 0
            yield {"__sample_key__": mine}


class LosesOne(Loader):
    def load_state_dict(self, state):
        super().load_state_dict({**state, "position": state["position"] + bool(state["position"])})


class RepeatsSome(Loader):
    def load_state_dict(self, state):
        super().load_state_dict({**state, "position": max(0, state["position"] - 1)})


class RestartsOnTheSecondResume(Loader):
    def start(self):
        start = super().start()
        self.position = 0  # until the first batch, the state is that of the beginning
        return start


class ReplaysEpochZero(Loader):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.order = lambda _epoch: ROWS


class SkipsAnEpochAtItsEnd(Loader):
    def load_state_dict(self, state):
        super().load_state_dict({**state, "epoch": state["epoch"] + (state["position"] == 0 and state["epoch"] > 0)})


class SaysHowItIsSpread(Loader):
    def state_dict(self):
        return {**super().state_dict(), "rank": self.rank}


class KeepsEverything(Loader):
    def state_dict(self):
        return {**super().state_dict(), "buffer": ["x" * 100] * 30}


def test_an_exact_loader_passes():
    assert check_resume(Loader, [Topology(1, 4), Topology(2, 3), Topology(3, 2)]) > 50
    assert check_resume(Loader) > 10


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (LosesOne, "1 lost"),
        (RepeatsSome, "repeated"),
        (RestartsOnTheSecondResume, "stopped again after 0 more"),
        (ReplaysEpochZero, "other order"),
        (SkipsAnEpochAtItsEnd, "other order"),
        (SaysHowItIsSpread, "different states"),
        (KeepsEverything, "bytes"),
    ],
)
def test_a_broken_loader_is_found(broken, message):
    with pytest.raises(AssertionError, match=message):
        check_resume(broken, [Topology(1, 4), Topology(2, 2)])
