"""Sources that hold their samples -> one table of places: tar shards, and tables with bytes in their columns.

Comes in: a source. Goes out: what `gather` gives of others, with places where samples have content; None, if the source
holds nothing. The content itself is not read.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from sds.errors import SourceError, UnsupportedSource
from sds.index import addresses
from sds.index.alternatives import column_names, first_there
from sds.index.embedded import embedded_columns, holds_files, read_embedded
from sds.index.gather import Gathered, common_folder, rebase
from sds.index.held import Held, HeldPart
from sds.index.lance import read_lance
from sds.index.lazy_files import read_footer
from sds.index.options import IndexOptions
from sds.index.parts import IndexFile, Source
from sds.index.readers import check_names, plain_table
from sds.index.remote import OpenRemote
from sds.index.tars import SHARD, read_tar, unique_keys
from sds.index.unify import NamedTable, common_schema, concatenate
from sds.urls import is_remote

__all__ = ["gather_held", "with_default"]

_NUM_SHARDS_AT_ONCE = 16


def gather_held(source: Source, options: IndexOptions, *, open_remote: OpenRemote, scratch: Path) -> Gathered | None:
    """Reads where the samples of a source lie inside it; None if they do not.

    Raises:
        UnsupportedSource: tar shards and other files are mixed.
        SourceError: a part is damaged.
    """
    parts = [part for part in source.parts if isinstance(part, IndexFile)]
    families = {part.format.family for part in parts} | ({"samples"} if len(parts) < len(source.parts) else set())
    if "tar" in families:
        if families != {"tar"}:
            raise UnsupportedSource(
                f"tar shards are mixed with other files: {source.name}",
                hint="make one dataset of each, and join them with sds.concatenate or sds.interleave",
            )
        return _tars(source, parts, options, open_remote)
    if "lance" in families:
        if len(source.parts) > 1:
            raise UnsupportedSource(
                f"a Lance table is one of several sources: {source.name}",
                hint="make one dataset of each, and join them with sds.concatenate or sds.interleave",
            )
        return _lance(parts[0], options, scratch)
    if families == {"parquet"} and (columns := _embedded(parts, options, open_remote)):
        return _tables(source, parts, columns, options, open_remote)
    return None


def with_default(gathered: Gathered, options: IndexOptions) -> Gathered:
    """The same, with the one column of files with bytes to download, if nobody said which."""
    if options.columns_to_download is not None or gathered.columns_to_download:
        return gathered
    names = [field.name for field in gathered.table.schema if holds_files(field.type)]
    return replace(gathered, columns_to_download=tuple(names)) if len(names) == 1 else gathered


def _embedded(parts: list[IndexFile], options: IndexOptions, open_remote: OpenRemote) -> tuple[str, ...]:
    """The columns that hold content: of all local files, and of the first one of a store."""
    found: dict[str, None] = {}
    for part in [parts[0], *(part for part in parts[1:] if not is_remote(part.url))]:
        try:
            _, facts = read_footer(part.url, part.version, open_remote)
        except SourceError:
            return ()  # whoever reads it whole says what is wrong with it
        found |= dict.fromkeys(embedded_columns(facts, options))
    return tuple(found)


def _tables(
    source: Source, parts: list[IndexFile], columns: tuple[str, ...], options: IndexOptions, open_remote: OpenRemote
) -> Gathered:
    keep, downloads = options.index_cols_to_keep, options.columns_to_download
    wanted = None
    if keep is not None and options.sql_query is None:
        wanted = {*keep, *(downloads or ()), options.id_column, options.weight_col_name or options.id_column}

    def read(number: int, part: IndexFile) -> tuple[NamedTable, tuple[str, ...], HeldPart]:
        table, names, held = read_embedded(part, number, columns, wanted, open_remote)
        return NamedTable(part.url, table), names, held

    with ThreadPoolExecutor(_NUM_SHARDS_AT_ONCE) as pool:
        reads = list(pool.map(read, range(len(parts)), parts))
    schema = common_schema([table for table, _, _ in reads])
    folder = common_folder(source)
    default = columns if len(columns) == 1 else ()
    moved = [
        NamedTable(named.name, rebase(named.table, part, folder=folder, downloads=downloads or ()))
        for (named, _, _), part in zip(reads, parts, strict=True)
    ]
    return Gathered(
        table=concatenate(moved, schema),
        columns=tuple(dict.fromkeys(name for _, names, _ in reads for name in names)),
        folder=folder,
        columns_to_download=default if downloads is None else downloads,
        versions=None,
        may_name_local=any(part.may_name_local for part in parts),
        held=Held(
            "parquet",
            tuple(held for _, _, held in reads),
            () if downloads == () else None,
            columns,
        ),
    )


def _lance(part: IndexFile, options: IndexOptions, scratch: Path) -> Gathered:
    table, found, held = read_lance(part.url, part.version, options, scratch)
    check_names(found.columns, part.url)
    default = tuple(name for name, _ in found.held) if len(found.held) == 1 else ()
    downloads = options.columns_to_download
    return Gathered(
        table=plain_table(table),
        columns=found.columns,
        folder=part.folder,
        columns_to_download=default if downloads is None else downloads,
        versions=None,
        may_name_local=True,
        held=held,
    )


def _tars(source: Source, parts: list[IndexFile], options: IndexOptions, open_remote: OpenRemote) -> Gathered:
    folder = common_folder(source)

    def read(number: int, part: IndexFile) -> tuple[NamedTable, HeldPart]:
        name = addresses.without_query(part.url)
        shard = name if folder is None else name[len(folder.rstrip("/")) + 1 :]
        table, held = read_tar(part.url, number, name=shard, id_column=options.id_column, open_remote=open_remote)
        return NamedTable(part.url, table), held

    with ThreadPoolExecutor(_NUM_SHARDS_AT_ONCE) as pool:
        reads = list(pool.map(read, range(len(parts)), parts))
    tables = [table for table, _ in reads]
    table = unique_keys(concatenate(tables, common_schema(tables)), options.id_column)
    columns = tuple(table.column_names)
    wanted = column_names(options.columns_to_download)
    if wanted != options.columns_to_download:
        table = first_there(table, options.columns_to_download or ())
        columns = tuple(table.column_names)
    extensions = sorted(set(columns) - {options.id_column, SHARD})
    if wanted and options.sql_query is None:  # as in a folder, extensions that nobody wants are no columns
        table = table.select([options.id_column, SHARD, *(name for name in extensions if name in wanted)])
    return Gathered(
        table=table,
        columns=columns,
        folder=None,
        columns_to_download=tuple(extensions) if wanted is None else wanted,
        versions=None,
        may_name_local=True,
        held=Held("tar", tuple(held for _, held in reads), wanted),
    )
