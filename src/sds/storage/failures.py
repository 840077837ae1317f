"""Foreign errors -> ours, and what may be tried again. The one boundary where the errors of client libraries are met.

Comes in: whatever a client library raised. Goes out: a Verdict: a FetchError with url and hint, and whether trying
again may help: yes for what passes (timeouts, resets, 5xx, 429), no for what stays (404, 403, 416, bad options).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import obstore.exceptions as obs

from sds.errors import AccessDenied, FetchError, FetchTimeout, IntegrityError, ObjectNotFound, OptionError, SdsError
from sds.redaction import redact, redact_text
from sds.urls import root_of, split

__all__ = ["BadStatus", "Verdict", "no_credentials", "of_status", "translate"]

_REASON = re.compile(r"(Connection refused|dns error|No route to host|Network is unreachable)")
_CERTIFICATE = re.compile(r"InvalidCertificate|CERTIFICATE_VERIFY_FAILED|invalid peer certificate")
_OURS = re.compile(r"credential provider: AccessDenied: (.+?)(?:\nhint: (.+))?$", re.DOTALL)  # it went through obstore
_STATUS = re.compile(r"status code: (\d{3})")
_TIMEOUT = re.compile(r"(?<!retry_)timed? ?out", re.IGNORECASE)  # obstore says it only in the dump
_CODE = re.compile(r"<Code>(\w+)</Code>")
# where machines of a cloud are told who they are: asked by obstore when nobody gave it credentials
_METADATA = re.compile(r"169\.254\.169\.254|metadata\.google\.internal|/latest/api/token|/latest/meta-data/")
# S3's answers to a request that was signed for, or sent to, another region than the bucket's
_REGION = re.compile(r"incorrectly configured region|PermanentRedirect|AuthorizationHeaderMalformed")
_EXPECTED = re.compile(r"expecting '([\w-]+)'|<Region>([\w-]+)</Region>")
_THROTTLED = (429, 503)
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_NO_KEY = ("NoSuchKey", "BlobNotFound")
# how each store's credentials are given
_WAYS = {
    "s3": "environment, a profile, or storage_options={'access_key_id': ..., 'secret_access_key': ...}",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS names a file with a key; machines of Google's cloud have an account",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and _KEY, or storage_options={'account_name': ..., 'account_key': ...}",
}
# what stores say of credentials, and what to do about it
_REFUSALS = {
    "SignatureDoesNotMatch": ("the secret was refused", "the key's id is known, its secret is another: check both"),
    "InvalidAccessKeyId": ("the key's id is not known to the store", "check access_key_id, and whether endpoint fits"),
    "ExpiredToken": ("the credentials have expired", "get new ones; a profile with credential_process renews them"),
    "InvalidToken": ("the session token was refused", "get a new one, or leave it out with keys that need none"),
    "RequestTimeTooSkewed": ("the clocks of this machine and the store differ", "set this machine's clock"),
}


class BadStatus(Exception):
    """An answer with a status that is none of success, from where its headers can be seen."""

    def __init__(self, status: int, retry_after_s: float | None = None, words: str = "") -> None:
        super().__init__(f"status code: {status}: {words}" if words else f"status code: {status}")
        self.status = status
        self.retry_after_s = retry_after_s


class Verdict(NamedTuple):
    """What an error is to us.

    Attributes:
        error: ours.
        may_pass: whether the request may be tried again.
        is_throttled: whether the store wants fewer requests.
        retry_after_s: how long it wants to be left alone, if it said so.
    """

    error: SdsError
    may_pass: bool
    is_throttled: bool = False
    retry_after_s: float | None = None


def translate(error: Exception, url: str, *, is_anonymous: bool = False) -> Verdict:
    """Our error for a foreign one, and whether the request may be tried again.

    Args:
        error: whatever a client library raised.
        url: what was asked for.
        is_anonymous: whether it was asked for without a signature, because the user wanted that.
    """
    url = redact(url)
    # obstore appends a debug dump; its first paragraph has the cause. A signed URL inside it would leak its signature.
    whole = str(error)
    cause = redact_text(whole.split("\n\nDebug source")[0].strip())
    if isinstance(error, SdsError):
        return Verdict(error, isinstance(error, FetchTimeout | IntegrityError))
    if isinstance(error, BadStatus):
        return of_status(error.status, url, cause, error.retry_after_s)
    if isinstance(error, FileNotFoundError | obs.NotFoundError):
        return Verdict(_missing(url, cause), False)
    if _METADATA.search(cause):
        return Verdict(no_credentials(url), False)
    if _REGION.search(cause):
        return Verdict(_other_region(url, cause), False)
    if isinstance(error, PermissionError | obs.PermissionDeniedError | obs.UnauthenticatedError):
        return Verdict(_denied(url, cause, is_anonymous), False)
    if isinstance(error, obs.UnknownConfigurationKeyError):
        hint = "see the guide on stores"
        return Verdict(OptionError(f"storage_options are not understood: {cause}", hint=hint), False)
    if isinstance(error, obs.InvalidPathError | ValueError):
        hint = "obstore takes no names with //, /./ or /../ in them: rename the object, or leave it out of the index"
        return Verdict(FetchError(f"URL cannot be addressed: {url}: {cause}", hint=hint, url=url), False)
    status = _STATUS.search(cause)
    if status is not None:
        return of_status(int(status[1]), url, cause, is_anonymous=is_anonymous)
    return _of_network(error, url, whole, cause)


def _of_network(error: Exception, url: str, whole: str, cause: str) -> Verdict:
    if _CERTIFICATE.search(whole):
        hint = "is it the right host? One's own authority: SSL_CERT_FILE names a file with its certificate"
        message = f"the server's certificate is not trusted: {url}"
        return Verdict(FetchError(message, hint=hint, url=url), False)
    reason = _REASON.search(whole)
    if reason is not None:  # the dump names it, the first paragraph does not
        hint = "is the endpoint right (storage_options={'endpoint': ...}), and does a server listen there?"
        message = f"object could not be fetched: {url}: {reason[1]}: {cause}"
        return Verdict(FetchError(message, hint=hint, url=url), True)
    if isinstance(error, TimeoutError) or _TIMEOUT.search(whole):
        hint = "raise `timeout`, or look at the network"
        return Verdict(FetchTimeout(f"no answer in time: {url}: {cause}", hint=hint, url=url), True)
    if "Missing" in cause and "Key" in cause:
        return Verdict(no_credentials(url), False)
    hint = "the network or the store failed; raise num_downloading_retries if this passes by itself"
    return Verdict(FetchError(f"object could not be fetched: {url}: {cause}", hint=hint, url=url), True)


def of_status(
    status: int, url: str, cause: str, retry_after_s: float | None = None, *, is_anonymous: bool = False
) -> Verdict:
    """Our error for an HTTP status, and whether it may pass."""
    code = _CODE.search(cause)
    if status in (401, 403) or (status == 400 and code is not None and code[1] in _REFUSALS):
        return Verdict(_denied(url, cause, is_anonymous), False)
    if status in (404, 410):
        return Verdict(_missing(url, cause), False)
    transient = (status >= 500 and status != 501) or status in (408, 425, 429)  # 501: it never knows how
    hint = "the store is overloaded or failing" if transient else "the store refuses this request"
    error = FetchError(f"the store answered {status}: {url}: {cause}", hint=hint, url=url)
    return Verdict(error, transient, status in _THROTTLED, retry_after_s)


def _missing(url: str, cause: str) -> ObjectNotFound:
    """Nothing is there; the hint says which part of the address is, where the store told."""
    bucket = root_of(url)
    code = _CODE.search(cause)
    told = "" if code is None else code[1]
    if told in _NO_BUCKET:
        hint = f"there is no bucket {bucket}: check its name, and the endpoint (storage_options={{'endpoint': ...}})"
        return ObjectNotFound(f"object not found: {url}: there is no such bucket", hint=hint, url=url)
    if told in _NO_KEY:
        hint = f"the bucket {bucket} exists: check the rest of the address; a deleted object must leave the index too"
    else:
        place = "the address" if url.startswith("http") else "the bucket, the key and the endpoint"
        hint = f"check {place}; a deleted object must leave the index too"
    return ObjectNotFound(f"object not found: {url}", hint=hint, url=url)


def _denied(url: str, cause: str, is_anonymous: bool) -> AccessDenied:
    """The store knows who asks, or that nobody in particular does, and says no."""
    ours = _OURS.search(cause)
    if ours is not None:
        return AccessDenied(ours[1], hint=ours[2], url=url)
    code = _CODE.search(cause)
    if code is not None and code[1] in _REFUSALS:
        fact, hint = _REFUSALS[code[1]]
        return AccessDenied(f"access denied: {url}: {fact} ({code[1]})", hint=hint, url=url)
    if is_anonymous:
        hint = (
            "it is not public, and was asked for without credentials: leave storage_options={'anonymous': True} out, "
            "and give credentials that may read this (environment, a profile, or storage_options)"
        )
        return AccessDenied(f"access denied: {url}: nobody may read it anonymously", hint=hint, url=url)
    hint = (
        "set the credentials (environment, or storage_options={'access_key_id': ..., 'secret_access_key': ...}), and "
        "see that they may read this; for public data storage_options={'anonymous': True}"
    )
    return AccessDenied(f"access denied: {url}", hint=hint, url=url)


def _other_region(url: str, cause: str) -> FetchError:
    """The bucket is somewhere else; S3 mostly says where."""
    told = _EXPECTED.search(cause)
    region = repr(told[1] or told[2]) if told else "..."
    hint = f"say where the bucket is: storage_options={{'region': {region}}}, or the variable AWS_REGION"
    return FetchError(f"the bucket is in another region: {url}", hint=hint, url=url)


def no_credentials(url: str) -> AccessDenied:
    """Nobody said who asks: neither options nor environment, nor a profile, nor the machine itself."""
    ways = _WAYS.get(split(url).scheme, _WAYS["s3"])
    hint = f"set the credentials ({ways}); for public data storage_options={{'anonymous': True}}"
    return AccessDenied(f"access denied: no credentials were found: {redact(url)}", hint=hint, url=url)
