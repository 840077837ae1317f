"""Foreign errors become ours; what may pass is tried again with growing pauses, what stays is not."""

from __future__ import annotations

import email.utils
from datetime import datetime, timedelta, timezone

import obstore.exceptions as obs
import pytest
import urllib3

from sds.errors import (
    AccessDenied,
    CacheError,
    FetchError,
    FetchTimeout,
    IntegrityError,
    ObjectNotFound,
    OptionError,
    SdsError,
)
from sds.storage import retries as retries_module
from sds.storage.failures import BadStatus, no_credentials, of_status, translate
from sds.storage.headers import retry_after_s
from sds.storage.retries import pause_before, retrying

URL = "https://user:SECRET@host/key?X-Amz-Signature=SECRET"
DUMP = '\n\nDebug source:\nGeneric { source: reqwest::Error { url: "https://h/?sig=SECRET" } }'


@pytest.mark.parametrize(
    ("error", "kind", "may_pass"),
    [
        (FileNotFoundError("x"), ObjectNotFound, False),
        (obs.NotFoundError("x"), ObjectNotFound, False),
        (PermissionError("x"), AccessDenied, False),
        (obs.PermissionDeniedError("x"), AccessDenied, False),
        (obs.UnauthenticatedError("x"), AccessDenied, False),
        (obs.UnknownConfigurationKeyError("x"), OptionError, False),
        (obs.InvalidPathError("x"), FetchError, False),
        (ValueError("x"), FetchError, False),
        (obs.GenericError("status code: 403 Forbidden"), AccessDenied, False),
        (obs.GenericError("status code: 404 Not Found"), ObjectNotFound, False),
        (obs.GenericError("status code: 416 Range Not Satisfiable"), FetchError, False),
        (obs.GenericError("status code: 400 Bad Request"), FetchError, False),
        (obs.GenericError("status code: 500 x"), FetchError, True),
        (obs.GenericError("status code: 503 Slow Down"), FetchError, True),
        (obs.GenericError("status code: 429 x"), FetchError, True),
        (obs.GenericError("status code: 408 x"), FetchError, True),
        (obs.GenericError("error sending request"), FetchError, True),
        (
            obs.GenericError("error sending request\n\nDebug source: retry_timeout: 180s Connection refused"),
            FetchError,
            True,
        ),
        (obs.GenericError("error sending request\n\nDebug source: retry_timeout: 180s"), FetchError, True),
        (obs.GenericError(f"error sending request{DUMP} TimedOut"), FetchTimeout, True),
        (obs.GenericError("operation timed out"), FetchTimeout, True),
        (TimeoutError("x"), FetchTimeout, True),
        (ConnectionResetError("x"), FetchError, True),
        (urllib3.exceptions.ProtocolError("Connection broken: IncompleteRead(5 bytes read)"), FetchError, True),
        (urllib3.exceptions.ReadTimeoutError(None, "/", "Read timed out."), FetchTimeout, True),  # type: ignore[arg-type]
        (obs.GenericError("Missing AccessKeyId in environment"), AccessDenied, False),
        (IntegrityError("short"), IntegrityError, True),
        (FetchTimeout("late"), FetchTimeout, True),
        (CacheError("disk"), CacheError, False),
        (AccessDenied("no"), AccessDenied, False),
    ],
    ids=str,
)
def test_what_becomes_of_an_error(error: Exception, kind: type[SdsError], may_pass: bool) -> None:
    ours, transient, *_ = translate(error, URL)
    assert type(ours) is kind and transient is may_pass
    assert "SECRET" not in str(ours) + repr(ours) + repr(ours.facts)
    if not isinstance(error, SdsError):
        assert ours.hint
        assert kind is OptionError or ours.url == "https://host/key?..."


def test_a_signed_url_inside_a_message_is_redacted() -> None:
    cause = "Error performing GET https://user:SECRET@h/k?sig=SECRET in 5 ms, then http://h/?t=SECRET"
    ours = translate(obs.GenericError(cause + DUMP), URL).error
    assert "SECRET" not in str(ours) and "https://h/k?..." in str(ours)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 411, 416, 418, 501])
