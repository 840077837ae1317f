"""The benchmarks run: the store answers like S3, contenders say what they found, the report has it all."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

SUITE = Path(__file__).parents[2] / "benchmarks" / "suite"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the store of the benchmarks needs a C compiler")


@pytest.fixture(scope="module")
def suite():
    sys.path.insert(0, str(SUITE))
    yield
    sys.path.remove(str(SUITE))


def load_main():
    """The program itself, which is no module of its folder by name."""
    spec = importlib.util.spec_from_file_location("bench_main", SUITE / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def store(suite, tmp_path):
    from front import Front, compiled

    folder = tmp_path / "root" / "bucket" / "a"
    folder.mkdir(parents=True)
    for name, content in (("1.bin", b"0123456789"), ("2 & 3.bin", b"x" * 300_000), ("empty", b"")):
        (folder / name).write_bytes(content)
    with Front(compiled(tmp_path), tmp_path / "root", 1.0) as front:
        yield front


def test_the_store_answers_what_clients_of_s3_ask(store):
    import obstore
    from obstore.store import S3Store

    options = {"access_key_id": "any", "secret_access_key": "any", "region": "us-east-1"}
    s3 = S3Store("bucket", endpoint=store.endpoint, client_options={"allow_http": True}, **options)
    assert bytes(obstore.get(s3, "a/1.bin").bytes()) == b"0123456789"
    assert bytes(obstore.get(s3, "a/2 & 3.bin").bytes()) == b"x" * 300_000
    assert bytes(obstore.get_range(s3, "a/1.bin", start=3, end=6)) == b"345"
    assert obstore.head(s3, "a/1.bin")["size"] == 10
    listed = [each["path"] for page in obstore.list(s3) for each in page]
    assert sorted(listed) == ["a/1.bin", "a/2 & 3.bin", "a/empty"]
    with pytest.raises(FileNotFoundError):
        obstore.get(s3, "a/absent")


def test_the_store_counts_requests_and_bytes(store):
    before = store.served()
    with urllib.request.urlopen(f"{store.endpoint}/bucket/a/1.bin") as answer:
        assert answer.read() == b"0123456789"
    after = store.served()
    assert (after[0] - before[0], after[1] - before[1]) == (1, 10)


def test_a_run_finds_memory_and_cpu_of_all_processes(suite, tmp_path, monkeypatch):
    import runner

    (tmp_path / "contenders").mkdir()
    (tmp_path / "contenders" / "child.py").write_text(
        "import json, subprocess, sys, time\n"
        "work = 'import time; x = bytearray(60_000_000)\\nwhile time.process_time() < 0.5: pass\\ntime.sleep(0.6)'\n"
        "subprocess.run([sys.executable, '-c', work], check=True)\n"
        "print(json.dumps({'images': 1, 'cpu_main_s': time.process_time()}))\n"
    )
    monkeypatch.setattr(runner, "HERE", tmp_path)
    found = runner.run(runner.Case("child", "child.py", {}))
    assert found["rss_mb"] > 60 and found["cpu_s"] > 0.4
    (tmp_path / "contenders" / "broken.py").write_text("raise SystemExit('no luck')")
    with pytest.raises(runner.Failed, match="no luck"):
        runner.run(runner.Case("broken", "broken.py", {}))


def test_a_report_has_medians_spread_ratios_and_who_is_left_out(suite, tmp_path):
    import report

    def runs(kind, *rates):
        return [{"kind": kind, "steady": rate, "first_batch_s": 0.5, "rss_mb": 100.0} for rate in rates]

    facts = {"date": "2026-01-01", "commit": "abc", "cores": 2, "python": "3", "repeats": 3}
    local = {
        "sds, local": runs("ours", 90, 100, 130),
        "other & co": runs("peer", 50, 50, 60),
        "bare": runs("limit", 110, 120, 100),
    }
    results = {
        "facts": {**facts, "versions": {"torch": "2"}, "peers": {"other": "1"}},
        "workloads": {"local": local},
        "notes": ["somebody is left out: no wheel"],
    }
    report.write(results, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "| **sds, local** | 100 (90-130) |" in text and "| other & co | 50 (50-60) |" in text
    assert "| 0.50 |" in text and "commit abc" in text and "other 1" in text and "no wheel" in text
    drawn = (tmp_path / "bench-local.svg").read_text()
    assert "other &amp; co" in drawn and drawn.startswith("<svg")


def test_a_report_says_how_many_repeats_count_and_compares_only_like_with_like(suite, tmp_path):
    import report

    def runs(kind, num, **figures):
        return [{"kind": kind, "median_ms": 1.0, **figures} for _ in range(num)]

    half = {"downloaded_mb": 1.0, "steady": 700.0}
    results = {
        "facts": {
            **dict.fromkeys(("date", "commit", "cores", "python"), ""),
            "repeats": 2,
            "versions": {},
            "peers": {},
        },
        "workloads": {
            "access": {"sds, rows": runs("ours", 2), "mosaic": runs("shards", 1)},
            "half": {"sds, half": runs("ours", 2, **half)},
        },
    }
    report.write(results, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "- access: mosaic: 1 of its 2 repeats count\n" in text
    assert "| | median ms |\n|---|---|\n| **sds, rows** | 1 (1-1) |\n" in text
    assert "| | MB downloaded | steady images/s | of sds |\n" in text


def test_an_unmeasured_run_begins_with_an_empty_cache(suite, tmp_path, monkeypatch):
    import runner

    (tmp_path / "contenders").mkdir()
    (tmp_path / "contenders" / "caching.py").write_text(
        "import json, pathlib, sys\n"
        "dst = pathlib.Path(json.loads(sys.argv[1])['dst'])\n"
        "dst.mkdir(exist_ok=True)\n"
        "found = sorted(path.name for path in dst.iterdir())\n"
        "(dst / 'made').touch()\n"
        "print(json.dumps({'found': found}))\n"
    )
    monkeypatch.setattr(runner, "HERE", tmp_path)
    dst = tmp_path / "caches" / "somebody"
    dst.mkdir(parents=True)
    (dst / "left-by-a-killed-run").touch()
    case = runner.Case("somebody", "caching.py", {"dst": str(dst)}, prepare=True, fresh=(dst,))
    workload = SimpleNamespace(NAME="any", COLUMNS=(), cases=lambda _: [case])
    found = load_main().measure(SimpleNamespace(front=None, notes=[], patience_s=0.2), workload, 2, 60)
    assert [run["found"] for run in found["somebody"]] == [["made"], ["made"]]


def test_a_contender_that_leaves_out_images_fails(suite):
    sys.path.insert(0, str(SUITE / "contenders"))
    try:
        import timing
    finally:
        sys.path.remove(str(SUITE / "contenders"))

    def measure(**more):
        return timing.measure(lambda: [4, 4, 2], count=lambda batch: batch, **more)

    assert measure(num=10)["images"] == measure(num=12, may_miss=4)["images"] == 10
    for num, may_miss in ((12, 0), (15, 4), (9, 4)):
        with pytest.raises(SystemExit, match=f"10 samples were delivered in an epoch, and {num}"):
            measure(num=num, may_miss=may_miss)


@pytest.fixture
def check(suite, tmp_path, monkeypatch):
    """The check without a store, images and a baseline of its own: a test fakes what is measured."""
    import check

    monkeypatch.setattr(check, "BASELINE", tmp_path / "baseline.json")
    monkeypatch.setattr(check, "Images", lambda *_: SimpleNamespace(make=lambda: None, root=tmp_path))
    monkeypatch.setattr(check, "compiled", lambda _: None)
    monkeypatch.setattr(check, "Front", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(check, "pairs", lambda *_: {"cold": "cold", "warm": "warm"})
    return check


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ([0.86], 0),
        ([0.84, 1.0], 0),
        ([0.84, 0.84], 1),
    ],
)
def test_a_ratio_that_looks_bad_is_measured_again_before_it_counts(check, monkeypatch, capsys, shares, verdict):
    check.BASELINE.write_text(json.dumps({"ratios": {"cold": 0.8, "warm": 0.5}}))
    values = {"cold": [0.8 * share for share in shares], "warm": [0.5]}
    asked = {"cold": [], "warm": []}

    def ratio(pair, rounds):
        asked[pair].append(rounds)
        return values[pair].pop(0), "words"

    monkeypatch.setattr(check, "ratio", ratio)
    assert check.main(check.BASELINE.parent) == verdict
    assert asked == {"cold": [5, 15][: len(shares)], "warm": [5]}
    said = capsys.readouterr()
    assert ("SLOWER" in said.out) == ("by more than 15%: cold" in said.err) == bool(verdict)


def test_a_new_baseline_is_measured_with_all_rounds(check, monkeypatch):
    check.BASELINE.write_text(json.dumps({"ratios": {"cold": 0.8}}))
    monkeypatch.setattr(check, "ratio", lambda _, rounds: (rounds / 100, "words"))
    assert check.main(check.BASELINE.parent, update=True) == 0
    assert json.loads(check.BASELINE.read_text())["ratios"] == {"cold": 0.15, "warm": 0.15}


def smoke(folder, *workloads):
    """The results of a quick run without peers."""
    command = [sys.executable, str(SUITE), "--quick", "--no-peers", "--images", "64", "--workloads", *workloads]
    done = subprocess.run(
        [*command, "--home", str(folder), "--out", str(folder / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "out" / "results.json").read_text())
    assert found["notes"] == []
    return found["workloads"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Data and the store's program are made once."""
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize(
    ("workload", "names"),
    [
        ("warm", {"sds, warm", "bare decodes", "bare decodes, sds's way", "bare decodes, processes"}),
        ("local", {"sds, local", "sds, local, 2 workers", "bare decodes, processes", "bare reads"}),
        ("half", {"sds, half"}),
        ("index", {"sds, 100k", "sds, lazy, 100k", "pyarrow, 100k"}),
        ("resume", {"sds, at 90%", "sds, from the start"}),
        ("access", {"sds, rows", "sds, lazy rows", "sds, images", "pyarrow, a row"}),
        ("text", {"sds, rows", "pyarrow, rows"}),
    ],
)
def test_a_workload_runs_without_peers(suite, home, workload, names):
    found = smoke(home, workload)[workload]
    assert names <= set(found)
    figure = importlib.import_module(f"workloads.{workload}").FIGURE
    for name, runs in found.items():
        assert len(runs) == 1 and runs[0][figure] > 0, name


def test_a_smoke_run_writes_a_report(tmp_path):
    found = smoke(tmp_path, "cold")
    (ours,) = found["cold"]["sds"]
    (bare,) = found["cold"]["bare gets and decodes"]
    assert ours["images"] == bare["images"] == 64
    assert ours["downloaded_mb"] == pytest.approx(bare["downloaded_mb"])
    assert ours["steady"] > 0 and ours["first_batch_s"] > 0 and ours["rss_mb"] > 50


def test_memory_is_cleared_where_one_may(suite, tmp_path):
    from runner import clear_memory

    (tmp_path / "store" / "a").mkdir(parents=True)
    (tmp_path / "store" / "a" / "b").write_bytes(b"x")
    switch = tmp_path / "switch"
    assert clear_memory(tmp_path / "store", switch) and switch.read_text() == "3"
    assert not clear_memory(tmp_path / "store", tmp_path / "none" / "switch")
