"""`sds index export`: the rows of a query in a database -> Parquet files, as a YAML file says."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from sds.cli.interrupts import told_when_interrupted
from sds.cli.words import AsJson, Storage, open_client, parse_storage, say, show
from sds.units import counted, format_bytes

__all__ = ["EXAMPLES", "command"]

EXAMPLES = "Examples:  sds index export export.yaml  |  sds index export export.yaml --recompute --json"
_SAY_EVERY_S = 5.0


def command(
    config: Annotated[str, typer.Argument(metavar="CONFIG.yaml", help="Says what to export, from where, to where.")],
    recompute: Annotated[bool, typer.Option("--recompute", help="Make everything anew.")] = False,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Export rows from DuckDB, SQLite, PostgreSQL or BigQuery; started again, it goes on where it stopped."""
    from dataclasses import replace

    from sds.index.export import export, work_folder
    from sds.index.export_config import read_config
    from sds.urls import redact

    asked = read_config(config)
    if recompute:
        asked = replace(asked, recompute=True)
    began = time.monotonic()
    # in the export's own folder: one that is killed leaves nothing that the next run does not use
    folder = str(work_folder(asked) / "fetch")
    with (
        told_when_interrupted("run it again to go on"),
        open_client({**asked.storage_options, **parse_storage(storage)}, folder) as (client, _),
    ):
        done = export(asked, client, on_rows=_Teller(began), on_kept=_tell_kept)
    files = [
        {"path": redact(file.address), "split": file.split, "rows": file.rows, "bytes": file.bytes}
        for file in done.files
    ]
    facts: dict[str, Any] = {
        "engine": asked.engine,
        "rows": done.num_rows(),
        "files": files,
        "files_kept": done.num_kept,
        "parts_kept": done.num_parts_kept,
        "left_over": [redact(url) for url in done.left_over],
        "seconds": round(time.monotonic() - began, 3),
    }
    if asked.val_ratio:
        facts |= {"train_rows": done.num_rows("train"), "val_rows": done.num_rows("val")}
    lines = [f"{file['path']}: {counted(file['rows'], 'row')}, {format_bytes(file['bytes'])}" for file in files]  # type: ignore[arg-type]
    if done.num_kept == len(files):
        lines.append("nothing to do: all of it was there (recompute: true makes it anew)")
    elif done.num_kept or done.num_parts_kept:
        kept = f"{counted(done.num_parts_kept, 'part')} of the rows, {counted(done.num_kept, 'file')}"
        lines.append(f"kept from an earlier run: {kept}")
    show(facts, "\n".join(lines), as_json)
    for url in facts["left_over"]:
        say(f"left over from an earlier export, to be deleted by you: {url}")


def _tell_kept(num_rows: int, num_files: int) -> None:
    say(f"going on: an earlier run left {counted(num_rows, 'row')} on this disk, and {counted(num_files, 'file')}")


class _Teller:
    """Says how far it is, now and then."""

    def __init__(self, began: float) -> None:
        self._began = self._told = began

    def __call__(self, num_rows: int) -> None:
        now = time.monotonic()
        if now - self._told >= _SAY_EVERY_S:
            self._told = now
            say(f"export: {num_rows:,} rows, {num_rows / (now - self._began):,.0f}/s")
