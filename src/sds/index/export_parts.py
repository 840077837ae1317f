"""What an export leaves on the local disk while it runs, and how rows are cut into parts and files. Values only.

Comes in: tables of any length. Goes out: parts of some size, and the tables of each file. Equal pages of a result give
equal parts, so that a second run finds what the first one finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from sds.index.unify import NamedTable, common_schema, concatenate

__all__ = ["ExportedFile", "Part", "State", "file_digest", "in_files", "in_parts", "rows_digest"]

_PART_ROWS = 65_536
_PART_BYTES = 32 * 2**20


class ExportedFile(msgspec.Struct, frozen=True):
    """A file that was written.

    Attributes:
        address: where.
        split: its side.
        rows: how many.
        bytes: how many.
        digest: of its bytes.
        made_of: the rows of the whole result: see `rows_digest`.
    """

    address: str
    split: str | None
    rows: int
    bytes: int
    digest: str
    made_of: str = ""


class Part(msgspec.Struct, frozen=True):
    """Some rows of the result: how many, and a fingerprint of them."""

    rows: int
    digest: str


class State(msgspec.Struct):
    """What is finished at a destination, as it stands on disk."""

    asked: str = ""  # the digest of what was asked for
    job: str | None = None
    parts: list[Part] = []
    has_all_rows: bool = False
    files: list[ExportedFile] = []
    is_done: bool = False
    older: list[ExportedFile] = []  # of exports to the same place before


def in_parts(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in larger tables, of some size in rows and bytes; equal pages give equal parts."""
    held: list[NamedTable] = []
    num_rows = num_bytes = 0
    for table in tables:
        held.append(NamedTable("a page of the result", table))
        num_rows, num_bytes = num_rows + table.num_rows, num_bytes + table.nbytes
        if num_rows >= _PART_ROWS or num_bytes >= _PART_BYTES:
            yield _joined(held)
            held, num_rows, num_bytes = [], 0, 0
    if num_rows:
        yield _joined(held)


def _joined(tables: list[NamedTable]) -> pa.Table:
    return concatenate(tables, common_schema(tables))


def in_files(tables: Iterator[pa.Table], file_rows: int | None) -> Iterator[Iterator[pa.Table]]:
    """The tables of each file; there is at least one file. Each must be used up before the next is asked for."""
    rest: list[pa.Table] = []
    is_over = False

    def fill() -> Iterator[pa.Table]:
        nonlocal rest, is_over
        left = file_rows
        while left is None or left > 0:
            table = rest.pop() if rest else next(tables, None)
            if table is None:
                is_over = True
                return
            if left is not None and table.num_rows > left:
                rest = [table.slice(left)]
                table = table.slice(0, left)
            left = None if left is None else left - table.num_rows
            yield table

    def ahead() -> bool:
        """Whether there is another row."""
        while not rest:
            table = next(tables, None)
            if table is None:
                return False
            if table.num_rows:
                rest.append(table)
        return True

    yield fill()
    while not is_over and ahead():
        yield fill()


def rows_digest(parts: list[Part]) -> str:
    """A hash of all rows of a result."""
    text = ",".join(f"{part.rows}:{part.digest}" for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def file_digest(path: Path) -> str:
    """A hash of a file's bytes."""
    with open(path, "rb") as file:
        digest = hashlib.blake2b(digest_size=16)
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()
