"""SQL over an index that is read in chunks: a query that looks at each row alone can be run on any part of the rows.

Comes in: a query and the columns there are. Goes out: a RowQuery, which says what must be read, and runs on tables of
some rows; or a QueryError that says what in the query needs all rows at once. Two runs on the same rows give the same.
"""

from __future__ import annotations

import copy
import json
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from sds.errors import QueryError
from sds.index.query import checked_select, is_row_by_row, nodes, parse, plain_result, query_hint, select_node, shut

__all__ = ["ROW", "QueryEngine", "RowQuery", "plan_query"]

ROW = "__sds_row__"
_LEAVE_OUT = "leave lazy_index_chunk_size out: then any SELECT runs; or SELECT ... FROM dataframe WHERE ... alone"


@dataclass(frozen=True)
class RowQuery:
    """A query that looks at each row alone, with the row's number as one more column.

    Attributes:
        sql: all that was asked for.
        columns: what it needs.
        narrow_sql: only the columns that decide which rows there are, and how often.
        narrow_columns: what that needs.
        schema: what `sql` gives, without the row's number.
    """

    sql: str
    columns: tuple[str, ...]
    narrow_sql: str
    narrow_columns: tuple[str, ...]
    schema: pa.Schema


def plan_query(
    query: str, schema: pa.Schema, *, outputs: Sequence[str], keep: Iterable[str] | None, engine: QueryEngine
) -> RowQuery:
    """Takes a query apart.

    Args:
        query: one SELECT.
        schema: of `dataframe`.
        outputs: the columns of the result that decide which rows there are, where it has them.
        keep: the columns of the result that are kept; None: all.
        engine: runs it.

    Raises:
        QueryError: it is not one SELECT, DuckDB refuses it, or it needs more than a row at a time.
    """
    checked_select(query, f"the table is named dataframe; its columns: {', '.join(schema.names)}")
    with engine.connection() as connection:
        node = select_node(tree := parse(connection, query))
        _refuse_more_than_rows(connection, node, schema)
        columns = _needed(node, schema, keep)
        narrow = _narrowed(tree, schema, outputs)
        texts = [_numbered(connection, each) for each in (tree, narrow)]
    nothing = schema.empty_table().select(list(columns)).append_column(ROW, pa.array([], pa.int64()))
    empty = engine.run(texts[0], nothing)
    narrow_columns = _needed(select_node(narrow), schema, outputs)
    return RowQuery(texts[0], columns, texts[1], narrow_columns, empty.drop_columns([ROW]).schema)


class QueryEngine:
    """Runs queries on tables of some rows, from any thread and after a fork.

    One instance of DuckDB, made when first needed (30 ms), with a connection for each run (which costs little).
    """

    def __init__(self, spill: Path) -> None:
        self._spill = spill
        self.renew()
        _mind_forks(self)

    def renew(self) -> None:
        """Forgets everything: in a forked child, where what its parent had is of no use."""
        self._calm = threading.Condition()
        self._num_runs = 0
        self._root: Any = None

    def run(self, sql: str, table: pa.Table) -> pa.Table:
        """What a query gives for a table named `dataframe`; QueryError if it fails with one of its rows."""
        import duckdb

        with self.connection() as connection:
            connection.register("dataframe", table)
            try:
                return plain_result(connection.sql(sql).to_arrow_table())
            except duckdb.Error as e:
                schema = pa.schema([field for field in table.schema if field.name != ROW])
                raise QueryError(f"sql_query failed: {e}", hint=query_hint(schema, str(e))) from e

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A connection that sees nothing of the machine."""
        with self._calm:
            if self._root is None:
                import duckdb

                self._root = duckdb.connect(":memory:")
                shut(self._root, self._spill, num_threads=1)
            connection = self._root.cursor()
            self._num_runs += 1
        try:
            yield connection
        finally:
            connection.close()
            with self._calm:
                self._num_runs -= 1
                self._calm.notify_all()

    def close(self) -> None:
        """Lets go of the instance, when the runs that are under way have ended. It can be used again."""
        self.stop()
        self.go_on()

    def stop(self) -> None:
        """As `close`, and no run begins until `go_on`."""
        self._calm.acquire()
        while self._num_runs:
            self._calm.wait()
        if self._root is not None:
            self._root.close()
            self._root = None

    def go_on(self) -> None:
        """Runs may begin again; in the thread that called `stop`."""
        self._calm.release()

    def __getstate__(self) -> Path:
        return self._spill

    def __setstate__(self, spill: Path) -> None:
        self.__init__(spill)  # type: ignore[misc]  # an engine is its options


_engines: weakref.WeakSet[QueryEngine] = weakref.WeakSet()
_stopped: list[QueryEngine] = []
_registered = False


def _mind_forks(engine: QueryEngine) -> None:
    """A child that has a part of its parent's instance would crash, or wait for threads that it does not have."""
    global _registered
    _engines.add(engine)
    if not _registered:
        _registered = True
        os.register_at_fork(before=_stop_all, after_in_parent=_go_on_all, after_in_child=_renew_all)


