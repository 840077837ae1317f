"""Signatures of Azure requests (shared key), enough to upload test data."""

from __future__ import annotations

import base64
import hmac
from email.utils import formatdate
from urllib.parse import urlsplit

__all__ = ["sign_azure"]


def sign_azure(method: str, url: str, account: str, account_key: str, length: int, *, is_blob: bool) -> dict[str, str]:
    """Headers that sign the making of a blob or container by Azure's Shared Key."""
    parts = urlsplit(url)
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    if is_blob:
        headers["x-ms-blob-type"] = "BlockBlob"
    listed = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    query = "".join(f"\n{pair.replace('=', ':')}" for pair in parts.query.split("&") if pair)
    standard = ["", "", str(length or ""), "", "", "", "", "", "", "", ""]  # Content-Encoding ... Range
    text = "\n".join([method, *standard, f"{listed}/{account}{parts.path}{query}"])
    signature = base64.b64encode(hmac.digest(base64.b64decode(account_key), text.encode(), "sha256")).decode()
    return {**headers, "Authorization": f"SharedKey {account}:{signature}"}
