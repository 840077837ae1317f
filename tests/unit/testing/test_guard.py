"""The guard of tests/conftest.py sees what a test leaves behind, and lets alone what is not the test's."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from conftest import child_processes, fetch_servers, open_sockets
from sds.testing import HTTPServer


def test_a_child_and_its_child_are_seen_until_they_end() -> None:
    before = set(child_processes())
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert len(set(child_processes()) - before) == 2
        child.communicate(b"\n")
        assert set(child_processes()) == before


def test_a_dead_child_that_nobody_asked_for_is_no_leftover() -> None:
    before = set(child_processes())
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()  # its end closes the pipe
    child.stdout.close()
    while set(child_processes()) != before:
        pass
    child.wait()


def test_sockets_are_seen_until_they_are_closed(tmp_path: Path) -> None:
    before = set(open_sockets())
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert len(set(open_sockets()) - before) == 2
    with socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "socket"))
        assert len(set(open_sockets()) - before) == 1
    assert set(open_sockets()) == before


def test_servers_of_fixtures_and_connections_to_them_are_no_leftovers() -> None:
    processes, sockets = set(child_processes()), set(open_sockets())
    with HTTPServer() as server:
        host, _, port = server.endpoint.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))):
            assert set(child_processes()) == processes
            assert set(open_sockets()) == sockets


def test_a_fetch_server_is_known_by_its_folder(tmp_path: Path) -> None:
    code = "print(1, flush=True); input()"
    command = [sys.executable, "-c", code, "sds.fetch.server", str(tmp_path / "cache")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stand_in:
        assert stand_in.stdout is not None
        stand_in.stdout.readline()
        assert len(fetch_servers(tmp_path)) == 1
        assert fetch_servers(tmp_path / "other") == []
        stand_in.communicate(b"\n")
    assert fetch_servers(tmp_path) == []
