"""Index files of every format give the same rows."""

import bz2
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet

from sds.errors import SchemaError, SourceError, UnsupportedSource

ROWS = [
    {"index": "00100", "image": "/d/a.jpg", "caption": "a, b", "width": 10},
    {"index": "7", "image": "s3://b/ü.jpg", "caption": "two\nlines", "width": 20},
]
TABLE = pa.Table.from_pylist(ROWS)


def write(path: Path) -> Path:
    name, text = path.name, ""
    if ".csv" in name or ".tsv" in name:
        sep = "," if ".csv" in name else "\t"
        quoted = [[f'"{v}"' if isinstance(v, str) else str(v) for v in row.values()] for row in ROWS]
        text = "\n".join([sep.join(ROWS[0]), *(sep.join(row) for row in quoted)]) + "\n"
    elif ".jsonl" in name or ".ndjson" in name:
        text = "\n".join(json.dumps(row) for row in ROWS) + "\n\n"
    elif ".json" in name:
        text = json.dumps(ROWS, indent=2)
    elif name.endswith(("parquet", "pq")):
        parquet.write_table(TABLE, path)
    elif "stream" in name:
        with pa.ipc.new_stream(path, TABLE.schema) as writer:
            writer.write_table(TABLE)
    else:
        feather.write_feather(TABLE, path, compression="lz4" if "packed" in name else "uncompressed")
    if text:
        pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": pa.Codec("zstd").compress}.get(path.suffix, bytes)
        path.write_bytes(bytes(pack(text.encode())))
    return path


@pytest.mark.parametrize(
    "name",
    [
        *(
            "a.csv",
            "a.tsv",
            "a.json",
            "a.jsonl",
            "a.ndjson",
            "a.parquet",
            "a.pq",
            "a.arrow",
            "a.feather",
            "stream.arrow",
        ),
        *("packed.feather", "a.csv.gz", "a.tsv.gz", "a.json.gz", "a.jsonl.gz", "a.csv.bz2", "a.jsonl.zst"),
        *("a.CSV", "a.v1.csv"),
    ],
)
def test_every_format_gives_the_same_rows(tmp_path, open_, values, keys, name):
    path = write(tmp_path / (name.lower() if name == "a.CSV" else name))
    if name == "a.CSV":
        path = path.rename(tmp_path / name)
    index = open_(path, columns_to_download=["image"])
    assert values(index) == ROWS
    assert keys(index) == ["00100", "7"]
    assert index.columns_to_download == ("image",)
    assert index.schema.names == ["index", "image", "caption", "width"]


def test_equal_content_has_an_equal_fingerprint_in_every_format(tmp_path, open_):
    names = ("a.csv", "a.json", "a.parquet", "stream.arrow", "a.feather")
    assert len({open_(write(tmp_path / n), columns_to_download=["image"]).fingerprint for n in names}) == 1


def test_a_byte_order_mark_and_trailing_blank_lines_are_no_content(tmp_path, open_, values):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfx,y\r\n1,2\r\n\r\n")
    (tmp_path / "b.json").write_bytes(b'\xef\xbb\xbf [ {"x": 1, "y": 2} ] \n')
    assert values(open_(tmp_path / "a.csv")) == values(open_(tmp_path / "b.json")) == [{"x": 1, "y": 2}]


@given(ids=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1), min_size=1))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ids_of_a_csv_keep_their_text(tmp_path_factory, open_, keys, ids):
    folder = tmp_path_factory.mktemp("ids")
    lines = ['"' + i.replace('"', '""') + '",1' for i in ids]
    (folder / "a.csv").write_text("\n".join(["media_id,x", *lines]), newline="")
    assert keys(open_(folder / "a.csv", index_col_name="media_id", folder=folder / "i")) == ids


@pytest.mark.parametrize(
    "text", ["00100", "1e5", "0x10", "1_000", "true", "NaN", "2020-01-01", "12345678901234567890123"]
)
def test_ids_and_urls_that_look_like_something_else_stay_text(tmp_path, open_, text):
    (tmp_path / "a.csv").write_text(f"index,url\n{text},/x/{text}\n{text},{text}\n")
    row = open_(tmp_path / "a.csv", columns_to_download=["url"]).rows([1])[0]
    assert (row.key, row.values["index"], row.values["url"]) == (text, text, str(tmp_path / text))


