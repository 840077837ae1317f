"""Failures are counted, never swallowed: budgets, the quarantine, and what TooManyFailures says."""

from __future__ import annotations

import logging

import pytest

import sds
from sds.dataset.options import FailureOptions
from sds.dataset.policy import FailurePolicy
from sds.errors import CacheFull, DecodeError, FetchError, TooManyFailures, TransformError
from sds.events import Tally
from sds.types import Row


def policy(max_failures: float = 0.1, **options) -> FailurePolicy:
    return FailurePolicy(FailureOptions(max_failures=max_failures, **options), Tally())


def fail(policy: FailurePolicy, number: int = 1, first: int = 0) -> None:
    for i in range(first, first + number):
        policy.failed(Row(i, f"k{i}", {}), DecodeError(f"broken {i}", url=f"u{i}", stage="decode"))


def succeed(policy: FailurePolicy, number: int) -> None:
    for _ in range(number):
        policy.succeeded(1)


class TestACount:
    @pytest.mark.parametrize("budget", [0, 1, 5, 20])
    def test_allows_so_many_and_not_one_more(self, budget):
        counted = policy(budget)
        fail(counted, budget)
        with pytest.raises(TooManyFailures, match=rf"{budget + 1} of {budget + 1} \(max_failures={budget}\)"):
            fail(counted, first=budget)


class TestAShare:
    def test_means_nothing_before_the_50th_attempt(self):
        shared = policy(0.1)
        succeed(shared, 30)
        fail(shared, 19)

    def test_is_held_from_the_50th_on(self):
        shared = policy(0.1)
        succeed(shared, 44)
        fail(shared, 5)
        with pytest.raises(TooManyFailures, match="6 of 50"):
            fail(shared, first=5)

    def test_is_of_all_attempts(self):
        shared = policy(0.1)
        succeed(shared, 900)
        fail(shared, 100)
        with pytest.raises(TooManyFailures, match="101 of 1001"):
            fail(shared, first=100)

    def test_the_first_eight_all_failing_end_at_once(self):
        shared = policy(1.0)
        fail(shared, 7)
        with pytest.raises(TooManyFailures, match="8 of 8"):
            fail(shared, first=7)

    def test_one_success_among_the_first_eight_is_enough(self):
        shared = policy(1.0)
        fail(shared, 7)
        succeed(shared, 1)
        fail(shared, 100, first=7)


def test_too_many_failures_says_which_was_first_and_why():
    counted = policy(1)
    first = DecodeError("broken 0", url="u0", stage="decode")
    counted.failed(Row(0, "k0", {}), first)
    with pytest.raises(TooManyFailures) as caught:
        fail(counted, first=1)
    error = caught.value
    assert error.__cause__ is first
    assert (error.key, error.url, error.stage) == ("k0", "u0", "decode")
    assert "broken 0" in error.message
    assert "quarantine" in error.hint


def test_the_quarantine_has_key_row_url_stage_and_reason():
    counted = policy(5)
    fail(counted, 2)
    failures = counted.quarantine()
    assert [(f.key, f.row_id, f.url, f.stage, f.reason) for f in failures] == [
        ("k0", 0, "u0", "decode", "broken 0"),
        ("k1", 1, "u1", "decode", "broken 1"),
    ]
    failures.clear()
    assert len(counted.quarantine()) == 2, "it gives copies"


def test_raise_raises_what_happened_and_counts_nothing():
    error = FetchError("gone")
    strict = policy(on_error="raise")
    with pytest.raises(FetchError) as caught:
        strict.failed(Row(0, "k0", {}), error)
    assert caught.value is error
    assert strict.quarantine() == []


def test_an_epoch_in_which_everything_failed_is_an_error():
    shared = policy(1.0)
    shared.end_of_epoch()
    fail(shared, 3)
    with pytest.raises(TooManyFailures, match="3 of 3"):
        shared.end_of_epoch()
    succeed(shared, 1)
    shared.end_of_epoch()


def test_what_a_worker_counted_is_counted_once_in_the_main_process():
    worker, main = policy(3), policy(3)
    fail(worker, 2)
    succeed(worker, 5)
    main.record(*worker.drain())
    main.record(*worker.drain())
    fail(worker, first=2)
    main.record(*worker.drain())
    main.check()
    assert main.quarantine() == worker.quarantine()
    fail(main, 0)
    with pytest.raises(TooManyFailures, match="4 of 9") as caught:
        fail(main, first=3)
    assert isinstance(caught.value.__cause__, DecodeError), "the first cause came along"


@pytest.mark.parametrize(
    ("options", "level", "with_traceback"),
    [
        ({}, "WARNING", False),  # the first one, at least
        ({"print_exceptions": True}, "WARNING", False),
        ({"print_traceback": True}, "WARNING", True),
    ],
)
def test_failures_are_logged_as_asked(caplog, options, level, with_traceback):
    with caplog.at_level(logging.DEBUG, logger="sds"):
        logging.getLogger("sds").addHandler(caplog.handler)
        try:
            fail(policy(5, **options))
        finally:
            logging.getLogger("sds").removeHandler(caplog.handler)
    record = caplog.records[0]
    assert record.levelname == level
    assert "k0" in record.message and "broken 0" in record.message
    assert bool(record.exc_info) == with_traceback


def test_an_epoch_that_the_transforms_dropped_whole_is_an_error():
    counts = policy()
    for _ in range(8):
        counts.succeeded(0)
    with pytest.raises(TransformError, match="dropped every sample: 8 of 8") as caught:
        counts.end_of_epoch()
    assert "return sample" in caught.value.hint
    counts.succeeded(1)
    counts.end_of_epoch()  # one is enough


def test_transforms_that_forget_to_return_are_told_so_by_a_loader(make):
    with pytest.raises(TransformError, match="dropped every sample") as caught:
        list(sds.StreamingDataLoader(make(transforms=[lambda sample: None]), 4))
    assert "return sample" in caught.value.hint


def test_the_first_failure_is_said_once(caplog):
    counts = policy(5)
    with caplog.at_level(logging.WARNING, logger="sds"):
        fail(counts, 3)
    assert [record.getMessage() for record in caplog.records] == [
        "sample k0 failed and is skipped: broken 0 (a loader puts another in its place; more are counted in silence)"
    ]


def test_a_full_cache_is_no_fault_of_a_sample():
    with pytest.raises(CacheFull):
        policy(1.0).failed(Row(0, "k0", {}), CacheFull("no room"))


def test_the_hint_of_the_first_cause_is_passed_on():
    counts = policy(0)
    with pytest.raises(TooManyFailures) as caught:
        counts.failed(Row(0, "k0", {}), FetchError("gone", hint="look there"))
    assert caught.value.hint.startswith("look there; ")


def test_what_is_skipped_already_is_not_told_to_skip():
    counts = policy(0)
    with pytest.raises(TooManyFailures) as caught:
        counts.failed(Row(0, "k0", {}), FetchError("odd", hint="look at the file; on_error='skip' goes on without it"))
    assert caught.value.hint.startswith("look at the file; dataset.quarantine() lists them")
