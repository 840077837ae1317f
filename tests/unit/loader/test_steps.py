"""One step: its rows on their way, ahead over the borders of steps, and the batch they become."""

from __future__ import annotations

import texts
from sds.fetch import prefetched
from sds.loader import steps as module
from sds.loader.steps import finish_step, step_jobs
from sds.plan import steps


def jobs_of(dataset, numbers, *, prefetch=4, size=4, batch_size=4):
    todo = steps(40, 0, 1, 0, batch_size)
    return step_jobs(dataset.delivery, dataset.plan, 0, todo, numbers, prefetch, None)


def test_steps_have_their_rows_in_order(make):
    made = list(jobs_of(make(), range(10)))
    assert [step.number for step in made] == list(range(10))
    assert [[job.row.key for job, _ in step.slots] for step in made] == [
        texts.ids(*range(i, i + 4)) for i in range(0, 40, 4)
    ]


def test_a_worker_makes_every_other_step(make):
    made = list(jobs_of(make(), range(1, 10, 3)))
    assert [step.slots[0][0].position for step in made] == [4, 16, 28]


def test_no_steps_are_no_steps(make):
    assert list(jobs_of(make(), range(0))) == []


def test_files_are_asked_for_ahead_of_their_step(make, monkeypatch):
    asked = []

    def noting(client, jobs, files, ahead, refill):
        return prefetched(client, (asked.append(job.row.key) or job for job in jobs), files, ahead, refill)

    monkeypatch.setattr(module, "prefetched", noting)
    stream = jobs_of(make(), range(10), prefetch=10)
    next(stream)
    assert len(asked) >= 11
    stream.close()


def test_a_step_of_which_nothing_is_left_gets_one_stand_in(make):
    dataset = make()
    step = next(jobs_of(dataset, range(1)))
    made = finish_step(dataset.delivery, step, [], [], lambda samples: samples)
    assert made.num_samples == len(made.batch) == 1
    assert dataset.stats().stand_ins == 1


def test_collating_is_measured(make):
    dataset = make()
    step = next(jobs_of(dataset, range(1)))
    finish_step(dataset.delivery, step, [{"a": 1}], [], lambda samples: samples)
    assert dataset.stats().busy_s["collate"] > 0
