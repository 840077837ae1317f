"""SQL: any SELECT over `dataframe`, in a fixed order, with no way out."""

import numpy as np
import pyarrow as pa
import pytest

from sds.errors import QueryError, SchemaError, SourceError
from sds.index import IndexOptions
from sds.index.lazy_opening import open_lazy
from sds.index.query import run_query


@pytest.fixture
def source(tmp_path):
    (tmp_path / "i.csv").write_text("index,url,width\na,1.jpg,100\nb,2.jpg,200\nc,,300\nd,4.jpg,400\n")
    return tmp_path / "i.csv"


def test_the_length_is_that_of_the_result(source, open_, keys):
    index = open_(source, columns_to_download=["url"], sql_query="SELECT * FROM dataframe WHERE width >= 200")
    assert keys(index) == ["b", "d"] and len(index) == 2
    facts = index.facts
    assert (facts.rows_at_source, facts.rows_after_query, facts.rows_left_out, facts.rows) == (4, 3, 1, 2)


def test_max_size_takes_the_first_rows_after_the_query(source, open_, keys):
    query = "SELECT * FROM dataframe ORDER BY width DESC"
    assert keys(open_(source, columns_to_download=["url"], sql_query=query, max_size=2)) == ["d", "b"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT index, width * 2 AS twice FROM dataframe WHERE width < 200", [{"index": "a", "twice": 200}]),
        ("FROM dataframe SELECT index LIMIT 1", [{"index": "a"}]),
        (
            "SELECT a.index, b.width FROM dataframe a JOIN dataframe b ON a.width * 4 = b.width",
            [{"index": "a", "width": 400}],
        ),
        ("SELECT sum(width) AS total FROM dataframe", [{"total": 1000}]),
        ("WITH t AS (SELECT * FROM dataframe) SELECT index FROM t WHERE width = 300", [{"index": "c"}]),
        ("SELECT index FROM dataframe WHERE width = (SELECT max(width) FROM dataframe); ", [{"index": "d"}]),
        ("SELECT DISTINCT width > 200 AS big FROM dataframe ORDER BY big", [{"big": False}, {"big": True}]),
    ],
)
def test_any_select_runs(source, open_, values, query, expected):
    assert values(open_(source, sql_query=query)) == expected


def test_the_query_sees_paths_as_the_index_has_them_and_may_compute_them(source, tmp_path, open_, values):
    query = "SELECT 'img/' || url AS picture FROM dataframe WHERE url LIKE '1%'"
    index = open_(source, columns_to_download=["picture"], sql_query=query)
    assert values(index) == [{"picture": f"{tmp_path}/img/1.jpg"}]


def test_ids_are_row_numbers_of_the_source_where_rows_come_from_one_row(tmp_path, open_, keys):
    (tmp_path / "i.csv").write_text("n,g\n10,x\n11,y\n12,x\n13,y\n")
    path = tmp_path / "i.csv"
    plain = {
        "SELECT * FROM dataframe WHERE n > 11": ["2", "3"],
        "SELECT n + 1 AS m FROM dataframe ORDER BY n DESC LIMIT 2": ["3", "2"],
        "SELECT lower(g) FROM dataframe d WHERE d.n IN (SELECT max(n) FROM dataframe)": ["3"],
        "SELECT *, row_number() OVER () FROM dataframe QUALIFY row_number() OVER (PARTITION BY g ORDER BY n) = 2": [
            "2",
            "3",
        ],
    }
    for query, expected in plain.items():
        assert sorted(keys(open_(path, sql_query=query))) == sorted(expected), query
    for query in (
        "SELECT DISTINCT g FROM dataframe",
        "SELECT g, max(n) FROM dataframe GROUP BY ALL",
        "SELECT a.n FROM dataframe a JOIN dataframe b ON a.n = b.n + 2",
        "SELECT g FROM dataframe WHERE n = 10 UNION ALL SELECT g FROM dataframe WHERE n = 13",
    ):
        assert keys(open_(path, sql_query=query)) == ["0", "1"], query


def test_the_result_must_have_what_is_to_be_downloaded_and_the_id_asked_for(source, open_, values):
    query = "SELECT width FROM dataframe"
    with pytest.raises(SchemaError, match=r"(?s)query's result.*'url'.*width"):
        open_(source, columns_to_download=["url"], sql_query=query)
    with pytest.raises(SchemaError, match="index_col_name"):
        open_(source, index_col_name="index", sql_query=query)
    rows = values(open_(source, columns_to_download=["url"], sql_query=query, allow_missing_columns=True, max_size=1))
    assert rows == [{"width": 100, "url": None}]


