"""`sds peek`: some rows of a source as a table, and their pictures in a terminal that can show them.

Comes in: a source of any kind. Goes out: rows as they stand in its index, or as an epoch would deliver them. Values
are data: whatever a terminal would take for a command is shown as an escape.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sds.cli.words import AsJson, Download, Dst, IdColumn, Query, Src, Storage, check_name, open_source, say, to_json
from sds.errors import OptionError, SdsError

if TYPE_CHECKING:
    from sds.fetch import FetchClient
    from sds.index import Index
    from sds.types import Row

__all__ = ["EXAMPLES", "command"]

EXAMPLES = (
    "Examples:  sds peek photos  |  sds peek photos.parquet --id id --download image --images blocks  |  "
    "sds peek s3://bucket/photos.parquet --at 1000 -n 5  |  "
    "sds peek photos.csv --sql 'SELECT * FROM dataframe WHERE width > 100' --shuffle 42  |  "
    "sds peek 'parts/*.parquet' --lazy 100000 --reach 4 --shuffle 42"
)
_IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif")
_MAX_PIXELS = 100_000_000
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*")


def command(
    src: Src,
    num: Annotated[int, typer.Option("--num", "-n", min=1, max=10_000, help="How many rows.")] = 10,
    at: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    query: Query = None,
    shuffle: Annotated[int | None, typer.Option(min=0, metavar="SEED", help="In the order of a first epoch.")] = None,
    lazy: Annotated[
        int | None, typer.Option(min=1, metavar="ROWS", help="Read the index in chunks, and shuffle it so.")
    ] = None,
    reach: Annotated[
        int | None, typer.Option(min=1, help="Of --lazy: chunks that are shuffled together. Default: 8.")
    ] = None,
    columns: Annotated[list[str] | None, typer.Option("--column", help="A column to show; may be repeated.")] = None,
    width: Annotated[int, typer.Option(min=0, help="Letters of a cell; 0: all.")] = 40,
    images: Annotated[
        str, typer.Option(help="Pictures: auto, off, or a way to show them: kitty, iterm, sixel, blocks.")
    ] = "auto",
    id_column: IdColumn = "index",
    download: Download = None,
    dst: Dst = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Show some rows of a source."""
    from sds.cli.thumbnails import WAYS, choose
    from sds.plan import Plan
    from sds.plan.blocks import DEFAULT_REACH
    from sds.view.contents import held_kind, told

    check_name("--images", images, ["auto", "off", *WAYS])
    if reach is not None and lazy is None:
        raise OptionError(f"--reach without --lazy: {reach}", hint="--lazy ROWS says how large the chunks are")
    if reach is not None and shuffle is None:
        raise OptionError(f"--reach without --shuffle: {reach}", hint="--shuffle SEED shows the order of an epoch")
    way = None if as_json else choose(images, os.environ, is_terminal=sys.stdout.isatty())
    with open_source(
        src, dst=dst, download=download, id_column=id_column, query=query, storage=storage, few_rows=True, lazy=lazy
    ) as (index, client):
        total, kind = len(index), held_kind(index)
        if at >= total:
            raise OptionError(f"--at is past the end: {at}", hint=f"there are {total} rows: 0 to {total - 1}")
        # a glance at a large file has chunks too, but those are not the dataset's
        sizes = None if lazy is None else index.chunk_sizes
        plan = Plan(total, shuffle, chunk_sizes=sizes, reach=reach or DEFAULT_REACH)
        ids = plan.rows(0, at, min(at + num, total))
        rows = index.rows(ids)
        names = [field.name for field in index.schema]
        shown = [check_name("--column", name, names) for name in columns] if columns else names
        if as_json:
            records = [{name: told(row.values.get(name), kind) for name in shown} for row in rows]
            print(to_json(records))
            return
        cells = [[_cell(row.values.get(name), width, kind) for name in shown] for row in rows]
        limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(_table(["row", *shown], [[str(row.id), *line] for row, line in zip(rows, cells, strict=True)], limit))
        end = at + len(rows)
        order = "" if shuffle is None else f" of an epoch with seed {shuffle}"
        print(f"{at} to {end - 1} of {total} rows{order}")
        if way is not None:
            _show_images(index, client, rows, way, is_asked=images != "auto")


def _cell(value: Any, width: int, kind: str | None = None) -> str:
    """A value as one line of letters that do nothing but stand there."""
    if value is None:
        return "-"
    from sds.view.contents import told

    text = str(told(value, kind))
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return text if not width or len(text) <= width else f"{text[: max(1, width - 1)]}…"


def _table(heads: list[str], lines: list[list[str]], limit: int | None) -> str:
    """Columns side by side; with a limit, lines end there."""
    heads = [_cell(head, 0) for head in heads]
    widths = [max(len(line[i]) for line in [heads, *lines]) for i in range(len(heads))]
    drawn = []
    for line in [heads, ["-" * width for width in widths], *lines]:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        drawn.append(text if limit is None or len(text) <= limit else f"{text[: limit - 1]}…")
    return "\n".join(drawn)


def _show_images(index: Index, client: FetchClient, rows: list[Row], way: str, *, is_asked: bool) -> None:
    from PIL import Image

    from sds.cli.thumbnails import draw
    from sds.transforms.pillow import decode
    from sds.view.contents import content

    name = _image_column(index, client, rows)
    if name is None:
        if is_asked:
            say("no column holds pictures: name one with --download")
        return
    for row in rows:
        if row.values.get(name) is None:
            continue
        try:
            pixels = decode(content(index, client, row, name), _MAX_PIXELS, (255, 255, 255))
        except SdsError as error:
            say(f"{_cell(row.key, 80)}: {error.message}")
            continue
        except Exception as error:  # noqa: BLE001 (decoders raise what they like; the other pictures are shown)
            say(f"{_cell(row.key, 80)}: {type(error).__name__}: {error}")
            continue
        print(_cell(row.key, 80))
        print(draw(Image.fromarray(pixels), way), flush=True)


def _image_column(index: Index, client: FetchClient, rows: list[Row]) -> str | None:
    """The first column of pictures: files by their extension; what is inside the source by its first bytes."""
    from sds.index.formats import extension_of
    from sds.index.held import is_place
    from sds.view.contents import content, held_kind

    kind = held_kind(index)
    for field in index.schema:
        row = next((each for each in rows if each.values.get(field.name) is not None), None)
        if row is None:
            continue
        value = row.values[field.name]
        if isinstance(value, str):
            if field.name in index.columns_to_download and extension_of(value) in _IMAGES:
                return str(field.name)
        elif isinstance(value, bytes) or (kind is not None and is_place(value, kind)):
            try:
                head = content(index, client, row, field.name)[:12]
            except SdsError:
                continue
            if head.startswith(_MAGIC) or head[8:] == b"WEBP":
                return str(field.name)
    return None
