"""Limits: tight ones still make progress, a pause is no failure, an impossible one says what would do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import fetching
import sds
from sds.errors import CacheFull
from sds.fetch import FetchClient, FetchOptions, prefetched
from sds.testing import HTTPServer

SIZE = 10_000


@pytest.fixture
def index(http_server: HTTPServer, tmp_path: Path, new_name: Callable[[], str]) -> Path:
    """24 objects of 10 KB, named by a table."""
    urls = fetching.publish(http_server, new_name(), [SIZE] * 24)
    path = tmp_path / "index.csv"
    path.write_text("index,url\n" + "\n".join(f"{i},{url}" for i, url in enumerate(urls)) + "\n")
    return path


def read(sample: dict[str, Any]) -> dict[str, Any]:
    return {"index": int(sample["index"]), "size": Path(sample["url"]).stat().st_size}


def dataset_of(index: Path, dst: Path, **options: Any) -> sds.StreamingDataset:
    options = {"columns_to_download": ["url"], "on_error": "raise", "timeout": 20, **options}
    return sds.StreamingDataset(index, dst, **options)


@pytest.mark.parametrize("num_clients", [1, 8])
def test_one_object_per_client_is_enough(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str], num_clients: int
) -> None:
    urls = fetching.publish(http_server, new_name(), [SIZE] * 12)
    clients = [FetchClient(FetchOptions(dst=str(dst), limit=num_clients * SIZE)) for _ in range(num_clients)]

    def walk(client: FetchClient) -> int:
        right = 0
        for url, ticket in prefetched(client, urls, lambda each: [(each, None)], 8):
            right += fetching.is_right(ticket.take()[0], url, SIZE)
            ticket.release()
        return right

    with fetching.Watch(dst) as watch, ThreadPoolExecutor(num_clients) as pool:
        assert list(pool.map(walk, clients)) == [12] * num_clients
    assert watch.most <= num_clients * SIZE and fetching.num_bytes_on_disk(dst) <= num_clients * SIZE
    for client in clients:
        client.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_whose_samples_name_no_files_needs_room_for_one_a_process(
    index: Path, dst: Path, num_workers: int
) -> None:
    limit = max(1, num_workers) * SIZE
    dataset = dataset_of(index, dst, transforms=[read], cache_limit=limit)
    with sds.StreamingDataLoader(dataset, 4, num_workers=num_workers) as loader:
        for _ in range(2):
            batches = list(loader)
            assert [int(i) for batch in batches for i in batch["index"]] == list(range(24))
    assert fetching.num_bytes_on_disk(dst) <= limit
    dataset.close()


def test_a_pause_of_the_training_loop_is_no_failure_however_long(index: Path, dst: Path) -> None:
    """The batch in hand and the ones made ahead fill the cache; decode threads wait for more than ten timeouts."""
    dataset = dataset_of(index, dst, cache_limit=5 * SIZE, timeout=0.2, prefetch=2)
    with sds.StreamingDataLoader(dataset, 2, num_threads=2, prefetch_batches=1) as loader:
        seen = []
        for k, batch in enumerate(loader):
            if k == 1:
                time.sleep(2.8)
            assert all(Path(path).stat().st_size == SIZE for path in batch["url"])
            seen += batch["index"]
        assert seen == [str(i) for i in range(24)]
        stats = loader.stats()
    assert stats.waits > 0 and stats.wait_s["room"] > 1.5
    dataset.close()


def load(dataset: sds.StreamingDataset, **options: Any) -> None:
    with sds.StreamingDataLoader(dataset, 4, num_threads=4, **options) as loader:
        for batch in loader:
            assert all(Path(path).stat().st_size == SIZE for path in batch["url"])


def iterate(dataset: sds.StreamingDataset) -> None:
    for sample in dataset:
        assert all(Path(sample[column]).stat().st_size == SIZE for column in ("url", "other") if column in sample)


def look_up(dataset: sds.StreamingDataset) -> None:
    for sample, i in zip(dataset, range(1, 5), strict=False):
        assert Path(dataset[i]["url"]).exists() and Path(sample["url"]).exists()


def cut(dataset: sds.StreamingDataset) -> None:
    assert all(Path(sample["url"]).exists() for sample in dataset[2:8])


def lockstep(dataset: sds.StreamingDataset) -> None:
    with dataset_of(dataset._options.src, Path(dataset._options.fetch.dst), cache_limit=None) as other:
        for one, two in zip(dataset, other, strict=True):
            assert Path(one["url"]).exists() and Path(two["url"]).exists()


@pytest.mark.parametrize(
    ("use", "limit", "least", "most", "columns"),
    [
        (load, 3, 4, 7, ["url"]),  # a batch of four; its threads wait for the next batch too
        (iterate, 1, 2, 2, ["url", "other"]),
        (look_up, 1, 2, 3, ["url"]),  # inside a loop, whose sample stays
        (cut, 4, 6, 6, ["url"]),
        (lockstep, 1, 2, 2, ["url"]),
    ],
)
def test_what_could_never_end_is_told_at_once_and_the_limit_that_is_named_does(
    index: Path, dst: Path, use: Callable[[Any], None], limit: int, least: int, most: int, columns: list[str]
) -> None:
    """All who hold files wait for more: nobody need wait for the timeout, which is a minute, ten for who holds some."""
    lines = [line.split(",") for line in index.read_text().splitlines()[1:]]
    others = [url for _, url in lines[1:] + lines[:1]]
    rows = [f"{i},{url},{other}" for (i, url), other in zip(lines, others, strict=True)]
    index.write_text("\n".join(["index,url,other", *rows]))
    began = time.monotonic()
    with (
        dataset_of(index, dst, columns_to_download=columns, cache_limit=limit * SIZE, timeout=60) as dataset,
        pytest.raises(CacheFull) as caught,
    ):
        use(dataset)
    assert time.monotonic() - began < 40
    found = re.search(r"cache_limit of at least (\d+) bytes", str(caught.value))
    assert found is not None and least * SIZE <= int(found[1]) <= most * SIZE
    with dataset_of(index, dst, columns_to_download=columns, cache_limit=int(found[1]), timeout=60) as dataset:
        use(dataset)


def test_files_that_are_given_back_and_found_again_do_not_hide_it(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str]
) -> None:
    """What is only prefetched is let go of whenever somebody starves, asked for again, and in the cache still."""
    *small, large = fetching.publish(http_server, new_name(), [SIZE] * 3 + [3 * SIZE])
    client = FetchClient(FetchOptions(dst=str(dst), limit=3 * SIZE))
    for url in small:
        fetching.get(client, url)
    held, *_, wanted = client.submit([[(url, None)] for url in (*small, large)])
    held.take()
    began = time.monotonic()
    with pytest.raises(CacheFull, match="cache_limit of at least") as caught:
        wanted.take()
    assert time.monotonic() - began < 40 and str(4 * SIZE) <= caught.value.hint.split()[4] <= str(6 * SIZE)
    client.close()


def test_a_bare_loop_over_paths_needs_room_for_one(index: Path, dst: Path) -> None:
    with dataset_of(index, dst, cache_limit=SIZE) as dataset:
        iterate(dataset)
    assert fetching.num_bytes_on_disk(dst) <= SIZE


def test_under_torchs_own_loader_the_paths_of_a_batch_are_good(index: Path, dst: Path) -> None:
    """Nobody can see its batches, in this process either."""
    with dataset_of(index, dst, cache_limit=16 * SIZE, prefetch=2) as dataset:
        for batch in DataLoader(dataset, batch_size=6):
            assert all(Path(path).stat().st_size == SIZE for path in batch["url"])


def test_a_paused_loop_in_another_process_is_waited_for(
    http_server: HTTPServer, index: Path, dst: Path, new_name: Callable[[], str]
) -> None:
    """A worker holds the files of the batches that were made; its training loop is elsewhere. Nobody is to blame."""
    (url,) = fetching.publish(http_server, new_name(), [SIZE])
    dataset = dataset_of(index, dst, cache_limit=4 * SIZE, prefetch=0)
    other = FetchClient(FetchOptions(dst=str(dst), limit=4 * SIZE, timeout_s=0.3))
    with sds.StreamingDataLoader(dataset, 2, num_workers=1, prefetch_batches=1) as loader:
        batches = iter(loader)
        next(batches)
        fetching.until(lambda: fetching.num_bytes_on_disk(dst) == 4 * SIZE)  # this batch, and the one made ahead
        (ticket,) = other.submit([[(url, None)]])
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ticket.take)
            time.sleep(1.5)
            assert not waiting.done()
            loader.close()
            assert fetching.is_right(waiting.result(timeout=10)[0], url, SIZE)
    other.close()
    dataset.close()


def test_a_ticket_of_several_files_says_what_all_of_them_need(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str]
) -> None:
    urls = fetching.publish(http_server, new_name(), [SIZE] * 4)
    client = FetchClient(FetchOptions(dst=str(dst), limit=SIZE, timeout_s=0.5))
    (ticket,) = client.submit([[(url, None) for url in urls]])
    with pytest.raises(CacheFull, match=f"at least {4 * SIZE} bytes"):
        ticket.take()
    client.close()
    enough = FetchClient(FetchOptions(dst=str(dst), limit=4 * SIZE))
    (ticket,) = enough.submit([[(url, None) for url in urls]])
    assert len(ticket.take()) == 4
    enough.close()


def test_limits_of_later_runs_hold(http_server: HTTPServer, dst: Path, new_name: Callable[[], str]) -> None:
    urls = fetching.publish(http_server, new_name(), [SIZE] * 8)
    for limit, expected in ((8 * SIZE, 8), (3 * SIZE, 3), (None, 8), (1 * SIZE, 1)):
        client = FetchClient(FetchOptions(dst=str(dst), limit=limit))
        for url, ticket in prefetched(client, urls, lambda each: [(each, None)], 0):
            assert fetching.is_right(ticket.take()[0], url, SIZE)
            ticket.release()
        assert fetching.num_bytes_on_disk(dst) == expected * SIZE
        client.close()


def test_waits_for_room_are_counted(http_server: HTTPServer, dst: Path, new_name: Callable[[], str]) -> None:
    urls = fetching.publish(http_server, new_name(), [SIZE] * 3)
    client = FetchClient(FetchOptions(dst=str(dst), limit=2 * SIZE))
    tickets = client.submit([[(url, None)] for url in urls])
    for ticket in tickets[:2]:
        ticket.take()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(tickets[2].take)
        time.sleep(0.8)
        tickets[0].release()
        client.head(urls[0])  # which sends the release
        waiting.result(timeout=10)
    stats = client.tally.stats()
    assert stats.waits == 1 and stats.wait_s["room"] > 0.3
    assert (stats.hits, stats.misses, stats.evictions) == (0, 3, 1)
    client.close()


@pytest.mark.parametrize("limit", [None, 100 * SIZE])
def test_prefetch_in_bytes(http_server: HTTPServer, dst: Path, new_name: Callable[[], str], limit: int | None) -> None:
    urls = fetching.publish(http_server, new_name(), [SIZE] * 20)
    client = FetchClient(FetchOptions(dst=str(dst), limit=limit, ahead_bytes=5 * SIZE))
    window = prefetched(client, urls, lambda each: [(each, None)], 19)
    most, num_right = 0, 0
    for k, (url, ticket) in enumerate(window):
        num_right += fetching.is_right(ticket.take()[0], url, SIZE)
        ticket.release()
        time.sleep(0.02)
        most = max(most, fetching.num_bytes_on_disk(dst) - k * SIZE)
    # what was used stays in the cache; beyond it there was never more than five objects
    assert num_right == 20 and most <= 6 * SIZE
    client.close()


def test_a_loader_with_a_window_in_bytes(index: Path, dst: Path) -> None:
    dataset = dataset_of(index, dst, transforms=[read], prefetch="35kb")
    with sds.StreamingDataLoader(dataset, 4) as loader:
        assert [int(i) for batch in loader for i in batch["index"]] == list(range(24))
        assert loader.stats().misses == 24
    dataset.close()


def test_what_is_prefetched_does_not_put_out_what_the_epoch_needs_later(
    http_server: HTTPServer, tmp_path: Path, dst: Path, new_name: Callable[[], str]
) -> None:
    """A window of 128 samples (the default), a cache with room for 100 of 200, and a consumer that takes its time."""
    urls = fetching.publish(http_server, new_name(), [SIZE] * 200)
    index = tmp_path / "index.csv"
    index.write_text("index,url\n" + "\n".join(f"{i},{url}" for i, url in enumerate(urls)) + "\n")

    def slowly(sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.005)
        return read(sample)

    dataset = dataset_of(index, dst, transforms=[slowly], cache_limit=100 * SIZE, shuffle_seed=3)
    with dataset, sds.StreamingDataLoader(dataset, 8, num_threads=2) as loader:
        list(loader)
        before = http_server.requests()
        list(loader)
        list(loader)
        fetched = http_server.requests() - before
        stats = dataset.stats()
    assert 200 <= fetched <= 260, "the best possible is half of each epoch"
    assert stats.requests == 200 + fetched, "all are counted"
