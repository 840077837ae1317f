"""Export: the rows of a query -> Parquet files, with the validation rows apart. Killed at any moment, it goes on.

Rows come from the database once, into a folder of parts on the local disk; then they are divided, written and
published file by file. What is finished is written down, and not made again: a query whose job is still known is not
read again, another is, and a part whose rows come out the same stays as it is. Memory holds a part, or a row group.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Protocol

import msgspec
import platformdirs
import pyarrow as pa
from pyarrow import parquet

from sds.errors import CacheError, ObjectNotFound, OptionError, SdsError, SourceError
from sds.index import lock
from sds.index.export_config import ExportConfig
from sds.index.export_engines import open_engine
from sds.index.export_parts import ExportedFile, Part, State, file_digest, in_files, in_parts, rows_digest
from sds.index.fingerprint import fingerprint
from sds.index.parquet import RowGroups, publish
from sds.index.remote import ObjectFacts
from sds.index.split import HashFile, hash_ids, num_wanted
from sds.index.unify import NamedTable, common_schema, concatenate
from sds.urls import is_remote, redact

__all__ = ["Exported", "ExportedFile", "export", "work_folder"]

_STATE = "state.json"
_IDS = ("index", "id")


class Target(Protocol):
    """Where files go: a client of the fetch room."""

    def put(self, url: str, data: bytes) -> None:
        """Writes an object."""
        ...

    def head(self, url: str) -> ObjectFacts:
        """Tells about an object."""
        ...


@dataclass(frozen=True)
class Exported:
    """What an export came to.

    Attributes:
        files: all of them.
        num_kept: of those, what an earlier run had made.
        num_parts_kept: parts of the query's result that an earlier run had read.
        left_over: what lies among the files and is none of them: objects of an earlier export, which cannot be deleted
            from here, and what others put there.
    """

    files: tuple[ExportedFile, ...]
    num_kept: int
    num_parts_kept: int
    left_over: tuple[str, ...]

    def num_rows(self, split: str | None = None) -> int:
        """Rows of all files, or of one side."""
        return sum(file.rows for file in self.files if split in (None, file.split))


def export(
    config: ExportConfig,
    target: Target,
    *,
    on_rows: Callable[[int], None] = lambda _: None,
    on_kept: Callable[[int, int], None] = lambda _rows, _files: None,
) -> Exported:
    """Runs an export, or goes on with one.

    Args:
        config: what to do.
        target: writes objects and tells of them; local destinations do not need it.
        on_rows: called with the number of rows that were read so far.
        on_kept: called when it goes on with an earlier run, with the numbers of rows and files that this one left.

    Raises:
        OptionError: something is at the destination that this export did not make, or there is no column of ids.
        QueryError: the query does not run.
        SourceError: the database cannot be reached, or the query gives no rows.
        CacheError: the disk cannot be written to, or the same export runs elsewhere.
    """
    folder = work_folder(config)
    with lock.held(folder.with_suffix(".lock"), timeout_s=2.0):
        run = _Run(config, target, folder)
        if not config.recompute and run.is_complete():
            return Exported(tuple(run.state.files), len(run.state.files), 0, ())
        if not config.recompute:
            run.check_destination()
        run.begin(anew=config.recompute)
        if run.state.parts or run.state.files:
            on_kept(sum(part.rows for part in run.state.parts), len(run.state.files))
        parts_kept = run.read(on_rows)
        return run.write(parts_kept)


def work_folder(config: ExportConfig) -> Path:
    """Where an export keeps what is not finished, and a list of what is: one folder for each destination."""
    base = config.local_tmp_dir
    if base is None:
        cache = os.environ.get("SDS_CACHE_DIR") or platformdirs.user_cache_dir("sds", appauthor=False)
        base = os.path.join(cache, "exports")
    folder = Path(os.path.abspath(os.path.expanduser(base))) / f"export-{config.destination_digest}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "local_tmp_dir: a folder that can be written"
        raise CacheError(f"temporary folder cannot be made: {folder}: {error.strerror}", hint=hint) from error
    return folder


class _Run:
    def __init__(self, config: ExportConfig, target: Target, folder: Path) -> None:
        self._config = config
        self._target = target
        self._folder = folder
        self.state = State()
        with suppress(OSError, msgspec.MsgspecError):  # none yet, or cut short by a crash: begin anew
            self.state = msgspec.json.decode((folder / _STATE).read_bytes(), type=State)

    @property
    def _is_mine(self) -> bool:
        """Whether what is there is of what is asked for now: another query may have been exported to the same place."""
        return self.state.asked == self._config.digest

    def begin(self, *, anew: bool) -> None:
        """Goes on, or lets go of what there was, if it is of another query or to be made anew."""
        self.state.is_done = False
        if anew or not self._is_mine:
            older = {file.address: file for file in (*self.state.older, *self.state.files)}
            shutil.rmtree(self._folder / "parts", ignore_errors=True)
            self.state = State(asked=self._config.digest, older=list(older.values()))
        self._save()

    def _save(self) -> None:
        draft = self._folder / f"{_STATE}.tmp"
        with _on_disk(self._folder):
            draft.write_bytes(msgspec.json.encode(self.state))
            draft.replace(self._folder / _STATE)

    def is_complete(self) -> bool:
        """Whether an earlier run finished, and all that it made is still there."""
        return self._is_mine and self.state.is_done and all(self._is_there(file) for file in self.state.files)

    def _is_there(self, file: ExportedFile) -> bool:
        return self._size(file.address) == file.bytes

    def _size(self, address: str) -> int | None:
        try:
            return self._target.head(address).size if is_remote(address) else os.stat(address).st_size
        except (ObjectNotFound, FileNotFoundError):
            return None

    def check_destination(self) -> None:
        """Refuses to write over, or among, what is not of this export."""
        known = {file.address for file in (*self.state.files, *self.state.older)} if self._is_mine else set()
        for address in self._present():
            if address not in known:
                raise _taken(address)

    def _present(self) -> list[str]:
        """What is there under the names that files have; in a store as far as numbers follow each other."""
        config = self._config
        if config.file_rows is None:
            found = [config.address(split, 0) for split in config.splits]
            return [address for address in found if self._size(address) is not None]
        if not is_remote(config.destination):
            folder = os.path.dirname(config.address(None, 0))
            names = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
            return sorted(filter(config.is_address, (os.path.join(folder, name) for name in names)))
        there: list[str] = []
        for split in (None, "train", "val"):  # a listing of the folder may be of millions
            numbered = (config.address(split, number) for number in count())
            there += takewhile(lambda address: self._size(address) is not None, numbered)
        return there

    # ---- from the database to the disk -------------------------------------------------------------------------------

    def read(self, on_rows: Callable[[int], None]) -> int:
        """Brings the query's rows to the local disk; how many parts were there before."""
        state = self.state
        if state.has_all_rows and all(self._part(i).exists() for i in range(len(state.parts))):
            on_rows(sum(part.rows for part in state.parts))
            return len(state.parts)
        kept, number = 0, 0
        with open_engine(self._config, scratch=self._folder, job=state.job) as engine, _on_disk(self._folder):
            (self._folder / "parts").mkdir(exist_ok=True)
            if engine.job is None or engine.job != state.job:
                known, skipped = list(state.parts), 0
            else:  # the same result, in the same order: what was read is not read again
                whole = [part for i, part in enumerate(state.parts) if self._part(i).exists()]
                known, skipped = [], len(whole) if len(whole) == len(state.parts) else 0
            number = kept = skipped
            state.parts = state.parts[:skipped]
            state.job, state.has_all_rows = engine.job, False
            self._save()
            num_rows = sum(part.rows for part in state.parts)
            for table in in_parts(engine.tables(num_rows)):
                part = Part(table.num_rows, fingerprint(table, salt="part"))
                if number < len(known) and known[number] == part and self._part(number).exists():
                    kept += 1
                else:
                    self._write_part(number, table)
                state.parts.append(part)
                self._save()
                number += 1
                num_rows += table.num_rows
                on_rows(num_rows)
        if not state.parts:
            raise SourceError("sql_query gives no rows", hint="loosen its conditions")
        state.has_all_rows = True
        self._save()
        return kept

    def _part(self, number: int) -> Path:
        return self._folder / "parts" / f"{number:06d}.parquet"

    def _write_part(self, number: int, table: pa.Table) -> None:
        draft = self._part(number).with_suffix(".tmp")
        parquet.write_table(table, str(draft), compression="zstd")
        draft.replace(self._part(number))

    # ---- from the disk to the destination ----------------------------------------------------------------------------

    def write(self, parts_kept: int) -> Exported:
        """Divides, writes and publishes; then the rows on the local disk are deleted."""
        config, state = self._config, self.state
        tables = [NamedTable(f"rows {i}", parquet.read_schema(str(self._part(i))).empty_table()) for i in self._numbers]
        schema = common_schema(tables)
        before = {file.address: file for file in state.files}
        made_of = rows_digest(state.parts)
        files: list[ExportedFile] = []
        num_kept = 0
        with HashFile(self._folder / "hashes") as hashes:
            bound = 0
            if config.val_ratio:
                bound = self._bound(hashes, schema)
            for split in config.splits:
                for file, was_there in self._files(split, schema, hashes, bound, before, made_of):
                    num_kept += was_there
                    files.append(file)
                    state.files = [*files, *(old for old in before.values() if old.address not in map(_address, files))]
                    self._save()
        left_over = self._clear({file.address for file in files})
        state.older = [file for file in (*state.older, *state.files) if file.address in left_over]
        state.files, state.is_done = files, True
        state.parts, state.has_all_rows = [], False
        self._save()
        shutil.rmtree(self._folder / "parts", ignore_errors=True)
        for name in ("hashes", "out.parquet"):
            (self._folder / name).unlink(missing_ok=True)
        return Exported(tuple(files), num_kept, parts_kept, left_over)

    @property
    def _numbers(self) -> range:
        return range(len(self.state.parts))

    def _rows(self, schema: pa.Schema) -> Iterator[pa.Table]:
        for number in self._numbers:
            table = parquet.read_table(str(self._part(number)))
            yield concatenate([NamedTable(f"rows {number}", table)], schema)

    def _bound(self, hashes: HashFile, schema: pa.Schema) -> int:
        config = self._config
        name = config.id_column or next((each for each in _IDS if each in schema.names), None)
        if name not in schema.names:
            raise OptionError(
                f"there is no column of ids to split by: {name or 'index, id'}",
                hint=f"id_column: one of {', '.join(schema.names)}",
            )
        for number in self._numbers:
            ids = parquet.read_table(str(self._part(number)), columns=[name])[name]
            hashes.append(hash_ids(ids.cast(schema.field(name).type)))
        return hashes.bound(num_wanted(hashes.num_rows, config.val_ratio, config.max_num_val_rows))

    def _files(
        self,
        split: str | None,
        schema: pa.Schema,
        hashes: HashFile,
        bound: int,
        before: dict[str, ExportedFile],
        made_of: str,
    ) -> Iterator[tuple[ExportedFile, bool]]:
        """Writes the files of a side, one after the other; whether an earlier run had made each."""
        config, number = self._config, 0
        older = {file.address for file in self.state.older}
        for tables in in_files(self._side(split, schema, hashes, bound), config.file_rows):
            address = config.address(split, number)
            number += 1
            old = before.get(address)
            is_there = old is not None and self._is_there(old)
            if old is not None and is_there and old.made_of == made_of:
                for _ in tables:  # the rows of the next file come after these
                    pass
                yield old, True
                continue
            path = self._folder / "out.parquet"
            with _on_disk(self._folder), RowGroups(path, schema, config.row_group_size) as groups:
                for table in tables:
                    groups.write(table)
            made = ExportedFile(address, split, groups.num_rows, path.stat().st_size, file_digest(path), made_of)
            was_there = is_there and old is not None and old.digest == made.digest
            if not was_there:
                if old is None and address not in older and not config.recompute and self._size(address) is not None:
                    raise _taken(address)  # what has a name without the ones before it was not found at first
                publish(path, address, self._target.put)
            yield made, was_there

    def _side(self, split: str | None, schema: pa.Schema, hashes: HashFile, bound: int) -> Iterator[pa.Table]:
        start = 0
        for table in self._rows(schema):
            if split is not None:
                is_val = hashes.is_below(start, table.num_rows, bound)
                start += table.num_rows
                table = table.filter(pa.array(is_val if split == "val" else ~is_val))
            yield table

    def _clear(self, made: set[str]) -> tuple[str, ...]:
        """Deletes local files of an earlier export that this one does not have; those that are remote are named."""
        for file in (*self.state.older, *self.state.files):
            if file.address not in made and not is_remote(file.address) and self._is_there(file):
                Path(file.address).unlink(missing_ok=True)
        ours = (file.address for file in (*self.state.older, *self.state.files))
        left = {address for address in ours if self._size(address) is not None} | set(self._present())
        return tuple(sorted(left - made))


def _taken(address: str) -> OptionError:
    return OptionError(
        f"destination is there already, and is not of this export: {redact(address)}",
        hint="recompute: true writes over it; or choose another destination",
    )


def _address(file: ExportedFile) -> str:
    return file.address


@contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, SdsError):
            raise
        hint = "make room there, or choose another local_tmp_dir"
        raise CacheError(f"temporary folder cannot be used: {folder}: {error}", hint=hint) from error
