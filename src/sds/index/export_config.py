"""ExportConfig: what an export is to do, out of a YAML file, checked and in one form.

Comes in: the text of a file. Goes out: a frozen value that is never impossible. An unknown key is refused, with the one
that was probably meant. A connection may be a variable of the environment, so that no file holds a password.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from sds.errors import OptionError, SourceNotFound
from sds.index.parquet import ROW_GROUP_SIZE
from sds.index.split import check_ratio
from sds.urls import is_remote, local_path, redact

__all__ = ["ENGINES", "ExportConfig", "read_config"]

ENGINES = ("duckdb", "sqlite", "postgres", "bigquery")

# which engines a key is for, where it is not for all
_ONLY = {"database": ("duckdb", "sqlite"), "connection": ("postgres",), "project": ("bigquery",)}
_ROWS_PER_FILE = 1_000_000
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")


@dataclass(frozen=True)
class ExportConfig:
    """What to export, from where, to where.

    Attributes:
        sql_query: one SELECT, in the engine's own SQL.
        destination: a .parquet file, several of them (a '*' stands for their numbers), or a folder; a path or a URL.
        engine: 'duckdb', 'sqlite', 'postgres' or 'bigquery'.
        recompute: make everything anew, and write over what is there.
        val_ratio: the share of rows for validation; 0: no split.
        max_num_val_rows: at most so many of them.
        id_column: the column whose hash splits. Default: 'index' or 'id', if there is one.
        row_group_size: rows of a row group.
        rows_per_file: rows of a file, where there are several.
        local_tmp_dir: where rows lie until they are complete. Default: the user's cache folder.
        bucket_region: of the destination's bucket.
        region: where BigQuery runs the query; for other engines the same as bucket_region.
        project: BigQuery's.
        database: the file of DuckDB or SQLite; DuckDB needs none to read files.
        connection: PostgreSQL's, as text or URL; "$NAME" is a variable of the environment.
    """

    sql_query: str
    destination: str
    engine: str = "duckdb"
    recompute: bool = False
    val_ratio: float = 0.0
    max_num_val_rows: int | None = None
    id_column: str | None = None
    row_group_size: int = ROW_GROUP_SIZE
    rows_per_file: int | None = None
    local_tmp_dir: str | None = None
    bucket_region: str | None = None
    region: str | None = None
    project: str | None = None
    database: str | None = None
    connection: str | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise OptionError(_unknown("engine", self.engine), hint=_meant(str(self.engine), ENGINES))
        for key in ("sql_query", "destination"):
            _check_text(key, getattr(self, key))
        for key in ("id_column", "local_tmp_dir", "bucket_region", "region", "project", "database", "connection"):
            if getattr(self, key) is not None:
                _check_text(key, getattr(self, key))
        for key in ("row_group_size", "rows_per_file", "max_num_val_rows"):
            _check_count(key, getattr(self, key), minimum=0 if key == "max_num_val_rows" else 1)
        if not isinstance(self.recompute, bool):
            raise OptionError(f"recompute is neither true nor false: {self.recompute!r}", hint="recompute: true")
        object.__setattr__(self, "val_ratio", check_ratio("val_ratio", self.val_ratio))
        for key, engines in _ONLY.items():
            if getattr(self, key) is not None and self.engine not in engines:
                hint = f"leave it out, or choose another engine: it is for {' and '.join(engines)}"
                raise OptionError(f"{key} is not for the engine {self.engine}", hint=hint)
        if self.engine == "sqlite" and self.database is None:
            raise OptionError("the engine sqlite needs a database", hint="database: path/to/file.db")
        for key in ("destination", "database"):
            given = getattr(self, key)
            if given is not None and not is_remote(given):
                path = os.path.expanduser(local_path(given))
                object.__setattr__(self, key, os.path.normpath(path) + ("/" if path.endswith("/") else ""))
        name = self.destination.rstrip("/").rpartition("/")[2]
        if "*" in self.destination.removesuffix(name) or name.count("*") > 1:
            raise OptionError(
                f"destination has a wildcard in the wrong place: {self.destination}", hint="one '*', in the file name"
            )
        if "*" in name and not self._is_file:
            raise OptionError(
                f"destination has a wildcard, and is no Parquet file: {self.destination}", hint="such as out-*.parquet"
            )
        if is_remote(self.destination) and self.destination.lower().startswith(("http://", "https://")):
            raise OptionError(
                "destination is a web address, which cannot be written", hint="a path, s3://, gs:// or az://"
            )

    @property
    def _is_file(self) -> bool:
        return self.destination.lower().endswith((".parquet", ".pq"))

    @property
    def splits(self) -> tuple[str | None, ...]:
        """The sides that there are."""
        return ("train", "val") if self.val_ratio else (None,)

    @property
    def storage_options(self) -> dict[str, str]:
        """What the destination's store needs to know."""
        region = self.bucket_region or (None if self.engine == "bigquery" else self.region)
        return {"region": region} if region else {}

    @property
    def file_rows(self) -> int | None:
        """How many rows a file has; None: all."""
        return self.rows_per_file or (_ROWS_PER_FILE if "*" in self.destination else None)

    @property
    def digest(self) -> str:
        """Stands for what is asked for: another query, source or destination is another export. No secret is in it."""
        ignored = ("recompute", "local_tmp_dir", "connection")
        asked = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ignored}
        asked["connection"] = None if self.connection is None else re.sub(r"//[^@/]*@", "//", redact(self.connection))
        if self.database is not None:
            asked["database"] = os.path.abspath(self.database)
        asked["destination"] = self._place
        return hashlib.blake2b(msgspec.json.encode(asked, order="sorted"), digest_size=12).hexdigest()

    @property
    def destination_digest(self) -> str:
        """Stands for the names that files get, whatever is asked for."""
        names = f"{self._place} {'numbered' if self.file_rows else self.splits}"
        return hashlib.blake2b(names.encode(errors="surrogateescape"), digest_size=12).hexdigest()

    @property
    def _place(self) -> str:
        return self.destination if is_remote(self.destination) else os.path.abspath(self.destination)

    def address(self, split: str | None, number: int) -> str:
        """The address of a file: 'out.parquet', 'out-val.parquet', 'out-val-00002.parquet', 'folder/val.parquet'."""
        before, after = self._around_number(split)
        return f"{before}{after}" if self.file_rows is None else f"{before}{number:05d}{after}"

    def is_address(self, address: str) -> bool:
        """Whether an address is that of a file of this export, or of one to the same place with another split.

        Files that are numbered are read together, by a wildcard: there, those of another split count too.
        """
        if self.file_rows is None:
            return any(address == self.address(split, 0) for split in self.splits)
        for split in (None, "train", "val"):
            before, after = self._around_number(split)
            middle = address[len(before) : len(address) - len(after)]
            if address == f"{before}{middle}{after}" and len(middle) >= 5 and middle.isdecimal():
                return True
        return False

    def _around_number(self, split: str | None) -> tuple[str, str]:
        """The address of a side's files, before and after the number that they have where there are several."""
        if not self._is_file:  # a folder
            stem = f"{self.destination.rstrip('/')}/{split or 'index'}"
            return (stem, ".parquet") if self.file_rows is None else (f"{stem}-", ".parquet")
        stem, _, ending = self.destination.rpartition(".")
        if self.file_rows is None:
            return (f"{stem}-{split}" if split else stem), f".{ending}"
        before, star, after = stem.rpartition("*")
        if not star:
            before, after = f"{stem}-", ""
        return f"{before}{split}-" if split else before, f"{after}.{ending}"

    @property
    def connection_text(self) -> str:
        """The connection, with the variable's value where it names one.

        Raises:
            OptionError: there is no such variable.
        """

        def value(match: re.Match[str]) -> str:
            name = match[1].strip("{}")
            if name not in os.environ:
                raise OptionError(f"connection names a variable that is not set: {name}", hint=f"export {name}=...")
            return os.environ[name]

        return _VARIABLE.sub(value, self.connection or "")


