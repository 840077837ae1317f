"""`python -m sds` is the command `sds`."""

from __future__ import annotations

import subprocess
import sys

import sds


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "sds", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, f"sds {sds.__version__}"), done.stderr
