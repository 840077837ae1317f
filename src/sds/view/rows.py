"""Rows for people: what columns hold, which of them are files, and where those are.

Comes in: rows of a dataset. Goes out: values for JSON. URLs are shown without their secrets. Of a column that has no
telling names, the first bytes of one file are read; nothing else is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sds.errors import SdsError
from sds.index.held import is_place
from sds.types import Row
from sds.urls import is_remote, redact
from sds.view import cache
from sds.view.contents import held_kind, holds_file, opened, told
from sds.view.kinds import HEAD, kind_of_name, sniff
from sds.view.outputs import plain

if TYPE_CHECKING:
    from sds.dataset import StreamingDataset

__all__ = ["kinds_of", "told_row"]


def told_row(dataset: StreamingDataset, row: Row, kinds: dict[str, str], longest: int) -> dict[str, Any]:
    """A row for JSON: its values, which of them are files of what kind, and where those are."""
    index = dataset.delivery.pipeline.index
    held = held_kind(index)
    files = {}
    for name, value in row.values.items():
        if name in kinds and value is not None:
            files[name] = (isinstance(value, str) and kind_of_name(value)) or kinds[name]
    values = {}
    for name, value in row.values.items():
        shown = redact(value) if name in kinds and isinstance(value, str) else told(value, held)
        values[name] = plain(shown, longest)
    return {
        "row": row.id,
        "key": plain(row.key, longest),
        "values": values,
        "files": files,
        "places": {name: _where(dataset, row, name) for name in files},
    }


def _where(dataset: StreamingDataset, row: Row, name: str) -> str:
    """Where a file is: here, in the cache, at its store, or inside the source."""
    value, options = row.values[name], dataset.delivery.client.options
    if not isinstance(value, str):
        return "inside"
    if not is_remote(value):
        return "local"
    version = (row.versions or {}).get(name)
    is_here = cache.is_cached(Path(options.dst), value, version, cache.endpoints(options.settings))
    return "cached" if is_here else "remote"


def kinds_of(dataset: StreamingDataset, rows: Sequence[Row]) -> dict[str, str]:
    """What the columns of files hold: by the names of files, else by the first bytes of one."""
    index = dataset.delivery.pipeline.index
    held, kinds = held_kind(index), {}
    for field in index.schema:
        name = field.name
        row = next((each for each in rows if holds_file(index, name, each.values.get(name))), None)
        if row is None:
            continue
        value = row.values[name]
        if isinstance(value, str):
            kind = kind_of_name(value)
        else:  # a member of a tar shard is a column by its extension
            kind = kind_of_name(f"x.{name}") if held == "tar" and is_place(value, held) else None
        kinds[name] = kind or _sniffed(dataset, row, name)
    return kinds


def _sniffed(dataset: StreamingDataset, row: Row, name: str) -> str:
    try:
        with opened(dataset.delivery.pipeline.index, dataset.delivery.client, row, name) as (file, _):
            return (sniff(file.read(HEAD)) or "file").partition("/")[0]
    except SdsError:
        return "file"
