"""The examples of checkpoints in the common trainers: stopped without a word, gone on with in a new process, exact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("resume_plain_loop", []),
        ("resume_plain_loop", ["--num-workers", "2"]),
        ("resume_accelerate", []),
        ("resume_lightning", []),
        ("resume_hf_trainer", []),
    ],
    ids=["plain loop", "plain loop with workers", "accelerate", "lightning", "hf trainer"],
)
def test_a_trainer_goes_on_where_it_was_stopped(tmp_path, name, keywords):
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(tmp_path), *keywords]
    # 10 steps, a checkpoint every 4: what came after the 8th is trained on again, as the model of the 8th goes on
    stopped = subprocess.run([*command, "--stop-after", "10"], capture_output=True, text=True, timeout=100)
    assert stopped.returncode == 9, stopped.stderr
    assert "samples seen" not in stopped.stdout
    went_on = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert went_on.returncode == 0, went_on.stderr
    assert "samples seen, each epoch once and in its order" in went_on.stdout
