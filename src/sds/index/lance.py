"""Lance tables as sources: one version of a table, its metadata in the index, its bytes taken when they are needed.

Comes in: the folder of a table, perhaps with '?version=N'. Goes out: which version that is; a table of all columns but
those of bytes, which hold places; and the bytes of places, by Lance's own `take`. Lance starts threads of its own, that
a forked child does not have: the index is made by another process, and each process opens the table for itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sds.errors import OptionError, SourceError, SourceNotFound, UnsupportedSource
from sds.fetch import File
from sds.index.held import LANCE, Held, HeldPart, refuse_places
from sds.index.options import IndexOptions
from sds.urls import is_remote, redact

__all__ = ["LanceTable", "Taken", "is_lance", "pin_lance", "read_lance"]

_NAME = re.compile(r"(.*\.lance)/?(?:\?version=(\d+))?", re.DOTALL | re.IGNORECASE)
_MANIFEST = re.compile(r"(\d+)\.manifest")
_LAST = 2**64 - 1  # names of twenty digits count down from here
_HINT = "pip install 'streaming-dataset[lance]'"


class LanceTable(msgspec.Struct, frozen=True):
    """What the other process found: all columns, and those of bytes, with whether they are blobs."""

    columns: tuple[str, ...]
    held: tuple[tuple[str, bool], ...]
    num_rows: int


def is_lance(address: str) -> bool:
    """Whether an address is that of a Lance table."""
    return _NAME.fullmatch(address) is not None


def pin_lance(address: str) -> tuple[str, str]:
    """The folder of a table and the version that is meant: the one asked for, or the last that there is now.

    Raises:
        UnsupportedSource: it is in a store.
        SourceNotFound: there is no such table, or no such version.
    """
    match = _NAME.fullmatch(address)
    assert match is not None
    folder, asked = match.groups()
    if is_remote(folder):
        raise UnsupportedSource(
            f"Lance table is not on a local disk: {redact(folder)}",
            hint="copy it to one, or export it to Parquet; Lance's own connections would bypass the cache",
            url=redact(folder),
        )
    try:
        names = os.listdir(os.path.join(folder, "_versions"))
    except OSError as e:
        raise SourceNotFound(f"no Lance table is there: {folder}", hint="give its folder, *.lance", url=folder) from e
    found = [found[1] for name in names if (found := _MANIFEST.fullmatch(name))]
    versions = sorted(_LAST - int(text) if len(text) == 20 else int(text) for text in found)
    if not versions or (asked is not None and int(asked) not in versions):
        there = f"{versions[0]} to {versions[-1]}" if versions else "none"
        raise SourceNotFound(
            f"Lance table has no version {asked or 'at all'}: {folder}", hint=f"versions there are: {there}", url=folder
        )
    return folder, str(int(asked) if asked is not None else versions[-1])


def read_lance(folder: str, version: str, options: IndexOptions, scratch: Path) -> tuple[pa.Table, LanceTable, Held]:
    """Reads all columns but those of bytes, which become places, in a process of its own.

    Raises:
        OptionError: pylance is not installed.
        SourceError: the table cannot be read.
    """
    path = scratch / "lance.arrow"
    asked = msgspec.json.encode([folder, int(version), str(path), options.id_column])
    done = subprocess.run(
        [sys.executable, "-m", "sds.index.lance"], input=asked, capture_output=True, check=False, timeout=3600
    )
    if done.returncode == 3:
        raise OptionError(f"src is a Lance table, and pylance is not installed: {folder}", hint=_HINT)
    if done.returncode:
        reason = " ".join(done.stderr.decode(errors="replace").split())[-400:]
        raise SourceError(f"Lance table cannot be read: {folder}: {reason}", hint="is it whole?", url=folder)
    found = msgspec.json.decode(done.stdout.splitlines()[-1], type=LanceTable)
    with pa.memory_map(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    contents = {name for name, _ in found.held}
    refuse_places((field for field in table.schema if field.name not in contents), "lance", folder)
    for number, (name, _) in enumerate(found.held):
        fields = [pa.array(np.full(found.num_rows, number, np.int32)), pa.array(np.arange(found.num_rows))]
        missing = table[name].combine_chunks() if name in table.column_names else None
        column = pa.StructArray.from_arrays(fields, fields=list(LANCE), mask=missing)
        table = table.drop_columns([name]) if missing is not None else table
        table = table.append_column(name, column) if table.num_columns else pa.table({name: column})
    columns = tuple(f"blob:{name}" if is_blob else name for name, is_blob in found.held)
    wanted = () if options.columns_to_download == () else None
    held = Held("lance", (HeldPart(folder, version, 0),), wanted, columns)
    return table.select([name for name in found.columns if name in table.column_names]), found, held


class Taken:
    """Bytes of a Lance table. Opens it when first asked, in each process anew."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._lock = threading.Lock()
        self._table: Any = None

    def files(self, places: Mapping[str, Mapping[str, Any]]) -> list[File]:  # noqa: ARG002 (as others have it)
        """Nothing: the table is local."""
        return []

    def read(
        self,
        places: Mapping[str, Mapping[str, Any]],
        files: Sequence[File],  # noqa: ARG002 (as others have it)
        paths: Sequence[str],  # noqa: ARG002
    ) -> dict[str, Any]:
        """The bytes of values."""
        table = self._opened()
        found: dict[str, Any] = {}
        for name, place in places.items():
            column, row = self._held.columns[place["sds_column"]], place["sds_row"]
            try:
                if column.startswith("blob:"):
                    (blob,) = table.take_blobs(column.removeprefix("blob:"), indices=[row])
                    with blob:
                        found[name] = blob.readall()
                else:
                    value = table.take([row], columns=[column]).column(0)[0].as_py()
                    found[name] = value["bytes"] if isinstance(value, dict) else value
            except (OSError, ValueError, RuntimeError) as e:
                url = self._held.parts[0].url
                hint = "was the version removed (cleanup_old_versions)? Then open the dataset again"
                raise SourceError(f"row {row} of a Lance table cannot be read: {url}: {e}", hint=hint, url=url) from e
        return found

    def close(self) -> None:
        """Lets go of the table."""
        with self._lock:
            self._table = None

    def _opened(self) -> Any:
        with self._lock:
            if self._table is None:
                part = self._held.parts[0]
                try:
                    import lance
                except ImportError as e:
                    raise OptionError("pylance is not installed in this process", hint=_HINT) from e
                try:
                    self._table = lance.dataset(part.url, version=int(part.version))
                except (OSError, ValueError) as e:
                    hint = "was the version removed (cleanup_old_versions)? Then open the dataset again"
                    raise SourceError(f"Lance table cannot be opened: {part.url}: {e}", hint=hint, url=part.url) from e
            return self._table


