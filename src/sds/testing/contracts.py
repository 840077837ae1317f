"""What every store must do, as a test class: a new store supplies a fixture and gets all the tests.

    pytest.register_assert_rewrite("sds.testing.contracts")  # in conftest.py, for telling failures

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self) -> Store:
            return MyStore(...)

Comes in: a store that may be written to, or another way to put objects into it. What a store or the server behind it
cannot do is said in `cannot`, with the reason; the test then checks that it refuses clearly, or is reported with it.
"""

# ruff: noqa: D102 (the name of a test says what it tests)
from __future__ import annotations

import hashlib
import secrets
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, TypeVar

import pytest

from sds.errors import FetchError, ObjectNotFound, SdsError
from sds.storage import Store
from sds.storage.headers import version_in
from sds.storage.retries import retrying
from sds.types import ObjectInfo

__all__ = ["StoreContract"]

T = TypeVar("T")
Write = Callable[[str, bytes], None]

_THREADS = 16
_PAGE = 1000  # what the clouds give at once
_LARGE = 20 * 2**20

ODD_NAMES = {
    "space": "a b.txt",
    "spaces": "a  b c.txt",
    "unicode": "grüße-日本-🦊.txt",
    "decomposed": "e\u0301.txt",
    "percent": "100%.txt",
    "escape": "a%20b.txt",
    "escaped-slash": "a%2Fb.txt",
    "plus": "a+b.txt",
    "hash": "a#b.txt",
    "question": "a?b=c.txt",
    "ampersand": "a&b=c;d,e.txt",
    "quotes": 'it\'s "so".txt',
    "brackets": "a[0]{1}(2)<3>.txt",
    "signs": "a!b$c*d~e@f^g`h|i.txt",
    "colon": "a:b.txt",
    "backslash": "a\\b.txt",
    "dots": ".a..b...txt",
    "equal": "key=value.txt",
    "long": "x" * 200 + ".txt",
}
"""Kinds of names that have broken stores, and an example of each."""


