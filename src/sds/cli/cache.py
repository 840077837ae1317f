"""`sds cache`: a cache folder from the command line: what is in it, is it whole, fill it, empty it.

Only files that a cache made are ever deleted, and none while somebody uses the folder.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated

import typer

from sds.cli.cache_folder import (
    existing,
    files_of,
    held,
    holder_of,
    is_part,
    is_readable,
    is_unfinished,
    made,
    object_folders,
    tables_of,
)
from sds.cli.file_columns import refuse_forgotten
from sds.cli.words import (
    HELP_NAMES,
    AsJson,
    Download,
    IdColumn,
    Query,
    Src,
    Storage,
    open_dataset,
    parse_limit,
    say,
    show,
)
from sds.units import counted, format_bytes

__all__ = ["app"]

app = typer.Typer(
    help="Cache folders: look at one, check one, fill one, empty one.",
    epilog="Example:  sds cache info /data/cache",
    no_args_is_help=True,
    context_settings=HELP_NAMES,
)

Folder = Annotated[str, typer.Argument(metavar="DST", help="The cache folder: a dataset's dst.")]

_MAX_SHOWN = 8


@app.command("info", epilog="Examples:  sds cache info /data/cache  |  sds cache info /data/cache --json")
def info(dst: Folder, as_json: AsJson = False) -> None:
    """Say what is in a cache folder, and who works in it."""
    folder = existing(dst)
    files = list(files_of(folder))
    whole = [found for found in files if found.key is not None]
    tables = list(tables_of(folder))
    holder = holder_of(folder)
    facts = {
        "path": str(folder),
        "files": len(whole),
        "bytes": sum(found.size for found in whole),
        "parts_of_files": sum(is_part(found.path) for found in whole),
        "unfinished": len(files) - len(whole),
        "unfinished_bytes": sum(found.size for found in files if found.key is None),
        "oldest": made(min((found.made_at for found in whole), default=None)),
        "newest": made(max((found.made_at for found in whole), default=None)),
        "index_tables": len(tables),
        "index_bytes": sum(path.stat().st_size for path in tables),
        "in_use_by": holder,
    }
    lines = [
        f"{folder}: {counted(len(whole), 'file')}, {format_bytes(facts['bytes'])}",  # type: ignore[arg-type]
        f"index tables: {facts['index_tables']}, {format_bytes(facts['index_bytes'])}",  # type: ignore[arg-type]
    ]
    if facts["parts_of_files"]:
        lines.append(f"of the files, {facts['parts_of_files']} are parts of large objects")
    if facts["unfinished"]:
        lines.append(f"unfinished or damaged: {facts['unfinished']}, {format_bytes(facts['unfinished_bytes'])}")  # type: ignore[arg-type]
    if whole:
        lines.append(f"made: {facts['oldest']} to {facts['newest']}")
    lines.append(f"in use by: {holder or 'nobody'}")
    show(facts, "\n".join(lines), as_json)


@app.command(
    "verify", epilog="Examples:  sds cache verify /data/cache  |  sds cache verify /data/cache --read --repair"
)
def verify(
    dst: Folder,
    read: Annotated[bool, typer.Option("--read", help="Read every byte, to see whether the disk gives it.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Delete what is damaged: it is fetched again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check that every file is as long as its name says; exit code 1 if one is not."""
    folder = existing(dst)
    damaged: list[str] = []
    num_files = num_bytes = 0
    is_busy = holder_of(folder) is not None
    for found in files_of(folder):
        if found.key is None:
            if not (is_busy and is_unfinished(found.path)):  # one that is being written is no damage
                damaged.append(found.path)
            continue
        num_files += 1
        num_bytes += found.size
        if read and not is_readable(found):
            damaged.append(found.path)
    removed = 0
    if repair and damaged:
        from sds.fetch.folder import unlink

        with held(folder):
            removed = sum(unlink(path) for path in damaged)
    facts = {"path": str(folder), "files": num_files, "bytes": num_bytes, "damaged": damaged, "removed": removed}
    text = f"{folder}: {counted(num_files, 'file')}, {format_bytes(num_bytes)}: {len(damaged)} damaged"
    show(facts, f"{text}, {removed} of them removed" if repair else text, as_json)
    for path in damaged[:_MAX_SHOWN]:
        say(f"damaged: {path}")
    if len(damaged) > removed:
        raise typer.Exit(1)


