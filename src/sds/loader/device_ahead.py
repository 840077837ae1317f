"""Ahead: batches are read and sent in a thread of their own while the caller works with those before.

Comes in: how to read a batch, and how to send one. Goes out: batches in order, at most `depth` of them (and of
`max_bytes`) ahead of what was taken, then the end or the error. Stopping is asked for, never forced: the thread ends
when what it reads or waits for lets it, and a loader that can be cancelled does so soon.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from sds.loader.device_copies import Sent
from sds.loader.device_source import Source, Taken
from sds.loader.threads import cancelled
from sds.loader.trace import READING

__all__ = ["Ahead"]

_POLL_S = 1.0
_EXIT_S = 0.5  # for all threads of a program that ends, in all


class Ahead:
    """A thread that reads ahead. One thread waits, any may take, pause, resume and cancel.

    Args:
        source: what to read.
        depth: batches ahead of what was taken, the one that is being read included.
        max_bytes: the same in bytes, from the moment they are sent; one batch may always be.
        in_step: the source talks to other ranks at each batch: a stop lets it read on to its depth, so that all of
            them have read the same number of batches when their callers have taken the same.
        is_paused: begins with a pause.
    """

    def __init__(
        self, source: Source, depth: int, max_bytes: float, *, in_step: bool = False, is_paused: bool = False
    ) -> None:
        self._source = source
        self._source_is_given = source.is_given
        self._depth = depth
        self._max_bytes = max_bytes
        self._in_step = in_step
        self._changed = threading.Condition()  # over an RLock: garbage is collected anywhere, and may stop us
        self._ready: deque[Taken] = deque()
        self._num_read = 0
        self._num_taken = 0
        self._is_asked = False  # the caller waits
        self._is_paused = is_paused
        self._is_idle = False  # the thread waits for a reason to read
        self._is_stopping = False
        self._is_over = False
        self._is_cancelled = False
        self._error: BaseException | None = None
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=READING, daemon=True)
        _running.add(self)
        self._thread.start()

    # ---- the caller's side ------------------------------------------------------------------------------------------

    @property
    def is_ours(self) -> bool:
        """Whether the thread is in this process; not in a forked child."""
        return os.getpid() == self._pid

    @property
    def ready(self) -> Sequence[Sent]:
        """Batches that wait to be taken; none, when the caller has left."""
        with self._changed:
            return [] if self._is_stopping else [taken.sent for taken in self._ready]

    def wait(self) -> bool:
        """Blocks until a batch can be taken; False: there is none left. Raises what ended the reading."""
        with self._changed:
            self._is_asked = True
            self._changed.notify_all()
            try:
                while not self._ready or self._is_stopping:
                    if self._is_cancelled or self._is_stopping:
                        raise cancelled()
                    if self._is_over or not self._thread.is_alive():
                        self._raise_error()
                        return False
                    self._changed.wait(_POLL_S)
                return True
            finally:
                self._is_asked = False

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error  # with the traceback of the thread that read
        finally:
            del error  # or it, its traceback and this frame would keep each other

    def take(self) -> Taken | None:
        """The next batch on its way; None: none is ready, or no longer."""
        with self._changed:
            if not self._ready or self._is_stopping:
                return None
            self._num_taken += 1
            taken = self._ready.popleft()
            self._changed.notify_all()
            return taken

    def cancel(self) -> None:
        """Who waits for a batch gets an error."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()
        self._source.cancel()

    @property
    def num_lost(self) -> int:
        """Batches that were read and not taken, from an iterator that cannot be had again."""
        return self._num_read - self._num_taken if self._source_is_given else 0

    def pause(self) -> None:
        """Nothing more is read ahead; a batch that is asked for is."""
        self._set_paused(True)

    def resume(self) -> None:
        """Reads ahead again."""
        self._set_paused(False)

    def _set_paused(self, is_paused: bool) -> None:
        with self._changed:
            self._is_paused = is_paused
            self._changed.notify_all()

    def settle(self) -> None:
        """Blocks until the batch in the making is made. For a pause, or it never ends."""
        with self._changed:
            while not (self._is_idle or self._is_over or self._is_stopping) and self._thread.is_alive():
                self._changed.wait(_POLL_S)

    def stop(self, patience_s: float) -> bool:
        """Asks the thread to end, and says whether it has. Harmless when repeated, and in a forked child."""
        if not self.is_ours:
            return False
        self.ask_to_stop()
        if threading.current_thread() is self._thread:  # it collected the garbage that its caller was part of
            return False
        self._thread.join(patience_s)
        if self._thread.is_alive():
            return False
        self._ready.clear()
        self._error = None
        _running.discard(self)
        return True

    def ask_to_stop(self) -> None:
        """Asks the thread to end, and does not wait for it."""
        with self._changed:
            self._is_stopping, self._is_paused = True, False
            self._changed.notify_all()
        if self._thread.is_alive() and not self._in_step:
            self._source.cancel()

    # ---- the thread's side ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._source.enter()
            while self._wait_until(self._may_read) and (read := self._source.read()) is not None:
                self._num_read += 1
                if self._max_bytes < math.inf and not self._wait_until(partial(self._has_room, read.num_bytes)):
                    break
                taken = self._source.send(read)
                with self._changed:
                    self._ready.append(taken)
                    self._changed.notify_all()
                del read, taken  # nobody but the caller keeps a batch
        except BaseException as caught:  # noqa: BLE001 (a thread boundary: the caller's thread raises it)
            error = caught
        try:
            self._source.close()
        except BaseException as caught:  # noqa: BLE001 (the same)
            error = error or caught
        with self._changed:
            self._error, self._is_over = error, True
            self._changed.notify_all()
        del error

    def _wait_until(self, is_so: Callable[[], bool]) -> bool:
        """Whether to go on; False: stop."""
        with self._changed:
            while not (self._is_stopping and not self._in_step):
                if is_so():
                    return True
                if self._is_stopping:
                    break
                self._is_idle = True
                self._changed.notify_all()
                self._changed.wait()
                self._is_idle = False
            return False

    def _may_read(self) -> bool:
        depth = int(self._is_asked) if self._is_paused else self._depth
        return self._num_read < self._num_taken + depth

    def _has_room(self, num_bytes: int) -> bool:
        waiting = sum(taken.sent.num_bytes for taken in self._ready)
        return not self._ready or waiting + num_bytes <= self._max_bytes


_running: weakref.WeakSet[Ahead] = weakref.WeakSet()


def _stop_all() -> None:
    """Ends what a program left running before Python takes its modules away."""
    running, deadline = list(_running), time.monotonic() + _EXIT_S
    for ahead in running:
        ahead.ask_to_stop()
    for ahead in running:
        ahead.stop(max(0.0, deadline - time.monotonic()))


threading._register_atexit(_stop_all)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_running.clear)  # a child has none of these threads
