"""Who asks: options, environment, profiles, the machine; on a real S3 server that checks signatures."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fetching
from sds.errors import AccessDenied, OptionError
from sds.fetch import FetchClient, FetchOptions
from sds.testing import S3Server

Start = Callable[..., FetchClient]


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Makes clients with the given variables and options, all on one folder."""
    folder, made = tmp_path_factory.mktemp("dst"), list[FetchClient]()
    monkeypatch.setenv("HOME", str(folder))  # nobody's own profile

    def start(environment: dict[str, object], **settings: object) -> FetchClient:
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        made.append(FetchClient(FetchOptions(dst=str(folder), settings=settings, num_retries=1)))
        return made[-1]

    yield start
    for client in made:
        client.close()
    for pid in fetching.server_pids(folder):
        fetching.kill(pid)


@pytest.fixture
def url(s3: S3Server, bucket: str) -> str:
    s3.put(bucket, "key", b"data")
    return f"s3://{bucket}/key"


def write_profile(folder: Path, s3: S3Server, **values: object) -> dict[str, object]:
    """The files of a profile 'work', and the variables that lead to it."""
    lines = [f"{name} = {value}" for name, value in values.items()]
    (folder / "credentials").write_text("[default]\naws_access_key_id = nobody\n[work]\n" + "\n".join(lines))
    (folder / "config").write_text(f"[profile work]\nregion = {s3.region}\nendpoint_url = {s3.endpoint}\n")
    files = {"AWS_SHARED_CREDENTIALS_FILE": folder / "credentials", "AWS_CONFIG_FILE": folder / "config"}
    return {**files, "AWS_PROFILE": "work"}


def test_keys_region_and_endpoint_of_a_profile(start: Start, s3: S3Server, url: str, tmp_path: Path) -> None:
    profile = write_profile(tmp_path, s3, aws_access_key_id=s3.access_key, aws_secret_access_key=s3.secret_key)
    client = start(profile)
    assert client.read(url) == b"data"
    (ticket,) = client.submit([[(url, None)]])
    assert Path(ticket.take()[0]).read_bytes() == b"data"
    # what comes before a profile wins: variables, and options before them
    wrong = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}
    with pytest.raises(AccessDenied, match="InvalidAccessKeyId"):
        start({**profile, **wrong}).read(url)
    right = {"access_key_id": s3.access_key, "secret_access_key": s3.secret_key}
    assert start({**profile, **wrong}, **right).read(url) == b"data"


def test_a_profile_that_is_not_there(start: Start, s3: S3Server, url: str, tmp_path: Path) -> None:
    profile = write_profile(tmp_path, s3, aws_access_key_id=s3.access_key, aws_secret_access_key=s3.secret_key)
    with pytest.raises(AccessDenied, match=r"no such AWS profile: play") as caught:
        start({**profile, "AWS_PROFILE": "play"}, region="us-east-1", endpoint=s3.endpoint).read(url)
    assert caught.value.hint


def test_a_process_gives_keys_and_new_ones_before_they_expire(
    start: Start, s3: S3Server, url: str, tmp_path: Path
) -> None:
    runs, script = tmp_path / "runs", tmp_path / "keys.py"
    life_s = 6.0
    script.write_text(
        f"import datetime, json\nopen({str(runs)!r}, 'a').write('x')\n"
        f"at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds={life_s})\n"
        f"print(json.dumps({{'Version': 1, 'AccessKeyId': {s3.access_key!r}, 'SecretAccessKey': {s3.secret_key!r},"
        " 'Expiration': at.isoformat()}))\n"
    )
    started = time.monotonic()
    client = start(write_profile(tmp_path, s3, credential_process=f"{sys.executable} {script}"))
    for _ in range(5):
        assert client.read(url) == b"data"
    assert runs.read_text() == "x" or time.monotonic() - started > life_s / 2  # not at every request
    fetching.until(lambda: client.read(url) == b"data" and len(runs.read_text()) >= 2, life_s + 20)


@pytest.mark.parametrize("command", ["/no/such/program", "{python} {script}"])
def test_a_process_that_fails_tells_no_secrets(
    start: Start, s3: S3Server, url: str, tmp_path: Path, command: str
) -> None:
    script = tmp_path / "keys.py"
    script.write_text("print('SECRET-OUTPUT')")
    command = command.format(python=sys.executable, script=script) + " --token SECRET-ARGUMENT"
    with pytest.raises(AccessDenied, match="credential_process failed") as caught:
        start(write_profile(tmp_path, s3, credential_process=command)).read(url)
    assert "SECRET" not in str(caught.value) and "run the credential_process" in str(caught.value)


def test_what_the_store_says_of_the_keys(start: Start, s3: S3Server, url: str) -> None:
    place = {"endpoint": s3.endpoint, "region": s3.region}
    with pytest.raises(AccessDenied, match="the secret was refused"):
        start({}, **place, access_key_id=s3.access_key, secret_access_key="wrong").read(url)
    with pytest.raises(AccessDenied, match="not known to the store"):
        start({}, **place, access_key_id="nobody", secret_access_key="wrong").read(url)


@pytest.mark.parametrize("kind", ["closed", "silent"])
def test_a_laptop_without_credentials_learns_it_in_seconds(
    start: Start, s3: S3Server, url: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as nowhere:
        nowhere.bind(("127.0.0.1", 0))  # nobody listens: refused
        callers: list[socket.socket] = []
        if kind == "silent":  # its queue is full: further calls are not answered, as in a network without the service
            nowhere.listen(0)
            for _ in range(4):
                callers.append(socket.socket())
                callers[-1].setblocking(False)
                callers[-1].connect_ex(nowhere.getsockname())
        metadata = f"http://127.0.0.1:{nowhere.getsockname()[1]}"
        client = start({}, s3={"endpoint": s3.endpoint, "region": "us-east-1", "metadata_endpoint": metadata})
        started = time.monotonic()
        tickets = client.submit([[(f"{url}-{i}", None)] for i in range(100)])
        for ticket in tickets:
            with pytest.raises(AccessDenied, match="no credentials were found") as caught:
                ticket.take()
        assert "anonymous" in str(caught.value) and time.monotonic() - started < 10.0  # together, not each
        for caller in callers:
            caller.close()


def test_a_misspelt_setting_under_its_scheme(start: Start, s3: S3Server, url: str) -> None:
    with pytest.raises(OptionError, match="did you mean 'virtual_hosted_style_request'") as caught:
        start({}, s3={**s3.storage_options, "virtual_hosted_style_requests": "SECRET"}).read(url)
    assert "SECRET" not in str(caught.value)


def test_secrets_of_a_profile_are_nowhere_on_disk(start: Start, s3: S3Server, url: str, tmp_path: Path) -> None:
    client = start(write_profile(tmp_path, s3, aws_access_key_id=s3.access_key, aws_secret_access_key=s3.secret_key))
    (ticket,) = client.submit([[(url, None)]])
    ticket.take()
    folder = Path(client.options.dst)
    (pid,) = fetching.server_pids(folder)
    for place in [*folder.rglob("*"), Path(f"/proc/{pid}/environ"), Path(f"/proc/{pid}/cmdline")]:
        assert not place.is_file() or s3.secret_key.encode() not in place.read_bytes(), place
