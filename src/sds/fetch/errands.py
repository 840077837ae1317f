"""Errands: what is asked of a store past the cache. A read, head, list or put comes in, its reply goes out, always."""

from __future__ import annotations

from collections.abc import Callable

from sds.errors import FetchError, SdsError
from sds.fetch import protocol as p
from sds.fetch.bodies import gather
from sds.storage import Store, StoreOptions, Stores
from sds.storage.listing import list_below
from sds.types import ObjectInfo
from sds.urls import redact

__all__ = ["run_errand"]

_MAX_READ = p.MAX_FRAME - 2**20


def run_errand(stores: Stores, options: StoreOptions, request: p.Read | p.Head | p.List | p.Put) -> p.Reply:
    """Does what was asked; what goes wrong is a reply too."""
    try:
        return _run(stores, options, request)
    except SdsError as error:
        return p.Failed.of(request.id, error)
    except Exception as error:  # noqa: BLE001 (a process boundary: the client gets an answer, whatever happened)
        url, hint = redact(request.url), "a defect of sds, not of your data: please report it"
        message = f"request failed: {url}: {type(error).__name__}"
        return p.Failed.of(request.id, FetchError(message, hint=hint, url=url))


def _run(stores: Stores, options: StoreOptions, request: p.Read | p.Head | p.List | p.Put) -> p.Reply:
    if isinstance(request, p.Read):
        return p.Parts(request.id, stores.call(request.url, options, _reader(request)))
    if isinstance(request, p.Head):
        info = stores.call(request.url, options, lambda store, key: store.head(key))
        return p.Listing(request.id, [ObjectInfo(request.url, info.size, info.version)])
    if isinstance(request, p.List):
        return p.Listing(request.id, list_below(stores, request.url, options))
    stores.call(request.url, options, lambda store, key: store.put(key, request.data))
    return p.Done(request.id)


def _reader(request: p.Read) -> Callable[[Store, str], list[bytes]]:
    def read(store: Store, key: str) -> list[bytes]:
        if request.ranges is None:
            body = store.open(key)
            if body.size is None:
                return [b"".join(gather(body, request.url, _MAX_READ)[0])]
            if body.size > _MAX_READ:
                raise FetchError(f"object is too large to be read whole: {body.size} bytes", hint="read it in ranges")
            return [b"".join(bytes(chunk) for chunk in body.chunks)]
        return [bytes(part) for part in store.read(key, request.ranges)]

    return read
