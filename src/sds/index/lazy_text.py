"""CSV and JSON lines read in part: some rows, by the blocks of whole rows that hold them.

Comes in: a Footer whose Lines say where blocks are, and row numbers. Goes out: a table of exactly these rows, in the
types that the whole file has. A block that is not what it was when it was looked at is a SourceError that names the
file, and never other rows.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from sds.errors import SdsError
from sds.index.lazy_files import Footer, changed, check_version, damaged, no_columns, read_range
from sds.index.readers import plain_table
from sds.index.records import read_json_as
from sds.index.remote import OpenRemote
from sds.index.unify import is_text

__all__ = ["BOM", "CHECK_BYTES", "DELIMITERS", "TextPart", "check_of", "hint_of", "parse_csv"]

BOM = b"\xef\xbb\xbf"
CHECK_BYTES = 8
DELIMITERS = {"csv": ",", "tsv": "\t"}
_RUN_BYTES = 8 << 20  # blocks that follow each other are read and parsed together, up to here


def check_of(block: bytes) -> bytes:
    """What tells a block from another one in its place."""
    return hashlib.blake2b(block, digest_size=CHECK_BYTES).digest()


def hint_of(family: str) -> str:
    """What to look at when a file cannot be read."""
    return "is it one JSON record a line?" if family == "json" else f"is it whole, and really {family.upper()}?"


def parse_csv(
    text: bytes,
    family: str,
    *,
    names: Sequence[str] | None,
    types: Mapping[str, pa.DataType],
    columns: Sequence[str] | None = None,
) -> pa.Table | None:
    """Rows of a CSV, without Arrow's threads: they are not there after a fork, and readers have threads of their own.

    Args:
        text: whole rows.
        family: 'csv' or 'tsv'.
        names: of the columns; None: the first row has them.
        types: of columns; those of others are found out.
        columns: those to give; None: all.

    Returns:
        A table; None if there is nothing but blank lines.
    """
    from pyarrow import csv

    try:
        return csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(
                use_threads=False, block_size=len(text) + 1, column_names=None if names is None else list(names)
            ),
            parse_options=csv.ParseOptions(delimiter=DELIMITERS[family], newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=dict(types), include_columns=None if columns is None else list(columns)
            ),
        )
    except pa.ArrowInvalid as e:
        if "Empty CSV file" not in str(e):
            raise
        return None


class TextPart:
    """An open text file. Several threads may ask.

    Args:
        footer: what was known of it when the index was made.
        columns: the columns to read; those that the file does not have are left out.
        schema: of all files: what is text there is read as text here, whatever it looks like.
        open_remote: gives the reader of remote objects.
        keeps_place: whether reads follow each other, so that it pays to keep what was parsed and not asked for yet.
    """

    def __init__(
        self,
        footer: Footer,
        columns: Sequence[str],
        schema: pa.Schema,
        open_remote: OpenRemote,
        *,
        keeps_place: bool = False,
    ) -> None:
        assert footer.lines is not None
        self._footer, self._lines = footer, footer.lines
        self._open_remote = open_remote
        self._keeps_place = keeps_place
        self._lock = threading.Lock()
        self._held: tuple[int, pa.Table] | None = None  # rows from this number on
        self._starts = np.cumsum([0, *footer.group_rows])
        self._offsets = np.frombuffer(footer.lines.offsets, np.int64)
        check_version(footer.url, footer.version)
        whole = pa.ipc.read_schema(pa.BufferReader(footer.lines.schema_bytes))
        self._names = whole.names
        fields = [_as_elsewhere(whole.field(name), schema, self._lines.family) for name in self._names]
        self._schema = pa.schema([field for field in fields if field.name in columns])

    def read(self, start: int, stop: int) -> pa.Table:
        """The rows [start, stop) of the file, in plain types.

        Raises:
            SourceError: the file is damaged, or was changed.
            FetchError: it cannot be read.
        """
        if not len(self._schema):
            return no_columns(stop - start)
        tables = [self._schema.empty_table()]
        with self._lock:
            held = self._held
        while start < stop:
            if held is None or not held[0] <= start < held[0] + held[1].num_rows:
                held = self._run(start, stop)
            first, table = held
            tables.append(table.slice(start - first, stop - start))
            start = min(stop, first + table.num_rows)
        if self._keeps_place:
            with self._lock:
                self._held = held
        return plain_table(pa.concat_tables(tables))

    def _run(self, start: int, stop: int) -> tuple[int, pa.Table]:
        """Blocks that follow each other, from that of a row on, and the number of their first row."""
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        last = int(np.searchsorted(self._starts, stop, "left"))
        most = int(np.searchsorted(self._offsets, self._offsets[first] + _RUN_BYTES, "right")) - 1
        last = max(first + 1, min(last, most))
        url, lines = self._footer.url, self._lines
        begin = int(self._offsets[first])
        text = read_range(url, begin, int(self._offsets[last]), self._open_remote)
        for number in range(first, last):
            block = text[int(self._offsets[number]) - begin : int(self._offsets[number + 1]) - begin]
            if check_of(block) != lines.checks[number * CHECK_BYTES : (number + 1) * CHECK_BYTES]:
                raise changed(url)
        try:
            table = self._parse(text, is_first=first == 0)
        except (pa.ArrowException, OSError, ValueError) as e:
            if isinstance(e, SdsError):
                raise
            raise damaged(url, " ".join(str(e).split()), hint_of(lines.family)) from e
        if table.num_rows != self._starts[last] - self._starts[first]:
            raise changed(url)
        return int(self._starts[first]), table

    def _parse(self, text: bytes, *, is_first: bool) -> pa.Table:
        if self._lines.family == "json":
            content = text[len(BOM) :] if is_first and text.startswith(BOM) else text
            return read_json_as(pa.py_buffer(content), self._schema)
        types = dict(zip(self._schema.names, self._schema.types, strict=True))
        names = None if is_first else self._names
        table = parse_csv(text, self._lines.family, names=names, types=types, columns=self._schema.names)
        return self._schema.empty_table() if table is None else table


def _as_elsewhere(field: pa.Field, schema: pa.Schema, family: str) -> pa.Field:
    """A column of a CSV that is text in another file: then what looks like numbers here is text too ("007")."""
    is_there = field.name in schema.names and family != "json" and not pa.types.is_null(field.type)
    if is_there and is_text(schema.field(field.name).type) and not is_text(field.type):
        return field.with_type(pa.string())
    return field
