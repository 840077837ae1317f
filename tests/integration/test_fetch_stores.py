"""What a client can ask beside files: bytes, heads, listings, puts, whole downloads, against a real S3 server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fetching
from sds.errors import IntegrityError, ObjectNotFound, UnsupportedSource
from sds.fetch import FetchClient, FetchOptions
from sds.fetch import client as client_module
from sds.testing import HTTPServer, S3Server


@pytest.fixture
def client(dst: Path, s3: S3Server) -> Iterator[FetchClient]:
    client = FetchClient(FetchOptions(dst=str(dst), settings=s3.storage_options))
    yield client
    client.close()


def test_put_head_read_list_download(
    client: FetchClient, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(100_000)
    url = f"s3://{bucket}/a folder/ünï %41.bin"
    client.put(url, data)
    info = client.head(url)
    assert (info.url, info.size) == (url, len(data)) and info.version
    assert client.read(url) == data
    assert client.read(url, 10, 20) == data[10:20]
    ranges = [(0, 5), (99_990, 100_000), (50, 60)]
    assert client.read_ranges(url, ranges) == [data[a:b] for a, b in ranges]
    assert client.list(f"s3://{bucket}/a folder") == [info]
    monkeypatch.setattr(client_module, "_PART", 7_777)  # in many parts
    assert client.download(url, tmp_path / "whole.bin") == info
    assert (tmp_path / "whole.bin").read_bytes() == data
    (ticket,) = client.submit([[(url, info.version)]])
    assert Path(ticket.take()[0]).read_bytes() == data
    assert ticket.take()[0].endswith(".bin") and ticket.num_bytes == len(data)
    with pytest.raises(ObjectNotFound):
        client.download(f"s3://{bucket}/absent", tmp_path / "absent")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["whole.bin"]


def test_a_download_in_parts_of_an_object_that_changes(
    client: FetchClient, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sds.fetch.client._PART", 10)
    url, read = f"s3://{bucket}/growing", client.read
    client.put(url, b"first" * 5)

    def write_then_read(*args: Any) -> bytes:
        client.put(url, b"other" * 5)
        return read(*args)

    monkeypatch.setattr(client, "read", write_then_read)
    with pytest.raises(IntegrityError, match="changed while it was read"):
        client.download(url, tmp_path / "x")
    assert not list(tmp_path.glob(".x*")) and not (tmp_path / "x").exists()


def test_another_version_is_another_file(client: FetchClient, bucket: str) -> None:
    url = f"s3://{bucket}/changing"
    found = []
    for data in (b"first", b"second one"):
        client.put(url, data)
        (ticket,) = client.submit([[(url, client.head(url).version)]])
        found.append(Path(ticket.take()[0]).read_bytes())
    assert found == [b"first", b"second one"]


def test_listing_is_complete_and_in_byte_order(client: FetchClient, s3: S3Server, bucket: str, tmp_path: Path) -> None:
    keys = [f"root/{a}/{b}/{c}.txt" for a in range(3) for b in "xyz" for c in range(12)]
    keys += ["root/é.txt", "root/Z.txt", "root/a.txt", "root/a/b.txt", "root/a b.txt", "root/~", "root2/x", "other/y"]
    keys += [f"root/many/{i}" for i in range(1100)]  # more than a page
    for key in keys:
        path = tmp_path / "up" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(key.encode())
    s3.upload_folder(tmp_path / "up", bucket)
    below = sorted((key for key in keys if key.startswith("root/")), key=str.encode)
    for url in (f"s3://{bucket}/root", f"s3://{bucket}/root/"):
        found = client.list(url)
        assert [info.url for info in found] == [f"s3://{bucket}/{key}" for key in below]
        assert [info.size for info in found] == [len(key.encode()) for key in below]
    assert len(client.list(f"s3://{bucket}")) == len(keys)
    assert client.list(f"s3://{bucket}/nothing/here") == []


def test_listing_goes_side_by_side(s3_logged: S3Server, dst: Path, tmp_path: Path) -> None:
    for a in range(20):
        (tmp_path / "up" / f"f{a}").mkdir(parents=True)
        (tmp_path / "up" / f"f{a}" / "x").write_bytes(b"x")
    s3_logged.upload_folder(tmp_path / "up", "side-by-side")
    client = FetchClient(FetchOptions(dst=str(dst), settings=s3_logged.storage_options))
    before = len(s3_logged.request_log())
    assert len(client.list("s3://side-by-side")) == 20
    lists = [each for each in s3_logged.request_log()[before:] if "list-type=2" in each.target]
    assert len(lists) >= 20  # one for each folder, so that they can go at once
    client.close()


def test_http_is_read_and_cannot_be_listed(client: FetchClient, http_server: HTTPServer) -> None:
    http_server.put("plain/x.bin", b"0123456789")
    url = http_server.url("plain/x.bin")
    assert client.head(url).size == 10
    assert client.read(url) == b"0123456789"
    assert client.read(url, 2, 5) == b"234"
    with pytest.raises(UnsupportedSource):
        client.list(http_server.url("plain"))
    with pytest.raises(OSError, match="read only"):
        client.put(url, b"x")


def test_local_files_stay_where_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a b.txt"
    file.write_bytes(b"0123456789")
    client = FetchClient(FetchOptions(dst=str(tmp_path / "dst")))
    (ticket,) = client.submit([[(str(file), None), (file.as_uri(), None)]])
    assert ticket.take() == [str(file), str(file)] and not ticket.is_leased
    assert (client.read(str(file)), client.read(file.as_uri(), 2, 4)) == (b"0123456789", b"23")
    assert client.head(str(file)).size == 10
    assert client.download(str(file), tmp_path / "copy").size == 10
    assert client.current_link() is None and not (tmp_path / "dst").exists()  # nothing was started
    with pytest.raises(ObjectNotFound):
        client.head(str(tmp_path / "absent"))


def test_mixed_tickets(client: FetchClient, bucket: str, tmp_path: Path, http_server: HTTPServer) -> None:
    local = tmp_path / "local.txt"
    local.write_bytes(b"local")
    client.put(f"s3://{bucket}/remote", b"remote")
    http_server.put("mixed/web", b"web")
    (ticket,) = client.submit(
        [[(f"s3://{bucket}/remote", None), (str(local), None), (http_server.url("mixed/web"), None)]]
    )
    assert [Path(path).read_bytes() for path in ticket.take()] == [b"remote", b"local", b"web"]
    ticket.release()
    ticket.release()


def test_credentials_from_the_environment(
    s3: S3Server, bucket: str, dst: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the asking process's, not those of whoever started the server."""
    s3.put(bucket, "key", b"data")
    stranger = FetchClient(FetchOptions(dst=str(dst), settings={"endpoint": s3.endpoint, "access_key_id": "x"}))
    with pytest.raises(OSError):
        stranger.read(f"s3://{bucket}/key")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    monkeypatch.setenv("AWS_REGION", s3.region)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    client = FetchClient(FetchOptions(dst=str(dst)))
    assert client.read(f"s3://{bucket}/key") == b"data"
    assert len(fetching.server_pids(dst)) == 1
    client.close()
    stranger.close()
