"""Every Python block of README and docs runs: a page's blocks in order, in one namespace, in a user's folder."""

from __future__ import annotations

import pickle
import shlex
import sys
import types
import zipfile
from pathlib import Path

import pytest

import commands
from docs.pages import ROOT, Block, blocks_of, pages

PYTHON_PAGES = [page for page in pages() if any(block.runs for block in blocks_of(page))]
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
def test_the_blocks_of_a_page_run_in_order(page: Path, home: Path, furnished: Path):
    # a user's file is __main__: blocks about worker processes have the guard that such a file needs
    namespace = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.runs:
            run(page, block, namespace)
    assert contents(home / "photos") == contents(furnished / "photos"), "a reader's next page needs them as they were"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run(page: Path, block: Block, namespace: dict[str, object]) -> None:
    # so many empty lines before it that a traceback names the line of the page
    code = "\n" * (block.line - 1) + block.code
    exec(compile(code, str(ROOT / page), "exec"), namespace)


# these take long, or serve until they are interrupted; tests/integration runs them
LASTING = ("sds demo", "sds view")


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith(LASTING) or "--help" in c])
def test_a_cheap_command_runs(
    command: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert commands.Sds(monkeypatch, capsys).well(*shlex.split(command)[1:])


def test_few_blocks_are_not_run():
    left_out = [(page, block.not_run) for page in pages() for block in blocks_of(page) if block.not_run]
    assert len(left_out) <= 7, left_out


def test_a_block_from_a_file_is_in_it():
    taken = [(page, block) for page in pages() for block in blocks_of(page) if block.source]
    assert taken
    for page, block in taken:
        file = (ROOT / str(block.source)).read_text()
        assert bare(block.code) in bare(file), f"{page}:{block.line} is not in {block.source}"


def bare(code: str) -> str:
    """Without indentation and empty lines: a page shows a method without its class."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())


def test_the_source_of_your_own_opens_its_file_once_and_travels_after_use(home: Path, monkeypatch: pytest.MonkeyPatch):
    (block,) = [b for b in blocks_of(Path("docs/guide/your-own.md")) if b.runs and "class Zip" in b.code]
    module = types.ModuleType("zips")
    monkeypatch.setitem(sys.modules, "zips", module)
    exec(block.code.partition("\ndataset =")[0], module.__dict__)
    opened: list[object] = []
    real = zipfile.ZipFile.__init__
    source = module.__dict__["Zip"]("photos.zip")
    monkeypatch.setattr(zipfile.ZipFile, "__init__", lambda self, *a: (opened.append(a), real(self, *a))[1])
    rows = [source.rows([i])[0] for i in (3, 0, 3)]
    assert len(opened) == 1 and rows[0] == rows[2] != rows[1]
    assert pickle.loads(pickle.dumps(source)).rows([3]) == rows[:1]
