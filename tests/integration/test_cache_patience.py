"""Patience: who waits for something else than room, or holds what comes free, is not told that the limit is too small.

The fetch server of these tests says so after half a second, where others wait for five.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fetching
import sds
from sds.fetch import FetchClient, FetchOptions, link
from sds.testing import HTTPServer

SIZE = 10_000
_SERVER = """
import sys
from sds.fetch import server
server._STUCK_S = 0.5
server.main(sys.argv[1], sys.argv[2])
"""


@pytest.fixture(autouse=True)
def _impatient_server(monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        if command[1:3] == ["-m", "sds.fetch.server"]:
            command = [command[0], "-c", _SERVER, *command[3:], "sds.fetch.server"]
        return popen(command, **options)

    monkeypatch.setattr(subprocess, "Popen", start)


def table(path: Path, rows: list[list[str]], columns: str = "url") -> Path:
    path.write_text("\n".join([f"index,{columns}", *(f"{i},{','.join(row)}" for i, row in enumerate(rows))]))
    return path


@pytest.fixture
def index(http_server: HTTPServer, tmp_path: Path, new_name: Callable[[], str]) -> Path:
    """24 objects of 10 KB, named by a table."""
    return table(tmp_path / "index.csv", [[url] for url in fetching.publish(http_server, new_name(), [SIZE] * 24)])


def open_dataset(index: Path, dst: Path, **options: Any) -> sds.StreamingDataset:
    options = {"columns_to_download": ["url"], "on_error": "raise", "timeout": 60, **options}
    return sds.StreamingDataset(index, dst, **options)


@pytest.mark.parametrize("slow", [9, 12])
def test_a_slow_look_for_what_comes_next(index: Path, dst: Path, slow: int) -> None:
    """Batches that are complete wait in the feeding thread's hands, which looks something up; they fill the cache."""

    def look_up(sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["index"]) == slow:
            time.sleep(2.5)
        return sample

    options: dict[str, Any] = {"pre_download_transforms": [look_up], "cache_limit": 6 * SIZE, "prefetch": 2}
    with (
        open_dataset(index, dst, **options) as dataset,
        sds.StreamingDataLoader(dataset, 4, num_threads=4) as loader,
    ):
        assert [int(i) for batch in loader for i in batch["index"]] == list(range(24))


def test_a_slow_decode_of_local_files_in_a_mix(index: Path, dst: Path, tmp_path: Path) -> None:
    """The next batch needs no room at all; those after it hold all there is."""

    def decode(sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(2.5)
        return {"index": sample["index"], "url": "-"}

    (tmp_path / "local.bin").write_bytes(b"x")
    local = table(tmp_path / "local.csv", [[str(tmp_path / "local.bin")]] * 2)
    streams = [sds.StreamOptions("slow", 1, batch_size=1), sds.StreamOptions("paths", 3, batch_size=2)]
    limit = {"cache_limit": 4 * SIZE}
    with (
        open_dataset(local, dst, transforms=[decode], **limit) as slow,
        open_dataset(index, dst, **limit) as paths,
        sds.MultiStreamDataLoader([slow, paths], streams, schedule="consecutive", stop="first") as loader,
    ):
        seen = []
        for batch in loader:
            seen.append(batch.stream_name)
            assert all(url == "-" or Path(url).stat().st_size == SIZE for url in batch["url"])
    assert seen.count("slow") == 2 and seen.count("paths") >= 3


def test_a_wait_for_a_store_is_no_wait_for_room(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str]
) -> None:
    """One thread holds a file, and asks a slow store for the size of another; it lets go when it has it."""
    first, second = fetching.publish(http_server, new_name(), [SIZE] * 2)
    client = FetchClient(FetchOptions(dst=str(dst), limit=SIZE, timeout_s=60))

    def answer(target: str) -> bytes:
        time.sleep(2.5)
        return fetching.response("200 OK", b"", 3)

    with fetching.RawServer(answer) as slow:
        (held,) = client.submit([[(first, None)]])
        held.take()
        (wanted,) = client.submit([[(second, None)]])
        got: list[bool] = []
        waits = threading.Thread(target=lambda: got.append(fetching.is_right(wanted.take()[0], second, SIZE)))
        waits.start()
        assert client.head(f"{slow.url}/x.bin").size == 3
        assert not got
        held.release()
        waits.join(20)
    assert got == [True]
    client.close()


def test_random_access_keeps_its_paths_while_others_starve_for_moments(
    index: Path, dst: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_dataset(index, dst, cache_limit=10 * SIZE) as dataset, open_dataset(index, dst) as other:
        mine = [dataset[i] for i in range(4)]
        monkeypatch.setattr(link, "_KIND_S", 1e9)
        begun = threading.Thread(target=other.__getitem__, args=(slice(6, 15),))
        begun.start()
        begun.join(1.0)
        assert begun.is_alive() and all(Path(sample["url"]).exists() for sample in mine)
        monkeypatch.setattr(link, "_KIND_S", 0.5)  # it lasts: the last sample of each thread is left
        begun.join(20)
        assert not begun.is_alive() and Path(mine[-1]["url"]).exists()


def test_samples_of_several_files_do_not_keep_each_other_out(
    http_server: HTTPServer, dst: Path, tmp_path: Path, new_name: Callable[[], str]
) -> None:
    """Room for one sample and a quarter, files of all sizes: what is prefetched has some of its files."""
    sizes = random.Random(2).choices([100, 5000, 10_000, 40_000], k=45)
    urls = fetching.publish(http_server, new_name(), sizes)
    rows = [urls[k : k + 3] for k in range(0, 45, 3)]
    limit = max(sum(sizes[k : k + 3]) for k in range(0, 45, 3)) * 5 // 4
    options: dict[str, Any] = {"columns_to_download": ["a", "b", "c"], "transforms": [lambda x: {"index": x["index"]}]}
    with open_dataset(table(tmp_path / "several.csv", rows, "a,b,c"), dst, cache_limit=limit, **options) as dataset:
        for _ in range(2):
            assert [int(sample["index"]) for sample in dataset] == list(range(15))
