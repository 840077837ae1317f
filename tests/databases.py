"""Databases for the tests of exports: PostgreSQL on loopback, files of SQLite, the same rows in each."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["QUERY", "fill_sqlite", "find_postgres", "postgres", "rows"]

QUERY = "SELECT id, url, caption, quality FROM photos WHERE quality >= 0.25 ORDER BY id"


def rows(count: int) -> list[tuple[str, str, str | None, float]]:
    """Rows of photos: ids keep their zeros, every seventh has no caption."""
    return [
        (f"{i:07d}", f"s3://bucket/{i:07d}.jpg", None if i % 7 == 0 else f"photo {i}", (i * 37 % 100) / 100)
        for i in range(count)
    ]


def fill_sqlite(path: Path, count: int) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE photos (id TEXT, url TEXT, caption TEXT, quality REAL)")
        connection.executemany("INSERT INTO photos VALUES (?, ?, ?, ?)", rows(count))
    connection.close()


def find_postgres() -> Path | None:
    """The folder of PostgreSQL's programs, on PATH or where Debian puts them."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "postgres").exists()), None)


@contextmanager
def postgres(password: str) -> Iterator[dict[str, Any]]:
    """A server that asks for a password; its connection as psycopg's keywords."""
    programs = find_postgres()
    assert programs is not None
    as_user: dict[str, Any] = {"user": "postgres"} if os.getuid() == 0 else {}  # it refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="sds-pg-"))
    process = None
    try:
        (folder / "password").write_text(password)
        if as_user:
            shutil.chown(folder, "postgres")
            shutil.chown(folder / "password", "postgres")
        data = folder / "data"
        words = [
            "-D",
            data,
            "-U",
            "sds",
            "-A",
            "scram-sha-256",
            f"--pwfile={folder}/password",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run([programs / "initdb", *words], check=True, capture_output=True, cwd=folder, **as_user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = ["-c", "fsync=off", "-c", "autovacuum=off", "-c", "max_wal_senders=0", "-c", "wal_level=minimal"]
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                [programs / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", folder, *settings],
                stdout=log,
                stderr=log,
                cwd=folder,
                **as_user,
            )
        facts = {"host": "127.0.0.1", "port": port, "user": "sds", "dbname": "postgres", "password": password}
        _wait(facts, folder / "log")
        yield facts
    finally:
        if process is not None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(facts: dict[str, Any], log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(**facts, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise AssertionError(log.read_text()) from None
            time.sleep(0.1)
