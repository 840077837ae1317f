"""A link without a server: what is waited for is kept and asked for again; a server that keeps dying is an error."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from sds.errors import CacheError
from sds.fetch import protocol as p
from sds.fetch.link import Link, Pending


class Server:
    """Says hello to whoever comes; each test does the rest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends: list[p.Wire] = []
        monkeypatch.setattr("sds.fetch.handshake.connect", self.connect)

    def connect(self, dst: str) -> socket.socket:
        theirs, ours = socket.socketpair()
        self.ends.append(p.Wire(ours))
        ours.sendall(p.encode([p.Welcome(1)]))
        return theirs

    def close(self) -> None:
        for end in self.ends:
            end.close()


def test_what_somebody_begins_to_wait_for_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    link = Link(p.FetchOptions(dst="d"))
    pending = Pending(p.Get(link.next_ids(1)[0], [("u", None)]))
    link.ask([pending])
    server.ends[-1].send(p.encode([p.Got(pending.request.id, ["/x"], {})]))
    while not pending.is_here:
        time.sleep(0.001)
    wait = link._wait_for

    def trim_then_wait(*args: Any) -> None:
        link._trim()  # the server asks for what is only prefetched, just now
        wait(*args)

    monkeypatch.setattr(link, "_wait_for", trim_then_wait)
    link.wait(pending, subject="u", patience_s=0.5)
    assert pending.reply.paths == ["/x"] and not link._awaited
    link._trim()
    assert pending.reply.paths == ["/x"]  # it is in use
    link.close()
    server.close()


def test_it_says_that_it_waits_and_says_so_again_to_the_next_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    link = Link(p.FetchOptions(dst="d"))
    pending = Pending(p.Get(link.next_ids(1)[0], [("u", None)]))
    link.ask([pending])
    waiter = threading.Thread(target=link.wait, args=(pending,), kwargs={"subject": "u", "patience_s": 5.0})
    waiter.start()
    heard: list[Any] = []
    while not any(isinstance(request, p.Want) for request in heard):
        heard += server.ends[-1].receive_requests() or []
    server.ends[-1].hang_up()
    while len(server.ends) < 2:
        time.sleep(0.001)
    again: list[Any] = []
    while not any(isinstance(request, p.Want) for request in again):
        again += server.ends[-1].receive_requests() or []
    assert [type(request) for request in again] == [p.Hello, p.Get, p.Want]
    server.ends[-1].send(p.encode([p.Got(pending.request.id, ["/x"], {})]))
    waiter.join()
    assert pending.in_use
    link.close()
    server.close()


def test_a_server_that_dies_of_every_request_is_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    link = Link(p.FetchOptions(dst="d"))
    pending = Pending(p.Get(link.next_ids(1)[0], [("u", None)]))
    link.ask([pending])
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.002):
            server.ends[-1].hang_up()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(CacheError, match=r"ends again and again|hangs up on every client"):
        link.wait(pending, subject="u", patience_s=10.0)
    over.set()
    killer.join()
    link.close()
    server.close()
