"""`sds index info`: what is in a source, of whatever kind: rows, columns, types, gaps, ids that occur twice.

Large Parquet files are read in chunks: their footers, the ids, and the columns of files.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sds.cli.words import AsJson, Download, Dst, IdColumn, Query, Src, Storage, open_source, show
from sds.units import format_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from sds.fetch import FetchClient
    from sds.index import Index

__all__ = ["EXAMPLES", "command"]

EXAMPLES = (
    "Examples:  sds index info photos.parquet --id id  |  sds index info s3://bucket/photos  |  "
    "sds index info 'shards/*.csv' --json"
)


def command(
    src: Src,
    id_column: IdColumn = "index",
    query: Query = None,
    download: Download = None,
    dst: Dst = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Say what is in a source: rows, columns, types, nulls, duplicate ids, bytes, fingerprint."""
    opened = open_source(src, dst=dst, download=download, id_column=id_column, query=query, storage=storage)
    with opened as (index, client):
        if dst is not None:
            Path(dst).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="sds-info-", dir=dst, ignore_cleanup_errors=True) as scratch:
            facts = _facts(src, index, id_column, client, Path(scratch))
    show(facts, _text(facts), as_json)


def _facts(src: str, index: Index, id_column: str, client: FetchClient, scratch: Path) -> dict[str, Any]:
    from sds.index.survey import survey
    from sds.urls import redact

    found, seen = index.facts, survey(index, id_column=id_column, scratch=scratch, remote=lambda: client)
    columns = {field.name: {"type": _type(field, index), "nulls": seen.nulls[field.name]} for field in index.schema}
    return {
        "source": redact(src),
        "kind": found.kind,
        "index_files": found.num_index_files,
        "sample_files": found.num_sample_files,
        "rows": len(index),
        "rows_at_source": found.rows_at_source,
        "columns": columns,
        "files": list(index.columns_to_download),
        "duplicate_ids": seen.duplicates.num_ids,
        "rows_with_duplicate_ids": seen.duplicates.num_rows,
        "examples_of_duplicate_ids": list(seen.duplicates.examples),
        "bytes": seen.num_bytes,
        "fingerprint": index.fingerprint,
        "read_in_chunks": index.chunk_sizes is not None,
    }


def _type(field: pa.Field, index: Index) -> str:
    """The type of a column, for people; what the source holds inside itself is bytes, wherever they lie in it."""
    import pyarrow as pa

    from sds.index.holding import HeldIndex

    is_held = isinstance(index, HeldIndex) and field.name in index.columns_to_download
    return "bytes" if is_held and pa.types.is_struct(field.type) else str(field.type)


def _text(facts: dict[str, Any]) -> str:
    counts = ((facts["index_files"], "index file"), (facts["sample_files"], "sample file"))
    files = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts if count)
    lines = [f"source: {facts['source']} ({facts['kind']}{f': {files}' if files else ''})"]
    at_source = f" of {facts['rows_at_source']} at the source" if facts["rows_at_source"] != facts["rows"] else ""
    lines.append(f"rows: {facts['rows']}{at_source}, {format_bytes(facts['bytes'])} in memory")
    width = max((len(name) for name in facts["columns"]), default=0)
    lines.append("columns:")
    for name, column in facts["columns"].items():
        notes = [f"{column['nulls']} null"] if column["nulls"] else []
        notes += ["nulls not counted"] if column["nulls"] is None else []
        notes += ["files"] if name in facts["files"] else []
        lines.append(f"  {name:<{width}}  {column['type']}" + (f"  ({', '.join(notes)})" if notes else ""))
    if facts["duplicate_ids"]:
        shown = ", ".join(facts["examples_of_duplicate_ids"])
        lines.append(
            f"duplicate ids: {facts['duplicate_ids']} ids of {facts['rows_with_duplicate_ids']} rows, such as {shown}"
        )
    else:
        lines.append("duplicate ids: none")
    lazily = " (of an index that is read in chunks)" if facts["read_in_chunks"] else ""
    lines.append(f"fingerprint: {facts['fingerprint']}{lazily}")
    return "\n".join(lines)
