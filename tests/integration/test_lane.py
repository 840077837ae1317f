"""The lane of plain requests: what goes that way, and that what goes wrong there comes out as it would elsewhere.

A bucket or host is proved by a first object, which a thread brings; the proxy sees whose requests are which: on S3, the
lane's addresses carry their signature.
"""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import fetching
from fetching import RawServer, response
from sds.errors import FetchError, FetchTimeout, ObjectNotFound, SdsError
from sds.fetch import FetchClient, FetchOptions
from sds.fetch.lane import LARGEST
from sds.storage import express
from sds.storage.express import Express, Unavailable
from sds.storage.ride import Answer, Ride
from sds.storage.store import Request
from sds.testing import Fault, FaultyProxy, HTTPServer, S3Server

BODY = random.Random(0).randbytes(50_000)
Start = Callable[..., FetchClient]


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def start(dst: Path, s3: S3Server, proxy: FaultyProxy, bucket: str, new_name: Callable[[], str]) -> Iterator[Start]:
    """Makes clients that go through the proxy, and have the bucket proved."""
    made: list[FetchClient] = []

    def start(*, is_plain: bool = True, **options: Any) -> FetchClient:
        settings = {**s3.storage_options, "endpoint": proxy.endpoint, **options.pop("settings", {})}
        client = FetchClient(FetchOptions(dst=str(dst), settings=settings, **{"timeout_s": 2.0, **options}))
        made.append(client)
        proxy.set_faults()

        def is_proved() -> bool:
            key = new_name()
            s3.put(bucket, key, BODY)
            assert fetching.get(client, f"s3://{bucket}/{key}") == BODY
            return ways(proxy, f"/{bucket}/{key}") == ["lane"]

        assert fetching.until(is_proved) if is_plain else not is_proved()
        client.tally.drain()
        return client

    yield start
    for client in made:
        client.close()
    proxy.hang_up()


def ways(proxy: FaultyProxy, path: str) -> list[str]:
    """Who asked for a path, one after the other."""
    asked = [each.target for each in proxy.exchanges(path)]
    return ["lane" if "X-Amz-Signature=" in target else "thread" for target in asked]


def test_small_objects_of_a_proved_bucket_go_by_the_lane(
    start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str
) -> None:
    names = [f"a folder/{i}+ü%20.bin" for i in range(50)]
    for name in names:
        s3.put(bucket, name, name.encode() * 100)
    client = start()
    tickets = client.submit([[(f"s3://{bucket}/{name}", None)] for name in names])
    for name, ticket in zip(names, tickets, strict=True):
        assert Path(ticket.take()[0]).read_bytes() == name.encode() * 100
        assert ways(proxy, f"/{bucket}/{name}") == ["lane"]
    stats = client.tally.stats()
    assert (stats.requests, stats.misses, stats.retries, stats.hedges) == (50, 50, 0, 0)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault("status", attempts=(1,), status=403), ["lane", "thread"]),  # it may like headers better
        (Fault("status", attempts=(1,), status=400), ["lane", "thread"]),
        (Fault("empty", attempts=(1,)), ["lane", "thread"]),
        (Fault("status", attempts=(1,), status=503), ["lane", "thread"]),
        (Fault("reset", attempts=(1,)), ["lane", "thread"]),
        (Fault("short", attempts=(1,)), ["lane", "thread"]),
        (Fault("stall", attempts=(1,), seconds=30.0), ["lane", "thread"]),
        (Fault("long", attempts=(1,)), ["lane"]),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "-".join(value),
)
def test_faults_of_the_lane_are_survived(
    start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str, fault: Fault, expected: list[str]
) -> None:
    s3.put(bucket, "x", BODY)
    client = start()
    proxy.set_faults(fault)
    assert fetching.get(client, f"s3://{bucket}/x") == BODY
    assert ways(proxy, f"/{bucket}/x") == expected
    stats = client.tally.stats()
    is_plain = fault.kind in ("reset", "short", "stall") or (fault.kind, fault.status) == ("status", 503)
    assert stats.requests == len(expected) and stats.retries == (is_plain and len(expected) == 2)


