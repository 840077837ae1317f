import threading

import pytest

from sds.errors import OptionError
from sds.events import Stats
from sds.loader.record import Record
from sds.observe import read_run
from sds.types import Failure


def failure(number):
    return Failure(str(number), number, None, "decode", "broken")


def test_stats_are_written_as_they_grow_and_once_more_at_the_end(tmp_path):
    numbers, heard = iter(range(1, 10**6)), threading.Event()

    def stats():
        number = next(numbers)
        if number == 3:
            heard.set()
        return Stats(samples=number)

    record = Record(tmp_path / "run.jsonl", stats, list, rank=2, every_s=0.001)
    assert heard.wait(10)
    record.close()
    record.close()
    run = read_run(tmp_path / "run.jsonl")
    assert run.beginning.rank == 2
    assert [moment.stats.samples for moment in run.moments] == list(range(1, len(run.moments) + 1))
    assert not [thread for thread in threading.enumerate() if thread.name == "sds-record"]


def test_failures_are_written_once(tmp_path):
    failures = []
    record = Record(tmp_path / "run.jsonl", Stats, lambda: list(failures), every_s=1000)
    for number in range(3):
        failures.append(failure(number))
        record._note()
    record.close()
    assert read_run(tmp_path / "run.jsonl").failures == tuple(failures)


def test_a_thousand_failures_are_enough(tmp_path):
    record = Record(tmp_path / "run.jsonl", Stats, lambda: [failure(k) for k in range(3000)], every_s=1000)
    record.close()
    assert len(read_run(tmp_path / "run.jsonl").failures) == 1000


def test_text_that_is_no_unicode_is_spelled_out(tmp_path):
    """A file's name need not be any, and an error may tell it."""
    failed = [Failure("caf\udce9", 1, None, "fetch", "no file caf\udce9.jpg, ä")]
    record = Record(tmp_path / "run.jsonl", Stats, lambda: failed, every_s=1000)
    record.close()
    (found,) = read_run(tmp_path / "run.jsonl").failures
    assert (found.key, found.reason) == ("caf\\udce9", "no file caf\\udce9.jpg, ä")


def test_lines_lie_farther_apart_the_longer_a_run_takes(tmp_path):
    record = Record(tmp_path / "run.jsonl", Stats, list, every_s=2)
    assert record.pause_s == 2
    record._begun -= 86_400
    assert 86 < record.pause_s < 90
    record.close()


@pytest.mark.parametrize("every_s", [0, -1, True, "1", float("nan"), float("inf")])
def test_an_impossible_interval_is_told_before_a_file_is_made(tmp_path, every_s):
    with pytest.raises(OptionError, match="every_s"):
        Record(tmp_path / "run.jsonl", Stats, list, every_s=every_s)
    assert not (tmp_path / "run.jsonl").exists()
