"""Finding a server: what it says while it starts, a queue that is full, an address that must not be believed."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from sds.errors import CacheError
from sds.fetch import launch
from sds.fetch.cache import Cache


def test_signs_of_life_extend_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_START_S", 0.3)
    reading, writing = os.pipe()
    signs: list[int] = []

    def server() -> None:
        for _ in range(5):
            time.sleep(0.15)
            os.write(writing, b"scanning\n")
        os.write(writing, b"ready\n")

    thread = threading.Thread(target=server)
    thread.start()
    assert launch._first_words(reading, lambda: signs.append(1)) == "ready"
    thread.join()
    assert len(signs) >= 5
    assert launch._first_words(reading, lambda: None) == ""  # and silence ends it
    os.close(reading)
    os.close(writing)


def test_whoever_waits_for_the_start_sees_the_signs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_START_S", 0.3)
    starter, waiter = (launch.open_lock(tmp_path, "lock") for _ in range(2))
    fcntl.flock(starter, fcntl.LOCK_EX)

    def start() -> None:
        for _ in range(6):
            time.sleep(0.1)
            os.utime(starter)
        fcntl.flock(starter, fcntl.LOCK_UN)

    thread = threading.Thread(target=start)
    thread.start()
    launch._lock(waiter, time.monotonic() + 0.3, "dst")
    thread.join()
    fcntl.flock(waiter, fcntl.LOCK_UN)
    fcntl.flock(starter, fcntl.LOCK_EX)
    with pytest.raises(CacheError, match="waited"):
        launch._lock(waiter, time.monotonic() + 0.1, "dst")
    os.close(starter)
    os.close(waiter)


def test_a_scan_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        (tmp_path / "aa").mkdir(exist_ok=True)
        (tmp_path / "aa" / f"aa{i:030x}-1").write_bytes(b"x")
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr("sds.fetch.cache.time.monotonic", lambda: next(clock))
    signs: list[int] = []
    assert len(Cache(tmp_path, on_progress=lambda: signs.append(1))) == 3 and len(signs) >= 3


def test_a_full_queue_is_a_busy_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "busy.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen(0)
        first = launch._try_connect(place)
        assert first is not None
        threading.Timer(0.2, lambda: listener.accept()[0].close()).start()
        second = launch._try_connect(place)
        assert second is not None
        monkeypatch.setattr(launch, "_BUSY_S", 0.1)
        with pytest.raises(CacheError, match="takes no more clients"):
            launch._try_connect(place)
        first.close()
        second.close()


def test_an_address_that_others_could_listen_at_is_not_believed(tmp_path: Path) -> None:
    own, other, dst = tmp_path / "own" / "x.sock", tmp_path / "other" / "x.sock", tmp_path / "dst"
    for folder in (own.parent, other.parent, dst):
        folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(other))
        listener.listen()
        lock = dst / launch.lock_name("server")
        lock.write_text(f"pid 1 on host\nat {other}\n")
        found = launch._find(str(dst), own)
        assert found is not None
        found.close()
        other.parent.chmod(0o755)
        assert launch._find(str(dst), own) is None
        other.parent.chmod(0o700)
        lock.write_text(f"at {other.with_name('another.sock')}\n")
        assert launch._find(str(dst), own) is None
        lock.unlink()
        assert launch._find(str(dst), own) is None
