"""The line index: where the rows of a CSV or of JSON lines are, and their types, found by one pass over the file.

Comes in: a file. Goes out: a Footer, as Parquet has one. Types are those that reading the file whole would give. It is
kept on disk under address, version and columns of text, so that the pass is made once, whatever is asked of the rows.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sds.errors import CacheError, OptionError, SchemaError, SdsError
from sds.index.ahead import in_order
from sds.index.lazy_files import Footer, Lines, check_version, damaged
from sds.index.lazy_text import BOM, DELIMITERS, check_of, hint_of, parse_csv
from sds.index.parts import IndexFile
from sds.index.readers import check_names, is_temporal_free, plain_type
from sds.index.records import read_json
from sds.index.remote import OpenRemote
from sds.index.text_blocks import Block, cut_csv, cut_lines, read_blocks
from sds.index.unify import is_text, meet
from sds.urls import is_remote, redact

__all__ = ["find_lines"]

_FORMAT = 1
_ENDING = "lines"
_KEEP_UNUSED_S = 7 * 24 * 3600
# what Arrow tries for a column of a CSV, one after the other, until all values fit; dates are text to us
_LADDER = [pa.null(), pa.int64(), pa.bool_(), pa.float64(), pa.string(), pa.binary()]


class _Stored(msgspec.Struct, frozen=True):
    """A line index on disk."""

    format: int
    footer: Footer


def find_lines(
    part: IndexFile, text: Sequence[str], open_remote: OpenRemote, *, folder: Path, num_threads: int
) -> Footer:
    """The line index of a file: the one that was kept, or a new one.

    Args:
        part: the file.
        text: columns that are read as text where the format leaves types open.
        open_remote: gives the reader of remote objects.
        folder: where it is kept.
        num_threads: that parse.

    Raises:
        OptionError: it is a JSON list, which has no lines.
        SourceError: it is damaged, or changed while it was read.
        FetchError: it cannot be read.
        CacheError: the folder cannot be written to.
    """
    identity = msgspec.json.encode([_FORMAT, part.token, part.format.family, sorted(text)])
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", part.url.partition("?")[0].rpartition("/")[2])[:40].strip(".-")
    path = folder / f"{stem}-{hashlib.blake2b(identity, digest_size=12).hexdigest()}.{_ENDING}"
    try:
        stored = msgspec.msgpack.decode(path.read_bytes(), type=_Stored)
        os.utime(path)  # its time says when it was last in use
        return stored.footer
    except (OSError, msgspec.MsgspecError):
        pass  # not there, or cut short by a crash of the machine
    footer = _scan(part, text, open_remote, num_threads)
    _keep(path, footer)
    return footer


def _keep(path: Path, footer: Footer) -> None:
    made = path.with_suffix(f".{secrets.token_hex(4)}.part")
    try:
        made.write_bytes(msgspec.msgpack.encode(_Stored(_FORMAT, footer)))
        made.replace(path)
    except OSError as e:
        hint = "make room there, or choose another dst"
        raise CacheError(f"line index cannot be written: {path}: {e}", hint=hint, url=str(path)) from e
    finally:
        made.unlink(missing_ok=True)
    before = time.time() - _KEEP_UNUSED_S
    for old in path.parent.glob(f"*.{_ENDING}"):
        with suppress(OSError):
            if old.stat().st_mtime < before:
                old.unlink()


@dataclass(frozen=True)
class _Seen:
    """What is known of a block."""

    check: bytes
    num_rows: int
    schema: pa.Schema
    gaps: tuple[bool, ...]  # of each column of text


class _Looker:
    """Looks at blocks of a file; from several threads."""

    def __init__(self, part: IndexFile, text: Sequence[str]) -> None:
        self.url, self.family = part.url, part.format.family
        self.names: Sequence[str] | None = None
        self._text = text

    def look(self, block: Block) -> _Seen:
        """What is in a block."""
        try:
            table = self._parse(block)
        except (pa.ArrowException, OSError, ValueError) as e:
            if isinstance(e, SdsError):
                raise
            reason = f"{' '.join(str(e).split())} (in the rows from byte {block.offset} on)"
            raise damaged(self.url, reason, hint_of(self.family)) from e
        if table is None:
            return _Seen(check_of(block.text), 0, pa.schema([]), (False,) * len(self._text))
        schema = pa.schema([pa.field(field.name, _plain(field.type)) for field in table.schema])
        return _Seen(check_of(block.text), table.num_rows, schema, tuple(_has_gap(table, name) for name in self._text))

    def fits(self, block: Block, name: str, type_: pa.DataType) -> bool:
        """Whether all values that a column of a CSV has in a block are of a type."""
        try:
            self._parse(block, {name: type_})
            return True
        except pa.ArrowInvalid:
            return False

    def _parse(self, block: Block, types: Mapping[str, pa.DataType] | None = None) -> pa.Table | None:
        if self.family == "json":
            table = read_json(pa.py_buffer(block.text), text=self._text)
            return table if table.num_columns else None
        types = {**dict.fromkeys(self._text, pa.string()), **(types or {})}
        names = None if block.offset == 0 else self.names
        return parse_csv(block.text, self.family, names=names, types=types)


def _plain(type_: pa.DataType) -> pa.DataType:
    """A type as the reader of whole files would have it: dates in text stay text."""
    return plain_type(type_) if is_temporal_free(type_) else pa.string()


def _has_gap(table: pa.Table, name: str) -> bool:
    """Whether a value is null or empty."""
    if name not in table.column_names or table[name].null_count:
        return True
    return is_text(table[name].type) and bool(pc.any(pc.equal(table[name], "")).as_py())


def _scan(part: IndexFile, text: Sequence[str], open_remote: OpenRemote, num_threads: int) -> Footer:
    url, family = part.url, part.format.family
    size = open_remote().head(url).size if is_remote(url) else os.stat(url).st_size
    cut = cut_lines if family == "json" else partial(cut_csv, delimiter=DELIMITERS[family].encode())
    read = partial(read_blocks, url, size, cut, open_remote)
    blocks = read()
    looker = _Looker(part, text)
    ends, all_seen = [0], []
    types: dict[str, pa.DataType] = {}
    for block, seen in chain(_first(blocks, looker), in_order(blocks, looker.look, num_threads)):
        ends.append(block.offset + len(block.text))
        all_seen.append(seen)
        for field in seen.schema:
            known = types.get(field.name, pa.null())
            types[field.name] = _both(known, field.type, family, field.name, url)
    for name in _doubtful(types, all_seen):
        if not all(looker.fits(block, name, pa.bool_()) for block in read()):
            types[name] = pa.string()
    check_names(list(types), redact(url))
    check_version(url, part.version)
    checks = b"".join(seen.check for seen in all_seen)
    return Footer(
        url=url,
        version=part.version,
        size=size,
        length=0,
        digest=hashlib.blake2b(checks, digest_size=12).hexdigest(),
        group_rows=[seen.num_rows for seen in all_seen],
        lines=Lines(
            family=family,
            offsets=np.array(ends, np.int64).tobytes(),
            checks=checks,
            schema_bytes=pa.schema(list(types.items())).serialize().to_pybytes(),
            gaps={name: bytes(seen.gaps[place] for seen in all_seen) for place, name in enumerate(text)},
        ),
    )


def _first(blocks: Iterator[Block], looker: _Looker) -> Iterator[tuple[Block, _Seen]]:
    """The first block, which names the columns of a CSV for all others."""
    for block in blocks:
        if looker.family == "json" and block.text.removeprefix(BOM).lstrip()[:1] == b"[":
            raise OptionError(
                f"lazy_index_chunk_size needs one JSON record a line, and this is a list: {redact(looker.url)}",
                hint="convert it once with `sds index build SRC -o index.parquet`, or leave lazy_index_chunk_size out",
            )
        seen = looker.look(block)
        check_names(seen.schema.names, redact(looker.url))
        looker.names = seen.schema.names
        yield block, seen
        return


def _both(a: pa.DataType, b: pa.DataType, family: str, name: str, url: str) -> pa.DataType:
    """The type of a column that has these two in two blocks, as reading the file whole would find it."""
    if a == b or pa.types.is_null(a) or pa.types.is_null(b):
        return a if pa.types.is_null(b) else b
    if family != "json":
        low, high = sorted((a, b), key=_LADDER.index)
        return pa.string() if (low, high) == (pa.bool_(), pa.float64()) else high
    both = meet(a, b)
    if both is None and not (pa.types.is_nested(a) or pa.types.is_nested(b)):
        return pa.string()  # truth and numbers: text, as in records.py
    if both is None:
        raise SchemaError(
            f"column has values of different kinds: {name!r}: {a} and {b} in {redact(url)}",
            hint="give all rows the same kind of value",
            url=redact(url),
        )
    return both


def _doubtful(types: dict[str, pa.DataType], seen: Sequence[_Seen]) -> list[str]:
    """The columns of a CSV that are true and false in one block and numbers in another: 0 and 1, or text?"""
    columns = [name for name, type_ in types.items() if pa.types.is_boolean(type_)]
    return [
        name
        for name in columns
        if any(name in each.schema.names and pa.types.is_integer(each.schema.field(name).type) for each in seen)
    ]
