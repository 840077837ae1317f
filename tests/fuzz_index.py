"""Broken indexes, cache folders and messages: each is used, or is one of our errors, soon.

    python tests/fuzz_index.py --count 100000 [--kinds csv parquet ledger frames ...] [--seed 0]

Runs in a process of its own, which a watchdog ends (with all stacks) when one case takes too long. The case that a
process died in is printed, and can be made again from its kind, seed and number.
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import io
import json
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CASE_TIMEOUT_S = 20.0
MAX_GROWTH_KB = 600_000
ROWS = [
    {"index": f"{i:05d}", "file": f"s3://bucket/{i}.jpg", "n": i, "x": i / 7, "text": f"a “text” {i}, with, commas"}
    for i in range(12)
]


def tables() -> dict[str, tuple[str, bytes]]:
    """A small index of every kind: file name and content."""
    import pyarrow as pa
    from pyarrow import csv, feather, parquet

    table = pa.Table.from_pylist(ROWS)

    def written(write: Callable[[pa.Table, io.BytesIO], object]) -> bytes:
        file = io.BytesIO()
        write(table, file)
        return file.getvalue()

    comma = written(csv.write_csv)
    lines = "\n".join(map(json.dumps, ROWS)).encode()
    return {
        "csv": ("i.csv", comma),
        "tsv": ("i.tsv", comma.replace(b",", b"\t")),
        "csv.gz": ("i.csv.gz", gzip.compress(comma, mtime=0)),
        "json": ("i.json", json.dumps(ROWS).encode()),
        "jsonl": ("i.jsonl", lines),
        "parquet": ("i.parquet", written(parquet.write_table)),
        "parquet.snappy": ("j.parquet", written(lambda t, f: parquet.write_table(t, f, compression="snappy"))),
        "arrow": ("i.arrow", written(lambda t, f: feather.write_feather(t, f, compression="uncompressed"))),
        "list": ("split_file_paths.txt", "\n".join(row["file"] for row in ROWS).encode()),
    }


KINDS = ("csv", "tsv", "csv.gz", "json", "jsonl", "parquet", "parquet.snappy", "arrow", "list", "ledger", "frames")


def mutate(data: bytes, rng: random.Random, header: int = 600) -> bytes:
    """Bits flipped, bytes overwritten, removed, doubled; cut short. Half of them near an end, where the tables are."""
    broken = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        if not broken:
            break
        near = min(len(broken), header)
        place = rng.choice([rng.randrange(len(broken)), rng.randrange(near), len(broken) - 1 - rng.randrange(near)])
        kind, length = rng.randrange(5), rng.randint(1, 9)
        if kind == 0:
            broken[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            broken[place : place + length] = rng.choice([b"\xff", b"\0", b"\x7f", b"\n", b'"', b",", b"{"]) * length
        elif kind == 2:
            del broken[place : place + length]
        elif kind == 3:
            broken[place:place] = broken[max(0, place - length) : place + length]
        else:
            broken[place] = rng.randrange(256)
    if rng.random() < 0.15:
        del broken[rng.randrange(len(broken) + 1) :]
    return bytes(broken)


class Index:
    """Opens a broken index, and reads its rows."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.name, self.data = tables()[kind]
        self.folder = folder / "indexes"
        self.folder.mkdir()
        self.dst = folder / "dst"

    def __call__(self, rng: random.Random) -> bool:
        from sds.errors import SdsError
        from sds.index import IndexOptions, open_index

        path = self.folder / self.name
        path.write_bytes(mutate(self.data, rng))
        try:
            columns = None if path.suffix == ".txt" else ["file"]
            index = open_index(path, IndexOptions(columns_to_download=columns), folder=self.dst, remote=no_remote)
            rows = index.rows(list(range(min(len(index), 20))))
            assert all(isinstance(row.key, str) for row in rows)
            del index, rows
        except SdsError as error:
            assert error.message
            return False
        finally:
            if rng.random() < 0.02:
                shutil.rmtree(self.dst, ignore_errors=True)
        return True


def no_remote() -> None:
    from sds.errors import FetchError

    raise FetchError("nothing is remote here", hint="a broken list may name anything")


