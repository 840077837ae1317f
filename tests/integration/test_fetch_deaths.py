"""Processes die, fork and end: nobody notices, nothing is half, nothing stays behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import fetching
from sds.errors import CacheFull, FetchError
from sds.fetch import FetchClient, FetchOptions, prefetched
from sds.fetch.launch import _name_of, _runtime_folder
from sds.testing import HTTPServer

SIZE = 30_000


@pytest.fixture
def urls(http_server: HTTPServer, new_name: Callable[[], str]) -> list[str]:
    return fetching.publish(http_server, new_name(), [SIZE] * 60)


def take_all(client: FetchClient, urls: list[str], ahead: int = 16) -> int:
    """Fetches everything and checks every byte; how many files were right."""
    right = 0
    for url, ticket in prefetched(client, urls, lambda each: [(each, None)], ahead):
        right += fetching.is_right(ticket.take()[0], url, SIZE)
        ticket.release()
    return right


def no_socket(dst: Path) -> bool:
    """Whether nothing listens for this folder any more, and no fetch server runs."""
    return not (_runtime_folder() / f"{_name_of(str(dst))}.sock").exists() and not fetching.server_pids(dst)


def test_the_server_is_killed_ten_times(dst: Path, urls: list[str]) -> None:
    """Room for half of the objects, some files in use throughout, the server killed under it again and again."""
    client = FetchClient(FetchOptions(dst=str(dst), limit=30 * SIZE))
    held = client.submit([[(url, None)] for url in urls[:4]])
    paths = [ticket.take()[0] for ticket in held]
    inodes = [os.stat(path).st_ino for path in paths]
    rounds = 0
    with fetching.Watch(dst) as watch, fetching.killing(dst, times=10, every_s=0.3) as killed:
        deadline = time.monotonic() + 30
        while len(killed) < 10:
            assert time.monotonic() < deadline
            assert take_all(client, urls) == len(urls)
            rounds += 1
    assert take_all(client, urls) == len(urls)
    fetching.say(
        f"{len(killed)} servers killed in {rounds} rounds of {len(urls)}; most on disk {watch.most} of {30 * SIZE}"
    )
    assert watch.most <= 30 * SIZE
    assert [os.stat(path).st_ino for path in paths] == inodes  # what was held stayed, the same file
    assert all(fetching.is_right(path, url, SIZE) for path, url in zip(paths, urls, strict=False))
    client.close()
    fetching.until(lambda: no_socket(dst), 5.0)


def test_many_clients_survive_a_killed_server(dst: Path, urls: list[str]) -> None:
    script = """
right_ones = 0
for _ in range(args['rounds']):
    for url, ticket in prefetched(client, args['urls'], lambda each: [(each, None)], 8):
        right_ones += right(ticket.take()[0], url, args['size'])
        ticket.release()
print(json.dumps(right_ones))
"""
    options = {"dst": str(dst), "limit": 20 * SIZE}
    processes = [fetching.start(script, options=options, urls=urls, size=SIZE, rounds=4) for _ in range(4)]
    with fetching.killing(dst, times=4, every_s=0.4):
        assert fetching.results(processes) == [4 * len(urls)] * 4


def test_what_a_dead_server_had_ready_is_held_anew_or_fetched_anew(dst: Path, urls: list[str]) -> None:
    """A new server gives each client its share only: the rest of what the dead one had ready must not be relied on."""
    options = FetchOptions(dst=str(dst), limit=6 * SIZE)
    first, second = FetchClient(options), FetchClient(options)
    ready = first.submit([[(url, None)] for url in urls[:6]])
    fetching.until(lambda: fetching.num_bytes_on_disk(dst) == 6 * SIZE)
    in_use = [ticket.take()[0] for ticket in ready[:2]]
    second.head(urls[0])
    (pid,) = fetching.server_pids(dst)
    fetching.kill(pid)
    fetching.until(lambda: fetching.server_pids(dst) not in ([], [pid]))
    assert take_all(second, urls[6:30], ahead=4) == 24  # which evicts whatever is not held
    assert all(fetching.is_right(path, url, SIZE) for path, url in zip(in_use, urls, strict=False))
    for ticket, url in zip(ready, urls, strict=False):
        assert fetching.is_right(ticket.take()[0], url, SIZE)
        ticket.release()
    first.close()
    second.close()


def test_a_killed_client_lets_go(dst: Path, urls: list[str]) -> None:
    script = """
