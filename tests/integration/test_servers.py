"""Each server that we test against really serves, refuses what it should, and is really gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
import pytest
import urllib3

from sds.errors import SdsError
from sds.signing import sign_s3
from sds.testing import AzureServer, GCSServer, HTTPServer, S3Server
from sds.testing.servers import Server, process, running
from sds.testing.servers.caddy import Caddy

ODD_KEYS = ["plain.txt", "a/b/c.txt", "with space.txt", "ünï/çödé.txt", "per%cent.txt", "a+b=c&d.txt", "q?x#y.txt"]
STARTS: list[type[Server]] = [S3Server, GCSServer, HTTPServer, AzureServer]


def get(
    url: str, headers: dict[str, str] | None = None, method: str = "GET", **signer: Any
) -> urllib3.BaseHTTPResponse:
    signed = sign_s3(method, url, **signer) if signer else {}
    with urllib3.PoolManager() as http:
        return http.request(method, url, headers={**(headers or {}), **signed}, retries=False)


def s3_url(server: S3Server, bucket: str, key: str) -> str:
    return f"{server.endpoint}/{bucket}/{quote(key, safe='/-_.~')}"


def keys_of(server: S3Server) -> dict[str, str]:
    return {"access_key": server.access_key, "secret_key": server.secret_key, "region": server.region}


def is_listening(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname or "", parts.port or 0)) == 0


def obstore_says(script: str, *args: str) -> str:
    """What a script that uses obstore prints: in a process of its own, since the tests' process forks."""
    code = f"import json, sys\nimport obstore\nfrom obstore.store import AzureStore, GCSStore, S3Store\n{script}"
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_s3_gets_ranges_heads_and_says_404(s3: S3Server, bucket: str) -> None:
    for key in ODD_KEYS:
        s3.put(bucket, key, key.encode())
        url = s3_url(s3, bucket, key)
        answer = get(url, **keys_of(s3))
        assert (answer.status, answer.data) == (200, key.encode())
        assert answer.headers["ETag"]
        part = get(url, {"Range": "bytes=1-3"}, **keys_of(s3))
        assert (part.status, part.data) == (206, key.encode()[1:4])
        assert get(url, method="HEAD", **keys_of(s3)).headers["Content-Length"] == str(len(key.encode()))
    assert get(s3_url(s3, bucket, "absent"), **keys_of(s3)).status == 404


def test_s3_refuses_wrong_and_missing_credentials(s3: S3Server, bucket: str) -> None:
    s3.put(bucket, "key", b"data")
    url = s3_url(s3, bucket, "key")
    assert get(url).status == 403
    assert get(url, **{**keys_of(s3), "secret_key": "wrong"}).status == 403
    assert get(url, **{**keys_of(s3), "access_key": "wrong"}).status == 403
    with S3Server(anonymous=True) as open_to_all:
        open_to_all.create_bucket("public")
        open_to_all.put("public", "key", b"data")
        assert get(s3_url(open_to_all, "public", "key")).data == b"data"
        refused = get(s3_url(open_to_all, "public", "key"), **{**keys_of(s3), "secret_key": "wrong"})
        assert refused.status == 403


def test_obstore_reads_and_lists_through_the_logging_proxy(s3_logged: S3Server, new_name: Callable[[], str]) -> None:
    bucket = new_name()
    s3_logged.create_bucket(bucket)
    for key in ODD_KEYS:
        s3_logged.put(bucket, key, key.encode())
    script = """
options = json.loads(sys.argv[1])
store = S3Store(sys.argv[2], client_options={"allow_http": True}, **options)
keys = [meta["path"] for page in store.list() for meta in page]
assert all(bytes(store.get(key).bytes()) == key.encode() for key in keys)
assert bytes(store.get_range(keys[0], start=1, end=3)) == keys[0].encode()[1:3]
print(json.dumps(sorted(keys)))
"""
    before = s3_logged.requests()
    said = obstore_says(script, json.dumps(s3_logged.storage_options), bucket)
    assert json.loads(said) == sorted(ODD_KEYS)
    assert s3_logged.requests() == before + 1 + len(ODD_KEYS) + 1
    log = [each for each in s3_logged.request_log() if each.path.startswith(f"/{bucket}")]
    for key in ODD_KEYS:
        gets = [each for each in log if each.path == f"/{bucket}/{key}"]
        assert s3_logged.requests(f"/{bucket}/{key}", method="GET") == len(gets) >= 1
        assert gets[0].status == 200
        assert gets[0].num_bytes == len(key.encode())
    assert [each.range for each in log if each.range] == ["bytes=1-2"]
    assert s3_logged.requests(f"/{bucket}/{ODD_KEYS[0]}", method="PUT") == 0  # what the helpers upload is not counted


