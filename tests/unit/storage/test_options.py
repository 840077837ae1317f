"""What the user says to a store: names mapped per scheme, nothing secret shown, endpoints found."""

from __future__ import annotations

from typing import Any

import pytest

from sds.errors import OptionError
from sds.storage import StoreOptions
from sds.storage.cloud import CloudStore

KEYS = {"access_key_id": "ID", "secret_access_key": "SECRET", "session_token": "SECRET"}


def test_flat_options_speak_to_the_store_that_knows_them() -> None:
    options = StoreOptions(settings={**KEYS, "endpoint": "http://e", "region": "r", "anonymous": True})
    assert options.of("s3") == {**KEYS, "endpoint": "http://e", "region": "r", "skip_signature": True}
    assert options.of("az") == {"endpoint": "http://e", "skip_signature": True}
    assert options.of("gs")["base_url"] == "http://e"
    assert options.of("http") == options.of("https") == {}


def test_options_under_a_scheme_are_its_own_and_win() -> None:
    options = StoreOptions(settings={"region": "flat", "s3": {"region": "own", "checksum_algorithm": "SHA256"}})
    assert options.of("s3") == {"region": "own", "checksum_algorithm": "SHA256"}
    assert options.of("az") == {}


@pytest.mark.parametrize(("alias", "scheme"), [("s3a", "s3"), ("gcs", "gs"), ("azure", "az"), ("abfs", "az")])
def test_an_alias_is_its_scheme(alias: str, scheme: str) -> None:
    options = StoreOptions(settings={alias: {"endpoint": "http://e"}})
    assert options.endpoint(scheme) == "http://e"


@pytest.mark.parametrize(
    ("scheme", "spelt", "name"),
    [
        ("s3", "aws_access_key_id", "access_key_id"),
        ("s3", "AWS_ACCESS_KEY_ID", "access_key_id"),
        ("s3", "aws_skip_signature", "skip_signature"),
        ("s3", "aws_endpoint_url", "endpoint"),
        ("s3", "aws_token", "session_token"),
        ("s3", "aws_web_identity_token_file", "web_identity_token_file"),
        ("gs", "google_service_account", "service_account"),
        ("gs", "google_service_account_path", "service_account"),
        ("gs", "service_account_path", "service_account"),
        ("gs", "google_application_credentials", "application_credentials"),
        ("az", "azure_storage_account_key", "account_key"),
        ("az", "azure_storage_access_key", "account_key"),
        ("az", "azure_client_id", "client_id"),
    ],
)
def test_every_spelling_of_a_name_is_one_name(scheme: str, spelt: str, name: str) -> None:
    assert StoreOptions(settings={scheme: {spelt: "x"}}).of(scheme) == {name: "x"}


def test_one_name_in_two_spellings_is_a_contradiction() -> None:
    settings = {"s3": {"access_key_id": "SECRET", "aws_access_key_id": "SECRET"}}
    with pytest.raises(OptionError, match=r"twice: \['access_key_id', 'aws_access_key_id'\]") as caught:
        StoreOptions(settings=settings).of("s3")
    assert "SECRET" not in str(caught.value)


def test_a_misspelt_name_with_a_prefix_is_guessed_too() -> None:
    options = StoreOptions(settings={"s3": {"aws_acces_key_id": "x", "region": "r"}}, timeout_s=0.25)
    with pytest.raises(OptionError, match="'aws_acces_key_id'") as caught:
        CloudStore("s3", "bucket", options)
    assert "did you mean 'access_key_id'?" in str(caught.value)


def test_headers_are_for_the_host_that_they_are_given_for() -> None:
    options = StoreOptions(settings={"https://Data.test:443/": {"headers": {"Authorization": "SECRET"}}})
    assert options.headers("https://data.test") == {"Authorization": "SECRET"}
    for other in ("http://data.test", "https://data.test:8443", "https://elsewhere", "https://data.test.elsewhere"):
        assert options.headers(other) == {}
    assert options.of("s3") == options.of("https") == {}


