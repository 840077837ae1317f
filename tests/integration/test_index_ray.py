"""`sds index build --engine ray`: the bytes of a build in one process, also when workers are killed on the way."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from PIL import Image

from sds.testing import HTTPServer
from sds.testing.faults import Fault
from sds.testing.faults_proxy import FaultyProxy

NUM = 64


def picture(number: int) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (20 + number, 30)).save(content, "PNG")
    return content.getvalue()


def start(folder: Path, out: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sds", "index", "build", "parts/*.csv", "-o", out, "--download", "image"]
    return subprocess.Popen(
        [*command, "--id", "id", "--probe", "--json", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict:
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    return {**json.loads(out), "err": err}


def test_without_ray_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from sds import cli

    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["index", "build", str(tmp_path), "-o", str(tmp_path / "x.parquet")]
    with pytest.raises(Exception, match="needs the package ray") as caught:
        CliRunner().invoke(cli.app, [*words, "--engine", "ray"], catch_exceptions=False)
    assert "[ray]" in str(caught.value)
    with pytest.raises(Exception, match="engine is unknown: 'spark'"):
        CliRunner().invoke(cli.app, [*words, "--engine", "spark"], catch_exceptions=False)
    with pytest.raises(Exception, match="--num-workers is for an engine"):
        CliRunner().invoke(cli.app, [*words, "--num-workers", "3"], catch_exceptions=False)


@pytest.mark.timeout(400)  # Ray takes its time to start on a busy machine
def test_workers_make_the_bytes_of_one_process_and_survive_kills(
    tmp_path: Path, http_server: HTTPServer, new_name: Callable[[], str]
) -> None:
    pytest.importorskip("ray")
    name = new_name()
    for number in range(NUM):
        http_server.put(f"{name}/{number}.png", picture(number) if number != 5 else b"no picture")
    (tmp_path / "parts").mkdir()
    # the answer for one picture takes longer than the test, the first time
    with FaultyProxy(http_server.endpoint, [Fault("delay", key="/40.png", attempts=[1], seconds=200)]) as proxy:
        for part in range(4):
            rows = [f"{i:03},{proxy.endpoint}/{name}/{i}.png,{i if part else 'x'}" for i in range(part, NUM, 4)]
            (tmp_path / f"parts/{part}.csv").write_text("\n".join(["id,image,mixed", *rows]) + "\n")
        spread = start(tmp_path, "spread.parquet", "--engine", "ray", "--num-workers", "2", "--check")
        deadline = time.monotonic() + 200
        while not proxy.injected["delay"]:
            assert spread.poll() is None and time.monotonic() < deadline, spread.communicate(timeout=5)
            time.sleep(0.01)
        workers = [
            each
            for each in psutil.Process(spread.pid).children(recursive=True)
            if each.cmdline()[:1] == ["ray::probe_share"]
        ]
        assert workers, "one of them waits for the picture"
        for worker in workers:
            os.kill(worker.pid, signal.SIGKILL)
        facts = finish(spread)
        alone = finish(start(tmp_path, "alone.parquet"))
    assert (tmp_path / "spread.parquet").read_bytes() == (tmp_path / "alone.parquet").read_bytes()
    assert facts["rows"] == alone["rows"] == NUM
    assert facts["probe_failures"] == alone["probe_failures"] == 1
    assert "width" in facts["columns"] and facts["columns"]["mixed"] == "string"
    assert "probe image: 4 of 4 shares are done" in facts["err"]
    assert "not to be probed" in facts["err"] and "/5.png" in facts["err"]
