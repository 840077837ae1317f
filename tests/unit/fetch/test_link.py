"""A link without a server: what is waited for is kept and asked for again; a server that keeps dying is an error."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from sds.errors import CacheError, FetchError
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


def test_what_is_here_is_taken_without_waiting_and_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    link = Link(p.FetchOptions(dst="d"))
    taken, spare, late = pendings = [Pending(p.Get(id, [("u", None)])) for id in link.next_ids(3)]
    link.ask(pendings)
    server.ends[-1].send(p.encode([p.Got(each.request.id, ["/x"], {}) for each in (taken, spare)]))
    while not (taken.is_here and spare.is_here):
        time.sleep(0.001)
    assert link.take_now(taken) and taken.in_use and taken.holder == threading.get_ident()
    assert not link.take_now(late) and not late.in_use
    link._trim()
    assert taken.reply is not None and not link.take_now(spare), "it was given back, and is asked for again"
    link.close()
    server.close()


def test_what_was_let_go_of_is_told_with_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    link = Link(p.FetchOptions(dst="d"))
    first, second, third = pendings = [Pending(p.Get(id, [("u", None)])) for id in link.next_ids(3)]
    link.ask(pendings[:2])
    link.release(first)
    link.ask([third])
    heard = [request for _ in range(4) for request in server.ends[-1].receive_requests() or ()]
    kinds = [type(request).__name__ for request in heard]
    assert kinds == ["Hello", "Get", "Get", "Release", "Get"] and heard[3].ids == [first.request.id]
    assert second.request.id in link._live
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


def test_nobody_who_closes_waits_for_a_server_that_is_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    link = Link(p.FetchOptions(dst="d"))
    pending, late = (Pending(p.Get(id, [("u", None)])) for id in link.next_ids(2))
    link.ask([pending])
    is_starting, is_started = threading.Event(), threading.Event()

    def start(dst: str) -> socket.socket:
        is_starting.set()
        assert is_started.wait(20)
        return server.connect(dst)

    monkeypatch.setattr("sds.fetch.handshake.connect", start)
    errors: list[Exception] = []

    def call(verb: Any, *args: Any, **kwargs: Any) -> None:
        with pytest.raises(FetchError, match="closed") as caught:
            verb(*args, **kwargs)
        errors.append(caught.value)

    server.ends[-1].hang_up()
    assert is_starting.wait(20)
    waits = threading.Thread(target=call, args=(link.wait, pending), kwargs={"subject": "u", "patience_s": 60.0})
    asks = threading.Thread(target=call, args=(link.ask, [late]))
    waits.start(), asks.start()
    begun = time.monotonic()
    link.close()
    assert time.monotonic() - begun < 1.0 and not is_started.is_set()
    waits.join(10.0), asks.join(10.0)
    assert len(errors) == 2 and link._thread.is_alive()
    is_started.set()
    link._thread.join(10.0)
    assert not link._thread.is_alive() and len(server.ends) == 2  # it came, and nobody said hello
    assert server.ends[-1].receive_requests() is None
    server.close()


def test_what_goes_past_the_cache_is_spoken_of_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    link = Link(p.FetchOptions(dst="d"))
    errand = Pending(p.Head(link.next_ids(1)[0], "u"))
    link.ask([errand])

    def tell() -> None:
        while not any(isinstance(request, p.Ask) for request in server.ends[-1].receive_requests() or []):
            pass
        server.ends[-1].send(p.encode([p.Told(errand.request.id, "nothing is known of it")]))

    teller = threading.Thread(target=tell)
    teller.start()
    assert "store has not answered" in str(link._ask_what_is_done(errand))
    teller.join()
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
