"""Functions as sources: called once per node, and what they give becomes the index.

Comes in: a callable, and options. Goes out: the index of its records, table, path, or rows object. Ranks of one launch
share the first one's answer. A function with a `fingerprint` is called again only when that changes; without one, by
every new run.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from sds.errors import CacheError, OptionError, SchemaError, SdsError, SourceError
from sds.index import addresses, lock
from sds.index.fingerprint import fingerprint
from sds.index.opening import open_index
from sds.index.options import IndexOptions
from sds.index.provider import ProviderIndex, describe_provider, fingerprint_of, is_rows_object
from sds.index.remote import OpenRemote
from sds.index.resolve import resolve
from sds.index.table import Index
from sds.index.unify import is_text
from sds.world import World

__all__ = ["open_provider"]

_KEEP_S = 30 * 24 * 3600
_HINT = "return a list of dicts, a pyarrow.Table or data frame, a path or URL, or an object with rows(ids)"


class _Answer(msgspec.Struct):
    """What a function gave: an address, or several; who launched us, and which ranks took it."""

    src: str | list[str]
    mark: str
    takers: list[int]


def open_provider(
    src: Any, options: IndexOptions, *, folder: Path, remote: OpenRemote, timeout_s: float = 1800.0
) -> Index:
    """The index of a data provider.

    Args:
        src: an object that gives rows, or a callable.
        options: which rows and columns to take.
        folder: where indexes live.
        remote: gives the reader of remote objects; called only if something is remote.
        timeout_s: how long to wait for another process that calls the same function.

    Raises:
        OptionError: what it gives cannot be a source.
        SourceError: it fails, or gives no rows.
    """
    if is_rows_object(src):
        return ProviderIndex(src, options)
    if options.lazy_index_chunk_size is not None:
        hint = "leave it out, or write the records to Parquet files and give those"
        raise OptionError("lazy_index_chunk_size is for files, and src is a function", hint=hint)
    folder = Path(addresses.absolute(str(folder)))
    said = fingerprint_of(src)
    identity = repr((describe_provider(src), said, options.columns_to_download))
    stem = f"provided-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}"
    mark, rank = ("", 0) if said is not None else (_launch(), World.detect().local_rank)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        hint = "choose another dst"
        raise CacheError(f"index folder cannot be written to: {folder}: {e}", hint=hint, url=str(folder)) from e
    with lock.held(folder / f"{stem}.lock", timeout_s=timeout_s):
        note = folder / f"{stem}.json"
        answer = _read(note)
        is_new = answer is None or answer.mark != mark or (said is None and rank in answer.takers) or _is_gone(answer)
        if is_new or answer is None:
            result = _called(src)
            if is_rows_object(result):  # it cannot be written down: each process has its own
                return ProviderIndex(result, options)
            answer = _Answer(_kept(result, options, folder, stem), mark, [])
        answer.takers.append(rank)
        _write(note, msgspec.json.encode(answer))
        return open_index(answer.src, options, folder=folder, remote=remote, timeout_s=timeout_s)


def _launch() -> str:
    """Names who started this process, if that started others beside it; a process that is alone is its own launch."""
    if World.detect().local_size == 1:
        return f"alone {os.getpid()} {time.time_ns()}"
    parent = os.getppid()
    try:
        began = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        began = ""
    return f"{parent} {began}"


def _called(src: Any) -> Any:
    try:
        return src()
    except SdsError:
        raise
    except Exception as error:
        hint = "the error above is its own; a function as src takes no arguments"
        raise SourceError(f"data provider failed: {describe_provider(src)}: {error!r}", hint=hint) from error


def _kept(result: Any, options: IndexOptions, folder: Path, stem: str) -> str | list[str]:
    """What was given as an address: records and tables are written to the folder."""
    if isinstance(result, str | os.PathLike):
        return addresses.absolute(os.fspath(result))
    table = _table(result)
    if table is None:
        return [addresses.absolute(os.fspath(each)) for each in result]
    if not table.num_rows:
        raise SourceError("data provider gave no rows", hint=_HINT)
    for name in options.columns_to_download or ():
        if name in table.column_names and is_text(table[name].type):  # relative to the working folder, as paths are
            column = resolve(table[name], os.getcwd(), name)
            table = table.set_column(table.column_names.index(name), name, column)
    path = folder / f"{stem}-{fingerprint(table, salt='')}.arrow"
    if not path.exists():
        _clear(folder, stem)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        _write(path, sink.getvalue())
    return str(path)


def _table(result: Any) -> pa.Table | None:
    """Records as a table; None: it is a list of addresses."""
    if isinstance(result, pa.Table):
        return result
    try:
        if hasattr(result, "__arrow_c_stream__"):
            return pa.table(result)
        if not isinstance(result, Iterable) or isinstance(result, bytes | Mapping):
            raise OptionError(f"data provider gave no source: {type(result).__name__}", hint=_HINT)
        records = list(result)
        if records and all(isinstance(each, str | os.PathLike) for each in records):
            return None
        for record in records:
            if not isinstance(record, Mapping):
                raise OptionError(f"data provider gave a record that is no dict: {type(record).__name__}", hint=_HINT)
        names = dict.fromkeys(name for record in records for name in record)
        return pa.table({name: pa.array([record.get(name) for record in records]) for name in names})
    except (pa.ArrowException, TypeError) as e:
        hint = "a column of an index has one type: text, numbers, bytes, lists or dicts of those"
        raise SchemaError(f"records of a data provider are no table: {e}", hint=hint) from e


def _read(note: Path) -> _Answer | None:
    try:
        return msgspec.json.decode(note.read_bytes(), type=_Answer)
    except (OSError, msgspec.MsgspecError):
        return None


def _is_gone(answer: _Answer) -> bool:
    if not isinstance(answer.src, str) or not Path(answer.src).name.startswith("provided-"):
        return False
    return not Path(answer.src).exists()


def _write(path: Path, content: bytes | pa.Buffer) -> None:
    part = path.with_name(f".{path.name}.part")  # the lock is held
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as e:
        hint = "make room there, or choose another dst"
        raise CacheError(f"index cannot be written: {path}: {e}", hint=hint, url=str(path)) from e


def _clear(folder: Path, stem: str) -> None:
    """Removes what the function gave long ago."""
    for path in folder.glob(f"{stem}-*.arrow"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _KEEP_S:
                path.unlink()
