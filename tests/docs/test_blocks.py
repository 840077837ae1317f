"""Every Python block of README and docs runs: a page's blocks in order, in one namespace, in a user's folder."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT, Block, blocks_of, pages

PYTHON_PAGES = [page for page in pages() if any(b.language == "python" and not b.not_run for b in blocks_of(page))]
COMMANDS = sorted(
    {
        line.removeprefix("$ ")
        for page in pages()
        for block in blocks_of(page)
        if block.language == "bash" and not block.not_run
        for line in block.code.splitlines()
        if line.removeprefix("$ ").startswith("sds ")
    }
)


# torchdata 0.11 calls what torch 2.13 has deprecated
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("page", PYTHON_PAGES, ids=str)
def test_the_blocks_of_a_page_run_in_order(page: Path, home: Path):
    # a user's file is __main__: blocks about worker processes have the guard that such a file needs
    namespace = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.language == "python" and not block.not_run:
            run(page, block, namespace)


def run(page: Path, block: Block, namespace: dict[str, object]) -> None:
    # so many empty lines before it that a traceback names the line of the page
    code = "\n" * (block.line - 1) + block.code
    exec(compile(code, str(ROOT / page), "exec"), namespace)


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith("sds demo") or "--help" in c])
def test_a_cheap_command_runs(command: str, home: Path):
    words = shlex.split(command)
    done = subprocess.run(
        [Path(sys.executable).with_name("sds"), *words[1:]], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_few_blocks_are_not_run():
    left_out = [(page, block.not_run) for page in pages() for block in blocks_of(page) if block.not_run]
    assert len(left_out) <= 6, left_out
