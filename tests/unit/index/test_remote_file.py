"""A remote index file is asked for its version, downloaded once, and its paths become URLs."""

import pytest

from sds.errors import SourceNotFound, UnsupportedSource


def test_an_index_in_a_bucket(bucket, open_, values):
    (bucket.root / "p").mkdir()
    (bucket.root / "p" / "i.csv").write_text("index,url\n007,img/ü 1.jpg\n8,../up.jpg\n")
    for _ in range(2):
        index = open_("s3://bucket/p/i.csv", columns_to_download=["url"])
        assert [v["url"] for v in values(index)] == ["s3://bucket/p/img/ü 1.jpg", "s3://bucket/up.jpg"]
    assert [call.split()[0] for call in bucket.calls] == ["head", "download", "head"]
    assert not index.facts.in_place


def test_a_changed_object_is_noticed_even_at_equal_size(bucket, open_, keys):
    (bucket.root / "i.csv").write_text("index\na\n")
    assert keys(open_("s3://bucket/i.csv")) == ["a"]
    (bucket.root / "i.csv").write_text("index\nb\n")
    assert keys(open_("s3://bucket/i.csv")) == ["b"]


def test_what_is_not_there_and_what_nobody_knows(bucket, open_):
    with pytest.raises(SourceNotFound, match=r"s3://bucket/i\.csv"):
        open_("s3://bucket/i.csv")
    with pytest.raises(SourceNotFound):
        open_("s3://bucket/nothing")
    (bucket.root / "i.xyz").write_text("x")
    with pytest.raises(UnsupportedSource):
        open_("s3://bucket/i.xyz")


def test_a_file_url_is_a_path(tmp_path, open_, values):
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "i.csv").write_text("index,url\n1,a.jpg\n")
    index = open_(f"file://{tmp_path}/with%20space/i.csv", columns_to_download=["url"])
    assert values(index)[0]["url"] == f"{folder}/a.jpg"


def test_the_same_index_has_the_same_fingerprint_in_a_bucket_and_on_disk(tmp_path, bucket, open_):
    text = "index,url\na,img/1.jpg\nb,../x.jpg\n"
    for folder in (bucket.root / "deep" / "er", tmp_path / "one", tmp_path / "two"):
        folder.mkdir(parents=True)
        (folder / "i.csv").write_text(text)
    sources = ["s3://bucket/deep/er/i.csv", tmp_path / "one" / "i.csv", tmp_path / "two" / "i.csv"]
    assert len({open_(src, columns_to_download=["url"]).fingerprint for src in sources}) == 1
