"""Signatures of S3 (version 4) and Azure (shared key) requests, enough to upload test data."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from email.utils import formatdate
from urllib.parse import urlsplit

__all__ = ["sign_azure", "sign_s3"]


def sign_s3(method: str, url: str, access_key: str, secret_key: str, region: str) -> dict[str, str]:
    """Headers that sign a request without query by AWS's Signature Version 4, its body left out of the signature."""
    parts = urlsplit(url)
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    payload = "UNSIGNED-PAYLOAD"
    names = "host;x-amz-content-sha256;x-amz-date"
    listed = f"host:{parts.netloc}\nx-amz-content-sha256:{payload}\nx-amz-date:{now}\n"
    canonical = "\n".join([method, parts.path, "", listed, names, payload])
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secret_key}".encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {"x-amz-content-sha256": payload, "x-amz-date": now, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}


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
