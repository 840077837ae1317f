"""MultiStreamDataLoader: batches of several streams, the same wherever they are made, each stream exactly once."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter

import pytest

import sds
import texts
from sds.errors import FetchTimeout, OptionError, StateError, StateMismatch, TooManyFailures, TransformError
from sds.loader.mixing import SCHEDULES
from sds.testing import Topology, check_resume

SIZES = {"a": 11, "b": 7, "c": 5}


@pytest.fixture
def mixed(make):
    """mixed(**loader options): a mix of three streams; `streams` and `datasets` have options for each."""

    def one(*, streams=None, datasets=None, strategy="no_mixing", ratios=(0.5, 0.3, 0.2), names="abc", **options):
        configs = [
            {"name": name, "ratio": ratio, "batch_size": 6, **((streams or {}).get(name, {}))}
            for name, ratio in zip(names, ratios, strict=True)
        ]
        options.setdefault("num_threads", None if options.get("num_workers") else 1)
        made = {
            name: make(
                **{"max_size": SIZES[name], "shuffle_seed": 1, "data_type": "text", **((datasets or {}).get(name, {}))}
            )
            for name in names
        }
        opts = sds.StreamOptions.init_group(configs, strategy)
        return sds.MultiStreamDataLoader(made, opts, **{"schedule": "round_robin", **options})

    return one


def named_keys(batch):
    return [f"{batch.stream_name}/{key}" for key in batch["__sample_key__"]]


def take(loader, number):
    return list(itertools.islice(iter(loader), number))


class TestBatches:
    def test_say_what_they_are(self, mixed):
        loader = mixed(streams={"b": {"num_accum_rounds": 3}})
        batches = take(loader, 8)
        assert all(type(batch) is sds.Batch and batch.data_type == "text" for batch in batches)
        said = [(batch.stream_name, batch.num_accum_rounds_left, len(batch["txt"])) for batch in batches[:6]]
        assert said == [("a", 0, 6), ("b", 2, 2), ("b", 1, 2), ("b", 0, 2), ("a", 0, 6), ("c", 0, 6)]
        loader.close()

    def test_the_defaults_work(self, make):
        loader = sds.MultiStreamDataLoader([make(), make()], [sds.StreamOptions("a", 0.5), sds.StreamOptions("b", 0.5)])
        counts = Counter(batch.stream_name for batch in take(loader, 20))
        assert counts == {"a": 10, "b": 10}
        loader.close()

    def test_are_the_same_for_any_number_of_threads_and_ranks(self, mixed):
        def steps(ranks, num_threads):
            loaders = [mixed(world=sds.World(rank, ranks), num_threads=num_threads) for rank in range(ranks)]
            made = [[named_keys(batch) for batch in take(loader, 15)] for loader in loaders]
            for loader in loaders:
                loader.close()
            return [[key for keys in step for key in keys] for step in zip(*made, strict=True)]

        alone = steps(1, 1)
        assert alone == steps(1, 3) == steps(2, 1) == steps(3, 2)

    def test_cross_the_epochs_of_their_streams(self, mixed):
        loader = mixed()
        keys = Counter(key for batch in take(loader, 60) for key in named_keys(batch))
        loader.close()
        for name, size in SIZES.items():
            counts = [keys[f"{name}/{i:03d}"] for i in range(size)]
            assert max(counts) - min(counts) <= 1, "every row as often as any other, in whole epochs"
            assert min(counts) >= 10

    def test_each_epoch_of_a_stream_has_another_order(self, mixed):
        loader = mixed()
        keys = [key for batch in take(loader, 40) if batch.stream_name == "c" for key in batch["__sample_key__"]]
        loader.close()
        epochs = [tuple(keys[k : k + 5]) for k in range(0, 40, 5)]
        assert all(sorted(epoch) == texts.ids(*range(5)) for epoch in epochs)
        assert len(set(epochs)) > 4

    def test_own_collate_functions(self, mixed):
        loader = mixed(
            collate_fn=lambda samples: {"n": len(samples)}, streams={"b": {"collate_fn": lambda s: {"b": 1}}}
        )
        assert [dict(batch) for batch in take(loader, 3)] == [{"n": 6}, {"b": 1}, {"n": 6}]
        loader.close()

    def test_that_are_no_dicts_are_an_error_that_names_the_stream(self, mixed):
        with pytest.raises(TransformError, match="stream 'a': batch is no dict") as caught:
            take(mixed(collate_fn=len), 1)
        assert caught.value.hint

    def test_are_bounded_in_bytes(self, mixed):
        loader = mixed(prefetch_batches=20, prefetch_bytes=1)
        assert len(take(loader, 30)) == 30, "one at a time, but they come"
        loader.close()


class TestGroups:
    @pytest.mark.parametrize("strategy", ["no_mixing", "mix_all", "custom"])
    def test_ranks_take_the_same_stream_or_each_its_own(self, mixed, strategy):
        streams = {name: {"mixing_group_id": int(name == "c")} for name in "abc"} if strategy == "custom" else None
        loaders = [mixed(strategy=strategy, streams=streams, world=sds.World(r, 2)) for r in range(2)]
        steps = list(zip(*(take(loader, 40) for loader in loaders), strict=True))
        pairs = {tuple(batch.stream_name for batch in step) for step in steps}
        same, mixed_ab = {(n, n) for n in "abc"}, {("a", "b"), ("b", "a")}
        if strategy == "no_mixing":
            assert pairs == same
        elif strategy == "custom":
            assert pairs & mixed_ab and pairs <= same | mixed_ab
        else:
            assert len(pairs - same) > 2
        shares = Counter(batch.stream_name for step in steps for batch in step)
        assert shares == {"a": 40, "b": 24, "c": 16}
        assert loaders[0].state_dict() == loaders[1].state_dict()
        for name, size in SIZES.items():
            keys = [k for step in steps for b in step if b.stream_name == name for k in b["__sample_key__"]]
            epochs = [keys[k : k + size] for k in range(0, len(keys) - size, size)]
            assert all(sorted(epoch) == texts.ids(*range(size)) for epoch in epochs), "once per epoch, over all ranks"
        for loader in loaders:
            loader.close()

    def test_rounds_of_one_group_must_be_equal(self, mixed):
        streams = {"b": {"num_accum_rounds": 3}}
        with pytest.raises(OptionError, match="different num_accum_rounds: 1 of 'a', 3 of 'b'"):
            mixed(strategy="mix_all", streams=streams, world=sds.World(0, 2))
        mixed(strategy="mix_all", streams=streams, world=sds.World())


class TestStop:
    def test_first_and_all(self, mixed):
        for stop, expected in (("first", 4), ("all", 10)):
            loader = mixed(stop=stop)
            batches = list(loader)
            counts = Counter(batch.stream_name for batch in batches)
            done = [counts[name] * 6 >= size for name, size in SIZES.items()]
            assert any(done) if stop == "first" else all(done)
            assert len(loader) and loader.epoch == 1
            assert len(batches) <= expected

    def test_a_pass_that_was_left_begins_again_and_one_that_ended_goes_on(self, mixed):
        loader = mixed(stop="all")
        whole = [[named_keys(batch) for batch in loader] for _ in range(3)]
        loader = mixed(stop="all")
        assert [named_keys(b) for b in take(loader, 2)] == whole[0][:2]
        assert [named_keys(b) for b in loader] == whole[0]
        assert [named_keys(b) for b in take(loader, 3)] == whole[1][:3]
        assert [named_keys(b) for b in loader] == whole[1]
        assert len(loader) == len(whole[2])

    def test_a_mix_that_never_stops_goes_on(self, mixed):
        loader = mixed()
        whole = [named_keys(batch) for batch in take(loader, 20)]
        loader = mixed()
        parts = [named_keys(batch) for number in (3, 7, 10) for batch in take(loader, number)]
        assert parts == whole
        with pytest.raises(TypeError, match="no length"):
            len(loader)
        loader.close()


class TestState:
    @pytest.mark.parametrize(
        ("schedule", "stop"),
        [  # each schedule with one of the two here; the rest, with much else, in `make soak`
            pytest.param(schedule, stop, marks=() if (k + j) % 2 else pytest.mark.soak)
            for k, schedule in enumerate(SCHEDULES)
            for j, stop in enumerate(["first", "all"])
        ],
    )
    def test_survives_every_stop_on_every_topology(self, mixed, schedule, stop):
        def loader(topology, world):
            streams = {"a": {"batch_size": 4}, "b": {"batch_size": 4, "num_accum_rounds": 2}, "c": {"batch_size": 2}}
            return mixed(stop=stop, schedule=schedule, world=world, streams=streams, datasets=sizes)

        sizes = {"a": {"max_size": 7}, "b": {"max_size": 5}, "c": {"max_size": 3}}
        assert check_resume(loader, [Topology(1), Topology(2)], every=4, keys=named_keys) > 5

    @pytest.mark.parametrize("schedule", SCHEDULES)
    @pytest.mark.parametrize("ids", [(0, 0, 0), (0, 0, 1)])
    def test_survives_with_ranks_that_take_their_own(self, mixed, schedule, ids):
        streams = {name: {"mixing_group_id": i, "batch_size": 4} for name, i in zip("abc", ids, strict=True)}

        def loader(topology, world):
            sizes = {name: {"max_size": 6} for name in "abc"}
            return mixed(
                stop="first", schedule=schedule, world=world, strategy="custom", streams=streams, datasets=sizes
            )

        assert check_resume(loader, [Topology(2)], every=2, keys=named_keys) > 3

    @pytest.mark.soak
    @pytest.mark.parametrize("schedule", SCHEDULES)
    @pytest.mark.parametrize("stop", ["first", "all"])
    @pytest.mark.parametrize("strategy", ["no_mixing", "mix_all", "custom"])
    def test_survives_the_whole_product(self, mixed, schedule, stop, strategy):
        """Schedules, groups, stop rules, ranks, threads and worker processes, each stopped and gone on as each other.

        Where ranks take streams of their own, the order belongs to the number of ranks, and only workers change.
        """
        ids = (0, 0, 1) if strategy == "custom" else (0, 0, 0)
        streams = {name: {"mixing_group_id": i, "batch_size": 12} for name, i in zip("abc", ids, strict=True)}
        sizes = {"a": {"max_size": 30}, "b": {"max_size": 18}, "c": {"max_size": 7}}

        def loader(topology, world):
            options = {"num_workers": topology.num_workers} if topology.num_workers else {}
            shape = {"stop": stop, "schedule": schedule, "strategy": strategy, "streams": streams, "datasets": sizes}
            return mixed(world=world, **shape, **options)

        if strategy == "no_mixing":
            groups = [[Topology(1), Topology(2), Topology(3, num_workers=2)]]
        else:
            groups = [[Topology(2), Topology(2, num_workers=2)], [Topology(3), Topology(3, num_workers=1)]]
        for topologies in groups:
            assert check_resume(loader, topologies, num_epochs=1, every=5, keys=named_keys) > 5

    def test_goes_on_with_other_ranks_each_stream_where_it_was(self, mixed):
        """Ranks that take their own streams deal them out otherwise; no row is lost or repeated."""
        seen, state = {name: [] for name in "abc"}, None
        for ranks, number in ((2, 7), (3, 5), (1, 4), (2, 6)):
            loaders = [
                mixed(strategy="mix_all", schedule="random_order", world=sds.World(r, ranks)) for r in range(ranks)
            ]
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
            for step in zip(*(take(loader, number) for loader in loaders), strict=True):
                for batch in step:
                    seen[batch.stream_name] += batch["__sample_key__"]
            assert all(loader.state_dict() == loaders[0].state_dict() for loader in loaders)
            state = loaders[0].state_dict()
            for loader in loaders:
                loader.close()
        for name, size in SIZES.items():
            epochs = [seen[name][k : k + size] for k in range(0, len(seen[name]) - size + 1, size)]
            assert epochs and all(sorted(epoch) == texts.ids(*range(size)) for epoch in epochs)

    def test_of_ten_streams_is_small(self, make):
        names = [f"a stream with a long name, number {i}" for i in range(10)]
        options = [sds.StreamOptions(name, 0.1, batch_gpu=8) for name in names]
        with sds.MultiStreamDataLoader(
            [make(shuffle_seed=2**30 + i) for i in range(10)], options, stop="all"
        ) as loader:
            take(loader, 25)
            assert len(json.dumps(loader.state_dict())) < 2048

    @pytest.mark.parametrize(
        ("before", "number", "after", "left"), [(2, 1, 1, 6), (1, 2, 2, 3), (1, 5, 2, 2), (1, 7, 8, 1), (2, 3, 2, 1)]
    )
    def test_in_the_midst_of_a_turn_goes_on_in_it_with_other_ranks(self, mixed, before, number, after, left):
        """A turn of 16 samples has 16 // (2 * ranks) rounds; what is left of it is handed out, and no more."""

        def one(ranks):
            streams = {"a": {"batch_size": 16, "batch_gpu": 2 if ranks < 8 else 1}}
            return mixed(names="a", ratios=(1,), streams=streams, world=sds.World(0, ranks))

        first, second = one(before), one(after)
        take(first, number)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert [batch.num_accum_rounds_left for batch in take(second, left)] == list(range(left))[::-1]
        assert second.state_dict()["step"] == 1
        first.close()
        second.close()

    def test_looking_at_it_does_not_keep_datasets_from_being_told_where_to_begin(self, make):
        dataset = make(shuffle_seed=1)
        loader = sds.MultiStreamDataLoader([dataset], [sds.StreamOptions("a", 1, batch_gpu=4)], stop="all")
        assert (loader.epoch, len(loader), loader.state_dict()["streams"]["a"]["epoch"]) == (0, 10, 0)
        dataset.set_epoch(5)
        assert loader.state_dict()["streams"]["a"]["epoch"] == 5
        assert take(loader, 1)[0]["__epoch__"].tolist() == [5] * 4
        loader.close()

    def test_is_copied_by_pickle_while_in_use(self, mixed):
        loader = mixed()
        batches = iter(loader)
        next(batches)
        twin = pickle.loads(pickle.dumps(loader))
        assert twin.state_dict() == loader.state_dict()
        assert [named_keys(b) for b in take(twin, 5)] == [named_keys(b) for b in itertools.islice(batches, 5)]
        assert twin.stats().batches == 5
        loader.close()
        twin.close()

    def test_speaks_of_what_was_handed_out(self, mixed):
        loader = mixed(prefetch_batches=8)
        batches = iter(loader)
        assert loader.state_dict()["step"] == 0
        for step in range(1, 4):
            next(batches)
            assert loader.state_dict()["step"] == step
        loader.close()

    def test_with_other_ratios_streams_go_on_and_the_schedule_begins_anew(self, mixed):
        first = mixed()
        before = take(first, 7)
        state = first.state_dict()
        first.close()
        second = mixed(ratios=(0.2, 0.8, 0.0), schedule="consecutive")
        second.load_state_dict(state)
        after = take(second, 10)
        assert [batch.stream_name for batch in after] == ["a", "b", "b", "b", "b"] * 2
        keys = [k for b in before + after if b.stream_name == "b" for k in b["__sample_key__"]]
        assert sorted(keys[:7]) == sorted(keys[7:14]) == texts.ids(*range(7))
        third = mixed(ratios=(0.2, 0.8, 0.0), schedule="consecutive")
        third.load_state_dict(second.state_dict())
        assert [batch.stream_name for batch in take(third, 3)] == ["a", "b", "b"], "also a second time"
        fourth = mixed()
        fourth.load_state_dict(third.state_dict())
        assert fourth.state_dict()["streams"]["c"] == state["streams"]["c"], "one without a share keeps its place"
        for loader in (second, third, fourth):
            loader.close()

    def test_of_another_stream_names_it(self, mixed):
        state = mixed().state_dict()
        with pytest.raises(StateMismatch, match=r"stream 'b': state is of another index.*7 rows, this one has 6"):
            mixed(datasets={"b": {"max_size": 6}}).load_state_dict(state)
        with pytest.raises(StateMismatch, match="stream 'c': state is of another shuffle_seed: 1, this dataset has 2"):
            mixed(datasets={"c": {"shuffle_seed": 2}}).load_state_dict(state)
        with pytest.raises(StateMismatch, match="stream 'c': the state has it"):
            mixed(names="ab", ratios=(1, 1)).load_state_dict(state)
        with pytest.raises(StateMismatch, match="stream 'c': the state has no such stream"):
            mixed().load_state_dict(mixed(names="ab", ratios=(1, 1)).state_dict())
        loader = mixed()
        loader.load_state_dict(mixed(names="ab", ratios=(1, 1)).state_dict(), strict=False)
        with pytest.raises(StateError, match="not a state of a mix"):
            loader.load_state_dict({"version": 1, "epoch": 0})

    def test_carries_seeds_that_were_drawn(self, mixed):
        drawn = {name: {"shuffle_seed": -1} for name in "abc"}
        first = mixed(datasets=drawn)
        take(first, 5)
        second = mixed(datasets=drawn)
        second.load_state_dict(first.state_dict())
        assert [named_keys(b) for b in take(second, 10)] == [named_keys(b) for b in take(first, 10)]
        first.close()
        second.close()


