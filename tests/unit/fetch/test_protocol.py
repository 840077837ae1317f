"""Frames: what is said arrives, nonsense is None and never an exception, nothing secret shows."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sds.errors import AccessDenied, CacheFull, FetchError, ObjectNotFound, OptionError, SdsError
from sds.fetch import protocol as p
from sds.types import ObjectInfo

OPTIONS = p.FetchOptions(dst="/tmp/x", limit=10, settings={"secret_access_key": "SECRET", "s3": {"token": "SECRET"}})
REQUESTS: list[p.Request] = [
    p.Hello(p.VERSION, OPTIONS, {"AWS_SECRET_ACCESS_KEY": "SECRET"}),
    p.Get(1, [p.File("s3://b/k"), p.File("http://h/x?y", "v1", (0, 10), 5)]),
    p.Release([1, 2, 3]),
    p.Want(4),
    p.Pause(True),
    p.Ask(4),
    p.Read(5, "s3://b/k", [(0, 5), (7, 9)]),
    p.Read(6, "s3://b/k", None),
    p.Head(7, "s3://b/ü"),
    p.List(8, "s3://b/"),
    p.Put(9, "s3://b/k", b"\0\xff"),
]
REPLIES: list[p.Reply] = [
    p.Welcome(1, "careful"),
    p.Got(1, ["/a", "/b"], {"hits": 1}),
    p.Parts(2, [b"", b"x"]),
    p.Listing(3, [ObjectInfo("s3://b/k", 5, "v")]),
    p.Done(4),
    p.Failed(5, "FetchError", "text", {"hint": "do"}),
    p.Later(6),
    p.Told(7, "it is connecting"),
    p.Trim(),
]


@pytest.fixture
def pair() -> Iterator[tuple[p.Wire, p.Wire]]:
    left, right = socket.socketpair()
    yield p.Wire(left), p.Wire(right)
    left.close()
    right.close()


def test_what_is_said_arrives(pair: tuple[p.Wire, p.Wire]) -> None:
    ours, theirs = pair
    ours.send(p.encode(REQUESTS))
    ours.send(p.encode([]))
    assert theirs.receive_requests() == REQUESTS
    assert theirs.receive_requests() == []
    theirs.send(p.encode(REPLIES))
    assert ours.receive_replies() == REPLIES


def test_a_frame_is_a_length_and_a_list() -> None:
    frame = p.encode([p.Want(4)])
    assert frame[:4] == (len(frame) - 4).to_bytes(4, "big")
    assert msgspec.msgpack.decode(frame[4:]) == [{"type": "want", "id": 4}]


def test_large_frames_pass_in_pieces(pair: tuple[p.Wire, p.Wire]) -> None:
    ours, theirs = pair
    message = p.Parts(1, [bytes(5_000_000)])
    rest = ours.send_now(p.encode([message]))
    assert rest  # a socket does not take that much, and nobody reads yet
    thread = threading.Thread(target=ours.send, args=(rest,))
    thread.start()
    assert theirs.receive_replies() == [message]
    thread.join()
    assert not ours.send_now(p.encode([p.Done(1)]))


def test_hanging_up_wakes_the_reader(pair: tuple[p.Wire, p.Wire]) -> None:
    ours, theirs = pair
    threading.Timer(0.05, theirs.hang_up).start()
    assert theirs.receive_requests() is None
    assert ours.receive_replies() is None
    with pytest.raises(OSError):
        ours.send(p.encode([p.Done(1)]))
    theirs.hang_up()
    theirs.close()
    theirs.hang_up()


def received(words: bytes) -> tuple[Any, Any]:
    """What each side makes of some bytes and the end of the connection."""
    made = []
    for receive in (p.Wire.receive_requests, p.Wire.receive_replies):
        left, right = socket.socketpair()
        with left, right:
            left.sendall(words)
            left.shutdown(socket.SHUT_WR)
            made.append(receive(p.Wire(right)))
    return made[0], made[1]


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"\0",
        b"\0\0\0\5abc",
        b"\xff\xff\xff\xff",
        (p.MAX_FRAME + 1).to_bytes(4, "big") + b"x",
        framed(b""),
        framed(b"\xc1"),
        framed(b"\x90\x90"),
        framed(b"\x91\x80"),
        framed(msgspec.msgpack.encode({"type": "want", "id": 1})),
        framed(msgspec.msgpack.encode([{"type": "what", "id": 1}])),
        framed(msgspec.msgpack.encode([{"type": "want", "id": "1"}])),
        framed(b"\x91\x82\xa4type\xa4want\xa2id\xa2\xff\xfe"),
        framed(b"\x91" * 100_000),
        framed(
            b"\x91\x83\xa4type\xa5hello\xa7version\x01\xa7options\x82\xa3dst\xa1x\xa8settings\x81\xa1k" + b"\x91" * 9999
        ),
        framed(
            b"\x91\x83\xa4type\xa5hello\xa7version\x01\xa7options\x82\xa3dst\xa1x\xa8settings\x81\xa1k\x81\x81\x01\x02\x03"
        ),
    ],
    ids=range(16),
)
def test_nonsense_is_none(words: bytes) -> None:
    assert received(words) == (None, None)


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 8))
def test_mutated_frames_are_messages_or_none(rng: random.Random, num_changes: int) -> None:
    frame = bytearray(p.encode(REQUESTS if rng.random() < 0.5 else REPLIES))
    for _ in range(num_changes):
        kind, place = rng.randrange(3), rng.randrange(4, len(frame))
        if kind == 0:
            frame[place] = rng.randrange(256)
        elif kind == 1:
            del frame[place]
        else:
            frame.insert(place, rng.randrange(256))
    frame[:4] = (len(frame) - 4).to_bytes(4, "big")
    for made in received(bytes(frame)):
        assert made is None or all(isinstance(each, msgspec.Struct) for each in made)


def test_what_cannot_be_said_is_an_error_without_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings_ in ({"key": object()}, {"key": "\ud800SECRET"}, {"key": 2**70}):
        with pytest.raises(FetchError, match="request cannot be sent") as caught:
            p.encode([p.Hello(p.VERSION, p.FetchOptions(dst="x", settings=settings_), {})])
        assert "SECRET" not in str(caught.value)
    monkeypatch.setattr(p, "MAX_FRAME", 100)
    with pytest.raises(FetchError, match="message is too large"):
        p.encode([p.Put(1, "s3://b/k", bytes(101))])


def test_reprs_show_no_secret() -> None:
    assert "SECRET" not in repr(OPTIONS) + repr(REQUESTS[0]) + str(REQUESTS[0]) + f"{OPTIONS}"


@pytest.mark.parametrize("kind", [FetchError, ObjectNotFound, AccessDenied, CacheFull, OptionError])
def test_errors_cross_with_their_facts(kind: type[SdsError]) -> None:
    error = kind("fact: value", hint="do this", url="s3://b/k")
    again = p.Failed.of(3, error).error()
    assert type(again) is kind and str(again) == str(error) and again.url == "s3://b/k"


def test_an_unknown_error_is_a_fetch_error() -> None:
    for name in ("SystemExit", "__all__", "Nonsense"):
        assert type(p.Failed(1, name, "text", {"hint": "h", "self": 1, "nonsense": 2}).error()) is FetchError
