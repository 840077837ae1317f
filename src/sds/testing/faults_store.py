"""FaultyStore: a Store that fails by the same scripts as FaultyProxy, without a network.

What a client library would raise is raised here as it is: errors are translated and retried by whoever calls.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from sds.errors import IntegrityError, OptionError
from sds.storage import Body, Buffer, Request, Store
from sds.storage.failures import BadStatus
from sds.testing.faults import Fault, Script
from sds.types import ObjectInfo

__all__ = ["FaultyStore"]

T = TypeVar("T")


class FaultyStore:
    """A store in front of another one, which fails as told.

    Args:
        store: the one that has the objects.
        faults: what goes wrong, tried in this order; `method` is GET for open and read, HEAD, LIST or PUT.
        seed: decides which requests meet faults that have a share.
    """

    def __init__(self, store: Store, faults: Sequence[Fault] = (), seed: int = 0) -> None:
        if any(fault.kind == "redirect" for fault in faults):
            raise OptionError("a store has no redirects", hint="use FaultyProxy")
        self._store = store
        self.script = Script(faults, seed)

    @property
    def injected(self) -> Counter[str]:
        """How many faults of each kind were injected."""
        return self.script.injected

    def open(self, key: str, span: tuple[int, int] | None = None) -> Body:
        """Begins to get an object, or a part of it."""
        fault = self._begin("GET", key, "" if span is None else f"{span[0]}-{span[1]}")
        body = self._store.open(key, span)
        return body if fault is None or fault.kind == "delay" else _spoiled(body, fault)

    def request(self, key: str) -> Request | None:  # noqa: ARG002 (the contract's signature)
        """None: whoever asks in another way would meet no faults."""
        return None

    def read(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """The bytes of several ranges; every fault of the body is a reset."""
        fault = self._begin("GET", key, repr(list(ranges)))
        if fault is not None and fault.kind != "delay":
            raise ConnectionResetError("injected")
        return self._store.read(key, ranges)

    def head(self, key: str) -> ObjectInfo:
        """Size and version of an object."""
        self._begin("HEAD", key)
        return self._store.head(key)

    def list_all(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """All objects below a prefix."""
        self._begin("LIST", prefix)
        return self._store.list_all(prefix)

    def list_folder(self, prefix: str) -> tuple[list[str], list[ObjectInfo]]:
        """The folders and objects directly below a prefix."""
        self._begin("LIST", prefix)
        return self._store.list_folder(prefix)

    def put(self, key: str, data: Buffer) -> None:
        """Writes an object, whole."""
        self._begin("PUT", key)
        self._store.put(key, data)

    def _begin(self, method: str, key: str, range: str = "") -> Fault | None:
        fault = self.script.choose(method, key, range)
        if fault is None:
            return None
        if fault.kind == "delay":
            time.sleep(fault.seconds)
        elif fault.kind == "refuse":
            raise ConnectionRefusedError("injected: Connection refused")
        elif fault.kind == "status":
            raise BadStatus(fault.status, fault.retry_after_s)
        return fault


def _spoiled(body: Body, fault: Fault) -> Body:
    data = b"".join(bytes(chunk) for chunk in body.chunks)
    half = len(data) // 2
    if fault.kind == "empty":
        return body._replace(size=0, chunks=iter(()))
    if fault.kind == "flip":
        return body._replace(chunks=iter([fault.flipped(data)]))
    if fault.kind in ("short", "long") and fault.matching:
        other = data[:half] if fault.kind == "short" else data + bytes(fault.num_bytes)
        return body._replace(size=len(other), chunks=iter([other]))
    return body._replace(chunks=_breaking(data, fault))


def _breaking(data: bytes, fault: Fault) -> Iterator[bytes]:
    """The first half, and then what the fault says."""
    half = len(data) // 2
    yield data[:half]
    if fault.kind == "stall":
        time.sleep(fault.seconds)
        yield data[half:]
    elif fault.kind == "reset":
        raise ConnectionResetError("injected")
    elif fault.kind == "short":
        raise IntegrityError(f"body has {half} bytes where {len(data)} were promised", hint="it is tried again")
    else:
        yield data[half:]  # what is more than was promised is never read
