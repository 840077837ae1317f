"""Jobs in, samples out, under the failure policy: stand-ins, and who lets go of which file."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import sds
import texts
from sds.errors import FetchError, TooManyFailures, TransformError

BAD = tuple(texts.ids(3, 17, 30))


def batches(dataset: sds.StreamingDataset, **options) -> list[list[str]]:
    with sds.StreamingDataLoader(dataset, 8, **options) as loader:
        return [batch["__sample_key__"] for batch in loader]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_sample_whose_files_were_let_go_of_is_no_failure(make, caplog, is_late):
    """Whoever closes a window lets go of tickets that decode threads are about to take, or work with."""
    tickets = []

    def stop(sample):
        tickets[0].release()
        raise RuntimeError("its file is gone")

    dataset = make(transforms=[stop] if is_late else None)
    delivery = dataset.delivery
    job = delivery.pipeline.prepare(delivery.pipeline.index.rows([3])[0], 0, 3)
    tickets += delivery.client.submit([job.files])
    if not is_late:
        tickets[0].release()
    with pytest.raises(TransformError if is_late else FetchError):
        delivery.deliver(job, tickets[0], [])
    assert dataset.quarantine() == [] and dataset.stats().failures == 0 and not caplog.records


def test_leaving_a_loop_early_counts_no_failures(make, caplog):
    for _ in range(20):
        dataset = make()
        with sds.StreamingDataLoader(dataset, 2, num_threads=4) as loader:
            next(iter(loader))
        assert dataset.quarantine() == [] and not caplog.records


def test_what_a_failed_transform_worked_on_is_not_kept_with_its_error(make):
    seen = []

    def fail(sample):
        image = np.zeros(1000)
        seen.append(weakref.ref(image))
        raise ValueError(image.shape) from KeyError(sample["__sample_key__"])

    dataset = make(transforms=[fail], max_failures=100)
    with pytest.raises(TooManyFailures) as caught:  # all of them fail
        list(dataset)
    assert len(seen) == 40 and not any(image() is not None for image in seen)
    assert isinstance(caught.value.__cause__.__cause__, ValueError)


class TestABareIteration:
    def test_leaves_a_failed_row_out(self, make):
        dataset = make(transforms=[texts.FailOn(*BAD)])
        assert texts.keys(dataset) == [key for key in texts.ids(*range(40)) if key not in BAD]
        assert [f.key for f in dataset.quarantine()] == list(BAD)
        assert (dataset.stats().failures, dataset.stats().stand_ins, dataset.stats().samples) == (3, 0, 37)

    def test_raises_if_asked_to(self, make):
        dataset = make(transforms=[texts.FailOn(*BAD)], on_error="raise")
        delivered = []
        with pytest.raises(TransformError) as caught:
            delivered.extend(iter(dataset))
        assert caught.value.key == "003"
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_ends_when_everything_fails(self, make):
        for rows in (3, 40):
            with pytest.raises(TooManyFailures) as caught:
                list(make(transforms=[texts.FailOn(*texts.ids(*range(40)))], max_size=rows))
            assert isinstance(caught.value.__cause__, TransformError)

    def test_ends_when_the_budget_is_spent(self, make):
        dataset = make(transforms=[texts.FailOn(*BAD)], max_failures=2)
        with pytest.raises(TooManyFailures, match="3 of 31"):
            list(dataset)


class TestStandIns:
    def test_keep_batches_full(self, make):
        dataset = make(transforms=[texts.FailOn(*BAD)])
        made = batches(dataset)
        assert [len(batch) for batch in made] == [8] * 5
        assert not set(BAD) & {key for batch in made for key in batch}
        stats = dataset.stats()
        assert (stats.samples, stats.stand_ins) == (40, 3)
        assert stats.failures == len(dataset.quarantine()) >= 3

    def test_take_the_failed_rows_place_and_no_other(self, make):
        whole = batches(make(shuffle_seed=1))
        made = batches(make(shuffle_seed=1, transforms=[texts.FailOn(*BAD)]))
        for good, mended in zip(whole, made, strict=True):
            for before, after in zip(good, mended, strict=True):
                assert before == after or before in BAD

    def test_are_the_same_whoever_makes_them(self, make):
        def run(**options):
            return batches(make(shuffle_seed=1, transforms=[texts.FailOn(*BAD)]), **options)

        assert run(num_threads=1) == run(num_threads=4) == run(num_workers=2)

    def test_are_the_same_on_any_number_of_ranks(self, make):
        def run(size):
            loaders = [
                sds.StreamingDataLoader(
                    make(shuffle_seed=1, transforms=[texts.FailOn(*BAD)], world=sds.World(rank, size)), 8 // size
                )
                for rank in range(size)
            ]
            return [texts.keys(step) for step in zip(*loaders, strict=True)]

        assert run(1) == run(2) == run(4)

    def test_differ_by_epoch_and_seed(self, make):
        def fillers(seed, epoch):
            dataset = make(shuffle_seed=seed, transforms=[texts.FailOn(*BAD)])
            dataset.set_epoch(epoch)
            keys = texts.keys(sds.StreamingDataLoader(dataset, 8))
            return sorted(key for key in set(keys) if keys.count(key) > 1)

        assert len({tuple(fillers(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) > 1

    def test_carry_their_own_key_and_randomness(self, make):
        dataset = make(shuffle_seed=1, transforms=[texts.FailOn(*BAD), texts.read])
        own = {f"{i:03d}": dataset[i]["__random_seed__"] for i in range(40) if f"{i:03d}" not in BAD}
        for batch in sds.StreamingDataLoader(dataset, 8):
            for key, text, seed in zip(batch["__sample_key__"], batch["txt"], batch["__random_seed__"], strict=True):
                assert text == f"text {key}"
                assert seed == own[key]

    def test_are_not_taken_for_dropped_rows(self, make):
        dataset = make(transforms=[texts.DropOn(*BAD)])
        assert [len(batch) for batch in batches(dataset)] == [7, 8, 7, 7, 8]
        assert dataset.stats().stand_ins == 0

    def test_fill_a_step_of_which_nothing_is_left(self, make):
        dataset = make(transforms=[texts.DropOn(*texts.ids(*range(8, 16)))])
        assert [len(batch) for batch in batches(dataset)] == [8, 1, 8, 8, 8]
        assert dataset.stats().stand_ins == 1

    def test_that_cannot_be_made_are_an_error(self, make):
        def fail_or_drop(sample):
            assert sample["__sample_key__"] > "020", "broken"

        with pytest.raises(TooManyFailures, match="stand-in") as caught:
            batches(make(transforms=[fail_or_drop], max_failures=1.0))
        assert caught.value.hint


@pytest.mark.parametrize("options", [{"num_threads": 2}, {"num_workers": 2}])
class TestInALoader:
    def test_raise_raises_in_the_loop(self, make, options):
        dataset = make(transforms=[texts.FailOn("021")], on_error="raise")
        made = []
        loader = sds.StreamingDataLoader(dataset, 4, **options)
        with pytest.raises(TransformError, match="no luck with 021") as caught:
            made.extend(batch["__sample_key__"] for batch in loader)
        assert made == [texts.ids(*range(i, i + 4)) for i in range(0, 20, 4)], "all before it was handed out"
        assert (caught.value.key, caught.value.stage) == ("021", "transform")
        cause = caught.value.__cause__  # threads have it itself, processes its words
        assert isinstance(cause, ZeroDivisionError) or "ZeroDivisionError: no luck with 021" in str(cause)
        assert dataset.state_dict()["position"] == 20, "and the state says so"

    def test_too_many_failures_end_it_and_can_be_looked_into(self, make, options):
        dataset = make(transforms=[texts.FailOn(*texts.ids(*range(40)))])
        with pytest.raises(TooManyFailures) as caught, sds.StreamingDataLoader(dataset, 4, **options) as loader:
            list(loader)
        assert caught.value.__cause__ is not None
        assert len(dataset.quarantine()) >= 8
        assert dataset.stats().failures >= 8

    def test_a_count_is_of_all_workers_together(self, make, options):
        # failures of two workers: neither passes the count alone
        dataset = make(transforms=[texts.FailOn(*texts.ids(0, 4, 8, 12))], max_failures=3, shuffle_seed=None)
        loader = sds.StreamingDataLoader(dataset, 4, **options)
        with pytest.raises(TooManyFailures, match=r"max_failures=3") as caught:
            list(loader)
        assert isinstance(caught.value.__cause__, Exception)
        assert {f.key for f in dataset.quarantine()} >= set(texts.ids(0, 4, 8, 12))

    def test_the_quarantine_and_the_counts_come_home(self, make, options):
        dataset = make(transforms=[texts.FailOn(*BAD)])
        with sds.StreamingDataLoader(dataset, 4, **options) as loader:
            assert sum(len(batch["__sample_key__"]) for batch in loader) == 40
        assert {f.key for f in dataset.quarantine()} == set(BAD)
        stats = dataset.stats()
        assert (stats.samples, stats.batches, stats.stand_ins) == (40, 10, 3)
        assert stats.failures == len(dataset.quarantine())
