"""Servers that mean harm: redirects out of https, to files, and answers that would unpack to gigabytes."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import fetching
from fetching import RawServer, response
from sds.errors import FetchError, SdsError
from sds.fetch import FetchClient, FetchOptions
from sds.testing import Fault, FaultyProxy, HTTPServer

BODY = b"0123456789" * 100
PATHS = ["x.bin", "x.bin?query=1"]  # through obstore, and through urllib3


@pytest.fixture
def client(dst: Path, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[FetchClient]:
    """A client whose fetch server trusts the certificate."""
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    client = FetchClient(FetchOptions(dst=str(dst), num_retries=0, timeout_s=5.0))
    yield client
    client.close()


@pytest.mark.parametrize("path", PATHS)
def test_redirects_never_leave_https(
    client: FetchClient,
    certificate: tuple[str, str],
    http_server: HTTPServer,
    new_name: Callable[[], str],
    path: str,
) -> None:
    folder = new_name()
    http_server.put(f"{folder}/x.bin", BODY)
    plain = http_server.url(f"{folder}/x.bin")
    with (
        FaultyProxy(http_server.endpoint, certificate=certificate) as secure,
        FaultyProxy(http_server.endpoint) as open_,
    ):
        url = f"{secure.endpoint}/{folder}/{path}"
        assert fetching.get(client, url) == BODY  # https itself works
        open_.set_faults(Fault("redirect", location=f"{secure.endpoint}/{folder}/x.bin"))
        assert fetching.get(client, f"{open_.endpoint}/{folder}/{path}") == BODY  # up is fine
        for location in (plain, "file:///etc/hostname", "//127.0.0.1:1/x", "ftp://127.0.0.1/x"):
            secure.set_faults(Fault("redirect", location=location))
            before = http_server.requests(f"/{folder}/x.bin")
            with pytest.raises(SdsError):
                fetching.get(
                    client, f"{url}{'&' if '?' in url else '?'}to={len(location)}" if "?" in path else f"{url}.other"
                )
            assert http_server.requests(f"/{folder}/x.bin") == before, location
        for location in ("file:///etc/hostname", "FILE:/etc/hostname"):
            open_.set_faults(Fault("redirect", location=location))
            with pytest.raises(SdsError):
                fetching.get(client, f"{open_.endpoint}/{folder}/other-{path}")


def test_a_certificate_that_nobody_trusts(dst: Path, certificate: tuple[str, str], http_server: HTTPServer) -> None:
    client = FetchClient(FetchOptions(dst=str(dst), num_retries=0, timeout_s=5.0))
    with FaultyProxy(http_server.endpoint, certificate=certificate) as secure:
        for path in PATHS:
            with pytest.raises(FetchError, match="certificate"):
                fetching.get(client, f"{secure.endpoint}/{path}")
    client.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_bomb_of_zeros_is_kept_as_it_was_sent(client: FetchClient, path: str) -> None:
    bomb = gzip.compress(gzip.compress(bytes(200 * 2**20), 9), 9)
    with RawServer(lambda _: response("200 OK", bomb, Content_Encoding="gzip, gzip")) as server:
        assert fetching.get(client, f"{server.url}/{path}") == bomb
        assert client.read(f"{server.url}/{path}") == bomb
    (pid,) = fetching.server_pids(Path(client.options.dst))
    assert psutil.Process(pid).memory_info().rss < 200 * 2**20


def test_an_endless_body_ends(client: FetchClient) -> None:
    """A body without a length is taken up to a limit, and no further."""
    piece = b"%x\r\n" % 2**20 + bytes(2**20) + b"\r\n"
    endless = piece * 260
    with (
        RawServer(lambda _: response("200 OK", endless, None, Transfer_Encoding="chunked")) as server,
        pytest.raises(FetchError, match="unknown length passes") as caught,
    ):
        fetching.get(client, f"{server.url}/x.bin")
    assert "Content-Length" in str(caught.value)