def test_a_server_without_log_says_how_to_get_one(s3: S3Server) -> None:
    with pytest.raises(SdsError, match="log_requests=True"):
        s3.requests()


def test_gcs_is_read_by_obstore_without_credentials(gcs: GCSServer, new_name: Callable[[], str]) -> None:
    bucket = new_name()
    gcs.create_bucket(bucket)
    gcs.put(bucket, "a/b c.txt", b"0123456789")
    script = """
nobody = {"gcs_base_url": sys.argv[1], "disable_oauth": True}
nobody |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
store = GCSStore(sys.argv[2], client_options={"allow_http": True}, service_account_key=json.dumps(nobody))
store.put("second", b"2")
print(bytes(store.get("a/b c.txt").bytes()).decode(), bytes(store.get_range("a/b c.txt", start=2, end=4)).decode(),
      store.head("a/b c.txt")["size"], sorted(meta["path"] for page in store.list() for meta in page))
"""
    assert obstore_says(script, gcs.endpoint, bucket) == "0123456789 23 10 ['a/b c.txt', 'second']"


def test_azure_is_read_by_obstore_with_its_key_only(azure: AzureServer, new_name: Callable[[], str]) -> None:
    container = new_name()
    azure.create_bucket(container)
    for key in ODD_KEYS:
        azure.put(container, key, key.encode())
    azure.put(container, "empty", b"")
    script = """
def store(key): return AzureStore(sys.argv[2], account_name=sys.argv[3], account_key=key, endpoint=sys.argv[1],
    client_options={"allow_http": True}, retry_config={"max_retries": 0})
good = store(sys.argv[4])
keys = sorted(meta["path"] for page in good.list() for meta in page if meta["path"] != "empty")
assert all(bytes(good.get(key).bytes()) == key.encode() for key in keys)
assert bytes(good.get_range(keys[0], start=1, end=3)) == keys[0].encode()[1:3]
assert good.head("empty")["size"] == 0
try: store("d3Jvbmc=").head("empty")
except Exception as error: refused = type(error).__name__
print(refused, json.dumps(keys))
"""
    said = obstore_says(script, azure.endpoint, container, azure.account, azure.account_key)
    refused, _, keys = said.partition(" ")
    assert refused in ("PermissionDeniedError", "UnauthenticatedError")
    assert json.loads(keys) == sorted(ODD_KEYS)


def test_http_serves_ranges_and_validators_and_counts_requests(
    http_server: HTTPServer, new_name: Callable[[], str]
) -> None:
    folder = new_name()
    for key in ODD_KEYS:
        path = f"{folder}/{key}"
        http_server.put(path, key.encode())
        url = http_server.url(path)
        answer = get(url)
        assert (answer.status, answer.data) == (200, key.encode())
        part = get(url, {"Range": "bytes=1-3"})
        assert (part.status, part.data) == (206, key.encode()[1:4])
        assert get(url, {"If-None-Match": answer.headers["ETag"]}).status == 304
        assert answer.headers["Last-Modified"]
        assert get(url, method="HEAD").headers["Content-Length"] == str(len(key.encode()))
        assert http_server.requests(f"/{path}") == 4
        assert http_server.requests(f"/{path}", method="HEAD") == 1
    http_server.put(f"{folder}/plain.txt", b"changed")
    assert get(http_server.url(f"{folder}/plain.txt")).data == b"changed"
    assert get(http_server.url(f"{folder}/absent")).status == 404
    assert http_server.request_log()[-1].status == 404


def test_http_serves_a_given_folder_and_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("hello")
    with HTTPServer(tmp_path) as server:
        assert get(server.url("index.html")).data == b"hello"
        assert get(server.endpoint + "/").status == 404  # a folder is neither listed nor replaced by its index.html
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]


