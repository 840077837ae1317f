"""Flights without a network: order, room, desertion, and that everybody is told exactly once."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sds.errors import AccessDenied, CacheFull, SdsError
from sds.fetch.bodies import write_whole
from sds.fetch.cache import Cache, Entry, key_of
from sds.fetch.flights import Flight, Flights
from sds.storage import Body, StoreOptions

OPTIONS = StoreOptions(num_retries=0)
DENIED = StoreOptions(settings={"secret_access_key": "wrong"})


class FakeStores:
    """Objects by URL; each `open` waits for a gate, if there is one."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.opened: list[str] = []
        self.gate: threading.Event | None = None

    def once(self, url: str, options: StoreOptions, verb: Any) -> Any:
        if options is DENIED:
            raise AccessDenied("access denied")
        return verb(self, url)

    def open(self, url: str, span: object = None) -> Body:
        self.opened.append(url)
        if self.gate is not None:
            assert self.gate.wait(5)
        return Body(self.sizes[url], "v", iter([bytes(self.sizes[url])]))


class Client:
    """Somebody who asks, and writes down what came."""

    def __init__(self, tower: Tower) -> None:
        self.tower = tower
        self.entries: list[Entry] = []
        self.errors: list[SdsError] = []

    def ask(self, *urls: str, options: StoreOptions = OPTIONS, version: str | None = None) -> list[Flight]:
        with self.tower.lock:
            return [
                self.tower.flights.join(key_of(url, version, None), url, version, options, self, i)
                for i, url in enumerate(urls)
            ]

    def landed(self, slot: int, entry: Entry, counts: dict[str, int]) -> None:
        self.entries.append(entry)

    def failed(self, slot: int, error: SdsError, counts: dict[str, int]) -> None:
        self.errors.append(error)

    def release(self, number: int = 0) -> None:
        with self.tower.lock:
            self.tower.cache.release(self.entries.pop(number))
            self.tower.flights.admit()


class Tower:
    def __init__(self, folder: Path, limit: int | None, sizes: dict[str, int], **options: Any) -> None:
        self.lock = threading.RLock()
        self.cache = Cache(folder, limit)
        self.flights = Flights(self.cache, self.lock, lambda: None, **options)
        self.stores = FakeStores(sizes)
        self.flights._stores = self.stores  # type: ignore[assignment]
        self.flights.ensure_threads(4)

    def settle(self, condition: Any) -> None:
        deadline = time.monotonic() + 5
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.001)


def sizes(number: int, size: int = 10) -> dict[str, int]:
    return {f"u{i}": size for i in range(number)}


def test_one_flight_for_all_who_ask(tmp_path: Path) -> None:
    tower = Tower(tmp_path, None, sizes(1))
    tower.stores.gate = threading.Event()
    clients = [Client(tower) for _ in range(5)]
    for client in clients:
        client.ask("u0")
    tower.stores.gate.set()
    tower.settle(lambda: all(client.entries for client in clients))
    assert tower.stores.opened == ["u0"]
    assert clients[0].entries[0].num_leases == 5


def test_parked_flights_take_off_in_the_order_of_asking(tmp_path: Path) -> None:
    tower = Tower(tmp_path, 10, sizes(8))
    client = Client(tower)
    client.ask("u0")
    tower.settle(lambda: client.entries)
    for i in (1, 2, 3, 4):
        client.ask(f"u{i}")
    tower.settle(lambda: tower.flights.starving() and len(tower.flights._room.parked) == 4)
    assert tower.stores.opened == ["u0"]  # nothing was asked of the store that would have to wait
    for _ in range(4):
        client.release()
        tower.settle(lambda: client.entries)
    assert tower.stores.opened == ["u0", "u1", "u2", "u3", "u4"]
    assert tower.cache.used == 10


def test_who_is_waited_for_takes_off_first(tmp_path: Path) -> None:
    tower = Tower(tmp_path, 10, sizes(8))
    client = Client(tower)
    client.ask("u0")
    tower.settle(lambda: client.entries)
    flights = client.ask("u1", "u2", "u3", "u4")
    tower.settle(lambda: len(tower.flights._room.parked) == 4)
    with tower.lock:
        for flight in (flights[3], flights[1], flights[3]):
            tower.flights.hurry(flight)
        assert [flight.url for flight in tower.flights.parked()] == ["u4", "u2", "u1", "u3"]
    for _ in range(4):
        client.release()
        tower.settle(lambda: client.entries)
    assert tower.stores.opened == ["u0", "u4", "u2", "u1", "u3"]