@pytest.mark.parametrize(
    "settings",
    [{"headers": {"Cookie": "SECRET"}}, {"https": {"headers": {"Cookie": "SECRET"}}}, {"file": {"root": "SECRET"}}],
)
def test_headers_for_whatever_host_an_index_names_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="no place for") as caught:
        StoreOptions(settings=settings).of("https")
    assert "{'https://host': {'headers': {...}}}" in str(caught.value) and "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "url", "is_anonymous"),
    [
        ({"anonymous": True}, "s3://b/k", True),
        ({"gs": {"anonymous": True}}, "gcs://b/k", True),
        ({"gs": {"anonymous": True}}, "s3://b/k", False),
        ({"anonymous": True, "s3": {"anonymous": False}}, "s3a://b/k", False),
        ({"s3": {"skip_signature": True}}, "s3://b/k", True),
        ({"s3": "nonsense"}, "no URL", False),
        ({}, "s3://b/k", False),
    ],
)
def test_who_wants_no_signature(settings: dict[str, Any], url: str, is_anonymous: bool) -> None:
    assert StoreOptions(settings=settings).is_anonymous(url) is is_anonymous


def test_anonymous_and_requester_pays() -> None:
    assert "skip_signature" not in StoreOptions(settings={"anonymous": False}).of("s3")
    assert StoreOptions(settings={"requester_pays": True}).of("s3") == {"request_payer": True}


def test_an_option_that_is_no_dict_names_its_kind_alone() -> None:
    with pytest.raises(OptionError, match=r"storage_options\['s3'\] is no dict: str") as caught:
        StoreOptions(settings={"s3": "SECRET"}).of("s3")
    assert "SECRET" not in str(caught.value)


def test_endpoints_come_from_options_then_from_the_environment() -> None:
    environment = {"AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_S3": "http://s3", "AZURE_ENDPOINT": "http://az"}
    options = StoreOptions(environment=environment)
    assert (options.endpoint("s3"), options.endpoint("az"), options.endpoint("gs")) == ("http://s3", "http://az", None)
    assert StoreOptions(settings={"endpoint": "http://own"}, environment=environment).endpoint("s3") == "http://own"
    assert StoreOptions().endpoint("s3") is None and StoreOptions().endpoint("https") is None


def test_nothing_secret_shows() -> None:
    options = StoreOptions(settings={**KEYS, "s3": KEYS}, environment={"AWS_SECRET_ACCESS_KEY": "SECRET"})
    assert "SECRET" not in repr(options) + str(options) + f"{options}" + options.identity()


def test_identity_tells_options_apart_by_value() -> None:
    one, two = StoreOptions(settings={"a": 1, "b": 2}), StoreOptions(settings={"b": 2, "a": 1})
    assert one.identity() == two.identity()
    others = [StoreOptions(), StoreOptions(environment={"AWS_X": "1"}), StoreOptions(timeout_s=1.0)]
    assert len({each.identity() for each in [one, *others]}) == 4


@pytest.mark.parametrize(
    ("scheme", "settings", "is_allowed"),
    [
        ("http", {}, True),
        ("https", {}, False),  # so a redirect from https to http is refused by obstore
        ("s3", {"region": "r", "anonymous": True}, False),
        ("s3", {"endpoint": "http://127.0.0.1:1", "region": "r", "anonymous": True}, True),
        ("s3", {"endpoint": "https://127.0.0.1:1", "region": "r", "anonymous": True}, False),
    ],
)
def test_plain_http_only_where_the_user_said_so(scheme: str, settings: dict[str, object], is_allowed: bool) -> None:
    store = CloudStore(scheme, "example.test", StoreOptions(settings=settings, timeout_s=0.25))
    assert str(store._store.client_options["allow_http"]).lower() == str(is_allowed).lower()
