"""SQL over an index: one SELECT of DuckDB's dialect on a table named `dataframe`.

It sees nothing but that table: no files, no network, no extensions, no variables of the program. The same query on the
same table gives the same rows in the same order: a plain filter keeps the table's order on all cores, anything whose
order DuckDB leaves open runs on one.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from sds.errors import QueryError
from sds.index.brake import braked
from sds.index.readers import plain_table
from sds.index.unify import is_text

__all__ = [
    "QueryResult",
    "checked_select",
    "is_row_by_row",
    "nodes",
    "parse",
    "plain_result",
    "query_hint",
    "refuse_samples",
    "run_query",
    "select_node",
    "shut",
]

UNREPEATABLE = {"random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "nextval"}
_ROW = "__sds_row__"


@dataclass(frozen=True)
class QueryResult:
    """The rows of a query, and where known the row of the table that each came from."""

    table: pa.Table
    row_numbers: pa.ChunkedArray | None


def run_query(table: pa.Table, query: str, *, id_column: str, number_rows: bool, spill: Path) -> QueryResult:
    """Runs a query.

    Args:
        table: what `dataframe` is.
        query: one SELECT.
        id_column: a result without it gets row numbers.
        number_rows: whether a result with it gets them too.
        spill: a folder for what does not fit into memory.

    Raises:
        QueryError: it is not one SELECT, DuckDB refuses it, or two runs of it would differ.
    """
    import duckdb  # 0.15 s that only a query costs

    checked_select(query, query_hint(table.schema))
    with duckdb.connect(":memory:") as connection, braked(connection):
        tree = parse(connection, query)
        refuse_samples(tree)
        shut(connection, spill, num_threads=None if _keeps_order(tree) else 1)
        connection.register("dataframe", table)
        try:
            relation = connection.sql(query)
            if number_rows or id_column not in relation.columns:
                numbered = _run_numbered(connection, table, tree)
                if numbered is not None:
                    return numbered
                connection.register("dataframe", table)
                relation = connection.sql(query)
            return QueryResult(plain_result(relation.to_arrow_table()), None)
        except duckdb.Error as e:
            raise QueryError(f"sql_query failed: {e}", hint=query_hint(table.schema, str(e))) from e


def query_hint(schema: pa.Schema, said: str = "") -> str:
    """What the query could have named; with types, if those are what DuckDB complains of.

    Args:
        schema: of the table.
        said: what DuckDB said.
    """
    is_of_types = "VARCHAR" in said or "cast" in said.lower() or "argument types" in said
    shown = [f"{field.name} ({_plainly(field.type)})" if is_of_types else field.name for field in schema]
    hint = f"the table is named dataframe; its columns: {', '.join(shown)}"
    texts = [field.name for field in schema if is_text(field.type)]
    if "Referenced column" in said and texts:
        hint += f"; text stands in single quotes: {texts[0]} = 'red'"
    if is_of_types and "VARCHAR" in said and texts:
        hint += f"; ids, and columns of a CSV with anything but numbers, are text: compare {texts[0]}::int, or with '7'"
    return hint


def _plainly(type_: pa.DataType) -> str:
    return "text" if is_text(type_) else str(type_)


def checked_select(query: str, hint: str) -> None:
    """Raises QueryError unless the query is one SELECT."""
    import duckdb

    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as e:
        whole = "give a whole SELECT, such as SELECT * FROM dataframe WHERE ...; "
        raise QueryError(f"sql_query is not SQL: {e}", hint=whole + hint) from e
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise QueryError(
            f"sql_query is not one SELECT: {query.strip()!r}", hint="SELECT ... FROM dataframe WHERE ..., and no more"
        )


def shut(connection: Any, spill: Path, *, num_threads: int | None) -> None:
    """Takes away everything but the computing, and then the key."""
    if num_threads is not None:
        connection.execute(f"SET threads = {num_threads}")
    connection.execute(f"SET temp_directory = {_quoted(str(spill))}")
    connection.execute("SET preserve_insertion_order = true")
    connection.execute("SET enable_progress_bar = false")  # it would be drawn on stdout, among a program's results
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute("SET autoload_known_extensions = false")
    connection.execute("SELECT setseed(0.5)").fetchall()  # on one thread, random() then is as repeatable as the rest
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def parse(connection: Any, query: str) -> dict[str, Any]:
    """DuckDB's own syntax tree of the query; empty where it has none to show."""
    tree: dict[str, Any] = json.loads(connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0][0])
    return {} if tree.get("error") else tree


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a syntax tree."""
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from nodes(branch)


def refuse_samples(tree: dict[str, Any]) -> None:
    """Raises QueryError if the query draws a sample without a seed."""
    for node in nodes(tree):
        sample = node.get("sample")
        # DuckDB 1 says only `seed`, with -1 for none; DuckDB 2 says `repeatable` too
        if isinstance(sample, dict) and not sample.get("repeatable", sample.get("seed", -1) != -1):
            raise QueryError(
                "sql_query draws a sample that is another one each time",
                hint="give it a seed: TABLESAMPLE reservoir(1000 ROWS) REPEATABLE (42)",
            )


def select_node(tree: dict[str, Any]) -> dict[str, Any]:
    """The SELECT of a query; empty if it is something else."""
    statements = tree.get("statements") or [{}]
    node: dict[str, Any] = statements[0].get("node", {})
    return node if node.get("type") == "SELECT_NODE" else {}


def _keeps_order(tree: dict[str, Any]) -> bool:
    """Whether the query only chooses rows and columns, so that rows stand in the table's order on any number of cores.

    Groups, joins, sorts with ties and sums of floats come out differently with every timing of threads.
    """
    node = select_node(tree)
    if not is_row_by_row(node) or node.get("from_table", {}).get("type") != "BASE_TABLE":
        return False
    if any(modifier.get("type") != "LIMIT_MODIFIER" for modifier in node.get("modifiers", [])):
        return False
    if node.get("cte_map", {}).get("map") or node.get("qualify") or node.get("sample"):
        return False
    if any(n.get("class") in ("SUBQUERY", "WINDOW") or n.get("function_name") in UNREPEATABLE for n in nodes(node)):
        return False
    # in what is selected, a function may be an aggregate
    return all(n.get("is_operator") for n in nodes(node.get("select_list")) if n.get("class") == "FUNCTION")


def is_row_by_row(node: dict[str, Any]) -> bool:
    """Whether each row of the result comes from one row of the table, or from one of each that are joined."""
    return (
        bool(node)
        and not node.get("group_expressions")
        and node.get("aggregate_handling") == "STANDARD_HANDLING"
        and all(modifier.get("type") != "DISTINCT_MODIFIER" for modifier in node.get("modifiers", []))
    )


def _run_numbered(connection: Any, table: pa.Table, tree: dict[str, Any]) -> QueryResult | None:
    """Runs the query with one more column, the number of the row; None if its rows come from no single row."""
    import duckdb

    tree = copy.deepcopy(tree)
    node = select_node(tree)
    if not is_row_by_row(node) or "rowid" in map(str.lower, table.column_names):
        return None
    node["select_list"].append({"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": _ROW, "column_names": ["rowid"]})
    connection.unregister("dataframe")
    connection.register("source", table)
    # only a table of its own has row numbers
    connection.execute("CREATE TABLE dataframe AS SELECT * FROM source").fetchall()
    query = connection.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)]).fetchall()[0][0]
    try:
        result = connection.sql(query).to_arrow_table()
    except duckdb.BinderException:  # an aggregate, a join: there is no one row to number
        connection.execute("DROP TABLE dataframe").fetchall()
        return None
    return QueryResult(plain_result(result.drop_columns([_ROW])), result[_ROW])


def plain_result(table: pa.Table) -> pa.Table:
    """A result in plain types; QueryError if it has two columns of one name."""
    names = table.column_names
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise QueryError(
            f"sql_query gives two columns the same name: {twice!r}",
            hint=f"rename one: SELECT ... AS other; or take it out: SELECT * EXCLUDE ({twice})",
        )
    table = plain_table(table)
    for i, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:  # DuckDB's sums of integers
            try:
                table = table.set_column(i, field.name, table[field.name].cast(pa.int64()))
            except pa.ArrowInvalid:  # too large for 64 bits
                continue
    return table