def test_statuses_that_stay(status: int) -> None:
    assert of_status(status, "u", "")[1] is False


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_statuses_that_may_pass(status: int) -> None:
    assert of_status(status, "u", "")[1] is True


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(retries_module.time, "sleep", made.append)
    return made


class Attempts:
    """Fails as told, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.number = 0

    def __call__(self) -> str:
        self.number += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_pauses_grow_and_are_jittered(pauses: list[float]) -> None:
    attempts = Attempts(*[TimeoutError()] * 8)
    retries: list[int] = []
    assert retrying(attempts, URL, 8, lambda: retries.append(1)) == "done"
    assert attempts.number == 9 and len(retries) == 8
    nominal = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert all(0.5 * n <= p <= 1.5 * n for n, p in zip(nominal, pauses, strict=True))
    assert len(set(pauses)) == 8


def test_the_last_error_comes_out_as_ours(pauses: list[float]) -> None:
    attempts = Attempts(TimeoutError("first"), ConnectionResetError("second"), TimeoutError("third"))
    with pytest.raises(FetchTimeout, match="third") as caught:
        retrying(attempts, URL, 2)
    assert attempts.number == 3 and len(pauses) == 2 and isinstance(caught.value.__cause__, TimeoutError)


@pytest.mark.parametrize("error", [FileNotFoundError(), PermissionError(), obs.GenericError("status code: 416")])
def test_what_stays_is_tried_once(error: Exception, pauses: list[float]) -> None:
    attempts = Attempts(error)
    with pytest.raises(FetchError):
        retrying(attempts, URL, 5)
    assert attempts.number == 1 and not pauses


def test_no_retries_means_one_attempt(pauses: list[float]) -> None:
    attempts = Attempts(TimeoutError())
    with pytest.raises(FetchTimeout):
        retrying(attempts, URL, 0)
    assert attempts.number == 1 and not pauses


def test_interrupts_pass_untouched() -> None:
    def attempt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retrying(attempt, URL, 5)


def test_a_store_is_left_alone_as_long_as_it_asks(pauses: list[float]) -> None:
    attempts = Attempts(BadStatus(503, 7.0), BadStatus(429, 1e9), BadStatus(503))
    assert retrying(attempts, URL, 3) == "done"
    assert 7.0 <= pauses[0] <= 7.7 and 60.0 <= pauses[1] <= 66.0 and pauses[2] <= 0.6
    assert pause_before(10, 0.001) >= 2.5  # a short wish does not shorten a long pause


@pytest.mark.parametrize(("status", "is_throttled"), [(503, True), (429, True), (500, False), (404, False)])
def test_who_wants_fewer_requests(status: int, is_throttled: bool) -> None:
    assert translate(BadStatus(status), URL).is_throttled is is_throttled
    assert translate(obs.GenericError(f"status code: {status} x"), URL).is_throttled is is_throttled


@pytest.mark.parametrize(
    ("code", "fact"),
    [
        ("SignatureDoesNotMatch", "the secret was refused"),
        ("InvalidAccessKeyId", "not known to the store"),
        ("ExpiredToken", "have expired"),
        ("RequestTimeTooSkewed", "clocks"),
    ],
)
@pytest.mark.parametrize("status", [400, 403])
def test_what_is_wrong_with_the_keys(code: str, fact: str, status: int) -> None:
    cause = f"status code: {status} x: <Error><Code>{code}</Code></Error>"
    ours, may_pass, *_ = translate(obs.GenericError(cause), URL)
    assert isinstance(ours, AccessDenied) and fact in str(ours) and not may_pass and ours.hint


@pytest.mark.parametrize(
    ("cause", "region"),
    [
        ("Received redirect without LOCATION, this normally indicates an incorrectly configured region", "..."),
        (
            "status code: 400 x: <Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is "
            "wrong; expecting 'eu-west-1'</Message><Region>eu-west-1</Region></Error>",
            "'eu-west-1'",
        ),
        ("status code: 301 x: <Error><Code>PermanentRedirect</Code></Error>", "..."),
    ],
)
def test_a_bucket_of_another_region(cause: str, region: str) -> None:
    ours, may_pass, *_ = translate(obs.GenericError(cause), URL)
    assert "another region" in str(ours) and not may_pass
    assert ours.hint is not None and f"storage_options={{'region': {region}}}" in ours.hint


def test_a_machine_without_a_metadata_service_has_no_credentials() -> None:
    cause = "Error performing PUT http://169.254.169.254/latest/api/token in 10s - error sending request"
    ours, may_pass, *_ = translate(obs.GenericError(cause), URL)
    assert isinstance(ours, AccessDenied) and "no credentials were found" in str(ours) and not may_pass


@pytest.mark.parametrize(
    ("url", "word"),
    [("s3://b/k", "access_key_id"), ("gs://b/k", "GOOGLE_APPLICATION_CREDENTIALS"), ("abfs://b/k", "account_key")],
)
def test_each_store_has_its_own_way_to_give_credentials(url: str, word: str) -> None:
    assert word in (no_credentials(url).hint or "")


def test_an_error_of_ours_that_went_through_obstore_comes_out_whole() -> None:
    cause = "for path External AWS credential provider: AccessDenied: access denied: why\nhint: do this"
    ours = translate(obs.UnauthenticatedError(cause + DUMP), URL).error
    assert (ours.message, ours.hint) == ("access denied: why", "do this")


@pytest.mark.parametrize("text", ["InvalidCertificate(UnknownIssuer)", "[SSL: CERTIFICATE_VERIFY_FAILED]"])
def test_a_certificate_that_is_not_trusted_stays_so(text: str) -> None:
    ours, may_pass, *_ = translate(obs.GenericError(f"error sending request\n\nDebug source: {text}"), URL)
    assert "certificate is not trusted" in str(ours) and not may_pass and "SSL_CERT_FILE" in str(ours)


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7.0), (" 2 ", 2.0), ("1.5", 1.5), (None, None), ("soon", None), ("-3", None)]
)
def test_retry_after_in_seconds(text: str | None, seconds: float | None) -> None:
    assert retry_after_s(text) == seconds


def test_retry_after_as_a_date() -> None:
    then = email.utils.format_datetime(datetime.now(timezone.utc) + timedelta(seconds=100))
    found = retry_after_s(then)
    assert found is not None and 90.0 < found <= 100.0
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


ANSWER = "status code: 404 Not Found: <Error>\n  <Code>{}</Code></Error>"


@pytest.mark.parametrize("kind", [obs.GenericError, FileNotFoundError, obs.NotFoundError])
@pytest.mark.parametrize(
    ("url", "code", "part"),
    [
        ("s3://photos/a/b.jpg", "NoSuchBucket", "there is no bucket s3://photos: "),
        ("az://photos/a/b.jpg", "ContainerNotFound", "there is no bucket az://photos: "),
        ("gs://photos/a/b.jpg", "NoSuchKey", "the bucket gs://photos exists: "),
        ("az://photos/a/b.jpg", "BlobNotFound", "the bucket az://photos exists: "),
        ("s3://photos/a/b.jpg", "SomethingElse", "check the bucket, the key and the endpoint; "),
        ("https://photos/a/b.jpg", "SomethingElse", "check the address; "),
    ],
)
def test_a_hint_names_the_part_that_exists(kind: type[Exception], url: str, code: str, part: str) -> None:
    error = translate(kind(ANSWER.format(code)), url).error
    assert isinstance(error, ObjectNotFound) and error.hint is not None and error.hint.startswith(part)


@pytest.mark.parametrize("error", [PermissionError("x"), obs.GenericError("status code: 403 Forbidden")])
def test_who_was_refused_without_credentials_is_not_told_to_try_without(error: Exception) -> None:
    named, anonymous = (translate(error, "s3://b/k", is_anonymous=each).error.hint for each in (False, True))
    assert named is not None and "for public data storage_options={'anonymous': True}" in named
    assert anonymous is not None and "leave storage_options={'anonymous': True} out" in anonymous


def test_a_secret_that_is_refused_is_named_whoever_asks() -> None:
    answer = obs.GenericError("status code: 403 Forbidden: <Code>SignatureDoesNotMatch</Code>")
    assert "the secret was refused" in str(translate(answer, "s3://b/k", is_anonymous=True).error)
