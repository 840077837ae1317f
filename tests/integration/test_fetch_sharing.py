"""Many processes share one cache folder: one download per object, a limit that holds, progress however tight it is."""

from __future__ import annotations

import collections
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fetching
from sds.errors import CacheFull
from sds.fetch import FetchClient, FetchOptions, prefetched
from sds.testing import HTTPServer

WALK = """
urls, size = args['urls'], args['sizes']
random.Random(args['seed']).shuffle(urls)
sizes, wrong = args['sizes'], 0
for url, ticket in prefetched(client, urls, lambda each: [(each, None)], args['ahead']):
    name = url.rpartition('/')[2]
    (path,) = ticket.take()
    wrong += not right(path, url, sizes[name])
    ticket.release()
counts = client.tally.drain().counts
client.close()
print(json.dumps({'wrong': wrong, **counts}))
"""


def sizes_by_name(sizes: list[int]) -> dict[str, int]:
    return {f"{i}.bin": size for i, size in enumerate(sizes)}


def test_one_download_however_many_ask(http_server: HTTPServer, dst: Path, new_name: Callable[[], str]) -> None:
    folder = new_name()
    urls = fetching.publish(http_server, folder, [50_000] * 3)
    clients = [FetchClient(FetchOptions(dst=str(dst))) for _ in range(4)]

    def ask(client: FetchClient) -> None:
        tickets = client.submit([[(url, None) for url in urls] for _ in range(5)])
        for ticket in tickets:
            assert all(fetching.is_right(path, url, 50_000) for path, url in zip(ticket.take(), urls, strict=True))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, clients * 2))
    assert [http_server.requests(f"/{folder}/{i}.bin") for i in range(3)] == [1, 1, 1]
    counts = [client.tally.stats() for client in clients]
    assert sum(each.misses for each in counts) == 3
    assert sum(each.hits for each in counts) == 4 * 2 * 5 * 3 - 3
    for client in clients:
        client.close()


@pytest.mark.parametrize("kind", ["equal", "varied"])
def test_eight_processes_never_pass_the_limit(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str], kind: str
) -> None:
    """400 objects through room for 20 of them, 8 processes, each in an order of its own with 16 ahead."""
    sizes = [20_000] * 400 if kind == "equal" else [1 + 97 * i % 40_000 for i in range(400)]
    limit = 400_000
    folder = new_name()
    urls = fetching.publish(http_server, folder, sizes)
    options = {"dst": str(dst), "limit": limit}
    with fetching.Watch(dst) as watch:
        processes = [
            fetching.start(WALK, options=options, urls=urls, sizes=sizes_by_name(sizes), seed=seed, ahead=16)
            for seed in range(8)
        ]
        results = fetching.results(processes)
    total: collections.Counter[str] = collections.Counter()
    for each in results:
        total.update(each)
    asked = sum(request.path.startswith(f"/{folder}/") for request in http_server.request_log())
    resident = len(fetching.scan(dst))
    fetching.say(
        f"{kind}: most on disk {watch.most} of {limit} in {watch.num_samples} samples; {total['misses']} downloads, "
        f"{asked} requests, {total['hits']} hits, {total['evictions']} evictions, {resident} resident"
    )
    assert watch.num_samples > 50
    assert 0 < watch.most <= limit
    assert total["wrong"] == 0
    assert total["hits"] + total["misses"] >= 8 * 400  # what was given back and asked for again is counted again
    # whatever was downloaded was evicted since, or is there: nothing came twice while it was there
    assert total["misses"] - total["evictions"] == resident
    if kind == "equal":
        assert asked == total["misses"]  # nobody asks the store for what then has to wait


