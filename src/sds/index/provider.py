"""Data providers: a Python object that gives rows by number, or a function that gives records or another source.

Comes in: an object with `__len__` and `rows(ids)`, or a callable. Goes out: an Index. Rows of an object are asked for
when they are needed, in any order, from any thread and process. A function is called once per node and launch; what it
gives becomes an index like any other.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sds.errors import OptionError, SchemaError, SdsError, SourceError
from sds.index.options import IndexOptions
from sds.index.table import IndexFacts
from sds.types import Row

__all__ = ["ProviderIndex", "describe_provider", "fingerprint_of", "is_provider", "is_rows_object"]

_NUM_LOOKED_AT = 16  # rows that tell one provider from another, if it has no fingerprint
_HINT = "a data provider has __len__ and rows(ids), which gives one dict for each id, in their order"
_NEEDS_TABLE = ("sql_query", "weight_col_name", "lazy_index_chunk_size", "max_index_files_to_use")


def is_rows_object(src: Any) -> bool:
    """Whether a source is an object that gives rows by number."""
    return not isinstance(src, type) and callable(getattr(src, "rows", None)) and hasattr(src, "__len__")


def is_provider(src: Any) -> bool:
    """Whether a source is a data provider: an object that gives rows, or something that can be called."""
    return is_rows_object(src) or (callable(src) and not isinstance(src, str | os.PathLike))


def describe_provider(src: Any) -> str:
    """A provider for people: its name, never its address in memory, so that it is the same in every process."""
    named = src if hasattr(src, "__qualname__") else type(src)
    return f"{named.__module__}.{named.__qualname__}"


def fingerprint_of(src: Any) -> str | None:
    """What a provider says of its own content, as text; None if it says nothing."""
    found = getattr(src, "fingerprint", None)
    if callable(found):
        found = found()
    return None if found is None else str(found)


class ProviderIndex:
    """The rows of an object. Forks and pickles as the object does; the object's `rows` may be asked by many threads."""

    def __init__(self, provider: Any, options: IndexOptions) -> None:
        """Looks at a few rows.

        Raises:
            OptionError: an option needs a table.
            SourceError: there are no rows, or the provider fails.
            SchemaError: a column is missing.
        """
        for option in _NEEDS_TABLE:
            if getattr(options, option) is not None:
                hint = "give a function that returns the records (or a table, or a path): they become an index"
                raise OptionError(f"{option} needs a table, and src gives rows by number", hint=hint)
        self._provider = provider
        self._options = options
        self._name = describe_provider(provider)
        self._columns: tuple[str, ...] | None = None
        num_rows = len(provider)
        if num_rows < 1:
            raise SourceError(f"source has no rows: {self._name}", hint="its __len__ is 0")
        self._size = num_rows if options.max_size is None else min(num_rows, options.max_size)
        self._num_at_source = num_rows
        looked_at = np.unique(np.linspace(0, self._size - 1, _NUM_LOOKED_AT).astype(np.int64))
        records = self._ask(looked_at)
        there = list(dict.fromkeys(name for record in records for name in record))
        self._check_columns(there)
        self._schema = _schema(provider, records)
        self._fingerprint = self._make_fingerprint(records)

    def _check_columns(self, there: Sequence[str]) -> None:
        options = self._options
        wanted = {"columns_to_download": options.columns_to_download or (), "index_cols_to_keep": ()}
        if options.index_col_name is not None:
            wanted["index_col_name"] = (options.index_col_name,)
        if options.index_cols_to_keep is not None:
            wanted["index_cols_to_keep"] = options.index_cols_to_keep
            self._columns = tuple(
                dict.fromkeys((*options.index_cols_to_keep, *(options.columns_to_download or ()), options.id_column))
            )
        for option, names in wanted.items():
            for name in names:
                if name not in there and (option == "index_col_name" or not options.allow_missing_columns):
                    hint = f"its rows have: {', '.join(there) or 'nothing'}"
                    raise SchemaError(f"{option} names a column that {self._name} does not give: {name!r}", hint=hint)

    def _make_fingerprint(self, records: Sequence[Mapping[str, Any]]) -> str:
        said = fingerprint_of(self._provider)
        content = said if said is not None else repr([sorted(record.items()) for record in records])
        text = repr((self._num_at_source, self._size, self._options.id_column, content))
        return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()

    def _ask(self, ids: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
        try:
            records = list(self._provider.rows(ids.tolist()))
        except SdsError:
            raise
        except Exception as error:
            hint = "the error above is its own; rows(ids) gets a list of numbers in [0, len)"
            raise SourceError(f"data provider failed: {self._name}: {error!r}", hint=hint) from error
        if len(records) != len(ids):
            raise SourceError(f"data provider gave {len(records)} rows for {len(ids)} ids: {self._name}", hint=_HINT)
        for record in records:
            if not isinstance(record, Mapping) or not all(isinstance(name, str) for name in record):
                raise SourceError(f"data provider gave no dict: {type(record).__name__} of {self._name}", hint=_HINT)
        return records

    @property
    def fingerprint(self) -> str:
        """What the provider says of itself; else made of its length and a look at some rows."""
        return self._fingerprint

    @property
    def schema(self) -> pa.Schema:
        """What the provider says, else what its first rows look like."""
        return self._schema

    @property
    def columns_to_download(self) -> tuple[str, ...]:
        """The columns that hold URLs, paths or bytes."""
        return self._options.columns_to_download or ()

    @property
    def facts(self) -> IndexFacts:
        """What it was made of."""
        return IndexFacts(
            kind="provider",
            num_index_files=0,
            num_sample_files=0,
            rows_at_source=self._num_at_source,
            rows_after_query=self._num_at_source,
            rows_left_out=0,
            rows=self._size,
            path=self._name,
            in_place=True,
        )

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"ProviderIndex({self._size} rows, {self._name})"

    def rows(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> list[Row]:
        """The rows with these numbers, in this order.

        Raises:
            IndexError: a number is not in [0, len).
            SourceError: the provider fails.
        """
        numbers = np.asarray(ids, np.int64)
        if not len(numbers):
            return []
        if numbers.min() < 0 or numbers.max() >= self._size:
            raise IndexError(f"row is not in [0, {self._size}): {numbers[(numbers < 0) | (numbers >= self._size)][0]}")
        rows = []
        for number, record in zip(numbers.tolist(), self._ask(numbers), strict=True):
            key = record.get(self._options.id_column)
            names = record if self._columns is None else (name for name in self._columns if name in record)
            rows.append(Row(number, str(number if key is None else key), {name: record[name] for name in names}))
        return rows

    @property
    def weights(self) -> None:
        """Each row comes once."""
        return None

    @property
    def chunk_sizes(self) -> None:
        """Any row is as near as any other."""
        return None

    def expect(self, chunks: Sequence[int]) -> None:
        """There are no chunks."""

    def close(self) -> None:
        """The provider is the caller's."""

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        try:
            state["_provider"] = pickle.dumps(self._provider)
        except Exception as error:
            hint = "spawned workers need a copy: define __getstate__, or open files and connections when first asked "
            hint += "for rows; or use num_workers=0, or multiprocessing_context='fork'"
            raise OptionError(f"data provider cannot be pickled: {self._name}: {error!r}", hint=hint) from error
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._provider = pickle.loads(state["_provider"])  # noqa: S301 (it is part of what is unpickled anyway)


def _schema(provider: Any, records: Sequence[Mapping[str, Any]]) -> pa.Schema:
    said = getattr(provider, "schema", None)
    if callable(said):
        said = said()
    if isinstance(said, pa.Schema):
        return said
    if said is not None:
        raise OptionError(f"schema of a data provider is no pyarrow.Schema: {type(said).__name__}", hint=_HINT)
    fields = []
    for name in dict.fromkeys(name for record in records for name in record):
        try:
            type_ = pa.array([record.get(name) for record in records]).type
        except (pa.ArrowException, TypeError):
            type_ = pa.null()  # a Python object that Arrow has no type for
        fields.append(pa.field(name, type_))
    return pa.schema(fields)
