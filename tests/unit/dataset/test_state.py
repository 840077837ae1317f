"""A state is a few integers: JSON, small, quick to take, and it says what differs when it does not fit."""

from __future__ import annotations

import json
import time

import pytest

import sds
import texts
from sds.dataset.state import PlanKey, State
from sds.errors import StateError, StateMismatch, StateVersion


@pytest.fixture
def state(make):
    dataset = make(shuffle_seed=1)
    iterator = iter(dataset)
    for _ in range(5):
        next(iterator)
    return dataset.state_dict()


def test_it_is_json_and_small(state):
    text = json.dumps(state)
    assert len(text) < 2048
    assert json.loads(text) == state
    assert (state["version"], state["epoch"], state["position"]) == (1, 0, 5)


def test_it_is_small_whatever_the_query(make):
    query = "SELECT * FROM dataframe WHERE " + " OR ".join(f"index = '{i:03d}'" for i in range(40))
    assert len(json.dumps(make(sql_query=query).state_dict())) < 2048


def test_it_is_a_copy(make):
    dataset = make()
    before = dataset.state_dict()
    before["key"]["rows"] = before["position"] = 7
    assert dataset.state_dict()["position"] == 0
    assert dataset.state_dict()["key"]["rows"] == 40


def test_it_takes_microseconds(make):
    dataset = make(shuffle_seed=1, sql_query="SELECT * FROM dataframe")
    next(iter(dataset))
    start = time.perf_counter()
    for _ in range(1000):
        dataset.state_dict()
    assert (time.perf_counter() - start) / 1000 < 100e-6


def test_it_goes_through_its_dict_and_back():
    key = PlanKey("f", 40, None, None)
    for state in (State(key, 2, 7), State(key, 2, 7, (1, 2, 3, 4), 5)):
        assert State.from_dict(json.loads(json.dumps(state.to_dict()))) == state


@pytest.mark.parametrize("wrong", [None, 5, {}, [], {"epoch": 1}])
def test_what_is_no_state_is_refused(make, wrong):
    with pytest.raises(StateError, match="not a state"):
        make().load_state_dict(wrong)


def test_a_state_of_another_version_is_refused(make, state):
    with pytest.raises(StateVersion, match=r"version 2.*reads 1"):
        make(shuffle_seed=1).load_state_dict({**state, "version": 2})


@pytest.mark.parametrize("damage", [{"epoch": "zero"}, {"position": None}, {"key": {}}, {"lane": [1]}])
def test_a_damaged_state_is_refused(make, state, damage):
    with pytest.raises(StateError, match="damaged"):
        make(shuffle_seed=1).load_state_dict({**state, **damage})


@pytest.mark.parametrize("damage", [{"position": -1}, {"position": 41}, {"epoch": -1}])
def test_a_place_that_is_nowhere_is_refused(make, state, damage):
    with pytest.raises(StateError):
        make(shuffle_seed=1).load_state_dict({**state, **damage})


class TestAnotherOrder:
    def test_another_seed_is_named(self, make, state):
        with pytest.raises(StateMismatch, match="shuffle_seed: 1, this dataset has 2") as caught:
            make(shuffle_seed=2).load_state_dict(state)
        assert "shuffle_seed=1" in caught.value.hint

    def test_no_seed_is_another_seed(self, make, state):
        with pytest.raises(StateMismatch, match="shuffle_seed"):
            make().load_state_dict(state)

    def test_another_query_is_named(self, make, state):
        with pytest.raises(StateMismatch, match="sql_query"):
            make(shuffle_seed=1, sql_query="SELECT * FROM dataframe").load_state_dict(state)

    def test_another_index_is_named(self, make, state):
        with pytest.raises(StateMismatch, match=r"40 rows.*39 rows") as caught:
            make(shuffle_seed=1, max_size=39).load_state_dict(state)
        assert "strict=False" in caught.value.hint

    def test_an_appended_index_may_be_let_through(self, make, tmp_path):
        source = texts.write(tmp_path / "growing", 10)
        dataset = make(src=source)
        iterator = iter(dataset)
        assert texts.keys([next(iterator) for _ in range(4)]) == texts.ids(0, 1, 2, 3)
        state = dataset.state_dict()
        texts.write(source, 12)
        grown = make(src=source)
        with pytest.raises(StateMismatch, match="another index"):
            grown.load_state_dict(state)
        grown.load_state_dict(state, strict=False)
        assert texts.keys(grown) == texts.ids(*range(4, 12))

    def test_a_refused_state_changes_nothing(self, make, state):
        dataset = make(shuffle_seed=-1, max_size=39)
        before = dataset.state_dict()
        with pytest.raises(StateMismatch):
            dataset.load_state_dict(state)
        assert dataset.state_dict() == before


def test_a_seed_that_was_drawn_is_gone_on_with(make):
    first, second = make(shuffle_seed=-1), make(shuffle_seed=-1)
    whole = texts.keys(first)
    first.set_epoch(0)
    iterator = iter(first)
    for _ in range(15):
        next(iterator)
    second.load_state_dict(first.state_dict())
    assert texts.keys(second) == whole[15:]
    assert texts.keys(second) == (texts.keys(iterator) and texts.keys(first))


def test_the_state_of_a_single_worker_is_no_state_of_a_dataset(make, state):
    for fresh in (make(shuffle_seed=1), sds.StreamingDataLoader(make(shuffle_seed=1), 4)):
        with pytest.raises(StateError, match="single worker: 0 of 2"):
            fresh.load_state_dict({**state, "lane": [0, 2, 3, 1]})
