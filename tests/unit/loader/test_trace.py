import json
import os
import threading
import time
from pathlib import Path

import pytest

from sds.errors import OptionError
from sds.events import Event, Slice, Tally
from sds.loader.trace import Trace, place_of


def read(path):
    return json.loads(path.read_text())


def test_an_empty_trace_is_complete(tmp_path):
    trace = Trace(tmp_path / "made" / "trace.json")
    trace.close()
    trace.close()
    (name,) = read(trace.path)
    assert name["args"] == {"name": "fetch server"}


def test_slices_have_their_place_time_and_subject(tmp_path):
    trace = Trace(tmp_path / "trace.json", rank=3)
    trace.emit(Event("decode", 2.0, 0.5, "a.jpg", 12))
    trace.emit(Event("fetch", 2.5, 0.25, "a.jpg", kind="wait"))
    trace.add([Slice(Event("collate", 3.0, 1.0), 77, 78, "MainThread")])
    trace.close()
    events = read(trace.path)
    slices = [each for each in events if each["ph"] == "X"]
    assert [(each["name"], each["cat"], each["ts"], each["dur"]) for each in slices] == [
        ("decode", "busy", 2e6, 0.5e6),
        ("wait for fetch", "wait", 2.5e6, 0.25e6),
        ("collate", "busy", 3e6, 1e6),
    ]
    assert slices[0]["args"] == {"subject": "a.jpg", "bytes": 12}
    assert (slices[2]["pid"], slices[2]["tid"]) == (77, 78)
    names = {(each["pid"], each["name"]): each["args"]["name"] for each in events if each["ph"] == "M"}
    assert names[slices[0]["pid"], "process_name"] == "rank 3"
    assert names[77, "process_name"] == "rank 3 worker process 0"
    assert names[slices[0]["pid"], "thread_name"] == threading.current_thread().name


def test_downloads_overlap_so_they_are_pairs(tmp_path):
    trace = Trace(tmp_path / "trace.json")
    for number in range(2):
        trace.emit(Event("fetch", 1.0, 2.0, f"u{number}", 5, "download"))
    trace.close()
    pairs = [(each["ph"], each["id2"]["local"], each["ts"]) for each in read(trace.path) if each["ph"] in "be"]
    assert pairs == [("b", "0x1", 1e6), ("e", "0x1", 3e6), ("b", "0x2", 1e6), ("e", "0x2", 3e6)]


def test_many_slices_are_written_before_the_end_and_none_after_it(tmp_path):
    trace = Trace(tmp_path / "trace.json")
    for number in range(5000):
        trace.emit(Event("decode", float(number), 1.0))
    assert trace.path.stat().st_size > 100_000, "memory stays small"
    trace.close()
    trace.emit(Event("decode", 1.0, 1.0))
    assert sum(each["ph"] == "X" for each in read(trace.path)) == 5000


@pytest.mark.speed
@pytest.mark.parametrize(("is_traced", "bound_s"), [(False, 10e-6), (True, 100e-6)])
def test_an_event_costs_microseconds(tmp_path, is_traced, bound_s):
    """A sample of an image takes milliseconds and has about four of them."""
    trace = Trace(tmp_path / "trace.json")
    tally = Tally(trace if is_traced else None)
    fastest = 1.0
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(100):
            tally.add_busy("decode", start, subject="key")
        fastest = min(fastest, (time.perf_counter() - start) / 100)
    trace.close()
    assert fastest < bound_s


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(OptionError, match="cannot be written") as caught:
        Trace(tmp_path)
    assert "folder that you may write to" in caught.value.hint


def test_a_disk_that_is_full_ends_the_trace_and_nothing_else(caplog):
    trace = Trace(Path("/dev/full"))
    tally = Tally(trace)
    for _ in range(5000):
        tally.add_busy("decode", time.perf_counter())
    trace.close()
    (record,) = caplog.records
    assert record.getMessage() == "/dev/full is not written any further: No space left on device"
    assert tally.stats().busy_s["decode"] > 0


def test_ranks_have_files_of_their_own(tmp_path):
    assert place_of(tmp_path / "a.json", 0) == tmp_path / "a.json"
    assert place_of(str(tmp_path / "a.json"), 2) == tmp_path / "a.rank2.json"
    with pytest.raises(OptionError, match="no path"):
        place_of(5, 0)
    with pytest.raises(OptionError, match="names no file"):
        place_of("", 1)


def test_text_that_is_no_unicode_is_spelled_out(tmp_path):
    trace = Trace(tmp_path / "trace.json")
    for subject in ("caf\udce9", "café"):
        trace.emit(Event("decode", 1.0, 1.0, subject))
    trace.close()
    assert [each["args"]["subject"] for each in read(trace.path) if each["ph"] == "X"] == ["caf\\udce9", "café"]


def test_what_nobody_closed_is_complete_when_nobody_has_it(tmp_path):
    trace = Trace(tmp_path / "trace.json")
    trace.emit(Event("decode", 1.0, 1.0))
    del trace
    assert sum(each["ph"] == "X" for each in read(tmp_path / "trace.json")) == 1


def test_a_forked_child_leaves_it_to_its_parent(tmp_path):
    trace = Trace(tmp_path / "trace.json")
    trace.emit(Event("decode", 1.0, 1.0))
    pid = os.fork()
    if not pid:
        del trace  # as it ends
        os._exit(0)
    os.waitpid(pid, 0)
    trace.close()
    assert sum(each["ph"] == "X" for each in read(trace.path)) == 1