def test_no_rows_after_the_query_says_so(source, open_):
    with pytest.raises(SourceError, match="query leaves none of 4 rows"):
        open_(source, sql_query="SELECT * FROM dataframe WHERE width > 1000")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT nosuch FROM dataframe",
        "SELEC 1",
        "SELECT * FROM elsewhere",
        "SELECT *, 1 AS width FROM dataframe",
        "DELETE FROM dataframe",
        "CREATE TABLE t AS SELECT 1",
        "SELECT 1; SELECT 2",
        "SET threads = 1",
        "INSTALL httpfs",
        "-- nothing",
        "SELECT * FROM dataframe USING SAMPLE 10%",
    ],
)
def test_what_does_not_run_is_a_query_error_with_a_hint(source, open_, query):
    with pytest.raises(QueryError) as caught:
        open_(source, sql_query=query)
    assert caught.value.hint
    if "nosuch" in query:
        assert "nosuch" in caught.value.message and "index, url, width" in caught.value.hint


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('{path}')",
        "SELECT * FROM '{path}'",
        "SELECT * FROM read_text('{path}')",
        "SELECT * FROM glob('{folder}/*')",
        "COPY dataframe TO '{folder}/out.csv'",
        "ATTACH '{folder}/x.db'",
        "SELECT * FROM read_csv('https://example.invalid/x.csv')",
        "SELECT * FROM secret_of_the_program",
    ],
)
def test_a_query_cannot_reach_files_network_or_variables(source, tmp_path, open_, query):
    secret_of_the_program = pa.table({"secret": [1]})  # noqa: F841 - DuckDB would find it by its name
    before = set(tmp_path.rglob("*"))
    with pytest.raises(QueryError):
        open_(source, sql_query=query.format(path=source, folder=tmp_path))
    assert {p for p in set(tmp_path.rglob("*")) - before if p.is_file()} == set()


def test_a_million_rows_keep_their_order(tmp_path):
    """DuckDB runs on all cores, and promises no order without ORDER BY: this is what its setting must give us."""
    table = pa.table({"n": np.arange(1_000_000), "g": np.arange(1_000_000) * 7919 % 1000})

    def run(query, number_rows=False):
        return run_query(table, query, id_column="n", number_rows=number_rows, spill=tmp_path)

    kept = run("SELECT * FROM dataframe WHERE g < 700").table["n"].to_numpy()
    assert len(kept) == 700_000 and (np.diff(kept) > 0).all()
    assert run("SELECT n FROM dataframe LIMIT 5 OFFSET 500000").table["n"].to_pylist() == list(range(500_000, 500_005))
    numbered = run("SELECT g FROM dataframe WHERE n % 3 = 0", number_rows=True)
    assert (numbered.row_numbers.to_numpy() == np.arange(0, 1_000_000, 3)).all()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT g, count(*) AS c, avg(n / 3.0) AS mean FROM dataframe GROUP BY g",
        "SELECT DISTINCT g FROM dataframe",
        "SELECT n FROM dataframe ORDER BY g",
        "SELECT * FROM dataframe WHERE random() < 0.1",
        "SELECT a.n FROM dataframe a JOIN dataframe b ON a.g = b.n",
        "SELECT * FROM dataframe TABLESAMPLE reservoir(100 ROWS) REPEATABLE (42)",
    ],
)
def test_what_has_no_order_of_its_own_comes_out_equal_each_time(tmp_path, query):
    table = pa.table({"n": np.arange(300_000), "g": np.arange(300_000) * 7919 % 1000})
    runs = [run_query(table, query, id_column="n", number_rows=False, spill=tmp_path).table for _ in range(3)]
    assert runs[0].equals(runs[1]) and runs[0].equals(runs[2])


@pytest.mark.parametrize("lazy", [None, 2])
def test_types_are_named_where_they_are_what_is_wrong(tmp_path, open_, lazy):
    (tmp_path / "i.csv").write_text("id,n\n7,1\n8,2\n")
    query = "SELECT * FROM dataframe WHERE id > 7"
    with pytest.raises(QueryError, match="Cannot compare") as caught:
        if lazy is None:
            open_(tmp_path / "i.csv", sql_query=query, index_col_name="id")
        else:
            options = IndexOptions(sql_query=query, index_col_name="id", lazy_index_chunk_size=lazy)
            open_lazy(tmp_path / "i.csv", options, folder=tmp_path / "lazy", remote=None)
    assert "its columns: id (text), n (int64); ids" in caught.value.hint and "id::int" in caught.value.hint
