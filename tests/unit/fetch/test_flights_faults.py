"""Flights over stores that fail by script: retries that hold no thread, second requests, one result for everybody."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sds.errors import CacheError, FetchError, IntegrityError, ObjectNotFound, SdsError
from sds.fetch import hedges as hedges_module
from sds.fetch import writers as writers_module
from sds.fetch.cache import Cache, Entry, key_of
from sds.fetch.flights import Flights
from sds.storage import Body, StoreOptions
from sds.testing import Fault, FaultyStore
from sds.types import ObjectInfo


def data(key: str) -> bytes:
    return hashlib.blake2b(key.encode()).digest() * 10


class Objects:
    """A store in which every key has an object; `hold` keys wait for `gate`, the first time."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.hold: set[str] = set()
        self.gate = threading.Event()

    def open(self, key: str, span: Any = None) -> Body:
        self.opened.append(key)
        if key in self.hold:
            self.hold.remove(key)
            assert self.gate.wait(10)
        body = data(key)
        return Body(len(body), "v", iter([body]), digest=hashlib.md5(body, usedforsecurity=False).hexdigest())

    def head(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(data(key)), "v")


class Tower:
    """Flights over one store, and somebody who asks."""

    def __init__(self, folder: Path, store: Any, num_threads: int = 4, limit: int | None = None) -> None:
        self.lock = threading.RLock()
        self.cache = Cache(folder, limit)
        self.flights = Flights(self.cache, self.lock, lambda: None)
        self.flights._stores = self  # type: ignore[assignment]
        self.flights.ensure_threads(num_threads)
        self.store = store
        self.entries: dict[int, Entry] = {}
        self.errors: dict[int, SdsError] = {}
        self.counts: dict[str, int] = {}

    def once(self, url: str, options: StoreOptions, verb: Callable[[Any, str], Any]) -> Any:
        return verb(self.store, url)

    def landed(self, slot: int, entry: Entry, counts: dict[str, int]) -> None:
        assert slot not in self.entries and slot not in self.errors
        self.entries[slot] = entry
        self._add(counts)

    def failed(self, slot: int, error: SdsError, counts: dict[str, int]) -> None:
        assert slot not in self.entries and slot not in self.errors
        self.errors[slot] = error
        self._add(counts)

    def _add(self, counts: dict[str, int]) -> None:
        for name, number in counts.items():
            self.counts[name] = self.counts.get(name, 0) + number

    def ask(self, *urls: str, options: StoreOptions | None = None) -> None:
        with self.lock:
            for url in urls:
                slot = (
                    len(self.entries) + len(self.errors) + sum(len(f.waiters) for f in self.flights._flights.values())
                )
                self.flights.join(key_of(url, None, None), url, None, options or StoreOptions(), self, slot)

    def settle(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def right(self, *urls: str) -> bool:
        return sorted(Path(e.path).read_bytes() for e in self.entries.values()) == sorted(data(url) for url in urls)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sds.fetch.flights.pause_before", lambda *_: 0.01)


KINDS = ["reset", "refuse", "short", "empty", "status"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_passes_is_tried_again(tmp_path: Path, kind: str) -> None:
    tower = Tower(tmp_path, FaultyStore(Objects(), [Fault(kind, attempts=(1, 2))]))  # type: ignore[arg-type]
    tower.ask("http://h/a")
    tower.settle(lambda: tower.entries)
    assert tower.right("http://h/a")
    asked = 5 if kind == "empty" else 3  # twice for the size
    assert tower.counts["retries"] == 2 and tower.counts["requests"] == asked and tower.counts["misses"] == 1
    assert tower.flights.num_active == 0 and tower.cache.reserved == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_pass_is_an_error_after_the_retries(tmp_path: Path, kind: str) -> None:
    tower = Tower(tmp_path, FaultyStore(Objects(), [Fault(kind)]), limit=10_000)  # type: ignore[arg-type]
    tower.ask("http://h/a", options=StoreOptions(num_retries=2))
    tower.settle(lambda: tower.errors or tower.entries)
    assert isinstance(tower.errors[0], FetchError) and tower.counts["retries"] == 2
    assert tower.flights.num_active == 0 and tower.cache.reserved == 0
    assert not list(tmp_path.rglob("part-*"))


def test_what_stays_is_tried_once(tmp_path: Path) -> None:
    tower = Tower(tmp_path, FaultyStore(Objects(), [Fault("status", status=404)]))  # type: ignore[arg-type]
    tower.ask("http://h/a")
    tower.settle(lambda: tower.errors)
    assert isinstance(tower.errors[0], ObjectNotFound) and tower.counts["requests"] == 1


def test_a_flight_that_waits_to_be_tried_again_holds_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sds.fetch.flights.pause_before", lambda *_: 0.3)
    store = FaultyStore(Objects(), [Fault("status", key="/bad", attempts=(1,), status=500)])  # type: ignore[arg-type]
    tower = Tower(tmp_path, store, num_threads=1)
    tower.ask("http://h/bad", "http://h/good")
    tower.settle(lambda: tower.entries)
    assert tower.right("http://h/good") and tower.flights.num_active == 1  # it counts: room may come free by it
    tower.settle(lambda: len(tower.entries) == 2)


def test_everybody_leaves_while_it_waits_to_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sds.fetch.flights.pause_before", lambda *_: 0.05)
    tower = Tower(tmp_path, FaultyStore(Objects(), [Fault("status")]), limit=10_000)  # type: ignore[arg-type]
    tower.ask("http://h/a", options=StoreOptions(num_retries=100))
    tower.settle(lambda: tower.store.injected["status"] >= 2)
    with tower.lock:
        (flight,) = tower.flights._flights.values()
        tower.flights.leave(flight, tower)
    tower.settle(lambda: not tower.flights._flights and tower.flights.num_active == 0)
    assert not tower.entries and not tower.errors and tower.cache.reserved == 0


def test_who_leaves_while_a_store_is_throttled_holds_up_nobody(tmp_path: Path) -> None:
    objects = Objects()
    objects.hold = {"http://h/first"}
    tower = Tower(tmp_path, objects)
    leaver = Tower(tmp_path / "leaver", objects)
    tower.ask("http://h/first")
    tower.settle(lambda: objects.opened)
    pace = tower.flights._traffic._paces["http://h"]
    with tower.lock:
        pace.slow_down(time.monotonic() + 1, time.monotonic())
        urls = [f"http://h/left-{i}" for i in range(5)]
        flights = [tower.flights.join(url, url, None, StoreOptions(), leaver, i) for i, url in enumerate(urls)]
    tower.settle(lambda: len(pace.waiting) == 5)
    tower.ask(*(f"http://h/{i}" for i in range(5)))
    tower.settle(lambda: len(pace.waiting) == 10)
    with tower.lock:
        for flight in flights:
            tower.flights.leave(flight, leaver)
    objects.gate.set()
    tower.settle(lambda: len(tower.entries) == 6)
    assert len(objects.opened) == 6 and not leaver.entries and not leaver.errors


@pytest.mark.parametrize("status", [403, 405, 501])
def test_an_empty_body_is_believed_where_nobody_can_say_more(tmp_path: Path, status: int) -> None:
    faults = [Fault("empty"), Fault("status", method="HEAD", status=status)]
    tower = Tower(tmp_path, FaultyStore(Objects(), faults))  # type: ignore[arg-type]
    tower.ask("http://h/a")
    tower.settle(lambda: tower.entries)
    assert tower.entries[0].size == 0 and tower.counts["retries"] == 0


@pytest.mark.parametrize("kind", ["status", "refuse"])
def test_an_empty_body_is_not_believed_because_its_head_failed(tmp_path: Path, kind: str) -> None:
    faults = [Fault("empty", attempts=(1,)), Fault(kind, method="HEAD", attempts=(1,))]
    tower = Tower(tmp_path, FaultyStore(Objects(), faults))  # type: ignore[arg-type]
    tower.ask("http://h/a")
    tower.settle(lambda: tower.entries)
    assert tower.right("http://h/a") and tower.counts["retries"] == 1


def test_bodies_of_unknown_length_give_their_memory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sds.fetch.download.WHOLE", 100)
    monkeypatch.setattr("sds.fetch.download._MAX_UNWRITTEN", 300)

    class Unannounced(Objects):
        def open(self, key: str, span: Any = None) -> Body:
            body = data(key)
            return Body(None, "v", iter([body[i : i + 60] for i in range(0, len(body), 60)]))

    tower = Tower(tmp_path, Unannounced(), num_threads=8)
    urls = [f"http://h/{i}" for i in range(30)]
    tower.ask(*urls)
    tower.settle(lambda: len(tower.entries) == 30)
    assert tower.right(*urls) and tower.flights._download.budget._taken == 0


def test_users_are_told_of_a_bucket_that_is_no_longer_checked(tmp_path: Path) -> None:
    tower = Tower(tmp_path, FaultyStore(Objects(), [Fault("flip", at=0.5)]))  # type: ignore[arg-type]
    told: list[str] = []
    tower.flights.on_warning = told.append
    tower.ask(*(f"s3://b/{i}" for i in range(3)), options=StoreOptions(settings={"checksums": True}))
    tower.settle(lambda: len(tower.entries) == 3)
    assert len(told) == 1 and "s3://b" in told[0]


def test_a_lie_is_found_by_its_checksum(tmp_path: Path) -> None:
    flips = [Fault("flip", key="once", attempts=(1,)), Fault("flip", key="ever", attempts=(1, 3))]
    cuts = [Fault("short", key="ever", attempts=(2, 4), matching=True)]
    tower = Tower(tmp_path, FaultyStore(Objects(), [*flips, *cuts]))  # type: ignore[arg-type]
    checked = StoreOptions(settings={"checksums": True}, num_retries=3)
    tower.ask("http://h/once", options=checked)
    tower.settle(lambda: tower.entries)
    assert tower.right("http://h/once")
    tower.ask("http://h/ever", options=checked)
    tower.settle(lambda: tower.errors)
    assert isinstance(tower.errors[1], IntegrityError)


# ------------------------------------------------------------------------------------------------------- hedges


@pytest.fixture
def nervous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hedges_module, "_FLOOR_S", 0.1)
    monkeypatch.setattr(hedges_module, "_TIMES", 0.0)


def warmed_up(tower: Tower) -> None:
    tower.ask(*(f"http://h/{i}" for i in range(100)))
    tower.settle(lambda: len(tower.entries) == 100)


@pytest.mark.usefixtures("nervous")
def test_the_second_request_wins_and_the_first_is_dropped(tmp_path: Path) -> None:
    objects = Objects()
    tower = Tower(tmp_path, objects, num_threads=1)
    warmed_up(tower)
    objects.hold.add("http://h/slow")
    tower.ask("http://h/slow")
    tower.settle(lambda: len(tower.entries) == 101)
    assert tower.counts["hedges"] == 1 and objects.opened.count("http://h/slow") == 2
    before = dict(tower.counts)
    tower.ask("http://h/next")  # the only thread still waits: another has taken its place
    tower.settle(lambda: len(tower.entries) == 102)
    objects.gate.set()  # the first answer comes at last, and is nobody's
    tower.settle(lambda: not tower.flights._traffic._in_air)
    assert tower.counts["bytes_downloaded"] == before["bytes_downloaded"] + 640
    assert tower.flights._download.budget._taken == 0 and tower.flights.num_active == 0
    tower.ask("http://h/last")
    tower.settle(lambda: len(tower.entries) == 103)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("hedge") <= 2


@pytest.mark.usefixtures("nervous")
def test_the_first_request_wins_after_all(tmp_path: Path) -> None:
    objects = Objects()
    tower = Tower(tmp_path, objects)
    warmed_up(tower)
    objects.hold = {"http://h/slow"}
    second = threading.Event()
    plain = objects.open

    def open_slowly(key: str, span: Any = None) -> Body:
        if key == "http://h/slow" and objects.opened.count(key):
            objects.gate.set()
            assert second.wait(10)
        return plain(key, span)

    objects.open = open_slowly  # type: ignore[method-assign]
    tower.ask("http://h/slow")
    tower.settle(lambda: len(tower.entries) == 101)
    second.set()
    tower.settle(lambda: not tower.flights._traffic._in_air)
    assert tower.counts["hedges"] == 1 and tower.flights.num_active == 0
    assert tower.flights._download.budget._taken == 0


@pytest.mark.usefixtures("nervous")
def test_the_first_request_comes_and_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is free, so the second one's is not needed."""
    objects = Objects()
    tower = Tower(tmp_path, objects)
    warmed_up(tower)
    before = set(threading.enumerate())
    disk, second = threading.Event(), threading.Event()
    written: list[str] = []
    write, plain = writers_module.write_whole, objects.open

    def write_slowly(part: str, name: str, chunks: Any) -> str:
        written.append(part)
        assert disk.wait(10)
        return write(part, name, chunks)

    def open_slowly(key: str, span: Any = None) -> Body:
        if key == "http://h/slow" and objects.opened.count(key):
            objects.opened.append(key)
            assert second.wait(10)
        return plain(key, span)

    monkeypatch.setattr(writers_module, "write_whole", write_slowly)
    objects.open = open_slowly  # type: ignore[method-assign]
    tower.ask("http://h/a", "http://h/b")
    tower.settle(lambda: len(written) == 2)  # both writers are busy
    objects.hold = {"http://h/slow"}
    tower.ask("http://h/slow")
    tower.settle(lambda: objects.opened.count("http://h/slow") == 2)
    first = next(each for each in list(tower.flights._traffic._in_air) if each.flight.url == "http://h/slow")
    objects.gate.set()
    tower.settle(lambda: first.ended_at is not None)
    second.set()
    tower.settle(lambda: not any(each.is_hedge for each in list(tower.flights._traffic._in_air)))
    disk.set()
    tower.settle(lambda: len(tower.entries) == 103)
    tower.settle(lambda: not any(each.name == "hedge" for each in set(threading.enumerate()) - before))
    assert tower.flights._download.budget._taken == 0 and tower.flights.num_active == 0


def test_bodies_that_wait_for_the_disk_together_are_told_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Objects()
    tower = Tower(tmp_path, objects)
    disk = threading.Event()
    told: list[int] = []
    write = writers_module.write_whole
    tower.flights._tell = tower.flights._writers._tell = lambda: told.append(len(tower.entries))
    unwritable = str(tmp_path / key_of("http://h/7", None, None)[:2])

    def write_slowly(part: str, name: str, chunks: Any) -> str:
        assert disk.wait(10)
        if part.startswith(unwritable):
            raise CacheError("no")
        return write(part, name, chunks)

    monkeypatch.setattr(writers_module, "write_whole", write_slowly)
    urls = [f"http://h/{i}" for i in range(40)]
    bad = [url for url in urls if key_of(url, None, None)[:2] == unwritable[-2:]]
    tower.ask(*urls)
    in_air = tower.flights._traffic._in_air
    tower.settle(lambda: len(objects.opened) == 40 and all(each.ended_at is not None for each in list(in_air)))
    disk.set()
    tower.settle(lambda: len(tower.entries) + len(tower.errors) == 40 and told and told[-1] == len(tower.entries))
    assert tower.right(*(url for url in urls if url not in bad)), "one that fails harms no other"
    assert len(tower.errors) == len(bad) > 0
    assert len(told) < 40
    assert tower.flights._download.budget._taken == 0 and tower.flights.num_active == 0


@pytest.mark.usefixtures("nervous")
def test_a_machine_that_allows_no_more_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Objects()
    store = FaultyStore(objects, [Fault("status", key="again", attempts=(1,), status=500)])  # type: ignore[arg-type]
    tower = Tower(tmp_path, store)
    warmed_up(tower)
    refused: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        refused.append(thread.name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    objects.hold = {"http://h/slow"}
    tower.ask("http://h/slow")
    tower.settle(lambda: "hedge" in refused)
    tower.ask("http://h/again")  # the timekeeper lives
    tower.settle(lambda: len(tower.entries) == 101)
    objects.gate.set()
    tower.settle(lambda: len(tower.entries) == 102)
    tower.flights.ensure_threads(8)
    assert tower.flights._num_threads == 4 and not tower.flights._traffic._in_air and not tower.errors


@pytest.mark.usefixtures("nervous")
def test_a_second_request_that_fails_harms_nobody(tmp_path: Path) -> None:
    objects = Objects()
    objects.hold = {"http://h/slow"}
    store = FaultyStore(objects, [Fault("status", key="slow", attempts=(2,), status=404)])  # type: ignore[arg-type]
    tower = Tower(tmp_path, store)
    warmed_up(tower)
    tower.ask("http://h/slow")
    tower.settle(lambda: store.injected["status"] == 1)
    time.sleep(0.02)
    assert not tower.errors
    objects.gate.set()
    tower.settle(lambda: len(tower.entries) == 101)


def test_faults_of_all_kinds_and_one_result_for_each(tmp_path: Path) -> None:
    kinds = ["reset", "refuse", "short", "flip", "status"]
    store = FaultyStore(Objects(), [Fault(kind, share=0.05) for kind in kinds], seed=1)  # type: ignore[arg-type]
    tower = Tower(tmp_path, store, num_threads=16, limit=100_000)
    urls = [f"http://h{i % 3}/{i}" for i in range(400)]
    for url in urls:
        tower.ask(url, options=StoreOptions(settings={"checksums": True}, num_retries=20))
    deadline = time.monotonic() + 20
    seen: list[bytes] = []
    while len(seen) < len(urls):
        assert time.monotonic() < deadline and not tower.errors
        with tower.lock:
            for slot in list(tower.entries):
                entry = tower.entries[slot]
                if entry is not None and entry.num_leases:
                    seen.append(Path(entry.path).read_bytes())
                    tower.cache.release(entry)
                    tower.entries[slot] = None  # type: ignore[assignment]
            tower.flights.admit()
            assert tower.cache.used <= 100_000
        time.sleep(0.001)
    assert sorted(seen) == sorted(data(url) for url in urls)
    assert sum(store.injected.values()) > 50 and tower.cache.reserved == 0
