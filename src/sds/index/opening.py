"""open_index: a source becomes an index, built once per node and opened in milliseconds ever after.

Comes in: what the user gave as `src`, and options. Goes out: a TableIndex. What is built is kept under the identity of
its source, so a changed source is noticed here, by looking at sizes and versions and at nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sds.index import addresses
from sds.index.holding import open_table
from sds.index.options import IndexOptions
from sds.index.parts import IndexFile, Source
from sds.index.remote import OpenRemote
from sds.index.source import SourceLike, find_source
from sds.index.store import Store
from sds.index.table import IndexFacts, Manifest, TableIndex
from sds.urls import is_remote

if TYPE_CHECKING:
    from sds.index.gather import Gathered, ReadFiles

__all__ = ["open_index"]

# Row access needs a Parquet file decoded, and every process that opens it decodes its own copy. Up to here that costs
# less than a second copy on disk; beyond, a converted file that all processes map is cheaper in memory and in start-up.
_MAX_PARQUET_BYTES = 64 << 20
# so many batches are opened and looked through without a thought
_MAX_BATCHES_IN_PLACE = 1024


def open_index(
    src: SourceLike,
    options: IndexOptions,
    *,
    folder: Path,
    remote: OpenRemote,
    timeout_s: float = 1800.0,
    read_files: ReadFiles | None = None,
    leave_out: str | None = None,
) -> TableIndex:
    """Opens the index of a source, and builds it first if it was not built before or the source has changed.

    Args:
        src: a path, URL, wildcard, directory or text list, or a list of those.
        options: which rows and columns to take.
        folder: where built tables live.
        remote: gives the reader of remote objects; called only if something is remote.
        timeout_s: how long to wait for another process that builds the same index.
        read_files: reads index files when there are several; None: this process does.
        leave_out: a table that is no part of the source, though it lies among others: what was made of them before.

    Raises:
        OptionError: `src` is nothing that could be a source.
        SourceError: with its kinds: not there, unknown, damaged, empty, without a column, or not to be queried.
        FetchError: a remote object could not be read.
        CacheError: the folder cannot be used.
    """
    source = find_source(src, folder=folder, open_remote=remote)
    source = (source if leave_out is None else source.without(leave_out)).limited(options.max_index_files_to_use)
    store = Store(Path(addresses.absolute(str(folder))), source, options)
    index = store.open()
    if index is not None:
        return index
    with store.building(timeout_s) as scratch:
        index = store.open()  # another process may have built it while this one waited
        return index if index is not None else open_table(_build(source, options, store, remote, scratch, read_files))


def _build(
    source: Source,
    options: IndexOptions,
    store: Store,
    remote: OpenRemote,
    scratch: Path,
    read_files: ReadFiles | None,
) -> Manifest:
    from sds.index.build import (
        draft,
        is_part,
    )  # with its readers and kernels, which opening what is built does not need
    from sds.index.gather import gather
    from sds.index.gather_held import gather_held, with_default

    gathered = gather_held(source, options, open_remote=remote, scratch=scratch)
    if gathered is None:
        gathered = with_default(
            gather(source, options, open_remote=remote, scratch=scratch, read_files=read_files), options
        )
    first = source.parts[0]
    origin = first.url if isinstance(first, IndexFile) else first.origin
    made = draft(gathered, options, origin=origin, scratch=scratch)
    storage = _storage_in_place(source, made.table) if options.sql_query is None and not made.rows_left_out else None
    if storage is not None and (gathered.held is not None or not is_part(made.table, gathered.table)):
        storage = None  # paths were resolved, ids filled in: no longer what the file says
    manifest = Manifest(
        storage=storage or "arrow",
        fingerprint=made.fingerprint,
        columns=made.columns,
        key_column=made.key_column,
        columns_to_download=gathered.columns_to_download,
        versions=made.versions,
        is_weighted=options.weight_col_name is not None,
        held=gathered.held,
        facts=IndexFacts(
            kind=source.kind,
            num_index_files=len(source.index_files),
            num_sample_files=sum(len(part.files) for part in source.sample_files),
            rows_at_source=made.rows_at_source,
            rows_after_query=made.rows_after_query,
            rows_left_out=made.rows_left_out,
            rows=made.table.num_rows,
            path=origin,
            in_place=storage is not None,
            num_other_files=_num_other_files(source, gathered),
        ),
        # as it was before it was read: a file that changed meanwhile is noticed when the table is opened
        source_version=first.version if storage is not None and isinstance(first, IndexFile) else None,
    )
    return store.publish(made.table, manifest) if storage is None else store.note(manifest)


def _num_other_files(source: Source, gathered: Gathered) -> int:
    """How many files of folders no column has; of folders only."""
    if source.index_files or not gathered.columns_to_download:
        return 0
    there = [name for name in gathered.columns_to_download if name in gathered.table.column_names]
    used: int = sum(gathered.table.num_rows - gathered.table[name].null_count for name in there)
    return max(0, sum(len(part.files) for part in source.sample_files) - used)


def _storage_in_place(source: Source, table: pa.Table) -> str | None:
    """How the source's own file can serve as the table; None if it cannot."""
    part = source.parts[0]
    if len(source.parts) != 1 or not isinstance(part, IndexFile) or is_remote(part.url):
        return None
    if part.format.family == "parquet" and table.nbytes <= _MAX_PARQUET_BYTES:
        return "parquet"
    if part.format.family == "arrow" and _is_mappable(part.url):
        return "arrow"
    return None


def _is_mappable(path: str) -> bool:
    """Whether an Arrow file's columns can be used out of the page cache: it is no stream, and not compressed."""
    with pa.memory_map(path) as file:
        whole = file.read_buffer()
        try:
            reader = pa.ipc.open_file(pa.BufferReader(whole))
        except pa.ArrowInvalid:
            return False
        if not 0 < reader.num_record_batches <= _MAX_BATCHES_IN_PLACE:
            return False
        first, last = whole.address, whole.address + whole.size
        buffers = [b for column in reader.get_batch(0).columns for b in column.buffers() if b is not None and b.size]
        return all(first <= buffer.address < last for buffer in buffers)  # decompressed buffers lie elsewhere
