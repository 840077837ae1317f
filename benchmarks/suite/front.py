"""The store of the benchmarks: a web server with S3's reads over a folder, which waits before the first byte.

Comes in: a folder of buckets and a delay. Goes out: an endpoint, and how many requests and bytes it served. front.c is
compiled when first used; what it costs itself is measured with `python benchmarks/suite --front`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

from typing_extensions import Self

SOURCE = Path(__file__).with_name("front.c")


def compiled(folder: Path) -> Path:
    """The program, made once for each text of its source."""
    program = folder / f"front-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}"
    if not program.exists():
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            sys.exit("no C compiler: the store of the benchmarks is a small C program. hint: install gcc or clang")
        folder.mkdir(parents=True, exist_ok=True)
        part = program.with_suffix(".part")
        subprocess.run([compiler, "-O2", "-o", part, SOURCE], check=True)
        part.rename(program)
    return program


class Front:
    """Serves while its `with` block runs."""

    def __init__(self, program: Path, root: Path, delay_ms: float) -> None:
        command = [str(program), "0", str(root), str(delay_ms)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def served(self) -> tuple[int, int]:
        """Requests and bytes so far."""
        with urllib.request.urlopen(f"{self.endpoint}/__stats__", timeout=60) as answer:
            found = json.load(answer)
        return found["requests"], found["bytes"]

    def cpu_s(self) -> float:
        """What it has cost."""
        import psutil

        used = psutil.Process(self._process.pid).cpu_times()
        return float(used.user + used.system)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()
