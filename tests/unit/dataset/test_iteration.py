"""Bare iteration: exactly once, epochs, states."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

import sds
import texts

ALL = texts.ids(*range(40))


def take(iterator, number):
    return texts.keys(itertools.islice(iterator, number))


class TestOrder:
    def test_none_keeps_it(self, make):
        dataset = make()
        assert texts.keys(dataset) == ALL
        assert texts.keys(dataset) == ALL, "in every epoch"

    def test_a_seed_gives_every_epoch_another(self, make):
        dataset = make(shuffle_seed=1)
        epochs = [texts.keys(dataset) for _ in range(3)]
        assert all(sorted(epoch) == ALL for epoch in epochs)
        assert len({tuple(epoch) for epoch in [ALL, *epochs]}) == 4

    def test_is_a_function_of_seed_and_epoch(self, make):
        one, two = make(shuffle_seed=1), make(shuffle_seed=1, prefetch=1)
        first = texts.keys(one), texts.keys(one)
        two.set_epoch(1)
        assert texts.keys(two) == first[1]
        assert texts.keys(make(shuffle_seed=2)) != first[0]

    def test_a_drawn_seed_is_a_seed(self, make):
        dataset = make(shuffle_seed=-1)
        assert sorted(texts.keys(dataset)) == ALL

    @pytest.mark.parametrize("prefetch", [0, 1, 5, 1000])
    @pytest.mark.parametrize("refill", [None, 0, 3])
    def test_does_not_depend_on_the_window(self, make, prefetch, refill):
        dataset = make(prefetch=prefetch, min_num_pending_tasks_thresh=refill)
        assert texts.keys(dataset) == ALL


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_ranks_get_equally_many_and_together_everything(make, size):
    shares = [texts.keys(make(shuffle_seed=1, world=sds.World(rank, size))) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    counts = Counter(key for share in shares for key in share)
    assert set(counts) == set(ALL)
    assert sum(counts.values()) - 40 < size, "at most D - 1 repeats"


def test_replicas_get_the_same(make):
    worlds = [sds.World(rank, 4, data_rank=rank // 2, data_size=2) for rank in range(4)]
    shares = [texts.keys(make(shuffle_seed=1, world=world)) for world in worlds]
    assert shares[0] == shares[1] and shares[2] == shares[3]
    assert sorted(shares[0] + shares[2]) == ALL


class TestEpochs:
    def test_finishing_advances(self, make):
        dataset = make()
        assert dataset.epoch == 0
        for epoch in range(3):
            assert {sample["__epoch__"] for sample in dataset} == {epoch}
            assert dataset.epoch == epoch + 1

    def test_a_break_and_a_new_iter_begin_it_again(self, make):
        dataset = make(shuffle_seed=1)
        whole = texts.keys(dataset)
        dataset.set_epoch(0)
        assert take(iter(dataset), 7) == whole[:7]
        assert dataset.epoch == 0
        assert texts.keys(dataset) == whole

    def test_set_epoch_begins_at_its_start(self, make):
        dataset = make(shuffle_seed=1)
        take(iter(dataset), 7)
        dataset.set_epoch(2)
        assert dataset.epoch == 2
        assert dataset.state_dict()["position"] == 0
        assert {sample["__epoch__"] for sample in dataset} == {2}

    def test_set_epoch_to_the_epoch_of_a_loaded_state_keeps_its_place(self, make):
        """Trainers call it before every epoch, also before the one that is gone on with."""
        dataset = make(shuffle_seed=1)
        whole = texts.keys(dataset)
        dataset.set_epoch(0)
        take(iter(dataset), 7)
        resumed = make(shuffle_seed=1)
        resumed.load_state_dict(dataset.state_dict())
        resumed.set_epoch(0)
        assert texts.keys(resumed) == whole[7:]
        resumed.load_state_dict(dataset.state_dict())
        resumed.set_epoch(1)
        assert len(texts.keys(resumed)) == 40

    @pytest.mark.parametrize("epoch", [-1, 1.5, "1", None, True])
    def test_set_epoch_takes_a_whole_number(self, make, epoch):
        with pytest.raises(ValueError, match="epoch"):
            make().set_epoch(epoch)


class TestState:
    def test_is_right_at_every_yield(self, make):
        dataset = make(shuffle_seed=1)
        whole = [texts.keys(dataset), texts.keys(dataset)]
        dataset.set_epoch(0)
        for number, _ in enumerate(dataset, start=1):
            resumed = make(shuffle_seed=1)
            resumed.load_state_dict(dataset.state_dict())
            rest = texts.keys(resumed)
            assert rest == (whole[0][number:] if number < 40 else whole[1])

    def test_at_the_very_end_is_the_beginning_of_the_next(self, make):
        dataset = make(shuffle_seed=1)
        texts.keys(dataset)
        state = dataset.state_dict()
        assert (state["epoch"], state["position"]) == (1, 0)
        resumed = make(shuffle_seed=1)
        resumed.load_state_dict(state)
        assert resumed.epoch == 1
        assert texts.keys(resumed) == texts.keys(dataset)

    def test_can_be_gone_on_with_twice_in_a_row(self, make):
        dataset = make(shuffle_seed=1)
        whole = texts.keys(dataset)
        state = None
        delivered = []
        for number in (5, 1, 12, 3, 100):
            dataset = make(shuffle_seed=1)
            if state is not None:
                dataset.load_state_dict(state)
                assert dataset.state_dict() == state, "what was loaded is where it stands"
            delivered += take(iter(dataset), number)
            state = dataset.state_dict()
        assert delivered == whole

    def test_after_an_iteration_that_gave_nothing_is_where_it_began(self, make):
        dataset = make()
        take(iter(dataset), 11)
        state = dataset.state_dict()
        dataset.load_state_dict(state)
        iterator = iter(dataset)
        assert dataset.state_dict() == state
        del iterator
        assert dataset.state_dict() == state

    def test_goes_on_with_another_number_of_ranks(self, make):
        worlds = [sds.World(rank, 2) for rank in range(2)]
        datasets = [make(shuffle_seed=1, world=world) for world in worlds]
        delivered = [key for dataset in datasets for key in take(iter(dataset), 6)]
        states = [dataset.state_dict() for dataset in datasets]
        assert states[0] == states[1]
        for rank in range(4):
            resumed = make(shuffle_seed=1, world=sds.World(rank, 4))
            resumed.load_state_dict(states[0])
            delivered += texts.keys(resumed)
        assert sorted(delivered) == ALL

    def test_of_a_failing_dataset_passes_over_what_failed(self, make):
        transforms = [texts.FailOn(*texts.ids(2, 3))]
        dataset = make(transforms=transforms)
        assert take(iter(dataset), 3) == texts.ids(0, 1, 4)
        resumed = make(transforms=transforms)
        resumed.load_state_dict(dataset.state_dict())
        assert texts.keys(resumed) == texts.ids(*range(5, 40))


def test_a_mix_that_never_stops_has_no_length(make):
    with pytest.raises(TypeError, match="stop='never' has no length"):
        len(sds.interleave([make(), make()], stop="never"))
    assert len(sds.interleave([make(), make()], stop="all")) == 80
