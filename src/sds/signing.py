"""Signatures of S3 requests: method, URL and keys -> the headers that AWS's Signature Version 4 wants."""

from __future__ import annotations

import hashlib
import hmac
import time
from urllib.parse import urlsplit

__all__ = ["sign_s3"]

_BODY = "UNSIGNED-PAYLOAD"  # the body is left out of the signature


def sign_s3(
    method: str, url: str, access_key: str, secret_key: str, region: str, *, query: str = "", token: str | None = None
) -> dict[str, str]:
    """Headers for a request to a URL without its query; `query` has its parameters in order, escaped."""
    parts = urlsplit(url)
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = {"x-amz-content-sha256": _BODY, "x-amz-date": now}
    if token is not None:
        headers["x-amz-security-token"] = token
    signed = {"host": parts.netloc, **headers}  # the client says the host
    names = ";".join(sorted(signed))
    listed = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    canonical = "\n".join([method, parts.path, query, listed, names, _BODY])
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secret_key}".encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}
