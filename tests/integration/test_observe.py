"""Runs that are recorded, served, priced and drawn: real loaders, a real store, a real browser where there is one."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import sds
import texts
from sds.errors import OptionError
from sds.observe import cost, estimate, read_run, report, serve
from sds.testing import S3Server

SDS = Path(sys.executable).with_name("sds")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture
def index(s3: S3Server, bucket: str, tmp_path: Path) -> Path:
    """Thirty objects of 1,000 bytes, in two buckets of one store."""
    other = f"{bucket}-b"
    s3.create_bucket(other)
    rows = ["index,txt"]
    for number in range(30):
        place = bucket if number % 3 else other
        s3.put(place, f"{number:03d}.txt", b"x" * 1000)
        rows.append(f"{number:03d},s3://{place}/{number:03d}.txt")
    path = tmp_path / "index.csv"
    path.write_text("\n".join(rows))
    return path


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_is_recorded_priced_and_drawn(make, index, s3, bucket, tmp_path, num_workers):
    dataset = make(
        src=index,
        transforms=[texts.Slow(0.01), texts.FailOn("007")],
        storage_options=s3.storage_options,
        max_failures=0.5,
    )
    record = tmp_path / "runs" / "run.jsonl"
    with sds.StreamingDataLoader(dataset, 3, num_workers=num_workers) as loader:
        loader.record(record, every_s=0.05)
        for _ in range(2):
            for _ in loader:
                pass
        stats = loader.stats()
    run = read_run(record)
    assert run.stats == stats, "the last line is all of it"
    assert len(run.moments) > 3
    numbers = [moment.stats.samples for moment in run.moments]
    assert numbers == sorted(numbers)
    assert {failure.key for failure in run.failures} == {"007"}
    assert {each.store: each.requests for each in stats.traffic} == {f"s3://{bucket}": 20, f"s3://{bucket}-b": 10}
    assert sum(each.num_bytes for each in stats.traffic) == stats.bytes_downloaded == 30_000
    assert len(stats.slowest) == 20
    assert all(slow.url.startswith("s3://") and slow.num_bytes == 1000 for slow in stats.slowest)
    assert cost(stats).total == pytest.approx(30 / 1000 * 0.0004 + 30_000 / 1e9 * 0.09)
    done = subprocess.run(
        [SDS, "report", record, "-o", tmp_path / "report.html", "--json"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    (rank,) = json.loads(done.stdout)["ranks"]
    assert rank["cost"]["requests"] == 30 and rank["sds/failures"] == 2.0
    page = (tmp_path / "report.html").read_text()
    assert f"s3://{bucket}-b" in page and "no luck with 007" in page


def test_a_run_that_is_killed_leaves_a_record(tmp_path, source):
    code = (
        "import os, signal, sds, time\n"
        f"ds = sds.StreamingDataset({str(source)!r}, {str(tmp_path / 'dst')!r}, columns_to_download=['txt'])\n"
        "loader = sds.StreamingDataLoader(ds, 4)\n"
        f"loader.record({str(tmp_path / 'run.jsonl')!r}, every_s=0.02)\n"
        f"loader.trace({str(tmp_path / 'trace.json')!r})\n"
        "for _ in loader: time.sleep(0.05)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -9, done.stderr
    run = read_run(tmp_path / "run.jsonl")
    assert run.stats.samples >= 36
    assert report(tmp_path / "run.jsonl", tmp_path / "report.html").exists()
    assert (tmp_path / "trace.json").read_text().startswith("[\n{"), "viewers read it without its end"


def test_a_program_that_closes_nothing_leaves_a_whole_trace(tmp_path, source):
    code = (
        "import sds\n"
        f"ds = sds.StreamingDataset({str(source)!r}, {str(tmp_path / 'dst')!r}, columns_to_download=['txt'])\n"
        "loader = sds.StreamingDataLoader(ds, 4)\n"
        f"loader.trace({str(tmp_path / 'trace.json')!r})\n"
        "for _ in loader: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = json.loads((tmp_path / "trace.json").read_text())
    assert sum(each["name"] == "collate" for each in found) == 10


def test_metrics_are_served_while_a_loop_runs(make):
    with sds.StreamingDataLoader(make(transforms=[texts.Slow(0.001)]), 4) as loader, serve(loader) as endpoint:
        assert endpoint.host == "127.0.0.1"
        seen = []
        for _ in loader:
            with urllib.request.urlopen(endpoint.url, timeout=10) as answer:
                families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
            seen.append(families["sds_batches"].samples[0].value)
        assert seen == [float(number) for number in range(1, 11)]
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(endpoint.url.replace("/metrics", "/"), timeout=10)
        caught.value.close()
        with pytest.raises(OptionError, match="cannot be served") as taken:
            serve(loader, endpoint.port)
        assert "port=0" in taken.value.hint
    endpoint.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(endpoint.url, timeout=10)
    with pytest.raises(OptionError, match="no stats"):
        serve([1, 2])


def test_who_hangs_up_is_no_reason_to_say_anything(make, capfd):
    with sds.StreamingDataLoader(make(), 4) as loader, serve(loader) as endpoint:
        for _ in range(3):
            with socket.create_connection((endpoint.host, endpoint.port), timeout=10) as caller:
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # with a reset
                caller.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        asked = urllib.request.Request(endpoint.url, method="HEAD")
        with urllib.request.urlopen(asked, timeout=10) as answer:
            assert answer.status == 200 and int(answer.headers["Content-Length"]) > 100 and answer.read() == b""
        time.sleep(0.2)
    assert capfd.readouterr() == ("", "")
    for wrong in ({"port": "x"}, {"port": -1}, {"port": 0.5}, {"host": 5}, {"labels": [1]}):
        with pytest.raises(OptionError):
            serve(loader, **wrong)


def test_an_estimate_is_what_the_run_costs(make, index, s3, bucket):
    options = {"storage_options": s3.storage_options, "cache_limit": "15kb", "prefetch": 2}
    dataset = make(src=index, **options)
    guess = estimate(dataset, epochs=3, cache_limit="15kb")
    assert (guess.rows, guess.files, guess.num_sized, guess.num_unknown) == (30, 30, 30, 0)
    assert (guess.first_epoch.requests, guess.later_epoch.requests, guess.total.requests) == (30, 15, 60)
    assert {line.store: line.num_bytes for line in guess.first_epoch.lines} == {
        f"s3://{bucket}": 20_000,
        f"s3://{bucket}-b": 10_000,
    }
    assert dataset.stats().requests == 0, "nothing was downloaded for it"
    with sds.StreamingDataLoader(dataset, 1, num_threads=1, prefetch_batches=1) as loader:
        for _ in range(3):
            list(loader)
        actual = cost(loader.stats())
    # files in use cannot be kept, so a small cache keeps somewhat less than its share
    assert 0.99 * guess.total.total <= actual.total <= 1.35 * guess.total.total
    assert estimate(dataset, cache_limit=None, epochs=2).total.requests == 30
    with pytest.raises(OptionError, match="epochs"):
        estimate(dataset, epochs=0)


def test_the_command_estimates_and_adds_up(index, s3, bucket, tmp_path):
    env = {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_REGION": s3.region,
        "AWS_ACCESS_KEY_ID": s3.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.secret_key,
        "PATH": "/usr/bin:/bin",
        "SDS_CACHE_DIR": str(tmp_path / "cache"),
    }
    (tmp_path / "prices.json").write_text('{"s3": {"per_1000_requests": 1000, "transfer_per_gb": 0}}')
    words = [SDS, "cost", index, "--download", "txt", "--epochs", "2", "--prices", tmp_path / "prices.json"]
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == 30
    assert found["total"]["total"] == pytest.approx(30.0), "the second epoch is in the cache"
    done = subprocess.run([SDS, "cost"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "needs a source or a run" in done.stderr


def pixels(path: Path) -> tuple[int, int, bytes]:
    """Width, height and the (filtered) rows of a PNG."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    place, body = 8, b""
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        if data[place + 4 : place + 8] == b"IDAT":
            body += data[place + 8 : place + 8 + length]
        place += 12 + length
    return width, height, zlib.decompress(body)


