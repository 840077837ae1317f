"""A directory is grouped into samples by relative path without extension."""

import os

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from sds.errors import SchemaError, SourceError, SourceNotFound
from sds.index.grouping import split_path


def make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def test_files_of_one_name_are_one_sample(tmp_path, open_, values, keys):
    root = make(tmp_path / "d", "a.jpg", "a.txt", "b.jpg", "b.txt")
    index = open_(root, columns_to_download=["jpg", "txt"])
    assert keys(index) == ["a", "b"]
    assert values(index)[0] == {"index": "a", "jpg": str(root / "a.jpg"), "txt": str(root / "a.txt")}
    assert index.facts.kind == "directory" and index.facts.num_sample_files == 4


def test_equal_basenames_in_two_subfolders_are_two_samples(tmp_path, open_, keys):
    root = make(tmp_path / "d", "x/a.jpg", "y/a.jpg", "a.jpg")
    assert keys(open_(root)) == ["a", "x/a", "y/a"]


def test_dotted_names_are_split_at_the_last_dot(tmp_path, open_, values, keys):
    root = make(tmp_path / "d.v2", "photo.v1.jpg", "photo.v1.txt", "photo.v2.jpg", "photo.v2.txt")
    index = open_(root)
    assert keys(index) == ["photo.v1", "photo.v2"]
    assert index.columns_to_download == ("jpg", "txt")


def test_a_wanted_extension_may_have_dots_and_the_longest_wins(tmp_path, open_, values):
    root = make(tmp_path / "d", "a.jpg", "a.latent.npz", "a.npz", "a.v1.jpg", "a.v1.latent.npz", "a.v1.npz")
    index = open_(root, columns_to_download=["jpg", "npz", "latent.npz"])
    assert [v["latent.npz"] for v in values(index)] == [f"{root}/a.latent.npz", f"{root}/a.v1.latent.npz"]
    assert [v["npz"] for v in values(index)] == [f"{root}/a.npz", f"{root}/a.v1.npz"]


@given(
    stem=st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1).filter(lambda s: s[0] != "."),
    extension=st.from_regex(r"[a-z0-9]{1,5}(\.[a-z0-9]{1,5}){0,2}", fullmatch=True),
)
def test_splitting_takes_off_the_extension_and_nothing_else(stem, extension):
    assert split_path(f"a.b/{stem}.{extension}", [extension]) == (f"a.b/{stem}", extension)
    last = extension.rpartition(".")[2]
    name, column = split_path(f"a.b/{stem}.{extension}", None)
    assert column == last and f"{name}.{column}" == f"a.b/{stem}.{extension}"


def test_hidden_files_and_files_without_extension_are_no_samples(tmp_path, open_, keys):
    root = make(tmp_path / "d", "a.jpg", ".b.jpg", ".git/c.jpg", "x/.d/e.jpg", "README", "trailing.")
    assert keys(open_(root)) == ["a"]


def test_extensions_are_compared_without_case(tmp_path, open_, values):
    root = make(tmp_path / "d", "a.JPG", "b.jpg")
    assert [v["jpg"] for v in values(open_(root, columns_to_download=["jpg"]))] == [f"{root}/a.JPG", f"{root}/b.jpg"]
    make(root, "a.jpg")
    with pytest.raises(SourceError, match=r"'a'.*a\.JPG.*a\.jpg"):
        open_(root)


def test_samples_without_a_wanted_file_are_left_out_or_stay_with_none(tmp_path, open_, values, keys):
    root = make(tmp_path / "d", "a.jpg", "a.txt", "b.jpg")
    index = open_(root, columns_to_download=["jpg", "txt"])
    assert keys(index) == ["a"] and index.facts.rows_left_out == 1
    index = open_(root, columns_to_download=["jpg", "txt"], allow_missing_columns=True)
    assert keys(index) == ["a", "b"] and values(index)[1]["txt"] is None


def test_no_file_with_a_wanted_extension_says_which_there_are(tmp_path, open_):
    root = make(tmp_path / "d", "a.png", "b.png", "b.txt")
    with pytest.raises(SchemaError, match=r"(?s)jpg.*hint:.*png, txt"):
        open_(root, columns_to_download=["jpg"])
    with pytest.raises(SchemaError, match=r"(?s)'jpg'.*png"):
        open_(root, columns_to_download=["png", "jpg"])
    with pytest.raises(SchemaError, match=r"hint:.*\*\.csv"):
        open_(make(tmp_path / "e", "part-0.csv"), columns_to_download=["url"])


def test_an_extension_with_its_dot_is_told_to_be_without(tmp_path, open_):
    root = make(tmp_path / "d", "a.jpg", "a.txt")
    for columns in ([".jpg"], ["txt", ".jpg"]):
        with pytest.raises(SchemaError, match=r"hint: .*without the dot"):
            open_(root, columns_to_download=columns)


def test_metadata_only_gives_the_ids(tmp_path, open_, values):
    root = make(tmp_path / "d", "a.jpg", "a.txt", "b.jpg")
    assert values(open_(root, columns_to_download=[])) == [{"index": "a"}, {"index": "b"}]


def test_the_id_column_has_the_name_that_was_asked_for(tmp_path, open_, values):
    root = make(tmp_path / "d", "a.jpg")
    assert list(values(open_(root, index_col_name="media_id"))[0]) == ["media_id", "jpg"]
    make(root, "a.index")
    with pytest.raises(SchemaError, match="'index'"):
        open_(root)


