"""Databases -> tables of some rows each: what a query gives, as it comes, never all of it in memory.

Comes in: an ExportConfig. Goes out: tables in plain types; types of one column may differ from table to table where a
database has no types of its own. Whatever a database finds wrong is a QueryError or a SourceError.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import pyarrow as pa

from sds.errors import OptionError, QueryError, SourceError, SourceNotFound
from sds.index.export_config import ExportConfig
from sds.index.readers import plain_table

__all__ = ["Engine", "missing_package", "open_engine", "rows_to_table"]

_BATCH = 4096


class Engine(Protocol):
    """A query that can be asked for its rows.

    Attributes:
        job: names the result, where it can be asked for again; None: a second run may give other rows.
    """

    job: str | None

    def tables(self, start: int) -> Iterator[pa.Table]:
        """The rows from number `start` on; that is 0 where there is no job."""
        ...


@contextmanager
def open_engine(config: ExportConfig, *, scratch: Path, job: str | None) -> Iterator[Engine]:
    """Opens the engine of a config.

    Args:
        config: which, and how it is reached.
        scratch: a folder for what does not fit into memory.
        job: the result of an earlier run, to go on with.
    """
    if config.engine == "bigquery":
        from sds.index.export_bigquery import BigQuery

        engine = BigQuery(config, job)
        try:
            yield engine
        finally:
            engine.close()
    elif config.engine == "duckdb":
        yield _DuckDB(config, scratch)
    else:
        yield _SQLite(config) if config.engine == "sqlite" else _Postgres(config)


def missing_package(name: str, extra: str) -> OptionError:
    """The error that says what to install."""
    return OptionError(f"package is not installed: {name}", hint=f"pip install 'streaming-dataset[{extra}]'")


class _DuckDB:
    job: str | None = None

    def __init__(self, config: ExportConfig, scratch: Path) -> None:
        self._config = config
        self._scratch = scratch

    def tables(self, start: int) -> Iterator[pa.Table]:
        import duckdb

        assert not start
        config = self._config
        if config.database is not None and not Path(config.database).is_file():
            raise _no_database(config.database)
        try:
            statements = duckdb.extract_statements(config.sql_query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise QueryError(
                    "sql_query is not one SELECT", hint="SELECT ... FROM ...; files: FROM 'photos/*.parquet'"
                )
            with duckdb.connect(config.database or ":memory:", read_only=config.database is not None) as connection:
                connection.execute(f"SET temp_directory = '{str(self._scratch).replace(chr(39), chr(39) * 2)}'")
                connection.execute("SET enable_progress_bar = false")  # it would be drawn on stdout, among the results
                relation = connection.sql(config.sql_query)
                read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
                for batch in read(_BATCH):
                    yield _narrowed(plain_table(pa.Table.from_batches([batch])))
        except duckdb.Error as error:
            raise _failed(error) from error


class _SQLite:
    job: str | None = None

    def __init__(self, config: ExportConfig) -> None:
        self._config = config

    def tables(self, start: int) -> Iterator[pa.Table]:
        assert not start and self._config.database is not None
        path = Path(self._config.database)
        if not path.is_file():
            raise _no_database(str(path))
        try:
            connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
            try:
                cursor = connection.execute(self._config.sql_query)
                if cursor.description is None:
                    raise QueryError("sql_query gives no rows", hint="SELECT ... FROM ...")
                names = [column[0] for column in cursor.description]
                while rows := cursor.fetchmany(_BATCH):
                    yield rows_to_table(names, rows)
            finally:
                connection.close()
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise _failed(error) from error


class _Postgres:
    job: str | None = None

    def __init__(self, config: ExportConfig) -> None:
        self._config = config

    def tables(self, start: int) -> Iterator[pa.Table]:
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict, make_conninfo
        except ImportError:
            raise missing_package("psycopg", "postgres") from None
        assert not start
        try:
            asked: dict[str, Any] = conninfo_to_dict(self._config.connection_text)
            asked.setdefault("connect_timeout", 30)
            connection_text = make_conninfo(**asked)
        except psycopg.Error:  # its message may repeat the password
            hint = "connection: postgresql://user@host/database, or host=... dbname=...; the password in PGPASSWORD"
            raise OptionError("connection is no connection of PostgreSQL", hint=hint) from None
        try:
            connection = psycopg.connect(connection_text)
        except psycopg.Error as error:
            hint = "is the server up, and are host, user, database and PGPASSWORD right?"
            raise SourceError(f"database cannot be reached: {_line(error)}", hint=hint) from None
        try:
            with connection:
                connection.read_only = True
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                with connection.cursor(name="sds_export") as cursor:  # a cursor of the server: rows come as asked for
                    cursor.execute(self._config.sql_query.strip().rstrip(";").encode())
                    names = [column.name for column in cursor.description or ()]
                    while rows := cursor.fetchmany(_BATCH):
                        yield rows_to_table(names, rows)
        except psycopg.Error as error:
            raise _failed(error) from error
        finally:
            connection.close()


def rows_to_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows of Python values as a table; what Arrow has no type for becomes text."""
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise QueryError(
            f"sql_query gives two columns the same name: {twice!r}", hint="rename one: SELECT ... AS other"
        )
    columns = [_array([row[i] for row in rows]) for i in range(len(names))]
    return _narrowed(plain_table(pa.table(columns, names=list(names))))


def _array(values: list[Any]) -> pa.Array:
    first = next((value for value in values if value is not None), None)
    if isinstance(first, dict | uuid.UUID):
        values = [None if value is None else _text(value) for value in values]
    elif isinstance(first, memoryview):
        values = [None if value is None else bytes(value) for value in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        if isinstance(first, Decimal):  # one that is no number, or has too many digits: as floats can be
            return pa.array([None if value is None else float(value) for value in values], pa.float64())
        return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else str(value)


def _narrowed(table: pa.Table) -> pa.Table:
    """Whole numbers that a database has as decimals (sums, counts) as integers, where they fit."""
    for i, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) and field.type.scale <= 0:
            try:
                table = table.set_column(i, field.name, table[field.name].cast(pa.int64()))
            except pa.ArrowInvalid:
                continue
    return table


def _no_database(path: str) -> SourceNotFound:
    return SourceNotFound(f"no database is there: {path}", hint="database: the path of its file", url=path)


def _failed(error: Exception) -> QueryError:
    return QueryError(f"sql_query failed: {_line(error)}", hint="try it in the database's own shell first")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
