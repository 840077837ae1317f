"""Stores and networks that fail: what passes is tried again, what stays is said at once, with a hint.

A redirect from https to http cannot be tried here: there is no TLS server. That obstore is told to refuse plain http
for https URLs, and that our own redirects check the scheme, is held by tests/unit/storage.
"""

from __future__ import annotations

import os
import random
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fetching
from fetching import RawServer, response
from sds.errors import (
    AccessDenied,
    CacheError,
    FetchError,
    FetchTimeout,
    ObjectNotFound,
    OptionError,
    SdsError,
)
from sds.fetch import FetchClient, FetchOptions, launch
from sds.fetch import protocol as p
from sds.fetch.cache import key_of
from sds.testing import HTTPServer, S3Server

BODY = b"0123456789" * 100


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FetchClient]:
    """One client for the tests that do not care whose server it is."""
    folder = tmp_path_factory.mktemp("shared")
    client = FetchClient(FetchOptions(dst=str(folder), num_retries=1, timeout_s=0.3))
    with RawServer(lambda _: response("200 OK")) as server:
        client.read(f"{server.url}/x")  # its server is up, so that no test seems to have left it behind
    yield client
    client.close()
    for pid in fetching.server_pids(folder):
        fetching.kill(pid)


@pytest.fixture
def keeps_nothing(client: FetchClient) -> Iterator[None]:
    """No file is left by the test, neither whole nor in part."""
    before = fetching.scan(Path(client.options.dst))
    yield
    assert fetching.scan(Path(client.options.dst)) == before


# ------------------------------------------------------------------------------------------------ what a store says


def test_wrong_credentials(dst: Path, s3: S3Server, bucket: str) -> None:
    s3.put(bucket, "key", BODY)
    wrong = {**s3.storage_options, "secret_access_key": "WRONG-SECRET"}
    client = FetchClient(FetchOptions(dst=str(dst), settings=wrong))
    with pytest.raises(AccessDenied, match="access denied") as caught:
        fetching.get(client, f"s3://{bucket}/key")
    assert "the secret was refused (SignatureDoesNotMatch)" in str(caught.value) and caught.value.hint
    assert "WRONG" not in str(caught.value)
    for verb in (client.head, client.read, client.list):
        with pytest.raises(AccessDenied):
            verb(f"s3://{bucket}/key")
    right = FetchClient(FetchOptions(dst=str(dst), settings=s3.storage_options))
    for i in range(20):  # who asks for the same at the same time, with the right ones, has it
        s3.put(bucket, f"{i}", BODY)
        (denied,) = client.submit([[(f"s3://{bucket}/{i}", None)]])
        assert fetching.get(right, f"s3://{bucket}/{i}") == BODY
        denied.release()
    right.close()
    client.close()


def test_an_object_that_was_written_to_since_it_was_listed(dst: Path, s3: S3Server, bucket: str) -> None:
    s3.put(bucket, "listed/key", BODY)
    client = FetchClient(FetchOptions(dst=str(dst), settings=s3.storage_options))
    (info,) = client.list(f"s3://{bucket}/listed")
    (ticket,) = client.submit([[(info.url, info.version)]])
    assert Path(ticket.take()[0]).read_bytes() == BODY
    s3.put(bucket, "listed/other", BODY)
    (_, other) = client.list(f"s3://{bucket}/listed")
    s3.put(bucket, "listed/other", BODY[::-1])
    (ticket,) = client.submit([[(other.url, other.version)]])
    with pytest.raises(FetchError, match="not the one that the index names") as caught:
        ticket.take()
    assert "hint:" in str(caught.value) and "open the dataset again" in str(caught.value)
    client.close()


def test_secrets_stay_in_memory(dst: Path, s3: S3Server, bucket: str) -> None:
    s3.put(bucket, "key", BODY)
    client = FetchClient(FetchOptions(dst=str(dst), settings=s3.storage_options))
    assert fetching.get(client, f"s3://{bucket}/key") == BODY
    with pytest.raises(ObjectNotFound):
        fetching.get(client, f"s3://{bucket}/absent")
    secret = s3.secret_key.encode()
    (pid,) = fetching.server_pids(dst)
    places = [*dst.rglob("*"), Path(f"/proc/{pid}/cmdline")]
    places.append(Path(f"/proc/{pid}/environ"))
    for place in places:
        assert not place.is_file() or secret not in place.read_bytes(), place
    assert s3.secret_key not in repr(client.options)
    client.close()


def test_absent_objects_and_buckets(dst: Path, s3: S3Server, bucket: str) -> None:
    own = FetchClient(FetchOptions(dst=str(dst), settings=s3.storage_options))
    for url in (f"s3://{bucket}/absent.jpg", "s3://no-such-bucket-anywhere/key"):
        with pytest.raises(ObjectNotFound, match="object not found") as caught:
            fetching.get(own, url)
        assert caught.value.url == url and caught.value.hint
    own.close()