def test_files_have_versions_that_change_with_them(tmp_path, open_):
    root = make(tmp_path / "d", "a.jpg", "a.txt")
    first = open_(root).rows([0])[0].versions
    assert set(first) == {"jpg", "txt"} and first["jpg"].startswith("5-")
    os.utime(root / "a.jpg", ns=(1, 1))
    second = open_(root).rows([0])[0].versions
    assert second["jpg"] == "5-1" and second["txt"] == first["txt"]
    assert open_(root, sql_query="SELECT upper(index) AS index, txt FROM dataframe", columns_to_download=["txt"]).rows(
        [0]
    )[0].versions == {"txt": first["txt"]}


def test_links_are_followed_but_not_in_circles(tmp_path, open_, keys):
    root = make(tmp_path / "d", "a.jpg")
    make(tmp_path / "other", "b.jpg")
    (root / "linked").symlink_to(tmp_path / "other")
    (root / "round").symlink_to(root)
    (root / "broken.jpg").symlink_to(tmp_path / "nothing")
    assert keys(open_(root)) == ["a", "linked/b"]


def test_the_index_folder_is_no_part_of_the_directory(tmp_path, open_, keys):
    root = make(tmp_path / "d", "a.jpg")
    for _ in range(2):
        assert keys(open_(root, folder=root / "cache" / "index")) == ["a"]
    assert len(list((root / "cache" / "index").iterdir())) == 1


def test_empty_and_absent_directories(tmp_path, open_):
    (tmp_path / "d").mkdir()
    with pytest.raises(SourceError, match="no files"):
        open_(tmp_path / "d")
    with pytest.raises(SourceNotFound, match=r"hint: .*exists"):
        open_(tmp_path / "nothing" / "here")
    with pytest.raises(FileNotFoundError):
        open_(f"{tmp_path}/nothing/")


def test_a_name_that_is_not_utf8_is_named(tmp_path, open_):
    root = make(tmp_path / "d", "a.jpg")
    with open(os.fsencode(root) + b"/\xff.jpg", "wb"):
        pass
    with pytest.raises(SourceError, match="UTF-8"):
        open_(root)


def test_a_remote_directory_is_sorted_and_has_versions(bucket, open_, keys, values):
    make(bucket.root, "d/b.jpg", "d/a.jpg", "d/x/a.jpg", "d2/no.jpg", "d/.hidden.jpg")
    for src in ("s3://bucket/d", "s3://bucket/d/"):
        index = open_(src)
        assert keys(index) == ["a", "b", "x/a"]
        assert values(index)[2]["jpg"] == "s3://bucket/d/x/a.jpg"
        assert index.rows([0])[0].versions["jpg"].startswith("etag-")
    with pytest.raises(SourceNotFound):
        open_("s3://bucket/none/")


def test_the_same_directory_elsewhere_has_the_same_fingerprint(tmp_path, bucket, open_):
    prints = {
        open_(make(tmp_path / "one", "a.jpg", "x/b.jpg")).fingerprint,
        open_(make(tmp_path / "two", "a.jpg", "x/b.jpg")).fingerprint,
    }
    make(bucket.root, "d/a.jpg", "d/x/b.jpg")
    assert prints == {open_("s3://bucket/d").fingerprint}


def test_a_cache_that_lies_in_its_own_source_is_no_sample(tmp_path, open_, keys):
    root = make(tmp_path / "d", "a.jpg", "cache/objects/ab/0123-4.jpg", "cache/index/old.arrow", "objects/b.jpg")
    assert keys(open_(root, folder=root / "cache" / "index")) == ["a", "objects/b"]


def test_an_index_that_lies_beside_its_samples_is_none_of_them(tmp_path, open_, keys):
    root = make(tmp_path / "d", "a.jpg", "b.jpg", "index.parquet", "d-index.parquet", "sub/index.parquet")
    index = open_(root, columns_to_download=["jpg"])
    assert keys(index) == ["a", "b"]
    assert index.facts.num_sample_files == 3, "one in a folder below is a file like any other"
    only = make(tmp_path / "e", "a.jpg", "index.parquet")
    assert open_(only).columns_to_download == ("jpg",)


def test_a_folder_of_parquet_files_is_one_table(tmp_path, open_, keys):
    root = make(tmp_path / "d", "README.md", "data/notes.json")
    for number in range(2):
        parquet.write_table(pa.table({"index": [f"{number}a", f"{number}b"]}), root / f"data/train-{number}.parquet")
    assert keys(open_(root)) == ["0a", "0b", "1a", "1b"]
    parquet.write_table(pa.table({"index": ["t"]}), root / "data/test-0.parquet")
    with pytest.raises(SourceError, match="files of several splits: train, test") as caught:
        open_(root)
    pattern = caught.value.hint.removeprefix("choose one with a wildcard, such as ")
    assert keys(open_(pattern)) == ["0a", "0b", "1a", "1b"]


def test_parquet_files_with_others_of_their_name_are_samples(tmp_path, open_, keys):
    root = make(tmp_path / "d", "a.parquet", "a.json", "b.parquet", "b.json")
    index = open_(root)
    assert keys(index) == ["a", "b"] and index.columns_to_download == ("json", "parquet")
