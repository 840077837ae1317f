"""CloudStore: a bucket of S3, GCS or Azure, or an HTTP host, through obstore's sync calls.

Sync calls from threads cost half the CPU of obstore's asyncio calls. obstore's own retries are off: ours count them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import InvalidPathError
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from sds.errors import IntegrityError, UnsupportedSource
from sds.storage.checksums import digest_of_tag
from sds.storage.credentials import MetadataProbe, provider_of, relies_on_machine
from sds.storage.options import StoreOptions
from sds.storage.store import Body, Buffer, Request, version_of
from sds.types import ObjectInfo

if TYPE_CHECKING:
    from sds.storage.rawlist import RawList

__all__ = ["CloudStore"]

_KINDS: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_WHOLE = 2**20  # objects up to this size are taken in one piece, larger ones in pieces of it: memory that is used again
# obstore's words for status 416, and for a server that answers a range with the whole
_NOT_SATISFIABLE = re.compile(r"\b416\b|Range Not Satisfiable", re.IGNORECASE)
_NOT_PARTIAL = re.compile(r"NotPartial|non-partial|range request not supported", re.IGNORECASE)
_SIGNED_FOR = timedelta(minutes=15)
# what may be set of S3 if an object is to be had by a signed address alone: who asks, and where the bucket is
_SIGNED = {
    *("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "virtual_hosted_style_request"),
    *("role_arn", "role_session_name", "web_identity_token_file", "container_credentials_relative_uri"),
    *("container_credentials_full_uri", "metadata_endpoint", "sts_endpoint"),
}
# variables that obstore heeds, and that a signed address says nothing of
_UNSIGNED = re.compile(
    r"AWS_(SKIP_SIGNATURE|REQUEST_PAYER|S3_EXPRESS|SERVER_SIDE|SSE|PROXY|ALLOW_INVALID)", re.IGNORECASE
)
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
        self._is_web = is_web
        self._shown = f"{scheme}://{root}"
        self._tags_are_digests = scheme in ("s3", "gs")
        self._root, self._settings, self._options = root, settings, options
        self._provider: Any = None  # of credentials
        self._is_s3 = scheme == "s3"
        self._is_signed = scheme == "s3" and _says_nothing_else(root, settings, options.environment)
        self._probe: MetadataProbe | None = None  # asked first, if nobody but the machine can say who asks
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
            self._provider = provider_of(scheme, settings, options.environment)
            if self._provider is not None:
                shared["credential_provider"] = self._provider
            elif relies_on_machine(scheme, settings, options.environment):
                self._probe = MetadataProbe(settings.get("metadata_endpoint"))
            self._store = options.understood(scheme, lambda: _KINDS[scheme](root, config=settings, **shared))

    def _open_store(self) -> Any:
        if self._probe is not None:
            self._probe.check(self._shown)
        return self._store

    def open(self, key: str, span: tuple[int, int] | None = None) -> Body:
        """Begins to get an object, or a part; headers are here, the body comes with the chunks."""
        if span is not None:
            return self._open_part(key, span)
        result = obstore.get(self._open_store(), _literal(key))
        meta = result.meta
        size = meta["size"]
        version = version_of(meta)
        digest = digest_of_tag(version) if self._tags_are_digests else None
        return Body(size, version, self._chunks(result, size, key), None, digest, _class_of(result))

    def request(self, key: str) -> Request | None:
        """How a plain client may get an object: by a signed address, on S3."""
        if not self._is_signed or (self._provider is not None and not self._provider.is_fresh):
            return None
        return Request(obstore.sign(self._store, "GET", _literal(key), _SIGNED_FOR))

    def _open_part(self, key: str, span: tuple[int, int]) -> Body:
        try:
            result = obstore.get(self._open_store(), _literal(key), options={"range": span})
        except Exception as error:
            if span[0] == 0 and _NOT_SATISFIABLE.search(str(error)):  # an empty object has no first byte
                body = self.open(key)
                return body._replace(total=body.size)
            if _NOT_PARTIAL.search(str(error)):
                raise UnsupportedSource("the server gives no parts of objects", hint="it is fetched whole") from error
            raise
        start, stop = result.range
        if start != span[0]:
            raise UnsupportedSource("the server gives other parts than asked for", hint="it is fetched whole")
        chunks = self._chunks(result, stop - start, key)
        return Body(stop - start, version_of(result.meta), chunks, result.meta["size"], None, _class_of(result))

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
        return list(obstore.get_ranges(self._open_store(), _literal(key), starts=starts, ends=stops))

    def head(self, key: str) -> ObjectInfo:
        """Size and version of an object."""
        try:
            meta = obstore.head(self._open_store(), _literal(key))
        except FileNotFoundError as missing:
            told = None if self._is_web else self._ask_why(key)
            if told is None:
                raise
            raise told from missing
        return ObjectInfo(key, meta["size"], version_of(meta))

    def _ask_why(self, key: str) -> FileNotFoundError | None:
        """What a GET says of an object that is not there: in words, which tell a missing bucket from a missing key.

        None if it says anything else: the object may have come meanwhile, and the store may fail or be slow.
        """
        try:
            obstore.get(self._open_store(), _literal(key), options={"range": (0, 1)})
        except FileNotFoundError as error:
            return error
        except Exception:  # noqa: BLE001 (the first answer stands: nothing is there)
            return None
        return None

    def list_all(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """All objects below a prefix, page by page."""
        try:
            for page in obstore.list(self._open_store(), prefix or None, chunk_size=1000):
                yield [_info(meta) for meta in page]
        except InvalidPathError:  # of one object among them
            raw = self._raw_list()
            if raw is None:
                raise
            for listed in raw.pages(prefix):
                yield listed.objects

    def list_folder(self, prefix: str) -> tuple[list[str], list[ObjectInfo]]:
        """The folders and objects directly below a prefix."""
        try:
            found = obstore.list_with_delimiter(self._open_store(), prefix or None)
        except InvalidPathError:
            raw = self._raw_list()
            if raw is None:
                raise
            pages = list(raw.pages(prefix, "/"))
            return [each for page in pages for each in page.folders], [each for page in pages for each in page.objects]
        return [f"{p.rstrip('/')}/" for p in found["common_prefixes"]], [_info(meta) for meta in found["objects"]]

    def _raw_list(self) -> RawList | None:
        """What lists names that obstore cannot say, where there is such a thing."""
        if not self._is_s3:
            return None
        from sds.storage.rawlist import RawList  # here: it needs urllib3, which takes as long to load as all the rest

        raw = RawList(self._root, self._settings, self._options, self._provider)
        return raw if raw.is_possible else None

    def put(self, key: str, data: Buffer) -> None:
        """Writes an object, whole."""
        obstore.put(self._open_store(), _literal(key), data)


def _says_nothing_else(root: str, settings: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Whether nothing is set that changes what a request for an object of S3 must say."""
    is_odd = root.endswith("--x-s3") or any(_UNSIGNED.match(name) for name in environment)
    return not is_odd and settings.keys() <= _SIGNED


def _literal(key: str) -> str:
    """The key, unless obstore would take it for another: it drops slashes at both ends."""
    if key.startswith("/") or key.endswith("/"):
        raise ValueError("the key begins or ends with a slash")
    return key


def _class_of(result: Any) -> str:
    return str(result.attributes.get("Storage-Class") or "standard").lower()


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], version_of(meta))