def test_an_answer_that_was_not_plain_closes_the_lane_for_a_while(
    start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str
) -> None:
    for name in ("x", "y"):
        s3.put(bucket, name, BODY)
    client = start()
    proxy.set_faults(Fault("status", key="/x$", attempts=(1,), status=403))
    assert [fetching.get(client, f"s3://{bucket}/{name}") for name in ("x", "y")] == [BODY] * 2
    assert ways(proxy, f"/{bucket}/y") == ["thread"]


def test_what_is_not_there_is_asked_for_once(start: Start, proxy: FaultyProxy, bucket: str) -> None:
    client = start()
    with pytest.raises(ObjectNotFound, match="object not found") as caught:
        fetching.get(client, f"s3://{bucket}/absent")
    assert f"the bucket s3://{bucket} exists" in str(caught.value) and "Signature" not in str(caught.value)
    assert ways(proxy, f"/{bucket}/absent") == ["lane"]


@pytest.mark.parametrize(("fault", "error"), [("short", FetchError), ("stall", FetchTimeout)], ids=["short", "stall"])
def test_what_stays_wrong_is_told_as_elsewhere(
    start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str, fault: str, error: type[SdsError]
) -> None:
    s3.put(bucket, "x", BODY)
    client = start(num_retries=0, timeout_s=1.0)
    proxy.set_faults(Fault(fault, seconds=30.0))
    with pytest.raises(error) as caught:
        fetching.get(client, f"s3://{bucket}/x")
    assert f"s3://{bucket}/x" in str(caught.value) and "Signature" not in str(caught.value)


def test_a_store_that_says_when_to_come_back_is_heard(
    start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str
) -> None:
    s3.put(bucket, "x", BODY)
    client = start()
    proxy.set_faults(Fault("status", attempts=(1,), status=503, retry_after_s=1.5))
    began = time.monotonic()
    assert fetching.get(client, f"s3://{bucket}/x") == BODY
    assert time.monotonic() - began >= 1.5  # the first pause of our own would be 0.15 s at most


def test_large_objects_parts_and_checksums_have_threads(
    start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str
) -> None:
    large = random.Random(1).randbytes(LARGEST + 1)
    s3.put(bucket, "large", large)
    s3.put(bucket, "part", BODY)
    s3.put(bucket, "summed", BODY)
    client = start()
    (ticket,) = client.submit([[(f"s3://{bucket}/part", None, (10, 20))]])
    ticket.take()
    assert ways(proxy, f"/{bucket}/part") == ["thread"]
    assert fetching.get(client, f"s3://{bucket}/large") == large
    assert ways(proxy, f"/{bucket}/large") == ["lane", "thread"]  # its length is the first that the lane hears
    s3.put(bucket, "told", large)
    (ticket,) = client.submit([[(f"s3://{bucket}/told", f"{len(large)}-0.000000")]])
    assert Path(ticket.take()[0]).stat().st_size == len(large)
    assert ways(proxy, f"/{bucket}/told") == ["thread"]  # the index says how large it is
    s3.put(bucket, "small", BODY)
    assert fetching.get(client, f"s3://{bucket}/small") == BODY
    assert ways(proxy, f"/{bucket}/small") == ["lane"]
    careful = start(is_plain=False, settings={"checksums": True})
    assert fetching.get(careful, f"s3://{bucket}/summed") == BODY
    assert ways(proxy, f"/{bucket}/summed") == ["thread"]


def test_stragglers_of_the_lane_leave_no_threads_behind(
    start: Start, proxy: FaultyProxy, s3: S3Server, bucket: str, dst: Path
) -> None:
    for i in range(150):
        s3.put(bucket, f"{i}", BODY)
    client = start(num_connections=4, timeout_s=20.0)
    for i in range(147):
        fetching.get(client, f"s3://{bucket}/{i}")
    (pid,) = fetching.server_pids(dst)
    before = psutil.Process(pid).num_threads()
    proxy.set_faults(Fault("stall", attempts=(1,), seconds=6.0))
    began = time.monotonic()
    tickets = client.submit([[(f"s3://{bucket}/{i}", None)] for i in range(147, 150)])
    assert [Path(ticket.take()[0]).read_bytes() for ticket in tickets] == [BODY] * 3
    assert time.monotonic() - began < 5.0 and client.tally.stats().hedges == 3
    fetching.until(lambda: psutil.Process(pid).num_threads() <= before)