def test_one_object_per_client_and_windows_beyond_the_limit(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str]
) -> None:
    sizes = [10_000] * 40
    urls = fetching.publish(http_server, new_name(), sizes)
    options = {"dst": str(dst), "limit": 4 * 10_000, "timeout_s": 20.0}
    with fetching.Watch(dst) as watch:
        started = time.monotonic()
        processes = [
            fetching.start(WALK, options=options, urls=urls, sizes=sizes_by_name(sizes), seed=seed, ahead=30)
            for seed in range(4)
        ]
        results = fetching.results(processes)
    fetching.say(f"4 clients, room for 4, 30 ahead: {time.monotonic() - started:.1f} s, most on disk {watch.most}")
    assert sum(each["wrong"] for each in results) == 0
    assert watch.most <= 40_000


def test_one_client_with_room_for_one(http_server: HTTPServer, dst: Path, new_name: Callable[[], str]) -> None:
    urls = fetching.publish(http_server, new_name(), [10_000] * 30)
    client = FetchClient(FetchOptions(dst=str(dst), limit=10_000, timeout_s=20.0))
    for url, ticket in prefetched(client, urls, lambda each: [(each, None)], 20):
        (path,) = ticket.take()
        assert fetching.is_right(path, url, 10_000)
        ticket.release()
    client.close()


def test_who_holds_everything_makes_the_others_fail_in_the_end(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str]
) -> None:
    urls = fetching.publish(http_server, new_name(), [10_000] * 4)
    holder = FetchClient(FetchOptions(dst=str(dst), limit=20_000))
    held = holder.submit([[(url, None)] for url in urls[:2]])
    paths = [ticket.take()[0] for ticket in held]
    other = FetchClient(FetchOptions(dst=str(dst), limit=20_000, timeout_s=1.0))
    (ticket,) = other.submit([[(urls[2], None)]])
    started = time.monotonic()
    with pytest.raises(CacheFull, match=r"20 KB of 20 KB are in use by 1 client, and 10 KB more") as caught:
        ticket.take()
    assert 0.9 < time.monotonic() - started < 3.0
    assert "at least 30000 bytes" in str(caught.value)
    assert all(fetching.is_right(path, url, 10_000) for path, url in zip(paths, urls, strict=False))
    held[0].release()
    (ticket,) = other.submit([[(urls[2], None)]])  # and when there is room again, all is well
    (path,) = ticket.take()
    assert fetching.is_right(path, urls[2], 10_000)
    holder.close()
    other.close()


def test_what_is_only_prefetched_is_given_back(http_server: HTTPServer, dst: Path, new_name: Callable[[], str]) -> None:
    """A client that prefetched everything and then does nothing is no obstacle, and gets its files when it goes on."""
    urls = fetching.publish(http_server, new_name(), [10_000] * 6)
    idle = FetchClient(FetchOptions(dst=str(dst), limit=30_000))
    waiting = idle.submit([[(url, None)] for url in urls[:3]])
    fetching.until(lambda: fetching.num_bytes_on_disk(dst) == 30_000)
    busy = FetchClient(FetchOptions(dst=str(dst), limit=30_000, timeout_s=10.0))
    tickets = busy.submit([[(url, None)] for url in urls[3:]])
    started = time.monotonic()
    assert all(fetching.is_right(t.take()[0], url, 10_000) for t, url in zip(tickets, urls[3:], strict=True))
    assert time.monotonic() - started < 3.0
    for ticket in tickets:
        ticket.release()
    busy.close()
    assert all(fetching.is_right(t.take()[0], url, 10_000) for t, url in zip(waiting, urls[:3], strict=True))
    idle.close()


def test_a_small_object_passes_while_the_usual_ones_have_no_room(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str]
) -> None:
    """Room is set aside by the usual size; an object that is smaller must not wait for room that it does not need."""
    urls = fetching.publish(http_server, new_name(), [10_000, 10_000, 100])
    client = FetchClient(FetchOptions(dst=str(dst), limit=20_500, timeout_s=5.0))
    held = client.submit([[(url, None)] for url in urls[:2]])
    for ticket in held:
        ticket.take()
    (small,) = client.submit([[(urls[2], None)]])
    assert fetching.is_right(small.take()[0], urls[2], 100)
    client.close()


