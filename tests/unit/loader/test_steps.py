"""One step: its rows on their way, ahead over the borders of steps, and the batch they become."""

from __future__ import annotations

import pytest

import sds
import texts
from sds.dataset import slots as module
from sds.fetch import prefetched
from sds.loader.slabs import Slabs
from sds.loader.steps import finish_step, step_jobs
from sds.plan import steps


def jobs_of(dataset, numbers, *, prefetch=4, batch_size=4, collate=lambda samples: samples):
    todo = steps(40, 0, 1, 0, batch_size)
    work = dataset.work(sds.World(), 0, (todo[k] for k in numbers))
    return step_jobs(work, ((k, len(todo[k])) for k in numbers), collate, prefetch, None)


def test_steps_have_their_rows_in_order(make):
    made = list(jobs_of(make(), range(10)))
    assert [step.number for step in made] == list(range(10))
    assert [[slot.job.row.key for slot in step.slots] for step in made] == [
        texts.ids(*range(i, i + 4)) for i in range(0, 40, 4)
    ]


def test_a_worker_makes_every_other_step(make):
    made = list(jobs_of(make(), range(1, 10, 3)))
    assert [step.slots[0].job.position for step in made] == [4, 16, 28]


def test_no_steps_are_no_steps(make):
    assert list(jobs_of(make(), range(0))) == []


def test_files_are_asked_for_ahead_of_their_step(make, monkeypatch):
    asked = []

    def noting(client, work, files, ahead, refill):
        return prefetched(client, (asked.append(each.job.row.key) or each for each in work), files, ahead, refill)

    monkeypatch.setattr(module, "prefetched", noting)
    stream = jobs_of(make(), range(10), prefetch=10)
    next(stream)
    assert len(asked) >= 11
    stream.close()


@pytest.mark.parametrize(("batch_size", "num_threads", "size"), [(32, 2, 4), (20, 2, 2), (4, 2, 1), (40, 16, 1)])
def test_slots_are_handed_to_threads_a_few_at_a_time_if_there_are_many(make, batch_size, num_threads, size):
    step = next(jobs_of(make(), range(1), batch_size=batch_size))
    parts = step.parts(num_threads, Slabs())
    assert [k for part in parts for k in part] == list(range(batch_size))
    assert {len(part) for part in parts} == {size}
    assert len(parts) >= min(batch_size, 4 * num_threads), "so that all threads have something to do until the end"
    step.release()


def test_a_step_of_which_nothing_is_left_gets_one_stand_in(make):
    dataset = make()
    step = next(jobs_of(dataset, range(1)))
    made = finish_step(step, [], [])
    assert made.num_samples == len(made.batch) == 1
    assert dataset.stats().stand_ins == 1


def test_collating_is_measured(make):
    dataset = make()
    step = next(jobs_of(dataset, range(1)))
    finish_step(step, [{"a": 1}], [])
    assert dataset.stats().busy_s["collate"] > 0
