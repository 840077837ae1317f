"""Batches made in worker processes (forked here): order, errors, what comes home, and how they end."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

import sds
import texts
from sds.errors import FetchTimeout, SdsError, TransformError
from sds.testing import Topology, check_resume

ALL = texts.ids(*range(40))


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.name() == "pt_data_worker"]


def wait_until(condition, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.01)


@pytest.mark.parametrize(("num_workers", "persistent"), [(1, False), (2, True), (3, False)])
def test_batches_come_in_order_epoch_after_epoch(make, num_workers, persistent):
    def epochs(**options):
        with sds.StreamingDataLoader(make(shuffle_seed=1), 4, **options) as loader:
            return [texts.keys(loader) for _ in range(3)]

    assert epochs(num_workers=num_workers, persistent_workers=persistent) == epochs()
    assert not workers()


def test_more_workers_than_steps(make):
    loader = sds.StreamingDataLoader(make(max_size=5), 4, num_workers=3)
    assert texts.keys(loader) == ALL[:5]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_break_begins_the_epoch_again(make, persistent):
    with sds.StreamingDataLoader(make(), 4, num_workers=2, persistent_workers=persistent) as loader:
        for number, _ in enumerate(loader):
            if number == 3:
                break
        assert texts.keys(loader) == ALL
        assert loader.dataset.epoch == 1


def test_workers_end_with_the_loop_or_the_loader(make):
    loader = sds.StreamingDataLoader(make(), 4, num_workers=2)
    for _ in loader:
        break
    wait_until(lambda: not workers())
    loader = sds.StreamingDataLoader(make(), 4, num_workers=2, persistent_workers=True)
    list(loader)
    assert len(workers()) == 2
    start = time.monotonic()
    loader.close()
    assert time.monotonic() - start < 1.0
    wait_until(lambda: not workers())
    assert texts.keys(loader) == ALL, "it can be used again"
    loader.close()


def test_persistent_workers_go_on_where_a_state_says(make):
    dataset = make(shuffle_seed=1)
    with sds.StreamingDataLoader(dataset, 4, num_workers=2, persistent_workers=True) as loader:
        batches = iter(loader)
        delivered = texts.keys([next(batches), next(batches)])
        state = loader.state_dict()
        whole = delivered + texts.keys(batches)
        pids = {worker.pid for worker in workers()}
        loader.load_state_dict(state)
        assert texts.keys(loader) == whole[8:]
        assert {worker.pid for worker in workers()} == pids


class TestErrors:
    def test_of_a_worker_show_where_they_happened(self, make):
        loader = sds.StreamingDataLoader(make(transforms=[texts.FailOn("009")], on_error="raise"), 4, num_workers=2)
        with pytest.raises(TransformError, match="no luck with 009") as caught:
            list(loader)
        assert "texts.py" in str(caught.value.__cause__), "its traceback came along"
        assert "ZeroDivisionError" in str(caught.value.__cause__)
        wait_until(lambda: not workers())

    def test_of_collate_fn(self, make):
        def collate(samples):
            raise KeyError("no batch")

        with pytest.raises(TransformError, match="no batch") as caught:
            list(sds.StreamingDataLoader(make(), 4, num_workers=1, collate_fn=collate))
        assert caught.value.stage == "collate"
        assert "KeyError" in str(caught.value.__cause__)

    def test_a_batch_that_cannot_be_sent_is_an_error_and_no_hang(self, make):
        loader = sds.StreamingDataLoader(
            make(transforms=[lambda sample: {"lock": threading.Lock()}]), 4, num_workers=1, timeout=20
        )
        with pytest.raises(TransformError, match="cannot be sent from its worker") as caught:
            list(loader)
        assert "num_workers=0" in caught.value.hint

    @pytest.mark.parametrize("persistent", [False, True])
    def test_a_worker_that_is_killed_is_an_error_and_not_the_end_of_the_loader(self, make, persistent):
        dataset = make(transforms=[texts.Slow(0.01)])
        with sds.StreamingDataLoader(dataset, 4, num_workers=2, persistent_workers=persistent) as loader:
            batches = iter(loader)
            next(batches)
            workers()[0].send_signal(signal.SIGKILL)
            with pytest.raises((RuntimeError, SdsError), match="worker"):
                list(batches)
            position = loader.state_dict()["position"]
            loader.load_state_dict(loader.state_dict())
            assert texts.keys(loader) == ALL[position:]

    def test_a_step_that_takes_too_long_is_an_error(self, make):
        loader = sds.StreamingDataLoader(make(transforms=[texts.Slow(1)]), 1, num_workers=1, timeout=0.2)
        with pytest.raises(FetchTimeout, match=r"no batch in 0.2 s from the worker processes"):
            list(loader)


def test_tensors_cross_whole(make):
    def tensors(sample):
        number = int(sample["__sample_key__"])
        return {"image": torch.full((3, 8, 8), number, dtype=torch.uint8), "nested": {"n": torch.tensor(number)}}

    with sds.StreamingDataLoader(make(transforms=[tensors]), 4, num_workers=2) as loader:
        for step, batch in enumerate(loader):
            assert batch["image"].shape == (4, 3, 8, 8)
            assert batch["nested"]["n"].tolist() == list(range(4 * step, 4 * step + 4))
            assert torch.equal(batch["image"][:, 0, 0, 0].long(), batch["nested"]["n"])


def test_what_workers_counted_comes_home(make):
    dataset = make(transforms=[texts.read])
    with sds.StreamingDataLoader(dataset, 4, num_workers=2) as loader:
        list(loader)
        stats = loader.stats()
    assert (stats.samples, stats.batches) == (40, 10)
    assert stats.busy_s["transform"] > 0 and stats.busy_s["collate"] > 0
    assert stats.time_to_first_batch is not None


def test_paths_are_good_while_the_caller_has_the_batch_also_the_last(make, tmp_path, http_server, new_name):
    """A cache that is just large enough, and somebody else who wants all of it all the time."""
    folder = new_name()
    for i in range(24):
        http_server.put(f"{folder}/{i:03d}.txt", f"text {i:03d}".encode())
    rows = [f"{i:03d},{http_server.url(f'{folder}/{i:03d}.txt')}" for i in range(24)]
    (tmp_path / "index.csv").write_text("\n".join(["index,url", *rows]))
    options = {"src": tmp_path / "index.csv", "columns_to_download": ["url"], "cache_limit": 8 * 20, "timeout": 20}
    dataset, greedy = make(**options), make(**options, transforms=[lambda sample: {"n": len(sample["url"])}])
    with sds.StreamingDataLoader(dataset, 2, num_workers=2, prefetch_batches=1) as loader:
        seen = []
        for batch in loader:
            time.sleep(0.05)
            for i in range(24):
                greedy[i]
            for path, key in zip(batch["url"], batch["__sample_key__"], strict=True):
                assert Path(path).read_text() == f"text {key}"
                seen.append(key)
    assert seen == ALL[:24]


def test_a_worker_ends_when_its_parent_is_killed(make, tmp_path):
    """In a process of its own, since it is killed."""
    dataset = make(transforms=[texts.Slow(0.01)])
    pid = os.fork()
    if pid == 0:
        try:
            loader = sds.StreamingDataLoader(dataset, 4, num_workers=2)
            batches = iter(loader)
            next(batches)
            (tmp_path / "pids").write_text(" ".join(str(worker.pid) for worker in workers()))
            (tmp_path / "pids").rename(tmp_path / "ready")
            time.sleep(60)
        finally:
            os._exit(1)
    try:
        wait_until((tmp_path / "ready").exists, 20)
        orphans = [psutil.Process(int(each)) for each in (tmp_path / "ready").read_text().split()]
        assert len(orphans) == 2
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    wait_until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in orphans), 3)


def test_states_survive_between_workers_and_ranks(make):
    def loader(topology, world):
        dataset = make(shuffle_seed=1, max_size=13)
        return sds.StreamingDataLoader(dataset, topology.batch_size, world=world, num_workers=topology.num_workers)

    assert check_resume(loader, [Topology(1, 4, 2), Topology(2, 2, 0)], every=4) > 5
