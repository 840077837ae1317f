"""Ids, columns to download, columns to keep, missing values, paths."""

import datetime

import pyarrow as pa
import pytest
from pyarrow import parquet

from sds.errors import OptionError, SchemaError, SourceError
from sds.index import IndexOptions


@pytest.fixture
def source(tmp_path):
    def written(text, name="i.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return written


def test_an_id_column_that_was_asked_for_must_be_there(source, open_):
    path = source("media_id,url\n1,a\n")
    with pytest.raises(SchemaError, match=r"(?s)index_col_name.*'medai_id'.*did you mean 'media_id'.*media_id, url"):
        open_(path, index_col_name="medai_id")


def test_without_an_index_column_ids_are_row_numbers_at_the_source(source, open_, keys):
    path = source("n,url\n10,a\n11,\n12,c\n13,d\n")
    assert keys(open_(path)) == ["0", "1", "2", "3"]
    assert keys(open_(path, columns_to_download=["url"])) == ["0", "2", "3"]
    assert keys(open_(path, sql_query="SELECT * FROM dataframe WHERE n > 11")) == ["2", "3"]
    assert keys(open_(path, columns_to_download=["url"], max_size=2)) == ["0", "2"]


def test_a_row_without_an_id_has_its_row_number(source, open_, keys):
    path = source("index,x\na,1\n,2\nc,3\n")
    assert keys(open_(path)) == ["a", "1", "c"]
    assert keys(open_(path, sql_query="SELECT * FROM dataframe WHERE x > 1")) == ["1", "c"]


def test_duplicate_ids_work(source, open_, keys):
    assert keys(open_(source("index\na\na\n"))) == ["a", "a"]


def test_ids_may_be_of_other_types(tmp_path, open_, keys):
    parquet.write_table(
        pa.table({"index": [1.0, 2.5], "i": [3, None], "d": [datetime.date(2020, 1, 1)] * 2}), tmp_path / "i.parquet"
    )
    assert keys(open_(tmp_path / "i.parquet")) == ["1", "2.5"]
    assert keys(open_(tmp_path / "i.parquet", index_col_name="i")) == ["3", "1"]
    assert keys(open_(tmp_path / "i.parquet", index_col_name="d")) == ["2020-01-01"] * 2


def test_a_column_to_download_that_no_file_has(source, open_, values):
    path = source("index,image_url\n1,a\n")
    with pytest.raises(SchemaError, match=r"(?s)columns_to_download.*'image_ulr'.*did you mean 'image_url'"):
        open_(path, columns_to_download=["image_ulr"])
    rows = values(open_(path, columns_to_download=["gone"], allow_missing_columns=True))
    assert rows == [{"index": "1", "image_url": "a", "gone": None}]


def test_rows_with_nothing_to_download_are_left_out_and_counted(tmp_path, open_, values):
    table = pa.table({"index": ["a", "b", "c", "d"], "url": ["/1", None, "", "/4"], "other": ["/1", "/2", "/3", None]})
    parquet.write_table(table, tmp_path / "i.parquet")
    index = open_(tmp_path / "i.parquet", columns_to_download=["url", "other"])
    assert [v["index"] for v in values(index)] == ["a"]
    assert (index.facts.rows_at_source, index.facts.rows_left_out, index.facts.rows) == (4, 3, 1)
    index = open_(tmp_path / "i.parquet", columns_to_download=["url", "other"], allow_missing_columns=True)
    assert [v["url"] for v in values(index)] == ["/1", None, None, "/4"] and index.facts.rows_left_out == 0


def test_every_row_left_out_is_an_error(source, open_):
    with pytest.raises(SourceError, match=r"(?s)\['url'\].*allow_missing_columns"):
        open_(source("index,url\n1,\n"), columns_to_download=["url"])


def test_metadata_only(source, open_, values):
    index = open_(source("index,url\n1,a\n2,\n"), columns_to_download=[])
    assert [v["url"] for v in values(index)] == ["a", ""] and index.columns_to_download == ()


def test_a_table_downloads_nothing_unless_told(source, open_):
    assert open_(source("index,url\n1,a\n")).columns_to_download == ()


def test_kept_columns_are_those_asked_for_and_those_that_are_needed(source, open_, values):
    path = source("a,index,b,url,c\n1,x,2,/u,3\n")
    index = open_(path, columns_to_download=["url"], index_cols_to_keep=["c"])
    assert values(index) == [{"index": "x", "url": "/u", "c": 3}] and index.schema.names == ["index", "url", "c"]
    assert values(open_(path, index_cols_to_keep=[])) == [{"index": "x"}]
    with pytest.raises(SchemaError, match="index_cols_to_keep"):
        open_(path, index_cols_to_keep=["nope"])
    assert values(open_(path, index_cols_to_keep=["nope"], allow_missing_columns=True)) == [
        {"index": "x", "nope": None}
    ]


def test_rows_without_any_column_still_count(source, open_, keys, values):
    index = open_(source("a\n1\n2\n"), index_cols_to_keep=[])
    assert len(index) == 2 and keys(index) == ["0", "1"] and values(index) == [{}, {}]


def test_kept_columns_of_a_parquet_are_the_only_ones_read(tmp_path, open_, values):
    parquet.write_table(pa.table({"index": ["a"], "wide": ["x"], "url": ["/u"]}), tmp_path / "i.parquet")
    index = open_(tmp_path / "i.parquet", columns_to_download=["url"], index_cols_to_keep=[])
    assert values(index) == [{"index": "a", "url": "/u"}]
    with pytest.raises(SchemaError, match="wide"):  # all columns are named, read or not
        open_(tmp_path / "i.parquet", columns_to_download=["wied"], index_cols_to_keep=[])


def test_paths_and_urls(source, tmp_path, open_, values):
    paths = {
        "img/1.jpg": f"{tmp_path}/img/1.jpg",
        "./a/../b.jpg": f"{tmp_path}/b.jpg",
        "../up.jpg": f"{tmp_path.parent}/up.jpg",
        "~/x.jpg": f"{tmp_path}/~/x.jpg",
        "..x/.y.jpg": f"{tmp_path}/..x/.y.jpg",
        "/abs/../x.jpg": "/abs/../x.jpg",
        "s3://b/../k.jpg": "s3://b/../k.jpg",
        "https://h/p?a=../b": "https://h/p?a=../b",
        "a:b.jpg": f"{tmp_path}/a:b.jpg",
        "../" * 40 + "x.jpg": "/x.jpg",
    }
    path = source("url\n" + "".join(f"{p}\n" for p in paths))
    assert [v["url"] for v in values(open_(path, columns_to_download=["url"]))] == list(paths.values())


def test_a_path_that_climbs_above_its_bucket_is_named(bucket, open_):
    (bucket.root / "i.csv").write_text("url\nok.jpg\n../../x.jpg\n")
    with pytest.raises(SchemaError, match=r"'\.\./\.\./x\.jpg'.*'url', row 1"):
        open_("s3://bucket/i.csv", columns_to_download=["url"])


def test_a_null_byte_in_a_path_is_refused(tmp_path, open_):
    parquet.write_table(pa.table({"url": ["/a", "/b\0c"]}), tmp_path / "i.parquet")
    with pytest.raises(SchemaError, match=r"null byte.*row 1"):
        open_(tmp_path / "i.parquet", columns_to_download=["url"])


def test_a_null_byte_in_a_list_of_paths_is_refused(tmp_path, open_):
    table = pa.table({"many": [["/a", "/b"], None, [], ["/c", "/d\0e"]]})
    parquet.write_table(table, tmp_path / "i.parquet", row_group_size=2)
    with pytest.raises(SchemaError, match=r"null byte.*'/d\\x00e'.*row 3"):
        open_(tmp_path / "i.parquet", columns_to_download=["many"], allow_missing_columns=True)


def test_lists_of_paths_are_resolved_and_bytes_stay(tmp_path, open_, values):
    table = pa.table({"many": [["a.jpg", "/b.jpg"], None, []], "raw": [b"\x00\xff", b"", None]})
    parquet.write_table(table, tmp_path / "i.parquet")
    index = open_(tmp_path / "i.parquet", columns_to_download=["many", "raw"], allow_missing_columns=True)
    assert [v["many"] for v in values(index)] == [[f"{tmp_path}/a.jpg", "/b.jpg"], None, []]
    assert [v["raw"] for v in values(index)] == [b"\x00\xff", b"", None]


def test_numbers_are_nothing_to_download(tmp_path, open_):
    parquet.write_table(pa.table({"width": [1]}), tmp_path / "i.parquet")
    with pytest.raises(SchemaError, match="'width'"):
        open_(tmp_path / "i.parquet", columns_to_download=["width"])


@pytest.mark.parametrize(
    "options",
    [
        {"columns_to_download": "image"},
        {"columns_to_download": [1]},
        {"columns_to_download": ["a", "a"]},
        {"index_cols_to_keep": "image"},
        {"max_size": 0},
        {"max_size": 1.5},
        {"max_index_files_to_use": -1},
        {"sql_query": " "},
        {"index_col_name": ""},
        {"index_col_name": "a", "columns_to_download": ["a"]},
    ],
)
def test_impossible_options_name_their_keyword(options):
    with pytest.raises(OptionError, match=next(iter(options))) as caught:
        IndexOptions(**options)
    assert caught.value.hint


@pytest.mark.parametrize("query", [None, "SELECT x FROM dataframe"])
def test_rows_without_columns_are_as_many(query, tmp_path, open_, values):
    rows = pa.table({"x": list(range(25))})
    parquet.write_table(rows, tmp_path / "i.parquet")
    with pa.OSFile(str(tmp_path / "i.arrow"), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    for name in ("i.parquet", "i.arrow"):
        for max_size, count in ((None, 25), (30, 25), (7, 7)):
            index = open_(tmp_path / name, index_cols_to_keep=[], max_size=max_size, sql_query=query)
            assert (len(index), values(index), index.rows([count - 1])[0].key) == (count, [{}] * count, f"{count - 1}")


def test_a_dot_in_a_name_is_a_letter(tmp_path, open_):
    parquet.write_table(pa.table({"url.x": ["a", "b"], "url": ["c", None]}), tmp_path / "i.parquet")
    index = open_(tmp_path / "i.parquet", columns_to_download=["url"], index_cols_to_keep=[])
    assert len(index) == 1 and index.rows([0])[0].values["url"].endswith("/c")
