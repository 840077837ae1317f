"""Versions: one question per object and run, or one for all who ask at once; whoever asked is told."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from sds.errors import ObjectNotFound, SdsError
from sds.fetch.versions import Versions
from sds.storage import StoreOptions

OPTIONS = StoreOptions()


class FakeStores:
    """Answers when the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[str] = []
        self.version = "1"

    def call(self, url: str, options: StoreOptions, verb: Any) -> Any:
        self.asked.append(url)
        assert self.gate.wait(5)
        if url == "gone":
            raise ObjectNotFound("gone")
        if url == "broken":
            raise ZeroDivisionError
        return SimpleNamespace(version=self.version)


class Desk:
    def __init__(self) -> None:
        self.stores = FakeStores()
        self.lock = threading.RLock()
        self.told = threading.Semaphore(0)
        self.versions = Versions(self.stores, self.lock, self.told.release)  # type: ignore[arg-type]
        self.answers: list[str | SdsError] = []

    def ask(self, url: str, run: str = "", times: int = 1) -> None:
        with self.lock:
            for _ in range(times):
                self.versions.ask(run, url, OPTIONS, self.answers.append)

    def settle(self) -> list[str | SdsError]:
        self.stores.gate.set()
        assert self.told.acquire(timeout=5)
        answers, self.answers = self.answers, []
        return answers


def test_those_who_ask_at_once_share_a_question() -> None:
    desk = Desk()
    desk.ask("u", times=3)
    assert desk.settle() == ["1", "1", "1"] and desk.stores.asked == ["u"]
    desk.stores.version = "2"
    desk.ask("u")  # and later it is asked again
    assert desk.settle() == ["2"] and desk.stores.asked == ["u", "u"]


def test_a_run_asks_once_until_it_is_told_of_a_change() -> None:
    desk = Desk()
    desk.ask("u", run="a")
    assert desk.settle() == ["1"]
    desk.stores.version = "2"
    desk.ask("u", run="a")
    assert desk.answers == ["1"] and desk.stores.asked == ["u"]
    desk.answers.clear()
    desk.ask("u", run="b")
    assert desk.settle() == ["2"]
    with desk.lock:
        desk.versions.forget("a", "u", OPTIONS)
    desk.ask("u", run="a")
    assert desk.settle() == ["2"]


def test_what_goes_wrong_is_an_answer_and_is_not_remembered() -> None:
    desk = Desk()
    for url, words in (("gone", "gone"), ("broken", "ZeroDivisionError")):
        for _ in range(2):
            desk.ask(url, run="a")
            (error,) = desk.settle()
            assert isinstance(error, SdsError) and words in str(error)
    assert desk.stores.asked == ["gone", "gone", "broken", "broken"]
