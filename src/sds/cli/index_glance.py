"""A look at a few rows of Parquet files, however many there are: footers are read, and chunks that hold these rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from sds.errors import OptionError

if TYPE_CHECKING:
    from sds.fetch import FetchClient
    from sds.index import IndexOptions
    from sds.index.lazy import LazyIndex

__all__ = ["open_glance"]

_CHUNK_ROWS = 4096


def open_glance(src: str, options: IndexOptions, *, folder: Path, client: FetchClient) -> LazyIndex | None:
    """An index of a source's rows that reads few of them; None if the source must be opened as a whole.

    That is so with a query, which may need all rows; with files other than Parquet, whose rows nobody has counted; and
    with samples inside the table.
    """
    import pyarrow as pa

    from sds.index.lazy_opening import open_lazy
    from sds.index.source import find_source

    if options.sql_query is not None:
        return None
    source = find_source(src, folder=folder, open_remote=lambda: client)
    files = source.index_files
    if len(files) != len(source.parts) or any(part.format.family != "parquet" for part in files):
        return None
    lazy = dataclasses.replace(options, lazy_index_chunk_size=_CHUNK_ROWS)
    try:
        index = open_lazy(src, lazy, folder=folder, remote=lambda: client)
    except OptionError:
        return None
    kinds = (pa.types.is_struct, pa.types.is_binary, pa.types.is_large_binary)
    may_be_large = any(is_kind(field.type) for field in index.schema for is_kind in kinds)
    known = index.manifest.layout.schema.names
    if may_be_large or any(name not in known for name in options.columns_to_download or ()):
        index.close()  # whoever opens it whole knows places of bytes, and what to say of a column that is not there
        return None
    return index