@app.command(
    "warm",
    epilog="Example:  sds cache warm /data/cache s3://bucket/photos.parquet --download image --limit 200gb",
)
def warm(
    dst: Folder,
    src: Src,
    download: Download = None,
    id_column: IdColumn = "index",
    query: Query = None,
    limit: Annotated[str, typer.Option("--limit", "--cache-limit", help="Bytes that it may hold.")] = "none",
    connections: Annotated[int, typer.Option(min=1, help="Downloads at once.")] = 64,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the files of a source into a cache folder, before training needs them."""
    from sds.observe import ProgressBar

    max_bytes = parse_limit(limit)
    dataset = open_dataset(
        src,
        dst=dst,
        download=download,
        id_column=id_column,
        query=query,
        storage=storage,
        cache_limit=max_bytes,
        num_downloading_workers=connections,
        max_failures=1.0,
    )
    with dataset:
        refuse_forgotten(dataset.delivery.pipeline.index)
        for _ in ProgressBar(dataset, f"warm {dst}", unit="rows"):  # one sample in hand: all else may be evicted again
            pass
        stats = dataset.stats()
        failures = list({failure.key: failure for failure in dataset.quarantine()}.values())
    facts = {
        "path": dst,
        "rows": len(dataset),
        "fetched": stats.misses,
        "already_there": stats.hits,
        "bytes_downloaded": stats.bytes_downloaded,
        "evicted": stats.evictions,
        "failures": len(failures),
    }
    text = (
        f"{dst}: {counted(len(dataset), 'row')}: {counted(stats.misses, 'file')} fetched "
        f"({format_bytes(stats.bytes_downloaded)}), {stats.hits:,} there already, {counted(len(failures), 'failure')}"
    )
    show(facts, text, as_json)
    if not (stats.misses or stats.hits or failures):
        say("nothing to cache: local files, and bytes in local tables, are used where they lie")
    if stats.evictions:
        say(f"the limit of {limit} is less than the files take: {stats.evictions} were evicted again; see --limit")
    for failure in failures[:_MAX_SHOWN]:
        say(f"failed: {failure.key} at stage {failure.stage}: {failure.reason}")
    if failures:
        raise typer.Exit(1)


@app.command("clear", epilog="Examples:  sds cache clear /data/cache  |  sds cache clear /data/cache --index")
def clear(
    dst: Folder,
    index: Annotated[
        bool, typer.Option("--index", help="Built indexes too: they are built again when needed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the files that the cache made, and no others; refuses while somebody uses the folder."""
    from sds.fetch.folder import unlink

    folder = existing(dst)
    num_files = num_bytes = num_left = 0
    with held(folder):
        for found in list(files_of(folder)):
            if unlink(found.path):
                num_files, num_bytes = num_files + 1, num_bytes + found.size
            else:
                num_left += 1
        for objects in object_folders(folder):
            for bucket in objects.iterdir():
                with suppress(OSError):  # something of somebody else's is in there
                    if re.fullmatch("[0-9a-f]{2}", bucket.name) and not bucket.is_symlink():
                        bucket.rmdir()
        if index:
            for path in list(tables_of(folder)):
                size = path.stat().st_size
                path.unlink()
                num_files, num_bytes = num_files + 1, num_bytes + size
    facts = {"path": str(folder), "files": num_files, "bytes": num_bytes, "left": num_left}
    show(facts, f"{folder}: {counted(num_files, 'file')} deleted, {format_bytes(num_bytes)}", as_json)
    if num_left:
        say(f"not deleted, since the disk does not allow it: {counted(num_left, 'file')}")
        raise typer.Exit(1)