def test_a_flight_may_be_waited_for_while_it_asks_for_its_size(tmp_path: Path) -> None:
    """It keeps nobody out for good: its place among those who ask is the new one."""
    tower = Tower(tmp_path, 12, {"u0": 12, "u1": 4, "u2": 4})
    client, room = Client(tower), tower.flights._room
    client.ask("u0")
    tower.settle(lambda: client.entries)
    one, _ = client.ask("u1", "u2")
    tower.settle(lambda: len(room.parked) == 2)
    tower.stores.gate = threading.Event()
    with tower.lock:
        assert tower.flights.ask_sizes([one])
        tower.flights.hurry(one)
        assert one.number < 0 and room._probing == {one.number}
    tower.stores.gate.set()
    tower.settle(lambda: len(room.parked) == 2)
    assert not room._probing and one.size == 4
    client.release()
    tower.settle(lambda: len(client.entries) == 2)


def test_deserted_flights_vanish(tmp_path: Path) -> None:
    tower = Tower(tmp_path, 10, sizes(300))
    holder, fickle, patient = Client(tower), Client(tower), Client(tower)
    holder.ask("u0")
    tower.settle(lambda: holder.entries)
    for _ in range(20):
        asked = fickle.ask(*(f"u{i}" for i in range(1, 200)))
        tower.settle(lambda: len(tower.flights._room.parked) >= 199 or not tower.flights._ready.qsize())
        with tower.lock:
            for flight in asked:
                tower.flights.leave(flight, fickle)
    patient.ask("u250")
    tower.settle(lambda: tower.flights._ready.empty() and tower.flights.starving())
    assert len(tower.flights._room.parked) < 450 and len(tower.flights._flights) <= 200
    holder.release()
    tower.settle(lambda: patient.entries)
    tower.settle(lambda: len(tower.flights._flights) == 0)
    assert not fickle.entries and tower.cache.used == 10 and tower.cache.reserved == 0


def test_whoever_joins_a_deserted_flight_is_served(tmp_path: Path) -> None:
    tower = Tower(tmp_path, 10, sizes(3))
    holder, first, second = Client(tower), Client(tower), Client(tower)
    holder.ask("u0")
    tower.settle(lambda: holder.entries)
    (flight,) = first.ask("u1")
    tower.settle(lambda: flight.is_parked)
    with tower.lock:
        tower.flights.leave(flight, first)
    second.ask("u1")
    holder.release()
    tower.settle(lambda: second.entries)
    assert not first.entries


def test_a_guess_that_is_too_large_is_mended_by_a_probe(tmp_path: Path) -> None:
    tower = Tower(tmp_path, 25, {"u0": 10, "u1": 10, "small": 5, "huge": 26})
    client = Client(tower)
    for url in ("u0", "u1", "small"):
        client.ask(url)
    tower.settle(lambda: len(client.entries) == 2 and tower.flights.starving())
    with tower.lock:
        tower.flights.probe()
    tower.settle(lambda: len(client.entries) == 3)
    client.ask("huge")
    tower.settle(lambda: tower.flights.starving())
    with tower.lock:
        tower.flights.probe()
    tower.settle(lambda: client.errors)
    assert isinstance(client.errors[0], CacheFull) and "26" in str(client.errors[0])
    assert tower.cache.reserved == 0


def test_a_flight_that_asks_for_its_size_keeps_its_place(tmp_path: Path) -> None:
    """Whoever came later must not take the room meanwhile: it may be needed later, and be held until then."""
    tower = Tower(tmp_path, 10, {"u0": 10, "first": 9, "second": 8})
    client = Client(tower)
    client.ask("u0")
    tower.settle(lambda: len(client.entries) == 1)
    first, second = client.ask("first", "second")
    tower.settle(lambda: first.is_parked and second.is_parked)
    tower.stores.gate = gate = threading.Event()
    with tower.lock:
        assert tower.flights.ask_sizes([first])
    tower.settle(lambda: "first" in tower.stores.opened)
    client.release()
    assert second.is_parked, "although there is room for it now"
    tower.stores.gate = None
    gate.set()
    tower.settle(lambda: [entry.size for entry in client.entries] == [9])
    client.release()
    tower.settle(lambda: [entry.size for entry in client.entries] == [8])
    assert not tower.flights.ask_sizes([first, second])


def test_an_object_larger_than_the_guess_takes_more_room_or_parks(tmp_path: Path) -> None:
    tower = Tower(tmp_path, 40, {**sizes(3), "big": 30})
    client = Client(tower)
    client.ask("u0")
    tower.settle(lambda: client.entries)
    client.ask("big")
    tower.settle(lambda: len(client.entries) == 2)
    assert tower.cache.used == 40
    client.ask("u1")
    tower.settle(lambda: tower.flights.starving())
    client.release(1)
    tower.settle(lambda: len(client.entries) == 2)
    assert tower.cache.used <= 40


