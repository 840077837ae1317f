"""CloudStore: a bucket of S3, GCS or Azure, or an HTTP host, through obstore's sync calls.

Sync calls from threads cost half the CPU of obstore's asyncio calls. obstore's own retries are off: ours count them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import obstore
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from sds.errors import IntegrityError
from sds.storage.options import StoreOptions
from sds.storage.store import Body, Buffer
from sds.types import ObjectInfo

__all__ = ["CloudStore", "bare_tag", "version_of"]

_KINDS: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_WHOLE = 8 * 2**20  # objects up to this size are taken in one piece, larger ones in pieces of it
_NEVER = "86400s"  # a download may take long, as long as bytes keep coming: read_timeout watches that


class CloudStore:
    """One bucket (or host), opened with one set of options."""

    def __init__(self, scheme: str, root: str, options: StoreOptions) -> None:
        settings = options.of(scheme)
        client: dict[str, Any] = {
            "timeout": _NEVER,
            "connect_timeout": f"{round(1000 * min(10.0, options.timeout_s))}ms",
            "read_timeout": f"{round(1000 * options.timeout_s)}ms",
            "allow_http": scheme == "http",  # with False, https is not left by a redirect either
        }
        is_web = scheme in ("http", "https")
        headers = options.headers(f"{scheme}://{root.rpartition('@')[2]}") if is_web else {}
        if headers:
            client["default_headers"] = headers
        shared: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0}}
        if is_web:
            self._store: Any = HTTPStore(f"{scheme}://{root}", **shared)
        else:
            endpoint = options.endpoint(scheme) or "https"
            client["allow_http"] = endpoint.startswith("http://") or bool(settings.get("use_emulator"))
            if scheme == "s3" and options.endpoint("s3"):
                settings.setdefault("endpoint", options.endpoint("s3"))
            self._store = _KINDS[scheme](root, config=settings, **shared)

    def open(self, key: str) -> Body:
        """Begins to get an object; headers are here, the body comes with the chunks."""
        result = obstore.get(self._store, _literal(key))
        meta = result.meta
        size = meta["size"]
        return Body(size, version_of(meta), self._chunks(result, size, key))

    def _chunks(self, result: Any, size: int, key: str) -> Iterator[Buffer]:
        num_bytes = 0
        for chunk in [result.buffer()] if size <= _WHOLE else result.stream(min_chunk_size=_WHOLE):
            num_bytes += len(chunk)
            yield chunk
        if num_bytes != size:
            hint = "the store or a proxy cut the body short; it is tried again"
            raise IntegrityError(f"body has {num_bytes} bytes where {size} were promised: {key}", hint=hint)

    def read(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """The bytes of several ranges, near ones coalesced into one request."""
        starts, stops = [a for a, _ in ranges], [b for _, b in ranges]
        return list(obstore.get_ranges(self._store, _literal(key), starts=starts, ends=stops))

    def head(self, key: str) -> ObjectInfo:
        """Size and version of an object."""
        meta = obstore.head(self._store, _literal(key))
        return ObjectInfo(key, meta["size"], version_of(meta))

    def list_all(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """All objects below a prefix, page by page."""
        for page in obstore.list(self._store, prefix or None, chunk_size=1000):
            yield [_info(meta) for meta in page]

    def list_folder(self, prefix: str) -> tuple[list[str], list[ObjectInfo]]:
        """The folders and objects directly below a prefix."""
        found = obstore.list_with_delimiter(self._store, prefix or None)
        return [f"{p.rstrip('/')}/" for p in found["common_prefixes"]], [_info(meta) for meta in found["objects"]]

    def put(self, key: str, data: Buffer) -> None:
        """Writes an object, whole."""
        obstore.put(self._store, _literal(key), data)


def _literal(key: str) -> str:
    """The key, unless obstore would take it for another: it drops slashes at both ends."""
    if key.startswith("/") or key.endswith("/"):
        raise ValueError("the key begins or ends with a slash")
    return key


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], version_of(meta))


def bare_tag(tag: str) -> str:
    """An ETag without its quotes and the mark of a weak one."""
    return tag.removeprefix("W/").strip('"')


def version_of(meta: Any) -> str:
    """The ETag, else size and time of change: what tells one content of a key from another."""
    tag = meta.get("e_tag")
    return bare_tag(tag) if tag else f"{meta['size']}-{meta['last_modified'].timestamp():.6f}"
