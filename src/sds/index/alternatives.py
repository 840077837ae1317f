"""Alternatives: 'jpg;jpeg;png' in `columns_to_download` -> one column for whichever of these extensions a sample has.

WebDataset's spelling. The column is named by the first extension; of a sample that has several, the first named counts.
Only what has extensions (folders, lists of files, tars) has alternatives: in a table, a name is a name.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sds.errors import OptionError

__all__ = ["IMAGES", "column_names", "first_there", "one_of", "spelling"]

IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif", "jp2", "ppm")


def one_of(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The extensions of each column, the column's own name first.

    Raises:
        OptionError: an extension is empty, or named twice.
    """
    columns: dict[str, tuple[str, ...]] = {}
    seen: set[str] = set()
    for name in names:
        extensions = tuple(part.strip() for part in name.split(";"))
        for extension in extensions:
            if not extension or extension.lower() in seen:
                what = f"names {extension!r} twice" if extension else f"has an empty extension: {name!r}"
                hint = "extensions that stand for each other are separated by ';', each named once: ['jpg;jpeg;png']"
                raise OptionError(f"columns_to_download {what}", hint=hint)
            seen.add(extension.lower())
        columns[extensions[0]] = extensions
    return columns


def column_names(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The names that the columns have."""
    return None if names is None else tuple(one_of(names))


def first_there(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """A table with a column for each extension -> the same, with those that stand for another put in its place."""
    for column, extensions in one_of(names).items():
        there = [extension.lower() for extension in extensions if extension.lower() in table.column_names]
        if len(extensions) > 1 and there:
            values = pc.coalesce(*(table[name] for name in there))
            table = table.drop_columns(there).append_column(column, values)
    return table


def spelling(extensions: Sequence[str]) -> str | None:
    """How to ask for one image of several endings, if there are such endings among these; None if there are not."""
    images = [extension for extension in IMAGES if extension in extensions]
    return ";".join(images) if len(images) > 1 else None
