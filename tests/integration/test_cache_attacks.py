"""Attacks on the cache: somebody who can write into the folder, or sits on the same machine, or writes the index.

Nothing outside the folder is written, deleted or handed out; nobody else's process gets an answer.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fetching
from sds.errors import CacheError, FetchError
from sds.fetch import FetchClient, FetchOptions
from sds.fetch import protocol as p
from sds.fetch.cache import key_of
from sds.fetch.launch import _LOG, _name_of, _runtime_folder
from sds.fetch.owner import OWNER, lock_name
from sds.testing import HTTPServer

SIZE = 10_000
NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else for a moment")


@pytest.fixture
def url(http_server: HTTPServer, new_name: Callable[[], str]) -> str:
    return fetching.publish(http_server, new_name(), [SIZE])[0]


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of the user's that an attacker would like us to harm."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "diary.txt").write_bytes(bytes(SIZE))
    return folder


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for sockets that another user can get to, unlike a test's own folder, and that no other test uses."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o711)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def untouched(precious: Path) -> bool:
    return [path.name for path in precious.iterdir()] == ["diary.txt"] and (
        precious / "diary.txt"
    ).read_bytes() == bytes(SIZE)


def take(dst: Path, url: str, limit: int | None = None) -> bytes:
    client = FetchClient(FetchOptions(dst=str(dst), limit=limit))
    try:
        (ticket,) = client.submit([[(url, None)]])
        return Path(ticket.take()[0]).read_bytes()
    finally:
        client.close()


@pytest.mark.parametrize("what", ["objects", "bucket"])
def test_a_link_in_place_of_a_folder_is_refused(dst: Path, precious: Path, url: str, what: str) -> None:
    place = dst / "objects" if what == "objects" else dst / "objects" / key_of(url, None, None)[:2]
    place.parent.mkdir(parents=True)
    place.symlink_to(precious)
    with pytest.raises(CacheError, match=r"link .* where a folder should be"):
        take(dst, url)
    assert untouched(precious)


def test_a_bucket_that_becomes_a_link_while_the_server_runs(dst: Path, precious: Path, url: str) -> None:
    client = FetchClient(FetchOptions(dst=str(dst)))
    client.head(url)
    (dst / "objects" / key_of(url, None, None)[:2]).symlink_to(precious)
    (ticket,) = client.submit([[(url, None)]])
    with pytest.raises(CacheError, match=r"link .* where a folder should be"):
        ticket.take()
    assert untouched(precious)
    client.close()


@pytest.mark.parametrize("name", [lock_name("server"), lock_name("server-start"), OWNER, _LOG])
def test_links_in_place_of_our_own_files_are_not_followed(dst: Path, precious: Path, url: str, name: str) -> None:
    dst.mkdir()
    (dst / name).symlink_to(precious / "diary.txt")
    with pytest.raises(CacheError) as caught:
        take(dst, url)
    assert caught.value.hint and untouched(precious)


@pytest.mark.parametrize("name", [lock_name("server"), OWNER, _LOG])
def test_pipes_in_place_of_our_own_files_hang_nobody(dst: Path, url: str, name: str) -> None:
    dst.mkdir()
    os.mkfifo(dst / name)
    with pytest.raises(CacheError) as caught:
        take(dst, url)
    assert caught.value.hint


def test_a_link_in_place_of_a_file_is_neither_read_nor_written(dst: Path, precious: Path, url: str) -> None:
    """A name that the cache would take for a whole file, of the right size, that leads elsewhere."""
    place = dst / "objects" / key_of(url, None, None)[:2] / f"{key_of(url, None, None)}-{SIZE}.bin"
    place.parent.mkdir(parents=True)
    place.symlink_to(precious / "diary.txt")
    assert take(dst, url) == fetching.content("0.bin", SIZE)
    assert untouched(precious) and not place.is_symlink()


def test_evicting_a_hard_link_takes_its_name_only(dst: Path, precious: Path, url: str) -> None:
    name = dst / "objects" / "00" / f"{'0' * 32}-{SIZE}.txt"
    name.parent.mkdir(parents=True)
    os.link(precious / "diary.txt", name)
    assert take(dst, url, limit=SIZE) == fetching.content("0.bin", SIZE)
    assert untouched(precious) and not name.exists()


@pytest.mark.parametrize(
    "path", ["%2e%2e/%2e%2e/x.bin", "a/..%2f..%2fx.bin", "x.bin/../../../../tmp/x", "x.bin%00.jpg"]
)
def test_no_url_names_a_place(http_server: HTTPServer, dst: Path, tmp_path: Path, path: str) -> None:
    before = sorted(each.name for each in tmp_path.iterdir() if each != dst)
    with contextlib.suppress(FetchError):
        take(dst, http_server.url("") + path)
    files = [each for each in tmp_path.rglob("*") if each.is_file() and dst not in each.parents]
    assert not files and sorted(each.name for each in tmp_path.iterdir() if each != dst) == before
    inside = [each for each in (dst / "objects").rglob("*") if each.is_file()]
    assert all(each.parent.parent == dst / "objects" for each in inside)


def test_the_sockets_folder_is_the_users_alone(dst: Path, url: str) -> None:
    client = FetchClient(FetchOptions(dst=str(dst)))
    client.head(url)
    folder = _runtime_folder()
    assert stat.S_IMODE(os.lstat(folder).st_mode) == 0o700
    assert stat.S_ISSOCK(os.lstat(folder / f"{_name_of(str(dst))}.sock").st_mode)
    assert stat.S_IMODE(os.lstat(dst / lock_name("server")).st_mode) == 0o600
    client.close()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_a_sockets_folder_that_others_can_enter_is_refused(
    dst: Path, tmp_path: Path, url: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"sds-{os.getuid()}").mkdir()
    (tmp_path / f"sds-{os.getuid()}").chmod(mode)
    with pytest.raises(CacheError, match="not this user's alone"):
        take(dst, url)


INTRUDER = """
import os, socket, sys
from sds.fetch import protocol as p
os.setgroups([]); os.setgid(65534); os.setuid(65534)
connection = socket.socket(fileno=int(sys.argv[1])) if sys.argv[1].isdigit() else socket.socket(socket.AF_UNIX)
if not sys.argv[1].isdigit():
    try: connection.connect(sys.argv[1])
    except OSError as error: print(type(error).__name__); sys.exit()
