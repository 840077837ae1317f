"""Tables -> Parquet files: the same rows give the same bytes, however they came in, and a file is there whole or not.

Comes in: tables of any length. Goes out: row groups of one length, in a file that appears under its name when it is
complete; or an object of a store, written whole.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from sds.errors import CacheError, OptionError
from sds.units import format_bytes
from sds.urls import is_remote, local_path, redact

__all__ = ["ROW_GROUP_SIZE", "RowGroups", "publish", "publish_together", "write_parquet"]

ROW_GROUP_SIZE = 65_536  # rows: a few MB of URLs and captions, which is what one ranged read is worth
_MAX_PUT = 512 * 2**20  # an object is sent whole, from memory


class RowGroups:
    """A Parquet file that is being written, a row group at a time. Closes when its `with` block ends."""

    def __init__(self, path: Path, schema: pa.Schema, row_group_size: int = ROW_GROUP_SIZE) -> None:
        self.path = path
        self.num_rows = 0
        self._schema = schema.remove_metadata()
        self._size = row_group_size
        self._held: list[pa.Table] = []
        self._num_held = 0
        # no statistics of pages, no times, no names of machines: nothing but the rows decides the bytes
        self._writer = parquet.ParquetWriter(str(path), self._schema, compression="zstd", version="2.6")

    def write(self, table: pa.Table) -> None:
        """Adds rows."""
        self.num_rows += table.num_rows
        self._held.append(table)
        self._num_held += table.num_rows
        while self._num_held >= self._size:
            self._write_group(self._size)

    def _write_group(self, num_rows: int) -> None:
        held = pa.concat_tables(self._held)
        group = held.slice(0, num_rows).combine_chunks()  # how rows came in leaves no trace
        self._writer.write_table(group, row_group_size=num_rows)
        rest = held.slice(num_rows)
        self._held, self._num_held = ([rest] if rest.num_rows else []), rest.num_rows

    def close(self) -> None:
        """Writes what is left, and the footer."""
        if self._num_held:
            self._write_group(self._num_held)
        self._writer.close()

    def __enter__(self) -> RowGroups:  # noqa: PYI034 (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_parquet(
    tables: Iterable[pa.Table],
    schema: pa.Schema,
    address: str,
    *,
    put: Callable[[str, bytes], None],
    scratch: Path,
    row_group_size: int = ROW_GROUP_SIZE,
) -> int:
    """Writes a file or an object.

    Args:
        tables: its rows.
        schema: of all of them.
        address: a path, or a URL that can be written to.
        put: writes an object.
        scratch: a folder for the file until it is complete.
        row_group_size: rows of a row group.

    Returns:
        How many bytes it has.
    """
    path = scratch / f"{secrets.token_hex(8)}.parquet"
    try:
        with RowGroups(path, schema, row_group_size) as groups:
            for table in tables:
                groups.write(table)
        size = path.stat().st_size
        publish(path, address, put)
        return size
    finally:
        path.unlink(missing_ok=True)


def publish(path: Path, address: str, put: Callable[[str, bytes], None]) -> None:
    """Gives a finished file its name; an object of a store is written whole.

    Raises:
        OptionError: it is too large for one object.
        CacheError: the folder cannot be written to.
    """
    publish_together([(path, address)], put)


def publish_together(files: Sequence[tuple[Path, str]], put: Callable[[str, bytes], None]) -> None:
    """Gives finished files their names, when all of them lie beside these; objects of a store go one by one.

    Raises:
        OptionError: one is too large for one object.
        CacheError: a folder cannot be written to.
    """
    for path, address in files:
        size = path.stat().st_size
        if is_remote(address) and size > _MAX_PUT:
            raise OptionError(
                f"file is too large to be written as one object: {format_bytes(size)}: {redact(address)}",
                hint="write several files (a '*' in the destination, or a smaller rows_per_file), or to a local path",
            )
    for path, address in files:
        if is_remote(address):
            put(address, path.read_bytes())
    local = [(path, Path(os.path.abspath(local_path(address)))) for path, address in files if not is_remote(address)]
    drafts: list[tuple[Path, Path]] = []
    try:
        try:
            for path, target in local:
                drafts.append((target.with_name(f".{target.name}.{secrets.token_hex(8)}.part"), target))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, drafts[-1][0])
            for draft, target in drafts:
                draft.replace(target)
        finally:
            for draft, _ in drafts:
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise CacheError(
            f"file cannot be written: {drafts[-1][1]}: {error.strerror}", hint="is there room, and may you write there?"
        ) from error
