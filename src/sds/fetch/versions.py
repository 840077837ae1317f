"""Versions: which version an object has now, asked of its store; for URLs to which the index gives none.

Comes in: a URL, and the run for which it is asked. Goes out: its version, to the function that was given. One question
per object and run ('run'), or one for all who ask while it is on its way ('always', where the run has no name).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from sds.errors import FetchError, SdsError
from sds.storage import StoreOptions, Stores
from sds.urls import redact

__all__ = ["Changed", "Versions"]

Done: TypeAlias = Callable[["str | SdsError"], None]
_Question: TypeAlias = tuple[str, str, int]  # the run, the URL, and which options it is asked with

_NUM_THREADS = 32
_MAX_KNOWN = 2**20  # answers that are remembered; an epoch of more objects asks again


class Changed(FetchError):
    """An object is not of the version that was asked for; clients see a FetchError."""


class Versions:
    """Asks stores for versions, on threads of its own.

    `lock` guards this, and is held when `done` is called; `tell` is called afterwards, without it.
    """

    def __init__(self, stores: Stores, lock: threading.RLock, tell: Callable[[], None]) -> None:
        self._stores = stores
        self._lock = lock
        self._tell = tell
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="version")
        self._known: dict[_Question, str] = {}
        self._asked: dict[_Question, list[Done]] = {}

    def ask(self, run: str, url: str, options: StoreOptions, done: Done) -> None:
        """Calls `done` with the version, or with what went wrong: at once if it is known. Under the lock."""
        question = run, url, id(options)  # interned: one object for all equal ones, for good
        if run and question in self._known:
            done(self._known[question])
        elif question in self._asked:
            self._asked[question].append(done)
        else:
            self._asked[question] = [done]
            self._pool.submit(self._find_out, question, options)

    def forget(self, run: str, url: str, options: StoreOptions) -> None:
        """The object has changed since. Under the lock."""
        self._known.pop((run, url, id(options)), None)

    def _find_out(self, question: _Question, options: StoreOptions) -> None:
        run, url, _ = question
        answer: str | SdsError
        try:
            answer = self._stores.call(url, options, lambda store, key: store.head(key)).version or ""
        except SdsError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 (a thread boundary: whoever waits must be told)
            hint = "a defect of sds, not of your data: please report it"
            answer = FetchError(f"version cannot be asked for: {redact(url)}: {type(error).__name__}", hint=hint)
        with self._lock:
            if run and isinstance(answer, str):
                self._known[question] = answer
                if len(self._known) > _MAX_KNOWN:
                    del self._known[next(iter(self._known))]
            for done in self._asked.pop(question):
                done(answer)
        self._tell()
