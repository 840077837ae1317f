"""Epochs agreed with worker processes, and datasets that travel to other processes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

from torch.utils.data import DataLoader, IterableDataset
from torchdata import nodes

import sds
import texts
from sds.dataset.workers import Epochs, is_batched, is_worker, worker_identity


def test_a_process_that_is_no_worker_is_the_only_one():
    assert worker_identity() == (0, 1)
    assert not is_worker()


class Asking(IterableDataset):
    """Yields whether torch makes batches of what it yields; its samples pass through a wrapper, as in other loaders."""

    def __iter__(self):
        yield from (each for each in self._own())

    def _own(self):
        found = is_batched()
        yield from [found] * 4


def test_a_bare_loop_is_seen_and_torchs_batches_are_not():
    assert list(Asking()) == [False] * 4
    for batch_size in (2, None):
        for num_workers in (0, 1):
            found = list(DataLoader(Asking(), batch_size, num_workers=num_workers))
            assert all(bool(each.all()) if batch_size else each for each in found) and found


def test_where_another_thread_iterates_or_torchdata_does_nobody_sees_what_is_made_of_it():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(list, Asking()).result() == [True] * 4
    assert list(nodes.Loader(nodes.Batcher(nodes.IterableWrapper(Asking()), 2))) == [[True, True]] * 2


class TestEpochs:
    def test_the_parent_says(self):
        epochs = Epochs()
        assert epochs.next() == (0, 0, 0)
        epochs.set(3, 17, 2)
        assert epochs.next() == (3, 17, 2)
        assert not epochs.were_workers_used

    def test_the_next_one_comes_when_all_workers_are_done(self):
        epochs = Epochs()
        assert [epochs.begin(w, 2) for w in (0, 1)] == [(0, 0, 0), (0, 0, 0)]
        assert epochs.were_workers_used
        epochs.finish(1, 0)
        assert epochs.current() == 0
        epochs.finish(0, 0)
        assert epochs.current() == 1

    def test_a_worker_that_is_quick_does_not_take_the_others_along(self):
        epochs = Epochs()
        epochs.begin(0, 2)
        epochs.finish(0, 0)
        assert epochs.begin(1, 2) == (0, 0, 0)

    def test_workers_that_were_stopped_begin_again(self):
        epochs = Epochs()
        for w in (0, 1):
            epochs.begin(w, 2)
        epochs.finish(0, 0)
        assert [epochs.begin(w, 2) for w in (0, 1)] == [(0, 0, 0), (0, 0, 0)]

    def test_another_number_of_workers_goes_on_in_the_same_epoch(self):
        epochs = Epochs()
        for w in (0, 1):
            epochs.begin(w, 2)
            epochs.finish(w, 0)
        assert [epochs.begin(w, 3) for w in (0, 1, 2)] == [(1, 0, 0)] * 3

    def test_a_loaded_position_is_of_one_epoch(self):
        epochs = Epochs()
        epochs.set(2, 9)
        assert [epochs.begin(w, 2) for w in (0, 1)] == [(2, 9, 0), (2, 9, 0)]
        for w in (0, 1):
            epochs.finish(w, 2)
        assert [epochs.begin(w, 2) for w in (0, 1)] == [(3, 0, 0), (3, 0, 0)]

    def test_workers_that_were_told_apart_begin_with_the_earliest(self):
        epochs = Epochs()
        for w, epoch in enumerate((2, 1, 2)):
            epochs.enter(w, 3, epoch)
        assert epochs.begin(1, 3, entered=True) == (1, 0, 0)
        epochs.finish(1, 1)
        assert epochs.begin(0, 3, entered=True) == (1, 0, 0), "also when that one is done already"

    def test_workers_that_were_told_to_go_back_do(self):
        epochs = Epochs()
        epochs.set(7, 5, 0)
        for w in (0, 1):
            epochs.enter(w, 2, 3)
        assert [epochs.begin(w, 2, entered=True) for w in (0, 1)] == [(3, 0, 0), (3, 0, 0)]


def run_epochs(dataset: sds.StreamingDataset, pause_s: float, results: multiprocessing.Queue) -> None:
    seen = []
    for _ in range(3):
        time.sleep(pause_s)
        seen.append(sorted({sample["__epoch__"] for sample in dataset}))
    results.put(seen)


def test_a_forked_rank_has_epochs_of_its_own(make):
    dataset = make()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [context.Process(target=run_epochs, args=(dataset, pause_s, results)) for pause_s in (0, 0.2)]
    for rank in ranks:
        rank.start()
    assert [results.get(timeout=30) for _ in ranks] == [[[0], [1], [2]]] * 2
    for rank in ranks:
        rank.join()
    assert dataset.epoch == 0


def test_a_copy_goes_on_by_itself(make):
    dataset = make(shuffle_seed=1, transforms=[texts.read])
    whole = [texts.keys(dataset) for _ in range(3)]
    dataset.set_epoch(1)
    for copied in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        with copied:
            assert copied.epoch == 1
            assert texts.keys(copied) == whole[1]
            assert dataset.epoch == 1
    iterator = iter(dataset)
    for _ in range(4):
        next(iterator)
    state = dataset.state_dict()
    dataset.load_state_dict(state)
    with pickle.loads(pickle.dumps(dataset)) as copied:
        assert copied.state_dict() == state
        assert texts.keys(copied) == whole[1][4:]


def test_a_copy_carries_no_connection_and_no_secret_in_its_repr(make):
    dataset = make(storage_options={"secret_access_key": "hunter2"})
    assert "hunter2" not in repr(dataset)
    assert "hunter2" not in repr(dataset._options)


def test_closing_is_harmless_and_not_the_end(make):
    dataset = make()
    for _ in range(2):
        assert len(list(dataset)) == 40
        dataset.close()
        dataset.close()
    assert dataset[0]["__sample_key__"] == "000"