wire = p.Wire(connection)
try: wire.send(p.encode([p.Hello(p.VERSION, p.FetchOptions(dst='x'), {}), p.Head(1, sys.argv[2])]))
except OSError: pass
print(wire.receive_replies())
"""


@needs_root
def test_another_user_cannot_reach_the_server(dst: Path, url: str, runtime: Path) -> None:
    client = FetchClient(FetchOptions(dst=str(dst)))
    client.head(url)
    folder = _runtime_folder()
    assert folder.parent == runtime
    address = folder / f"{_name_of(str(dst))}.sock"
    command = [sys.executable, "-c", INTRUDER, str(address), url]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "PermissionError\n"
    # and if the folder lets them in, nobody talks to them: the kernel says who they are
    folder.chmod(0o711)
    address.chmod(0o777)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "None\n"
    folder.chmod(0o700)
    assert client.head(url).size == SIZE
    client.close()


@needs_root
def test_a_server_of_another_user_is_not_believed(dst: Path, url: str, runtime: Path) -> None:
    """Somebody listens where our server would, and waits for our credentials."""
    place = _runtime_folder() / f"{_name_of(str(dst))}.sock"
    assert place.parent.parent == runtime
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        # the kernel takes for the user at the other end whoever called listen
        script = f"import os, socket, time\ns = socket.socket(fileno={listener.fileno()})\nos.setuid({NOBODY})\n"
        script += "s.listen(8)\ntime.sleep(60)"
        thief = subprocess.Popen([sys.executable, "-c", script], pass_fds=[listener.fileno()])
        try:
            fetching.until(lambda: _is_listening(place))
            with pytest.raises(CacheError, match="belongs to another user"):
                take(dst, url)
        finally:
            thief.kill()
            thief.wait()
            place.unlink()


def _is_listening(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(place))
        except OSError:
            return False
        packed = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return bool(struct.unpack("3i", packed)[1] == NOBODY)


def test_nonsense_and_strangers_words_end_the_conversation(dst: Path, url: str) -> None:
    client = FetchClient(FetchOptions(dst=str(dst)))
    client.head(url)
    address = str(_runtime_folder() / f"{_name_of(str(dst))}.sock")
    get = p.encode([p.Get(1, [p.File(url, None)])])  # without a hello
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0\0\0\5" + b"\x80" * 5, get):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(address)
            stranger.settimeout(5)
            stranger.sendall(words)
            with contextlib.suppress(ConnectionError):  # that is an end too
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(100) == b""
    assert client.head(url).size == SIZE
    client.close()
