import dataclasses
import pickle
import sys
import types

import pytest

from sds.errors import OptionError
from sds.world import World

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def launch(monkeypatch, *values):
    for name, value in zip(VARIABLES, values, strict=False):
        monkeypatch.setenv(name, str(value))


def test_alone():
    assert World.detect() == World() == World(0, 1, 0, 1)
    assert World().replica == (0, 1)
    assert World().node == (0, 1)


def test_the_variables_of_a_launcher(monkeypatch):
    launch(monkeypatch, 5, 8, 1, 4)
    world = World.detect()
    assert world == World(5, 8, 1, 4)
    assert world.replica == (5, 8)
    assert world.node == (1, 2)


def test_a_launcher_that_gives_no_local_size(monkeypatch):
    launch(monkeypatch, 3, 4, 3)
    assert World.detect() == World(3, 4, 3, 4)


def test_empty_variables_are_unset(monkeypatch):
    launch(monkeypatch, "", " ", "", "")
    assert World.detect() == World()


def test_a_variable_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(OptionError, match="RANK is not a number: 'first'") as caught:
        World.detect()
    assert "RANK" in caught.value.hint


def test_a_rank_without_its_size_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(OptionError, match="3 of 1"):
        World.detect()


@pytest.mark.parametrize(("initialised", "expected"), [(True, (2, 16)), (False, (5, 8))])
def test_an_initialised_process_group_wins(monkeypatch, initialised, expected):
    distributed = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: initialised,
        get_rank=lambda: 2,
        get_world_size=lambda: 16,
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(distributed=distributed))
    launch(monkeypatch, 5, 8, 1, 4)
    world = World.detect()
    assert (world.rank, world.size) == expected
    assert (world.local_rank, world.local_size) == (1, 4)


def test_a_tensor_parallel_group_reads_the_same_share():
    worlds = [World(rank, 8, rank % 4, 4, data_rank=rank // 2, data_size=4) for rank in range(8)]
    assert [world.replica for world in worlds] == [(d, 4) for d in (0, 0, 1, 1, 2, 2, 3, 3)]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"rank": 1}, "rank"),
        ({"rank": -1}, "rank"),
        ({"size": 0}, "rank of size"),
        ({"local_rank": 2, "local_size": 2}, "local_rank"),
        ({"data_rank": 4, "data_size": 4}, "data_rank"),
        ({"data_rank": 0}, "data_size"),
        ({"data_size": 2}, "data_rank"),
    ],
)
def test_impossible_worlds_are_refused(fields, name):
    with pytest.raises(OptionError, match=name) as caught:
        World(**fields)
    assert caught.value.hint


def test_nodes():
    assert [World(r, 8, r % 4, 4).node for r in (0, 3, 4, 7)] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert World(5, 6, 1, 4).node == (1, 2)


def test_it_is_a_frozen_value_that_travels():
    world = World(1, 2)
    assert pickle.loads(pickle.dumps(world)) == world
    assert hash(World(1, 2)) == hash(world)
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.rank = 0
