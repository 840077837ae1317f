"""The words that several commands share: what a source is, how JSON is asked for, how a store is reached.

Comes in: options as they were typed. Goes out: datasets, clients and results. Results go to stdout, all else to stderr.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sds.errors import FetchError, OptionError, SchemaError, SourceError, UnsupportedSource
from sds.units import parse_bytes

if TYPE_CHECKING:
    from sds import StreamingDataset
    from sds.fetch import FetchClient
    from sds.index import Index, IndexOptions
    from sds.index.lazy import LazyIndex

__all__ = [
    "HELP_NAMES",
    "AsJson",
    "Download",
    "Dst",
    "IdColumn",
    "Query",
    "Src",
    "Storage",
    "check_downloads",
    "check_name",
    "index_options",
    "open_client",
    "open_dataset",
    "open_source",
    "parse_limit",
    "parse_storage",
    "refuse_tensors",
    "say",
    "show",
    "to_json",
]

HELP_NAMES = {"help_option_names": ["-h", "--help"]}

Src = Annotated[
    str,
    typer.Argument(
        metavar="SRC", help="An index file, a folder, a wildcard, a text list, a tensor cache; a path or a URL."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Download = Annotated[
    list[str] | None,
    typer.Option(
        "--download",
        metavar="COLUMN",
        help="A column that holds files; may be repeated. A folder needs none, or its endings: 'jpg;jpeg;png' is one.",
    ),
]
IdColumn = Annotated[str, typer.Option("--id", metavar="COLUMN", help="The column of ids.")]
Query = Annotated[
    str | None, typer.Option("--sql", "--query", metavar="QUERY", help="A SELECT over a table named dataframe.")
]
Dst = Annotated[
    str | None, typer.Option("--dst", metavar="FOLDER", help="The cache folder. Default: as for a dataset.")
]
Storage = Annotated[
    list[str] | None,
    typer.Option(
        "--storage", metavar="KEY=VALUE", help="endpoint, region, anonymous, requester_pays, ...; may be repeated."
    ),
]

_SCRATCH_LIMIT = 2 * 10**9
_LARGE = 64 << 20  # bytes: Parquet files above are read in chunks
_CHUNK_ROWS = 16_384
# what every user of this machine may see in the list of processes is no place for these
_SECRET = ("secret_access_key", "session_token", "account_key")


def parse_storage(given: list[str] | None) -> dict[str, Any]:
    """["endpoint=http://x", "anonymous=true"] -> storage_options.

    Raises:
        OptionError: an entry is unknown, has no value, or is a secret.
    """
    from sds.fetch.protocol import STORAGE_OPTIONS

    settings: dict[str, Any] = {}
    for each in given or ():
        key, equals, value = each.partition("=")
        if key in _SECRET:
            hint = "the command line is no secret: use the environment (AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, ...)"
            raise OptionError(f"--storage takes no secrets: {key}", hint=hint)
        known = check_name("--storage", key, sorted(STORAGE_OPTIONS - set(_SECRET)))
        if not equals or not value:
            raise OptionError(f"--storage has no value: {each!r}", hint=f"--storage {known}=VALUE")
        settings[known] = {"true": True, "false": False}.get(value.lower(), value)
    return settings


def parse_limit(text: str) -> int | None:
    """A limit in bytes; "none", the default, is no limit: of all limits for a folder the smallest holds."""
    return None if text.strip().lower() == "none" else parse_bytes(text, option="--limit")


def check_name(what: str, name: str, known: list[str]) -> str:
    """The name, if it is known.

    Raises:
        OptionError: it is not; the hint says which one was meant, and which there are.
    """
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    raise OptionError(f"{what} is unknown: {name!r}", hint=f"{meant}known: {', '.join(known)}")


def open_dataset(
    src: str,
    *,
    dst: str | None = None,
    download: list[str] | None = None,
    id_column: str = "index",
    query: str | None = None,
    storage: list[str] | None = None,
    **more: Any,
) -> StreamingDataset:
    """A dataset over what was typed; rows without a file stay, but a column that is not there is an error."""
    import sds

    dataset = sds.StreamingDataset(
        src,
        dst,
        columns_to_download=download,
        index_col_name=id_column,
        sql_query=query,
        storage_options=parse_storage(storage),
        **{"allow_missing_columns": True, **more},
    )
    check_downloads(dataset.delivery.pipeline.index, download)
    return dataset


def check_downloads(index: Index, download: list[str] | None) -> None:
    """Refuses a column to download that has no file in any row: as a rule its name is misspelt.

    Raises:
        SchemaError: there is one.
    """
    from sds.index import TableIndex
    from sds.index.lazy import LazyIndex

    for name in index.columns_to_download if download else ():  # of 'jpg;png', the column is 'jpg'
        if isinstance(index, LazyIndex):
            has_files = name in index.manifest.layout.schema.names
        else:
            has_files = not isinstance(index, TableIndex) or index.column(name).null_count < len(index)
        if not has_files:
            others = [field.name for field in index.schema if field.name not in index.columns_to_download]
            close = difflib.get_close_matches(name, others, n=1)
            meant = f"did you mean {close[0]!r}? " if close else ""
            hint = f"{meant}the other columns: {', '.join(others)}"
            raise SchemaError(f"no row has a file in the column {name!r}", hint=hint)


def index_options(download: list[str] | None, id_column: str, query: str | None = None) -> IndexOptions:
    """What was typed of rows and columns; rows without a file stay."""
    from sds.index import IndexOptions

    return IndexOptions(
        columns_to_download=None if download is None else tuple(download),
        index_col_name=None if id_column == "index" else id_column,
        allow_missing_columns=True,
        sql_query=query,
    )


@contextmanager
def open_source(
    src: str,
    *,
    dst: str | None,
    download: list[str] | None,
    id_column: str,
    query: str | None,
    storage: list[str] | None,
    few_rows: bool = False,
    lazy: int | None = None,
) -> Iterator[tuple[Index, FetchClient]]:
    """The index of what was typed, as a dataset would have it, without torch where that is possible.

    With `few_rows`, one of Parquet files is not read as a whole. With `lazy`, it is read in chunks of so many rows.
    """
    import platformdirs

    from sds.cli.index_glance import open_glance
    from sds.index import open_index

    options = index_options(download, id_column, query)
    base = os.environ.get("SDS_CACHE_DIR") or platformdirs.user_cache_dir("sds", appauthor=False)
    with open_client(storage, dst or os.path.join(base, "sources")) as (client, folder):
        index: Index
        if _may_be_tensors(src, client):
            from sds.tensors.source import is_tensor_cache, open_tensors

            if is_tensor_cache(src, lambda: client):
                if lazy is not None:
                    hint = "leave --lazy out: this source is not read as a whole anyway"
                    raise OptionError(f"--lazy needs index files: {src}", hint=hint)
                tensors = open_tensors(src, options, folder=folder / "index", client=client)
                try:
                    yield tensors, client
                finally:
                    tensors.cache.close()
                return
        is_glance = few_rows and lazy is None
        glance = open_glance(src, options, folder=folder / "index", client=client) if is_glance else None
        if lazy is not None:
            from sds.index.lazy_opening import open_lazy

            chunked = replace(options, lazy_index_chunk_size=lazy)
            index = open_lazy(src, chunked, folder=folder / "index", remote=lambda: client)
        elif glance is not None:
            index = glance
        else:
            index = _open_large(src, options, folder / "index", client) or open_index(
                src, options, folder=folder / "index", remote=lambda: client
            )
        check_downloads(index, download)
        try:
            yield index, client
        finally:
            index.close()


def _open_large(src: str, options: IndexOptions, folder: Path, client: FetchClient) -> LazyIndex | None:
    """The index of large Parquet files, of which only what is looked at is read; None: it is none, or not large."""
    from sds.index.embedded import holds_files, is_binary
    from sds.index.lazy_opening import open_lazy
    from sds.index.source import find_source

    source = find_source(src, folder=folder, open_remote=lambda: client)
    is_parquet = all(part.format.family == "parquet" for part in source.index_files)
    if source.sample_files or not is_parquet or (options.sql_query is not None and options.columns_to_download):
        return None
    lazily = replace(options, lazy_index_chunk_size=_CHUNK_ROWS, lazy_index_plan="scan")
    whole = replace(lazily, sql_query=None)
    try:
        index = open_lazy(src, whole, folder=folder, remote=lambda: client)
        is_large = index.manifest.layout.num_bytes > _LARGE
        if not is_large or any(is_binary(field.type) or holds_files(field.type) for field in index.schema):
            return None  # small, or with files inside, of which only their places are read
        return index if options.sql_query is None else open_lazy(src, lazily, folder=folder, remote=lambda: client)
    except (OptionError, SourceError):
        return None  # a query that needs all rows at once; or whoever opens it whole says what is wrong


def refuse_tensors(src: str, client: FetchClient) -> None:
    """Refuses a tensor cache, of which no index can be made.

    Raises:
        UnsupportedSource: it is one.
    """
    if not _may_be_tensors(src, client):
        return
    from sds.tensors.source import is_tensor_cache
    from sds.urls import redact

    if is_tensor_cache(src, lambda: client):
        hint = "it is an index of itself: open it as it is, and choose rows with sql_query"
        raise UnsupportedSource(f"source is a tensor cache: {redact(src)}", hint=hint)


def _may_be_tensors(src: str, client: FetchClient) -> bool:
    """Whether it is worth loading what knows tensor caches: there is an index.json in a folder."""
    from sds.index.formats import is_index_file
    from sds.index.patterns import has_wildcard
    from sds.urls import is_remote, local_path

    if not is_remote(src):
        folder = Path(local_path(src))
        return (folder / "index.json").is_file() or (folder / ".parts").is_dir()
    if is_index_file(src) or has_wildcard(src) or src.partition("?")[0].endswith(".txt"):
        return False
    try:
        client.head(f"{src.rstrip('/')}/index.json")
        return True
    except FetchError:  # whoever opens the source says what is wrong
        return False


@contextmanager
def open_client(
    storage: list[str] | dict[str, Any] | None, dst: str | None = None
) -> Iterator[tuple[FetchClient, Path]]:
    """A client of the fetch room and its folder, which is a temporary one if none is named."""
    from sds.fetch import FetchClient, FetchOptions

    settings = storage if isinstance(storage, dict) else parse_storage(storage)
    with ExitStack() as stack:
        limit = None  # of all limits for a folder the smallest holds: others' caches keep theirs
        if dst is None:
            limit = _SCRATCH_LIMIT
            dst = stack.enter_context(tempfile.TemporaryDirectory(prefix="sds-", ignore_cleanup_errors=True))
        client = FetchClient(FetchOptions(dst=dst, limit=limit, settings=settings))
        stack.callback(client.close)
        yield client, Path(dst)


def show(facts: dict[str, Any], text: str, as_json: bool) -> None:
    """Prints a result: for machines or for people."""
    print(to_json(facts) if as_json else text)


def to_json(value: Any) -> str:
    """A result as JSON: what that has no numbers for (NaN, infinity) is null."""
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(_finite(value), indent=2, ensure_ascii=not is_utf8, default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def say(text: str) -> None:
    """Tells people something that is no result."""
    print(text, file=sys.stderr, flush=True)
