"""Large objects in pieces, with pieces of a few bytes: whole whatever fails, of one version, alone where it must be."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sds.errors import IntegrityError, ObjectNotFound, SdsError, UnsupportedSource
from sds.fetch import pieces
from sds.fetch.pieces import write_in_pieces
from sds.fetch.spans import Span
from sds.storage import Body

DATA = bytes(range(256)) * 4
PIECE = 10


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_PIECE", PIECE)
    monkeypatch.setattr(pieces, "pause_before", lambda *_: 0.0)


class Source:
    """An object. `fail(span, number)` may raise, the first request for a span is 1; `gate` holds the stream back."""

    def __init__(self, fail: Callable[[Span, int], None] = lambda *_: None, *, chunk: int = 7) -> None:
        self.fail = fail
        self.chunk = chunk
        self.gate = threading.Event()
        self.spans: list[Span] = []
        self.num_streamed = 0
        self.version = "v"

    def stream(self) -> Iterator[bytes]:
        for at in range(0, len(DATA), self.chunk):
            assert self.gate.wait(5)
            self.num_streamed += len(DATA[at : at + self.chunk])
            yield DATA[at : at + self.chunk]

    def open_part(self, span: Span) -> Body:
        self.spans.append(span)
        try:
            self.fail(span, self.spans.count(span))
        finally:
            if len(self.spans) > 20:  # now the stream may come as well
                self.gate.set()
        return Body(span[1] - span[0], self.version, iter([DATA[slice(*span)]]), len(DATA))

    def write(self, path: Path, num_places: int = 8) -> None:
        body = Body(len(DATA), "v", self.stream())
        write_in_pieces(str(path), body, len(DATA), self.open_part, threading.Semaphore(num_places), "s3://b/k")


def test_the_stream_and_its_helpers_meet(tmp_path: Path) -> None:
    source = Source()
    source.write(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA
    assert len(source.spans) == len(set(source.spans)) > 20  # no piece twice
    assert source.num_streamed < len(DATA)


@pytest.mark.parametrize("chunk", [1, 7, 10, 64, 5000])
def test_chunks_of_any_size(tmp_path: Path, chunk: int) -> None:
    Source(chunk=chunk).write(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA


def test_without_places_the_stream_is_alone(tmp_path: Path) -> None:
    source = Source()
    source.gate.set()
    source.write(tmp_path / "x", num_places=0)
    assert (tmp_path / "x").read_bytes() == DATA and not source.spans


def test_a_server_that_gives_no_parts(tmp_path: Path) -> None:
    source = Source()

    def refuse(span: Span, number: int) -> None:
        source.gate.set()
        raise UnsupportedSource("the server gives no parts of objects")

    source.fail = refuse
    source.write(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA and source.num_streamed == len(DATA)


def test_whatever_happens_there_is_an_end() -> None:
    """All interleavings of a stream and helpers, up to a length: whole or an error, and nobody spins."""
    for actions in itertools.product(["take", "reset", "refuse", "done", "stream", "rush", "break"], repeat=5):
        written = play(["take", "take", *actions])
        assert written is None or written == set(range(4)), actions


def play(actions: list[str]) -> set[int] | None:
    """The pieces that are written in the end; None: it is an error."""
    some = pieces._Pieces(4 * PIECE)
    out: list[Span] = []
    written: set[int] = set()
    stop, is_streaming = 0, True

    def advance() -> bool:
        """The stream has written what it might, and goes on; False if helpers have the rest."""
        nonlocal stop
        before = stop
        written.update(range(before // PIECE))
        stop = some.extend()
        return stop > before

    def done() -> None:
        written.add(out.pop()[0] // PIECE)
        some.done()

    try:
        for action in [*actions, "rush"]:
            if action == "take" and (piece := some.take()) is not None:
                out.append(piece)
            elif action == "done" and out:
                done()
            elif action == "reset" and out:
                some.give_back(out.pop(), ConnectionResetError(), True)
            elif action == "refuse" and out:
                some.give_back(out.pop(), UnsupportedSource("no parts"), False)
            elif action == "break" and is_streaming and stop:
                if not some.break_off():
                    return None
                is_streaming = False
            while is_streaming and action in ("stream", "rush"):
                is_streaming = advance()
                if action == "stream":
                    break
        while out:
            done()
        for _ in range(10):
            if some.is_complete():
                return written
            if (piece := some.take()) is not None:
                out.append(piece)
                done()
    except (SdsError, ConnectionResetError):
        return None
    raise AssertionError(f"it goes on for ever: {actions}")


def test_a_piece_was_given_back_when_a_server_proves_to_give_no_parts() -> None:
    some = pieces._Pieces(6 * PIECE)
    one, two = some.take(), some.take()
    assert one is not None and two is not None
    some.give_back(one, ConnectionResetError(), True)
    some.give_back(two, UnsupportedSource("no parts"), False)
    assert [some.extend() for _ in range(7)] == [10, 20, 30, 40, 50, 60, 60]
    assert some.take() is None and some.is_complete()


def test_a_stream_that_is_alone_and_breaks_has_nobody_to_take_its_place() -> None:
    some = pieces._Pieces(6 * PIECE)
    one, two = some.take(), some.take()
    assert one is not None and two is not None
    some.give_back(one, UnsupportedSource("no parts"), False)
    some.done()  # a part all the same
    assert [some.extend() for _ in range(6)][-1] == 60
    assert some.break_off() is False


def test_without_threads_the_stream_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    source, places = Source(), threading.Semaphore(8)
    source.gate.set()
    write_in_pieces(
        str(tmp_path / "x"), Body(len(DATA), "v", source.stream()), len(DATA), source.open_part, places, "u"
    )
    assert (tmp_path / "x").read_bytes() == DATA and places._value == 8


def test_parts_that_fail_are_asked_for_again(tmp_path: Path) -> None:
    def flaky(span: Span, number: int) -> None:
        if number <= 2 and span[0] % 3 == 0:
            raise ConnectionResetError

    source = Source(flaky)
    source.write(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA


def test_parts_take_the_place_of_a_stream_that_broke(tmp_path: Path) -> None:
    class Broken(Source):
        def stream(self) -> Iterator[bytes]:
            yield DATA[:25]
            assert self.gate.wait(5)
            raise ConnectionResetError

    Broken().write(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA


def test_a_stream_that_broke_before_any_part_came_is_an_error(tmp_path: Path) -> None:
    class Broken(Source):
        def stream(self) -> Iterator[bytes]:
            yield DATA[:25]
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        Broken().write(tmp_path / "x", num_places=0)


def test_a_part_of_another_version_ends_it(tmp_path: Path) -> None:
    source = Source()
    source.gate.set()

    def change(span: Span, number: int) -> None:
        source.version = "w" if len(source.spans) > 5 else "v"

    source.fail, source.chunk = change, 1
    source.stream = lambda: iter([DATA[:PIECE], *(_slowly(source))])  # type: ignore[method-assign]
    with pytest.raises(IntegrityError, match="changed while it was read"):
        source.write(tmp_path / "x")


def _slowly(source: Source) -> Iterator[bytes]:
    for at in range(PIECE, len(DATA), PIECE):
        deadline = threading.Event()
        deadline.wait(0.002 if len(source.spans) <= 5 else 0.0)
        yield DATA[at : at + PIECE]


@pytest.mark.parametrize(("error", "kind"), [(FileNotFoundError(), ObjectNotFound), (TimeoutError(), SdsError)])
def test_a_part_that_never_comes_is_an_error(tmp_path: Path, error: Exception, kind: type[SdsError]) -> None:
    source = Source()

    def fail(span: Span, number: int) -> None:
        if span[0] == 500:
            source.gate.set()
            raise error

    source.fail = fail
    with pytest.raises(kind):
        source.write(tmp_path / "x")