def read_config(path: str | os.PathLike[str]) -> ExportConfig:
    """Reads a YAML file.

    Raises:
        SourceNotFound: it is not there.
        OptionError: it is no YAML, has an unknown key, lacks one, or has an impossible value.
    """
    import yaml

    try:
        given = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SourceNotFound(f"no file is there: {path}", hint="sds index export CONFIG.yaml", url=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the file cannot be read: {path}: {error}", hint="a YAML file, in UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" line {mark.line + 1}"
        raise OptionError(f"the file is no YAML: {path}{line}", hint="key: value, one a line") from None
    if not isinstance(given, dict):
        raise OptionError(f"the file holds no keys: {path}", hint="sql_query: ..., destination: ..., engine: ...")
    known = [each.name for each in fields(ExportConfig)]
    for key in given:
        if key not in known:
            raise OptionError(_unknown("key", key), hint=_meant(str(key), known))
    for key in ("sql_query", "destination"):
        if key not in given:
            raise OptionError(f"the file lacks a key: {key}", hint=f"{key}: ...")
    return ExportConfig(**given)


def _unknown(what: str, name: Any) -> str:
    return f"{what} is unknown: {name!r}"


def _meant(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"{f'did you mean {close[0]!r}? ' if close else ''}known: {', '.join(known)}"


def _check_text(key: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"{key} is no text: {type(value).__name__}", hint=f"{key}: some text")


def _check_count(key: str, value: Any, *, minimum: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
        raise OptionError(f"{key} is impossible: {value!r}", hint=f"a whole number of at least {minimum}")
