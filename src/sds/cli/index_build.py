"""`sds index build`: a folder, a wildcard or tables -> one Parquet file, beside the data or anywhere else.

The same source gives the same bytes. Files are relative to the index where they lie below its folder, so that both can
be moved together; elsewhere they are absolute paths or URLs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sds.cli.interrupts import told_when_interrupted
from sds.cli.ray_engine import check_engine, started_ray
from sds.cli.words import (
    AsJson,
    Download,
    IdColumn,
    Query,
    Src,
    Storage,
    check_downloads,
    index_options,
    open_client,
    parse_storage,
    refuse_tensors,
    say,
    show,
)
from sds.errors import ObjectNotFound, OptionError, UnsupportedSource
from sds.units import counted, format_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from sds.cli.index_files import Looker

__all__ = ["EXAMPLES", "command"]

EXAMPLES = (
    "Examples:  sds index build photos -o photos.parquet  |  "
    "sds index build s3://bucket/clips -o s3://bucket/clips.parquet --probe  |  "
    "sds index build 'shards/*.csv' -o all.parquet --download image --id id --check  |  "
    "sds index build s3://bucket/clips -o clips.parquet --probe --engine ray --num-workers 32"
)
_MAX_SHOWN = 8
_ROW_GROUP_SIZE = 65_536


def command(
    src: Src,
    out: Annotated[
        str, typer.Option("--output", "-o", metavar="OUT", help="The Parquet file to write: a path or URL.")
    ],
    download: Download = None,
    id_column: IdColumn = "index",
    query: Query = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Add width, height and duration of media; remote files by byte ranges.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Fail if a file that the index names is not there.")] = False,
    paths: Annotated[
        str, typer.Option(help="'auto' (relative where files lie below OUT's folder) or 'absolute'.")
    ] = "auto",
    row_group_size: Annotated[int, typer.Option(min=1, help="Rows of a row group.")] = _ROW_GROUP_SIZE,
    threads: Annotated[int, typer.Option(min=1, max=256, help="Files looked at at once, by --probe and --check.")] = 16,
    engine: Annotated[
        str | None, typer.Option(help="ray: tables are read and files looked at by Ray's workers.")
    ] = None,
    num_workers: Annotated[
        int | None, typer.Option(min=1, help="With an engine: how many workers. Default: 2.")
    ] = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Write one index of a folder, a wildcard, a list, or several tables."""
    from sds.cli.index_files import Here, OnRay
    from sds.index import open_index
    from sds.index.holding import HeldIndex
    from sds.index.parquet import write_parquet

    if paths not in ("auto", "absolute"):
        raise OptionError(f"--paths is unknown: {paths!r}", hint="auto or absolute")
    _check_out(out)
    on_ray = (
        OnRay(num_workers or 2, parse_storage(storage), threads)
        if check_engine(engine, num_workers=num_workers)
        else None
    )
    began = time.monotonic()
    options = index_options(download, id_column, query)
    engine_runs = started_ray() if on_ray is not None else nullcontext()
    with (
        told_when_interrupted("nothing was written: run it again"),
        engine_runs,
        open_client(storage) as (client, folder),
    ):
        say(f"looking through {_shown(src)}")
        refuse_tensors(src, client)
        looker: Looker = on_ray or Here(client, threads)
        read_files = None if on_ray is None else on_ray.read
        index = open_index(
            src, options, folder=folder / "index", remote=lambda: client, read_files=read_files, leave_out=out
        )
        if isinstance(index, HeldIndex):
            hint = "it is an index of itself: open it as it is"
            raise UnsupportedSource(f"samples lie inside the source: {_shown(src)}", hint=hint)
        check_downloads(index, download)
        columns = index.columns_to_download
        table = _without(index.table(), out, columns)
        say(f"{counted(table.num_rows, 'row')} in {time.monotonic() - began:.1f} s")
        if check:
            _check_files(table, columns, looker)
        failures: list[str] = []
        if probe:
            from sds.cli.probe import probe_table

            table, failures = probe_table(table, columns, looker.probe)
        if paths == "auto":
            table = _relative(table, columns, out)
        size = write_parquet(
            _pieces(table), table.schema, out, put=client.put, scratch=folder, row_group_size=row_group_size
        )
        index.close()
    facts = {
        "path": out,
        "rows": table.num_rows,
        "columns": {field.name: str(field.type) for field in table.schema},
        "files": list(columns),
        "bytes": size,
        "probe_failures": len(failures),
        "seconds": round(time.monotonic() - began, 3),
    }
    text = f"{out}: {counted(table.num_rows, 'row')}, {format_bytes(size)}: {', '.join(table.column_names)}"
    show(facts, text, as_json)
    for failure in failures[:_MAX_SHOWN]:
        say(f"not to be probed: {failure}")
    if len(failures) > _MAX_SHOWN:
        say(f"and {len(failures) - _MAX_SHOWN} more; their width, height and duration are null")


def _check_out(out: str) -> None:
    from sds.index.formats import format_of

    format_ = format_of(out)
    if format_ is None or format_.family != "parquet":
        raise OptionError(f"the output is no Parquet file: {out}", hint="a name that ends in .parquet")


def _shown(src: str) -> str:
    from sds.urls import redact

    return redact(src)


def _without(table: pa.Table, out: str, columns: tuple[str, ...]) -> pa.Table:
    """The table without an earlier output that lies among the files."""
    import pyarrow.compute as pc

    from sds.index import addresses

    for name in columns:
        if name in ("parquet", "pq"):
            table = table.filter(pc.fill_null(pc.not_equal(table[name], addresses.absolute(out)), True))
            if table[name].null_count == table.num_rows:
                table = table.drop_columns([name])
    return table


def _relative(table: pa.Table, columns: tuple[str, ...], out: str) -> pa.Table:
    """Paths below the folder of the output, relative to it; an http address has escapes, and stays as it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from sds.index import addresses

    base = addresses.folder_of(addresses.absolute(out)).rstrip("/") + "/"
    if addresses.is_http(base):
        return table
    for name in columns:
        if name not in table.column_names or not pa.types.is_string(table[name].type):
            continue
        is_below = pc.starts_with(table[name], base)
        column = pc.if_else(is_below, pc.utf8_slice_codeunits(table[name], len(base)), table[name])
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, _ROW_GROUP_SIZE):
        yield table.slice(start, _ROW_GROUP_SIZE)


def _check_files(table: pa.Table, columns: tuple[str, ...], looker: Looker) -> None:
    """Asks for every file that the table names.

    Raises:
        ObjectNotFound: some are not there; it names the first ones.
    """
    urls: dict[str, None] = {}
    for name in columns:
        for value in table[name].to_pylist() if name in table.column_names else ():
            urls.update(dict.fromkeys(_urls(value)))
    missing = looker.missing(list(urls))
    if missing:
        named = ", ".join(map(_shown, missing[:_MAX_SHOWN])) + (" ..." if len(missing) > _MAX_SHOWN else "")
        raise ObjectNotFound(
            f"{len(missing)} of {counted(len(urls), 'file')} are not there: {named}",
            hint="nothing was written; leave --check out to write an index that names them all the same",
        )


def _urls(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
