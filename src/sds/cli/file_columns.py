"""Which columns of a table name files, when nobody said so: by what their first values are called.

Comes in: an index. Goes out: names of columns, and words about them for whoever forgot --download.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sds.cli.words import say
from sds.errors import OptionError

if TYPE_CHECKING:
    from sds.index import Index

__all__ = ["guess_files", "refuse_forgotten", "tell_forgotten"]

_LOOKED_AT = 20  # rows


def guess_files(index: Index) -> list[str]:
    """The columns of text in which most of the first values are names of images, videos or sounds."""
    from sds.view.kinds import kind_of_name

    rows = index.rows(range(min(_LOOKED_AT, len(index))))
    found = []
    for name in index.schema.names:
        values = [row.values[name] for row in rows if isinstance(row.values[name], str)]
        if values and 2 * sum(kind_of_name(each) in ("image", "video", "audio") for each in values) > len(values):
            found.append(name)
    return found


def refuse_forgotten(index: Index) -> None:
    """Refuses an index of which nothing is downloaded, though columns name files.

    Raises:
        OptionError: it is one; the hint says what to type.
    """
    forgotten = _forgotten(index)
    if forgotten:
        raise OptionError("no column of files is named: there is nothing to fetch", hint=_said(forgotten))


def tell_forgotten(index: Index) -> None:
    """Says it of such an index, and goes on with metadata alone."""
    forgotten = _forgotten(index)
    if forgotten:
        say(f"only metadata is read, no files: {_said(forgotten)}")


def _forgotten(index: Index) -> list[str]:
    return [] if index.columns_to_download or index.facts.kind == "tensors" else guess_files(index)


def _said(columns: list[str]) -> str:
    names = ", ".join(map(repr, columns))
    hold = "columns {} hold" if len(columns) > 1 else "column {} holds"
    return f"{hold.format(names)} files: {' '.join(f'--download {name}' for name in columns)}"
