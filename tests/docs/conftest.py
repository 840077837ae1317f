"""What the pages and examples find when they run: a folder of photos, indexes of them, the same in a bucket.

photos/            000000.jpg, 000000.txt, ...
texts/             monday/00.txt, tuesday/00.txt, ...
photos.parquet     id, image (path), caption, width, height, quality
photos.csv         the same
urls.csv           id, image (an http URL), caption
my_code.py         chain: a list of transforms
export.yaml        an export of photos.parquet
faces.tensors      a small tensor cache
run.jsonl          the record of a run
output/my-dataset  a training dataset as ComfyUI saves it
s3://my-bucket/    faces.tensors/, photos/, texts/, photos.parquet (with s3:// URLs), shards/part-*.parquet (its parts)
"""

from __future__ import annotations

import gc
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fetching
from docs.pages import ROOT
from sds.testing import HTTPServer, S3Server

PLAYGROUND = runpy.run_path(str(ROOT / "examples" / "playground.py"))


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory, s3: S3Server, http_server: HTTPServer) -> Path:
    """Makes everything once, by the program that makes it for readers; the photos are on a web server, too."""
    folder = tmp_path_factory.mktemp("home")
    rows = PLAYGROUND["furnish"](folder)
    PLAYGROUND["fill_bucket"](s3, folder, rows)
    for row in rows:
        http_server.put(row["image"], (folder / row["image"]).read_bytes())
    PLAYGROUND["write_urls"](folder / "urls.csv", rows, http_server.url)
    return folder


@pytest.fixture
def home(
    furnished: Path, s3: S3Server, http_server: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A fresh copy of the folder as the working folder, and the environment that a user of S3 has."""
    folder = tmp_path / "home"
    shutil.copytree(furnished, folder)
    monkeypatch.chdir(folder)
    for name, value in PLAYGROUND["variables"](s3).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SDS_CACHE_DIR", str(tmp_path / "cache"))
    yield folder
    gc.collect()  # datasets that a page did not close let go of the fetch server here
    fetching.kill_servers_below(tmp_path)


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an example in this process, to save the import of torch, and returns what it printed."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))  # some import from each other

    def call(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return call


@pytest.fixture
def run(home: Path, run_example: Callable[..., str]) -> Callable[..., str]:
    """The same in the folder of photos."""
    return run_example
