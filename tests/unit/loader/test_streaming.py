"""StreamingDataLoader: the same global batches whoever makes them, exactly once, and a state that fits everywhere."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

import sds
import texts
from sds.errors import OptionError, StateMismatch
from sds.testing import Topology, check_resume

ALL = texts.ids(*range(40))


def global_batches(make, ranks, batch_size, *, drop_last=False, dataset=None, **loader):
    """The batches of all ranks, step by step; that ranks make equally many is checked on the way."""
    loaders = [
        sds.StreamingDataLoader(
            make(shuffle_seed=1, **(dataset or {})),
            batch_size,
            drop_last=drop_last,
            world=sds.World(rank, ranks),
            **loader,
        )
        for rank in range(ranks)
    ]
    assert len({len(each) for each in loaders}) == 1
    steps = [texts.keys(step) for step in zip(*loaders, strict=True)]
    assert len(steps) == len(loaders[0])
    return steps


class TestGlobalBatches:
    @pytest.mark.parametrize("batch", [6, 12])
    def test_are_the_same_for_any_ranks_and_threads(self, make, batch):
        alone = global_batches(make, 1, batch)
        for ranks in (2, 3, 6):
            for num_threads in (1, 3):
                spread = global_batches(make, ranks, batch // ranks, num_threads=num_threads)
                assert spread[:-1] == alone[:-1]
                assert set(spread[-1]) == set(alone[-1]), "the tail is split evenly, with repeats from within"

    @pytest.mark.parametrize(("ranks", "num_workers"), [(1, 1), (1, 3), (2, 2), (3, 1)])
    def test_are_the_same_for_any_workers(self, make, ranks, num_workers):
        assert global_batches(make, ranks, 6 // ranks, num_workers=num_workers) == global_batches(
            make, ranks, 6 // ranks
        )

    @pytest.mark.parametrize("ranks", [1, 2, 3, 4])
    @pytest.mark.parametrize("batch_size", [1, 3, 7, 64])
    def test_have_every_row_once(self, make, ranks, batch_size):
        counts = Counter(key for step in global_batches(make, ranks, batch_size, num_threads=1) for key in step)
        assert set(counts) == set(ALL)
        assert sum(counts.values()) - 40 < ranks

    @pytest.mark.parametrize("ranks", [1, 2, 3])
    @pytest.mark.parametrize("batch_size", [1, 3, 7, 13])
    def test_are_all_full_with_drop_last(self, make, ranks, batch_size):
        steps = global_batches(make, ranks, batch_size, drop_last=True, num_threads=1)
        assert len(steps) == 40 // (ranks * batch_size)
        counts = Counter(key for step in steps for key in step)
        assert set(counts.values()) <= {1}
        assert all(len(step) == ranks * batch_size for step in steps)

    def test_differ_by_epoch(self, make):
        loader = sds.StreamingDataLoader(make(shuffle_seed=1), 6)
        epochs = [texts.keys(loader) for _ in range(3)]
        assert len({tuple(each) for each in epochs}) == 3
        assert all(sorted(each) == ALL for each in epochs)

    def test_replicas_get_the_same(self, make):
        worlds = [sds.World(rank, 4, data_rank=rank % 2, data_size=2) for rank in range(4)]
        shares = [texts.keys(sds.StreamingDataLoader(make(shuffle_seed=1), 5, world=world)) for world in worlds]
        assert shares[0] == shares[2] != shares[1] == shares[3]

    def test_the_loaders_world_wins(self, make):
        dataset = make(world=sds.World(1, 2))
        assert texts.keys(sds.StreamingDataLoader(dataset, 10)) == ALL[10:20] + ALL[30:]
        dataset.set_epoch(0)
        assert texts.keys(sds.StreamingDataLoader(dataset, 10, world=sds.World(0, 2))) == ALL[:10] + ALL[20:30]


class TestLength:
    @pytest.mark.parametrize(
        ("batch_size", "drop_last", "expected"), [(7, False, 6), (7, True, 5), (40, True, 1), (41, True, 0)]
    )
    def test_is_exact(self, make, batch_size, drop_last, expected):
        loader = sds.StreamingDataLoader(make(), batch_size, drop_last=drop_last)
        assert len(loader) == expected == len(list(loader))

    def test_an_epoch_without_a_step_is_over_at_once(self, make):
        loader = sds.StreamingDataLoader(make(), 41, drop_last=True)
        assert list(loader) == []
        assert loader.dataset.epoch == 1
        assert list(loader) == []
        assert loader.dataset.epoch == 2


class TestState:
    def test_survives_every_stop_on_every_topology(self, make):
        def loader(topology, world):
            dataset = make(shuffle_seed=1, max_size=23)
            return sds.StreamingDataLoader(dataset, topology.batch_size, world=world, num_threads=1)

        topologies = [Topology(1, 4), Topology(2, 3), Topology(3, 1), Topology(1, 30)]
        assert check_resume(loader, topologies, every=3) > 50

    def test_survives_bare(self, make):
        assert check_resume(lambda: make(shuffle_seed=1, max_size=11), every=2) > 10

    def test_speaks_of_what_was_handed_out_not_of_what_was_made(self, make):
        for options in ({"prefetch_batches": 5}, {"num_workers": 2}):
            with sds.StreamingDataLoader(make(), 4, **options) as loader:
                batches = iter(loader)
                assert loader.state_dict()["position"] == 0
                for step in range(1, 4):
                    next(batches)
                    assert loader.state_dict()["position"] == 4 * step
                    assert loader.dataset.state_dict() == loader.state_dict()

    def test_is_where_it_was_loaded_until_a_batch_is_handed_out(self, make):
        first = sds.StreamingDataLoader(make(), 4)
        next(iter(first))
        state = first.state_dict()
        second = sds.StreamingDataLoader(make(), 5)
        second.load_state_dict(state)
        assert second.state_dict() == state
        batches = iter(second)
        assert second.state_dict() == state
        assert texts.keys([next(batches)]) == ALL[4:9]
        second.close()

    def test_at_the_last_batch_is_the_beginning_of_the_next_epoch(self, make):
        loader = sds.StreamingDataLoader(make(shuffle_seed=1), 4, drop_last=True)
        for _ in loader:
            state = json.loads(json.dumps(loader.state_dict()))
        assert (state["epoch"], state["position"]) == (1, 0)

    def test_of_a_dropped_tail_too(self, make):
        loader = sds.StreamingDataLoader(make(), 7, drop_last=True)
        for _ in loader:
            state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (1, 0)

    def test_goes_from_bare_iteration_to_a_loader_and_back(self, make):
        dataset = make(shuffle_seed=1)
        whole = texts.keys(dataset)
        dataset.set_epoch(0)
        bare = iter(dataset)
        delivered = texts.keys(next(bare) for _ in range(5))
        loader = sds.StreamingDataLoader(make(shuffle_seed=1), 6)
        loader.load_state_dict(dataset.state_dict())
        batches = iter(loader)
        delivered += texts.keys([next(batches), next(batches)])
        dataset.load_state_dict(loader.state_dict())
        loader.close()
        assert delivered + texts.keys(dataset) == whole


class TestOptions:
    @pytest.mark.parametrize(
        ("keyword", "value"),
        [
            ("batch_size", 0),
            ("batch_size", 1.5),
            ("batch_size", True),
            ("num_workers", -1),
            ("num_threads", 0),
            ("drop_last", "no"),
            ("collate_fn", 5),
            ("pin_memory", "gpu"),
            ("prefetch_batches", 0),
            ("persistent_workers", True),
            ("persistent_workers", "yes"),
            ("multiprocessing_context", "thread"),
            ("timeout", -1),
            ("timeout", "long"),
            ("timeout", float("nan")),
            ("world", 3),
            ("bucket_by", 3),
        ],
    )
    def test_an_impossible_value_is_named(self, make, keyword, value):
        with pytest.raises(OptionError, match=keyword) as caught:
            sds.StreamingDataLoader(make(), **{"batch_size": 4, keyword: value})
        assert caught.value.hint

    @pytest.mark.parametrize("wrong", [None, [1, 2], "dataset"])
    def test_a_dataset_is_a_dataset(self, wrong):
        with pytest.raises(OptionError, match="dataset"):
            sds.StreamingDataLoader(wrong, 4)

    @pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
    @pytest.mark.parametrize("num_workers", [0, 1])
    def test_pin_memory_without_a_device_does_no_harm(self, make, num_workers):
        loader = sds.StreamingDataLoader(make(), 4, pin_memory=True, num_workers=num_workers)
        assert texts.keys(loader) == ALL

    def test_own_collate_fn(self, make):
        loader = sds.StreamingDataLoader(make(), 4, collate_fn=len)
        assert list(loader) == [4] * 10


class TestTwoLoaders:
    def test_on_two_datasets_do_not_disturb_each_other(self, make):
        one, two = (sds.StreamingDataLoader(make(shuffle_seed=seed), 4) for seed in (1, 2))
        whole = [texts.keys(sds.StreamingDataLoader(make(shuffle_seed=seed), 4)) for seed in (1, 2)]
        pairs = list(zip(one, two, strict=True))
        assert [texts.keys(part) for part in zip(*pairs, strict=True)] == whole


class TestNodeAffinity:
    """Two nodes with two ranks each: a row stays with its node, and nothing else changes."""

    def loader(self, make, rank=0, size=4, batch_size=3, **keywords):
        world = sds.World(rank, size, rank % 2, 2)
        ds = make(**{"shuffle_seed": 1, "node_affine": 2, **keywords})
        return sds.StreamingDataLoader(ds, batch_size, world=world, num_threads=1)

    def steps_of_all(self, make, epochs=1, **keywords):
        loaders = [self.loader(make, rank, **keywords) for rank in range(4)]
        return [[texts.keys([batch]) for batch in step] for _ in range(epochs) for step in zip(*loaders, strict=True)]

    def test_a_node_reads_the_same_rows_every_epoch(self, make):
        shares = {0: set(), 1: set()}
        for ranks in self.steps_of_all(make, epochs=3):
            if len(ranks[0]) == 3:  # a full step
                for rank, keys in enumerate(ranks):
                    shares[rank // 2] |= set(keys)
        assert not shares[0] & shares[1]
        assert len(shares[0]) == len(shares[1]) == 20

    def test_global_batches_are_those_of_one_rank(self, make):
        alone = self.loader(make, size=1, batch_size=12)
        for ranks, batch in zip(self.steps_of_all(make), alone, strict=True):
            assert sorted({key for keys in ranks for key in keys}) == sorted(set(texts.keys([batch])))

    def test_true_means_as_many_shares_as_nodes(self, make):
        world = sds.World(3, 4, 1, 2)
        with make(shuffle_seed=1, node_affine=True, world=world) as ds:
            assert ds.plan.shares == 2
            assert "node-affine: 2 shares" in ds.explain()

    def test_it_goes_on_anywhere(self, make):
        check_resume(
            lambda topology, world: sds.StreamingDataLoader(
                make(shuffle_seed=1, node_affine=2), topology.batch_size, world=world, num_threads=1
            ),
            [Topology(2, 3)],
            every=3,
        )
        first = self.loader(make, size=2, rank=1)
        state = [first.state_dict() for _, _ in zip(range(3), first, strict=False)][-1]
        assert state["position"] == 18
        rest = self.loader(make, size=1, batch_size=5)
        rest.load_state_dict(state)
        order = texts.ids(*make(shuffle_seed=1, node_affine=2).plan.rows(0, 0, 40).tolist())
        assert texts.keys(rest) == order[18:]

    def test_a_state_of_other_shares_is_refused(self, make):
        state = self.loader(make).state_dict()
        with pytest.raises(StateMismatch, match="2 shares, this dataset has 1") as caught:
            make(shuffle_seed=1).load_state_dict(state)
        assert "node_affine=2" in str(caught.value)