class TestRatios:
    def test_change_at_a_step(self, make):
        options = [sds.StreamOptions(name, 1) for name in "abc"]
        ratios = [(0, [1, 0, 0]), (4, [0, 0.5, 0.5])]
        made = sds.MultiStreamDataLoader([make()] * 3, options, ratios=ratios, schedule="round_robin")
        assert [batch.stream_name for batch in take(made, 8)] == ["a"] * 4 + ["b", "c"] * 2
        made.close()

    def test_as_a_function_of_the_step(self, make):
        options = [sds.StreamOptions("a", 1), sds.StreamOptions("b", 1)]
        made = sds.MultiStreamDataLoader(
            [make(), make()], options, ratios=lambda step: (1, 0) if step < 1000 else (0, 1), prefetch_batches=1
        )
        state = made.state_dict() | {"step": 998}
        made.load_state_dict(state)
        assert [batch.stream_name for batch in take(made, 4)] == ["a", "a", "b", "b"]
        made.close()

    @pytest.mark.parametrize(
        ("answer", "words"),
        [((1, -0.5), "at step 1000: ratio is no share: -0.5, of stream 'b'"), ((1, 1, 1), "at step 1000: .* not one")],
    )
    def test_every_answer_of_a_function_is_checked(self, make, answer, words):
        options = [sds.StreamOptions("a", 1), sds.StreamOptions("b", 1)]
        made = sds.MultiStreamDataLoader(
            [make(), make()], options, ratios=lambda step: (1, 1) if step < 1000 else answer, num_threads=1
        )
        made.load_state_dict(made.state_dict() | {"step": 998})
        with pytest.raises(OptionError, match=words) as caught:
            take(made, 10)
        assert caught.value.hint
        made.close()

    def test_that_repeat_too_late_are_refused_at_once(self, make):
        options = [sds.StreamOptions("a", 1_281_167), sds.StreamOptions("b", 9_000_001)]
        with pytest.raises(OptionError, match="meta-iteration of 10281168 steps") as caught:
            sds.MultiStreamDataLoader([make(), make()], options)
        assert "divide ratios by their sum" in caught.value.hint
        total = sum(each.ratio for each in options)
        shares = [sds.StreamOptions(each.name, each.ratio / total) for each in options]
        sds.MultiStreamDataLoader([make(), make()], shares)

    def test_a_length_is_found_once(self, make):
        asked = []
        options = [sds.StreamOptions("a", 1), sds.StreamOptions("b", 1)]
        made = sds.MultiStreamDataLoader(
            [make(), make()],
            options,
            ratios=lambda step: asked.append(step) or (1, 1.0 if step >= 8000 else 0.0),
            stop="all",
        )
        assert len(made) > 8000
        asked.clear()
        assert len(made) > 8000 and not asked

    @pytest.mark.parametrize(
        ("ratios", "expected"),
        [
            ([(0, [1.0, 0.0]), (50, [0.3, 0.7])], (100, 70)),
            ([(0, [0.9, 0.1])], (90, 50)),
            (lambda step: [1.0, min(1.0, step / 50_000)], (100, 50)),
        ],
    )
    def test_decide_how_far_a_stream_fetches_ahead(self, make, ratios, expected):
        """By the largest share that it will have; no less than an equal one, nor than two batches."""
        options = [sds.StreamOptions("a", 1, 0, batch_gpu=8), sds.StreamOptions("b", 1, 1, batch_gpu=8)]
        made = sds.MultiStreamDataLoader([make(prefetch=100), make(prefetch=100)], options, ratios=ratios)
        walk = made._feed.walk()
        assert tuple(ahead for ahead, _ in made._feed._windows(walk, 0, 1)) == expected
        assert [ahead for ahead, _ in made._feed._windows(walk, 0, 50)] == [16, 16]


