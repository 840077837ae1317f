"""The commands of the viewer that our pages show: each serves rows, and ends as by Ctrl-C when it is told to."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from docs.pages import blocks_of, pages

COMMANDS = sorted(
    {
        line
        for page in pages()
        for block in blocks_of(page)
        if block.language == "bash"
        for line in block.code.splitlines()
        if line.startswith("sds view ")
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_viewer_serves(command: str, home: Path) -> None:
    words = [Path(sys.executable).with_name("sds"), *shlex.split(command)[1:]]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            assert url, process.stderr.read() if process.stderr else ""
            with urllib.request.urlopen(f"{url}api/page?num=3", timeout=60) as reply:
                rows = json.load(reply)["rows"]
            assert len(rows) == 3 and all(row["files"] == {"image": "image"} for row in rows)
            with urllib.request.urlopen(f"{url}api/sample?at=0", timeout=60) as reply:
                assert "error" not in json.load(reply)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
