"""Real servers and datasets for tests that ask for them; a guard that none leaves a process or a socket behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from hypothesis import settings

import fetching
import sds
import texts

pytest.register_assert_rewrite("sds.testing.contracts")  # before it is imported: its asserts show what they compared

from sds.fetch.owner import lock_name  # noqa: E402
from sds.testing import AzureServer, GCSServer, HTTPServer, S3Server  # noqa: E402
from sds.testing.servers import running  # noqa: E402

# no example has a time of its own to keep: machines are shared
settings.register_profile("sds", deadline=None)
settings.load_profile("sds")

# a shell starts what it puts into the background with SIGINT ignored, and so would be all that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)

# Python starts these once per process and keeps them
KEPT_BY_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
# a fetch server ends within 2 s of its last client; workers that were killed take a moment to be reaped
PATIENCE_S = 5.0


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """SeaweedFS, without a request log: as fast as it can be."""
    with S3Server() as server:
        yield server


@pytest.fixture(scope="session")
def s3_logged() -> Iterator[S3Server]:
    """SeaweedFS behind a proxy, for tests that count requests."""
    with S3Server(log_requests=True) as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[GCSServer]:
    with GCSServer() as server:
        yield server


@pytest.fixture(scope="session")
def azure() -> Iterator[AzureServer]:
    with AzureServer() as server:
        yield server


@pytest.fixture(scope="session")
def http_server() -> Iterator[HTTPServer]:
    """Caddy over a folder of its own; tests put their files under names of their own."""
    with HTTPServer() as server:
        yield server


@pytest.fixture
def new_name() -> Callable[[], str]:
    """Makes names that nobody else uses on a shared server: good for buckets, containers and folders."""
    made: list[str] = []

    def make() -> str:
        made.append(f"test-{os.getpid()}-{time.monotonic_ns():x}-{len(made)}")
        return made[-1]

    return make


@pytest.fixture
def bucket(s3: S3Server, new_name: Callable[[], str]) -> str:
    """A fresh bucket on `s3`."""
    name = new_name()
    s3.create_bucket(name)
    return name


@pytest.fixture
def dst(tmp_path: Path) -> Iterator[Path]:
    """A cache folder whose fetch server is killed with the test: waiting for its own end would cost a second each."""
    folder = tmp_path / "dst"
    yield folder
    for pid in fetching.server_pids(folder):
        fetching.kill(pid)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return texts.write(tmp_path_factory.mktemp("source") / "texts", 40)


@pytest.fixture
def make(source: Path, tmp_path: Path) -> Iterator[Callable[..., sds.StreamingDataset]]:
    """make(**options): a dataset over forty texts; make(src=...): over something else."""
    made: list[sds.StreamingDataset] = []

    def one(**options: Any) -> sds.StreamingDataset:
        made.append(texts.make(options.pop("src", source), tmp_path / "dst", **options))
        return made[-1]

    yield one
    was_remote = any(dataset.delivery.client.current_link() for dataset in made)
    for dataset in made:
        dataset.close()
    if was_remote:  # waiting for the fetch server's own end would cost a second each time
        for pid in fetching.server_pids(tmp_path / "dst"):
            fetching.kill(pid)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves child processes, connections or fetch servers of its folder behind."""
    folder: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    children, sockets = set(child_processes()), set(open_sockets())
    yield
    deadline = time.monotonic() + PATIENCE_S
    had_server = folder is not None and any(folder.rglob(lock_name("server")))  # looking at all processes takes longer
    while left := [
        *(text for key, text in child_processes().items() if key not in children),
        *(text for key, text in open_sockets().items() if key not in sockets),
        *(fetch_servers(folder) if folder and had_server else ()),
    ]:
        if time.monotonic() > deadline:
            pytest.fail("the test left behind:\n" + "\n".join(left))
        gc.collect()
        time.sleep(0.05)


def child_processes() -> dict[object, str]:
    """The children of this process and theirs, without the servers of the fixtures and what Python keeps."""
    servers = running()
    found: dict[object, str] = {}
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
            if child.pid in servers or child.ppid() in servers or any(word in command for word in KEPT_BY_PYTHON):
                continue
            if child.status() == psutil.STATUS_ZOMBIE:  # dead; only its exit code waits for somebody to ask
                continue
            found[child.pid, child.create_time()] = f"process {child.pid}: {command}"
        except psutil.NoSuchProcess:
            pass
    return found


def open_sockets() -> dict[object, str]:
    """The sockets of this process that lead out of it, without those to the servers of the fixtures.

    An obstore that is used in this process keeps those for a while: the pool of its connections is closed later.
    """
    servers = {urlsplit(server.endpoint).port for server in running().values()}
    return {
        (each.fd, each.laddr, each.raddr): f"socket {each.fd}: {each.laddr} -> {each.raddr or 'nobody'} {each.status}"
        for each in psutil.Process().net_connections("all")
        if each.laddr or each.raddr  # a socketpair inside the process has no name
        if getattr(each.raddr, "port", None) not in servers
    }


def fetch_servers(folder: Path) -> list[str]:
    """Fetch servers, of whatever parent, that work in a folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if "sds.fetch.server" in command and str(folder.resolve()) in command:
            found.append(f"fetch server {process.pid}: {command}")
    return found


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for loopback that signs itself."""
    folder = tmp_path_factory.mktemp("tls")
    files = str(folder / "cert.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*command, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files