class TestErrors:
    def test_a_stream_that_is_late_is_named(self, mixed):
        loader = mixed(names="b", ratios=(1,), datasets={"b": {"transforms": [texts.Slow(0.3)]}}, timeout=1)
        with pytest.raises(FetchTimeout, match=r"^stream 'b': no batch in 1 s"):
            take(loader, 1)
        loader.close()

    def test_a_stream_that_fails_is_named(self, mixed):
        broken = {"b": {"transforms": [texts.FailOn(*texts.ids(*range(7)))]}}
        loader = mixed(datasets=broken)
        with pytest.raises(TooManyFailures, match=r"^stream 'b': too many samples failed") as caught:
            take(loader, 100)
        assert "no luck" in str(caught.value.__cause__)
        assert loader.quarantine()["a"] == [] and len(loader.quarantine()["b"]) >= 7

    def test_budgets_are_those_of_the_datasets(self, mixed):
        broken = {"b": {"transforms": [texts.FailOn("003")], "max_failures": 10**6}}
        loader = mixed(datasets=broken)
        assert all("003" not in b["__sample_key__"] for b in take(loader, 30) if b.stream_name == "b")
        assert loader.stats().failures >= loader.stats().stand_ins > 3
        assert loader.stats().samples == 180 and loader.stats().batches == 30
        loader.close()

    @pytest.mark.parametrize(
        ("keyword", "value"),
        [
            ("schedule", "sometimes"),
            ("stop", "last"),
            ("counts_precision", -1),
            ("shuffle_seed", -1),
            ("num_workers", -1),
            ("num_threads", 0),
            ("prefetch_batches", 0),
            ("prefetch_bytes", "many"),
            ("collate_fn", 3),
            ("world", 3),
            ("timeout", -1),
            ("ratios", (1, 2)),
            ("ratios", (0, 0, 0)),
            ("ratios", [(1, (1, 1, 1))]),
            ("ratios", [(0, (1, 1, 1)), (0, (1, 1, 1))]),
            ("ratio", (1, 1e-9, 1)),
        ],
    )
    def test_an_impossible_value_is_named(self, make, keyword, value):
        options = [sds.StreamOptions(name, 1) for name in "abc"]
        word = "ratios" if keyword == "ratio" else keyword
        with pytest.raises(OptionError, match=keyword) as caught:
            sds.MultiStreamDataLoader([make()] * 3, options, **{word: value})
        assert caught.value.hint

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"name": ""}, "name"),
            ({"ratio": -1}, "ratio"),
            ({"ratio": float("nan")}, "ratio"),
            ({"batch_size": 0}, "batch_size"),
            ({"batch_gpu": 1.5}, "batch_gpu"),
            ({"num_accum_rounds": 0}, "num_accum_rounds"),
            ({"mixing_group_id": -1}, "mixing_group_id"),
            ({"is_main": "yes"}, "is_main"),
            ({"collate_fn": 1}, "collate_fn"),
        ],
    )
    def test_an_impossible_option_of_a_stream_is_named(self, fields, words):
        with pytest.raises(OptionError, match=words) as caught:
            sds.StreamOptions(**{"name": "a", "ratio": 1, **fields})
        assert caught.value.hint

    def test_datasets_and_options_belong_together(self, make):
        a, b = sds.StreamOptions("a", 1), sds.StreamOptions("b", 1)
        for datasets, options, words in (
            ([make()], [a, b], "differ in number"),
            ([make(), make()], [a, a], "once"),
            ({"a": make()}, [a, b], "lack a stream: 'b'"),
            ([make(), 3], [a, b], "no StreamingDataset"),
            ([], [], "once"),
            ([make(unaligned_worker_index=True), make()], [a, b], "stream 'a': unaligned"),
            ([make(), make()], [{"name": "a", "ratio": 1}, {"name": "b"}], "lack an entry: 'ratio'"),
            ([make(), make()], [{"name": "a", "ratio": 1, "size": 3}, b], "unknown entry: 'size'"),
        ):
            with pytest.raises(OptionError, match=words):
                sds.MultiStreamDataLoader(datasets, options)
        with pytest.raises(OptionError, match="stop='all' never comes"):
            sds.MultiStreamDataLoader([make()] * 2, [a, b], stop="all", ratios=[(0, (1, 1)), (5, (1, 0))])
        with pytest.raises(OptionError, match="is_main"):
            sds.MultiStreamDataLoader([make()] * 2, [sds.StreamOptions(n, 1, is_main=True) for n in "ab"])


