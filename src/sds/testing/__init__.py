"""What we ship for tests: real servers on loopback, and contracts that a new part has only to be held against.

`S3Server`, `GCSServer`, `AzureServer` and `HTTPServer` serve while their `with` block runs; `StoreContract` is a test
class for stores; `FaultyProxy` and `FaultyStore` fail by script; `check_resume` stops a loader everywhere and goes on.
Names resolve on first use, so importing the room costs nothing and needs none of the servers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sds.testing.contracts import StoreContract as StoreContract
    from sds.testing.device import SimulatedDevice as SimulatedDevice
    from sds.testing.faults import Fault as Fault
    from sds.testing.faults_proxy import FaultyProxy as FaultyProxy
    from sds.testing.faults_store import FaultyStore as FaultyStore
    from sds.testing.resume import Topology as Topology
    from sds.testing.resume import check_resume as check_resume
    from sds.testing.servers import AzureServer as AzureServer
    from sds.testing.servers import GCSServer as GCSServer
    from sds.testing.servers import HTTPServer as HTTPServer
    from sds.testing.servers import Request as Request
    from sds.testing.servers import S3Server as S3Server

_HOMES = {
    "StoreContract": "sds.testing.contracts",
    "SimulatedDevice": "sds.testing.device",
    "Fault": "sds.testing.faults",
    "FaultyProxy": "sds.testing.faults_proxy",
    "FaultyStore": "sds.testing.faults_store",
    "check_resume": "sds.testing.resume",
    "Topology": "sds.testing.resume",
    "S3Server": "sds.testing.servers",
    "GCSServer": "sds.testing.servers",
    "AzureServer": "sds.testing.servers",
    "HTTPServer": "sds.testing.servers",
    "Request": "sds.testing.servers",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sds.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
