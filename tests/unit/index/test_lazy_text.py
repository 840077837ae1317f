"""CSV and JSON lines read in chunks have the rows, ids and types of those that are read whole."""

from __future__ import annotations

import csv
import io
import json
import pickle
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv

from sds.errors import OptionError, SchemaError, SourceError
from sds.index import IndexOptions, lazy_text, open_index, text_blocks
from sds.index.lazy_opening import open_lazy
from sds.index.text_blocks import cut_csv, cut_lines, read_blocks

NUM_ROWS = 110


def no_remote():
    raise AssertionError("a local source asked for the network")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows a block, so that small files have many."""
    monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", 300)
    monkeypatch.setattr(text_blocks, "_READ_BYTES", 1000)
    monkeypatch.setattr(lazy_text, "_RUN_BYTES", 700)


def record(i: int) -> dict:
    return {
        "id": f"{i:04}",
        "file": None if i % 17 == 3 else "" if i % 23 == 5 else f"pictures/{i}.jpg",
        "x": i if i % 11 else None,
        "w": i % 4 / 2,
        "caption": f'a "good" one, {i}\nsecond line' if i % 3 else f"plain {i}",
        "flag": i % 2 == 0,
        "code": f"{i:03}" if i < 95 else f"A{i}",  # looks like numbers in the first blocks
        "date": f"2026-11-{1 + i % 28:02}",
        "nothing": None,
    }


def write_csv(path: Path, records: list[dict], delimiter: str = ",", end: str = "\n") -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(records[0]), delimiter=delimiter, lineterminator=end)
    writer.writeheader()
    writer.writerows(records)
    path.write_bytes(text.getvalue().encode())


def write_json(path: Path, records: list[dict]) -> None:
    path.write_text("".join(json.dumps({k: v for k, v in each.items() if v is not None}) + "\n" for each in records))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same rows in each format, in several files of different columns."""
    records = [record(i) for i in range(NUM_ROWS)]
    (tmp_path / "data/more").mkdir(parents=True)
    shorter = [{k: v for k, v in each.items() if k != "date"} for each in records[50:]]
    write_csv(tmp_path / "data/a.csv", records[:50])
    write_csv(tmp_path / "data/more/b.csv", shorter, end="\r\n")
    write_csv(tmp_path / "data/all.tsv", records, delimiter="\t")
    write_json(tmp_path / "data/a.jsonl", records[:50])
    write_json(tmp_path / "data/more/b.jsonl", shorter)
    return tmp_path


@pytest.fixture
def both(folder: Path):
    """The same, read in chunks and read whole."""

    def opened(src, *, chunk_size=16, **options):
        source = str(folder / src)
        lazy = IndexOptions(lazy_index_chunk_size=chunk_size, **options)
        return (
            open_lazy(source, lazy, folder=folder / "dst", remote=no_remote),
            open_index(source, IndexOptions(**options), folder=folder / "dst", remote=no_remote),
        )

    return opened


def assert_same(lazy, whole) -> None:
    assert lazy.schema == whole.schema
    assert len(lazy) == len(whole)
    ids = np.random.default_rng(0).permutation(len(whole))
    for mine, other in zip(lazy.rows(ids), whole.rows(ids), strict=True):
        assert (mine.id, mine.key, mine.values) == (other.id, other.key, other.values)
    lazy.close()


CASES = [
    ("data/**/*.csv", 16, {}),
    ("data/all.tsv", 30, {"index_col_name": "id", "columns_to_download": ["file"]}),
    ("data/**/*.jsonl", 16, {"index_col_name": "id", "columns_to_download": ["file"]}),
    ("data/**/*.csv", 1000, {"columns_to_download": ["file"], "allow_missing_columns": True}),
    ("data/**/*.jsonl", 30, {"index_cols_to_keep": ["x"]}),
    ("data/**/*.csv", 16, {"index_cols_to_keep": ["x"], "max_size": 50, "columns_to_download": ["file"]}),
    ("data/**/*.csv", 40, {"sql_query": "SELECT * FROM dataframe WHERE x > 40 AND flag", "index_col_name": "id"}),
    (
        "data/**/*.jsonl",
        40,
        {
            "sql_query": "SELECT id, file, x * 2 AS double, w FROM dataframe WHERE x % 3 = 0",
            "columns_to_download": ["file"],
            "weight_col_name": "w",
        },
    ),
]