def test_hosts_of_the_web_go_by_the_lane_with_their_headers_and_over_tls(
    dst: Path,
    http_server: HTTPServer,
    new_name: Callable[[], str],
    certificate: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    folder = new_name()
    for i in range(20):
        http_server.put(f"{folder}/{i} x.bin", BODY)
    with FaultyProxy(http_server.endpoint, certificate=certificate) as secure:
        settings = {secure.endpoint: {"headers": {"X-Token": "secret"}}}
        client = FetchClient(FetchOptions(dst=str(dst), settings=settings))

        def is_proved() -> bool:
            assert fetching.get(client, f"{secure.endpoint}/{folder}/0%20x.bin?{new_name()}") == BODY
            return "User-Agent: sds" in secure.exchanges()[-1].head

        fetching.until(is_proved)
        tickets = client.submit([[(f"{secure.endpoint}/{folder}/{i}%20x.bin?v=1", None)] for i in range(1, 20)])
        assert [Path(ticket.take()[0]).read_bytes() for ticket in tickets] == [BODY] * 19
        (seen,) = secure.exchanges(f"/{folder}/19 x.bin")
        assert seen.status == 200 and "User-Agent: sds" in seen.head and "X-Token: secret" in seen.head
        # a redirect is followed by those who know which headers may go where
        secure.set_faults(Fault("redirect", location=http_server.url(f"{folder}/1%20x.bin")))
        with pytest.raises(SdsError, match="redirect leaves https"):
            fetching.get(client, f"{secure.endpoint}/{folder}/1%20x.bin?v=2")
        client.close()


# ------------------------------------------------------------------------------------------------ in this process


def test_a_defect_hands_everything_back(http_server: HTTPServer, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Answer] = []
    back: list[int] = []
    may_go = threading.Event()

    def board(items: list[int]) -> list[Any]:
        may_go.wait(10)
        if 0 in items:
            return [(Request(http_server.url("absent")), 30.0, "odd"), (Request("http://h/\ud800"), 30.0, "unsayable")]
        raise RuntimeError("a defect")

    ride: Express[int] = Express(board, answers.extend, back.append, 2, 1000)
    ride.start()
    for number in range(5):
        assert ride.put(number)
    may_go.set()
    fetching.until(lambda: len(back) >= 3)
    assert not ride.put(5) and sorted(back) == [*range(5)][-len(back) :]
    assert {"odd", "unsayable"} == {answer.token for answer in answers}
    assert "all go the other way" in caplog.text
    ride.close()


def test_what_cannot_be_read_leaves_nobody_waiting(http_server: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Answer:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Ride, "end", fail)
    request = Request(http_server.url("absent"))
    assert asked(request, request) == [Answer(request, is_odd=True)] * 2


@pytest.mark.parametrize("where", ["begin", "done"])
def test_a_defect_on_the_way_loses_nothing(
    http_server: HTTPServer, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    answers: list[Answer] = []
    back: list[int] = []

    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    def done(found: list[Answer]) -> None:
        answers.extend(found)
        if where == "done" and len(answers) == 1:
            fail()

    if where == "begin":
        monkeypatch.setattr(Ride, "begin", fail)
    request = Request(http_server.url("absent"))
    ride: Express[int] = Express(lambda items: [(request, 5.0, item) for item in items], done, back.append, 2, 1000)
    for number in range(6):
        ride.put(number)
    ride.start()
    fetching.until(lambda: len(answers) + len(back) == 6)
    assert sorted([*back, *(answer.token for answer in answers)]) == list(range(6))
    ride.close()


def test_without_libcurl_or_with_proxies_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with pytest.raises(Unavailable, match="proxies"):
        Express(lambda _: [], lambda _: None, lambda _: None, 1, 1000)
    monkeypatch.setattr(express, "pycurl", None)
    with pytest.raises(Unavailable, match="pycurl"):
        Express(lambda _: [], lambda _: None, lambda _: None, 1, 1000)


def asked(*requests: Request) -> list[Answer]:
    """Answers to requests, one after the other on one handle."""
    answers: list[Answer] = []
    ride: Express[Request] = Express(
        lambda items: [(item, 5.0, item) for item in items], answers.extend, lambda _: None, 1, 1000
    )
    ride.start()
    for request in requests:
        ride.put(request)
    fetching.until(lambda: len(answers) == len(requests))
    ride.close()
    return sorted(answers, key=lambda answer: requests.index(answer.token))


def test_headers_of_one_host_stay_with_it(http_server: HTTPServer) -> None:
    http_server.put("lane-headers/x", b"x")
    with FaultyProxy(http_server.endpoint) as one, FaultyProxy(http_server.endpoint) as other:
        path = "lane-headers/x"
        mine, theirs = Request(f"{one.endpoint}/{path}", ("X-Token: secret",)), Request(f"{other.endpoint}/{path}")
        answers = asked(mine, theirs, mine)
        assert all(answer.body is not None for answer in answers)
        assert ["secret" in each.head for each in [*one.exchanges(), *other.exchanges()]] == [True, True, False]


@pytest.mark.parametrize(
    ("status", "body", "more", "is_odd", "error"),
    [
        ("502 Bad Gateway", b"<?xml?>\n<Code>Busy</Code> /k?X-Amz-Signature=abc", {}, False, "502: <Code>Busy</Code>$"),
        ("501 Not Implemented", b"no", {}, True, None),
        ("200 OK", b"3\r\nabc\r\n0\r\n\r\n", {"Transfer_Encoding": "chunked"}, True, None),
        ("200 OK", b"3\r\nabc\r\n0\r\nContent-Length: 1\xb2\r\n\r\n", {"Transfer_Encoding": "chunked"}, False, None),
        ("200 OK", b"7d0\r\n" + bytes(2000) + b"\r\n0\r\n\r\n", {"Transfer_Encoding": "chunked"}, None, None),
        ("200 OK", b"", {}, False, None),
        ("200 OK", bytes(2000), {}, False, None),  # too large
        ("302 Found", b"", {"Location": "http://127.0.0.1:1/"}, True, None),
        ("401 Unauthorized", b"", {}, True, None),
    ],
    ids=["502", "501", "chunked", "trailer", "chunked and large", "empty", "large", "redirect", "401"],
)
def test_what_an_answer_means(
    status: str, body: bytes, more: dict[str, str], is_odd: bool | None, error: str | None
) -> None:
    length = None if "Transfer_Encoding" in more else len(body)
    with RawServer(lambda _: response(status, body, length, **more)) as server:
        (answer,) = asked(Request(f"{server.url}/x"))
    assert answer.body is None and (is_odd is None or answer.is_odd == is_odd)  # None: versions of libcurl differ
    if error is None:
        assert answer.error is None
    else:
        assert re.search(error, str(answer.error)) and "Signature" not in str(answer.error)


def test_a_server_that_is_not_there_is_for_others_to_judge() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert asked(Request(f"http://127.0.0.1:{port}/x")) == [
        Answer(Request(f"http://127.0.0.1:{port}/x"), is_odd=True, was_sent=False)
    ]


def test_no_more_at_once_than_allowed(http_server: HTTPServer, new_name: Callable[[], str]) -> None:
    folder = new_name()
    http_server.put(f"{folder}/x", BODY)
    answers: list[Answer] = []
    boarded: list[int] = []

    def board(items: list[int]) -> list[Any]:
        boarded.extend(items)
        assert len(boarded) - len(answers) <= 3
        return [(Request(http_server.url(f"{folder}/x")), 5.0, item) for item in items]

    ride: Express[int] = Express(board, answers.extend, lambda _: None, 3, LARGEST)
    ride.start()
    for number in range(30):
        assert ride.put(number)
    fetching.until(lambda: len(answers) == 30)
    assert sorted(answer.token for answer in answers) == list(range(30))
    assert all(b"".join(answer.body.chunks) == BODY for answer in answers if answer.body is not None)
    assert all(answer.body is not None and answer.error is None for answer in answers)
    ride.close()
