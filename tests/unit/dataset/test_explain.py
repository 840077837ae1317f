"""explain() says what will happen, a fact a line."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import parquet

import sds
import texts


def lines(dataset: sds.StreamingDataset) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in dataset.explain().splitlines())


def test_a_plain_folder(make, source):
    told = lines(make())
    assert told["source"].startswith(str(source)) and "40 sample files" in told["source"]
    assert told["rows"] == "40 of 40 at the source"
    assert told["download"] == "['txt']"
    assert told["shuffle"].startswith("none")
    assert told["partition"].startswith("rank 0 of 1: 40 samples")
    assert "limit 10 GB" in told["cache"] and "policy keep" in told["cache"]
    assert "query" not in told and "left out" not in told and "max_size" not in told


def test_query_limits_shuffle_and_ranks(make):
    told = lines(
        make(
            sql_query="SELECT * FROM dataframe WHERE index < '020'",
            max_size=15,
            shuffle_seed=7,
            cache_limit=None,
            world=sds.World(1, 4),
        )
    )
    assert told["rows"] == "15 of 40 at the source"
    assert told["query"].startswith("20 rows (50.0%): SELECT")
    assert told["max_size"] == "15"
    assert "global, seed 7" in told["shuffle"]
    assert told["partition"].startswith("rank 1 of 4: 4 samples")
    assert "no limit" in told["cache"]


def test_rows_without_a_file_are_counted(make, tmp_path, source):
    (tmp_path / "index.csv").write_text(f"index,url\na,{source}/000.txt\nb,\nc,{source}/002.txt\n")
    dataset = make(src=tmp_path / "index.csv", columns_to_download=["url"])
    assert texts.keys(dataset) == ["a", "c"]
    assert lines(dataset)["left out"].startswith("1 row")
    kept = make(src=tmp_path / "index.csv", columns_to_download=["url"], allow_missing_columns=True)
    assert texts.keys(kept) == ["a", "b", "c"]
    assert kept[1]["url"] is None


def test_metadata_only(make):
    assert lines(make(columns_to_download=[]))["download"] == "nothing (metadata only)"


def test_no_secret_is_shown(make, http_server, new_name):
    folder = new_name()
    http_server.put(f"{folder}/index.csv", b"index,n\na,1\n")
    url = http_server.url(f"{folder}/index.csv").replace("http://", "http://user:hunter2@") + "?token=hunter3"
    dataset = make(src=url, columns_to_download=[])
    assert "hunter" not in dataset.explain()
    assert "hunter" not in repr(dataset)


def lazy_folder(tmp_path):
    for number in range(2):
        numbers = list(range(number * 500, number * 500 + 500))
        table = pa.table(
            {"index": [f"{i:05}" for i in numbers], "n": numbers, "w": [0.5] * 500, "t": ["x" * 500] * 500}
        )
        parquet.write_table(table, tmp_path / f"{number}.parquet", use_dictionary=False)
    return tmp_path / "*.parquet"


def test_a_lazy_index_says_how_it_is_read_and_why(make, tmp_path):
    src = lazy_folder(tmp_path)
    common = {"src": src, "columns_to_download": [], "lazy_index_chunk_size": 50, "shuffle_seed": 1}
    plain = lines(make(**common))
    assert plain["index"].startswith("lazy, 20 chunks of 50 rows") and "0 rows were looked at" in plain["index"]
    assert plain["plan"] == "scan: there is no query: all rows are wanted"
    assert "windows of 8 chunks (lazy_index_reach), seed 1" in plain["shuffle"]
    assert "row groups have up to 500 rows, and are decoded about 10 times" in plain["advice"]

    many = lines(make(**common, sql_query="SELECT * FROM dataframe WHERE n % 2 = 0 AND n < 200"))
    assert many["plan"].startswith("scan: 10.000% of the rows are left, a take pays below 5.")
    assert "16 chunks have no row left and are never read" in many["reading"]

    few = lines(make(**common, sql_query="SELECT * FROM dataframe WHERE n % 100 = 0"))
    assert few["plan"].startswith("take: 1.000% of the rows are left")
    assert "lazy_index_plan='scan'" in few["reading"]

    asked = lines(make(**common, sql_query="SELECT * FROM dataframe WHERE n % 100 = 0", lazy_index_plan="scan"))
    assert asked["plan"].startswith("scan: asked for (1.000% of the rows are left")


def test_weights_are_counted_for_the_epoch_that_comes(make, tmp_path):
    dataset = make(src=lazy_folder(tmp_path), columns_to_download=[], weight_col_name="w", shuffle_seed=1)
    assert lines(dataset)["weights"] == f"column 'w', the same each epoch: {len(dataset)} samples in epoch 0"
    assert lines(dataset)["plan"].startswith("take: any row of a mapped table costs the same")
    dataset.set_epoch(1)
    assert lines(dataset)["partition"].startswith(f"rank 0 of 1: {len(dataset)} samples")
