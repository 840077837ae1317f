"""LazyManifest: all that must be known to read the rows of a lazy index; it is kept on disk, and sent to processes."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sds.index.lazy_choice import Choice
from sds.index.lazy_layout import Layout
from sds.index.table import KEY_COLUMN, IndexFacts, Manifest

__all__ = ["LazyManifest"]


class LazyManifest(msgspec.Struct, frozen=True, dict=True):
    """All that must be known to read rows.

    Attributes:
        layout: the files.
        chunk_size: rows of the source in a chunk.
        counts: what is left of each, as int64.
        columns: what is read of the files.
        sql: the query, with the row's number; None: there is none.
        fingerprint: of the footers and options.
        facts: for people.
        schema_bytes: of rows, as Arrow writes it.
        rows_read: rows that were looked at to count.
        choice: whether rows are read in chunks, or from a copy of those that are left.
    """

    layout: Layout
    chunk_size: int
    counts: bytes
    columns: tuple[str, ...]
    sql: str | None
    fingerprint: str
    facts: IndexFacts
    schema_bytes: bytes
    rows_read: int
    choice: Choice

    @cached_property
    def chunk_sizes(self) -> npt.NDArray[np.int64]:
        """Rows of each chunk."""
        return np.frombuffer(self.counts, np.int64)

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns that rows have."""
        return pa.ipc.read_schema(pa.BufferReader(self.schema_bytes))

    def as_table(self) -> Manifest:
        """The copy of the rows that are left, as a table."""
        return Manifest(
            storage="arrow",
            fingerprint=self.fingerprint,
            columns=tuple(self.schema.names),
            key_column=KEY_COLUMN,
            columns_to_download=self.layout.downloads,
            versions=(),
            facts=msgspec.structs.replace(self.facts, path=str(Path(self.facts.path).with_suffix(".arrow"))),
        )
