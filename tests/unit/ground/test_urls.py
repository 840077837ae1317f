"""Addresses: what is remote, what is local, the parts of a URL, and what of it may be shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sds.errors import OptionError, SdsError
from sds.urls import SCHEMES, host_of, is_remote, local_path, redact, split


@pytest.mark.parametrize(
    "url", ["s3://b/k", "S3://b/k", "gs://b/k", "az://c/k", "http://h/x", "https://h/x", "abfs://c/k"]
)
def test_remote(url: str) -> None:
    assert is_remote(url)


@pytest.mark.parametrize(
    "path", ["", "x", "/a/b", "../x", "a b", "file:///a", "FILE:///a", "C:/x", "a/b://c", "s3:/x", "x:y", "1s3://x"]
)
def test_local(path: str) -> None:
    assert not is_remote(path)


def test_unknown_schemes_are_errors_that_name_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"unknown scheme: ftp://h/x") as caught:
        is_remote("ftp://user:SECRET@h/x?token=SECRET")
    assert "s3" in str(caught.value) and "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "path"),
    [("/a b", "/a b"), ("file:///a%20b", "/a b"), ("file://localhost/x", "/x"), ("a%20b", "a%20b"), ("../x", "../x")],
)
def test_local_paths(url: str, path: str) -> None:
    assert local_path(url) == path


def test_a_file_url_with_a_host_is_an_error() -> None:
    with pytest.raises(OptionError, match="names a host"):
        local_path("file://host/x")


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://b/a/b.jpg", ("s3", "b", "a/b.jpg")),
        ("s3a://b/k?x#y", ("s3", "b", "k?x#y")),  # a bucket's keys are literal
        ("gcs://b/%20", ("gs", "b", "%20")),
        ("azure://c/k", ("az", "c", "k")),
        ("http://h:1/a%20b?q=1#f", ("http", "h:1", "a%20b?q=1")),
        ("https://h", ("https", "h", "")),
        ("s3://b", ("s3", "b", "")),
    ],
)
def test_split(url: str, parts: tuple[str, str, str]) -> None:
    assert tuple(split(url)) == parts


@pytest.mark.parametrize("url", ["s3:///k", "http:///x", "gs://"])
def test_a_url_without_a_root_is_an_error(url: str) -> None:
    with pytest.raises(OptionError, match="URL names no"):
        split(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://b/k", "s3://b/k"),
        ("/local/path?x", "/local/path?x"),
        ("https://h/x?sig=SECRET&y=1", "https://h/x?..."),
        ("https://user:SECRET@h/x", "https://h/x"),
        ("https://user:SEC@RET@h/x@y", "https://h/x@y"),
        ("https://h?SECRET", "https://h?..."),
        ("https://h/x?", "https://h/x"),
        ("az://c/k?sig=SECRET", "az://c/k?..."),
        ("https://h/a 'b\"?sig=SECRET x", "https://h/a 'b\"?..."),
        ("https://h/x#SECRET", "https://h/x#..."),
        ("s3://b/x#1.jpg", "s3://b/x#1.jpg"),
        ("https://user:SEC/RET?@h/x", "https://h/x"),
        ("https://h:80/x@y", "https://h:80/x@y"),
        ("https://[::1]:80/x@y", "https://[::1]:80/x@y"),
    ],
)
def test_redact(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://H.test", "https://h.test"),
        ("HTTPS://h:443/", "https://h"),
        ("http://h:8080", "http://h:8080"),
        ("http://[::1]:80", "http://[::1]"),
        ("https://h/x", None),
        ("https://u@h", None),
        ("s3://h", None),
        ("https", None),
    ],
)
def test_hosts(url: str, host: str | None) -> None:
    assert host_of(url) == host


@given(st.text(max_size=40))
def test_any_text_is_something_or_an_error_of_ours(text: str) -> None:
    for verb in (is_remote, local_path, redact):
        try:
            verb(text)
        except SdsError:
            pass


@given(st.sampled_from(sorted(SCHEMES)), st.text(min_size=1, max_size=10), st.text(max_size=10))
def test_redacted_is_redacted(scheme: str, path: str, secret: str) -> None:
    url = f"{scheme}://u:{secret}@host/{path}"
    assert redact(redact(url)) == redact(url)
