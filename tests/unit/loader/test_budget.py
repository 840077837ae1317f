"""Budget: workers together stay under a limit, and the one whose turn it is may always go on."""

from __future__ import annotations

import os
import select
import threading

import numpy as np
import torch

from sds.loader.budget import Budget, num_bytes


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def test_there_is_room_until_the_limit():
    budget = Budget(100, 2)
    budget.wait(0, 0, 60)
    budget.wait(1, 1, 40)
    assert budget.waiting == 100


def test_a_worker_waits_for_room():
    budget = Budget(100, 2)
    budget.wait(0, 0, 60)
    waits = in_thread(budget.wait, 1, 5, 60)
    waits.join(0.1)
    assert waits.is_alive()
    budget.take(60)
    waits.join(10)
    assert not waits.is_alive() and budget.waiting == 60


def test_whose_turn_it_is_goes_on_whatever_it_weighs():
    budget = Budget(100, 2)
    budget.wait(1, 1, 90)
    budget.wait(0, 0, 500)  # the main process has taken none: it waits for number 0
    assert budget.waiting == 590


def test_an_epoch_begins_with_nothing():
    budget = Budget(100, 1)
    budget.wait(0, 0, 90)
    budget.take(90)
    budget.begin()
    assert budget.waiting == 0


def test_a_worker_whose_parent_is_gone_does_not_wait_for_ever():
    """The parent of the waiting process ends first: a process between this one and it."""
    budget, (reading, writing) = Budget(0, 1), os.pipe()
    if not (between := os.fork()):
        budget.begin()
        if not os.fork():
            budget.wait(0, 7, 1)
            os.write(writing, b"x")
        os._exit(0)
    os.waitpid(between, 0)
    os.close(writing)
    assert select.select([reading], [], [], 30)[0], "it waits"
    assert os.read(reading, 1) == b"x"
    os.close(reading)


def test_bytes_of_a_batch():
    batch = {"a": torch.zeros(2, 3), "b": [np.zeros(4, np.uint8), "abc"], "c": 1, "d": (b"xy", None)}
    assert num_bytes(batch) == 24 + 4 + 3 + 2