@pytest.mark.parametrize(("src", "chunk_size", "options"), CASES)
def test_rows_and_types_are_those_of_the_index_that_is_read_whole(both, src, chunk_size, options):
    lazy, whole = both(src, chunk_size=chunk_size, **options)
    if "weight_col_name" in options:
        assert (lazy.weights[: len(lazy)] == whole.weights[: len(whole)]).all()
    assert_same(lazy, whole)


def test_ids_keep_their_zeros_and_other_files_decide_what_is_text(both):
    lazy, _ = both("data/**/*.csv", index_col_name="id")
    rows = lazy.rows([7, 80])
    assert [row.key for row in rows] == ["0007", "0080"]
    assert [row.values["code"] for row in rows] == ["007", "080"], "in the last rows of the other file it is text"
    assert rows[0].values["date"] == "2026-11-08"
    assert "\n" in rows[0].values["caption"]


@pytest.mark.parametrize(
    "blocks",
    [
        (["1", "2"], ["3.5"]),
        (["1", "0"], ["true", "false"]),  # truth, in Arrow's eyes
        (["1", "2"], ["true"]),  # text
        (["00", "1"], ["true"]),
        (["true"], ["1.5"]),
        (["2026-01-01"], ["7"]),
        (["2026-01-01"], ["2026-01-01T10:00:00"]),
        (["", ""], ["5"]),
        (["", ""], ["text"]),
        (["12:30:00"], [""]),
        (["007"], ["x7"]),
        (["99999999999999999999"], ["1"]),
        (["nan"], ["1"]),
    ],
)
def test_types_of_a_column_meet_as_if_the_file_were_read_whole(folder, both, blocks):
    filler = "z" * 60
    lines = [f"{value},{filler}" for block in blocks for value in block * 8]
    (folder / "types.csv").write_text("v,f\n" + "\n".join(lines) + "\n")
    assert_same(*both("types.csv"))


@pytest.mark.parametrize(
    "blocks",
    [
        ([1, 2], [3.5]),
        ([1], ["text"]),
        ([True], [1]),
        ([None], [{"a": 1}], [{"b": "x"}]),
        ([[1]], [[2.5]], [[]]),
        (["2026-01-01"], ["no date"]),
        ([1.25, 3], ["text"], [False]),
    ],
)
def test_kinds_of_json_meet_as_if_the_file_were_read_whole(folder, both, blocks):
    records = [{"v": value, "f": "z" * 60} for block in blocks for value in block * 8]
    write_json(folder / "kinds.jsonl", records)
    assert_same(*both("kinds.jsonl"))


def test_kinds_that_cannot_meet_are_refused(folder, both):
    write_json(folder / "kinds.jsonl", [{"v": v, "f": "z" * 60} for v in [1] * 8 + [{"a": 1}] * 8])
    with pytest.raises(SchemaError, match="different kinds: 'v'"):
        both("kinds.jsonl")


@pytest.mark.parametrize("seed", range(12))
def test_cuts_are_where_rows_end_for_arrow(seed, tmp_path):
    """Random text with quotes and breaks wherever they may be: blocks have, together, the rows of the whole."""
    rng = random.Random(seed)
    fields = ["plain", '5" pipe', '"a, b"', '"two\nlines"', '"he said ""no"""', '""', 'x"y"z', '"q"rest', '"\r\n"', ""]
    rows = [",".join(rng.choice(fields) for _ in range(3)) for _ in range(60)]
    text = rng.choice(["\n", "\r\n"]).join(["a,b,c", *rows, ""][: None if seed % 2 else -1]).encode()
    (tmp_path / "x.csv").write_bytes(text)
    options = arrow_csv.ParseOptions(newlines_in_values=True)
    strings = arrow_csv.ConvertOptions(column_types=dict.fromkeys("abc", pa.string()))
    whole = arrow_csv.read_csv(io.BytesIO(text), parse_options=options, convert_options=strings)
    blocks = list(read_blocks(str(tmp_path / "x.csv"), len(text), lambda t: cut_csv(t, b","), no_remote))
    assert b"".join(block.text for block in blocks) == text
    assert len(blocks) > 3
    parts = [
        lazy_text.parse_csv(block.text, "csv", names="abc" if k else None, types=dict.fromkeys("abc", pa.string()))
        for k, block in enumerate(blocks)
    ]
    assert pa.concat_tables([part for part in parts if part is not None]).equals(whole)


