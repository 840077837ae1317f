"""The Store contract over the servers that we can have here: SeaweedFS (S3, GCS), Azurite (Azure), Caddy (HTTP)."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import quote

import pytest

from sds.storage import Store, StoreOptions
from sds.storage.cloud import CloudStore
from sds.storage.web import WebStore
from sds.testing import AzureServer, GCSServer, HTTPServer, S3Server
from sds.testing.contracts import StoreContract, Write

BUCKET = "contract"


class TestS3(StoreContract):
    cannot: ClassVar[dict[str, str]] = {}

    @pytest.fixture
    def store(self, s3: S3Server) -> Store:
        s3.create_bucket(BUCKET)
        return CloudStore("s3", BUCKET, StoreOptions(settings=s3.storage_options))


class TestGCS(StoreContract):
    cannot: ClassVar[dict[str, str]] = {}

    @pytest.fixture
    def store(self, gcs: GCSServer) -> Store:
        gcs.create_bucket(BUCKET)
        return CloudStore("gs", BUCKET, StoreOptions(settings=gcs.storage_options))


class TestAzure(StoreContract):
    cannot: ClassVar[dict[str, str]] = {}

    @pytest.fixture
    def store(self, azure: AzureServer) -> Store:
        azure.create_bucket(BUCKET)
        return CloudStore("az", BUCKET, StoreOptions(settings=azure.storage_options))


class TestHTTP(StoreContract):
    cannot: ClassVar[dict[str, str]] = {
        "list": "HTTP has no listing",
        "put": "the store reads only",
    }

    @pytest.fixture
    def store(self, http_server: HTTPServer) -> Store:
        return WebStore("http", http_server.endpoint.removeprefix("http://"), StoreOptions())

    @pytest.fixture
    def write(self, http_server: HTTPServer) -> Write:
        return http_server.put

    def address(self, key: str) -> str:
        return quote(key)