class StoreContract:
    """The tests that every `Store` passes.

    Attributes:
        cannot: what this store or its server cannot do, with the reason. 'put' and 'list': the store has to refuse with
            one of our errors. 'name:<kind>', 'same-name', 'version': the tests of these have to fail as expected.
    """

    cannot: ClassVar[dict[str, str]] = {}

    @pytest.fixture
    def store(self) -> Store:
        """The store under test."""
        raise NotImplementedError("a contract needs a fixture `store`")

    @pytest.fixture
    def prefix(self) -> str:
        """A folder that no other test uses; it ends in '/'."""
        return f"contract-{secrets.token_hex(8)}/"

    @pytest.fixture
    def write(self, store: Store) -> Write:
        """Puts an object under its literal key; a read-only store brings its own way."""
        return store.put

    def address(self, key: str) -> str:
        """What the store's methods call the object with this literal key."""
        return key

    def ask(self, verb: Callable[..., T], key: str, *args: object) -> T:
        """Asks the store as the fetch server does, once: foreign errors come out as ours."""
        return retrying(lambda: verb(self.address(key), *args), f"contract://store/{key}", 0)

    def get(self, store: Store, key: str) -> bytes:
        """The whole object, read as the fetch server reads it."""
        return self.ask(lambda address: b"".join(bytes(c) for c in store.open(address).chunks), key)

    def expect(self, ability: str, request: pytest.FixtureRequest) -> None:
        """Marks the running test as an expected failure if the store is known not to have the ability."""
        if ability in self.cannot:
            request.applymarker(pytest.mark.xfail(reason=self.cannot[ability], strict=True))

    def need(self, ability: str) -> None:
        """Reports the running test as one that means nothing for this store."""
        if ability in self.cannot:
            pytest.skip(self.cannot[ability])

    # ------------------------------------------------------------------------------------------------ one object

    def test_an_object_comes_back_as_it_was_written(self, store: Store, prefix: str, write: Write) -> None:
        key, data = f"{prefix}a/b.bin", bytes(range(256)) * 10
        write(key, data)
        body = self.ask(store.open, key)
        assert body.size == len(data)
        assert body.version
        assert b"".join(bytes(chunk) for chunk in body.chunks) == data

    def test_a_plain_client_gets_what_it_is_told_of(self, store: Store, prefix: str, write: Write) -> None:
        key, data = f"{prefix}a b/c+d.bin", bytes(range(256)) * 10
        write(key, data)
        version = self.ask(store.open, key).version
        told = self.ask(store.request, key)
        if told is None:
            return  # only the store itself can get it
        asked = urllib.request.Request(told.url, headers=dict(line.split(": ", 1) for line in told.headers))  # noqa: S310
        with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310 (the store says which scheme it has)
            assert answer.read() == data
            assert version_in(answer.headers, len(data)) == version

    def test_an_empty_object_is_an_object(self, store: Store, prefix: str, write: Write) -> None:
        key = f"{prefix}empty"
        write(key, b"")
        assert self.ask(store.open, key).size == 0
        assert self.get(store, key) == b""
        assert self.ask(store.head, key).size == 0

    def test_a_part_of_an_object_says_how_large_the_whole_is(self, store: Store, prefix: str, write: Write) -> None:
        key, data = f"{prefix}parts.bin", bytes(range(256)) * 10
        write(key, data)
        version = self.ask(store.head, key).version
        for start, stop in ((0, 100), (100, 356), (2500, 9000)):  # the last one ends with the object
            body = self.ask(store.open, key, (start, stop))
            assert b"".join(bytes(chunk) for chunk in body.chunks) == data[start:stop]
            assert (body.size, body.total, body.version) == (len(data[start:stop]), len(data), version)

    def test_a_large_object_comes_in_pieces(self, store: Store, prefix: str, write: Write) -> None:
        key, data = f"{prefix}large.bin", secrets.token_bytes(2**20) * (_LARGE // 2**20) + b"end"
        write(key, data)
        body = self.ask(store.open, key)
        assert body.size == len(data)
        digest, sizes = hashlib.sha256(), []
        for chunk in body.chunks:
            digest.update(chunk)
            sizes.append(len(memoryview(chunk)))
        assert digest.digest() == hashlib.sha256(data).digest()
        assert len(sizes) > 1
        parts = self.ask(store.read, key, [(0, 5), (_LARGE - 2, _LARGE + 3), (7 * 2**20, 7 * 2**20 + 100)])
        assert [bytes(part) for part in parts] == [data[:5], data[-5:], data[7 * 2**20 :][:100]]

    def test_ranges_are_exact(self, store: Store, prefix: str, write: Write) -> None:
        key, data = f"{prefix}ranges.bin", secrets.token_bytes(100_000)
        write(key, data)
        for ranges in (
            [(0, 1)],
            [(0, len(data))],
            [(len(data) - 1, len(data))],
            [(10, 20), (20, 30)],  # neighbours
            [(50, 60), (10, 20)],  # in any order
            [(10, 40), (20, 30), (10, 40)],  # overlapping, and twice
            [(0, 10), (99_000, 99_100)],  # far apart
            [(number * 900, number * 900 + 7) for number in range(100)],
        ):
            parts = self.ask(store.read, key, ranges)
            assert [bytes(part) for part in parts] == [data[start:stop] for start, stop in ranges]
        assert self.ask(store.read, key, []) == []

    def test_a_range_past_the_end_gives_what_there_is_or_an_error(
        self, store: Store, prefix: str, write: Write
    ) -> None:
        key = f"{prefix}short.bin"
        write(key, b"0123456789")
        try:
            parts = self.ask(store.read, key, [(5, 100)])
        except FetchError:
            pass
        else:
            assert [bytes(part) for part in parts] == [b"56789"]
        with pytest.raises(FetchError):
            self.ask(store.read, key, [(50, 60)])

    def test_head_tells_size_and_version_without_the_body(self, store: Store, prefix: str, write: Write) -> None:
        key = f"{prefix}head.bin"
        write(key, b"12345")
        info = self.ask(store.head, key)
        assert info.size == 5
        assert info.version
        assert self.ask(store.head, key) == info

    def test_a_missing_object_is_not_found(self, store: Store, prefix: str, write: Write) -> None:
        write(f"{prefix}there/x.bin", b"x")
        for key in (f"{prefix}absent.bin", f"{prefix}no/such/folder.bin", f"{prefix}ther", f"{prefix}there/x.bin.gz"):
            with pytest.raises(ObjectNotFound):
                self.ask(store.open, key)
            with pytest.raises(ObjectNotFound):
                self.ask(store.head, key)
            with pytest.raises(ObjectNotFound):
                self.ask(store.read, key, [(0, 1)])

    def test_a_folder_is_no_object(self, store: Store, prefix: str, write: Write) -> None:
        write(f"{prefix}folder/x.bin", b"x")
        with pytest.raises(FetchError):
            self.get(store, f"{prefix}folder")

    # -------------------------------------------------------------------------------------------------- versions

    def test_overwriting_changes_content_and_version(
        self, store: Store, prefix: str, write: Write, request: pytest.FixtureRequest
    ) -> None:
        self.expect("version", request)
        key = f"{prefix}changing.bin"
        seen = set()
        for data in (b"one", b"two", b"three", b"six"):  # of the same size, too
            write(key, data)
            body = self.ask(store.open, key)
            assert b"".join(bytes(chunk) for chunk in body.chunks) == data
            assert self.ask(store.head, key).size == len(data)
            seen.add(body.version)
        assert len(seen) == 4

    @pytest.mark.parametrize("size", [0, 5, 5 * 2**20])
    def test_get_head_and_listing_agree_on_size_and_version(
        self, store: Store, prefix: str, write: Write, size: int
    ) -> None:
        key = f"{prefix}same.bin"
        write(key, b"x" * size)
        body = self.ask(store.open, key)
        info = self.ask(store.head, key)
        assert (info.size, info.version) == (body.size, body.version) == (size, body.version)
        if "list" not in self.cannot:
            (listed,) = self.list_all(store, prefix)
            assert (listed.url, listed.size, listed.version) == (key, size, body.version)
            _, (beside,) = self.ask(store.list_folder, prefix)
            assert beside == listed

    # ----------------------------------------------------------------------------------------------------- names

    @pytest.mark.parametrize("kind", ODD_NAMES)
    def test_names_are_literal(
        self, store: Store, prefix: str, write: Write, kind: str, request: pytest.FixtureRequest
    ) -> None:
        self.expect(f"name:{kind}", request)
        name = ODD_NAMES[kind]
        key, below = f"{prefix}{name}", f"{prefix}in {name}/{name}"
        for each in (key, below):
            write(each, each.encode())
            assert self.get(store, each) == each.encode()
            assert self.ask(store.head, each).size == len(each.encode())
            assert bytes(self.ask(store.read, each, [(1, 4)])[0]) == each.encode()[1:4]
        if "list" not in self.cannot:
            assert self.keys(self.list_all(store, prefix)) == {key, below}
            folders, objects = self.ask(store.list_folder, prefix)
            assert (folders, self.keys(objects)) == ([f"{prefix}in {name}/"], {key})
            assert self.keys(self.list_all(store, folders[0])) == {below}

    @pytest.mark.parametrize("odd", ["a//b", "a/./b", "a/../b", "../b", "./b", "b/", "a/b/"])
    def test_a_name_that_is_no_plain_path_is_itself_or_refused(
        self, store: Store, prefix: str, write: Write, odd: str, request: pytest.FixtureRequest
    ) -> None:
        self.expect(f"name:{odd}", request)
        for other in ("b", "in/b", "in/a/b"):  # what a careless store would take it for
            write(prefix + other, b"another object")
        with pytest.raises(FetchError):
            assert self.get(store, f"{prefix}in/{odd}") == b"", "another object was given"

    # -------------------------------------------------------------------------------------------------- listings

    def test_a_listing_has_everything_below_the_folder_and_nothing_else(
        self, store: Store, prefix: str, write: Write
    ) -> None:
        self.need("list")
        inside = {f"{prefix}f/{name}" for name in ("1", "2", "a/1", "a/b/c/1")}
        outside = {f"{prefix}{name}" for name in ("g", "fa", "f2/1", "a/f/1", "f-1/1")}
        for key in sorted(inside | outside):
            write(key, b"x")
        assert self.keys(self.list_all(store, f"{prefix}f/")) == inside
        assert self.keys(self.list_all(store, prefix)) == inside | outside
        assert self.list_all(store, f"{prefix}none/") == []

    def test_a_folder_lists_its_folders_and_objects_only(self, store: Store, prefix: str, write: Write) -> None:
        self.need("list")
        for name in ("1", "2", "a/1", "a/2", "b/c/d/1"):
            write(f"{prefix}{name}", b"x")
        folders, objects = self.ask(store.list_folder, prefix)
        assert sorted(folders) == [f"{prefix}a/", f"{prefix}b/"]
        assert self.keys(objects) == {f"{prefix}1", f"{prefix}2"}
        assert self.ask(store.list_folder, f"{prefix}b/") == ([f"{prefix}b/c/"], [])
        assert self.ask(store.list_folder, f"{prefix}none/") == ([], [])

    def test_a_listing_goes_on_over_pages(self, store: Store, prefix: str, write: Write) -> None:
        self.need("list")
        keys = {f"{prefix}many/{number:05}.bin" for number in range(_PAGE + 150)}
        folders = {f"{prefix}many/{number:05}/" for number in range(_PAGE + 50)}
        self.write_all(write, keys | {f"{folder}x" for folder in folders})
        listed = self.list_all(store, f"{prefix}many/")
        assert len(listed) == len(keys) + len(folders)
        assert self.keys(listed) == keys | {f"{folder}x" for folder in folders}
        found, objects = self.ask(store.list_folder, f"{prefix}many/")
        assert (len(found), set(found)) == (len(folders), folders)
        assert (len(objects), self.keys(objects)) == (len(keys), keys)

    def test_a_folder_may_have_the_name_of_an_object(
        self, store: Store, prefix: str, write: Write, request: pytest.FixtureRequest
    ) -> None:
        self.need("list")
        self.expect("same-name", request)
        write(f"{prefix}a", b"object")
        write(f"{prefix}a/b", b"below")
        assert self.get(store, f"{prefix}a") == b"object"
        assert self.get(store, f"{prefix}a/b") == b"below"
        assert self.keys(self.list_all(store, prefix)) == {f"{prefix}a", f"{prefix}a/b"}

    def test_what_cannot_be_listed_says_so(self, store: Store, prefix: str) -> None:
        if "list" not in self.cannot:
            pytest.skip("this store can be listed")
        for verb in (store.list_folder, lambda address: list(store.list_all(address))):
            with pytest.raises(SdsError) as caught:
                self.ask(verb, prefix)
            assert caught.value.hint

    # -------------------------------------------------------------------------------------------------- the rest

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_put_takes_any_buffer(self, store: Store, prefix: str, kind: Callable[[bytes], object]) -> None:
        key = f"{prefix}put.bin"
        if "put" in self.cannot:
            with pytest.raises(SdsError) as caught:
                self.ask(store.put, key, kind(b"data"))
            assert caught.value.hint
            return
        self.ask(store.put, key, kind(b"data"))
        assert self.get(store, key) == b"data"

    def test_many_threads_may_ask_at_once(self, store: Store, prefix: str, write: Write) -> None:
        keys = [f"{prefix}{number}" for number in range(100)]
        self.write_all(write, keys)
        with ThreadPoolExecutor(_THREADS) as threads:
            assert list(threads.map(lambda key: self.get(store, key), keys)) == [key.encode() for key in keys]

    def list_all(self, store: Store, prefix: str) -> list[ObjectInfo]:
        """All pages of a listing, as one list."""
        return self.ask(lambda address: [info for page in store.list_all(address) for info in page], prefix)

    @staticmethod
    def keys(infos: Iterable[ObjectInfo]) -> set[str]:
        """The keys of a listing."""
        return {info.url for info in infos}

    @staticmethod
    def write_all(write: Write, keys: Iterable[str]) -> None:
        """Writes objects that hold their own keys, side by side."""
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(lambda key: write(key, key.encode()), keys))