def test_dates_in_text_formats_stay_text(tmp_path, open_, values):
    day, moment = "2020-01-01", "2020-01-01T00:00:00"
    (tmp_path / "a.csv").write_text(f"a,b,c\n{day},{moment},12:30\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"a": day, "b": {"c": [moment]}}) + "\n")
    assert values(open_(tmp_path / "a.csv")) == [{"a": day, "b": moment, "c": "12:30"}]
    assert values(open_(tmp_path / "b.jsonl")) == [{"a": day, "b": {"c": [moment]}}]


def test_json_numbers_become_ids_with_all_their_digits(tmp_path, open_, keys):
    (tmp_path / "a.json").write_text('[{"index": 5}, {"index": 9007199254740993}]')
    (tmp_path / "b.json").write_text('[{"index": 12345678901234567890}, {"index": 1.5}]')
    assert keys(open_(tmp_path / "a.json")) == ["5", "9007199254740993"]
    assert keys(open_(tmp_path / "b.json")) == ["12345678901234567890", "1.5"]


def test_json_columns_of_mixed_kinds_become_text(tmp_path, open_, values):
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": "one"}\n{"x": true}\n{"y": 2.5}\n')
    assert [v["x"] for v in values(open_(tmp_path / "a.jsonl"))] == ["1", "one", "true", None]


def test_json_columns_that_are_a_list_here_and_a_number_there_are_refused(tmp_path, open_):
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": [1]}\n')
    with pytest.raises(SchemaError, match="'x'"):
        open_(tmp_path / "a.jsonl")


def test_a_record_larger_than_a_block_is_read(tmp_path, open_, values):
    (tmp_path / "a.jsonl").write_text(json.dumps({"x": "y" * (5 << 20)}) + "\n")
    assert len(values(open_(tmp_path / "a.jsonl"))[0]["x"]) == 5 << 20


def test_dictionaries_and_views_are_plain_values(tmp_path, open_, values):
    table = pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode(), "b": pa.array(["1", None, "3"])})
    parquet.write_table(table, tmp_path / "a.parquet")
    index = open_(tmp_path / "a.parquet")
    assert index.schema.types == [pa.string(), pa.string()]
    assert [v["a"] for v in values(index)] == ["x", "y", "x"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"PAR1 not really"),
        ("a.parquet", b""),
        ("a.arrow", b"ARROW1\0\0 not really"),
        ("a.csv", b"a,b\n1\n"),
        ("a.csv.gz", b"not gzip"),
        ("a.json", b'[{"a": 1}, {"a": '),
        ("a.jsonl", b'{"a": 1}\n{"a": \n'),
        ("a.json", b"[1, 2]"),
        ("a.json", b'"text"'),
    ],
)
def test_a_damaged_file_is_named_with_its_cause(tmp_path, open_, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=name) as caught:
        open_(tmp_path / name)
    assert caught.value.hint and caught.value.__cause__ is not None


@pytest.mark.parametrize(("name", "content"), [("a.csv", ""), ("a.csv", "x,y\n"), ("a.jsonl", " \n"), ("a.json", "[]")])
def test_a_file_without_rows_is_an_empty_source(tmp_path, open_, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match="no rows"):
        open_(tmp_path / name)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv.bz2", "a.csv.zst", "a.jsonl.gz"])
@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf", b"\r\n \n"])
def test_a_compressed_file_without_rows_is_an_empty_source(tmp_path, open_, name, content):
    codec = {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}.get(name.rpartition(".")[2])
    with pa.output_stream(str(tmp_path / name), compression=codec) as file:
        file.write(content)
    with pytest.raises(SourceError, match="source has no rows"):
        open_(tmp_path / name)


def test_an_unknown_kind_of_file_lists_the_known_ones(tmp_path, open_):
    (tmp_path / "a.xlsx").write_bytes(b"x")
    with pytest.raises(UnsupportedSource, match=r"(?s)a\.xlsx.*\.parquet"):
        open_(tmp_path / "a.xlsx")


def test_two_columns_of_one_name_are_refused(tmp_path, open_):
    (tmp_path / "a.csv").write_text("x,x\n1,2\n")
    with pytest.raises(SchemaError, match="'x'"):
        open_(tmp_path / "a.csv")