def _is_blob(field: pa.Field) -> bool:
    return str(getattr(field.type, "extension_name", "")).startswith("lance.blob") or (
        (field.metadata or {}).get(b"lance-encoding:blob") == b"true"
    )


def _main() -> int:
    """The other process: writes metadata to an Arrow file, and tells what there is."""
    from sds.index.embedded import holds_files, is_binary

    folder, version, path, id_column = msgspec.json.decode(sys.stdin.buffer.read())
    try:
        import lance
    except ImportError:
        return 3
    table = lance.dataset(folder, version=version)
    held = {
        field.name: _is_blob(field)
        for field in table.schema
        if field.name != id_column and (_is_blob(field) or holds_files(field.type) or is_binary(field.type))
    }
    # the metadata as it is, and of bytes only which are missing
    columns = {name: f"`{name}`" for name in table.schema.names if name not in held}
    columns |= {name: f"`{name}` IS NULL" for name, is_blob in held.items() if not is_blob}
    scanner = table.scanner(columns=columns, scan_in_order=True) if columns else None
    schema = pa.schema([]) if scanner is None else scanner.projected_schema
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in scanner.to_batches() if scanner is not None else ():
            writer.write_batch(batch)
    found = LanceTable(tuple(table.schema.names), tuple(held.items()), table.count_rows())
    sys.stdout.write(f"\n{msgspec.json.encode(found).decode()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