class TestStreamOptions:
    @pytest.mark.parametrize(
        ("fields", "ranks", "expected"),
        [
            ({}, 4, (1, 1)),
            ({"batch_gpu": 3}, 4, (3, 1)),
            ({"batch_gpu": 3, "num_accum_rounds": 2}, 4, (3, 2)),
            ({"batch_size": 24}, 4, (6, 1)),
            ({"batch_size": 24, "num_accum_rounds": 3}, 4, (2, 3)),
            ({"batch_size": 24, "batch_gpu": 2}, 4, (2, 3)),
            ({"batch_size": 24, "batch_gpu": 2, "num_accum_rounds": 3}, 4, (2, 3)),
            ({"batch_size": 24, "batch_gpu": 2}, 2, (2, 6)),
        ],
    )
    def test_batches(self, fields, ranks, expected):
        assert sds.StreamOptions("a", 1, **fields).batches(ranks) == expected

    @pytest.mark.parametrize(
        "fields",
        [
            {"batch_size": 25},
            {"batch_size": 2},
            {"batch_size": 24, "batch_gpu": 5},
            {"batch_size": 24, "batch_gpu": 2, "num_accum_rounds": 2},
        ],
    )
    def test_batches_that_do_not_fit_the_ranks_are_named(self, fields):
        with pytest.raises(OptionError, match="stream 'a': batch_size"):
            sds.StreamOptions("a", 1, **fields).batches(4)

    def test_init_group(self):
        configs = [{"name": "a", "ratio": 0.5}, {"name": "b", "ratio": 0.0}, {"ratio": 0.5, "batch_gpu": 2}]
        alone = sds.StreamOptions.init_group(configs)
        assert [(o.name, o.ratio, o.mixing_group_id) for o in alone] == [
            ("a", 0.5, 0),
            ("b", 0, 1),
            ("stream_002", 0.5, 2),
        ]
        assert {o.mixing_group_id for o in sds.StreamOptions.init_group(configs, "mix_all")} == {0}
        dropped = sds.StreamOptions.init_group(configs, drop_unused=True)
        assert [(o.name, o.ratio, o.batch_gpu) for o in dropped] == [("a", 0.5, None), ("stream_002", 0.5, 2)]
        equal = sds.StreamOptions.init_group([{"name": "a"}, {"name": "b"}])
        assert [o.ratio for o in equal] == [0.5, 0.5]

    @pytest.mark.parametrize(
        ("configs", "strategy", "words"),
        [
            ([{"ratio": 1}, {}], "no_mixing", "ratio is missing"),
            ([{"ratio": 1}], "custom", "mixing_group_id is missing"),
            ([{"ratio": 1}], "some", "mixing_strategy"),
            ([{"ratio": 1, "weight": 3}], "no_mixing", "unknown entry: 'weight'"),
        ],
    )
    def test_init_group_refuses(self, configs, strategy, words):
        with pytest.raises(OptionError, match=words):
            sds.StreamOptions.init_group(configs, strategy)

    def test_a_stream_without_a_share_changes_nothing_for_the_others(self, mixed):
        """The predecessor gave the shares of a dropped stream's neighbours to others."""
        loader = mixed(ratios=(0.75, 0.0, 0.25))
        assert Counter(batch.stream_name for batch in take(loader, 40)) == {"a": 30, "c": 10}
        loader.close()

    def test_the_main_stream(self, mixed):
        assert mixed().main_stream.name == "a"
        assert mixed(streams={"c": {"is_main": True}}).main_stream.name == "c"
