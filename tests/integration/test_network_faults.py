"""A network that fails, by script: a FaultyProxy before a real S3 and a real web server."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fetching
from sds.errors import AccessDenied, FetchError, IntegrityError, ObjectNotFound
from sds.fetch import FetchClient, FetchOptions
from sds.testing import Fault, FaultyProxy, HTTPServer, S3Server

BODY = random.Random(0).randbytes(50_000)


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    """A way to the S3 server that fails as told."""
    with FaultyProxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def web(http_server: HTTPServer) -> Iterator[FaultyProxy]:
    """A way to the web server that fails as told."""
    with FaultyProxy(http_server.endpoint) as proxy:
        yield proxy


Start = Callable[..., FetchClient]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, proxy: FaultyProxy) -> Iterator[Path]:
    """A cache folder for all of them, whose server is up: a new one for each test would take longer than the tests."""
    folder = tmp_path_factory.mktemp("dst")
    client = FetchClient(FetchOptions(dst=str(folder)))
    with pytest.raises(FetchError):
        client.head(f"{proxy.endpoint}/absent/x")
    yield folder
    client.close()
    for pid in fetching.server_pids(folder):
        fetching.kill(pid)


@pytest.fixture
def start(folder: Path, s3: S3Server, proxy: FaultyProxy, web: FaultyProxy) -> Iterator[Start]:
    """Makes clients that go through the proxy."""
    made: list[FetchClient] = []

    def start(checksums: bool = False, endpoint: str = proxy.endpoint, **options: object) -> FetchClient:
        settings = {**s3.storage_options, "endpoint": endpoint, "checksums": checksums}
        made.append(FetchClient(FetchOptions(dst=str(folder), settings=settings, **{"timeout_s": 1.0, **options})))
        return made[-1]

    yield start
    for client in made:
        client.close()
    proxy.hang_up()
    web.hang_up()


def get(client: FetchClient, *urls: str) -> list[bytes]:
    tickets = client.submit([[(url, None)] for url in urls])
    found = [Path(ticket.take()[0]).read_bytes() for ticket in tickets]
    for ticket in tickets:
        ticket.release()
    return found


# -------------------------------------------------------------------------------------------------- one by one


@pytest.mark.parametrize(
    "fault",
    [
        Fault("delay", attempts=(1,), seconds=0.2),
        Fault("stall", attempts=(1,), seconds=30.0),
        Fault("reset", attempts=(1,)),
        Fault("refuse", attempts=(1,)),
        Fault("short", attempts=(1,)),
        Fault("empty", attempts=(1,)),
        Fault("long", attempts=(1,)),
        Fault("status", attempts=(1, 2), status=503),
        Fault("status", attempts=(1,), status=429),
        Fault("status", attempts=(1,), status=500),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_what_passes_is_survived(start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str, fault: Fault) -> None:
    s3.put(bucket, "x.bin", BODY)
    proxy.set_faults(fault)
    client = start()
    assert get(client, f"s3://{bucket}/x.bin") == [BODY]
    assert sum(proxy.injected.values()) == len(fault.attempts or ())
    stats = client.tally.stats()
    assert stats.retries == (0 if fault.kind in ("delay", "long") else len(fault.attempts or ()))
    asked = [each.method for each in proxy.exchanges(f"/{bucket}/x.bin")]
    assert stats.requests == len(asked) and asked.count("GET") == stats.retries + 1


@pytest.mark.parametrize(
    "faults",
    [
        [Fault("status", method="HEAD", status=404)],  # it comes between the two questions
        [Fault("status", method="HEAD", status=404), Fault("status", method="GET", status=403)],
        [Fault("status", method="HEAD", status=404), Fault("status", method="GET", status=503)],
        [Fault("status", method="HEAD", status=404), Fault("reset", method="GET")],
    ],
    ids=["here", "403", "503", "reset"],
)
def test_an_object_that_is_not_there_is_not_there_whatever_a_second_question_meets(
    start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str, faults: list[Fault]
) -> None:
    s3.put(bucket, "late.bin", BODY)
    proxy.set_faults(*faults)
    with pytest.raises(ObjectNotFound, match="object not found"):
        start().head(f"s3://{bucket}/late.bin")
    assert [each.method for each in proxy.exchanges(f"/{bucket}/late.bin")] == ["HEAD", "GET"]


@pytest.mark.parametrize("fault", [Fault("flip"), Fault("short", matching=True), Fault("long", matching=True)])
def test_checksums_find_what_lengths_do_not(
    start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str, fault: Fault
) -> None:
    s3.put(bucket, "x.bin", BODY)
    once = Fault(**{**vars(fault), "attempts": (1,)})
    proxy.set_faults(once)
    assert get(start(), f"s3://{bucket}/x.bin") != [BODY]  # not asked for: nobody notices
    s3.put(bucket, "y.bin", BODY)
    for num_retries in (0, 3):  # it is worth a second request, whatever the options say
        proxy.set_faults(once)
        s3.put(bucket, f"y{num_retries}.bin", BODY)
        client = start(checksums=True, num_retries=num_retries)
        assert get(client, f"s3://{bucket}/y{num_retries}.bin") == [BODY]
        assert client.tally.stats().retries == 1


def test_a_body_that_is_never_the_same_is_refused(start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str) -> None:
    s3.put(bucket, "x.bin", BODY)
    faults = [Fault("flip", attempts=(1,)), Fault("short", attempts=(2,), matching=True)]
    proxy.set_faults(*faults, Fault("long", attempts=(3,), matching=True))
    with pytest.raises(IntegrityError, match="not the one that the store promised") as caught:
        get(start(checksums=True, num_retries=2), f"s3://{bucket}/x.bin")
    assert caught.value.hint and caught.value.url == f"s3://{bucket}/x.bin"


def test_tags_that_are_no_checksums_are_found_out(start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str) -> None:
    """As with keys of KMS: two bodies that agree with each other are believed, and the bucket is checked no more."""
    for i in range(3):
        s3.put(bucket, f"{i}.bin", BODY)
    proxy.set_faults(Fault("flip", at=0.5))  # always the same byte
    client = start(checksums=True, num_connections=1)
    flipped = BODY[:25_000] + bytes([BODY[25_000] ^ 1]) + BODY[25_001:]
    for i in range(3):
        assert get(client, f"s3://{bucket}/{i}.bin") == [flipped]
    assert client.tally.stats().retries == 1


def test_what_stays_is_not_tried_again(start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str) -> None:
    s3.put(bucket, "x.bin", BODY)
    client = start()
    for status, kind in ((403, AccessDenied), (404, ObjectNotFound), (416, FetchError)):
        proxy.set_faults(Fault("status", status=status))
        with pytest.raises(kind):
            get(client, f"s3://{bucket}/x.bin")
        assert len(proxy.exchanges()) == 1


def test_a_server_that_is_away_for_a_while(start: Start, s3: S3Server, bucket: str) -> None:
    s3.put(bucket, "x.bin", BODY)
    with FaultyProxy(s3.endpoint) as own:
        client = start(endpoint=own.endpoint, num_retries=8)
        with own.down():
            (ticket,) = client.submit([[(f"s3://{bucket}/x.bin", None)]])
            time.sleep(0.3)
        assert Path(ticket.take()[0]).read_bytes() == BODY
        assert client.tally.stats().retries >= 1


# ------------------------------------------------------------------------------------------------- Retry-After


@pytest.mark.parametrize("path", ["x.bin", "x.bin?query=1"])
def test_a_web_server_is_left_alone_as_long_as_it_asks(
    start: Start, web: FaultyProxy, http_server: HTTPServer, new_name: Callable[[], str], path: str
) -> None:
    """obstore does not show Retry-After: the retry goes through the client that does, and honours it from then on."""
    folder = new_name()
    http_server.put(f"{folder}/x.bin", BODY)
    web.set_faults(Fault("status", attempts=(1, 2), status=503, retry_after_s=1))
    assert get(start(), f"{web.endpoint}/{folder}/{path}") == [BODY]
    first, second, third = (each.at for each in web.exchanges(f"/{folder}/x.bin"))
    assert third - second >= 1.0
    assert path == "x.bin" or second - first >= 1.0


def test_other_stores_are_not_slowed(
    start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str, http_server: HTTPServer, new_name: Callable[[], str]
) -> None:
    """A store that throttles everything keeps no download thread, though there are fewer of them than requests."""
    for i in range(16):
        s3.put(bucket, f"{i}", BODY)
    urls = fetching.publish(http_server, new_name(), [1000] * 40)
    proxy.set_faults(Fault("status", status=503))
    client = start(num_connections=4, num_retries=6)
    throttled = client.submit([[(f"s3://{bucket}/{i}", None)] for i in range(16)])
    fetching.until(lambda: proxy.injected["status"] > 4)
    get(client, *urls)
    assert client.tally.stats().misses == 40  # they are here, and none of the others is
    proxy.set_faults()
    assert [Path(ticket.take()[0]).read_bytes() for ticket in throttled] == [BODY] * 16


def test_a_store_that_wants_fewer_gets_fewer(start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str) -> None:
    for i in range(64):
        s3.put(bucket, f"{i}", b"x")
    proxy.set_faults(Fault("status", times=24, status=503))
    client = start(num_connections=32, num_retries=10)
    get(client, *(f"s3://{bucket}/{i}" for i in range(64)))
    statuses = [each.status for each in proxy.exchanges()]
    assert statuses.count(503) == 24 and statuses.count(200) == 64
    stats = client.tally.stats()
    assert stats.retries == 24 and stats.requests == 88


# ----------------------------------------------------------------------------------------------------- hedges


def test_a_straggler_is_asked_for_again(start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str) -> None:
    for i in range(40):
        s3.put(bucket, f"{i}", BODY)
    proxy.set_faults(Fault("stall", key="/39$", attempts=(1,), seconds=60.0))
    client = start(num_connections=4, timeout_s=60.0)
    get(client, *(f"s3://{bucket}/{i}" for i in range(39)))
    started = time.monotonic()
    assert get(client, f"s3://{bucket}/39") == [BODY]
    assert time.monotonic() - started < 20.0  # the first one would take a minute
    stats = client.tally.stats()
    assert stats.hedges == 1 and stats.retries == 0 and stats.requests == 41
    assert get(client, *(f"s3://{bucket}/{i}" for i in range(40))) == [BODY] * 40


# ------------------------------------------------------------------------------------------------ large objects


@pytest.fixture(scope="module")
def large() -> bytes:
    return random.Random(1).randbytes(2**20) * 75


def digest(path: str) -> str:
    return hashlib.md5(Path(path).read_bytes(), usedforsecurity=False).hexdigest()


def fetch(client: FetchClient, url: str) -> str:
    (ticket,) = client.submit([[(url, None)]])
    found = digest(ticket.take()[0])
    ticket.release()
    return found


def test_large_objects_come_in_parts(
    start: Start, web: FaultyProxy, http_server: HTTPServer, new_name: Callable[[], str], large: bytes
) -> None:
    folder, right = new_name(), hashlib.md5(large, usedforsecurity=False).hexdigest()
    http_server.put(f"{folder}/x.bin", large)
    client = start(timeout_s=10.0)
    web.set_faults()
    assert fetch(client, f"{web.endpoint}/{folder}/x.bin") == right
    ranged = [each for each in web.exchanges() if each.range]
    assert len(ranged) >= 3 and len({each.range for each in ranged}) == len(ranged)
    assert client.tally.stats().bytes_downloaded == len(large)
    http_server.put(f"{folder}/y.bin", large)
    # parts and the stream fail now and then, and both are mended without beginning anew
    web.set_faults(Fault("reset", share=0.3, attempts=(1,)), Fault("status", share=0.3, attempts=(1, 2)), seed=3)
    assert fetch(client, f"{web.endpoint}/{folder}/y.bin") == right
    http_server.put(f"{folder}/z.bin", large)
    web.set_faults(Fault("status", key="z.bin", method="GET", status=416, attempts=(1, 2, 3, 4)))
    with pytest.raises(FetchError, match="416"):
        fetch(client, f"{web.endpoint}/{folder}/z.bin")


def test_parts_of_two_versions_are_never_mixed(
    start: Start, web: FaultyProxy, http_server: HTTPServer, new_name: Callable[[], str], large: bytes
) -> None:
    folder, other = new_name(), large[::-1]
    http_server.put(f"{folder}/x.bin", large)
    web.set_faults(Fault("delay", key="x.bin", attempts=(1,), seconds=0.5))
    client = start(timeout_s=10.0)
    (ticket,) = client.submit([[(f"{web.endpoint}/{folder}/x.bin", None)]])
    fetching.until(lambda: any(each.range for each in web.exchanges()))  # the first answer came, of the old one
    os.utime(http_server.folder / folder / "x.bin", (1, 1))
    http_server.put(f"{folder}/x.bin", other)
    found = digest(ticket.take()[0])
    assert found in {hashlib.md5(each, usedforsecurity=False).hexdigest() for each in (large, other)}


# ------------------------------------------------------------------------------------------------- all at once


def test_faults_on_one_request_in_twenty(
    start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    sizes = [random.Random(i).randrange(1, 20_000) for i in range(300)]
    (tmp_path / "up").mkdir()
    for i, size in enumerate(sizes):
        (tmp_path / "up" / f"{i}.bin").write_bytes(fetching.content(f"{i}.bin", size))
    s3.upload_folder(tmp_path / "up", bucket)
    kinds = ["delay", "stall", "reset", "refuse", "short", "empty", "flip"]
    faults = [Fault(kind, share=0.01, seconds=1.5) for kind in kinds]
    proxy.set_faults(*faults, Fault("status", share=0.02), Fault("status", share=0.02, status=500), seed=7)
    client = start(checksums=True, num_retries=6)
    urls = [f"s3://{bucket}/{i}.bin" for i in range(len(sizes))]
    found = get(client, *urls)
    assert found == [fetching.content(f"{i}.bin", size) for i, size in enumerate(sizes)]
    assert sum(proxy.injected.values()) >= 15 and len(proxy.injected) >= 6
    assert client.tally.stats().bytes_downloaded == sum(sizes)
