"""Where delivery stands: states between the samples of one row, of other ranks, of workers that follow a seed."""

from __future__ import annotations

import pickle

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import sds
import texts
from sds.dataset.state import PlanKey, State
from sds.errors import StateError, StateMismatch
from sds.testing import check_resume


def thrice(sample):
    """Three samples of one row; those of every fourth row are dropped."""
    if sample["__sample_key__"].endswith(("3", "7")):
        return None
    return [{**sample, "__sample_key__": f"{sample['__sample_key__']}/{i}"} for i in range(3)]


def rest(stateful) -> list[str]:
    return texts.keys(stateful)


class TestFanOut:
    def test_goes_on_between_the_samples_of_a_row(self, make):
        def fresh():
            return make(transforms=[thrice], shuffle_seed=3, max_size=10)

        whole = rest(fresh())
        for stop in range(1, len(whole)):
            dataset = fresh()
            iterator = iter(dataset)
            seen = [next(iterator)["__sample_key__"] for _ in range(stop)]
            state = dataset.state_dict()
            again = fresh()
            again.load_state_dict(state)
            assert seen + rest(again) == whole, stop

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_also_under_a_stateful_loader(self, make, num_workers):
        def fresh():
            dataset = make(transforms=[thrice], shuffle_seed=3, max_size=10)
            return StatefulDataLoader(dataset, batch_size=None, num_workers=num_workers)

        whole = rest(fresh())
        for stop in (1, 4, 8):
            loader = fresh()
            iterator = iter(loader)
            seen = [next(iterator)["__sample_key__"] for _ in range(stop)]
            state = loader.state_dict()
            del iterator
            again = fresh()
            again.load_state_dict(state)
            assert seen + rest(again) == whole, stop

    def test_a_loader_survives_every_stop(self, make):
        assert check_resume(lambda: sds.StreamingDataLoader(make(transforms=[thrice], max_size=10), 3)) > 0

    def test_a_loader_says_that_it_cannot_begin_there(self, make):
        dataset = make(transforms=[thrice])
        next(iter(dataset))
        loader = sds.StreamingDataLoader(make(transforms=[thrice]), 2)
        loader.load_state_dict(dataset.state_dict())
        with pytest.raises(StateError, match="between the samples of one row"):
            iter(loader)


class TestTheVeryEnd:
    def test_bare_iteration_and_loader_agree(self, make):
        for stateful in (make(max_size=4), sds.StreamingDataLoader(make(max_size=4), 1)):
            iterator = iter(stateful)
            for _ in range(4):
                next(iterator)
            dataset = getattr(stateful, "dataset", stateful)
            assert dataset.epoch == 1
            assert stateful.state_dict()["epoch"] == 1
            assert next(iter(dataset))["__epoch__"] == 1


class TestOtherIterators:
    def test_do_not_move_what_a_loader_handed_out(self, make):
        dataset = make()
        loader, other = sds.StreamingDataLoader(dataset, 4), sds.StreamingDataLoader(dataset, 2)
        batches = iter(loader)
        next(batches)
        next(batches)
        state = loader.state_dict()
        next(iter(dataset))
        next(iter(other))
        assert loader.state_dict() == state
        assert state["position"] == 8
        dataset.set_epoch(5)
        assert loader.state_dict()["epoch"] == 5


class TestWorkers:
    def test_a_lane_is_of_one_number_of_ranks(self):
        state = State(PlanKey("f", 40, None, None), 0, 4, (0, 2, 3, 2))
        assert state.taken_by(0, 2, data_size=2) == 3
        with pytest.raises(StateError, match="among 2 ranks, here are 3"):
            state.taken_by(0, 2, data_size=3)

    def test_persistent_ones_follow_a_seed_that_was_loaded(self, make):
        first = sds.StreamingDataLoader(make(shuffle_seed=-1), 4)
        batches = iter(first)
        seen = texts.keys([next(batches), next(batches)])
        state = first.state_dict()
        left = texts.keys(batches)
        loader = sds.StreamingDataLoader(make(shuffle_seed=-1), 4, num_workers=2, persistent_workers=True)
        with loader:
            assert len(texts.keys(loader)) == 40  # the workers are there now, with another seed
            loader.load_state_dict(state)
            assert texts.keys(loader) == left
        assert sorted(seen + left) == texts.ids(*range(40))

    def test_also_those_of_a_plain_loader(self, make):
        first = make(shuffle_seed=-1)
        iterator = iter(first)
        for _ in range(5):
            next(iterator)
        state = first.state_dict()
        left = texts.keys(iterator)
        dataset = make(shuffle_seed=-1)
        loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
        assert len(texts.keys(loader)) == 40
        dataset.load_state_dict(state)
        assert texts.keys(loader) == left


def test_a_state_of_an_unaligned_dataset_is_of_such_a_one(make):
    state = make(unaligned_worker_index=True).state_dict()
    with pytest.raises(StateMismatch, match="unaligned_worker_index=True"):
        make().load_state_dict(state)


def test_a_loader_travels(make):
    loader = sds.StreamingDataLoader(make(shuffle_seed=1), 4)
    batches = iter(loader)
    next(batches)
    copied = pickle.loads(pickle.dumps(loader))
    assert texts.keys(copied) == texts.keys(sds.StreamingDataLoader(make(shuffle_seed=1), 4))


def test_secrets_of_a_list_of_sources_are_not_shown(make, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("index\n1\n")
    dataset = make(src=[tmp_path / "a.csv", tmp_path / "b.csv"], columns_to_download=[])
    assert "and 1 more" in dataset.explain()
    assert "and 1 more" in repr(dataset)