def test_larger_than_the_limit_fails_at_once(http_server: HTTPServer, dst: Path, new_name: Callable[[], str]) -> None:
    urls = fetching.publish(http_server, new_name(), [10_000, 5_000])
    client = FetchClient(FetchOptions(dst=str(dst), limit=9_999))
    (large, small) = client.submit([[(url, None)] for url in urls])
    started = time.monotonic()
    with pytest.raises(CacheFull, match=r"object is larger than cache_limit: 10 KB > 10 KB") as caught:
        large.take()
    assert time.monotonic() - started < 2.0
    assert "at least 10000 bytes" in str(caught.value)
    assert fetching.is_right(small.take()[0], urls[1], 5_000)
    client.close()


def test_a_client_that_was_just_closed_has_no_limit_any_more(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    """The server may not have noticed yet that it is gone: nobody is warned of its limit, nor held to it."""
    caplog.set_level(logging.WARNING, "sds.fetch")
    (url,) = fetching.publish(http_server, new_name(), [10_000])
    for number in range(1, 30):
        client = FetchClient(FetchOptions(dst=str(dst), limit=10_000 * number))
        client.submit([[(url, None)]])  # which nobody waits for, nor reads
        client.close()
    last = FetchClient(FetchOptions(dst=str(dst)))
    last.head(url)
    assert not caplog.records
    last.close()


def test_of_two_limits_the_smaller_holds_and_both_are_told(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sds.fetch")
    urls = fetching.publish(http_server, new_name(), [10_000] * 6)
    large = FetchClient(FetchOptions(dst=str(dst), limit=60_000))
    for ticket in large.submit([[(url, None)] for url in urls]):
        ticket.take()
        ticket.release()
    assert fetching.num_bytes_on_disk(dst) == 60_000 and not caplog.records
    small = FetchClient(FetchOptions(dst=str(dst), limit=20_000))
    small.head(urls[0])
    fetching.until(lambda: fetching.num_bytes_on_disk(dst) <= 20_000)
    fetching.until(lambda: caplog.records)  # the one that was there first is told
    assert "smaller limit, which holds: 20 KB" in caplog.text
    third = FetchClient(FetchOptions(dst=str(dst)))
    third.head(urls[0])
    assert caplog.text.count("smaller limit") == 1  # one that comes later is in the same program: it was told
    small.close()
    for ticket in large.submit([[(url, None)] for url in urls]):  # who is gone has no say
        ticket.take()
        ticket.release()
    assert fetching.num_bytes_on_disk(dst) == 60_000
    large.close()
    third.close()


def test_a_lowered_limit_holds_as_soon_as_files_are_let_go(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str]
) -> None:
    urls = fetching.publish(http_server, new_name(), [10_000] * 4)
    large = FetchClient(FetchOptions(dst=str(dst), limit=40_000))
    held = large.submit([[(url, None)] for url in urls])
    paths = [ticket.take()[0] for ticket in held]
    small = FetchClient(FetchOptions(dst=str(dst), limit=15_000))
    small.head(urls[0])
    assert all(fetching.is_right(path, url, 10_000) for path, url in zip(paths, urls, strict=True))  # held: they stay
    for ticket in held:
        ticket.release()
    large.close()
    fetching.until(lambda: fetching.num_bytes_on_disk(dst) <= 15_000)
    small.close()


def test_a_client_that_does_not_read_stops_nobody(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str]
) -> None:
    """Stopped clients with full sockets: more of them than the server has writers."""
    folder = new_name()
    urls = fetching.publish(http_server, folder, [10_000] * 20 + [4_000_000])
    script = """
for _ in range(6): client._connected()
from sds.fetch import protocol as p
from sds.fetch.link import Pending
link = client._connected()
print('here', flush=True)
sys.stdin.readline()
link.ask([Pending(p.Read(i, args['urls'][-1], None)) for i in link.next_ids(10)])
print('asked', flush=True)
time.sleep(60)
"""
    stopped = [fetching.start(script, options={"dst": str(dst)}, urls=urls) for _ in range(4)]
    try:
        for process in stopped:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == "here\n"
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "asked\n"
            os.kill(process.pid, signal.SIGSTOP)
        client = FetchClient(FetchOptions(dst=str(dst)))
        started = time.monotonic()
        for url, ticket in prefetched(client, urls[:20], lambda each: [(each, None)], 4):
            assert fetching.is_right(ticket.take()[0], url, 10_000)
            ticket.release()
        assert time.monotonic() - started < 10.0
        client.close()
    finally:
        for process in stopped:
            process.kill()
            process.communicate()


