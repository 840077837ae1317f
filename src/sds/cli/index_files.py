"""Files that an index names, looked at: by threads of this process, or by Ray's workers, a share each.

Comes in: addresses. Goes out: what is known of each, in order, the same whoever looked. Ray's workers also read the
tables of a source that has several.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sds.cli.probe import Probed, probe_urls
from sds.cli.ray_engine import run_on_ray
from sds.errors import ObjectNotFound

if TYPE_CHECKING:
    from sds.fetch import FetchClient
    from sds.index.gather import FileToRead
    from sds.index.readers import ReadFile

__all__ = ["Here", "Looker", "OnRay"]

_SHARES_A_WORKER = 4  # so that one that died or is slow costs little
_MIN_SHARE, _MAX_SHARE = 16, 2048  # files


class Looker(Protocol):
    """Who looks at files."""

    def probe(self, name: str, urls: Sequence[str | None]) -> list[Probed]:
        """The facts of each file, or why there are none; `name` is for people."""
        ...

    def missing(self, urls: Sequence[str]) -> list[str]:
        """Those that are not there."""
        ...


@dataclass(frozen=True)
class Here:
    """Looks at files from threads of this process."""

    client: FetchClient
    threads: int

    def probe(self, name: str, urls: Sequence[str | None]) -> list[Probed]:
        """The facts of each file, or why there are none."""
        from sds.observe import ProgressBar

        found = probe_urls(urls, self.client, self.threads)
        return [each for each, _ in zip(found, ProgressBar(urls, f"probe {name}", unit="files"), strict=True)]

    def missing(self, urls: Sequence[str]) -> list[str]:
        """Those that are not there."""
        from sds.observe import ProgressBar

        found = _is_missing(urls, self.client, self.threads)
        bar = ProgressBar(urls, "check", unit="files")
        return [url for url, is_missing in zip(bar, found, strict=True) if is_missing]


@dataclass(frozen=True)
class OnRay:
    """Has Ray's workers look at files, and read tables."""

    num_workers: int
    settings: dict[str, Any]
    threads: int

    def probe(self, name: str, urls: Sequence[str | None]) -> list[Probed]:
        """The facts of each file, or why there are none."""
        shares = run_on_ray(probe_share, self._tasks(urls), num_workers=self.num_workers, title=f"probe {name}: ")
        return [each for share in shares for each in share]

    def missing(self, urls: Sequence[str]) -> list[str]:
        """Those that are not there."""
        shares = run_on_ray(check_share, self._tasks(urls), num_workers=self.num_workers, title="check: ")
        return [url for share in shares for url in share]

    def read(self, files: Sequence[FileToRead]) -> list[ReadFile]:
        """The tables of index files."""
        tasks = [(file, self.settings) for file in files]
        return run_on_ray(read_table, tasks, num_workers=self.num_workers, title="read: ")

    def _tasks(self, urls: Sequence[str | None]) -> list[tuple[Any, ...]]:
        size = -(-len(urls) // (_SHARES_A_WORKER * self.num_workers))
        size = max(_MIN_SHARE, min(_MAX_SHARE, size))
        return [(urls[k : k + size], self.settings, self.threads) for k in range(0, len(urls), size)]


def probe_share(urls: Sequence[str | None], settings: dict[str, Any], threads: int) -> list[Probed]:
    """In a worker: the facts of some files."""
    from sds.cli.words import open_client

    with open_client(settings) as (client, _):
        return list(probe_urls(urls, client, threads))


def check_share(urls: Sequence[str], settings: dict[str, Any], threads: int) -> list[str]:
    """In a worker: which of some files are not there."""
    from sds.cli.words import open_client

    with open_client(settings) as (client, _):
        return [url for url, gone in zip(urls, _is_missing(urls, client, threads), strict=True) if gone]


def read_table(file: FileToRead, settings: dict[str, Any]) -> ReadFile:
    """In a worker: the table of an index file."""
    from sds.cli.words import open_client

    with open_client(settings) as (client, folder):
        return file.read(lambda: client, Path(folder) / f"source-{os.getpid()}")


def _is_missing(urls: Sequence[str], client: FetchClient, threads: int) -> Iterator[bool]:
    with ThreadPoolExecutor(threads) as pool:
        asked = [pool.submit(client.head, url) for url in urls]
        try:
            for future in asked:
                try:
                    future.result()
                    yield False
                except ObjectNotFound:
                    yield True
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
