"""interleave and concatenate: mixes of samples that are datasets again."""

from __future__ import annotations

import json
import pickle
from collections import Counter

import pytest
from torch.utils.data import DataLoader

import sds
import texts
from sds.errors import OptionError, StateMismatch, TooManyFailures
from sds.testing import Topology, check_resume


@pytest.fixture
def parts(make):
    """Two datasets of 12 and 5 rows with keys of their own, in their order unless told otherwise."""

    def two(**options):
        return [
            make(sql_query="SELECT * FROM dataframe LIMIT 12", **options),
            make(sql_query="SELECT * FROM dataframe ORDER BY index DESC LIMIT 5", **options),
        ]

    return two


A, B = texts.ids(*range(12)), texts.ids(*range(39, 34, -1))


class TestConcatenate:
    def test_is_one_after_the_other(self, parts):
        ds = sds.concatenate(parts())
        assert len(ds) == 17
        assert texts.keys(ds) == A + B
        assert ds.epoch == 1
        assert texts.keys(ds) == A + B

    def test_shuffles_over_all_of_them(self, parts):
        ds = sds.concatenate(parts(), shuffle_seed=3)
        first, second = texts.keys(ds), texts.keys(ds)
        assert sorted(first) == sorted(second) == sorted(A + B)
        assert first != second
        assert {key in A for key in first[:6]} == {True, False}

    def test_members_keep_their_own_order(self, parts):
        ds = sds.concatenate(parts(shuffle_seed=1))
        keys = texts.keys(ds)
        assert keys[:12] == texts.keys(parts(shuffle_seed=1)[0]) != A


class TestInterleave:
    def test_takes_turns(self, parts):
        ds = sds.interleave(parts())
        assert len(ds) == 11
        assert texts.keys(ds) == [*(key for pair in zip(A, B, strict=False) for key in pair), A[5]]
        assert texts.keys(ds)[1:9:2] == [*A[6:10]], "members go on where they were"

    def test_shares_are_kept_all_along(self, parts):
        keys = texts.keys(sds.interleave(parts(), [3, 1], stop="all"))
        for stop in range(1, len(keys)):
            assert abs(sum(key in B for key in keys[:stop]) - stop / 4) <= 1

    @pytest.mark.parametrize(("stop", "length"), [("first", 11), ("all", 23)])
    def test_stop(self, parts, stop, length):
        ds = sds.interleave(parts(), stop=stop)
        assert len(ds) == length == len(texts.keys(ds))

    def test_never_stops(self, parts):
        samples = iter(sds.interleave(parts(), stop="never"))
        counts = Counter(texts.keys(next(samples) for _ in range(240)))
        assert [counts[key] for key in A] == [10] * 12
        assert [counts[key] for key in B] == [24] * 5

    def test_a_random_order_has_exact_shares(self, parts):
        one, two = (sds.interleave(parts(), [2, 1], shuffle_seed=seed, stop="never") for seed in (1, 2))
        drawn = [[next(samples)["__sample_key__"] for _ in range(255)] for samples in (iter(one), iter(two))]
        assert drawn[0] != drawn[1]
        for keys in drawn:
            assert sum(key in B for key in keys) == 85
            assert [key for key in keys if key in A][:24] == A + A, "members in their own order"

    def test_a_member_without_a_share_is_left_out(self, parts):
        assert texts.keys(sds.interleave(parts(), [1, 0])) == A


