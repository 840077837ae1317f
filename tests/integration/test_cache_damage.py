"""Files that somebody deleted, cut, grew or replaced under the server: fetched again, never handed out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import fetching
from sds.fetch import FetchClient, FetchOptions
from sds.testing import HTTPServer

SIZE = 10_000


@pytest.fixture
def urls(http_server: HTTPServer, new_name: Callable[[], str]) -> list[str]:
    return fetching.publish(http_server, new_name(), [SIZE] * 8)


def take(client: FetchClient, urls: list[str]) -> list[str]:
    """The paths of whole files, let go of at once."""
    paths = []
    for ticket, url in zip(client.submit([[(url, None)] for url in urls]), urls, strict=True):
        paths += ticket.take()
        assert fetching.is_right(paths[-1], url, SIZE)
        ticket.release()
    return paths


def damage(paths: list[str], victim: Path) -> None:
    """One kind of harm per file; the first stays whole."""
    os.unlink(paths[1])
    os.truncate(paths[2], 0)
    os.truncate(paths[3], SIZE - 1)
    with open(paths[4], "ab") as file:
        file.write(b"more")
    os.unlink(paths[5])
    os.symlink(victim, paths[5])
    os.unlink(paths[6])
    os.mkfifo(paths[6])
    os.rename(paths[7], f"{paths[7]}.bak")  # a name that is not ours any more


@pytest.mark.parametrize("when", ["running", "between runs"])
def test_harm_is_found_and_mended(dst: Path, tmp_path: Path, urls: list[str], when: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(bytes(SIZE))
    client = FetchClient(FetchOptions(dst=str(dst), limit=9 * SIZE))
    paths = take(client, urls)
    if when == "between runs":
        client.close()
        fetching.until(lambda: not fetching.server_pids(dst))
    damage(paths, victim)
    before = client.tally.stats().misses
    assert take(client, urls) == paths
    assert client.tally.stats().misses - before == 7
    assert victim.read_bytes() == bytes(SIZE) and Path(f"{paths[7]}.bak").exists()
    client.close()


def test_a_file_harmed_while_another_holds_it_is_fetched_again(dst: Path, urls: list[str]) -> None:
    holder, other = (FetchClient(FetchOptions(dst=str(dst), limit=4 * SIZE)) for _ in range(2))
    (held,) = holder.submit([[(urls[0], None)]])
    path = held.take()[0]
    os.truncate(path, 17)
    assert take(other, urls[:1]) == [path]  # under the same name, whole: the holder's path is good again too
    assert fetching.is_right(path, urls[0], SIZE)
    held.release()
    take(other, urls)
    assert fetching.num_bytes_on_disk(dst) <= 4 * SIZE  # and nothing was counted twice, or not at all
    take(holder, urls)
    assert fetching.num_bytes_on_disk(dst) == 4 * SIZE
    holder.close()
    other.close()


def test_the_whole_folder_is_deleted_under_the_server(dst: Path, urls: list[str]) -> None:
    client = FetchClient(FetchOptions(dst=str(dst)))
    take(client, urls)
    (pid,) = fetching.server_pids(dst)
    shutil.rmtree(dst)
    take(client, urls)
    fetching.until(
        lambda: fetching.server_pids(dst) not in ([], [pid])
    )  # it noticed, and a new one owns the new folder
    take(client, urls)
    assert fetching.num_bytes_on_disk(dst) == 8 * SIZE
    client.close()


def test_foreign_things_in_the_folder_are_no_obstacle(dst: Path, urls: list[str]) -> None:
    buckets = [dst / "objects" / f"{i:02x}" for i in range(0, 256, 16)]
    for bucket in buckets:
        bucket.mkdir(parents=True)
        (bucket / "notes.txt").write_text("theirs")
        (bucket / f"{'a' * 32}-{SIZE}").mkdir()
        os.mkfifo(bucket / f"{'b' * 32}-0.bin")
        (bucket / f"{bucket.name}{'c' * 30}-5.bin").write_bytes(b"ours, damaged")
        (bucket / f"part-7-{'d' * 32}").write_bytes(b"ours, unfinished")
    client = FetchClient(FetchOptions(dst=str(dst), limit=2 * SIZE))
    take(client, urls)
    for bucket in buckets:
        left = sorted(path.name for path in bucket.iterdir() if path.lstat().st_size != SIZE or path.is_dir())
        assert left == [f"{'a' * 32}-{SIZE}", f"{'b' * 32}-0.bin", "notes.txt"]
    client.close()
