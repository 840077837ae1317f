"""Paths and URLs as text."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sds.index import addresses
from sds.index.formats import Format, extension_of, format_of, is_index_file


@pytest.mark.parametrize(
    ("address", "folder"),
    [
        ("/a/b.csv", "/a"),
        ("/b.csv", "/"),
        ("s3://bucket/b.csv", "s3://bucket"),
        ("s3://bucket/a/what?.csv", "s3://bucket/a"),
        ("https://host/a/b.csv?sig=x/y", "https://host/a"),
        ("https://host/b.csv#f/g", "https://host"),
    ],
)
def test_the_folder_of_an_address(address, folder):
    assert addresses.folder_of(address) == folder


@pytest.mark.parametrize(
    ("folders", "common"),
    [
        (["/a/b", "/a/c"], "/a"),
        (["/a", "/b"], "/"),
        (["/a/b"], "/a/b"),
        (["/a/b", "/a/bc"], "/a"),
        (["s3://b/x", "s3://b/y/z"], "s3://b"),
        (["s3://b/x", "s3://c/x"], None),
        (["/a", "s3://a"], None),
        (["gs://b", "s3://b"], None),
    ],
)
def test_the_folder_that_several_share(folders, common):
    assert addresses.common_folder(folders) == common


PARTS = st.lists(st.sampled_from(["a", "b.c", "..", ".", "...", "ü"]), min_size=1, max_size=8).map("/".join)


@given(path=PARTS)
def test_normalising_a_path_is_what_the_system_does(path):
    assert addresses.normalise(f"/{path}") == os.path.normpath(f"/{path}")


@given(path=PARTS)
def test_no_url_climbs_above_its_bucket(path):
    plain = addresses.normalise(f"s3://bucket/{path}")
    climbs = os.path.normpath(path).startswith("../") or os.path.normpath(path) == ".."
    assert (plain is None) >= climbs
    assert plain is None or ((plain == "s3://bucket" or plain.startswith("s3://bucket/")) and "/../" not in f"{plain}/")


def test_formats_are_known_by_name():
    assert format_of("/a/b.v1.CSV.GZ") == Format("csv", "gzip")
    assert format_of("https://h/i.parquet?sig=a.b") == Format("parquet")
    assert format_of("s3://b/i.parquet?x") is None
    for name in (".csv", "a.parquet.gz", "a.txt", "csv", "a.jpg", "a.gz"):
        assert format_of(name) is None and not is_index_file(f"/x/{name}")
    assert extension_of("/a.b/c") == "" and extension_of("/a/c.TXT") == "txt" and extension_of("/a/.txt") == ""
