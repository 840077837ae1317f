"""open_lazy: files become an index that is read in chunks. Footers are read, and what decides about rows.

Comes in: what the user gave as `src`, and options. Goes out: a LazyIndex. What was found out is kept under the identity
of source and options, so that a second opening reads neither footers nor rows, and a changed source is noticed.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sds.errors import CacheError, OptionError, SdsError, SourceError
from sds.index import addresses
from sds.index.build import chosen, no_weight
from sds.index.embedded import holds_files
from sds.index.lazy import LazyIndex, LazyReading
from sds.index.lazy_choice import choose
from sds.index.lazy_count import Counted, gathered_from
from sds.index.lazy_layout import checked_parts, make_layout
from sds.index.lazy_manifest import LazyManifest
from sds.index.lazy_query import QueryEngine
from sds.index.lazy_together import CountJob, Helper, OpenBoard, count_together, row_query
from sds.index.options import IndexOptions
from sds.index.parts import Source
from sds.index.remote import OpenRemote
from sds.index.source import SourceLike, find_source
from sds.index.store import Store
from sds.index.table import KEY_COLUMN, WEIGHT_COLUMN, IndexFacts, TableIndex
from sds.urls import redact

__all__ = ["open_lazy"]

log = logging.getLogger("sds")

_FORMAT = 1
_SLOW_S = 2.0  # from here on, whoever waits wants to know for what
_MIN_BATCH_ROWS = 1 << 15


class _Stored(msgspec.Struct, frozen=True):
    """A manifest on disk."""

    format: int
    manifest: LazyManifest


def open_lazy(
    src: SourceLike,
    options: IndexOptions,
    reading: LazyReading | None = None,
    *,
    folder: Path,
    remote: OpenRemote,
    timeout_s: float = 1800.0,
    peers: OpenBoard | None = None,
) -> LazyIndex:
    """Opens an index that is read in chunks of `options.lazy_index_chunk_size` rows.

    Args:
        src: a Parquet, CSV or JSON lines file, a wildcard or a list of them, or several of those.
        options: which rows and columns to take.
        reading: how chunks are read.
        folder: where counts are kept.
        remote: gives the reader of remote objects; called only if something is remote.
        timeout_s: how long to wait for another process that counts the same index.
        peers: gives a place, by its name, where ranks that have other folders find each other's counts.

    Raises:
        OptionError: a file is of another kind, or compressed.
        SourceError: with its kinds: not there, damaged, empty, without a column, or with a query that needs all rows.
        FetchError: a remote object could not be read.
        CacheError: the folder cannot be used.
    """
    reading = reading or LazyReading()
    source = find_source(src, folder=folder, open_remote=remote).limited(options.max_index_files_to_use)
    checked_parts(source)
    store = Store(Path(addresses.absolute(str(folder))), source, options)
    manifest = _load(store, options)
    if manifest is None:
        with store.building(timeout_s, meanwhile=Helper(store, options, remote, peers)) as scratch:
            manifest = _load(store, options)  # another process may have made it while this one waited
            if manifest is None:
                with _told_if_slow(source):
                    manifest = _make(source, options, store, remote, scratch, peers)
    return LazyIndex(manifest, options, reading, folder=folder, remote=remote)


@contextmanager
def _told_if_slow(source: Source) -> Iterator[None]:
    """Says once what takes so long, if it does."""
    text = "opening %s: its rows are looked through once, and what is found is kept for the next time"
    timer = threading.Timer(_SLOW_S, log.warning, (text, redact(source.name)))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _load(store: Store, options: IndexOptions) -> LazyManifest | None:
    path = store.path("lazy")
    try:
        stored = msgspec.msgpack.decode(path.read_bytes(), type=_Stored)
        if stored.format != _FORMAT or not _is_whole(stored.manifest, store, options):
            return None
    except (OSError, msgspec.MsgspecError, SourceError):
        return None  # not there, cut short by a crash of the machine, or of another release: it is made anew
    for used in (
        path,
        store.path("weights"),
        store.path("arrow"),
    ):  # its time says when it was last in use (see store.py)
        if used.exists():
            os.utime(used)
    return _at(stored.manifest, store)


def _is_whole(manifest: LazyManifest, store: Store, options: IndexOptions) -> bool:
    """Whether the files beside the manifest are as long as they were; SourceError if a copy of rows is damaged."""
    facts = manifest.facts
    num_weights = facts.rows_after_query - facts.rows_left_out
    if options.weight_col_name is not None and store.path("weights").stat().st_size != 8 * num_weights:
        return False
    if manifest.choice.kind == "take":
        TableIndex(_at(manifest, store).as_table()).close()
    return True


def _at(manifest: LazyManifest, store: Store) -> LazyManifest:
    facts = msgspec.structs.replace(manifest.facts, path=os.fspath(store.path("lazy")))  # the folder may have moved
    return msgspec.structs.replace(manifest, facts=facts)


def _make(
    source: Source,
    options: IndexOptions,
    store: Store,
    remote: OpenRemote,
    scratch: Path,
    peers: OpenBoard | None,
) -> LazyManifest:
    engine = QueryEngine(scratch)
    layout, pieces = make_layout(source, options, remote, folder=store.folder)
    gathered = gathered_from(layout)
    query, columns = row_query(layout, options, engine), _columns(layout.schema, options)
    result = layout.schema.empty_table().select(list(columns))
    if query is not None:
        columns, result = query.columns, query.schema.empty_table()
    shown, _ = chosen(result, None, gathered, options)  # or an error that names a column
    schema = pa.schema([field for field in shown.schema if field.name != WEIGHT_COLUMN])
    _refuse_bytes(schema, options.columns_to_download)
    if options.allow_missing_columns:
        pieces = [piece._replace(may_lack=False) for piece in pieces]
    job = CountJob(layout, pieces, options, query, engine, remote)
    counted = _count(job, store, scratch, peers)
    engine.close()
    counts = _limited(counted.counts, options.max_size)
    path = store.path("lazy")
    salt = repr(dataclasses.astuple(dataclasses.replace(options, lazy_index_chunk_size=None, lazy_index_plan="auto")))
    choice = choose(
        options.lazy_index_plan,
        rows=layout.num_rows,
        rows_left=int(counts.sum()),
        num_bytes=layout.num_bytes,
        url=layout.footers[0].url,
        has_query=query is not None,
    )
    manifest = LazyManifest(
        layout=layout,
        chunk_size=options.lazy_index_chunk_size or 1,
        counts=counts.tobytes(),
        columns=columns,
        sql=None if query is None else query.sql,
        fingerprint=layout.fingerprint(salt),
        facts=IndexFacts(
            kind=source.kind,
            num_index_files=len(layout.footers),
            num_sample_files=0,
            rows_at_source=layout.num_rows,
            rows_after_query=counted.rows_after_query,
            rows_left_out=counted.rows_after_query - int(counted.counts.sum()),
            rows=int(counts.sum()),
            path=os.fspath(path),
            in_place=True,
        ),
        schema_bytes=schema.serialize().to_pybytes(),
        rows_read=counted.rows_read,
        choice=choice,
    )
    if choice.kind == "take":
        _take(
            LazyIndex(manifest, options, LazyReading(), folder=scratch, remote=remote, is_taken=False), store, scratch
        )
    made = scratch / "manifest"
    try:
        made.write_bytes(msgspec.msgpack.encode(_Stored(_FORMAT, manifest)))
        store.adopt(made, "lazy")
        shutil.rmtree(store.path("shares"), ignore_errors=True)
    except OSError as e:
        hint = "make room there, or choose another dst"
        raise CacheError(f"index cannot be written: {path}: {e}", hint=hint, url=str(path)) from e
    return manifest


def _refuse_bytes(schema: pa.Schema, downloads: Sequence[str] | None) -> None:
    """A chunk of files would be held in memory: tables that hold their samples are read another way."""
    if downloads is None:  # without a lazy index, such a column is downloaded unasked
        unasked = next((field.name for field in schema if holds_files(field.type)), None)
        if unasked is not None:
            hint = "leave lazy_index_chunk_size out; or set columns_to_download=[] to get the struct as a value"
            raise OptionError(f"lazy_index_chunk_size does not go with files inside the table: {unasked!r}", hint=hint)
    for name in downloads or ():
        kind = schema.field(name).type
        if pa.types.is_struct(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            hint = "leave lazy_index_chunk_size out, or columns_to_download to keep the bytes as a value"
            raise OptionError(f"lazy_index_chunk_size does not go with files inside the table: {name!r}", hint=hint)


def _take(index: LazyIndex, store: Store, scratch: Path) -> None:
    """Copies the rows that are left, chunk by chunk, to a table that is mapped like any other."""
    made = scratch / "taken"
    schema = index.schema.append(pa.field(KEY_COLUMN, pa.string()))
    held: list[pa.Table] = []
    try:
        with pa.OSFile(str(made), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for number in np.flatnonzero(index.chunk_sizes).tolist():
                table = index.read(number)
                held.append(table.set_column(table.num_columns - 1, KEY_COLUMN, table[KEY_COLUMN].cast(pa.string())))
                if sum(each.num_rows for each in held) >= _MIN_BATCH_ROWS:
                    writer.write_table(pa.concat_tables(held).cast(schema).combine_chunks())
                    held = []
            if held:
                writer.write_table(pa.concat_tables(held).cast(schema).combine_chunks())
        store.adopt(made, "arrow")
    except OSError as e:
        if isinstance(e, SdsError):
            raise
        hint = "make room there, choose another dst, or set lazy_index_plan='scan'"
        raise CacheError(f"index cannot be written: {made}: {e}", hint=hint, url=str(made)) from e
    finally:
        index.close()


def _columns(schema: pa.Schema, options: IndexOptions) -> tuple[str, ...]:
    """What must be read of the files when there is no query."""
    if options.index_cols_to_keep is None:
        return tuple(schema.names)
    wanted = {*options.index_cols_to_keep, *(options.columns_to_download or ()), options.id_column}
    if options.weight_col_name is not None:
        wanted.add(options.weight_col_name)
    return tuple(name for name in schema.names if name in wanted) or tuple(schema.names[:1])


def _count(job: CountJob, store: Store, scratch: Path, peers: OpenBoard | None) -> Counted:
    """What is left of each chunk, with weights in a file of their own; an error if nothing is."""
    layout, options = job.layout, job.options
    made = scratch / "weights"
    try:
        with open(made, "wb") as file:
            weights = None if options.weight_col_name is None else file
            counted = count_together(job, store, weights, peers)
    except OSError as e:
        if isinstance(e, SdsError):
            raise
        hint = "make room there, or choose another dst"
        raise CacheError(f"weights cannot be written: {made}: {e}", hint=hint, url=str(made)) from e
    origin = redact(layout.footers[0].url)
    if not counted.rows_after_query:
        query_text = (options.sql_query or "").strip()
        raise SourceError(f"query leaves none of {layout.num_rows} rows: {query_text}", hint="loosen its conditions")
    if not counted.counts.any():
        raise SourceError(
            f"every row lacks a value to download in one of {list(layout.downloads)}: {counted.rows_after_query} rows "
            f"of {origin}",
            hint="fill the columns, download fewer of them, or set allow_missing_columns=True",
            url=origin,
        )
    if weights is not None:
        # whatever rows weigh that are past the limit, they never come
        if not counted.has_weight or not np.memmap(made, np.float64, mode="r")[: options.max_size].any():
            raise no_weight(options)
        store.adopt(made, "weights")
    return counted


def _limited(counts: npt.NDArray[np.int64], max_size: int | None) -> npt.NDArray[np.int64]:
    """The counts of the first rows."""
    if max_size is None:
        return counts
    ends = np.minimum(np.cumsum(counts), max_size)
    return np.diff(np.concatenate([np.zeros(1, np.int64), ends]))
