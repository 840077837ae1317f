"""All rows -> the rows of the index: queried, limited, named, fingerprinted, resolved. The order of these is set here.

Comes in: a gathered table, whose paths to download are relative to one folder. Goes out: a Draft, whose paths are
addresses. The fingerprint is taken in between, so it is the same wherever the data lies.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sds.errors import SchemaError, SourceError
from sds.index.alternatives import spelling
from sds.index.fingerprint import fingerprint
from sds.index.gather import Gathered
from sds.index.options import IndexOptions
from sds.index.query import run_query
from sds.index.resolve import check_downloadable, null_if_empty, refuse_local, resolve
from sds.index.table import KEY_COLUMN, VERSION_PREFIX, WEIGHT_COLUMN
from sds.index.unify import is_text
from sds.plan.weights import first_wrong

__all__ = ["Draft", "check_weights", "chosen", "draft", "is_part", "keys_of", "no_weight"]

_WEIGHTS = "1.0 is once an epoch, 0.25 in a quarter of the epochs, 3.0 three times; 0 is never, null is no weight"


@dataclass(frozen=True)
class Draft:
    """A finished table that is not yet on disk.

    Attributes:
        table: the kept columns, then hidden ones: ids that are in no column, versions.
        columns: the kept columns.
        key_column: the column that ids are made of; None: the row's place.
        versions: the columns that have hidden columns of versions.
        fingerprint: of the content.
        rows_at_source, rows_after_query, rows_left_out: as in IndexFacts.
    """

    table: pa.Table
    columns: tuple[str, ...]
    key_column: str | None
    versions: tuple[str, ...]
    fingerprint: str
    rows_at_source: int
    rows_after_query: int
    rows_left_out: int


def draft(gathered: Gathered, options: IndexOptions, *, origin: str, scratch: Path) -> Draft:
    """Makes the table of an index.

    Args:
        gathered: all rows there are.
        options: what to make of them.
        origin: the source, for messages.
        scratch: a folder for queries that do not fit into memory.

    Raises:
        SourceError: there are no rows.
        SchemaError: a column is missing, or of a type or with a path that cannot be used.
        QueryError: the query does not run.
    """
    downloads = gathered.columns_to_download
    if gathered.table.num_rows == 0:
        raise SourceError(f"source has no rows: {origin}", hint="is it empty, or still being written?", url=origin)

    table, numbers = _queried(gathered, options, scratch)  # numbers: of the rows at the source, where not 0, 1, 2, ...
    rows_after_query = table.num_rows
    table, numbers = chosen(table, numbers, gathered, options)
    rows_left_out = rows_after_query - table.num_rows
    if table.num_rows == 0:
        raise SourceError(
            f"every row lacks a value to download in one of {list(downloads)}: {rows_after_query} rows of {origin}",
            hint=_fill(downloads),
            url=origin,
        )
    check_weights(table, options)  # also past the limit, where an index that is read in chunks finds them
    if options.max_size is not None:
        size = min(options.max_size, table.num_rows)  # of a table without columns Arrow would give more
        table = table.slice(0, size)
        numbers = None if numbers is None else numbers.slice(0, size)
        check_weights(table, options)  # those that are left may all be 0

    keys = keys_of(table, numbers, options.id_column)
    if keys is None and not table.num_columns:  # rows without columns: on disk, how many there are would be lost
        keys = pa.chunked_array([pa.array(np.arange(table.num_rows))])
    columns = tuple(name for name in table.column_names if name != WEIGHT_COLUMN)
    key_column = KEY_COLUMN if keys is not None else options.id_column if options.id_column in columns else None
    hidden = {} if keys is None else {KEY_COLUMN: keys}
    relative = _with_hidden(table, hidden)
    versions = {}
    for name in downloads:
        if gathered.versions is not None and types.is_string(table[name].type):
            versions[name] = gathered.versions.of(table[name])
            hidden[f"{VERSION_PREFIX}{name}"] = versions[name]
        if not gathered.may_name_local and options.sql_query is not None:  # without one, it was looked at before
            refuse_local(table[name], name, origin)
        if gathered.folder is not None:
            table = _replaced(table, name, resolve(table[name], gathered.folder, name))
    return Draft(
        table=_with_hidden(table, hidden),
        columns=columns,
        key_column=key_column,
        versions=tuple(versions),
        fingerprint=fingerprint(relative, salt=f"key: {key_column}"),
        rows_at_source=gathered.table.num_rows,
        rows_after_query=rows_after_query,
        rows_left_out=rows_left_out,
    )


def _fill(downloads: Sequence[str]) -> str:
    hint = "fill the columns, download fewer of them, or set allow_missing_columns=True"
    images = spelling(downloads)
    if images is None:
        return hint
    return (
        f"for one image a sample, of whichever of these endings: columns_to_download={[images]!r} "
        f"(in the shell: --download '{images}'); else {hint}"
    )


def _queried(gathered: Gathered, options: IndexOptions, scratch: Path) -> tuple[pa.Table, pa.ChunkedArray | None]:
    table, id_column = gathered.table, options.id_column
    if options.sql_query is None:
        return table, None
    gaps = id_column in table.column_names and _has_gaps(table[id_column])
    result = run_query(table, options.sql_query, id_column=id_column, number_rows=gaps, spill=scratch)
    if result.table.num_rows == 0:
        raise SourceError(
            f"query leaves none of {table.num_rows} rows: {options.sql_query.strip()}", hint="loosen its conditions"
        )
    return result.table, result.row_numbers


def chosen(
    table: pa.Table, numbers: pa.ChunkedArray | None, gathered: Gathered, options: IndexOptions
) -> tuple[pa.Table, pa.ChunkedArray | None]:
    """The rows that have all they need, with the columns that samples get and one of weights; and their numbers."""
    table = _with_columns(_with_weights(table, options), gathered, options)
    return _without_missing(table, numbers, () if options.allow_missing_columns else gathered.columns_to_download)


def _with_columns(table: pa.Table, gathered: Gathered, options: IndexOptions) -> pa.Table:
    """The columns that samples get, those to download as text or bytes with null for what is missing."""
    queried = options.sql_query is not None
    there = tuple(table.column_names) if queried else gathered.columns
    keep = options.index_cols_to_keep
    if options.index_col_name is not None and options.index_col_name not in there:
        raise _missing("index_col_name", options.index_col_name, there, queried)
    for option, names in (("columns_to_download", gathered.columns_to_download), ("index_cols_to_keep", keep or ())):
        for name in names:
            if name not in there:
                if not options.allow_missing_columns:
                    raise _missing(option, name, there, queried)
                table = table.append_column(name, pa.nulls(table.num_rows, pa.string()))
                there = (*there, name)
    if keep is not None:
        kept = {*keep, *gathered.columns_to_download, options.id_column, WEIGHT_COLUMN}
        table = table.select([name for name in table.column_names if name in kept])
    for name in gathered.columns_to_download:
        table = _replaced(table, name, null_if_empty(check_downloadable(table[name], name)))
    return table


def _with_weights(table: pa.Table, options: IndexOptions) -> pa.Table:
    """The table with its weights in a column of their own, as floats."""
    name = options.weight_col_name
    if name is None:
        return table
    if name not in table.column_names:
        raise _missing("weight_col_name", name, table.column_names, options.sql_query is not None)
    column = table[name]
    if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_decimal(column.type)):
        raise SchemaError(f"weight_col_name holds {column.type}, not numbers: {name!r}", hint=_WEIGHTS)
    return table.append_column(WEIGHT_COLUMN, column.cast(pa.float64()))


def check_weights(
    table: pa.Table, options: IndexOptions, numbers: pa.ChunkedArray | None = None, first: int = 0
) -> None:
    """Raises SchemaError if a weight is none, or (of a whole table) all are 0.

    Args:
        table: with its weights.
        options: as they were given.
        numbers: of the rows of a part of a table, counted from its row `first` on; None: it is whole.
        first: the number of the part's first row.
    """
    if options.weight_col_name is None:
        return
    weights = table[WEIGHT_COLUMN].to_numpy()  # null becomes NaN
    wrong = first_wrong(weights)
    if wrong is not None:
        value, row = table[WEIGHT_COLUMN][wrong].as_py(), wrong if numbers is None else first + numbers[wrong].as_py()
        raise SchemaError(
            f"weight is impossible: {value!r} in column {options.weight_col_name!r}, row {row}", hint=_WEIGHTS
        )
    if numbers is None and not weights.any():
        raise no_weight(options)


def no_weight(options: IndexOptions) -> SchemaError:
    """The error of rows that never come."""
    return SchemaError(f"every weight is 0: column {options.weight_col_name!r}", hint=_WEIGHTS)


def _missing(option: str, name: str, there: Sequence[str], queried: bool) -> SchemaError:
    place = "the query's result" if queried else "the source"
    close = difflib.get_close_matches(name, there, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    if option == "columns_to_download" and name.startswith("."):
        meant = f"did you mean {name[1:]!r}, without the dot? "
    hint = f"{meant}the columns there are: {', '.join(there) or 'none'}"
    if len(there) == 1 and any(mark in there[0] for mark in ";\t|"):
        hint += " (one column: values must be separated by commas, or by tabs in a .tsv)"
    if queried:
        hint += "; the query must select it"
    if option == "columns_to_download":
        hint += "; allow_missing_columns=True gives None instead"
    if option == "columns_to_download" and ";" in name:
        several = ", ".join(name.split(";"))
        hint += f"; extensions of files have alternatives, columns of a table SQL: coalesce({several})"
    return SchemaError(f"{option} names a column that {place} does not have: {name!r}", hint=hint)


def _without_missing(
    table: pa.Table, numbers: pa.ChunkedArray | None, downloads: Iterable[str]
) -> tuple[pa.Table, pa.ChunkedArray | None]:
    gaps = [pc.is_null(table[name]) for name in downloads if table[name].null_count]
    if not gaps:
        return table, numbers
    missing = gaps[0]
    for more in gaps[1:]:
        missing = pc.or_(missing, more)
    kept = pc.invert(missing)
    if numbers is None:
        numbers = pa.chunked_array([pa.array(np.arange(table.num_rows))])
    return table.filter(kept), numbers.filter(kept)


def _has_gaps(ids: pa.ChunkedArray) -> bool:
    if ids.null_count:
        return True
    return is_text(ids.type) and bool(pc.any(pc.equal(ids, "")).as_py())


def keys_of(table: pa.Table, numbers: pa.ChunkedArray | None, id_column: str) -> pa.ChunkedArray | None:
    """The ids, where the id column's own values will not do: a row without an id has its number at the source."""
    if id_column not in table.column_names:
        return numbers
    ids = table[id_column]
    gaps = _has_gaps(ids)
    if not gaps and (is_text(ids.type) or types.is_integer(ids.type)):
        return None
    try:
        texts = ids.cast(pa.string())
    except pa.ArrowException as e:
        raise SchemaError(
            f"id column holds {ids.type}, which is no id: {id_column!r}",
            hint="ids are text or numbers: choose another column with index_col_name",
        ) from e
    if not gaps:
        return texts
    if numbers is None:
        numbers = pa.chunked_array([pa.array(np.arange(table.num_rows))])
    return pc.if_else(pc.fill_null(pc.equal(texts, ""), True), numbers.cast(pa.string()), texts)


def _replaced(table: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def _with_hidden(table: pa.Table, hidden: dict[str, pa.ChunkedArray]) -> pa.Table:
    for name, column in hidden.items():
        table = table.append_column(name, column)
    return table


def is_part(table: pa.Table, whole: pa.Table) -> bool:
    """Whether a table is some columns and the first rows of another; columns that share memory compare at once."""
    return all(
        name in whole.column_names and table[name].equals(whole[name].slice(0, table.num_rows))
        for name in table.column_names
    )
