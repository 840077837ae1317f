"""Mixes on real parts: worker processes, ranks under gloo, a bucket that is not there, a cache that holds little."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader

import sds
import texts
from integration.gang import Gangs
from sds.errors import FetchTimeout, SdsError, TooManyFailures
from sds.testing import Topology, check_resume

SOON_S = 20.0


@pytest.fixture(scope="module")
def gangs():
    made = Gangs()
    yield made
    made.close()


@pytest.fixture
def args(tmp_path):
    lines = ["index,n", *(f"{i:04},{i}" for i in range(23))]
    (tmp_path / "index.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "other.csv").write_text("\n".join(lines[:-3]) + "\n")
    return {"src": str(tmp_path / "index.csv"), "cache": str(tmp_path / "cache")}


def named_keys(batch):
    return [f"{batch.stream_name}/{key}" for key in batch["__sample_key__"]]


def take(loader, number):
    return list(itertools.islice(iter(loader), number))


def sleep_long(sample):
    time.sleep(60)
    return sample


def weigh_a_megabyte(sample):
    return {**sample, "weight": torch.zeros(1_000_000, dtype=torch.uint8)}


@pytest.fixture
def mixed(make):
    def one(*, datasets=None, sizes=(9, 5), **options):
        parts = [
            make(**{"max_size": size, "shuffle_seed": 1, **((datasets or {}).get(name, {}))})
            for name, size in zip("ab", sizes, strict=True)
        ]
        streams = [
            sds.StreamOptions("a", 0.6, 0, batch_size=4),
            sds.StreamOptions("b", 0.4, 1, batch_size=4, num_accum_rounds=2),
        ]
        return sds.MultiStreamDataLoader(parts, streams, **{"schedule": "random_order", **options})

    return one


class TestWorkers:
    @pytest.mark.parametrize("num_workers", [1, 3])
    def test_make_the_same_batches(self, mixed, num_workers):
        with mixed() as threads, mixed(num_workers=num_workers) as workers:
            one, two = take(threads, 25), take(workers, 25)
        assert [named_keys(batch) for batch in one] == [named_keys(batch) for batch in two]
        assert [b.num_accum_rounds_left for b in one] == [b.num_accum_rounds_left for b in two]

    def test_states_go_from_workers_to_threads_and_other_ranks(self, mixed):
        def loader(topology, world):
            return mixed(stop="all", world=world, num_workers=topology.num_workers)

        assert check_resume(loader, [Topology(1, num_workers=2), Topology(2)], every=6, keys=named_keys) > 2

    def test_persistent_ones_go_on_where_a_state_says_and_with_what_comes_after(self, mixed):
        with mixed() as threads:
            whole = [named_keys(batch) for batch in take(threads, 20)]
        with mixed(num_workers=2, persistent_workers=True) as loader:
            first = [named_keys(batch) for batch in take(loader, 6)]
            state = json.loads(json.dumps(loader.state_dict()))
            second = [named_keys(batch) for batch in take(loader, 4)]
            loader.load_state_dict(state)
            again = [named_keys(batch) for batch in take(loader, 14)]
        assert first + second == whole[:10]
        assert again == whole[6:]

    def test_spawned_ones_too(self, mixed):
        with mixed() as threads, mixed(num_workers=1, multiprocessing_context="spawn") as workers:
            assert [named_keys(b) for b in take(workers, 6)] == [named_keys(b) for b in take(threads, 6)]

    def test_name_the_stream_that_fails(self, mixed):
        broken = {"b": {"transforms": [texts.FailOn(*texts.ids(*range(5)))]}}
        with mixed(datasets=broken, num_workers=2) as loader:
            with pytest.raises(TooManyFailures, match=r"^stream 'b': "):
                take(loader, 50)
            assert {failure.key for failure in loader.quarantine()["b"]} and not loader.quarantine()["a"]

    def test_that_are_late_name_the_stream(self, mixed):
        stuck = {"b": {"transforms": [sleep_long]}}
        with mixed(datasets=stuck, num_workers=1, timeout=3) as loader:
            with pytest.raises(FetchTimeout, match=r"^stream 'b': no batch in 3 s") as caught:
                take(loader, 50)
            assert caught.value.hint

    def test_stay_within_so_many_bytes_together(self, mixed):
        options = {"num_workers": 2, "prefetch_batches": 20, "multiprocessing_context": "fork"}
        with mixed() as threads:
            whole = [named_keys(batch) for batch in take(threads, 30)]
        heavy = {name: {"transforms": [weigh_a_megabyte]} for name in "ab"}
        with mixed(datasets=heavy, prefetch_bytes="10mb", **options) as loader:
            iterator = iter(loader)
            got = [named_keys(next(iterator)) for _ in range(5)]
            budget, most = loader._making._budget, 0
            deadline = time.monotonic() + 1.0  # a caller that is busy with something else
            while time.monotonic() < deadline:
                most = max(most, budget.waiting)
                time.sleep(0.01)
            # one batch weighs 2 or 4 MB, and the one that is waited for may always be sent
            assert 6_000_000 < most <= 14_000_000
            got += [named_keys(next(iterator)) for _ in range(25)]
        assert got == whole

    def test_a_mix_of_samples_in_workers(self, make):
        def keys(num_workers):
            ds = sds.interleave([make(shuffle_seed=1), make(max_size=7)], [2, 1], shuffle_seed=3)
            with sds.StreamingDataLoader(ds, 4, num_workers=num_workers) as loader:
                found = [texts.keys([batch]) for _ in range(2) for batch in loader]
                return found, loader.stats().samples

        assert keys(2) == keys(0)


class TestStores:
    def test_a_bucket_that_is_not_there_is_named_by_its_stream(self, make, mixed, s3, tmp_path):
        rows = [f"{i:03d},s3://there-is-no-such-bucket/{i:03d}.bin" for i in range(20)]
        (tmp_path / "gone.csv").write_text("\n".join(["index,url", *rows]))
        gone = {
            "src": tmp_path / "gone.csv",
            "columns_to_download": ["url"],
            "storage_options": s3.storage_options,
            "max_size": 20,
        }
        loader = mixed(datasets={"b": gone})
        start = time.monotonic()
        with pytest.raises(SdsError, match=r"^stream 'b': ") as caught:
            take(loader, 100)
        assert time.monotonic() - start < SOON_S
        assert caught.value.hint
        loader.close()

    def test_windows_of_several_streams_fit_into_a_cache_that_holds_little(self, make, http_server, new_name, tmp_path):
        """Files that one stream fetched ahead never keep out those that another one needs now."""
        datasets = []
        for name in ("a", "b", "c"):
            folder = new_name()
            for i in range(30):
                http_server.put(f"{folder}/{i:03d}.txt", b"x" * 1000)
            rows = [f"{i:03d},{http_server.url(f'{folder}/{i:03d}.txt')}" for i in range(30)]
            (tmp_path / f"{name}.csv").write_text("\n".join(["index,url", *rows]))
            options = {"columns_to_download": ["url"], "cache_limit": 20_000, "timeout": 20, "shuffle_seed": 1}
            datasets.append(make(src=tmp_path / f"{name}.csv", **options))
        streams = [sds.StreamOptions(name, ratio, batch_gpu=2) for name, ratio in (("a", 0.8), ("b", 0.1), ("c", 0.1))]
        with sds.MultiStreamDataLoader(datasets, streams, schedule="random_order") as loader:
            batches = take(loader, 60)
            assert Counter(batch.stream_name for batch in batches) == {"a": 48, "b": 6, "c": 6}
            assert loader.stats().bytes_downloaded >= 90_000


@pytest.mark.parametrize("num_workers", [None, 1])
def test_mixes_of_samples_with_paths_go_through_a_cache_that_holds_little(
    make, http_server, new_name, tmp_path, num_workers
):
    """Paths that were handed out a while ago let their files go; bare, and under a plain loader."""
    members = []
    for name in ("a", "b"):
        folder = new_name()
        for i in range(40):
            http_server.put(f"{folder}/{i:03d}.txt", b"x" * 1000)
        rows = [f"{i:03d},{http_server.url(f'{folder}/{i:03d}.txt')}" for i in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["index,url", *rows]))
        options = {"columns_to_download": ["url"], "cache_limit": 20_000, "timeout": 20}
        members.append(make(src=tmp_path / f"{name}.csv", **options))
    mix = sds.concatenate(members, shuffle_seed=1)
    samples = mix if num_workers is None else DataLoader(mix, None, num_workers=num_workers)
    assert sum(1 for _ in samples) == 80


class TestRanks:
    def test_agree_and_share_the_streams(self, gangs, args, tmp_path):
        found = gangs.results("mixed_ranks", 2, tmp_path / "gang", args=args)
        assert found[0]["state"] == found[1]["state"]
        assert [step[:2] for step in found[0]["steps"]] == [step[:2] for step in found[1]["steps"]]
        keys = [key for step in zip(*(each["steps"] for each in found), strict=True) for s in step for key in s[2]]
        assert len(keys) > 40

    def test_one_that_has_another_dataset_is_named_on_all(self, gangs, args, tmp_path):
        args |= {"rank": 1, "other": {"src": str(tmp_path / "other.csv")}}
        for each in gangs.run("mixed_ranks", 2, tmp_path / "gang", args=args):
            assert each["error"] == "StateMismatch" and "b is" in each["message"] and each["rank"] == 1

    def test_one_that_cannot_make_a_stream_leaves_nobody_waiting(self, gangs, args, tmp_path):
        args |= {"rank": 1, "other": {"src": "/nowhere/at/all.csv"}}
        ranks = gangs.run("mixed_ranks", 2, tmp_path / "gang", args=args)
        assert [each["error"] for each in ranks] == ["SourceError", "SourceNotFound"]
        assert ranks[0]["rank"] == 1 and ranks[0]["seconds"] < SOON_S

    def test_one_reads_a_mix_for_its_group(self, gangs, args, tmp_path):
        found = gangs.results("broadcast_mix", 4, tmp_path / "gang", args=args)
        for reader, other in ((0, 2), (1, 3)):
            assert found[reader] == found[other]
            assert found[reader]["length"] == len(found[reader]["steps"])
            assert found[reader]["rest"] == found[reader]["steps"][3:]
        assert [step[:2] for step in found[0]["steps"]] == [step[:2] for step in found[1]["steps"]]
        assert found[0]["steps"] != found[1]["steps"]
