"""Indexes behind http: relative paths are file names, local files are out of reach, a query is never shown."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import sds
from sds.errors import OptionError, SchemaError, SourceError
from sds.index import addresses
from sds.testing import HTTPServer

NAMES = ["plain.txt", "x #1.txt", "50%.txt", "a?b.txt", "a%20b.txt", "sub/q&a=1 +ü.txt", "#/%23?.txt"]


@pytest.fixture
def put(http_server: HTTPServer, new_name: Callable[[], str]) -> Callable[[str, str], str]:
    """put(name, text) -> URL, in a folder of this test's own."""
    folder = new_name()

    def put_file(name: str, text: str) -> str:
        http_server.put(f"{folder}/{name}", text.encode())
        return f"{http_server.endpoint}/{folder}/{name}"

    return put_file


def test_relative_paths_of_a_table_are_file_names(put, tmp_path: Path, dst: Path):
    for name in NAMES:
        put(name, f"this is {name}")
    src = put("index.csv", "index,file\n" + "".join(f"{i},{name}\n" for i, name in enumerate(NAMES)))
    with sds.StreamingDataset(src, dst, columns_to_download=["file"]) as dataset:
        assert [Path(sample["file"]).read_text() for sample in dataset] == [f"this is {name}" for name in NAMES]


def test_relative_lines_of_a_list_are_file_names(put, tmp_path: Path, dst: Path):
    put("x #1.jpg", "the picture")
    put("deep/50%.csv", "index,jpg\nrow,y?.jpg\n")
    put("deep/y?.jpg", "another")
    src = put("list.txt", "x #1.jpg\ndeep/50%.csv\n")
    with sds.StreamingDataset(src, dst, columns_to_download=["jpg"]) as dataset:
        found = {sample["__sample_key__"]: Path(sample["jpg"]).read_text() for sample in dataset}
    assert found == {"x #1": "the picture", "row": "another"}


def test_escapes_in_the_urls_of_several_indexes_stay_as_they_are(put, tmp_path: Path, dst: Path):
    urls = []
    for folder in ("one two", "50%"):
        put(f"{folder}/a#.txt", f"in {folder}")
        url = put(f"{folder}/i.csv", f"index,file\n{folder},a#.txt\n")
        urls.append(url.replace("%", "%25").replace(" ", "%20"))
    with sds.StreamingDataset(urls, dst, columns_to_download=["file"]) as dataset:
        assert [Path(sample["file"]).read_text() for sample in dataset] == ["in one two", "in 50%"]


@pytest.mark.parametrize("value", ["/etc/hostname", "file:///etc/hostname", "FILE://localhost/etc/hostname", "//h/x"])
def test_an_index_behind_http_cannot_name_local_files(put, tmp_path: Path, dst: Path, value: str):
    src = put("index.csv", f"index,file,other\na,x.txt,{value}\nb,{value},{value}\n")
    for options in ({}, {"sql_query": "SELECT index, other AS file FROM dataframe"}):
        with pytest.raises(SchemaError, match=r"local file: .*'file', row \d(.|\n)*hint: .*copy the index"):
            sds.StreamingDataset(src, dst, columns_to_download=["file"], **options)
    for line in (f"{value}.jpg", f"{value}.csv"):
        with pytest.raises(SchemaError, match=r"local file(.|\n)*copy the"):
            sds.StreamingDataset(put("list.txt", f"{line}\n"), dst, columns_to_download=["jpg"])
    copied = tmp_path / "index.csv"
    copied.write_text(f"index,file\na,{value}\n")
    with sds.StreamingDataset(copied, dst, columns_to_download=["file"]) as dataset:
        assert len(dataset) == 1


def test_what_a_list_behind_http_names_is_trusted_no_more_than_the_list(put, bucket, open_, tmp_path: Path, dst: Path):
    (bucket.root / "i.csv").write_text("index,file\na,/etc/hostname\n")
    assert len(open_("s3://bucket/i.csv", columns_to_download=["file"])) == 1
    (tmp_path / "list.txt").write_text("s3://bucket/i.csv\n")
    assert len(open_(tmp_path / "list.txt", columns_to_download=["file"])) == 1
    src = put("list.txt", "s3://bucket/i.csv\n")
    bucket.read = lambda url: b"s3://bucket/i.csv\n"
    head, bucket.head = bucket.head, lambda url: head("s3://bucket/i.csv")
    with pytest.raises(SchemaError, match="local file"):
        open_(src, columns_to_download=["file"])


def test_local_files_in_lists_of_paths_are_found(put, http_server: HTTPServer, tmp_path: Path, dst: Path):
    table = pa.table({"files": [["a.txt"], None, [], ["b.txt", "/etc/hostname"]]})
    parquet.write_table(table, tmp_path / "i.parquet")
    src = put("i.parquet", "")
    http_server.put(src.removeprefix(f"{http_server.endpoint}/"), (tmp_path / "i.parquet").read_bytes())
    with pytest.raises(SchemaError, match=r"'/etc/hostname' in column 'files', row 3"):
        sds.StreamingDataset(src, dst, columns_to_download=["files"], allow_missing_columns=True)


SIGNED = "https://host/a.b/one.jpg?sig=hunter2&x=.zip/y", "https://host/a.b/one.txt?sig=hunter3", "two.jpg"


@pytest.mark.parametrize("columns", [None, ["jpg", "txt"]])
def test_lines_with_a_query_are_grouped_by_the_path_before_it(tmp_path: Path, dst: Path, open_, values, keys, columns):
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(SIGNED))
    index = open_(listed, columns_to_download=columns, allow_missing_columns=True)
    assert keys(index) == ["https://host/a.b/one", "two"]
    assert values(index)[0] == {"index": "https://host/a.b/one", "jpg": SIGNED[0], "txt": SIGNED[1]}


def test_no_error_about_a_list_shows_a_query(tmp_path: Path, dst: Path, open_):
    def fails(*lines: str, columns: list[str] | None) -> str:
        (tmp_path / "list.txt").write_text("\n".join(lines))
        with pytest.raises(SourceError) as caught:
            open_(tmp_path / "list.txt", columns_to_download=columns)
        return str(caught.value)

    assert "hint: columns_to_download names extensions here; there are: jpg, txt" in fails(*SIGNED, columns=["png"])
    messages = [
        fails("https://host/a.jpg?s=hunter'2", "https://host/a.jpg?s=hunter3", columns=["jpg"]),
        fails("https://host/a?s=hunter'2.jpg", columns=None),
        fails(*SIGNED, columns=["png"]),
    ]
    assert not any("hunter" in message for message in messages)


def test_there_is_one_meaning_of_a_file_url(tmp_path: Path, dst: Path, open_, values):
    with pytest.raises(OptionError, match="names a host"):
        open_("file://data/x.csv")
    with pytest.raises(OptionError, match=r"unknown scheme: ftp://(.|\n)*known schemes: .*s3"):
        open_("ftp://host/x.csv")
    assert addresses.absolute("file:///a%20b/../c") == "/c" and addresses.absolute("file://") == "/"
    (tmp_path / "list.txt").write_text("file://data/x.csv\n")
    with pytest.raises(SourceError, match=r"list\.txt.*names a host"):
        open_(tmp_path / "list.txt")
    (tmp_path / "list.txt").write_text("ftp://host/x.jpg\nfile:///a%20b/y.jpg\n")  # as in a table: a row's failure
    urls = [value["jpg"] for value in values(open_(tmp_path / "list.txt"))]
    assert urls == ["ftp://host/x.jpg", "/a b/y.jpg"]