class Ledger:
    """Opens a cache folder in which names, sizes and kinds of files were changed: usable, and within its limit.

    One in ten has a changed word about its owner, or a changed lock: it is this host's, or still that of another.
    """

    def __init__(self, folder: Path) -> None:
        from sds.fetch import owner

        self.folder = folder / "objects"
        self.claimed = folder / "claimed"
        owner._SETTLE_S = 0.001

    def __call__(self, rng: random.Random) -> bool:
        from sds.errors import SdsError
        from sds.fetch.cache import Cache

        if rng.random() < 0.1:
            return self._claim(rng)
        shutil.rmtree(self.folder, ignore_errors=True)
        names = [f"{rng.getrandbits(128):032x}-{rng.randrange(40)}" for _ in range(6)]
        for name in names:
            self._plant(name, rng)
        limit = rng.choice([None, 0, 50, 1000])
        try:
            cache = Cache(self.folder, limit)
            for name in names:
                entry = cache.find(name[:32])
                if entry is not None:
                    said = (
                        os.path.basename(entry.path).split("-")[1].partition(".")[0]
                    )  # a changed name may say another
                    assert os.path.getsize(entry.path) == entry.size == int(said)
            assert limit is None or cache.used <= limit or cache.leased_bytes, (cache.used, limit)
        except SdsError:
            return False
        return True

    def _claim(self, rng: random.Random) -> bool:
        from sds.errors import SdsError
        from sds.fetch.owner import OWNER, Claim, boot_id, host_key, lock_name

        shutil.rmtree(self.claimed, ignore_errors=True)
        self.claimed.mkdir()
        host = rng.choice([host_key(), "0123456789ab"])
        word = f"host {host}\nname afar\nboot {boot_id()}\ntoken t\n".encode()
        lock = f"pid 1 on afar\nboot {boot_id()}\nat /run/x.sock".encode()
        (self.claimed / OWNER).write_bytes(b"" if rng.random() < 0.1 else mutate(word, rng))
        (self.claimed / lock_name("server")).write_bytes(mutate(lock, rng))
        try:
            claim = Claim(self.claimed, Path("/run/x.sock"))
        except SdsError:
            return False
        os.close(claim._lock)
        told = (self.claimed / OWNER).read_bytes()
        said = [line for line in told.decode(errors="replace").splitlines() if line.startswith("host ")]
        assert said and (said[0] == f"host {host_key()}") == (claim.guest_of is None), (said, claim.guest_of)
        return True

    def _plant(self, name: str, rng: random.Random) -> None:
        size = int(name.partition("-")[2])
        bucket = self.folder / name[:2]
        changed = mutate(name.encode(), rng, 40).replace(b"/", b"").replace(b"\0", b"") or b"x"
        path = os.fsencode(bucket) + b"/" + (name.encode() if rng.random() < 0.5 else changed[:200])
        if path.rpartition(b"/")[2] in (b".", b".."):
            return
        bucket.mkdir(parents=True, exist_ok=True)
        kind = rng.randrange(8)
        try:
            if kind == 0:
                os.mkdir(path)
            elif kind == 1:
                os.symlink(b"/etc/hostname", path)
            elif kind == 2:
                os.mkfifo(path)
            else:
                with open(path, "wb") as file:
                    file.write(bytes(size if kind < 6 else rng.randrange(60)))
        except FileExistsError:
            pass


class Frames:
    """Says nonsense to a real fetch server, which must go on serving others."""

    def __init__(self, folder: Path) -> None:
        from sds.fetch import FetchClient, FetchOptions
        from sds.fetch import protocol as p
        from sds.fetch.launch import _name_of, _runtime_folder

        self.client = FetchClient(FetchOptions(dst=str(folder / "dst")))
        self.file = folder / "dst"
        # the first word starts the server
        self._ask()
        self.address = str(_runtime_folder() / f"{_name_of(str(folder / 'dst'))}.sock")
        options = p.FetchOptions(dst=str(folder / "dst"), limit=1000)
        url = "http://127.0.0.1:9/x"  # nobody listens there
        messages = [
            p.Hello(p.VERSION, options, {}),
            p.Get(1, [(url, None)]),
            p.Want(1),
            p.Read(2, url, [(0, 5)]),
            p.Head(3, url),
            p.Release([1, 2, 3]),
        ]
        self.frames = [p.encode(messages[:n]) for n in range(1, len(messages) + 1)]
        self.count = 0

    def _ask(self) -> None:
        from sds.errors import SdsError

        try:
            self.client.head("http://127.0.0.1:9/x")
        except SdsError as error:
            assert "refused" in str(error)

    def __call__(self, rng: random.Random) -> bool:
        frame = mutate(rng.choice(self.frames)[4:], rng)
        length = len(frame) if rng.random() < 0.9 else rng.choice([0, 2**31, 2**32 - 1, len(frame) + 5])
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(CASE_TIMEOUT_S)
            line.connect(self.address)
            try:
                line.sendall(length.to_bytes(4, "big") + frame)
                line.shutdown(socket.SHUT_WR)
                while line.recv(65536):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass
        self.count += 1
        if self.count % 500 == 0:
            self._ask()
        return True


def run(kind: str, folder: Path, count: int, seed: int) -> tuple[int, int]:
    """How many were used, and how many refused; anything else ends the process."""
    case: Callable[[random.Random], bool] = (
        Ledger(folder) if kind == "ledger" else Frames(folder) if kind == "frames" else Index(kind, folder)
    )
    used = refused = 0
    with open(folder / f"{kind}.state", "w") as note:
        for number in range(count):
            note.seek(0)
            note.write(f"{number:8d}")
            note.flush()
            faulthandler.dump_traceback_later(CASE_TIMEOUT_S, exit=True)
            if case(random.Random(f"{kind} {seed} {number}")):
                used += 1
            else:
                refused += 1
            faulthandler.cancel_dump_traceback_later()
    if isinstance(case, Frames):
        case.client.close()
    return used, refused


def child(kind: str, count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "first").mkdir()
        run(kind, folder / "first", 20, seed + 1)  # what is loaded once is loaded now
        before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        try:
            used, refused = run(kind, folder, count, seed)
        except BaseException:
            sys.stderr.write(f"case {kind} {seed} {(folder / f'{kind}.state').read_text().strip()}\n")
            raise
        growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert growth < MAX_GROWTH_KB, f"memory grew by {growth} KB"
        seconds = time.monotonic() - begin
        words = f"{kind}: {used} used, {refused} refused, {seconds:.1f} s, memory +{growth // 1024} MB\n"
        sys.stdout.write(words)
        sys.stdout.flush()


def start(kinds: list[str], count: int, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", "--count", str(count), "--seed", str(seed), "--kinds", *kinds]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """What it printed, or an AssertionError with what it said before it died."""
    output, words = process.communicate()
    assert process.returncode == 0, f"ended with {process.returncode}:\n{output}\n{words[-5000:]}"
    return output.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="cases, over all kinds")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        for kind in options.kinds:
            child(kind, options.count, options.seed)
        return
    for kind in options.kinds:
        share = -(-options.count // len(options.kinds))
        sys.stdout.write(finish(start([kind], share, options.seed)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
