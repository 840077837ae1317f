"""A dataset under torch's DataLoader and torchdata's StatefulDataLoader, with and without worker processes."""

from __future__ import annotations

import itertools

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import sds
import texts
from sds.errors import StateError

ALL = texts.ids(*range(40))


def take(iterator, number):
    return texts.keys(itertools.islice(iterator, number))


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
