"""Whole small files: the same by C and by Python; nothing endless is read, no link is written through."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiled
from sds import _files, files

Read = Callable[[str, int], tuple[int, bool, bytes | None]]
Write = Callable[..., None]

READS = pytest.mark.parametrize("read", [_files.read_file, files._read_file], ids=["C", "Python"])
WRITES = pytest.mark.parametrize("write", [_files.write_file, files._write_file], ids=["C", "Python"])
ROOM = 120 << 10  # what C has room for before it knows how large a file is
MOST = 1 << 30


def test_what_was_compiled_is_used() -> None:
    assert files.read_file is _files.read_file and files.write_file is _files.write_file


@READS
@pytest.mark.parametrize("size", [1, 4096, ROOM - 1, ROOM, ROOM + 1, 3_000_000])
def test_a_file_is_read_whole(read: Read, size: int, tmp_path: Path) -> None:
    path, data = tmp_path / "x", os.urandom(size)
    path.write_bytes(data)
    assert read(str(path), MOST) == (size, True, data)
    assert read(str(path), size) == (size, True, data)
    assert read(str(path), size - 1) == (size, True, None), "it is larger than allowed"


@READS
def test_what_is_no_file_is_not_read(read: Read, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    assert read(str(tmp_path / "empty"), MOST) == (0, True, None)
    assert read(str(tmp_path / "pipe"), MOST)[1:] == (False, None)
    assert read(str(tmp_path), MOST)[1:] == (False, None)
    assert read("/dev/zero", MOST)[1:] == (False, None)


@READS
def test_what_cannot_be_opened_says_why(read: Read, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read(str(tmp_path / "none"), MOST)
    assert caught.value.filename == str(tmp_path / "none")
    with pytest.raises(ValueError, match="null"):
        read("a\0b", MOST)
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")  # no text in any encoding
    Path(strange).write_bytes(b"1")
    assert read(strange, MOST) == (1, True, b"1")


@WRITES
@given(chunks=st.lists(st.binary(max_size=50), max_size=20))
@settings(max_examples=50, deadline=None)
def test_what_is_written_is_there_under_its_name(
    write: Write, chunks: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("files")
    write(str(folder), "draft", "name", [*chunks[:3], *map(memoryview, chunks[3:])])
    assert os.listdir(folder) == ["name"] and (folder / "name").read_bytes() == b"".join(chunks)


@WRITES
def test_many_chunks_and_large_ones(write: Write, tmp_path: Path) -> None:
    chunks = [os.urandom(k % 7) for k in range(5000)] + [os.urandom(5_000_000)]  # the kernel takes 1024 at once
    write(str(tmp_path), "draft", "name", chunks)
    assert (tmp_path / "name").read_bytes() == b"".join(chunks)


@WRITES
def test_a_new_file_replaces_one_of_that_name_and_is_as_open_as_others(write: Write, tmp_path: Path) -> None:
    (tmp_path / "name").write_bytes(b"old")
    write(str(tmp_path), "draft", "name", [b"new"])
    (tmp_path / "other").touch()
    assert (tmp_path / "name").read_bytes() == b"new"
    assert (tmp_path / "name").stat().st_mode == (tmp_path / "other").stat().st_mode


@WRITES
def test_nothing_is_written_through_links_or_over_drafts(write: Write, tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir(), inside.mkdir()
    (tmp_path / "link").symlink_to(outside)
    (inside / "draft").symlink_to(outside / "victim")
    with pytest.raises(NotADirectoryError):
        write(str(tmp_path / "link"), "draft", "name", [b"x"])
    with pytest.raises(FileExistsError):
        write(str(inside), "draft", "name", [b"x"])
    with pytest.raises(FileNotFoundError):
        write(str(tmp_path / "none"), "draft", "name", [b"x"])
    with pytest.raises(TypeError):
        write(str(inside), "other", "name", [b"x", "text"])
    assert not list(outside.iterdir()) and os.listdir(inside) == ["draft"]


@WRITES
def test_a_disk_that_is_full_says_so_and_no_whole_file_is_there(write: Write, tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys\n"
        "from sds import files, _files\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"write = {'_files.write_file' if write is _files.write_file else 'files._write_file'}\n"
        "try:\n"
        "    write(sys.argv[1], 'draft', 'name', [bytes(60_000), bytes(60_000)])\n"
        "except OSError as error:\n"
        "    print(error.errno)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert int(done.stdout) == errno.EFBIG, done.stderr
    assert os.listdir(tmp_path) == ["draft"]


def test_descriptors_and_memory_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(300_000))
    before = len(os.listdir("/proc/self/fd"))

    def turn() -> None:
        _files.read_file(str(path), MOST), _files.read_file(str(path), 10), _files.read_file(str(tmp_path), 10)
        _files.write_file(str(tmp_path), "draft", "name", [bytes(300_000)])
        for bad in (str(tmp_path / "none"), str(path)):
            with pytest.raises(OSError):
                _files.write_file(bad, "draft", "name", [b"x"])
        with pytest.raises(OSError):
            _files.read_file(str(tmp_path / "none"), MOST)
        with pytest.raises(TypeError):
            _files.write_file(str(tmp_path), "other", "name", [b"x", None])

    for _ in range(100):
        turn()
    tracemalloc.start()
    try:
        turn()
        taken, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            turn()
        assert tracemalloc.get_traced_memory()[0] - taken < 20_000  # 20 bodies would be 6,000,000
    finally:
        tracemalloc.stop()
    assert len(os.listdir("/proc/self/fd")) == before


def test_other_threads_go_on_while_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(200_000_000))
    is_over, turns = threading.Event(), []

    def count() -> None:
        while not is_over.is_set():
            turns.append(time.perf_counter())

    counter = threading.Thread(target=count)
    counter.start()
    start = time.perf_counter()
    _files.read_file(str(path), MOST)
    end = time.perf_counter()
    is_over.set()
    counter.join()
    assert sum(start < turn < end for turn in turns) > 1000


@pytest.mark.parametrize(
    ("state", "says"),
    [("missing", "_read_file _write_file"), ("broken", "ImportError: undefined symbol")],
    ids=["missing", "broken"],
)
def test_where_it_is_missing_it_goes_without_and_where_it_is_broken_it_says_so(state: str, says: str) -> None:
    code = "from sds import files\nprint(files.read_file.__name__, files.write_file.__name__)"
    assert compiled.last_line("sds._files", state, code) == says


@READS
def test_a_signal_is_seen_to_and_harms_nothing(read: Read, tmp_path: Path) -> None:
    path, data = tmp_path / "x", os.urandom(3_000_000)
    path.write_bytes(data)
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
    try:
        until = time.monotonic() + 10
        while len(seen) < 50 and time.monotonic() < until:
            assert read(str(path), MOST) == (len(data), True, data)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) >= 50