def _stop_all() -> None:
    for engine in list(_engines):
        engine.stop()
        _stopped.append(engine)


def _go_on_all() -> None:
    while _stopped:
        _stopped.pop().go_on()


def _renew_all() -> None:
    while _stopped:
        _stopped.pop().renew()


def _refuse_more_than_rows(connection: Any, node: dict[str, Any], schema: pa.Schema) -> None:
    """Raises QueryError if the query does more than choose rows and compute columns of each."""
    reasons = [
        (not node, "it is no plain SELECT (a set operation, VALUES, ...)"),
        (not is_row_by_row(node), "it groups rows, or makes them distinct"),
        (node.get("from_table", {}).get("type") != "BASE_TABLE", "it reads something other than dataframe, or joins"),
        (bool(node.get("modifiers")), "it sorts or limits rows (max_size takes the first ones)"),
        (bool(node.get("cte_map", {}).get("map")), "it has a WITH"),
        (bool(node.get("qualify") or node.get("having")), "it has a QUALIFY or HAVING"),
        (bool(node.get("sample") or node.get("from_table", {}).get("sample")), "it draws a sample"),
        (any(n.get("class") == "SUBQUERY" for n in nodes(node)), "it has a query inside"),
        (any(n.get("class") == "WINDOW" for n in nodes(node)), "it looks at other rows (OVER)"),
        (_has_inner_stars(node), "it chooses columns by COLUMNS(...), or has a * inside an expression"),
    ]
    for is_so, reason in reasons:
        if is_so:
            raise QueryError(f"sql_query cannot be run on parts of the index: {reason}", hint=_LEAVE_OUT)
    names = {n["function_name"] for n in nodes(node) if n.get("class") == "FUNCTION" and not n.get("is_operator")}
    for name in sorted(names):
        found = connection.execute(
            "SELECT bool_and(function_type = 'scalar' AND stability = 'CONSISTENT') FROM duckdb_functions() "
            "WHERE function_name = ?",
            [name],
        ).fetchall()
        if not found[0][0]:
            reason = f"{name}() is no function of a row alone, or not the same each time"
            raise QueryError(f"sql_query cannot be run on parts of the index: {reason}", hint=_LEAVE_OUT)
    known = {name.lower() for name in schema.names} | _aliases(node) | _parameters(node)
    for names_ in _references(node):
        if not known.intersection(map(str.lower, names_)):  # current_date and its like look like columns
            raise QueryError(
                f"sql_query names a column that the source does not have: {'.'.join(names_)!r}",
                hint=f"the columns there are: {', '.join(schema.names)}",
            )


def _has_inner_stars(node: dict[str, Any]) -> bool:
    """Whether a star means columns that are not simply handed on: the row's number would be among them."""
    plain = [
        entry for entry in node.get("select_list", []) if entry.get("class") == "STAR" and not entry.get("columns")
    ]
    num_stars = sum(1 for n in nodes(node) if n.get("class") == "STAR")
    return len(plain) < num_stars


