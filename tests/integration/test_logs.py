"""The log of a program that sets nothing up itself, and what its worker processes log."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time

import pytest

import sds


def test_a_dataset_sets_it_up(tmp_path):
    (tmp_path / "a.csv").write_text("id,image\n1,gone.jpg\n2,gone.jpg\n")
    code = (
        "import sds\n"
        f"ds = sds.StreamingDataset({str(tmp_path / 'a.csv')!r}, {str(tmp_path / 'dst')!r}, index_col_name='id',"
        " columns_to_download=['image'], print_exceptions=True, max_failures=5)\n"
        "try:\n    list(ds)\nexcept sds.errors.TooManyFailures: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("sds WARNING: sample") == 2


def say(sample):
    """A transform that logs, as ours do."""
    logging.getLogger("sds.test").warning("made %s", sample["__sample_key__"])
    logging.getLogger("sds.test").info("in detail: %s", sample["__sample_key__"])
    return sample


def dawdle(sample):
    """Logs, and takes its time."""
    logging.getLogger("sds.test").warning("waits for %s", sample["__sample_key__"])
    time.sleep(2.5)
    return sample


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_records_of_workers_come_home_with_rank_and_worker(make, caplog, context):
    dataset = make(transforms=[say], max_size=6)
    with (
        caplog.at_level(logging.INFO, logger="sds"),
        sds.StreamingDataLoader(dataset, 2, num_workers=2, multiprocessing_context=context) as loader,
    ):
        list(loader)
    found = [record for record in caplog.records if record.name == "sds.test"]
    texts_of = sorted(record.getMessage() for record in found if record.levelno == logging.WARNING)
    # worker 0 makes the first and the third step, worker 1 the second
    assert texts_of == sorted(
        [f"rank 0 worker 0: made {key}" for key in ("000", "001", "004", "005")]
        + [f"rank 0 worker 1: made {key}" for key in ("002", "003")]
    )
    assert {(record.rank, record.worker) for record in found} == {(0, 0), (0, 1)}
    assert sum(record.levelno == logging.INFO for record in found) == 6, "the level set here holds there"
    assert not [thread for thread in threading.enumerate() if thread.name == "sds-logs"]


def chatter(sample):
    """Says a lot at once."""
    for number in range(500):
        logging.getLogger("sds.test").warning("%s says %d", sample["__sample_key__"], number)
    return sample


def test_many_records_at_once_come_home_in_order(make, caplog):
    with sds.StreamingDataLoader(make(transforms=[chatter], max_size=2), 1, num_workers=2) as loader:
        list(loader)
    for worker, key in ((0, "000"), (1, "001")):
        found = [record.getMessage() for record in caplog.records if getattr(record, "worker", None) == worker]
        assert found == [f"rank 0 worker {worker}: {key} says {number}" for number in range(500)]


def test_what_is_not_asked_for_is_not_sent(make, caplog):
    with sds.StreamingDataLoader(make(transforms=[say], max_size=4), 2, num_workers=1) as loader:
        list(loader)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_worker_that_hangs_says_so_while_it_hangs(make, caplog):
    with sds.StreamingDataLoader(make(transforms=[dawdle], max_size=1), 1, num_workers=1) as loader:
        reader = threading.Thread(target=lambda: list(loader))
        reader.start()
        deadline = time.monotonic() + 30
        while "rank 0 worker 0: waits for 000" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert reader.is_alive(), "it was told before there was a batch"
        reader.join()


def test_lines_of_several_ranks_name_theirs(tmp_path):
    (tmp_path / "a.csv").write_text("id,image\n1,gone.jpg\n2,gone.jpg\n")
    code = (
        "import sds, logging\n"
        f"ds = sds.StreamingDataset({str(tmp_path / 'a.csv')!r}, {str(tmp_path / 'dst')!r}, index_col_name='id',"
        " world=sds.World(rank=1, size=2), columns_to_download=['image'])\n"
        "logging.getLogger('sds').warning('100% there')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "sds WARNING: rank 1: 100% there\n"


def test_nothing_is_printed_when_nothing_is_wrong(tmp_path, source):
    code = (
        "import sds\n"
        f"ds = sds.StreamingDataset({str(source)!r}, {str(tmp_path / 'dst')!r}, columns_to_download=['txt'])\n"
        "with sds.StreamingDataLoader(ds, 4, num_workers=1) as loader:\n"
        f"    loader.trace({str(tmp_path / 'trace.json')!r})\n"
        f"    loader.record({str(tmp_path / 'run.jsonl')!r})\n"
        "    list(loader)\n"
        "ds.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
