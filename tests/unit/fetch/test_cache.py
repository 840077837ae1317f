"""The folder's bookkeeping: what is on disk fits what is counted, what is held stays, what is foreign is left alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from sds.errors import CacheError
from sds.fetch import cache as cache_module
from sds.fetch.cache import Cache, Entry, key_of
from sds.fetch.flight import Flight
from sds.fetch.reports import describe
from sds.storage import StoreOptions


def key(number: int) -> str:
    return key_of(str(number), None, None)


def add(cache: Cache, number: int, size: int, suffix: str = ".bin") -> Entry | None:
    """Puts an object in, as a flight does; None if there is no room."""
    if not cache.reserve(size):
        return None
    part = cache.part_path(key(number))
    Path(part).write_bytes(bytes(size))
    entry = cache.commit(key(number), part, size, suffix)
    cache.release(entry)
    return entry


def bytes_in(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


HARMS = ("deleted", "emptied", "shortened", "lengthened", "link", "pipe", "folder")


def harm(path: str, how: str) -> None:
    """Does something to a cached file that is not to be done; an empty one cannot be made shorter."""
    size = os.lstat(path).st_size if os.path.lexists(path) else 0
    with contextlib.suppress(FileNotFoundError):
        if how in ("emptied", "shortened") and size and os.path.isfile(path):
            os.truncate(path, 0 if how == "emptied" else size - 1)
        elif how == "lengthened":
            os.truncate(path, size + 1)
        else:
            os.unlink(path)
    if how == "link":
        os.symlink("/etc/hostname", path)
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        os.mkdir(path)


class Machine(RuleBasedStateMachine):
    """Flights and clients in any order, against a folder on disk."""

    reservations = Bundle("reservations")
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.place = tempfile.TemporaryDirectory()
        self.folder = Path(self.place.name)
        self.cache = Cache(self.folder, limit=100)
        self.held: list[Entry] = []
        self.in_flight: set[str] = set()
        self.harmed: set[Entry] = set()

    def teardown(self) -> None:
        self.place.cleanup()

    @rule(target=reservations, number=st.integers(0, 12), size=st.integers(0, 40))
    def reserve(self, number: int, size: int) -> object:
        if key(number) in self.in_flight or self.cache.find(key(number)) is not None or not self.cache.reserve(size):
            return multiple()
        self.in_flight.add(key(number))
        part = self.cache.part_path(key(number))
        return number, size, part

    @rule(flight=reservations, share=st.floats(0, 1))
    def write_some(self, flight: tuple[int, int, str], share: float) -> None:
        if key(flight[0]) in self.in_flight:
            Path(flight[2]).write_bytes(bytes(int(flight[1] * share)))

    @rule(target=leases, flight=consumes(reservations))
    def land(self, flight: tuple[int, int, str]) -> Entry:
        number, size, part = flight
        Path(part).write_bytes(bytes(size))
        entry = self.cache.commit(key(number), part, size, ".bin")
        self.in_flight.discard(key(number))
        self.held.append(entry)
        return entry

    @rule(flight=consumes(reservations))
    def fail(self, flight: tuple[int, int, str]) -> None:
        self.cache.drop_part(flight[2])
        self.cache.cancel(flight[1])
        self.in_flight.discard(key(flight[0]))

    @rule(target=leases, number=st.integers(0, 12))
    def lease(self, number: int) -> object:
        if self.cache.find(key(number)) is None:
            return multiple()
        entry = self.cache.lease(key(number))
        self.held.append(entry)
        return entry

    @rule(entry=consumes(leases))
    def release(self, entry: Entry) -> None:
        self.held.remove(entry)
        self.cache.release(entry)

    @rule(policy=st.sampled_from(["keep", "lru"]))
    def change_policy(self, policy: str) -> None:
        self.cache.policy = policy

    @rule(number=st.integers(0, 12), how=st.sampled_from(HARMS), is_leased=st.booleans())
    def harm_from_outside(self, number: int, how: str, is_leased: bool) -> None:
        """Somebody else is in the folder; files in use are harmed too. Bytes added from outside are not counted."""
        entry = self.cache._entries.get(key(number))
        if entry is None or bool(entry.num_leases) != is_leased or how in ("lengthened", "folder"):
            return
        harm(entry.path, how)
        self.harmed.add(entry)

    @rule(seconds=st.integers(0, 100))
    def age(self, seconds: int) -> None:
        """Some files are suddenly old."""
        self.cache.ttl_s = 50.0
        for entry in list(self.cache._entries.values())[: seconds % 4]:
            entry.made_at -= seconds
        self.cache.expire()
        self.cache.ttl_s = None

    @rule()
    def fill_the_disk(self) -> None:
        self.cache.note_full_disk()

    @rule()
    def empty_the_disk(self) -> None:
        self.cache._full_until = 0.0

    @precondition(lambda self: not self.held and not self.in_flight)
    @rule(distrust_s=st.sampled_from([None, 0.0, 1e9]))
    def start_again(self, distrust_s: float | None) -> None:
        before = {entry.key: entry for entry in self.cache._entries.values()}
        self.cache = Cache(self.folder, limit=100, distrust_s=distrust_s)
        left = {entry.key for entry in self.cache._entries.values()}
        whole = {k for k, entry in before.items() if entry not in self.harmed}
        assert left == set() if distrust_s else left <= whole if distrust_s is not None else left == whole

    @invariant()
    def the_limit_holds(self) -> None:
        assert bytes_in(self.folder) <= self.cache.used <= 100

    @invariant()
    def what_is_held_is_there(self) -> None:
        held = set(self.held) - self.harmed
        assert all(os.lstat(entry.path).st_size == entry.size for entry in held)
        known = {entry for entry in self.held if self.cache._entries.get(entry.key) is entry}
        assert self.cache.leased_bytes == sum(entry.size for entry in known) and held <= known

    @invariant()
    def what_is_handed_out_is_whole(self) -> None:
        for number in range(0, 13, 4):
            entry = self.cache.find(key(number))
            assert entry is None or (os.lstat(entry.path).st_size == entry.size and entry not in self.harmed)

    @invariant()
    def sums_agree(self) -> None:
        assert self.cache.used == self.cache.reserved + sum(entry.size for entry in self.cache._entries.values())


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_reserving_evicts_idle_files_only(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=30)
    first, second = add(cache, 1, 10), add(cache, 2, 10)
    assert first and second
    cache.lease(first.key)
    assert cache.reserve(20)
    assert os.path.exists(first.path) and not os.path.exists(second.path)
    assert not cache.reserve(1) and cache.used == 30
    cache.cancel(20)
    assert cache.used == 10 and cache.num_evictions == 1


def test_no_limit_evicts_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert all(add(cache, number, 1000) for number in range(20))
    assert len(cache) == 20 and cache.num_evictions == 0


def test_a_lowered_limit_holds_when_files_are_let_go(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=100)
    entries = [add(cache, number, 10) for number in range(5)]
    for entry in entries:
        assert entry
        cache.lease(entry.key)
    cache.limit = 25
    cache.shrink()
    assert bytes_in(tmp_path) == 50
    for entry in entries:
        assert entry
        cache.release(entry)
    assert bytes_in(tmp_path) == cache.used == 20


def test_a_new_cache_finds_what_is_whole(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=1000)
    whole, short, long, gone = (add(cache, number, 10 + number) for number in range(4))
    assert whole and short and long and gone
    os.truncate(short.path, 3)
    with open(long.path, "ab") as file:
        file.write(b"more")
    os.unlink(gone.path)
    again = Cache(tmp_path, limit=1000)
    assert len(again) == 1 and again.used == whole.size == bytes_in(tmp_path)
    assert again.find(whole.key) is not None and again.find(short.key) is None


def test_unfinished_files_are_removed_whatever_their_size(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for number in range(1, 40):  # among them files of exactly as many bytes as the number in their name says
        assert cache.reserve(100)
        Path(cache.part_path(key(number))).write_bytes(bytes(number))
    assert bytes_in(tmp_path)
    again = Cache(tmp_path)
    assert len(again) == 0 and again.used == 0 and bytes_in(tmp_path) == 0


def test_an_object_that_is_called_part(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    entry = add(cache, 1, 7, ".part")
    assert entry and entry.path.endswith(".part")
    assert Cache(tmp_path).find(entry.key) is not None


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "objects")
    entry = add(cache, 1, 10)
    assert entry
    bucket = Path(entry.path).parent
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / f"{key(2)}-99.bin").write_bytes(b"theirs")  # damaged, by its name
    foreign = [
        tmp_path / "objects" / "README",
        tmp_path / "objects" / "zz" / f"{key(3)}-5",
        bucket / "notes.txt",
        bucket / f"{key(1)[:-1]}-10.bin",
        bucket / f"{key(1)}-10.bin.bak",
        bucket / f"x{key(1)}-10.bin",
        bucket / "part-x",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"theirs")
    os.symlink(outside, tmp_path / "objects" / "ab")
    os.symlink(outside / f"{key(2)}-99.bin", bucket / f"{key(4)}-6.bin")
    (bucket / f"{key(5)}-4096").mkdir()
    os.mkfifo(bucket / f"{key(6)}-0")
    again = Cache(tmp_path / "objects", limit=5)  # and evicting touches none of them either
    assert len(again) == 0 and not os.path.exists(entry.path)
    assert all(path.read_bytes() == b"theirs" for path in [*foreign, outside / f"{key(2)}-99.bin"])
    assert (bucket / f"{key(4)}-6.bin").is_symlink() and (bucket / f"{key(5)}-4096").is_dir()


def test_links_in_place_of_folders_are_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "objects").symlink_to(outside)
    with pytest.raises(CacheError, match=r"link .or a file. where a folder"):
        Cache(tmp_path / "objects")
    cache = Cache(tmp_path / "own")
    (tmp_path / "own" / key(1)[:2]).symlink_to(outside)
    with pytest.raises(CacheError, match=r"link .or a file. where a folder"):
        cache.part_path(key(1))
    assert not list(outside.iterdir())


def test_a_cached_file_that_became_a_link_is_not_served(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "objects")
    entry = add(cache, 1, 10)
    assert entry
    (tmp_path / "secret").write_bytes(bytes(10))
    os.unlink(entry.path)
    os.symlink(tmp_path / "secret", entry.path)
    assert cache.find(entry.key) is None and cache.used == 0
    assert (tmp_path / "secret").exists()


def test_a_damaged_file_under_a_lease_is_replaced(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=100)
    entry = add(cache, 1, 10)
    assert entry
    cache.lease(entry.key)
    os.truncate(entry.path, 1)
    assert cache.find(entry.key) is None
    successor = add(cache, 1, 10)
    assert successor
    cache.release(entry)  # the late release of the old one does not touch the new one
    assert cache.find(entry.key) is successor and cache.used == 10


def test_files_that_cannot_be_deleted_still_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path, limit=30)
    assert add(cache, 1, 10) and add(cache, 2, 20)

    def refuse(path: str) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    with monkeypatch.context() as patched:
        patched.setattr(cache_module.os, "unlink", refuse)
        assert not cache.reserve(10)
    assert bytes_in(tmp_path) <= cache.used <= 30
    assert not cache.reserve(10)


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("is_leased", [False, True])
def test_a_harmed_file_is_forgotten_on_use_and_on_start(tmp_path: Path, how: str, is_leased: bool) -> None:
    cache = Cache(tmp_path, limit=100)
    entry, other = add(cache, 1, 10), add(cache, 2, 10)
    assert entry and other
    if is_leased:
        cache.lease(entry.key)
    harm(entry.path, how)
    assert cache.find(entry.key) is None and cache.find(other.key) is other
    assert how == "folder" or add(cache, 1, 10) is not None  # and it is fetched again, to the same place
    harm(other.path, how)
    again = Cache(tmp_path, limit=100)
    assert again.find(other.key) is None and (how == "folder" or again.find(entry.key) is not None)


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    entry = add(cache, 1, 10)
    assert entry
    harm(entry.path, "folder")
    (Path(entry.path) / "theirs").write_text("x")
    assert cache.find(entry.key) is None and cache.reserve(10)
    part = cache.part_path(entry.key)
    Path(part).write_bytes(bytes(10))
    with pytest.raises(CacheError, match=r"cannot be used.*Is a directory"):
        cache.commit(entry.key, part, 10, ".bin")
    assert (Path(entry.path) / "theirs").exists()


def test_buckets_that_somebody_deleted_are_made_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "objects")
    assert add(cache, 1, 10)
    shutil.rmtree(tmp_path / "objects")
    assert cache.find(key(1)) is None
    assert add(cache, 1, 10) and cache.find(key(1)) is not None


def test_old_files_are_fetched_again_unless_somebody_holds_them(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=100)
    entries = [add(cache, number, 10) for number in range(4)]
    for entry in entries[:3]:
        assert entry
        os.utime(entry.path, (1, time.time() - 1000))
    again = Cache(tmp_path, limit=100)
    held = again.lease(key(0))
    again.ttl_s = 500.0
    assert again.find(key(0)) is held and again.find(key(1)) is None and again.find(key(3)) is not None
    again.expire()
    assert sorted(path.name for path in tmp_path.rglob("*-10.bin")) == sorted(
        f"{key(number)}-10.bin" for number in (0, 3)
    )
    again.release(held)
    again.expire()
    assert len(again) == 1 and again.used == bytes_in(tmp_path) == 10


def test_a_file_of_the_future_keeps_no_other_from_growing_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = add(Cache(tmp_path), 0, 10)
    assert first
    os.utime(first.path, (1, time.time() + 1e6))
    again = Cache(tmp_path)
    again.ttl_s = 500.0
    assert add(again, 1, 10) and add(again, 2, 10)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1000)
    again.expire()
    assert len(again) == 0


def test_asking_what_is_known_deletes_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    entry = add(cache, 1, 10)
    assert entry
    os.truncate(entry.path, 5)
    flight = Flight(1, key(1), "u", None, StoreOptions())
    assert describe([flight], cache) == "it is here, and about to be sent" and os.path.exists(entry.path)
    assert describe([Flight(1, key(2), "u", None, StoreOptions())], cache) == "it is in the queue for a connection"


def test_what_may_not_have_reached_the_disk_is_not_believed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for number, age in enumerate((1000, 500, 100, 10, 0)):
        entry = add(cache, number, 10)
        assert entry
        os.utime(entry.path, (1, time.time() - 5000 - age))
    after_a_crash = Cache(tmp_path, distrust_s=120.0)
    assert [after_a_crash.find(key(number)) is not None for number in range(5)] == [True, True, False, False, False]
    assert bytes_in(tmp_path) == after_a_crash.used == 20


def test_a_full_disk_counts_as_the_limit(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=100)
    assert not cache.note_full_disk()  # nothing of ours is there
    entries = [add(cache, number, 10) for number in range(4)]
    assert all(entries) and cache.note_full_disk() and cache.room == 40
    held = cache.lease(key(0))
    assert cache.reserve(30) and cache.num_evictions == 3 and cache.used == 40
    assert not cache.reserve(1)
    cache.cancel(30)
    assert not cache.reserve(50)  # more than the disk has, and somebody holds a file
    cache.release(held)
    assert cache.reserve(50) and cache.used == 50  # nothing else of ours is left: it is tried
    cache.cancel(50)
    cache._full_until = 0.0
    assert cache.room == 100


def test_a_full_disk_has_no_room_for_what_was_only_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are on their way, whose sizes are only guessed: that is not what the disk has."""
    cache = Cache(tmp_path, limit=10**9)
    entries = [add(cache, number, 10) for number in range(2)]
    assert all(entries) and cache.reserve(40_000_000) and cache.reserve(10)
    part = cache.part_path(key(2))
    Path(part).write_bytes(b"x" * 10)  # one of them is whole, and about to be entered
    monkeypatch.setattr("sds.fetch.cache.free_bytes", lambda folder: 7)
    monkeypatch.setattr("sds.fetch.cache.written_bytes", lambda path: 4)
    assert cache.note_full_disk() and cache.room == 20 + 4 + 7
    cache.release(cache.lease(key(0)))
    assert not cache.num_evictions, "a file goes when another one needs its room, not before"
    cache.release(cache.commit(key(2), part, 10, ".bin"))
    cache.cancel(40_000_000)
    assert cache.used == 30 and cache.room == 31


