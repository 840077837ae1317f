"""RawList: lists an S3 bucket without obstore, for folders that hold names which obstore cannot say (a//b, a/../b).

obstore gives up a whole page for one such name. Here every object is listed; those that cannot be addressed fail when
they are asked for, by themselves and by name. Needs keys that we know of, or none at all: no machine's role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

import urllib3

from sds.signing import sign_s3
from sds.storage.failures import BadStatus
from sds.storage.options import StoreOptions
from sds.storage.store import bare_tag
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
        headers = {}
        if keys is not None:
            id, secret, token = keys
            headers = sign_s3("GET", self._url, id, secret, self._region, query=text, token=token)
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
        ObjectInfo(name(_text(each, "Key")), int(_text(each, "Size") or 0), bare_tag(_text(each, "ETag")))
        for each in root.iter("Contents")
    ]
    return Page(folders, objects)


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(name) or ""