def test_threads_of_one_client(http_server: HTTPServer, dst: Path, new_name: Callable[[], str]) -> None:
    urls = fetching.publish(http_server, new_name(), [5_000] * 100)
    client = FetchClient(FetchOptions(dst=str(dst), limit=200_000))
    lock = threading.Lock()
    window = prefetched(client, urls, lambda each: [(each, None)], 20)

    def work(_: int) -> int:
        done = 0
        while True:
            with lock:
                item = next(window, None)
            if item is None:
                return done
            url, ticket = item
            assert fetching.is_right(ticket.take()[0], url, 5_000)
            ticket.release()
            done += 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 100
    client.close()


def test_a_pause_longer_than_the_timeout_is_no_failure(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str]
) -> None:
    """A trainer that validates holds its files, and its own threads wait for the next ones, until it goes on."""
    urls = fetching.publish(http_server, new_name(), [10_000] * 8)
    client = FetchClient(FetchOptions(dst=str(dst), limit=40_000, timeout_s=0.3))
    tickets = client.submit([[(url, None)] for url in urls])
    for ticket in tickets[:4]:
        ticket.take()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ticket.take) for ticket in tickets[4:6]]
        time.sleep(1.5)
        assert not any(each.done() for each in waiting)
        for ticket in tickets[:4]:
            ticket.release()
        for each, url in zip(waiting, urls[4:6], strict=True):
            assert fetching.is_right(each.result(timeout=10)[0], url, 10_000)
    for ticket, url in zip(tickets[6:], urls[6:], strict=True):  # those nobody waited for are none the worse
        assert fetching.is_right(ticket.take()[0], url, 10_000)
    client.close()


def test_who_holds_all_that_it_waits_for_is_told_in_the_end(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str]
) -> None:
    urls = fetching.publish(http_server, new_name(), [10_000] * 3)
    client = FetchClient(FetchOptions(dst=str(dst), limit=20_000, timeout_s=0.2))
    tickets = client.submit([[(url, None)] for url in urls])
    for ticket in tickets[:2]:
        ticket.take()
    started = time.monotonic()
    with pytest.raises(CacheFull, match="20 KB of 20 KB are in use"):
        tickets[2].take()
    assert 2.0 < time.monotonic() - started < 4.0
    client.close()


def test_one_ticket_larger_than_the_limit_is_told_soon(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str]
) -> None:
    urls = fetching.publish(http_server, new_name(), [10_000] * 3)
    client = FetchClient(FetchOptions(dst=str(dst), limit=20_000, timeout_s=0.3))
    (ticket,) = client.submit([[(url, None) for url in urls]])
    started = time.monotonic()
    with pytest.raises(CacheFull):
        ticket.take()
    assert time.monotonic() - started < 2.5
    client.close()


def test_two_jobs_with_different_temporary_folders_share_a_cache(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_name()
    urls = fetching.publish(http_server, folder, [10_000] * 2)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    pids = set()
    clients = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
        client = FetchClient(FetchOptions(dst=str(dst)))
        tickets = client.submit([[(url, None)] for url in urls])
        assert all(fetching.is_right(t.take()[0], url, 10_000) for t, url in zip(tickets, urls, strict=True))
        pids.update(fetching.server_pids(dst))
        clients.append(client)
    assert len(pids) == 1
    assert [http_server.requests(f"/{folder}/{i}.bin") for i in range(2)] == [1, 1]
    fetching.kill(pids.pop())  # whoever starts the next one, both find it
    assert all(client.head(url).size == 10_000 for client in clients for url in urls)
    assert len(fetching.server_pids(dst)) == 1
    for client in clients:
        client.close()
