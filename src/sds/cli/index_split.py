"""`sds index split`: an index -> train.parquet and val.parquet, by a hash of the ids.

No row is lost, none is in both; the rows of one id stay together. Memory does not grow with the index where that is
Parquet. Files named by --download become absolute, so that the new files may lie anywhere.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sds.cli.words import AsJson, Download, IdColumn, Src, Storage, index_options, open_client, show
from sds.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from sds.index.pieces import Pieces
    from sds.index.split import HashFile

__all__ = ["EXAMPLES", "command"]

EXAMPLES = (
    "Examples:  sds index split photos.parquet -o splits --val-ratio 0.1 --id id  |  "
    "sds index split 's3://bucket/shards/*.parquet' -o s3://bucket/splits --val-ratio 0.05 --max-val-rows 5000"
)


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
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Split an index into training and validation, the same way whenever and wherever it is done."""
    from sds.index.parquet import write_parquet
    from sds.index.pieces import open_pieces
    from sds.index.split import HashFile, check_ratio, hash_ids, num_wanted

    ratio = check_ratio("--val-ratio", val_ratio)
    options = index_options(download, id_column)
    counts: dict[str, Any] = {}
    with (
        open_client(storage) as (client, folder),
        open_pieces(src, options, folder=folder / "index", client=client) as pieces,
        HashFile(folder / "hashes") as hashes,
    ):
        for table in pieces:
            hashes.append(hash_ids(pieces.ids(table, hashes.num_rows)))
        if not hashes.num_rows:
            raise SourceError(f"source has no rows: {src}", hint="is it empty, or still being written?", url=src)
        bound = hashes.bound(num_wanted(hashes.num_rows, ratio, max_val_rows))
        for name, wants_val in (("train", False), ("val", True)):
            address = f"{out.rstrip('/')}/{name}.parquet" if "://" in out else os.path.join(out, f"{name}.parquet")
            write_parquet(
                _side(pieces, hashes, bound, wants_val),
                pieces.schema,
                address,
                put=client.put,
                scratch=folder,
                row_group_size=row_group_size,
            )
            counts[name] = {"path": address}
        counts["val"]["rows"] = hashes.count_below(bound)
        counts["train"]["rows"] = hashes.num_rows - counts["val"]["rows"]
        num_rows = hashes.num_rows
    facts = {"rows": num_rows, **counts, "by": pieces.id_column or "row number"}
    lines = [f"{facts[name]['path']}: {facts[name]['rows']} rows" for name in ("train", "val")]
    show(facts, "\n".join(lines), as_json)


def _side(pieces: Pieces, hashes: HashFile, bound: int, wants_val: bool) -> Iterator[pa.Table]:
    import pyarrow as pa

    start = 0
    for table in pieces:
        is_val = hashes.is_below(start, table.num_rows, bound)
        start += table.num_rows
        yield table.filter(pa.array(is_val if wants_val else ~is_val))