def test_no_retry_of_what_stays(client: FetchClient) -> None:
    for status, kind in (("404 Not Found", ObjectNotFound), ("403 Forbidden", AccessDenied), ("401 No", AccessDenied)):
        with RawServer(lambda _, status=status: response(status)) as server, pytest.raises(kind):
            fetching.get(client, f"{server.url}/x")
            with pytest.raises(kind):
                fetching.get(client, f"{server.url}/x?query=1")
            assert len(server.targets) == 2
    with RawServer(lambda _: response("416 Range Not Satisfiable")) as server:
        with pytest.raises(FetchError, match="416"):
            client.read(f"{server.url}/x?q=1", 5, 10)
        assert len(server.targets) == 1


def test_a_failing_store_is_asked_again(client: FetchClient) -> None:
    client = FetchClient(client.options)
    answers = [response("503 Slow Down"), response("200 OK", BODY)]
    with RawServer(lambda _: answers.pop(0)) as server:
        assert fetching.get(client, f"{server.url}/x.bin") == BODY
        assert len(server.targets) == 2
    answers = [response("500 Oops"), response("200 OK", BODY)]
    with RawServer(lambda _: answers.pop(0)) as server:
        assert fetching.get(client, f"{server.url}/x.bin?signature=SECRET") == BODY
    stats = client.tally.stats()
    assert (stats.retries, stats.requests, stats.misses) == (2, 4, 2)
    with RawServer(lambda _: response("502 Bad Gateway")) as server:
        with pytest.raises(FetchError, match="502") as caught:
            fetching.get(client, f"{server.url}/x.bin?signature=SECRET")
        assert len(server.targets) == 2
        assert "SECRET" not in str(caught.value) and "SECRET" not in str(caught.value.url)
    client.close()


