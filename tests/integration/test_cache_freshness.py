"""Objects that change: with a time to live they are fetched again in the end, with `revalidate` as soon as they did."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fetching
import sds
from sds.errors import ObjectNotFound
from sds.fetch import FetchClient, FetchOptions, prefetched
from sds.testing import HTTPServer, S3Server

Make = Callable[..., FetchClient]


@pytest.fixture
def make(dst: Path) -> Iterator[Make]:
    """Clients of one cache folder, which are closed in the end."""
    made: list[FetchClient] = []

    def client(**options: Any) -> FetchClient:
        made.append(FetchClient(FetchOptions(dst=str(dst), **options)))
        return made[-1]

    yield client
    for each in made:
        each.close()


def contents(client: FetchClient, urls: list[str]) -> list[bytes]:
    """What a client gets to see of each object."""
    seen = []
    for _, ticket in prefetched(client, urls, lambda url: [(url, None)], 4):
        seen.append(Path(ticket.take()[0]).read_bytes())
        ticket.release()
    return seen


@pytest.fixture(params=["http", "s3"])
def store(
    request: pytest.FixtureRequest, new_name: Callable[[], str]
) -> tuple[Callable[..., None], Any, dict[str, Any]]:
    """put(name, data), url(name), and what a client needs to reach it."""
    folder = new_name()
    if request.param == "http":
        web: HTTPServer = request.getfixturevalue("http_server")
        return lambda name, data: web.put(f"{folder}/{name}", data), lambda name: web.url(f"{folder}/{name}"), {}
    s3: S3Server = request.getfixturevalue("s3")
    s3.create_bucket(folder)
    options = {"settings": s3.storage_options}
    return lambda name, data: s3.put(folder, name, data), lambda name: f"s3://{folder}/{name}", options


def test_what_changed_is_fetched_again_and_what_did_not_is_not(store: Any, make: Make) -> None:
    put, url, reach = store
    names = [f"{i}.bin" for i in range(6)]
    for name in names:
        put(name, f"first {name}".encode())
    urls = [url(name) for name in names]
    never, always = make(**reach), make(revalidate="always", **reach)
    first = make(revalidate="run", run="1", **reach)
    old = [f"first {name}".encode() for name in names]
    assert contents(never, urls) == contents(always, urls) == contents(first, urls) == old
    put(names[2], b"other 2.bin")  # of the same size
    put(names[3], b"longer than before")
    new = [*old[:2], b"other 2.bin", b"longer than before", *old[4:]]
    before = always.tally.stats().misses
    assert contents(never, urls) == old
    assert contents(first, urls) == old  # asked once in this run
    assert contents(always, urls) == new
    assert always.tally.stats().misses - before == 2  # the others were there
    second = make(revalidate="run", run="2", **reach)
    assert contents(second, urls) == new and second.tally.stats().misses == 0


def test_processes_of_one_run_ask_once(http_server: HTTPServer, make: Make, new_name: Callable[[], str]) -> None:
    folder = new_name()
    urls = fetching.publish(http_server, folder, [1000] * 4)
    one, two = make(revalidate="run", run="x"), make(revalidate="run", run="x")
    for client in (one, two, one):
        assert all(contents(client, urls))
    assert [http_server.requests(f"/{folder}/{i}.bin", method="HEAD") for i in range(4)] == [1] * 4
    assert [http_server.requests(f"/{folder}/{i}.bin", method="GET") for i in range(4)] == [1] * 4


def test_a_version_that_is_overtaken_is_asked_for_again(
    http_server: HTTPServer, make: Make, new_name: Callable[[], str]
) -> None:
    """An object that changed in this run and was evicted since: it is fetched as it is now, never under an old name."""
    folder = new_name()
    urls = fetching.publish(http_server, folder, [1000] * 3)
    client = make(revalidate="run", run="x", limit=1000)
    assert all(contents(client, urls))
    http_server.put(f"{folder}/0.bin", b"n" * 900)
    assert contents(client, urls[:1]) == [b"n" * 900]
    assert http_server.requests(f"/{folder}/0.bin", method="HEAD") == 2


def test_an_object_that_is_gone_is_an_error_of_its_own(
    http_server: HTTPServer, make: Make, new_name: Callable[[], str]
) -> None:
    folder = new_name()
    urls = fetching.publish(http_server, folder, [1000] * 2)
    client = make(revalidate="always")
    assert all(contents(client, urls))
    (http_server.folder / folder / "0.bin").unlink()
    tickets = client.submit([[(url, None)] for url in urls])
    with pytest.raises(ObjectNotFound, match=r"0\.bin"):
        tickets[0].take()
    assert Path(tickets[1].take()[0]).stat().st_size == 1000


def test_old_files_are_fetched_again_and_removed(
    http_server: HTTPServer, dst: Path, make: Make, new_name: Callable[[], str]
) -> None:
    folder = new_name()
    urls = fetching.publish(http_server, folder, [1000] * 3)
    first = make()
    assert all(contents(first, urls))
    first.close()
    for path in (dst / "objects").rglob("*.bin"):
        os.utime(path, (1, time.time() - 3600))
    fetching.until(lambda: not fetching.server_pids(dst))
    fresh = make(ttl_s=1800.0)
    (ticket,) = fresh.submit([[(urls[0], None)]])
    assert fetching.is_right(ticket.take()[0], urls[0], 1000)
    assert fresh.tally.stats().misses == 1
    assert fetching.num_bytes_on_disk(dst) == 1000  # the other two were old, and nobody used them
    ticket.release()
    assert all(contents(fresh, urls[:1])) and fresh.tally.stats().hits == 1
    assert [http_server.requests(f"/{folder}/{i}.bin", method="GET") for i in range(3)] == [2, 1, 1]


def test_files_grow_old_while_the_server_runs(
    http_server: HTTPServer, dst: Path, make: Make, new_name: Callable[[], str]
) -> None:
    urls = fetching.publish(http_server, new_name(), [1000] * 2)
    client = make(ttl_s=0.3)
    held, idle = client.submit([[(url, None)] for url in urls])
    path = held.take()[0]
    idle.take()
    idle.release()
    client.head(urls[0])  # which sends the release
    fetching.until(lambda: fetching.num_bytes_on_disk(dst) == 1000)
    assert fetching.is_right(path, urls[0], 1000)  # held: it stays
    held.release()
    client.head(urls[0])
    fetching.until(lambda: fetching.num_bytes_on_disk(dst) == 0)


def read(sample: dict[str, Any]) -> dict[str, Any]:
    return {"text": Path(sample["url"]).read_text()}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_sees_what_was_overwritten_between_epochs(
    http_server: HTTPServer, tmp_path: Path, dst: Path, new_name: Callable[[], str], num_workers: int
) -> None:
    folder = new_name()
    for i in range(8):
        http_server.put(f"{folder}/{i}.txt", f"first {i}".encode())
    rows = "\n".join(f"{i},{http_server.url(f'{folder}/{i}.txt')}" for i in range(8))
    (tmp_path / "index.csv").write_text(f"index,url\n{rows}\n")
    dataset = sds.StreamingDataset(
        tmp_path / "index.csv", dst, columns_to_download=["url"], transforms=[read], revalidate="always"
    )
    with sds.StreamingDataLoader(dataset, 2, num_workers=num_workers) as loader:
        assert [text for batch in loader for text in batch["text"]] == [f"first {i}" for i in range(8)]
        http_server.put(f"{folder}/5.txt", b"second 5")
        assert [text for batch in loader for text in batch["text"]][5] == "second 5"
        assert loader.stats().misses == 9
    dataset.close()