def test_a_folder_is_uploaded_with_its_paths_as_keys(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    for number in range(200):
        file = tmp_path / f"part {number % 7}" / f"{number:04}.bin"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes([number]) * number)
    keys = s3.upload_folder(tmp_path, bucket, "pre fix/")
    assert keys == sorted("pre fix/" + path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.bin"))
    for key in keys[::20]:
        assert (
            get(s3_url(s3, bucket, key), **keys_of(s3)).data == (tmp_path / key.removeprefix("pre fix/")).read_bytes()
        )


def test_data_in_a_given_folder_outlives_the_server(tmp_path: Path) -> None:
    for _ in range(2):
        with S3Server(tmp_path / "data") as server:
            if not server_has(server, "kept", "key"):
                server.create_bucket("kept")
                server.put("kept", "key", b"data")
                first = server.endpoint
    assert server.endpoint == ""
    assert first
    with S3Server(tmp_path / "data") as server:
        assert get(s3_url(server, "kept", "key"), **keys_of(server)).data == b"data"


def server_has(server: S3Server, bucket: str, key: str) -> bool:
    return get(s3_url(server, bucket, key), **keys_of(server)).status == 200


@pytest.mark.parametrize("kind", STARTS)
def test_a_server_starts_in_seconds_on_loopback_only_and_is_gone_after(
    kind: type[Server], record_property: Callable[[str, object], None]
) -> None:
    with kind() as server:
        endpoint, home = server.endpoint, server._home
        record_property("start_s", round(server.start_s, 2))
        assert server.start_s < 10
        assert is_listening(endpoint)
        assert server.pid in running()
        family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        listening = [each for process in family for each in process.net_connections("inet") if each.status == "LISTEN"]
        assert {each.laddr.ip for each in listening} == {"127.0.0.1"}
        ports = [each.laddr.port for each in listening]
        outside = [
            each
            for process in family
            for each in process.net_connections("inet")
            if each.raddr and each.raddr.ip != "127.0.0.1"
        ]
        assert not outside
        began = time.monotonic()
    assert time.monotonic() - began < 3
    assert not any(process.is_running() for process in family)
    assert not any(is_listening(f"http://127.0.0.1:{port}") for port in ports)
    assert not home.exists()
    assert not [path for path in Path("/tmp").glob("seaweedfs-*.sock") if any(str(port) in path.name for port in ports)]
    assert server.pid not in running()


def test_two_servers_of_a_kind_run_side_by_side() -> None:
    with S3Server() as one, S3Server() as two:
        one.create_bucket("only-one")
        one.put("only-one", "key", b"1")
        assert server_has(one, "only-one", "key")
        assert not server_has(two, "only-one", "key")


@pytest.mark.parametrize("victim", ["parent", "keeper"])
@pytest.mark.parametrize("kind", STARTS)
def test_a_server_dies_with_the_process_that_started_it(kind: type[Server], victim: str) -> None:
    code = f"""
import time
from sds.testing import {kind.__name__} as kind
with kind() as server:
    print(server.endpoint, server.pid, server._home, flush=True)
    time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        endpoint, keeper, home = parent.stdout.readline().split()
        family = [psutil.Process(int(keeper)), *psutil.Process(int(keeper)).children(recursive=True)]
        assert len(family) >= 2
        assert is_listening(endpoint)
        os.kill(parent.pid if victim == "parent" else int(keeper), signal.SIGKILL)
        deadline = time.monotonic() + 5
        while is_listening(endpoint) or any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if victim == "parent":
            assert not Path(home).exists()
    finally:
        if parent.poll() is None:
            parent.send_signal(signal.SIGINT)  # leaves the with block
        parent.wait(10)
        parent.stdout.close()  # type: ignore[union-attr]
    assert not Path(home).exists()


def test_a_server_stops_in_its_owner_only(http_server: HTTPServer) -> None:
    pid = os.fork()
    if pid == 0:
        http_server.stop()
        os._exit(len(running()))
    assert os.waitpid(pid, 0)[1] == 0
    assert is_listening(http_server.endpoint)


def test_a_server_that_cannot_start_shows_its_log() -> None:
    class Broken(Caddy):
        def _handler(self) -> dict[str, Any]:
            return {"handler": "no_such_handler"}

    with pytest.raises(SdsError, match="no_such_handler"):
        Broken().start()
    assert not any(isinstance(server, Broken) for server in running().values())


def test_a_taken_port_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        choices = [[taken.getsockname()[1]], process.free_ports(1)]
        monkeypatch.setattr(process, "free_ports", lambda count: choices.pop(0))
        with HTTPServer() as server:
            assert server.endpoint != f"http://127.0.0.1:{taken.getsockname()[1]}"
            assert not choices