tickets = client.submit([[(url, None)] for url in args['urls'][:4]])
for ticket in tickets: ticket.take()
print('held', flush=True)
time.sleep(60)
"""
    options = FetchOptions(dst=str(dst), limit=4 * SIZE, timeout_s=1.0)
    holder = fetching.start(script, options={"dst": str(dst), "limit": 4 * SIZE}, urls=urls)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    client = FetchClient(options)
    (ticket,) = client.submit([[(urls[5], None)]])
    with pytest.raises(CacheFull):
        ticket.take()
    holder.kill()
    holder.communicate()
    (ticket,) = client.submit([[(urls[5], None)]])
    assert fetching.is_right(ticket.take()[0], urls[5], SIZE)
    client.close()


def test_no_half_file_is_served_after_a_kill(dst: Path, http_server: HTTPServer, new_name: Callable[[], str]) -> None:
    """Large bodies are written piece by piece: a kill in the middle leaves a part, which is gone at the next start."""
    size = 40_000_000
    folder = new_name()
    http_server.put(f"{folder}/large.bin", os.urandom(1000) * (size // 1000))
    url = http_server.url(f"{folder}/large.bin")
    client = FetchClient(FetchOptions(dst=str(dst), limit=size + 1000))
    (ticket,) = client.submit([[(url, None)]])
    fetching.until(lambda: fetching.num_bytes_on_disk(dst) > 0)
    for pid in fetching.server_pids(dst):
        fetching.kill(pid)
    with fetching.Watch(dst) as watch:
        (path,) = ticket.take()
    assert Path(path).read_bytes() == (http_server.folder / folder / "large.bin").read_bytes()
    assert watch.most <= size + 1000  # the part that the dead server left counts, and is removed first
    assert fetching.num_bytes_on_disk(dst) == size
    client.close()


def test_damaged_and_deleted_files_are_fetched_again(dst: Path, urls: list[str]) -> None:
    client = FetchClient(FetchOptions(dst=str(dst)))
    paths = []
    for ticket in client.submit([[(url, None)] for url in urls[:3]]):
        paths.append(ticket.take()[0])
        ticket.release()
    os.truncate(paths[0], 17)
    os.unlink(paths[1])
    os.unlink(paths[2])
    os.symlink("/etc/passwd", paths[2])
    for url, ticket in zip(urls, client.submit([[(url, None)] for url in urls[:3]]), strict=False):
        assert fetching.is_right(ticket.take()[0], url, SIZE)
        assert not os.path.islink(ticket.take()[0])
    client.close()


def in_child(work: Callable[[], bool]) -> int:
    """Runs something in a forked child; the child's pid."""
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            os._exit(0 if work() else 1)
        os._exit(2)
    return pid


def ended_well(pid: int, timeout_s: float = 20.0) -> bool:
    def is_over() -> tuple[int, int] | None:
        done, status = os.waitpid(pid, os.WNOHANG)
        return (done, status) if done else None

    try:
        return os.waitstatus_to_exitcode(fetching.until(is_over, timeout_s)[1]) == 0
    except AssertionError:
        os.kill(pid, signal.SIGABRT)  # the fault handler shows where it hangs
        os.waitpid(pid, 0)
        return False


def test_fork_fifty_times_while_the_parent_fetches(dst: Path, urls: list[str]) -> None:
    client = FetchClient(FetchOptions(dst=str(dst), limit=50 * SIZE))
    held = client.submit([[(url, None)] for url in urls[:2]])
    paths = [ticket.take()[0] for ticket in held]
    over = threading.Event()
    wrong: list[int] = []

    def fetch() -> None:
        while not over.is_set():
            if take_all(client, urls[2:], ahead=8) != len(urls) - 2:
                wrong.append(1)

    thread = threading.Thread(target=fetch)
    thread.start()

    def child() -> bool:
        right = take_all(client, urls[:6], ahead=2) == 6
        for ticket in held:
            ticket.release()  # the parent's: harmless here
        client.close()
        return right

    try:
        for start in range(0, 50, 5):
            pids = [in_child(child) for _ in range(5)]
            assert [ended_well(pid) for pid in pids] == [True] * 5, f"children from {start}"
    finally:
        over.set()
        thread.join()
    assert not wrong
    assert all(fetching.is_right(path, url, SIZE) for path, url in zip(paths, urls, strict=False))
    client.close()


def test_a_ticket_from_before_the_fork_works_in_the_child(dst: Path, urls: list[str]) -> None:
    client = FetchClient(FetchOptions(dst=str(dst)))
    (ticket,) = client.submit([[(urls[0], None)]])
    ticket.take()
    assert ended_well(in_child(lambda: fetching.is_right(ticket.take()[0], urls[0], SIZE)))
    assert fetching.is_right(ticket.take()[0], urls[0], SIZE)
    client.close()


