"""The Store contract over the servers that we can have here: SeaweedFS (S3, GCS), Azurite (Azure), Caddy (HTTP)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import quote

import pytest

from sds.errors import AccessDenied, FetchError, ObjectNotFound, SdsError
from sds.storage import Store, StoreOptions, Stores
from sds.storage.cloud import CloudStore
from sds.storage.web import WebStore
from sds.testing import AzureServer, GCSServer, HTTPServer, S3Server
from sds.testing.contracts import StoreContract, Write

BUCKET = "contract"


class TestS3(StoreContract):
    cannot: ClassVar[dict[str, str]] = {"name:backslash": "SeaweedFS turns a backslash into a slash; S3 does not"}

    @pytest.fixture
    def store(self, s3: S3Server) -> Store:
        s3.create_bucket(BUCKET)
        return CloudStore("s3", BUCKET, StoreOptions(settings=s3.storage_options))


class TestGCS(StoreContract):
    cannot: ClassVar[dict[str, str]] = {"name:backslash": "SeaweedFS turns a backslash into a slash; GCS does not"}

    @pytest.fixture
    def store(self, gcs: GCSServer) -> Store:
        gcs.create_bucket(BUCKET)
        return CloudStore("gs", BUCKET, StoreOptions(settings=gcs.storage_options))


class TestAzure(StoreContract):
    cannot: ClassVar[dict[str, str]] = {"name:backslash": "Azurite turns a backslash into a slash"}

    @pytest.fixture
    def store(self, azure: AzureServer) -> Store:
        azure.create_bucket(BUCKET)
        return CloudStore("az", BUCKET, StoreOptions(settings=azure.storage_options))


class TestHTTP(StoreContract):
    cannot: ClassVar[dict[str, str]] = {
        "list": "HTTP has no listing",
        "put": "the store reads only",
        "name:a//b": "Caddy takes two slashes for one; what a path means is the server's choice",
        "name:b/": "Caddy serves a file under its name with a slash, too",
        "name:a/b/": "Caddy serves a file under its name with a slash, too",
    }

    @pytest.fixture
    def store(self, http_server: HTTPServer) -> Store:
        return WebStore("http", http_server.endpoint.removeprefix("http://"), StoreOptions())

    @pytest.fixture
    def write(self, http_server: HTTPServer) -> Write:
        return http_server.put

    def address(self, key: str) -> str:
        return quote(key)


@pytest.mark.parametrize(
    "key",
    [
        "plain/a-b_c.d~e",
        "a+b",
        "a%2Bb",  # S3's own http interface takes + for a space
        "a&b=c;d,e",
        "a%26b",
        "it's(1)!$*",
        "a%20b",
        "caf%C3%A9",
        "caf%c3%a9",
        "caf%E9",  # Latin-1
        "%7Ea",
        "a%2Fb",
        "a[0]",
        "a%5B0%5D",
        "a%09b",
        "a?b=c%2Fd&e=%20",
    ],
)
def test_a_url_is_asked_for_as_it_was_written(http_server: HTTPServer, key: str) -> None:
    store = WebStore("http", http_server.endpoint.removeprefix("http://"), StoreOptions())
    before = len(http_server.request_log())
    for verb in (store.open, store.head, lambda address: store.read(address, [(0, 1)])):
        with pytest.raises((FileNotFoundError, FetchError)):
            verb(key)
    asked = [request.target.replace("%C3%A9", "%c3%a9") for request in http_server.request_log()[before:]]
    # the case of hexadecimal digits is all that may differ
    assert asked == [f"/{key}".replace("%C3%A9", "%c3%a9")] * 3


def refused_s3(server: S3Server) -> dict[str, Any]:
    return {**server.storage_options, "secret_access_key": "wrong"}


def refused_azure(server: AzureServer) -> dict[str, Any]:
    return {"az": {**server.storage_options["az"], "account_key": "d3Jvbmc="}}


def ask_everything(url: str, options: StoreOptions) -> list[Callable[[], Any]]:
    stores = Stores()
    verbs: list[Callable[[Store, str], Any]] = [
        lambda store, key: store.open(key),
        lambda store, key: store.head(key),
        lambda store, key: store.read(key, [(0, 1)]),
        lambda store, key: store.put(key, b"x"),
        lambda store, key: list(store.list_all("")),
        lambda store, key: store.list_folder(""),
    ]
    return [lambda verb=verb: stores.call(url, options, verb) for verb in verbs]  # type: ignore[misc]


def test_wrong_credentials_are_denied_by_s3(s3: S3Server) -> None:
    s3.create_bucket(BUCKET)
    s3.put(BUCKET, "key", b"data")
    for ask in ask_everything(f"s3://{BUCKET}/key", StoreOptions(settings=refused_s3(s3))):
        with pytest.raises(AccessDenied, match="hint: "):
            ask()


def test_no_credentials_are_denied_by_s3_and_let_in_when_it_is_open(s3: S3Server) -> None:
    s3.create_bucket(BUCKET)
    s3.put(BUCKET, "key", b"data")
    for ask in ask_everything(
        f"s3://{BUCKET}/key", StoreOptions(settings={"endpoint": s3.endpoint, "anonymous": True})
    ):
        with pytest.raises(AccessDenied, match=r"leave storage_options=\{'anonymous': True\} out"):
            ask()
    with S3Server(anonymous=True) as public:
        public.create_bucket(BUCKET)
        public.put(BUCKET, "key", b"data")
        options = StoreOptions(settings={"endpoint": public.endpoint, "anonymous": True})
        for ask in ask_everything(f"s3://{BUCKET}/key", options):
            ask()


def test_wrong_credentials_are_denied_by_azure(azure: AzureServer) -> None:
    azure.create_bucket(BUCKET)
    azure.put(BUCKET, "key", b"data")
    for ask in ask_everything(f"az://{BUCKET}/key", StoreOptions(settings=refused_azure(azure))):
        with pytest.raises(AccessDenied, match="hint: "):
            ask()


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_missing_bucket_is_not_found(scheme: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue({"s3": "s3", "gs": "gcs", "az": "azure"}[scheme])
    options = StoreOptions(settings=server.storage_options)
    for ask in ask_everything(f"{scheme}://no-such-bucket/key", options)[:3]:
        with pytest.raises(ObjectNotFound, match=f"there is no bucket {scheme}://no-such-bucket: "):
            ask()
    server.create_bucket(BUCKET)
    for ask in ask_everything(f"{scheme}://{BUCKET}/no-such-key", options)[:2]:
        with pytest.raises(ObjectNotFound, match=f"the bucket {scheme}://{BUCKET} exists: "):
            ask()


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "http"])
def test_a_server_that_is_gone_is_an_error_after_the_retries(scheme: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        place = f"127.0.0.1:{held.getsockname()[1]}"
        keys = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
        settings: dict[str, Any] = {
            "s3": {"endpoint": f"http://{place}", **keys},
            "gs": {"endpoint": f"http://{place}", "anonymous": True},
            "az": {"endpoint": f"http://{place}/sds", "account_name": "sds", "account_key": "d3Jvbmc="},
        }
        url = f"http://{place}/key" if scheme == "http" else f"{scheme}://bucket/key"
        retries = []
        with pytest.raises(SdsError, match="hint: ") as caught:
            Stores().call(
                url,
                StoreOptions(settings=settings, num_retries=2),
                lambda store, key: store.head(key),
                lambda: retries.append(1),
            )
        assert isinstance(caught.value, FetchError)
        assert len(retries) == 2
