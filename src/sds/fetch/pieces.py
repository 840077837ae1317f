"""Large objects in pieces, several at once: the open stream writes from the front, helpers from the back.

Comes in: an open body, and a way to open a part of the same object. Goes out: the file, whole, of one version: each
part's version and the whole's length are compared. Where a server gives no parts, the stream goes on to the end alone;
where the stream breaks, parts take its place.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from sds.errors import CacheError, IntegrityError, SdsError, UnsupportedSource
from sds.fetch.bodies import create, write_at
from sds.fetch.spans import Span
from sds.storage import Body, Buffer
from sds.storage.failures import translate
from sds.storage.retries import pause_before

__all__ = ["LARGE", "write_in_pieces"]

LARGE = 64 * 2**20  # objects above this are worth it
_PIECE = 8 * 2**20
_NUM_HELPERS = 3
_MAX_FAILURES = 4  # of one piece


class _Pieces:
    """Who has which piece. Pieces are [front, back), those given back, and those that helpers have."""

    def __init__(self, size: int) -> None:
        self._changed = threading.Condition()
        self._num = -(-size // _PIECE)
        self._size = size
        self._front = 0
        self._back = self._num
        self._given_back: list[int] = []
        self._num_out = 0
        self._failures: Counter[int] = Counter()
        self._error: Exception | None = None
        self._is_alone = False  # the server gives no parts
        self.has_parts = False  # it does
        self.is_over = False

    def extend(self) -> int:
        """Up to where the stream may write; as before, if helpers have the rest."""
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._front < self._back:
                self._front += 1
            return min(self._front * _PIECE, self._size)

    def break_off(self) -> bool:
        """The stream broke; whether parts can take its place: then its last piece is for others."""
        with self._changed:
            if self._is_alone or not self.has_parts:
                return False
            if self._front:
                self._given_back.append(self._front - 1)
            return True

    def take(self) -> Span | None:
        """A piece for a helper."""
        with self._changed:
            if self.is_over or self._is_alone or self._error is not None:
                return None
            if self._given_back:
                number = self._given_back.pop()
            elif self._front < self._back:
                self._back -= 1
                number = self._back
            else:
                return None
            self._num_out += 1
            return number * _PIECE, min((number + 1) * _PIECE, self._size)

    def done(self) -> None:
        """A helper has written its piece."""
        with self._changed:
            self.has_parts = True
            self._num_out -= 1
            self._changed.notify_all()

    def give_back(self, piece: Span, error: Exception, may_pass: bool) -> int:
        """A helper could not get its piece; how often that happened."""
        number = piece[0] // _PIECE
        with self._changed:
            self._num_out -= 1
            self._failures[number] += 1
            if isinstance(error, UnsupportedSource) and not self.has_parts and self._back < self._num:
                self._is_alone, self._back = True, self._num  # the stream goes on to the end
                self._given_back.clear()  # it brings these as well, and nobody else takes them any more
            elif not self._is_alone:
                self._given_back.append(number)
                if not may_pass or self._failures[number] >= _MAX_FAILURES:
                    self._error = self._error or error
            self._changed.notify_all()
            return self._failures[number]

    def fail(self, error: Exception) -> None:
        """All of it is in vain."""
        with self._changed:
            self._error = self._error or error

    def is_complete(self) -> bool:
        """Waits for the helpers; whether they left nothing to do."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num_out or self._given_back or self._error is not None)
            if self._error is not None:
                raise self._error
            if self._is_alone and self._front < self._num:
                raise IntegrityError("the server gives parts of an object now and then", hint="it is tried again")
            return not self._num_out and not self._given_back and self._front == self._back


def write_in_pieces(
    path: str, body: Body, size: int, open_part: Callable[[Span], Body], places: threading.Semaphore, url: str
) -> None:
    """Writes an object to a new file; `places` bounds the helpers of all objects together."""
    pieces = _Pieces(size)

    def copy(piece: Span) -> None:
        part = open_part(piece)
        if part.version != body.version or part.total != size or part.size != piece[1] - piece[0]:
            pieces.fail(IntegrityError("object changed while it was read", hint="it is tried again", url=url))
            raise IntegrityError("object changed while it was read", hint="it is tried again", url=url)
        _write(path, part.chunks, piece[0], pieces)

    def help_out() -> None:
        try:
            _help(pieces, copy, url, is_patient=False)
        finally:
            places.release()

    descriptor = create(path)
    try:
        for _ in range(_NUM_HELPERS):
            if places.acquire(blocking=False):
                try:
                    threading.Thread(target=help_out, name="part", daemon=True).start()
                except RuntimeError:  # no more threads are to be had: the stream goes on without
                    places.release()
        try:
            _follow(descriptor, path, body.chunks, pieces)
        except Exception as error:
            if isinstance(error, CacheError) or not pieces.break_off():
                raise
        while not pieces.is_complete():
            _help(pieces, copy, url, is_patient=True)
    finally:
        pieces.is_over = True
        os.close(descriptor)


def _follow(descriptor: int, path: str, chunks: Iterator[Buffer], pieces: _Pieces) -> None:
    """Writes what the stream brings, until helpers have the rest."""
    at = stop = 0
    try:
        for chunk in chunks:
            view = memoryview(chunk)
            while len(view):
                if at == stop and (stop := pieces.extend()) == at:
                    return
                now = view[: stop - at]
                write_at(descriptor, path, now, at)
                at, view = at + len(now), view[len(now) :]
    finally:
        close: Any = getattr(chunks, "close", None)
        if close is not None:
            close()  # nobody reads the rest


def _help(pieces: _Pieces, copy: Callable[[Span], None], url: str, *, is_patient: bool) -> None:
    """Gets pieces while there are some. Only the patient goes on where a store wants fewer requests."""
    while (piece := pieces.take()) is not None:
        try:
            copy(piece)
        except Exception as error:  # noqa: BLE001 (a thread boundary; the first stream raises what it was)
            verdict = translate(error, url)
            is_ours = isinstance(error, SdsError) and not verdict.may_pass
            retries = pieces.give_back(piece, error if is_ours else verdict.error, verdict.may_pass)
            if verdict.is_throttled and not is_patient:
                return
            time.sleep(pause_before(retries - 1, verdict.retry_after_s))
        else:
            pieces.done()


def _write(path: str, chunks: Iterator[Buffer], at: int, pieces: _Pieces) -> None:
    """Writes a part through a descriptor of its own: the stream may be done with its by then."""
    descriptor = create(path, is_new=False)
    try:
        for chunk in chunks:
            if pieces.is_over:
                return
            write_at(descriptor, path, chunk, at)
            at += len(chunk)
    finally:
        os.close(descriptor)
