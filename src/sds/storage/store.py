"""Store: a place that turns keys into bytes; Stores: the ones that are open, by root and options.

A store's methods take keys inside its root and raise what its library raises; `Stores` hands out the right store for a
URL and is where callers get translated errors and retries.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from sds.storage.options import StoreOptions
from sds.storage.profiles import fill
from sds.storage.retries import retrying
from sds.types import ObjectInfo
from sds.urls import split

__all__ = ["Body", "Request", "Store", "Stores", "Buffer", "bare_tag", "is_other", "version_of"]

T = TypeVar("T")
_MAX_OPEN = 1000  # an index may name millions of hosts
Buffer = Any  # anything with the buffer protocol: bytes, memoryview, obstore's Bytes (typing.Buffer is Python 3.12)


class Body(NamedTuple):
    """An open object, or a part of one.

    Attributes:
        size: of what is to be read; None if the server does not say.
        version: of the object.
        chunks: the bytes, to be read once.
        total: size of the object, if this is a part of it.
        digest: the MD5 that it should have, as hex digits, if the store says so.
        storage_class: of the object, in small letters, if the store says so.
    """

    size: int | None
    version: str
    chunks: Iterator[Buffer]
    total: int | None = None
    digest: str | None = None
    storage_class: str = "standard"


class Request(NamedTuple):
    """How anybody may get an object: its whole address, which may carry a signature, and header lines."""

    url: str
    headers: tuple[str, ...] = ()


_NO_TAG = re.compile(r"\d+-(.*[.: ].*)?")  # size and time of change, which a listing and a header spell in other ways


def bare_tag(tag: str) -> str:
    """An ETag without its quotes and the mark of a weak one."""
    return tag.removeprefix("W/").strip('"')


def version_of(meta: Any) -> str:
    """The ETag, else size and time of change: what tells one content of a key from another."""
    tag = meta.get("e_tag")
    return bare_tag(tag) if tag else f"{meta['size']}-{meta['last_modified'].timestamp():.6f}"


def is_other(version: str, expected: str | None) -> bool:
    """Whether an object is surely another one than the one expected: both have a tag, and the tags differ."""
    if not version or not expected or _NO_TAG.fullmatch(version) or _NO_TAG.fullmatch(expected):
        return False
    return version != expected


class Store(Protocol):
    """What a place must be able to do. Keys are literal; `prefix` is "" or ends in "/"."""

    def open(self, key: str, span: tuple[int, int] | None = None) -> Body:
        """Begins to get an object, or its bytes [start, stop), fewer if it ends before that.

        Raises:
            UnsupportedSource: the server gives no parts of objects.
        """
        ...

    def request(self, key: str) -> Request | None:
        """How a plain client may get an object; None if only this store can, or not just now.

        Nobody is asked, unless keys that the machine's cloud gives have to be renewed.
        """
        ...

    def read(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """The bytes of several [start, stop) ranges."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """Size and version of an object; `url` is left to the caller and holds the key."""
        ...

    def list_all(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """All objects below a prefix, page by page, in any order; `url` holds the key."""
        ...

    def list_folder(self, prefix: str) -> tuple[list[str], list[ObjectInfo]]:
        """The folders (prefixes) and objects directly below a prefix."""
        ...

    def put(self, key: str, data: Buffer) -> None:
        """Writes an object, whole."""
        ...


class Stores:
    """The open stores of this process. Safe from many threads."""

    def __init__(self) -> None:
        self._stores: dict[tuple[str, str, int], Store] = {}
        self._known: dict[str, StoreOptions] = {}
        self._lock = threading.Lock()

    def intern(self, options: StoreOptions) -> StoreOptions:
        """One object for all equal options: clients that want the same share their stores and connections.

        What an AWS profile says of region and endpoint is in it: cache keys depend on the endpoint.
        """
        options = msgspec.structs.replace(options, environment=fill(options.environment))
        with self._lock:
            return self._known.setdefault(options.identity(), options)

    def call(
        self,
        url: str,
        options: StoreOptions,
        verb: Callable[[Store, str], T],
        on_retry: Callable[[], Any] = lambda: None,
    ) -> T:
        """Runs `verb(store, key)` with retries; what comes out is a result or one of our errors."""
        return retrying(
            lambda: self.once(url, options, verb),
            url,
            options.num_retries,
            on_retry,
            is_anonymous=options.is_anonymous(url),
        )

    def once(self, url: str, options: StoreOptions, verb: Callable[[Store, str], T]) -> T:
        """Runs `verb(store, key)` one time; what is raised is the client library's own."""
        address = split(url)
        return verb(self._store(address.scheme, address.root, options), address.key)

    def _store(self, scheme: str, root: str, options: StoreOptions) -> Store:
        identity = (scheme, root, id(options))
        with self._lock:
            store = self._stores.get(identity)
            if store is None:
                self._known.setdefault(options.identity(), options)  # it lives as long as its id is used
                kind = _kind_of(scheme)
                with _environment(options.environment):
                    store = self._stores[identity] = kind(scheme, root, options)
                if len(self._stores) > _MAX_OPEN:
                    del self._stores[next(iter(self._stores))]  # whoever uses it still has it
            return store


def _kind_of(scheme: str) -> Any:
    """The class of a store; loaded when the first of its kind is opened, which keeps the start of a server short."""
    if scheme in ("http", "https"):
        from sds.storage.web import WebStore

        return WebStore
    from sds.storage.cloud import CloudStore

    return CloudStore


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Lets obstore's builders see the asking process's cloud variables instead of this one's. Call under a lock."""
    before = {k: v for k, v in os.environ.items() if k.startswith(("AWS_", "GOOGLE_", "AZURE_"))}
    for name in before:
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)
