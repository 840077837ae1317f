"""Names of index files: extension -> Format, before anything is opened.

A name says its format by its last extension, and its compression by one more. What is not named here is a sample file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

__all__ = [
    "KNOWN",
    "LIST_EXTENSION",
    "Format",
    "describe_known",
    "extension_of",
    "format_of",
    "is_index_file",
    "is_own_index",
    "is_packed_tar",
    "is_parquet_folder",
    "is_tars",
    "splits_of",
]

LIST_EXTENSION = "txt"

KNOWN = {
    "csv": "csv",
    "tsv": "tsv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "parquet": "parquet",
    "pq": "parquet",
    "arrow": "arrow",
    "feather": "arrow",
    "tar": "tar",
}
_CODECS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}
_TEXT = ("csv", "tsv", "json", "jsonl", "ndjson")
_PACKED_TARS = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz", ".tar.lz4")
_BESIDE_TARS = {"tar", "json", "jsonl", "idx", "txt", "md", "yaml", "parquet", "csv"}
_BESIDE_PARQUET = {"parquet", "pq", "md", "json", "txt", "yaml", "yml"}
_SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "eval")
_ENDINGS = (*(f".{e}" for e in KNOWN), *(f".{e}.{c}" for e in _TEXT for c in _CODECS))


@dataclass(frozen=True)
class Format:
    """How an index file is to be read: the family of its reader, and its outer compression."""

    family: str
    codec: str | None = None


def extension_of(url: str) -> str:
    """What stands after the last dot of the file name, in lower case; '' if nothing does."""
    stem, dot, extension = _file_name(url).rpartition(".")
    return extension.lower() if dot and stem else ""


def format_of(url: str) -> Format | None:
    """The format that a name promises, or None if it is no index file's name."""
    stem, _, last = _file_name(url).lower().rpartition(".")
    if last in _CODECS:
        inner = stem.rpartition(".")
        return Format(KNOWN[inner[2]], _CODECS[last]) if inner[0] and inner[2] in _TEXT else None
    return Format(KNOWN[last]) if stem and last in KNOWN else None


def is_index_file(url: str) -> bool:
    """Whether a name is an index file's; quicker than format_of for long lists."""
    if url.lower().endswith(_ENDINGS) or url[:4].lower() == "http":
        return format_of(url) is not None
    return False


def is_packed_tar(url: str) -> bool:
    """Whether a name is a compressed tar's, in which nothing can be reached by its place."""
    return _file_name(url).lower().endswith(_PACKED_TARS)


def is_tars(names: Sequence[str]) -> bool:
    """Whether files are tar shards, perhaps with what their writers put beside them: lists, counts, tables."""
    kinds = {extension_of(name) for name in names}
    return "tar" in kinds and kinds <= _BESIDE_TARS


def is_parquet_folder(names: Sequence[str]) -> bool:
    """Whether files are the Parquet files of one table, perhaps with a README or other words about them beside."""
    kinds = {extension_of(name) for name in names}
    if not kinds & {"parquet", "pq"} or not kinds <= _BESIDE_PARQUET:
        return False
    stems: dict[bool, set[str]] = {True: set(), False: set()}
    for name in names:
        stems[_is_parquet(name)].add(name.rpartition(".")[0])
    return not stems[True] & stems[False]  # files of one name are a sample


def splits_of(names: Sequence[str]) -> list[str]:
    """The splits that names of Parquet files speak of: train-00000-of-00004.parquet, test/0.parquet."""
    words = {word for name in names if _is_parquet(name) for word in re.split(r"[^a-z]+", name.lower())}
    return [split for split in _SPLITS if split in words]


def is_own_index(name: str) -> bool:
    """Whether a file at the top of a folder of samples is an index of it: index.parquet, photos-index.parquet."""
    return re.fullmatch(r"([^/]*[._-])?index\.(parquet|pq)", name.lower()) is not None


def _is_parquet(name: str) -> bool:
    return extension_of(name) in ("parquet", "pq")


def describe_known() -> str:
    """The formats there are readers for, for people."""
    return f"{', '.join(f'.{e}' for e in KNOWN)}; text formats also with {', '.join(f'.{c}' for c in _CODECS)}"


def _file_name(url: str) -> str:
    # only http(s) URLs have a query part: in a path or in a store's key, '?' is a letter like any other
    path = urlsplit(url).path if url.lower().startswith(("http://", "https://")) else url
    return path.rsplit("/", 1)[-1]
