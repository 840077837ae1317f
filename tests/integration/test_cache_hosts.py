"""A cache folder on a disk that several hosts see: the first owns it, others keep to themselves, nothing is lost.

A namespace with a host name of its own is another host, as far as the fetch room can tell.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fetching
from sds.fetch import FetchClient, FetchOptions
from sds.fetch.owner import OWNER, host_key
from sds.testing import HTTPServer

SIZE = 10_000

HOST = (
    fetching.WARNINGS
    + """
tickets = client.submit([[(url, None)] for url in args['urls']])
paths = [ticket.take()[0] for ticket in tickets]
good = all(right(path, url, args['size']) for path, url in zip(paths, args['urls']))
print(json.dumps({'right': good, 'paths': paths, 'warnings': warnings}), flush=True)
sys.stdin.readline()
client.close()
"""
)


def can_be_another_host() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--uts", "hostname", "x"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_be_another_host(), reason="a host name of one's own needs root")


class Host:
    """A client on another host: it holds its files until it is told to end."""

    def __init__(self, name: str, tmp_path: Path, **args: Any) -> None:
        sockets = tmp_path / f"sockets-{name}"  # what is local to a host
        sockets.mkdir(exist_ok=True)
        shell = 'hostname "$1" && exec "$2" -c "$3" "$4"'
        command = ["unshare", "--uts", "sh", "-c", shell, "sh", name, sys.executable, fetching.CLIENT + HOST]
        environment = {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"} | {"TMPDIR": str(sockets)}
        self.process = subprocess.Popen(
            [*command, json.dumps(args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def found(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def end(self) -> None:
        self.process.communicate("\n", timeout=20)
        assert self.process.returncode == 0


@pytest.fixture
def urls(http_server: HTTPServer, new_name: Callable[[], str]) -> list[str]:
    return fetching.publish(http_server, new_name(), [SIZE] * 4)


def test_two_hosts_work_side_by_side(dst: Path, tmp_path: Path, urls: list[str]) -> None:
    limit = 4 * SIZE
    owner = FetchClient(FetchOptions(dst=str(dst), limit=limit))
    held = owner.submit([[(url, None)] for url in urls])
    paths = [ticket.take()[0] for ticket in held]
    other = Host("elsewhere", tmp_path, options={"dst": str(dst), "limit": limit}, urls=urls, size=SIZE)
    found = other.found()
    assert found["right"] and all("/hosts/" in path for path in found["paths"])
    (warning,) = found["warnings"]
    assert "another host uses this cache folder" in warning and "limit of its own" in warning
    assert fetching.num_bytes_on_disk(dst) == limit  # both have all they may have, each of its own
    assert all(fetching.is_right(path, url, SIZE) for path, url in zip(paths, urls, strict=True))
    other.end()
    assert all(fetching.is_right(path, url, SIZE) for path, url in zip(paths, urls, strict=True))
    owner.close()


def test_a_folder_that_its_host_left_goes_to_the_next(
    dst: Path, tmp_path: Path, urls: list[str], http_server: HTTPServer
) -> None:
    first = Host("first", tmp_path, options={"dst": str(dst)}, urls=urls, size=SIZE)
    before = first.found()
    first.end()
    fetching.until(lambda: not (dst / OWNER).exists())  # its server has ended
    second = Host("second", tmp_path, options={"dst": str(dst)}, urls=urls, size=SIZE)
    after = second.found()
    assert after["paths"] == before["paths"] and not after["warnings"]  # the files are used again
    assert http_server.requests(f"/{urls[0].split('/')[-2]}/0.bin") == 1
    second.end()


def test_a_dead_hosts_folder_is_taken_over_when_it_was_silent_for_long(
    dst: Path, tmp_path: Path, urls: list[str]
) -> None:
    first = Host("first", tmp_path, options={"dst": str(dst)}, urls=urls, size=SIZE)
    first.found()
    for pid in [*fetching.server_pids(dst), first.process.pid]:
        os.kill(pid, signal.SIGKILL)
    first.process.communicate()
    fetching.until(lambda: not fetching.server_pids(dst))
    guest = Host("second", tmp_path, options={"dst": str(dst)}, urls=urls, size=SIZE)
    assert len(guest.found()["warnings"]) == 1  # it may yet live
    guest.end()
    fetching.until(lambda: not fetching.server_pids(dst))
    os.utime(dst / OWNER, (1, time.time() - 3600))
    heir = Host("second", tmp_path, options={"dst": str(dst)}, urls=urls, size=SIZE)
    found = heir.found()
    assert found["right"] and not found["warnings"] and not any("/hosts/" in path for path in found["paths"])
    heir.end()


def test_a_server_whose_folder_another_host_took_ends(dst: Path, urls: list[str]) -> None:
    """A host that was cut off for long comes back: it deletes nothing any more, and its clients find a new server."""
    client = FetchClient(FetchOptions(dst=str(dst)))
    (ticket,) = client.submit([[(urls[0], None)]])
    path = ticket.take()[0]
    (pid,) = fetching.server_pids(dst)
    (dst / OWNER).write_text("host 0123456789ab\nname thief\nboot x\n")
    fetching.until(lambda: fetching.server_pids(dst) not in ([], [pid]), 20.0)
    (other,) = client.submit([[(urls[1], None)]])
    assert f"/hosts/{host_key()}/" in other.take()[0] and fetching.is_right(path, urls[0], SIZE)
    assert (dst / OWNER).read_text().startswith("host 0123456789ab")
    client.close()


def test_after_a_reboot_the_newest_files_are_not_believed(dst: Path, urls: list[str], http_server: HTTPServer) -> None:
    """Their bytes may not have reached the disk. The boot that a server worked in stands in its lock file."""
    first = FetchClient(FetchOptions(dst=str(dst)))
    paths = [ticket.take()[0] for ticket in first.submit([[(url, None)] for url in urls])]
    first.close()
    fetching.until(lambda: not fetching.server_pids(dst))
    for path in paths[:2]:
        os.utime(path, (1, time.time() - 3600))
    (lock,) = dst.glob(".server-[0-9a-f]*.lock")
    text = lock.read_text()
    lock.write_text("\n".join("boot before" if line.startswith("boot ") else line for line in text.splitlines()))
    with open(paths[3], "r+b") as file:  # a block that was never written
        file.write(bytes(4096))
    second = FetchClient(FetchOptions(dst=str(dst)))
    tickets = second.submit([[(url, None)] for url in urls])
    assert all(fetching.is_right(t.take()[0], url, SIZE) for t, url in zip(tickets, urls, strict=True))
    stats = second.tally.stats()
    assert (stats.hits, stats.misses) == (2, 2)
    second.close()
