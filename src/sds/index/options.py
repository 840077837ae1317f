"""IndexOptions: the keywords of a dataset that decide which rows there are, checked and in one form.

Comes in: what the user wrote (lists, tuples, None). Goes out: a frozen, hashable value that is
never impossible.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sds.errors import OptionError

__all__ = ["IndexOptions"]


@dataclass(frozen=True)
class IndexOptions:
    """Which rows and columns a source gives.

    Attributes:
        columns_to_download: columns that hold URLs or paths; in a directory, extensions, with those that stand for each
            other in one ('jpg;jpeg;png'). None: every extension of a directory, no column of a table. Empty:
            metadata only.
        index_col_name: the column with the sample's id. None: 'index' if there is one, else ids are row numbers.
        allow_missing_columns: whether rows and columns without a value to download stay, with None.
        index_cols_to_keep: columns that samples get beside the id and those to download. None: all.
        sql_query: one SELECT over a table named `dataframe`.
        max_size: at most so many rows, the first ones after the query.
        max_index_files_to_use: at most so many index files, the first ones by name.
        weight_col_name: the column that says how often rows come.
        lazy_index_chunk_size: rows that are read at a time; None: all of them at once.
        lazy_index_plan: how what a query left is read then: 'scan', 'take', or 'auto', by what is cheaper.
    """

    columns_to_download: tuple[str, ...] | None = None
    index_col_name: str | None = None
    allow_missing_columns: bool = False
    index_cols_to_keep: tuple[str, ...] | None = None
    sql_query: str | None = None
    max_size: int | None = None
    max_index_files_to_use: int | None = None
    weight_col_name: str | None = None
    lazy_index_chunk_size: int | None = None
    lazy_index_plan: str = "auto"

    def __post_init__(self) -> None:
        for option in ("columns_to_download", "index_cols_to_keep"):
            object.__setattr__(self, option, _names(option, getattr(self, option)))
        for option in ("max_size", "max_index_files_to_use", "lazy_index_chunk_size"):
            _check_count(option, getattr(self, option))
        for option in ("index_col_name", "sql_query", "weight_col_name"):
            text = getattr(self, option)
            if text is not None and not (isinstance(text, str) and text.strip()):
                raise OptionError(f"{option} is not a text: {text!r}", hint=f"leave {option} out, or give a text")
        if self.lazy_index_plan not in ("auto", "scan", "take"):
            hint = "one of 'auto', 'scan', 'take'"
            raise OptionError(f"lazy_index_plan is unknown: {self.lazy_index_plan!r}", hint=hint)
        if self.lazy_index_plan != "auto" and self.lazy_index_chunk_size is None:
            hint = "set lazy_index_chunk_size too, or leave lazy_index_plan out: only a lazy index has a plan"
            raise OptionError(f"lazy_index_plan is for a lazy index: {self.lazy_index_plan!r}", hint=hint)
        if self.index_col_name in (self.columns_to_download or ()):
            raise OptionError(
                f"index_col_name is also in columns_to_download: {self.index_col_name!r}",
                hint="an id is no file: give the id a column of its own, or leave index_col_name out",
            )

    @property
    def id_column(self) -> str:
        """The name of the id column: the one given, or 'index'."""
        return self.index_col_name or "index"


def _names(option: str, names: Iterable[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    hint = f'give {option} a list of column names, such as ["image", "caption"]'
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise OptionError(f"{option} is not a list of names: {names!r}", hint=hint)
    names = tuple(names)
    for name in names:
        if not isinstance(name, str) or not name:
            raise OptionError(f"{option} has an entry that is not a name: {name!r}", hint=hint)
    if len(set(names)) != len(names):
        raise OptionError(f"{option} names a column twice: {list(names)}", hint="name each column once")
    return names


def _check_count(option: str, count: int | None) -> None:
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise OptionError(f"{option} is not a positive number: {count!r}", hint=f"leave {option} out for no limit")
