"""AWS profiles: which file and section says what, keys that renew themselves, and when only the machine can tell."""

from __future__ import annotations

import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from sds.errors import AccessDenied
from sds.storage import StoreOptions, profiles
from sds.storage.credentials import provider_of, relies_on_machine
from sds.storage.profiles import Provider, _keys, fill, find_profile


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"AWS_SHARED_CREDENTIALS_FILE": f"{tmp_path}/credentials", "AWS_CONFIG_FILE": f"{tmp_path}/config"}


def write(environment: dict[str, str], credentials: str = "", config: str = "") -> None:
    Path(environment["AWS_SHARED_CREDENTIALS_FILE"]).write_text(credentials)
    Path(environment["AWS_CONFIG_FILE"]).write_text(config)


def test_both_files_say_something_and_keys_win(environment: dict[str, str]) -> None:
    write(environment, "[a]\naws_access_key_id=K%1\n", "[profile a]\nregion=r\naws_access_key_id=old\n[a]\nregion=no\n")
    profile = find_profile({**environment, "AWS_PROFILE": "a"})
    assert profile is not None and profile.values == {"aws_access_key_id": "K%1", "region": "r"}
    assert "K%1" not in repr(profile)


def test_no_files_no_profile_no_error(environment: dict[str, str]) -> None:
    assert find_profile(environment) is None and fill(environment) == environment
    Path(environment["AWS_CONFIG_FILE"]).write_bytes(b"\xff\xfe[nonsense")
    assert find_profile(environment) is None


def test_a_named_profile_must_be_there_unless_the_environment_has_keys(environment: dict[str, str]) -> None:
    named = {**environment, "AWS_PROFILE": "gone"}
    with pytest.raises(AccessDenied, match="no such AWS profile: gone"):
        find_profile(named)
    assert fill(named) == named  # it is told when a store is opened
    assert find_profile({**named, "AWS_ACCESS_KEY_ID": "x"}) is not None


def test_region_and_endpoint_are_filled_in_where_nothing_is_said(environment: dict[str, str]) -> None:
    write(environment, config="[default]\nregion = r\nendpoint_url = http://e\n")
    assert fill(environment) == {**environment, "AWS_REGION": "r", "AWS_ENDPOINT_URL": "http://e"}
    own = {**environment, "AWS_DEFAULT_REGION": "own", "AWS_ENDPOINT_URL_S3": "http://own"}
    assert fill(own) == own


def test_a_profile_comes_after_options_and_variables(environment: dict[str, str]) -> None:
    write(environment, "[default]\naws_access_key_id=K\naws_secret_access_key=S\n")
    assert provider_of("s3", {}, environment) is not None
    assert provider_of("s3", {"access_key_id": "x"}, environment) is None
    assert provider_of("s3", {"skip_signature": True}, environment) is None
    assert provider_of("s3", {}, {**environment, "AWS_ACCESS_KEY_ID": "x"}) is None
    assert provider_of("gs", {}, environment) is None
    write(environment, config="[default]\nregion=r\n")
    assert provider_of("s3", {}, environment) is None


@pytest.mark.parametrize(
    "said",
    [
        {"aws_access_key_id": "MINE", "aws_secret_access_key": "s"},
        {"AWS_ACCESS_KEY_ID": "MINE", "AWS_SECRET_ACCESS_KEY": "s"},
        {"aws_skip_signature": True},
        {"web_identity_token_file": "f"},
        {"aws_container_credentials_full_uri": "http://127.0.0.1"},
    ],
)
def test_no_profile_replaces_what_an_option_says_in_any_spelling(
    environment: dict[str, str], said: dict[str, object]
) -> None:
    write(environment, "[default]\naws_access_key_id=PROFILE\naws_secret_access_key=S\n")
    settings = StoreOptions(settings={"s3": said}).of("s3")
    assert provider_of("s3", settings, environment) is None and not relies_on_machine("s3", settings, environment)


@pytest.mark.parametrize("name", ["service_account_path", "google_service_account", "google_service_account_key"])
def test_no_machine_is_asked_where_an_option_says_who_asks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/no/such/home")
    assert not relies_on_machine("gs", StoreOptions(settings={"gs": {name: "x"}}).of("gs"), {})


def test_when_only_the_machine_can_tell(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/no/such/home")
    assert relies_on_machine("s3", {"region": "r"}, environment) and relies_on_machine("gs", {}, {})
    assert not relies_on_machine("s3", {"skip_signature": True}, environment)
    assert not relies_on_machine("s3", {}, {"AWS_WEB_IDENTITY_TOKEN_FILE": "x"})
    assert not relies_on_machine("gs", {}, {"GOOGLE_APPLICATION_CREDENTIALS": "x"})
    assert not relies_on_machine("az", {}, {}) and not relies_on_machine("http", {}, {})


def test_keys_are_found_once_and_renewed_in_time(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(environment, "[default]\naws_access_key_id=K1\naws_secret_access_key=S\naws_session_token=T\n")
    provider = Provider(environment)
    now = [1_000_000.0]
    monkeypatch.setattr(profiles.time, "time", lambda: now[0])
    first = provider()
    assert (first["access_key_id"], first["token"]) == ("K1", "T") and first["expires_at"] is not None
    write(environment, "[default]\naws_access_key_id=K2\naws_secret_access_key=S\n")
    assert provider() is first
    now[0] = first["expires_at"].timestamp() - 1.0  # by now long renewed
    assert provider()["access_key_id"] == "K2" and provider()["expires_at"] is None


def test_what_a_process_says(environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "keys.py"
    text = '{"AccessKeyId": "K", "SecretAccessKey": "S", "SessionToken": "T", "Expiration": "2030-01-01T00:00:00Z"}'
    script.write_text(f"import os\nassert os.environ['AWS_PROFILE'] == 'p'\nprint({text!r})")
    write(environment, config=f"[profile p]\ncredential_process = {sys.executable} '{script}'\n")
    found = Provider({**environment, "AWS_PROFILE": "p"})()
    assert found == _keys("K", "S", "T", datetime(2030, 1, 1, tzinfo=timezone.utc))


def test_a_time_of_expiry_in_any_zone() -> None:
    naive = datetime(2030, 1, 1)
    assert _keys("a", "b", None, naive)["expires_at"] == naive.replace(tzinfo=timezone.utc)
    zoned = datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert _keys("a", "b", None, zoned)["expires_at"] == zoned


def test_keys_are_fresh_until_they_have_to_be_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "credentials"
    place.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    environment = {"AWS_SHARED_CREDENTIALS_FILE": str(place), "AWS_CONFIG_FILE": str(tmp_path / "absent")}
    provider = Provider(environment)
    assert not provider.is_fresh  # nobody has looked
    provider()
    now = time.time()
    monkeypatch.setattr("sds.storage.profiles.time.time", lambda: now + 3600)
    assert provider.is_fresh  # they have no end
    place.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\naws_session_token = c\n")
    provider()
    assert provider.is_fresh
    monkeypatch.setattr("sds.storage.profiles.time.time", lambda: now + 7200)
    assert not provider.is_fresh
