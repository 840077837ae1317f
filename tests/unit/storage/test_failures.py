"""Foreign errors become ours; what may pass is tried again with growing pauses, what stays is not."""

from __future__ import annotations

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
from sds.storage import failures
from sds.storage.failures import of_status, retrying, translate

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
    ours, transient = translate(error, URL)
    assert type(ours) is kind and transient is may_pass
    assert "SECRET" not in str(ours) + repr(ours) + repr(ours.facts)
    if not isinstance(error, SdsError):
        assert ours.hint
        assert kind is OptionError or ours.url == "https://host/key?..."


def test_a_signed_url_inside_a_message_is_redacted() -> None:
    cause = "Error performing GET https://user:SECRET@h/k?sig=SECRET in 5 ms, then http://h/?t=SECRET"
    ours, _ = translate(obs.GenericError(cause + DUMP), URL)
    assert "SECRET" not in str(ours) and "https://h/k?..." in str(ours)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 411, 416, 418])
def test_statuses_that_stay(status: int) -> None:
    assert of_status(status, "u", "")[1] is False


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_statuses_that_may_pass(status: int) -> None:
    assert of_status(status, "u", "")[1] is True


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(failures.time, "sleep", made.append)
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
