"""Queries on parts of an index: what can be run on any rows alone, what it must read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sds.errors import QueryError
from sds.index.lazy_query import ROW, QueryEngine, plan_query

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("img", pa.string()), ("s", pa.struct([("x", pa.int64())]))])


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = QueryEngine(Path(tmp_path_factory.mktemp("spill")))
    yield engine
    engine.close()


def plan(engine, query, outputs=("img",), keep=None):
    return plan_query(query, SCHEMA, outputs=outputs, keep=keep, engine=engine)


@pytest.mark.parametrize(
    ("query", "columns", "narrow", "given"),
    [
        ("SELECT * FROM dataframe WHERE a > 1", "a b img s", "a img", "a b img s"),
        ("FROM dataframe WHERE s.x = 1 AND b LIKE '%z%'", "a b img s", "b img s", "a b img s"),
        ("SELECT img, lower(b) AS c FROM dataframe WHERE a % 2 = 0", "a b img", "a img", "img c"),
        ("SELECT img AS other, a + 1 AS z FROM dataframe d WHERE d.a IN (1, 2)", "a img", "a", "other z"),
        ("SELECT a + 1 AS z, img FROM dataframe WHERE z > 3", "a img", "a img", "z img"),
        ("SELECT b AS one, one || 'x' AS img FROM dataframe", "b", "b", "one img"),
        ("SELECT * EXCLUDE (b) FROM dataframe WHERE a IS NOT NULL", "a b img s", "a img", "a img s"),
        ("SELECT * REPLACE (upper(img) AS img) FROM dataframe WHERE a = 1", "a b img s", "a b img s", "a b img s"),
        ("SELECT CASE WHEN a > 1 THEN img END AS img FROM dataframe", "a img", "a img", "img"),
        ("SELECT s.* FROM dataframe WHERE a > 1", "a b img s", "a b img s", "x"),
        ("SELECT d.* FROM dataframe d WHERE a > 1", "a b img s", "a img", "a b img s"),
        ("SELECT img FROM dataframe WHERE len(list_filter([a], lambda z: z > 1)) > 0", "a img", "a img", "img"),
        ("SELECT [z || b for z in [img]] AS l, img FROM dataframe", "b img", "img", "l img"),
    ],
)
def test_only_the_columns_that_are_needed_are_read(engine, query, columns, narrow, given):
    found = plan(engine, query)
    assert found.columns == tuple(columns.split())
    assert found.narrow_columns == tuple(narrow.split())
    assert found.schema.names == given.split()


def test_a_star_hands_on_what_is_kept(engine):
    assert plan(engine, "SELECT * FROM dataframe WHERE a > 1", keep=["img"]).columns == ("a", "img")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT * FROM dataframe LIMIT 3", "sorts or limits"),
        ("SELECT * FROM dataframe ORDER BY a", "sorts or limits"),
        ("SELECT count(*) FROM dataframe", "count_star"),
        ("SELECT max(a) AS a FROM dataframe", r"max\(\)"),
        ("SELECT a FROM dataframe GROUP BY a", "groups rows"),
        ("SELECT DISTINCT a FROM dataframe", "sorts or limits|distinct"),
        ("SELECT a, row_number() OVER () AS n FROM dataframe", "OVER"),
        ("SELECT a FROM dataframe QUALIFY row_number() OVER () < 3", "QUALIFY"),
        ("SELECT * FROM dataframe WHERE a > (SELECT avg(a) FROM dataframe)", "query inside"),
        ("WITH t AS (SELECT 1) SELECT * FROM dataframe", "WITH"),
        ("SELECT * FROM dataframe, dataframe AS other", "joins"),
        ("SELECT * FROM dataframe JOIN dataframe AS o USING (a)", "joins"),
        ("SELECT * FROM range(10)", "other than dataframe"),
        ("SELECT * FROM dataframe UNION ALL SELECT * FROM dataframe", "no plain SELECT"),
        ("SELECT * FROM dataframe USING SAMPLE 10", "sample"),
        ("SELECT * FROM dataframe TABLESAMPLE 10%", "sample"),
        ("SELECT unnest([1, 2]) AS a FROM dataframe", "unnest"),
        ("SELECT * FROM dataframe WHERE random() < 0.5", r"random\(\)"),
        ("SELECT * FROM dataframe WHERE now() > '2020-01-01'", r"now\(\)"),
        ("SELECT * FROM dataframe WHERE current_date > '2020-01-01'", "current_date"),
        ("SELECT COLUMNS('.*') FROM dataframe", "COLUMNS"),
        ("SELECT * FROM dataframe WHERE COLUMNS(['a']) > 1", "COLUMNS"),
    ],
)
def test_what_needs_more_than_a_row_is_refused_with_a_way_out(engine, query, reason):
    with pytest.raises(QueryError, match=reason) as caught:
        plan(engine, query)
    assert "lazy_index_chunk_size" in caught.value.hint or "columns there are" in caught.value.hint


@pytest.mark.parametrize(
    "query",
    [
        "SELEC",
        "DELETE FROM dataframe",
        "SELECT 1; SELECT 2",
        "SELECT * FROM other",
        "SELECT wrong FROM dataframe",
        "SELECT a, a FROM dataframe",
        "SELECT a + img AS c FROM dataframe WHERE a < [1]",
        "SELECT * FROM dataframe WHERE read_text('/etc/passwd') IS NULL",
        "SELECT getenv('HOME') AS img FROM dataframe",
    ],
)
def test_what_is_no_query_of_the_table_is_refused(engine, query):
    with pytest.raises(QueryError) as caught:
        plan(engine, query)
    assert caught.value.hint


def test_a_row_that_a_query_fails_with_is_told(engine):
    found = plan(engine, "SELECT img FROM dataframe WHERE b::DATE IS NULL")
    rows = pa.table({"b": ["no date"], "img": ["x"], ROW: [7]})
    with pytest.raises(QueryError, match="sql_query failed: Conversion Error") as caught:
        engine.run(found.sql, rows)
    assert caught.value.hint == "the table is named dataframe; its columns: b (text), img (text)"


def test_parts_give_what_the_whole_gives(engine):
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 100, 1000)
    table = pa.table(
        {
            "a": pa.array(numbers, mask=numbers % 7 == 0),
            "b": [f"b{n}" for n in numbers],
            "img": [None if n % 5 == 0 else f"{n}.jpg" for n in numbers],
            "s": [{"x": int(n)} for n in numbers],
            ROW: np.arange(1000),
        }
    )
    found = plan(engine, "SELECT img, a * 2 AS z FROM dataframe WHERE s.x > 20 AND (a > 30 OR b LIKE '%4')")
    whole = engine.run(found.sql, table)
    assert 0 < whole.num_rows < 1000
    parts = [engine.run(found.sql, table.slice(start, 33)) for start in range(0, 1000, 33)]
    assert pa.concat_tables(parts).equals(whole)
    narrow = engine.run(found.narrow_sql, table)
    assert narrow[ROW].equals(whole[ROW])
    assert narrow.column_names == ["img", ROW]
