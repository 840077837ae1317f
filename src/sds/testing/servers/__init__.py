"""Real servers on loopback for tests, the demo and benchmarks: SeaweedFS (S3, GCS), Azurite (Azure), Caddy (HTTP).

In comes a folder or nothing, out comes an endpoint that is ready to use; ports are free ones, chosen at the start.
What a server was is gone when its `with` block ends, and also when the process that started it is killed: each server
runs under a keeper, a small process that watches its parent.
"""

from __future__ import annotations

from sds.testing.servers.caddy import HTTPServer, Request
from sds.testing.servers.objects import AzureServer, GCSServer, S3Server
from sds.testing.servers.process import Server, running

__all__ = ["AzureServer", "GCSServer", "HTTPServer", "Request", "S3Server", "Server", "running"]