def test_giving_up_tells_the_one_who_waits(tmp_path: Path) -> None:
    tower = Tower(tmp_path, 10, sizes(3))
    client, other = Client(tower), Client(tower)
    client.ask("u0")
    tower.settle(lambda: client.entries)
    (flight,) = client.ask("u1")
    other.ask("u1")
    other.ask("u2")
    tower.settle(lambda: [each.url for each in tower.flights.parked()] == ["u1", "u2"])
    with tower.lock:
        tower.flights.give_up(flight, client, CacheFull("too small"))
    assert [str(error) for error in client.errors] == ["too small"] and not other.errors
    client.release()
    tower.settle(lambda: other.entries)


def test_somebody_elses_credentials_are_somebody_elses_error(tmp_path: Path) -> None:
    tower = Tower(tmp_path, None, sizes(1))
    wrong, right = Client(tower), Client(tower)
    with tower.lock:  # nothing begins before both have asked
        assert wrong.ask("u0", options=DENIED) == right.ask("u0")
    tower.settle(lambda: right.entries)
    assert isinstance(wrong.errors[0], AccessDenied) and not right.errors and not wrong.entries


def test_who_leaves_after_changing_flights_is_given_nothing(tmp_path: Path) -> None:
    tower = Tower(tmp_path, None, sizes(1))
    tower.stores.gate = threading.Event()
    wrong, fickle = Client(tower), Client(tower)
    with tower.lock:
        wrong.ask("u0", options=DENIED)
        (flight,) = fickle.ask("u0")
    tower.settle(lambda: wrong.errors and tower.stores.opened)
    with tower.lock:
        tower.flights.leave(flight, fickle)
    tower.stores.gate.set()
    tower.settle(lambda: not tower.flights._flights)
    assert not fickle.entries and not fickle.errors and tower.cache.leased_bytes == 0


def test_an_object_that_changed_since_it_was_listed(tmp_path: Path) -> None:
    tower = Tower(tmp_path, None, sizes(3))
    client = Client(tower)
    client.ask("u0", version="v")
    client.ask("u1", version="10-1700000000.000000")  # no tag: times are not compared
    tower.settle(lambda: len(client.entries) == 2)
    client.ask("u2", version="older")
    tower.settle(lambda: client.errors)
    assert "open the dataset again" in str(client.errors[0]) and tower.stores.opened.count("u2") == 1


def test_bodies_that_wait_to_be_written_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sds.fetch.download._MAX_UNWRITTEN", 25)
    gate = threading.Event()
    seen: list[int] = []

    def slowly(part: str, name: str, chunks: Any) -> str:
        assert gate.wait(5)
        seen.append(tower.flights._download.budget._taken)
        return write_whole(part, name, chunks)

    monkeypatch.setattr("sds.fetch.writers.write_whole", slowly)
    tower = Tower(tmp_path, None, sizes(20))
    client = Client(tower)
    client.ask(*(f"u{i}" for i in range(20)))
    tower.settle(lambda: tower.flights._download.budget._taken == 20)
    gate.set()
    tower.settle(lambda: len(client.entries) == 20)
    assert max(seen) <= 25 and tower.flights._download.budget._taken == 0


def test_a_killed_servers_clients_have_time_to_come_back(tmp_path: Path) -> None:
    before = Tower(tmp_path, None, sizes(3))
    client = Client(before)
    client.ask("u0")
    before.settle(lambda: client.entries)
    after = Tower(tmp_path, 10, sizes(3), evict_from=time.monotonic() + 0.3)
    other = Client(after)
    other.ask("u1")
    time.sleep(0.1)
    assert Path(client.entries[0].path).exists() and not other.entries
    time.sleep(0.25)
    with after.lock:
        after.flights.admit()
    after.settle(lambda: other.entries)
    assert not Path(client.entries[0].path).exists()


def test_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    tower = Tower(tmp_path, 100, sizes(2))
    client = Client(tower)

    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("sds.fetch.bodies.write_file", full)
        client.ask("u0")
        tower.settle(lambda: client.errors)
    assert "No space left on device" in str(client.errors[0]) and "hint: free some disk" in str(client.errors[0])
    assert tower.cache.used == 0 and not [path for path in tmp_path.rglob("*") if path.is_file()]
    client.ask("u0")
    tower.settle(lambda: client.entries)


def test_a_defect_leaves_nobody_waiting(tmp_path: Path) -> None:
    tower = Tower(tmp_path, 100, {"u0": 10})
    client = Client(tower)
    client.ask("http://user:SECRET@h/unknown?token=SECRET")
    tower.settle(lambda: client.errors)
    assert "KeyError" in str(client.errors[0]) and "SECRET" not in str(client.errors[0])
    assert tower.cache.reserved == 0