def _is_whole(star: dict[str, Any], node: dict[str, Any]) -> bool:
    """Whether a star is that of the table, not of a struct: `s.*`."""
    name, table = star.get("relation_name", "").lower(), node.get("from_table", {})
    return name in ("", table.get("alias", "").lower(), table.get("table_name", "").lower())


def _parameters(tree: Any) -> set[str]:
    """The names that lambdas give to what they are called with."""
    lambdas = [n["lhs"] for n in nodes(tree) if n.get("class") == "LAMBDA"]
    return {name.lower() for names in _references(lambdas) for name in names}


def _aliases(tree: Any) -> set[str]:
    return {n["alias"].lower() for n in nodes(tree) if n.get("alias")}


def _references(tree: Any) -> list[list[str]]:
    return [n["column_names"] for n in nodes(tree) if n.get("class") == "COLUMN_REF"]


def _needed(node: dict[str, Any], schema: pa.Schema, keep: Iterable[str] | None) -> tuple[str, ...]:
    """The columns of `dataframe` that a query looks at, or hands on and that are kept."""
    named = {name.lower() for names in _references(node) for name in names}
    stars = [n for n in nodes(node) if n.get("class") == "STAR"]
    if stars:
        is_plain = not any(
            star.get(part)
            for star in stars
            for part in ("exclude_list", "replace_list", "columns", "expr", "qualified_exclude_list", "rename_list")
        )
        if keep is None or not is_plain or not all(_is_whole(star, node) for star in stars):
            return tuple(schema.names)
        named.update(name.lower() for name in keep)
    # a row needs a column, so that it can be counted
    return tuple(name for name in schema.names if name.lower() in named) or tuple(schema.names[:1])


def _narrowed(tree: dict[str, Any], schema: pa.Schema, outputs: Sequence[str]) -> dict[str, Any]:
    """The query with only those of its columns that are wanted; as it is, where that could change what it means."""
    node = select_node(tree)
    columns = {name.lower() for name in schema.names}
    where = {name.lower() for names in _references(node.get("where_clause")) for name in names}
    if where & (_aliases(node.get("select_list")) - columns):
        return tree  # the condition speaks of a column that the SELECT makes
    wanted, kept = {name.lower() for name in outputs}, []
    for entry in node["select_list"]:
        if entry.get("class") == "STAR":
            if any(entry.get(part) for part in ("replace_list", "columns", "expr", "rename_list")):
                return tree
            if not _is_whole(entry, node):
                return tree
            left_out = {str(name).lower() for name in entry.get("exclude_list", [])}
            if entry.get("qualified_exclude_list"):
                return tree
            kept += [_column(name) for name in outputs if name.lower() in columns - left_out]
            continue
        name = entry.get("alias") or (entry["column_names"][-1] if entry.get("class") == "COLUMN_REF" else "")
        if not name or name.lower() in wanted:
            kept.append(entry)
    if {name.lower() for names in _references(kept) for name in names} & (_aliases(node["select_list"]) - columns):
        return tree  # one of the columns is made of another that the SELECT makes
    narrow = copy.deepcopy(tree)
    select_node(narrow)["select_list"] = kept
    return narrow


def _column(name: str) -> dict[str, Any]:
    return {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": [name]}


def _numbered(connection: Any, tree: dict[str, Any]) -> str:
    """The query as text, with the row's number as its last column."""
    numbered = copy.deepcopy(tree)
    node = select_node(numbered)
    stars = [entry for entry in node["select_list"] if entry.get("class") == "STAR"]
    is_there = any(_is_whole(star, node) for star in stars)  # * hands it on already
    if not is_there:
        node["select_list"].append(_column(ROW))
    text: str = connection.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(numbered)]).fetchall()[0][0]
    return text
