"""RawList: lists an S3 bucket without obstore, for folders that hold names which obstore cannot say (a//b, a/../b).

obstore gives up a whole page for one such name. Here every object is listed; those that cannot be addressed fail when
they are asked for, by themselves and by name. Needs keys that we know of, or none at all: no machine's role.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_plus, urlsplit
from xml.etree import ElementTree

import urllib3

from sds.storage.failures import BadStatus
from sds.storage.options import StoreOptions
from sds.types import ObjectInfo

__all__ = ["Page", "RawList"]


class Page(NamedTuple):
    """What one answer lists: folders (prefixes) and objects, whose `url` holds the key."""

    folders: list[str]
    objects: list[ObjectInfo]


class RawList:
    """One bucket. `provider` gives the keys if neither settings nor environment have them."""

    def __init__(
        self, bucket: str, settings: Mapping[str, Any], options: StoreOptions, provider: Callable[[], Any] | None
    ) -> None:
        variables = options.environment
        self._settings = settings
        self._variables = variables
        self._provider = provider
        self._region = str(
            settings.get("region") or variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or "us-east-1"
        )
        endpoint = options.endpoint("s3") or f"https://s3.{self._region}.amazonaws.com"
        self._url = f"{endpoint.rstrip('/')}/{quote(bucket)}"
        self._timeout = urllib3.Timeout(connect=min(10.0, options.timeout_s), read=options.timeout_s)

    @property
    def is_possible(self) -> bool:
        """Whether we know with which keys to ask."""
        return self._is_anonymous or self._provider is not None or self._keys() is not None

    @property
    def _is_anonymous(self) -> bool:
        return bool(self._settings.get("skip_signature"))

    def _keys(self) -> tuple[str, str, str | None] | None:
        for place, names in (
            (self._settings, ("access_key_id", "secret_access_key", "session_token")),
            (self._variables, ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")),
        ):
            id, secret, token = (place.get(name) for name in names)
            if id and secret:
                return str(id), str(secret), None if token is None else str(token)
        if self._provider is not None:
            given = self._provider()
            return given["access_key_id"], given["secret_access_key"], given["token"]
        return None

    def pages(self, prefix: str, delimiter: str = "") -> Iterator[Page]:
        """All pages below a prefix; with a delimiter, only what is directly below it."""
        query = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
        if delimiter:
            query["delimiter"] = delimiter
        with urllib3.PoolManager(retries=False) as http:
            while True:
                root = self._ask(http, query)
                yield _parse(root)
                token = _text(root, "NextContinuationToken")
                if not token:
                    return
                query["continuation-token"] = token

    def _ask(self, http: urllib3.PoolManager, query: Mapping[str, str]) -> ElementTree.Element:
        text = "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))
        keys = None if self._is_anonymous else self._keys()
        headers = {} if keys is None else _sign(self._url, text, self._region, *keys)
        if self._settings.get("request_payer"):
            headers["x-amz-request-payer"] = "requester"
        url = f"{self._url}?{text}"
        answer = http.request("GET", url, headers=headers, timeout=self._timeout, redirect=False)
        if answer.status != 200:
            raise BadStatus(answer.status)
        root = ElementTree.fromstring(answer.data)  # noqa: S314 (the user's own store; expat bounds its entities)
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root


def _parse(root: ElementTree.Element) -> Page:
    def name(text: str) -> str:
        return unquote_plus(text) if is_escaped else text

    is_escaped = _text(root, "EncodingType") == "url"
    folders = [name(_text(each, "Prefix")) for each in root.iter("CommonPrefixes")]
    objects = [
        ObjectInfo(name(_text(each, "Key")), int(_text(each, "Size") or 0), _text(each, "ETag").strip('"'))
        for each in root.iter("Contents")
    ]
    return Page(folders, objects)


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(name) or ""


def _sign(url: str, query: str, region: str, id: str, secret: str, token: str | None) -> dict[str, str]:
    """Headers that sign a GET by AWS's Signature Version 4."""
    parts = urlsplit(url)
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = {"host": parts.netloc, "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": now}
    if token is not None:
        headers["x-amz-security-token"] = token
    names = ";".join(sorted(headers))
    listed = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join(["GET", parts.path, query, listed, names, "UNSIGNED-PAYLOAD"])
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secret}".encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    del headers["host"]  # the client says it
    credential = f"Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}
