"""`sds index info`: what is in a source, of whatever kind: rows, columns, types, gaps, ids that occur twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sds.cli.words import AsJson, Download, Dst, IdColumn, Query, Src, Storage, open_source, show
from sds.units import format_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from sds.index import Index

__all__ = ["EXAMPLES", "command"]

EXAMPLES = (
    "Examples:  sds index info photos.parquet --id id  |  sds index info s3://bucket/photos  |  "
    "sds index info 'shards/*.csv' --json"
)
_ROWS = 65_536
_MAX_SHOWN = 5


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
    with open_source(src, dst=dst, download=download, id_column=id_column, query=query, storage=storage) as (index, _):
        facts = _facts(src, index)
    show(facts, _text(facts), as_json)


def _facts(src: str, index: Index) -> dict[str, Any]:
    from sds.urls import redact

    found = index.facts
    columns: dict[str, dict[str, Any]] = {field.name: {"type": str(field.type), "nulls": 0} for field in index.schema}
    num_bytes = 0
    counts: Counter[str] = Counter()
    for table, keys in _tables(index):
        num_bytes += table.nbytes
        for name, column in columns.items():
            column["nulls"] += table[name].null_count
        counts.update(keys)
    twice = [key for key, count in counts.items() if count > 1]
    return {
        "source": redact(src),
        "kind": found.kind,
        "index_files": found.num_index_files,
        "sample_files": found.num_sample_files,
        "rows": len(index),
        "rows_at_source": found.rows_at_source,
        "columns": columns,
        "files": list(index.columns_to_download),
        "duplicate_ids": len(twice),
        "rows_with_duplicate_ids": sum(counts[key] for key in twice),
        "examples_of_duplicate_ids": twice[:_MAX_SHOWN],
        "bytes": num_bytes,
        "fingerprint": index.fingerprint,
    }


def _tables(index: Index) -> Iterator[tuple[pa.Table, list[str]]]:
    """The rows, some at a time, and their ids."""
    import numpy as np
    import pyarrow as pa

    from sds.index import TableIndex

    schema = index.schema
    whole = index.table() if isinstance(index, TableIndex) else None
    ids = index.keys() if isinstance(index, TableIndex) else None
    for start in range(0, len(index), _ROWS):
        if whole is not None and ids is not None:
            yield whole.slice(start, _ROWS), ids.slice(start, _ROWS).to_pylist()
            continue
        rows = index.rows(np.arange(start, min(start + _ROWS, len(index))))
        values = [row.values for row in rows]
        columns = [pa.array([value.get(field.name) for value in values], field.type) for field in schema]
        yield pa.table(columns, schema=schema), [row.key for row in rows]


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
        notes += ["files"] if name in facts["files"] else []
        lines.append(f"  {name:<{width}}  {column['type']}" + (f"  ({', '.join(notes)})" if notes else ""))
    if facts["duplicate_ids"]:
        shown = ", ".join(facts["examples_of_duplicate_ids"])
        lines.append(
            f"duplicate ids: {facts['duplicate_ids']} ids of {facts['rows_with_duplicate_ids']} rows, such as {shown}"
        )
    else:
        lines.append("duplicate ids: none")
    lines.append(f"fingerprint: {facts['fingerprint']}")
    return "\n".join(lines)
