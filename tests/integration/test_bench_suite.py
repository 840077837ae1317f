"""The benchmarks run: the store answers like S3, contenders say what they found, the report has it all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[2] / "benchmarks" / "suite"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the store of the benchmarks needs a C compiler")


@pytest.fixture(scope="module")
def suite():
    sys.path.insert(0, str(SUITE))
    yield
    sys.path.remove(str(SUITE))


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


def test_a_smoke_run_writes_a_report(tmp_path):
    command = [sys.executable, str(SUITE), "--quick", "--no-peers", "--images", "64", "--workloads", "cold"]
    done = subprocess.run(
        [*command, "--home", str(tmp_path), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["notes"] == []
    (ours,) = found["workloads"]["cold"]["sds"]
    (bare,) = found["workloads"]["cold"]["bare gets and decodes"]
    assert ours["images"] == bare["images"] == 64
    assert ours["downloaded_mb"] == pytest.approx(bare["downloaded_mb"])
    assert ours["steady"] > 0 and ours["first_batch_s"] > 0 and ours["rss_mb"] > 50
