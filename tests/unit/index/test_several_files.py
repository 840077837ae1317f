"""Wildcards, lists of sources and text lists: several files become one table."""

import glob
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from sds.errors import OptionError, SchemaError, SourceError, SourceNotFound
from sds.index.patterns import matcher


def csv(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_files_are_read_in_byte_order_of_their_names_and_missing_columns_are_null(tmp_path, open_, values):
    csv(tmp_path / "b.csv", "x,z\n3,1.5\n")
    csv(tmp_path / "a.csv", "x,y\n1,p\n2,q\n")
    csv(tmp_path / "B.csv", "y\nfirst\n")
    index = open_(tmp_path / "*.csv")
    assert [v["x"] for v in values(index)] == [None, 1, 2, 3]
    assert [v["y"] for v in values(index)] == ["first", "p", "q", None]
    assert [v["z"] for v in values(index)] == [None, None, None, 1.5]
    assert index.facts.num_index_files == 3 and index.facts.kind == "wildcard"


def test_wildcards_reach_into_folders(tmp_path, open_, values):
    csv(tmp_path / "p" / "x" / "i.csv", "n\n2\n")
    csv(tmp_path / "p" / "i.csv", "n\n1\n")
    csv(tmp_path / "p" / "x" / "y" / "i.csv", "n\n3\n")
    assert [v["n"] for v in values(open_(f"{tmp_path}/p/**/*.csv"))] == [1, 2, 3]
    assert [v["n"] for v in values(open_(f"{tmp_path}/p/*/i.csv"))] == [2]


def test_remote_wildcards_mean_what_local_ones_mean(bucket, open_, values):
    for i, name in enumerate(("p/i.csv", "p/x/i.csv", "p/x/y/i.csv", "p/x/other.json", "q/i.csv")):
        csv(bucket.root / name, f"n\n{i}\n")
    assert [v["n"] for v in values(open_("s3://bucket/p/**/*.csv"))] == [0, 1, 2]
    assert [v["n"] for v in values(open_("s3://bucket/p/*/i.csv"))] == [1]
    assert [v["n"] for v in values(open_("s3://bucket/[pq]/i.csv"))] == [0, 4]
    assert not [call for call in bucket.calls if call.startswith("head")]
    with pytest.raises(SourceNotFound):
        open_("s3://bucket/p/*.parquet")


NAMES = [
    "a.csv",
    "b.csv",
    "ab.csv",
    "x/a.csv",
    "x/y/a.csv",
    "x/y/z/b.csv",
    ".h.csv",
    "x/.h/a.csv",
    "a[1].csv",
    "a^.csv",
]
PIECES = st.sampled_from(["*", "**", "?", "a", "b", "x", "/", ".csv", "[ab]", "[!a]", "[^a]", "[", "]", "y", ".h"])


@given(pattern=st.lists(PIECES, min_size=1, max_size=6).map("".join))
def test_the_matcher_agrees_with_glob(tmp_path_factory, pattern):
    root = tmp_path_factory.getbasetemp() / "glob"
    for name in NAMES:
        csv(root / name, "")
    if "//" in pattern or pattern.startswith("/") or pattern.endswith("/") or "***" in pattern:
        return
    found = {p for p in glob.glob(pattern, root_dir=root, recursive=True) if (root / p).is_file()}
    assert {name for name in NAMES if matcher(pattern).fullmatch(name)} == found


def test_a_file_whose_name_has_a_bracket_is_itself(tmp_path, open_, values):
    csv(tmp_path / "a[1].csv", "n\n1\n")
    csv(tmp_path / "a1.csv", "n\n2\n")
    assert values(open_(tmp_path / "a[1].csv")) == [{"n": 1}]


def test_a_wildcard_over_sample_files_is_a_filtered_directory(tmp_path, open_, values, keys):
    for name in ("a.jpg", "b.jpg", "a.txt", "x/c.jpg"):
        csv(tmp_path / "d" / name, name)
    assert keys(open_(tmp_path / "d" / "*.jpg")) == ["a", "b"]
    assert keys(open_(f"{tmp_path}/d/**/*.jpg")) == ["a", "b", "x/c"]
    index = open_(tmp_path / "d" / "*", columns_to_download=["jpg", "txt"])
    assert keys(index) == ["a"] and index.rows([0])[0].versions


def test_a_list_of_sources_keeps_its_order(tmp_path, open_, values):
    b, a = csv(tmp_path / "b.csv", "n\n1\n"), csv(tmp_path / "a.csv", "n\n2\n")
    csv(tmp_path / "d" / "s.txt", "")
    assert [v["n"] for v in values(open_([b, str(a), tmp_path / "d"], allow_missing_columns=True))] == [1, 2, None]
    for nothing in ([], None, 5, "", " ", [""], "a\0b"):
        with pytest.raises(OptionError, match="src"):
            open_(nothing)


def test_int_float_and_text_meet(tmp_path, open_, values):
    csv(tmp_path / "1.csv", "a,b,c\n1,1,007\n")
    csv(tmp_path / "2.csv", "a,b,c\n1.5,x,x\n")
    rows = values(open_(tmp_path / "*.csv"))
    assert [list(r.values()) for r in rows] == [[1.0, "1", "007"], [1.5, "x", "x"]]


def test_types_that_cannot_meet_name_the_column_and_both_files(tmp_path, open_):
    parquet.write_table(pa.table({"good": [1], "bad": [[1, 2]]}), tmp_path / "1.parquet")
    parquet.write_table(pa.table({"good": [2.5], "bad": [5]}), tmp_path / "2.parquet")
    with pytest.raises(SchemaError, match=r"'bad'.*1\.parquet.*2\.parquet"):
        open_(tmp_path / "*.parquet")


def test_max_index_files_to_use_takes_the_first(tmp_path, open_, values):
    for i in range(5):
        csv(tmp_path / f"{i}.csv", f"n\n{i}\n")
    index = open_(tmp_path / "*.csv", max_index_files_to_use=2)
    assert [v["n"] for v in values(index)] == [0, 1] and index.facts.num_index_files == 2
    assert len(open_(tmp_path / "*.csv", max_index_files_to_use=50)) == 5


def test_every_row_of_every_file_is_there_once(tmp_path, open_, keys):
    """The predecessor lost rows of a multi-file index: 110 became 97."""
    for i in range(11):
        csv(tmp_path / f"{i:02d}.csv", "index\n" + "".join(f"{i}-{j}\n" for j in range(10)))
    assert keys(open_(tmp_path / "*.csv")) == [f"{i}-{j}" for i in range(11) for j in range(10)]


def test_paths_are_relative_to_the_file_that_has_them(tmp_path, open_, values):
    csv(tmp_path / "p" / "one" / "i.csv", "index,url\na,img/1.jpg\n")
    csv(tmp_path / "p" / "two" / "i.csv", "index,url\nb,img/1.jpg\nc,../x.jpg\nd,/abs.jpg\ne,s3://b/k.jpg\n")
    index = open_(f"{tmp_path}/p/*/i.csv", columns_to_download=["url"])
    p = tmp_path / "p"
    expected = [f"{p}/one/img/1.jpg", f"{p}/two/img/1.jpg", f"{p}/x.jpg", "/abs.jpg", "s3://b/k.jpg"]
    assert [v["url"] for v in values(index)] == expected


def test_sources_that_share_no_folder_resolve_each_for_itself(tmp_path, bucket, open_, values):
    csv(bucket.root / "p" / "i.csv", "index,url\na,1.jpg\n")
    local = csv(tmp_path / "q" / "i.csv", "index,url\nb,1.jpg\n")
    index = open_(["s3://bucket/p/i.csv", local], columns_to_download=["url"])
    assert [v["url"] for v in values(index)] == ["s3://bucket/p/1.jpg", f"{tmp_path}/q/1.jpg"]


def test_a_text_list_of_sample_files_is_grouped(tmp_path, open_, values, keys):
    listed = csv(
        tmp_path / "l" / "split_file_paths.txt", "b.jpg\r\n\n  ./b.txt \nx/a.txt\nx/a.jpg\n../up/c.jpg\n../up/c.txt\n"
    )
    index = open_(listed)
    assert keys(index) == ["b", "x/a", "../up/c"]
    assert values(index)[0]["txt"] == f"{tmp_path}/l/b.txt"
    assert values(index)[2]["jpg"] == f"{tmp_path}/up/c.jpg"
    assert index.rows([0])[0].versions is None and index.facts.kind == "list"


def test_a_text_list_may_name_index_files_urls_and_samples(tmp_path, open_, values, keys):
    csv(tmp_path / "l" / "sub" / "i.csv", "index,jpg\nrow,pic.jpg\n")
    lines = ["s3://bucket/deep/s.jpg", "sub/i.csv", f"{tmp_path}/l/in.jpg", "/else/where.jpg", "rel.jpg", "rel.jpg"]
    index = open_(csv(tmp_path / "l" / "split_file_texts.txt", "\n".join(lines)))
    assert keys(index) == ["row", "s3://bucket/deep/s", "in", "/else/where", "rel"]
    urls = [f"{tmp_path}/l/sub/pic.jpg", lines[0], lines[2], lines[3], f"{tmp_path}/l/rel.jpg"]
    assert [v["jpg"] for v in values(index)] == urls
    assert index.facts.num_index_files == 1


def test_a_remote_text_list(bucket, open_, values):
    csv(bucket.root / "l" / "split_file_paths.txt", "i.csv\nsub/a.jpg\n")
    csv(bucket.root / "l" / "i.csv", "index,jpg\nrow,../pic.jpg\n")
    index = open_("s3://bucket/l/split_file_paths.txt")
    assert [v["jpg"] for v in values(index)] == ["s3://bucket/pic.jpg", "s3://bucket/l/sub/a.jpg"]


def test_text_lists_that_cannot_be_used(tmp_path, bucket, open_):
    with pytest.raises(SourceError, match="no lines"):
        open_(csv(tmp_path / "empty.txt", "\n \n"))
    with pytest.raises(SourceNotFound, match=r"gone\.csv"):
        open_(csv(tmp_path / "a.txt", "gone.csv\n"))
    with pytest.raises(SourceError, match="'noextension'"):
        open_(csv(tmp_path / "b.txt", "noextension\n"))
    Path(tmp_path / "c.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match="UTF-8"):
        open_(tmp_path / "c.txt")
    with pytest.raises(SourceError, match="above"):
        csv(bucket.root / "l.txt", "../../x.csv")
        open_("s3://bucket/l.txt")
