"""Bare iteration and torch's own DataLoader: exactly once, epochs, states."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import sds
import texts
from sds.errors import StateError

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


class TestUnderTorchsDataLoader:
    """Workers are forked here; the other start methods are slow to start and have their tests in integration."""

    @pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
    def test_everything_comes_once(self, make, num_workers):
        loader = DataLoader(make(shuffle_seed=1, transforms=[texts.read]), batch_size=3, num_workers=num_workers)
        batches = list(loader)
        assert sorted(texts.keys(batches)) == ALL
        assert all(t == f"text {k}" for b in batches for t, k in zip(b["txt"], b["__sample_key__"], strict=True))

    @pytest.mark.parametrize("persistent", [False, True])
    def test_epochs_advance_and_differ_whatever_the_workers_life(self, make, persistent):
        dataset = make(shuffle_seed=1)
        loader = DataLoader(dataset, batch_size=5, num_workers=2, persistent_workers=persistent)
        epochs = []
        for epoch in range(3):
            assert dataset.epoch == epoch
            epochs.append(texts.keys(loader))
        assert all(sorted(each) == ALL for each in epochs)
        assert len({tuple(each) for each in epochs}) == 3

    def test_set_epoch_reaches_persistent_workers(self, make):
        dataset = make(shuffle_seed=1)
        loader = DataLoader(dataset, batch_size=5, num_workers=2, persistent_workers=True)
        first = texts.keys(loader)
        dataset.set_epoch(0)
        assert texts.keys(loader) == first

    @pytest.mark.parametrize("persistent", [False, True])
    def test_a_break_begins_the_epoch_again(self, make, persistent):
        dataset = make(shuffle_seed=1)
        loader = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=persistent)
        first = next(iter(loader))["__sample_key__"]
        whole = texts.keys(loader)
        assert whole[:2] == first
        assert sorted(whole) == ALL

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_ranks_and_workers(self, make, num_workers):
        shares = [
            texts.keys(DataLoader(make(world=sds.World(rank, 3)), batch_size=4, num_workers=num_workers))
            for rank in range(3)
        ]
        assert {len(share) for share in shares} == {14}
        assert set().union(*shares) == set(ALL)

    def test_the_state_without_workers_counts_whole_batches(self, make):
        dataset = make(shuffle_seed=1)
        iterator = iter(DataLoader(dataset, batch_size=6))
        delivered = [*texts.keys([next(iterator), next(iterator)])]
        resumed = make(shuffle_seed=1)
        resumed.load_state_dict(dataset.state_dict())
        assert sorted(delivered + texts.keys(DataLoader(resumed, batch_size=7))) == ALL

    def test_with_workers_the_parent_cannot_know_the_state_and_says_so(self, make):
        dataset = make()
        loader = DataLoader(dataset, batch_size=4, num_workers=2)
        dataset.state_dict()
        next(iter(loader))
        with pytest.raises(StateError, match="plain DataLoader") as caught:
            dataset.state_dict()
        assert "StreamingDataLoader" in caught.value.hint
        dataset.set_epoch(0)
        assert dataset.state_dict()["position"] == 0, "until the parent says where things stand"

    @pytest.mark.parametrize("persistent", [False, True])
    def test_workers_go_on_from_a_loaded_state_once(self, make, persistent):
        dataset = make(shuffle_seed=1)
        whole = texts.keys(dataset)
        dataset.set_epoch(0)
        take(iter(dataset), 25)
        state = dataset.state_dict()
        resumed = make(shuffle_seed=1)
        loader = DataLoader(resumed, batch_size=2, num_workers=2, persistent_workers=persistent)
        if persistent:
            texts.keys(loader)  # these workers are older than the state
        resumed.load_state_dict(state)
        assert sorted(texts.keys(loader)) == sorted(whole[25:])
        assert resumed.epoch == 1
        assert sorted(texts.keys(loader)) == ALL, "the next epoch is whole"

    def test_on_error_raise_reaches_the_loop(self, make):
        dataset = make(transforms=[texts.FailOn("011")], on_error="raise")
        batches = iter(DataLoader(dataset, batch_size=4, num_workers=2))
        with pytest.raises(sds.errors.TransformError, match="no luck with 011"):
            list(batches)
        batches._shutdown_workers()  # torch leaves it to the collector of cycles, which takes seconds


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("num_workers", [0, 2, 3])
class TestUnderTorchdatasStatefulDataLoader:
    def loader(self, make, num_workers, **options):
        return StatefulDataLoader(make(shuffle_seed=1), batch_size=3, num_workers=num_workers, **options)

    def epochs(self, make, num_workers, number):
        loader = self.loader(make, num_workers)
        return [[batch["__sample_key__"] for batch in loader] for _ in range(number)]

    def test_goes_on_from_everywhere(self, make, num_workers):
        whole = self.epochs(make, num_workers, 2)
        loader = self.loader(make, num_workers)
        states = [(0, 0, loader.state_dict())]
        for epoch in range(2):
            states += [(epoch, number, loader.state_dict()) for number, _ in enumerate(loader, start=1)]
        # around the ends of epochs, where one worker is done and another is not, and a few in between
        length = len(whole[0])
        for epoch, number, state in states:
            if number not in (0, 5) and number < length - 2:
                continue
            resumed = self.loader(make, num_workers)
            resumed.load_state_dict(state)
            rest = [batch["__sample_key__"] for batch in resumed]
            if number < length:
                assert rest == whole[epoch][number:], (epoch, number)
            elif epoch == 0:  # the very end is the beginning of the next; without workers torchdata ends this one first
                assert (rest or [batch["__sample_key__"] for batch in resumed]) == whole[1]

    @pytest.mark.parametrize("persistent", [False, True])
    def test_a_state_between_epochs_goes_on_with_the_next_twice_in_a_row(self, make, num_workers, persistent):
        options = {"persistent_workers": persistent and num_workers > 0}
        whole = self.epochs(make, num_workers, 3)
        loader = self.loader(make, num_workers, **options)
        list(loader)
        for epoch in (1, 2):
            state = loader.state_dict()
            loader = self.loader(make, num_workers, **options)
            loader.load_state_dict(state)
            assert [batch["__sample_key__"] for batch in loader] == whole[epoch]

    def test_goes_back_in_the_same_process(self, make, num_workers):
        whole = self.epochs(make, num_workers, 2)
        loader = self.loader(make, num_workers)
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = loader.state_dict()
        list(iterator)
        list(loader)
        loader.load_state_dict(state)
        assert [[batch["__sample_key__"] for batch in loader] for _ in range(2)] == [whole[0][3:], whole[1]]
