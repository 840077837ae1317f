"""Sample files -> a table with one row a sample: names without extension are ids, extensions are columns.

'sub/photo.v1.jpg' and 'sub/photo.v1.txt' are one sample 'sub/photo.v1' with columns 'jpg' and 'txt'. A wanted extension
may itself have dots ('latent.npz'); the longest that fits wins. Extensions are compared without case. The query of an
http URL is part of the address and of nothing else: neither of the id nor of the extension. Images whose extensions
differ and that are one a sample are one column, and so are extensions that stand for each other ('jpg;jpeg;png').
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa

from sds.errors import OptionError, SchemaError, SourceError
from sds.index import addresses
from sds.index.alternatives import IMAGES, one_of, spelling
from sds.index.parts import SampleFiles
from sds.urls import redact

__all__ = ["extensions", "group_samples", "split_path"]

_WORDS = {"md", "txt", "rst", "db", "ini"}
# what lies in a folder of samples and is none
_BESIDE = re.compile(r"(?:.*/)?(?:(?:readme|license)\.(?:md|txt|rst)|thumbs\.db|desktop\.ini)", re.IGNORECASE)


def split_path(path: str, wanted: Sequence[str] | None) -> tuple[str, str] | None:
    """Splits a path into sample id and column; None if it has no extension, or none that is wanted.

    Args:
        path: a relative path; only its last part is split.
        wanted: extensions, longest first; None for whatever follows the last dot.
    """
    start = path.rfind("/") + 1
    if wanted is None:
        dot = path.rfind(".", start + 1)
        return None if dot < 0 or dot == len(path) - 1 else (path[:dot], path[dot + 1 :].lower())
    lower = path.lower()
    for extension in wanted:
        dot = len(path) - len(extension) - 1
        if dot > start and path[dot] == "." and lower.endswith(extension.lower()):
            return path[:dot], extension
    return None


def extensions(samples: SampleFiles) -> list[str]:
    """The extensions there are, the most frequent first."""
    names = (addresses.without_query(file.path) for file in samples.files)
    found = Counter(split[1] for name in names if (split := split_path(name, None)))
    return [extension for extension, _ in found.most_common()]


def group_samples(
    samples: SampleFiles, columns: Sequence[str] | None, id_column: str, *, allow_missing: bool = False
) -> pa.Table:
    """Makes the table: the id column, then a column of paths for each extension, null where a sample has no such file.

    Samples of a directory are in byte order of their ids, samples of a list in the order of the list.

    Args:
        samples: the files.
        columns: the extensions that are wanted; None: all.
        id_column: the name of the column of ids.
        allow_missing: whether samples may lack files: then, images of several endings stay in columns of their own.

    Raises:
        SchemaError: no file has an extension that is wanted, or an extension is named like the id column.
        SourceError: two files would be the same column of the same sample.
    """
    # metadata only: the ids of all samples, whatever their files
    chosen = one_of(columns or ())
    wanted = sorted((each for names in chosen.values() for each in names), key=len, reverse=True) if columns else None
    rows: dict[str, dict[str, str]] = {}
    found: dict[str, None] = {}
    for file in samples.files:
        path, named = _from_line(samples, file.path) if samples.from_list else (file.path, file.path)
        split = split_path(named, wanted)
        if split is None:
            if wanted is None and samples.from_list:
                raise SourceError(
                    f"line of {samples.origin} has no extension: {redact(file.path)!r}",
                    hint="a line is an index file or a sample file, and its extension says which",
                    url=samples.origin,
                )
            continue
        key, column = split
        other = rows.setdefault(key, {}).setdefault(column, path)
        if other != path and columns != ():
            raise SourceError(
                f"two files are the {column!r} of sample {key!r}: {redact(other)!r} and {redact(path)!r}",
                hint="rename one of them; extensions are compared without case",
                url=samples.origin,
            )
        found[column] = None
    if columns is None and samples.origin == samples.folder and not _WORDS.isdisjoint(found):
        rows = _without_words(rows)
        found = {column: None for row in rows.values() for column in row}
    if not rows:
        raise _nothing_wanted(samples, columns)
    if columns is None:
        chosen = {name: (name,) for name in sorted(found)} if allow_missing else _images_as_one(rows, found)
    names = list(chosen)
    if id_column in names:
        raise SchemaError(
            f"extension is named like the id column: {id_column!r}",
            hint="give index_col_name another name, or choose extensions with columns_to_download",
            url=samples.origin,
        )
    keys = list(rows) if samples.from_list else sorted(rows)
    arrays = [pa.array(keys, pa.string())]
    # an extension that no file has is no column: whether that may be is decided where all sources are known
    names = [name for name in names if not found.keys().isdisjoint(chosen[name])]
    arrays += [_column(rows, keys, chosen[name]) for name in names]
    return pa.table(arrays, names=[id_column, *names])


def _column(rows: dict[str, dict[str, str]], keys: Sequence[str], extensions: tuple[str, ...]) -> pa.Array:
    if len(extensions) == 1:
        return pa.array([rows[key].get(extensions[0]) for key in keys], pa.string())
    return pa.array([next((rows[key][e] for e in extensions if e in rows[key]), None) for key in keys], pa.string())


def _without_words(rows: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """The samples without those that are one file with words about the folder, unless there is nothing else."""
    words = {key for key, row in rows.items() if len(row) == 1 and _BESIDE.fullmatch(next(iter(row.values())))}
    return {key: row for key, row in rows.items() if key not in words} or rows if words else rows


def _images_as_one(rows: dict[str, dict[str, str]], found: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The extensions of each column: images are one column if every sample has exactly one."""
    chosen: dict[str, tuple[str, ...]] = {name: (name,) for name in sorted(found)}
    images = tuple(name for name in IMAGES if name in chosen)
    if len(images) > 1 and all(sum(name in row for name in images) == 1 for row in rows.values()):
        for name in images[1:]:
            del chosen[name]
        chosen[images[0]] = images
    return chosen


def _from_line(samples: SampleFiles, line: str) -> tuple[str, str]:
    """A line of a list as an address (relative to the list, or absolute), and as the name its id is made of."""
    if addresses.is_absolute(line):
        try:
            address = addresses.absolute(line)
        except OptionError:
            address = line  # as in a table: what cannot be fetched is this sample's failure, not that of all
        below, named = f"{samples.folder.rstrip('/')}/", addresses.without_query(address)
        return address, named[len(below) :] if named.startswith(below) else named
    path = posixpath.normpath(line)
    return path, path


def _nothing_wanted(samples: SampleFiles, columns: Sequence[str] | None) -> SchemaError:
    there = extensions(samples)
    if not there:
        return SchemaError(
            f"no file has an extension: {samples.origin}",
            hint="samples are grouped by name without extension: give the files one",
            url=samples.origin,
        )
    shown = ", ".join(there[:20])
    hint = f"columns_to_download names extensions here; there are: {shown}"
    if any(name[:1] == "." and name[1:].lower() in there for name in columns or ()):
        hint += "; write them without the dot"
    if (images := spelling(there)) is not None:
        hint += f"; for images of several endings, {[images]!r}"
    if tables := [extension for extension in there if extension in ("parquet", "csv", "tsv", "jsonl")]:
        hint += f"; to read index files of a folder, give a wildcard such as {samples.folder}/*.{tables[0]}"
    return SchemaError(
        f"no file has a wanted extension ({', '.join(columns or ())}): {samples.origin}",
        hint=hint,
        url=samples.origin,
    )
