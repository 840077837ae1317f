"""A few integers that a process shares with the workers it makes, however it makes them."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle

import pytest

from sds.dataset.shared import SharedBlock


def write_in_child(block: SharedBlock, number: int) -> None:
    with block.locked():
        block[1] = block[0] + number
    for _ in range(200):
        with block.locked():
            block[2] += 1


def test_it_begins_with_zeros_and_keeps_what_is_written():
    block = SharedBlock(4)
    assert [block[i] for i in range(len(block))] == [0, 0, 0, 0]
    block[3] = -(2**63)
    block[0] = 2**63 - 1
    assert [block[i] for i in range(4)] == [2**63 - 1, 0, 0, -(2**63)]


def test_forked_children_share_it():  # spawned ones start slowly, and are tested in integration
    context = multiprocessing.get_context("fork")
    block = SharedBlock(4)
    block[0] = 40
    children = [context.Process(target=write_in_child, args=(block, 2)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert block[1] == 42
    assert block[2] == 400, "the lock keeps them apart"


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda b: pickle.loads(pickle.dumps(b)), SharedBlock.copy]
)
def test_a_plain_copy_has_the_values_and_a_life_of_its_own(copied):
    block = SharedBlock(1000)
    block[2] = 7
    other = copied(block)
    assert (len(other), other[2], other[999]) == (1000, 7, 0)
    other[2] = 8
    assert block[2] == 7


def test_a_plain_copy_is_small():
    assert len(pickle.dumps(SharedBlock(10_000))) < 500


def test_it_leaves_no_descriptor_and_no_shared_memory_file():
    gc.collect()
    descriptors, files = len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
    blocks = [SharedBlock(10) for _ in range(20)]
    assert set(os.listdir("/dev/shm")) == files
    del blocks
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == descriptors