def test_a_child_that_outlives_its_parent_keeps_no_lease_of_it(dst: Path, urls: list[str]) -> None:
    script = """
tickets = client.submit([[(url, None)] for url in args['urls'][:2]])
for ticket in tickets: ticket.take()
pid = os.fork()
if not pid: time.sleep(60)
print(pid, flush=True)
time.sleep(60)
"""
    holder = fetching.start(script, options={"dst": str(dst), "limit": 2 * SIZE}, urls=urls)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        holder.kill()
        client = FetchClient(FetchOptions(dst=str(dst), limit=2 * SIZE, timeout_s=5.0))
        (ticket,) = client.submit([[(urls[5], None)]])
        assert fetching.is_right(ticket.take()[0], urls[5], SIZE)
        client.close()
    finally:
        fetching.kill(child)
        holder.communicate()


def spawned(client: FetchClient, urls: list[str]) -> None:
    assert take_all(client, urls) == len(urls)
    client.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_client_travels_into_a_new_process(dst: Path, urls: list[str], method: str) -> None:
    client = FetchClient(FetchOptions(dst=str(dst)))
    assert take_all(client, urls[:2]) == 2
    process = multiprocessing.get_context(method).Process(target=spawned, args=(client, urls[:5]))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    client.close()


def test_pickled_it_is_its_options(dst: Path, urls: list[str]) -> None:
    client = FetchClient(FetchOptions(dst=str(dst), limit=10 * SIZE))
    assert take_all(client, urls[:2]) == 2
    again = pickle.loads(pickle.dumps(client))
    assert again.options == client.options
    assert again.current_link() is None
    assert take_all(again, urls[:2]) == 2
    again.close()
    client.close()
    assert take_all(client, urls[:2]) == 2  # a closed client connects anew
    client.close()


def test_it_ends_within_two_seconds_and_leaves_no_zombie(dst: Path, urls: list[str]) -> None:
    client = FetchClient(FetchOptions(dst=str(dst)))
    assert take_all(client, urls[:2]) == 2
    (pid,) = fetching.server_pids(dst)
    client.close()
    started = time.monotonic()
    fetching.until(lambda: no_socket(dst), 2.0)
    fetching.until(lambda: not psutil.pid_exists(pid), 2.0 - (time.monotonic() - started))  # a zombie would exist
    assert os.listdir(dst) != []
    assert take_all(client, urls[:2]) == 2  # and a new one is started when it is needed
    assert client.tally.stats().hits == 2
    client.close()


def test_clients_come_while_it_ends(dst: Path, urls: list[str]) -> None:
    """Around the moment at which a server ends, whoever comes is served, by it or by the next."""
    for pause in (1.0, 1.05, 1.1):
        client = FetchClient(FetchOptions(dst=str(dst)))
        assert take_all(client, urls[:1]) == 1
        client.close()
        time.sleep(pause)
    assert take_all(client, urls[:1]) == 1
    client.close()


def test_one_server_per_folder_by_whatever_name(dst: Path, tmp_path: Path, urls: list[str]) -> None:
    link = tmp_path / "link"
    link.symlink_to(dst)
    clients = [FetchClient(FetchOptions(dst=str(each))) for each in (dst, link, f"{dst}/../dst", tmp_path / "other")]
    for client in clients:
        assert take_all(client, urls[:2]) == 2
    assert len(fetching.server_pids(dst)) == 1
    (other,) = fetching.server_pids(tmp_path / "other")
    assert [client.tally.stats().hits for client in clients] == [0, 2, 2, 0]
    for client in clients:
        client.close()
    fetching.kill(other)


def test_whoever_waits_is_told_when_the_client_is_closed(dst: Path) -> None:
    with fetching.RawServer(lambda _: None) as server:
        client = FetchClient(FetchOptions(dst=str(dst), timeout_s=30.0))
        (ticket,) = client.submit([[(f"{server.url}/never.bin", None)]])
        threading.Timer(0.3, client.close).start()
        started = time.monotonic()
        with pytest.raises(FetchError, match="client was closed"):
            ticket.take()
        assert time.monotonic() - started < 3.0


def test_sockets_of_killed_servers_are_swept_away(dst: Path, http_server: HTTPServer) -> None:
    """A folder that is never used again must not leave its socket for ever; one that is listened at stays."""
    left = _runtime_folder() / f"test-{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX) as gone, socket.socket(socket.AF_UNIX) as alive:
        gone.bind(str(left))
        used = left.with_name(f"test-{os.getpid()}-used.sock")
        alive.bind(str(used))
        alive.listen()
        for place in (left, used):
            os.utime(place, (0, 0))
        http_server.put("swept.bin", b"x")
        client = FetchClient(FetchOptions(dst=str(dst)))
        client.head(http_server.url("swept.bin"))
        client.close()
        assert not left.exists()
        assert used.exists()
        used.unlink()
