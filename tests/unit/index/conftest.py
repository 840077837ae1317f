"""What the tests of this room share: opening an index in a temporary folder, and a bucket that is a local folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sds.errors import ObjectNotFound
from sds.index import IndexOptions, TableIndex, open_index


@dataclass(frozen=True)
class Info:
    url: str
    size: int
    version: str


class Bucket:
    """s3://bucket/... as a folder: stands in for the fetch client, whose own tests use a real server."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[str] = []
        root.mkdir()

    def _path(self, url: str) -> Path:
        assert url.startswith("s3://bucket/"), url
        return self.root / url.removeprefix("s3://bucket/")

    def _info(self, path: Path) -> Info:
        content = path.read_bytes()
        return Info(f"s3://bucket/{path.relative_to(self.root)}", len(content), f"etag-{hash(content)}")

    def head(self, url: str) -> Info:
        self.calls.append(f"head {url}")
        if not self._path(url).is_file():
            raise ObjectNotFound(f"no object: {url}", hint="check the URL", url=url)
        return self._info(self._path(url))

    def list(self, url: str) -> Sequence[Info]:
        self.calls.append(f"list {url}")
        return [self._info(p) for p in self._path(url).rglob("*") if p.is_file()][::-1]  # no order is promised

    def read(self, url: str, start: int | None = None, stop: int | None = None) -> bytes:
        self.calls.append(f"read {url}")
        return self._path(url).read_bytes()[start:stop]

    def download(self, url: str, path: Path) -> Info:
        self.calls.append(f"download {url}")
        shutil.copyfile(self._path(url), path)
        return self._info(self._path(url))


def no_remote() -> Any:
    raise AssertionError("a local source asked for the network")


Open = Callable[..., TableIndex]


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path / "the-bucket")


@pytest.fixture
def open_(tmp_path: Path, request: pytest.FixtureRequest) -> Open:
    """open_(src, folder=..., **options), with the bucket as remote if the test uses one."""
    remote = (lambda: request.getfixturevalue("bucket")) if "bucket" in request.fixturenames else no_remote

    def opened(src: Any, *, folder: Path | None = None, **options: Any) -> TableIndex:
        return open_index(src, IndexOptions(**options), folder=folder or tmp_path / "dst" / "index", remote=remote)

    return opened


@pytest.fixture
def values() -> Callable[[TableIndex], list[dict[str, Any]]]:
    return lambda index: [row.values for row in index.rows(range(len(index)))]


@pytest.fixture
def keys() -> Callable[[TableIndex], list[str]]:
    return lambda index: [row.key for row in index.rows(range(len(index)))]
