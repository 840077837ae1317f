"""`sds index split`: an index -> train.parquet and val.parquet, by a hash of the ids.

No row is lost, none is in both; the rows of one id stay together. Both files appear when both are finished, and never
in the place of what they are made of. Memory does not grow with the index where that is Parquet. Paths of files become
absolute, in columns named by --download and in those whose paths lead to files, so that the new ones may lie anywhere.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sds.cli.words import (
    AsJson,
    Download,
    IdColumn,
    Src,
    Storage,
    index_options,
    open_client,
    refuse_tensors,
    say,
    show,
)
from sds.errors import FetchError, ObjectNotFound, OptionError, SourceError
from sds.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from sds.fetch import FetchClient
    from sds.index.pieces import Pieces
    from sds.index.split import HashFile

__all__ = ["EXAMPLES", "command"]

EXAMPLES = (
    "Examples:  sds index split photos.parquet -o splits --val-ratio 0.1 --id id  |  "
    "sds index split 's3://bucket/shards/*.parquet' -o s3://bucket/splits --val-ratio 0.05 --max-val-rows 5000"
)
_SIDES = ("train", "val")
_LOOKED_AT = 5  # values of a column, to see whether they lead to files


def command(
    src: Src,
    out: Annotated[
        str, typer.Option("--output", "-o", metavar="DIR", help="The folder of train.parquet and val.parquet.")
    ],
    val_ratio: Annotated[float, typer.Option(help="The share of rows for validation, from 0 to less than 1.")],
    max_val_rows: Annotated[int | None, typer.Option(min=0, help="At most so many rows for validation.")] = None,
    id_column: IdColumn = "index",
    download: Download = None,
    row_group_size: Annotated[int, typer.Option(min=1, help="Rows of a row group.")] = 65_536,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Split an index into training and validation, the same way whenever and wherever it is done."""
    from sds.index.parquet import publish_together
    from sds.index.pieces import open_pieces
    from sds.index.split import HashFile, check_ratio, hash_ids, num_wanted

    ratio = check_ratio("--val-ratio", val_ratio)
    options = index_options(download, id_column)
    addresses = [_address(out, side) for side in _SIDES]
    with ExitStack() as stack:
        client, folder = stack.enter_context(open_client(storage))
        refuse_tensors(src, client)
        pieces = stack.enter_context(open_pieces(src, options, folder=folder / "index", client=client))
        _check_outputs(addresses, pieces, client, force=force)
        relative = _relative_columns(pieces, client, out, download or [])
        if relative:
            say(f"paths are made absolute in: {', '.join(relative)}")
            options = index_options([*(download or ()), *relative], id_column)
            pieces = stack.enter_context(open_pieces(src, options, folder=folder / "index", client=client))
        if pieces.id_column is None:
            say("split by row number, which another order of rows changes: name a column of ids with --id")
        hashes = stack.enter_context(HashFile(folder / "hashes"))
        for table in pieces:
            hashes.append(hash_ids(pieces.ids(table, hashes.num_rows)))
        if not hashes.num_rows:
            raise SourceError(f"source has no rows: {src}", hint="is it empty, or still being written?", url=src)
        bound = hashes.bound(num_wanted(hashes.num_rows, ratio, max_val_rows))
        made = [folder / f"{side}.parquet" for side in _SIDES]
        for side, path in zip(_SIDES, made, strict=True):
            _write(path, _side(pieces, hashes, bound, side == "val"), pieces.schema, row_group_size)
        publish_together(list(zip(made, addresses, strict=True)), client.put)
        num_rows, num_val = hashes.num_rows, hashes.count_below(bound)
    counts = {"train": num_rows - num_val, "val": num_val}
    facts: dict[str, Any] = {"rows": num_rows}
    facts |= {side: {"path": path, "rows": counts[side]} for side, path in zip(_SIDES, addresses, strict=True)}
    facts["by"] = pieces.id_column or "row number"
    show(facts, "\n".join(f"{facts[side]['path']}: {counted(counts[side], 'row')}" for side in _SIDES), as_json)


def _address(out: str, side: str) -> str:
    name = f"{side}.parquet"
    return f"{out.rstrip('/')}/{name}" if "://" in out else os.path.normpath(os.path.join(out, name))


def _check_outputs(addresses: list[str], pieces: Pieces, client: FetchClient, *, force: bool) -> None:
    """Refuses to write over the source, or over anything else unasked."""
    from sds.urls import redact

    for address in addresses:
        if pieces.source.has(address):
            raise OptionError(
                f"the output is one of the source's own files: {redact(address)}", hint="choose another folder with -o"
            )
        if not force and _is_there(address, client):
            raise OptionError(
                f"the output is there already: {redact(address)}",
                hint="--force writes over it; or choose another folder with -o",
            )


def _is_there(address: str, client: FetchClient) -> bool:
    from sds.urls import is_remote, local_path

    if not is_remote(address):
        return os.path.lexists(local_path(address))
    try:
        client.head(address)
        return True
    except ObjectNotFound:
        return False


def _relative_columns(pieces: Pieces, client: FetchClient, out: str, download: list[str]) -> list[str]:
    """Columns that nobody named, whose relative paths lead to files, and would lead nowhere from another folder."""
    from sds.index import addresses
    from sds.index.unify import is_text

    table = next(iter(pieces), None)
    if table is None or addresses.absolute(out).rstrip("/") == pieces.folder.rstrip("/"):
        return []
    found = []
    for field in table.schema:
        if field.name in download or field.name == pieces.id_column or not is_text(field.type):
            continue
        values = [each for each in table[field.name].slice(0, 100).to_pylist() if each][:_LOOKED_AT]
        if any(not addresses.is_absolute(each) and _leads_to_file(pieces.folder, each, client) for each in values):
            found.append(field.name)
    return found


def _leads_to_file(folder: str, value: str, client: FetchClient) -> bool:
    from sds.index import addresses
    from sds.index.formats import extension_of
    from sds.urls import is_remote

    if is_remote(folder):  # a question each: only for what is called like a file
        try:
            return bool(extension_of(value)) and _is_there(addresses.join(folder, value), client)
        except FetchError:  # it is not ours to say: it may be no address at all
            return False
    return "\0" not in value and os.path.isfile(os.path.join(folder, value))


def _write(path: Path, tables: Iterator[pa.Table], schema: pa.Schema, row_group_size: int) -> None:
    from sds.index.parquet import RowGroups

    with RowGroups(path, schema, row_group_size) as groups:
        for table in tables:
            groups.write(table)


def _side(pieces: Pieces, hashes: HashFile, bound: int, wants_val: bool) -> Iterator[pa.Table]:
    import pyarrow as pa

    start = 0
    for table in pieces:
        is_val = hashes.is_below(start, table.num_rows, bound)
        start += table.num_rows
        yield table.filter(pa.array(is_val if wants_val else ~is_val))