@pytest.mark.parametrize(("free", "wanted", "room"), [(50, 40, 60), (46, 40, 10), (50, 5, 10)])
def test_a_disk_that_others_free_is_used_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, wanted: int, room: int
) -> None:
    """But not if it refused what it said that it had: then there is a quota, of which it tells nothing."""
    cache = Cache(tmp_path, limit=100)
    assert add(cache, 1, 10)
    monkeypatch.setattr("sds.fetch.cache.free_bytes", lambda folder: 7)
    assert cache.note_full_disk() and cache.room == 10
    monkeypatch.setattr("sds.fetch.cache.free_bytes", lambda folder: free)
    cache.look_at_disk(wanted)
    assert cache.room == room


def test_the_same_key_twice_is_one_file(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    entry = add(cache, 1, 10)
    assert entry
    other = Path(entry.path).with_name(f"{entry.key}-4.txt")
    other.write_bytes(b"more")
    os.utime(other, (1, 1))  # the older of the two
    again = Cache(tmp_path)
    assert len(again) == 1 and again.used == 10 and not other.exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CacheError, match="cannot be used") as caught:
        Cache(tmp_path / "file" / "objects")
    assert caught.value.hint


def test_sweep_leaves_no_part(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    entry = add(cache, 1, 10)
    Path(cache.part_path(key(2))).write_bytes(b"half")
    cache.part_path(key(3))  # promised, not there yet
    cache.sweep()
    assert entry and [path for path in tmp_path.rglob("*") if path.is_file()] == [Path(entry.path)]


@pytest.mark.parametrize("suffix", [".jpg", ".tar", "", "./../x", "." + "a" * 17, ".a b", ".é", "/etc", ".\n"])
def test_names_stay_inside(tmp_path: Path, suffix: str) -> None:
    cache = Cache(tmp_path)
    entry = add(cache, 1, 3, suffix)
    assert entry and Path(entry.path).parent.parent == tmp_path
    assert Cache(tmp_path).find(entry.key) is not None


def test_keys_tell_url_version_and_endpoint_apart() -> None:
    parts = ["", "a", "b", "ab", "a\0", "\0a", "\ud800"]
    keys = {
        key_of(url, version, endpoint) for url in parts for version in ("", "a", "v") for endpoint in ("", "a", "e")
    }
    assert len(keys) >= len(parts) * 9 - 6  # only a NUL inside a URL, which no URL has, could make two of them equal
    assert all(len(each) == 32 and set(each) <= set("0123456789abcdef") for each in keys)
    assert key_of("u", None, None) == key_of("u", None, None) == key_of("u", "", "")


URLS = st.text(st.characters(exclude_characters="\0"), max_size=30)


@given(URLS, URLS)
def test_different_urls_have_different_keys(one: str, other: str) -> None:
    assert (key_of(one, None, None) == key_of(other, None, None)) == (one == other)
