"""The open stores: one for equal options, the asking process's environment, URLs that obstore cannot say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

from sds.errors import AccessDenied, OptionError, UnsupportedSource
from sds.storage import StoreOptions, Stores, is_other
from sds.storage import store as store_module
from sds.storage.headers import digest_in, version_in
from sds.storage.listing import list_below
from sds.storage.store import bare_tag, version_of
from sds.storage.web import WebStore, _is_odd
from sds.types import ObjectInfo


def test_equal_options_share_a_store() -> None:
    stores = Stores()
    one = stores.intern(StoreOptions(settings={"region": "a"}))
    two = stores.intern(StoreOptions(settings={"region": "a"}))
    other = stores.intern(StoreOptions(settings={"region": "b"}))
    assert one is two and one is not other

    def which(options: StoreOptions, url: str = "http://h/x") -> Any:
        return stores.call(url, options, lambda store, _: store)

    assert which(one) is which(two) and which(one) is not which(other)
    assert which(one) is not which(one, "http://h2/x") and which(one) is not which(one, "https://h/x")


def test_builders_see_the_asking_process_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "servers-own")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "servers-own")
    seen: dict[str, str] = {}
    with store_module._environment({"AWS_REGION": "clients", "GOOGLE_X": "1"}):
        seen.update({k: v for k, v in os.environ.items() if k.startswith(("AWS_", "GOOGLE_", "AZURE_"))})
    assert seen == {"AWS_REGION": "clients", "GOOGLE_X": "1"}
    assert os.environ["AWS_REGION"] == os.environ["AWS_SESSION_TOKEN"] == "servers-own"
    assert "GOOGLE_X" not in os.environ


def test_the_environment_comes_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "servers-own")
    with pytest.raises(RuntimeError), store_module._environment({"AWS_REGION": "clients"}):
        raise RuntimeError
    assert os.environ["AWS_REGION"] == "servers-own"


def test_options_that_nobody_knows_are_named() -> None:
    options = StoreOptions(settings={"s3": {"no_such_option": "SECRET"}})
    with pytest.raises(OptionError, match="storage_options are not understood") as caught:
        Stores().call("s3://bucket/key", options, lambda store, key: store.head(key))
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("key", ["x?y", "", "a//b", "/a", "a/", "a%2Fb", "a%2Bb", "%E9", "a%0Ab"])
def test_odd_keys(key: str) -> None:
    assert _is_odd(key)


@pytest.mark.parametrize(
    "key", ["a.jpg", "a/b.jpg", "a%20b.jpg", "%C3%BC.jpg", "a+b,c;d=e.jpg", "a~b-c_d.jpg", "ü.jpg"]
)
def test_plain_keys(key: str) -> None:
    assert not _is_odd(key)


def test_http_cannot_list_or_write_and_shows_no_password() -> None:
    store = WebStore("https", "user:SECRET@h", StoreOptions())
    with pytest.raises(UnsupportedSource) as listing:
        store.list_folder("x/")
    with pytest.raises(AccessDenied) as put:
        store.put("x?sig=SECRET", b"")
    assert "SECRET" not in str(listing.value) + str(put.value)


class FakeResponse:
    def __init__(self, location: str) -> None:
        self.status = 302
        self.headers = {"Location": location}

    def close(self) -> None:
        pass


@pytest.mark.parametrize("target", ["http://h/x", "file:///etc/passwd", "ftp://h/x", "HTTP://h/x"])
def test_a_redirect_never_leaves_https(target: str) -> None:
    store = WebStore("https", "h", StoreOptions())
    asked: list[str] = []

    class Pool:
        def request(self, method: str, url: str, **options: Any) -> FakeResponse:
            assert options["redirect"] is False
            asked.append(url)
            return FakeResponse(target)

    store._pool = Pool()  # type: ignore[assignment]
    with pytest.raises(AccessDenied, match="redirect leaves https"):
        store.open("x?y")
    assert asked == ["https://h/x?y"]


def test_headers_for_a_host_are_for_that_host_alone() -> None:
    store = WebStore("https", "h", StoreOptions(settings={"https://h": {"headers": {"X-Api-Key": "SECRET"}}}))
    sent: list[tuple[str, dict[str, str]]] = []

    class Pool:
        def request(self, method: str, url: str, headers: dict[str, str], **options: Any) -> FakeResponse:
            sent.append((url, headers))
            return FakeResponse("https://elsewhere/x")

    store._pool = Pool()  # type: ignore[assignment]
    with pytest.raises(OSError, match="more than 5 redirects"):
        store.open("x")  # plain, but obstore would carry such a header along
    assert sent[0] == ("https://h/x", {"X-Api-Key": "SECRET"})
    assert all(headers == {} for _, headers in sent[1:])


@pytest.mark.parametrize(("status", "start"), [(206, 0), (200, 100)])
def test_ranges_of_an_endless_answer(status: int, start: int) -> None:
    class Endless:
        def __init__(self) -> None:
            self.status, self.headers, self.num_chunks = status, {}, 0

        def stream(self, size: int, decode_content: bool) -> Iterator[bytes]:
            while True:
                self.num_chunks += 1
                assert self.num_chunks < 100
                yield bytes(range(self.num_chunks, self.num_chunks + 30))

        def close(self) -> None:
            pass

    class Pool:
        def request(self, *_: Any, **__: Any) -> Endless:
            return Endless()

    store = WebStore("https", "h", StoreOptions())
    store._pool = Pool()  # type: ignore[assignment]
    whole = b"".join(bytes(range(i, i + 30)) for i in range(1, 10))
    assert store.read("x?y", [(100, 150)]) == [whole[start : start + 50]]


def test_both_clients_spell_a_version_in_one_way() -> None:
    changed_at = datetime(2015, 10, 21, 7, 28, tzinfo=timezone.utc)
    spelled = version_of({"size": 5, "last_modified": changed_at})
    assert version_in({"last-modified": "Wed, 21 Oct 2015 07:28:00 GMT"}, 5) == spelled
    assert version_in({"last-modified": "Wed, 21 Oct 2015 08:28:00 +0100"}, 5) == spelled
    assert version_in({}, 5) == version_in({"last-modified": "nonsense"}, 5) == "5-0.000000"
    assert version_in({"etag": 'W/"abc"', "last-modified": "x"}, None) == "abc"
    assert not is_other(version_in({"last-modified": "Wed, 21 Oct 2015 07:28:00 GMT"}, None), "abc")


def test_a_checksum_of_what_is_stored_is_not_that_of_what_is_sent() -> None:
    digest = {"x-goog-hash": "md5=1B2M2Y8AsgTpgAmY7PhCfg=="}
    assert digest_in(digest) == "d41d8cd98f00b204e9800998ecf8427e"
    zipped = {**digest, "x-goog-stored-content-encoding": "gzip"}
    assert digest_in(zipped) is None and digest_in({**zipped, "content-encoding": "gzip"}) == digest_in(digest)


def test_tags_are_spelled_in_one_way() -> None:
    assert bare_tag('"Wabc/W"') == bare_tag('W/"Wabc/W"') == "Wabc/W"
    assert is_other("abc", "abd") and not is_other("abc", "abc") and not is_other("abc", None)
    assert not is_other("abc", "10-1700000000.000000") and not is_other("10-", "abc")
    assert is_other("0123456789-5", "0123456789-6")  # of uploads in parts


def test_a_listing_tries_one_prefix_again_not_all() -> None:
    asked: list[str] = []

    class Flaky:
        def list_folder(self, prefix: str) -> tuple[list[str], list[ObjectInfo]]:
            asked.append(prefix)
            return ([f"a/{i}/" for i in range(20)] if prefix == "a/" else []), []

        def list_all(self, prefix: str) -> Iterator[list[ObjectInfo]]:
            asked.append(prefix)
            if prefix == "a/7/" and asked.count(prefix) == 1:
                raise TimeoutError
            yield [ObjectInfo(f"{prefix}x", 1, "v")]

    stores = Stores()
    stores._store = lambda *_: Flaky()  # type: ignore[method-assign, return-value, assignment]
    found = list_below(stores, "s3://b/a", StoreOptions())
    assert len(found) == 20 and found[0].url == "s3://b/a/0/x"
    assert asked.count("a/7/") == 2 and len(asked) == 22
