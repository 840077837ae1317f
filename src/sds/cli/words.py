"""The words that several commands share: what a source is, how JSON is asked for, how a store is reached.

Comes in: options as they were typed. Goes out: datasets, clients and results. Results go to stdout, all else to stderr.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sds.errors import FetchError, OptionError, SchemaError
from sds.units import parse_bytes

if TYPE_CHECKING:
    from sds import StreamingDataset
    from sds.fetch import FetchClient
    from sds.index import Index, IndexOptions

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
    "say",
    "show",
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
        "--download", metavar="COLUMN", help="A column that holds files; may be repeated. A folder needs none."
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

    for name in download or ():
        if isinstance(index, TableIndex) and index.column(name).null_count == len(index):
            others = [field.name for field in index.schema if field.name not in (download or ())]
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
) -> Iterator[tuple[Index, FetchClient]]:
    """The index of what was typed, as a dataset would have it, without torch where that is possible."""
    import platformdirs

    from sds.index import open_index

    options = index_options(download, id_column, query)
    base = os.environ.get("SDS_CACHE_DIR") or platformdirs.user_cache_dir("sds", appauthor=False)
    with open_client(storage, dst or os.path.join(base, "sources")) as (client, folder):
        index: Index
        if _may_be_tensors(src, client):
            from sds.tensors.source import is_tensor_cache, open_tensors

            if is_tensor_cache(src, lambda: client):
                tensors = open_tensors(src, options, folder=folder / "index", client=client)
                try:
                    yield tensors, client
                finally:
                    tensors.cache.close()
                return
        index = open_index(src, options, folder=folder / "index", remote=lambda: client)
        check_downloads(index, download)
        try:
            yield index, client
        finally:
            index.close()


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
    print(json.dumps(facts, indent=2, ensure_ascii=False, default=str) if as_json else text)


def say(text: str) -> None:
    """Tells people something that is no result."""
    print(text, file=sys.stderr, flush=True)