MIXES = {
    "interleave": lambda parts: sds.interleave(parts, [2, 1], stop="all"),
    "random": lambda parts: sds.interleave(parts, shuffle_seed=4),
    "concatenate": sds.concatenate,
    "shuffled": lambda parts: sds.concatenate(parts, shuffle_seed=4),
    "nested": lambda parts: sds.interleave([sds.concatenate(parts[:1], shuffle_seed=1), parts[1]], [3, 1]),
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
class TestAsADataset:
    def test_ranks_share_it(self, parts, mix):
        alone = texts.keys(mix(parts(shuffle_seed=1)))
        ranks = [
            sds.StreamingDataLoader(mix(parts(shuffle_seed=1)), 2, world=sds.World(rank, 2), num_threads=1)
            for rank in range(2)
        ]
        together = [key for step in zip(*ranks, strict=True) for key in texts.keys(step)]
        assert together[: len(alone)] == alone

    def test_it_goes_on_from_any_state(self, parts, mix):
        def loader(topology, world):
            return sds.StreamingDataLoader(mix(parts(shuffle_seed=1)), topology.batch_size, world=world, num_threads=1)

        assert check_resume(loader, [Topology(1, 4), Topology(2, 3)], every=4) > 5

    def test_it_goes_on_bare(self, parts, mix):
        assert check_resume(lambda: mix(parts(shuffle_seed=1)), every=6) > 3

    def test_it_is_copied_by_pickle(self, parts, mix):
        ds = mix(parts(shuffle_seed=1))
        samples = iter(ds)
        next(samples)
        twin = pickle.loads(pickle.dumps(ds))
        twin.load_state_dict(json.loads(json.dumps(ds.state_dict())))
        assert texts.keys(twin) == texts.keys(samples)

    def test_a_plain_loader_takes_it(self, parts, mix):
        ds = mix(parts())
        assert sum(len(batch["__sample_key__"]) for batch in DataLoader(ds, 4)) == len(ds)

    def test_stats_and_words(self, parts, mix):
        with mix(parts(transforms=[texts.read])) as ds:
            number = len(texts.keys(ds))
            assert ds.stats().samples == number
            assert ds.stats().busy_s["transform"] > 0
            assert "member 1:" in ds.explain() and "rows: 5" in ds.explain()


def test_it_holds_no_more_of_a_cache_than_its_members_may(make):
    """Paths of samples that were handed out must not fill a cache that the next ones need."""
    large, small, free = (make(cache_limit=limit) for limit in ("8mb", "4kb", None))
    for mix in (sds.interleave, sds.concatenate):
        assert mix([large, small])._lease_bytes(1) * 2 <= small._lease_bytes(1)
        assert mix([large, free])._lease_bytes(2) <= large._lease_bytes(2)
        assert mix([mix([large, small]), free])._lease_bytes(1) <= small._lease_bytes(1)
        assert mix([free, free])._lease_bytes(1) is None


class TestErrors:
    def test_a_state_of_another_mix_names_the_member(self, parts, make):
        state = sds.interleave(parts()).state_dict()
        with pytest.raises(StateMismatch, match="member 1"):
            sds.interleave([parts()[0], make()]).load_state_dict(state)
        with pytest.raises(StateMismatch):
            sds.interleave(parts(), [2, 1]).load_state_dict(state)
        with pytest.raises(StateMismatch):
            sds.concatenate(parts()).load_state_dict(state)

    def test_a_member_that_fails_ends_it(self, make):
        broken = make(transforms=[texts.FailOn(*texts.ids(*range(40)))])
        with pytest.raises(TooManyFailures):
            list(sds.interleave([make(), broken]))

    def test_failures_of_members_are_listed(self, make):
        ds = sds.interleave([make(), make(transforms=[texts.FailOn("003")], max_failures=5)])
        loader = sds.StreamingDataLoader(ds, 8)
        assert sum(len(texts.keys([batch])) for batch in loader) == 80
        assert {failure.key for failure in ds.quarantine()} == {"003"}
        assert ds.stats().stand_ins == 1

    @pytest.mark.parametrize("call", [sds.interleave, sds.concatenate])
    def test_what_cannot_be_mixed_is_refused(self, make, call):
        for wrong in ([], [1], "ab", make(), [make(), make(unaligned_worker_index=True)], [make(shuffle_seed=-1)]):
            with pytest.raises(OptionError) as caught:
                call(wrong)
            assert caught.value.hint

    @pytest.mark.parametrize(
        "options", [{"ratios": [1]}, {"ratios": [1, -1]}, {"ratios": [0, 0]}, {"stop": "last"}, {"shuffle_seed": -1}]
    )
    def test_impossible_options_are_named(self, parts, options):
        with pytest.raises(OptionError, match=next(iter(options)).rstrip("s")):
            sds.interleave(parts(), **options)


def test_a_mix_of_samples_is_a_stream_of_a_mix_of_batches(make, parts):
    streams = [sds.interleave(parts(), stop="all"), make()]
    options = [sds.StreamOptions("both", 0.5, batch_gpu=4), sds.StreamOptions("all", 0.5, batch_gpu=4)]
    with sds.MultiStreamDataLoader(streams, options, schedule="round_robin") as loader:
        batches = iter(loader)
        made = [next(batches) for _ in range(4)]
    assert texts.keys(made[::2]) == texts.keys(sds.interleave(parts(), stop="all"))[:8]
    assert texts.keys(made[1::2]) == texts.ids(*range(8))