@pytest.mark.skipif(BROWSER is None, reason="no browser here: install Debian's chromium")
def test_a_browser_shows_the_page(make, tmp_path):
    with sds.StreamingDataLoader(make(transforms=[texts.Slow(0.002)]), 4) as loader:
        loader.record(tmp_path / "run.jsonl", every_s=0.02)
        for _ in loader:
            time.sleep(0.01)
    report(tmp_path / "run.jsonl", tmp_path / "report.html")
    base = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    url = (tmp_path / "report.html").as_uri()
    shot = [f"--screenshot={tmp_path / 'page.png'}", "--window-size=1240,1100", "--hide-scrollbars", url]
    done = subprocess.run([*base, *shot], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "Refused to" not in done.stderr, "the page asked for something that it forbids itself"
    width, height, rows = pixels(tmp_path / "page.png")
    assert (width, height) == (1240, 1100)
    assert len(set(rows)) > 50, "it is not blank"
    done = subprocess.run([*base, "--dump-dom", url], capture_output=True, text=True, timeout=100)
    assert done.stdout.count("<svg") == 6 and done.stdout.count("<polyline") >= 5


def test_requests_in_vain_are_counted(make, s3, bucket, tmp_path):
    s3.put(bucket, "a.txt", b"12345")
    rows = [f"{name},s3://{bucket}/{name}.txt" for name in ("a", "gone")]
    (tmp_path / "index.csv").write_text("\n".join(["index,txt", *rows]))
    dataset = make(src=tmp_path / "index.csv", storage_options=s3.storage_options, max_failures=2)
    assert len(list(dataset)) == 1
    (found,) = dataset.stats().traffic
    assert found == (f"s3://{bucket}", "standard", 2, 5), "what is not there is asked for, and paid for"