@pytest.mark.usefixtures("keeps_nothing")
def test_nobody_is_there(client: FetchClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    started = time.monotonic()
    with pytest.raises(FetchError, match=f"127.0.0.1:{port}") as caught:
        fetching.get(client, f"http://127.0.0.1:{port}/x.bin")
    assert caught.value.hint and time.monotonic() - started < 5.0


@pytest.mark.usefixtures("keeps_nothing")
@pytest.mark.parametrize("path", ["x.bin", "x.bin?query=1"])
@pytest.mark.parametrize("silence", ["at once", "after headers", "in the body"])
def test_silence_is_a_timeout(client: FetchClient, path: str, silence: str) -> None:
    head = response("200 OK", b"", len(BODY))
    said = {"at once": None, "after headers": head, "in the body": head + BODY[:500]}[silence]
    with RawServer(lambda _: said, hold=True) as server:
        started = time.monotonic()
        with pytest.raises(FetchTimeout, match="no answer in time"):
            fetching.get(client, f"{server.url}/{path}")
        assert 0.6 <= time.monotonic() - started < 4.0  # two attempts
        assert len(server.targets) == 2


@pytest.mark.usefixtures("keeps_nothing")
@pytest.mark.parametrize("path", ["x.bin", "x.bin?query=1"])
@pytest.mark.parametrize("num_bytes", [0, 500])
def test_short_and_empty_bodies_are_never_kept(client: FetchClient, path: str, num_bytes: int) -> None:
    with RawServer(lambda _: response("200 OK", BODY[:num_bytes], len(BODY))) as server, pytest.raises(FetchError):
        fetching.get(client, f"{server.url}/{path}")
        assert len(server.targets) == 2  # it may pass


@pytest.mark.usefixtures("keeps_nothing")
def test_a_large_body_that_ends_early_leaves_no_part(client: FetchClient) -> None:
    with RawServer(lambda _: response("200 OK", bytes(9_000_000), 20_000_000)) as server, pytest.raises(FetchError):
        fetching.get(client, f"{server.url}/x.bin")


def test_empty_objects_are_objects(client: FetchClient) -> None:
    with RawServer(lambda _: response("200 OK", b"")) as server:
        assert fetching.get(client, f"{server.url}/x.bin") == b""


def test_bodies_without_a_length(client: FetchClient) -> None:
    chunked = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in (BODY[:300], BODY[300:], b""))
    with RawServer(lambda _: response("200 OK", chunked, None, Transfer_Encoding="chunked")) as server:
        assert fetching.get(client, f"{server.url}/x.bin") == BODY
        assert fetching.get(client, f"{server.url}/x.bin?query=1") == BODY
    with RawServer(lambda _: response("200 OK", BODY, None)) as server:  # its end is the end of the connection
        assert fetching.get(client, f"{server.url}/y.bin") == BODY
    cut = chunked[: len(chunked) // 2]
    with (
        RawServer(lambda _: response("200 OK", cut, None, Transfer_Encoding="chunked")) as server,
        pytest.raises(FetchError),
    ):
        fetching.get(client, f"{server.url}/z.bin")


def test_redirects(client: FetchClient, http_server: HTTPServer, new_name: Callable[[], str]) -> None:
    folder = new_name()
    http_server.put(f"{folder}/target.bin", BODY)
    target = http_server.url(f"{folder}/target.bin")
    with RawServer(lambda _: response("302 Found", Location=target)) as server:
        assert fetching.get(client, f"{server.url}/x.bin") == BODY
        assert fetching.get(client, f"{server.url}/x.bin?query=1") == BODY
    with RawServer(lambda path: response("302 Found", Location=path)) as server, pytest.raises(FetchError):
        fetching.get(client, f"{server.url}/round.bin?query=1")
    for place in ("file:///etc/passwd", "ftp://127.0.0.1/x"):
        for path in ("x.bin", "x.bin?query=1"):
            with (
                RawServer(lambda _, place=place: response("302 Found", Location=place)) as server,
                pytest.raises(SdsError),
            ):
                fetching.get(client, f"{server.url}/{path}")


def test_odd_names(client: FetchClient, http_server: HTTPServer, new_name: Callable[[], str]) -> None:
    folder = new_name()
    names = ["a b.bin", "ünï.bin", "per%cent.bin", "a+b.bin", "q?x.bin", "h#x.bin", "a&b=c.bin", "s%2Fx.bin", "~t.bin"]
    for name in names:
        http_server.put(f"{folder}/{name}", name.encode())
    for name in names:
        assert fetching.get(client, http_server.url(f"{folder}/{name}")) == name.encode()
    assert fetching.get(client, f"{http_server.endpoint}/{folder}/a b.bin") == b"a b.bin"  # as people write it
    assert fetching.get(client, f"{http_server.endpoint}/{folder}/ünï.bin") == "ünï.bin".encode()
    with RawServer(lambda target: response("200 OK", target.encode())) as server:
        for target in ("/a?x=1&y=%20z", "/a%2Fb", "/a//b", "/", "/a%2Bb?", "/%E9"):
            assert fetching.get(client, f"{server.url}{target}").decode().rstrip("?") == target.rstrip("?")


def test_urls_that_differ_in_anything_are_different_objects(client: FetchClient) -> None:
    with RawServer(lambda target: response("200 OK", target.encode())) as server:
        targets = ["/a.bin", "/a.bin?v=1", "/a.bin?v=2", "/b/a.bin", "/A.bin"]
        assert [fetching.get(client, server.url + target).decode() for target in targets] == targets
        assert [fetching.get(client, server.url + target).decode() for target in targets] == targets
        assert len(server.targets) == len(targets)


def test_nonsense_urls_fail_alone(client: FetchClient, http_server: HTTPServer, new_name: Callable[[], str]) -> None:
    (good,) = fetching.publish(http_server, new_name(), [1000])
    bad = [
        "foo://x/y",
        "s3://",
        "http://",
        "http://127.0.0.1:99999/x",
        "s3://b/\ud800",
        "file://host/x",
        "/no/such/file",
    ]
    bad += ["http://[/x", "http://a b/x", "s3://bucket", "az://c", "x\0y", "gs:///k"]
    tickets = client.submit([[(url, None)] for url in (*bad, good)])
    for url, ticket in zip(bad, tickets, strict=False):
        with pytest.raises(SdsError):
            ticket.take()
        assert ticket.urls == [url]
    assert fetching.is_right(tickets[-1].take()[0], good, 1000)


def test_the_disk_says_no(dst: Path, http_server: HTTPServer, new_name: Callable[[], str]) -> None:
    """A bucket folder is a link, a file, or in the way: errors of ours, and nothing is written outside."""
    (url,) = fetching.publish(http_server, new_name(), [1000])
    outside = dst.parent / "outside"
    outside.mkdir()
    (dst / "objects").mkdir(parents=True)
    (dst / "objects" / key_of(url, None, None)[:2]).symlink_to(outside)
    client = FetchClient(FetchOptions(dst=str(dst)))
    with pytest.raises(CacheError, match="holds a link"):
        fetching.get(client, url)
    assert not list(outside.iterdir())
    client.close()
    with pytest.raises(CacheError, match="cannot be used"):
        FetchClient(FetchOptions(dst="/proc/no/such/folder")).head(url)
    blocked = dst.parent / "blocked"
    blocked.mkdir()
    (blocked / "objects").symlink_to(outside)
    with pytest.raises(CacheError, match="holds a link"):
        FetchClient(FetchOptions(dst=str(blocked))).head(url)


def test_options_that_cannot_be_said(dst: Path) -> None:
    client = FetchClient(FetchOptions(dst=str(dst), settings={"secret_access_key": object()}))
    with pytest.raises(FetchError, match="request cannot be sent"):
        client.head("s3://bucket/key")
    client = FetchClient(FetchOptions(dst=str(dst), settings={"s3": "AKIA-SECRET"}))
    with pytest.raises(OptionError) as caught:
        client.head("s3://bucket/key")
    assert "SECRET" not in str(caught.value)
    client.close()
    client = FetchClient(FetchOptions(dst=str(dst), settings={"s3": {"no_such_option": 1}}))
    with pytest.raises(OptionError, match="storage_options are not understood"):
        client.head("s3://bucket/key")
    client.close()


# ------------------------------------------------------------------------------------------------- the socket folder


def test_the_socket_folder_is_private(dst: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = launch._runtime_folder()
    assert folder.parent == tmp_path and stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    with pytest.raises(CacheError, match="not this user's alone"):
        launch.connect(str(dst))
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheError, match="not this user's alone"):
        launch.connect(str(dst))
    folder.unlink()
    folder.symlink_to(tmp_path / "nowhere")
    with pytest.raises(CacheError, match="socket folder cannot be made"):
        launch.connect(str(dst))
    folder.unlink()
    if os.getuid() == 0:
        folder.mkdir(mode=0o700)
        os.chown(folder, 12345, 12345)
        with pytest.raises(CacheError, match="not this user's alone"):
            launch.connect(str(dst))


def test_another_users_server_is_refused(dst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = launch.connect(str(dst))
    assert launch.peer_uid(connection) == os.getuid()
    connection.close()
    monkeypatch.setattr(launch, "peer_uid", lambda _: 12345)
    with pytest.raises(CacheError, match="belongs to another user"):
        launch.connect(str(dst))


def test_another_user_is_refused_by_the_server(dst: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be somebody else")
    launch.connect(str(dst)).close()
    folder = launch._runtime_folder()
    address = folder / f"{launch._name_of(str(dst))}.sock"
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(5)
            descriptor = os.open(folder, os.O_PATH)  # while it may: afterwards the folder's mode alone would stop it
            os.chmod(address, 0o777)
            os.setuid(12345)
            sock.connect(f"/proc/self/fd/{descriptor}/{address.name}")
            sock.sendall(p.encode([p.Hello(p.VERSION, FetchOptions(dst=str(dst)), {})]))
            os.write(writer, b"refused" if sock.recv(100) == b"" else b"served")
        except OSError as error:
            os.write(writer, f"refused: {error}".encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 1000).startswith(b"refused")
    os.close(reader)
    os.close(writer)


def test_a_deep_socket_folder(
    dst: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, http_server: HTTPServer, new_name: Callable[[], str]
) -> None:
    (url,) = fetching.publish(http_server, new_name(), [1000])
    deep = tmp_path / ("x" * 100) / "y"
    deep.mkdir(parents=True)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    client = FetchClient(FetchOptions(dst=str(dst)))
    assert fetching.get(client, url) == fetching.content("0.bin", 1000)
    client.close()


def test_nonsense_on_the_socket_harms_nobody(client: FetchClient) -> None:
    dst = Path(client.options.dst)
    rng = random.Random(0)
    with RawServer(lambda target: response("200 OK", target.encode())) as server:
        assert fetching.get(client, f"{server.url}/1") == b"/1"
        hello = p.encode([p.Hello(p.VERSION, FetchOptions(dst=str(dst)), {})])
        early = p.encode([p.Get(1, [(f"{server.url}/2", None)])])
        noise = [rng.randbytes(rng.randrange(1, 200)) for _ in range(50)]
        noise += [b"\xff\xff\xff\xff", b"\0\0\0\1", b"\0\0\0\0", early, hello[:-3], hello + b"\0\0\0\2\x93\xc1"]
        noise += [hello + p.encode([p.Release([5, 6]), p.Want(9), p.Get(7, [])])]
        for words in noise:
            connection = launch.connect(str(dst))
            connection.sendall(words)
            connection.close()
        assert fetching.get(client, f"{server.url}/3") == b"/3"
    assert len(fetching.server_pids(dst)) == 1


def test_answers_that_are_too_large_are_errors(
    client: FetchClient, http_server: HTTPServer, new_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(FetchError, match="too large"):
        patched.setattr(p, "MAX_FRAME", 1000)
        client.put("s3://bucket/key", bytes(1001))
    folder = new_name()
    http_server.put(f"{folder}/x", b"")
    with open(http_server.folder / folder / "x", "wb") as file:
        file.truncate(p.MAX_FRAME + 1)  # sparse
    with pytest.raises(FetchError, match="too large"):
        client.read(http_server.url(f"{folder}/x"))