def test_a_row_may_be_larger_than_a_block_but_not_endless(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    path.write_text("a" * 5000 + "\nb\n" + "c" * 700)
    read = [block.text for block in read_blocks(str(path), path.stat().st_size, cut_lines, no_remote)]
    assert [len(text) for text in read] == [5001, 702] or b"".join(read) == path.read_bytes()
    monkeypatch.setattr(text_blocks, "_MAX_ROW_BYTES", 2000)
    with pytest.raises(SourceError, match=r"a row has more than .* from byte 0 on"):
        list(read_blocks(str(path), path.stat().st_size, cut_lines, no_remote))


def test_the_pass_over_the_lines_is_made_once_whatever_is_asked_for(folder, both, monkeypatch):
    from sds.index import lazy_lines

    first, _ = both("data/**/*.csv", index_col_name="id")
    assert len(list((folder / "dst").glob("*.lines"))) == 2
    monkeypatch.setattr(lazy_lines, "_scan", None)
    second, whole = both("data/**/*.csv", index_col_name="id", sql_query="FROM dataframe WHERE x > 5", chunk_size=9)
    assert_same(second, whole)
    assert second.fingerprint != first.fingerprint
    with pytest.raises(TypeError):  # other columns of text: other types
        both("data/**/*.csv", index_col_name="id", columns_to_download=["file"])


def test_the_fingerprint_is_that_of_the_content_wherever_it_lies(folder, both):
    first, _ = both("data/**/*.csv")
    (folder / "data").rename(folder / "elsewhere")
    second, _ = both("elsewhere/**/*.csv")
    assert second.fingerprint == first.fingerprint
    path = folder / "elsewhere/a.csv"
    path.write_bytes(path.read_bytes().replace(b"plain 30", b"plain 31"))
    assert both("elsewhere/**/*.csv")[0].fingerprint != first.fingerprint


def test_a_file_that_changes_under_an_open_index_is_an_error(folder, both):
    lazy, _ = both("data/a.csv")
    path = folder / "data/a.csv"
    content = path.read_bytes().replace(b"plain 0", b"other 0")
    with open(path, "r+b") as file:
        file.write(content)
    with pytest.raises(SourceError, match=r"changed since it was opened.*a\.csv"):
        lazy.rows([0])


def test_other_bytes_under_the_same_version_are_an_error(folder, both, monkeypatch):
    lazy, _ = both("data/a.jsonl")
    path = folder / "data/a.jsonl"
    path.write_bytes(path.read_bytes().replace(b"plain 0", b"other 0"))
    monkeypatch.setattr(lazy_text, "check_version", lambda *_: None)  # as of an object in a store
    with pytest.raises(SourceError, match=r"changed since it was opened.*a\.jsonl"):
        lazy.rows([0])
    assert lazy.rows([49])[0].id == 49, "what did not change can still be read"


def test_pickled_it_reads_on_and_chunks_come_in_order(both):
    lazy, whole = both("data/**/*.jsonl", sql_query="SELECT * FROM dataframe WHERE x > 40", chunk_size=20)
    again = pickle.loads(pickle.dumps(lazy))
    again.expect([0, 1, 2])
    assert_same(again, whole)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv.gz", b"", "not compressed as a whole"),
        ("x.jsonl.zst", b"", "not compressed as a whole"),
        ("x.json", b' [{"id": 1}]', "one JSON record a line, and this is a list"),
        ("x.arrow", b"", "needs Parquet, CSV or JSON lines"),
        ("list.txt", b"one.jpg\n", "needs Parquet, CSV or JSON lines"),
    ],
)
def test_what_cannot_be_read_in_part_is_refused_with_a_way_out(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match=message) as caught:
        open_lazy(
            str(tmp_path / name), IndexOptions(lazy_index_chunk_size=5), folder=tmp_path / "dst", remote=no_remote
        )
    assert "sds index build" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"a,b\n1,2\n3\n", r"Expected 2 columns, got 1: 3 \(in the rows from byte 0 on\)"),
        ("x.csv", b"a,a\n1,2\n", "two columns have the same name"),
        ("x.jsonl", b'{"a": 1}\n{"a": \n', "cannot be read"),
        ("x.jsonl", b"\n\n", "has no rows"),
        ("x.csv", b"", "has no rows"),
        ("x.csv", b"a,b\n", "has no rows"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message) as caught:
        open_lazy(
            str(tmp_path / name), IndexOptions(lazy_index_chunk_size=5), folder=tmp_path / "dst", remote=no_remote
        )
    assert caught.value.hint


def test_a_mark_at_the_beginning_is_no_letter(folder, both):
    for name in ("a.csv", "a.jsonl"):
        content = (folder / "data" / name).read_bytes()
        (folder / f"marked-{name}").write_bytes(b"\xef\xbb\xbf" + content)
        assert_same(*both(f"marked-{name}"))
