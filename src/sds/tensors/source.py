"""A tensor cache as the index of a dataset: its samples are rows, in its order.

Comes in: a folder or URL. Goes out: a TensorIndex, whose rows have the key, the metadata that skeletons tell and the
shapes of tensors, in a table that is made once and queried like any other; and the samples of rows, with real tensors.
A local sample is read by position; of a remote one the ranges that hold it are fetched, through the cache of files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from sds.errors import CacheError, FetchError, FetchTimeout, OptionError, SchemaError
from sds.fetch import FetchClient, File
from sds.fetch.spans import origin_of
from sds.index import IndexFacts, IndexOptions, TableIndex, open_index
from sds.plan.weights import WeightSource
from sds.tensors.columns import Columns
from sds.tensors.format import FORMAT, corrupt
from sds.tensors.lazy import blocks_in, realize
from sds.tensors.reader import TensorCache
from sds.tensors.remember import unfolded
from sds.tensors.source_table import POSITION, SHAPE, make_table
from sds.types import Row, Sample
from sds.urls import is_remote, local_path

__all__ = ["TensorIndex", "is_tensor_cache", "open_tensors"]

_NAMED = (
    ".csv",
    ".tsv",
    ".json",
    ".jsonl",
    ".ndjson",
    ".parquet",
    ".pq",
    ".arrow",
    ".feather",
    ".txt",
    ".tar",
    ".gz",
    ".zst",
)


def is_tensor_cache(src: Any, client: Callable[[], FetchClient]) -> bool:
    """Whether a source is a tensor cache: a folder (or a prefix of a store) with an index.json that says so."""
    if not isinstance(src, str | os.PathLike):
        return False
    text = os.fspath(src)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        return False
    if not is_remote(text):
        folder = Path(local_path(text))
        if not folder.is_dir():
            return False
        # one that was never closed has no index.json, but what its writers left
        return _says_so(_content(folder / "index.json")) or (folder / ".parts").is_dir()
    name = text.partition("?")[0].rstrip("/").rsplit("/", 1)[-1].lower()
    if name.endswith(_NAMED) or any(letter in text for letter in "*?["):
        return False
    try:
        return _says_so(client().read(f"{text.rstrip('/')}/index.json"))
    except FetchTimeout:
        raise
    except FetchError:  # nothing is there, or the store does not say: whoever lists it finds out
        return False


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _says_so(data: bytes) -> bool:
    try:
        found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        return bool(found.get("format") == msgspec.Raw(msgspec.json.encode(FORMAT)))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


def open_tensors(
    src: str | os.PathLike[str], options: IndexOptions, *, folder: Path, client: FetchClient
) -> TensorIndex:
    """The index of a tensor cache.

    Args:
        src: the cache.
        options: which rows and columns to take.
        folder: where tables and columns of remote caches live.
        client: fetches what is remote.

    Raises:
        TensorCacheError: it is none, or damaged.
        SourceError: no rows, or a query that does not run.
    """
    if options.columns_to_download:
        hint = "a tensor cache has its samples in itself: leave columns_to_download out"
        raise OptionError(f"a tensor cache has no columns to download: {list(options.columns_to_download)}", hint=hint)
    cache = TensorCache(src, client=client, dst=folder)
    try:
        names = ",".join(cache.shard_names)
        mark = hashlib.blake2b(f"1,{options.id_column},{len(cache)},{names}".encode(), digest_size=12).hexdigest()
        path = folder / f"tensors-{mark}.arrow"
        if not path.exists():
            _publish(make_table(cache, options.id_column), path)
        keep = options.index_cols_to_keep
        asked = replace(
            options, columns_to_download=(), index_cols_to_keep=None if keep is None else _with_position(keep, options)
        )
        table = open_index(str(path), asked, folder=folder, remote=lambda: client)
        return TensorIndex(cache, table)
    finally:
        cache.close()  # it is opened again where it is needed


def _with_position(keep: Sequence[str], options: IndexOptions) -> tuple[str, ...]:
    # a query may leave it out, and then it is no column that could be kept
    return (*keep, POSITION) if options.sql_query is None and POSITION not in keep else tuple(keep)


def _publish(table: pa.Table, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        hint = "make room there, or choose another dst"
        raise CacheError(f"index cannot be written: {path}: {error}", hint=hint, url=str(path)) from error


class TensorIndex:
    """The rows of a tensor cache, and their samples. Safe to share between threads, to fork with, and to pickle."""

    def __init__(self, cache: TensorCache, table: TableIndex) -> None:
        self.cache = cache
        self._table = table

    @property
    def fingerprint(self) -> str:
        """Equal for equal rows that were made by the same, on any machine."""
        text = f"{self._table.fingerprint} {self.cache.fingerprint}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns that rows have."""
        return pa.schema([field for field in self._table.schema if field.name != POSITION])

    @property
    def columns_to_download(self) -> tuple[str, ...]:
        """No column names a file: samples are in the cache."""
        return ()

    @property
    def facts(self) -> IndexFacts:
        """What it was made of."""
        num = len(self.cache.shard_names)
        return msgspec.structs.replace(self._table.facts, kind="tensors", num_index_files=num, in_place=False)

    def __len__(self) -> int:
        return len(self._table)

    def rows(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> list[Row]:
        """The rows with these numbers, in this order."""
        return self._table.rows(ids)

    @property
    def weights(self) -> WeightSource | None:
        """How often rows come in an epoch; None: each once."""
        return self._table.weights

    @property
    def chunk_sizes(self) -> None:
        """Any row is as near as any other."""
        return None

    def expect(self, chunks: Sequence[int]) -> None:
        """There are no chunks."""

    def column(self, name: str) -> pa.ChunkedArray:
        """A column of all rows, as Arrow has it; KeyError if rows have no such column."""
        return self._table.column(name)

    def shapes(self, field: str | None = None) -> tuple[npt.NDArray[np.int64], list[Any]] | None:
        """Which rows have tensors of one shape and dtype: a number for each row, and what each stands for. Reads none.

        Args:
            field: the tensor that counts, such as 'latent.samples'; None: all of them.

        Returns:
            None, if the query left out which sample a row is of. KeyError, if no sample has the tensor.
        """
        try:
            positions = self._table.column(POSITION).to_numpy()
        except KeyError:
            return None
        numbers, infos = self.cache.buckets()
        if field is not None and not any(field in info for info in infos):
            raise KeyError(field)
        shown = [
            tuple(sorted((name, info[name].shape, str(info[name].dtype)) for name in info if field in (None, name)))
            for info in infos
        ]
        known = {shape: number for number, shape in enumerate(dict.fromkeys(shown))}
        return np.array([known[shape] for shape in shown], np.int64)[numbers[positions]], list(known)

    def files(self, row: Row) -> list[File]:
        """What is to be fetched for a row: ranges of a shard, if the cache is remote."""
        if not is_remote(self.cache.path):
            return []
        name, spans = self.cache.spans(self.position(row))
        url = f"{self.cache.path.rstrip('/')}/{name}.safetensors"
        return [File(url, span=span) for span in spans]

    def load(
        self,
        row: Row,
        sample: Sample,
        files: Sequence[File] = (),
        paths: Sequence[str] = (),
        *,
        entry: Callable[[], Any] | None = None,
    ) -> list[Sample]:
        """The samples of a row: one, or what Remember made of one row.

        Args:
            row: which.
            sample: what it begins as: metadata, and what transforms before the download made of that.
            files: what `files` asked for.
            paths: where that is now.
            entry: gives what the cache has of it, if that was read with others.
        """
        made = self._realized(row, files, paths) if entry is None else entry()
        # what the cache has goes before the same as the table tells it; what was changed since goes before both
        told = {key for key, value in sample.items() if key in row.values and value is row.values[key]}
        hidden = {POSITION, *(key for key in told if key.endswith(SHAPE))}
        begun = {key: value for key, value in sample.items() if key not in hidden}
        return [{**begun, **each, **{key: begun[key] for key in begun if key not in told}} for each in unfolded(made)]

    def _realized(self, row: Row, files: Sequence[File], paths: Sequence[str]) -> Any:
        position = self.position(row)
        entry = self.cache[position]
        if files:
            shard = self.cache.columns_of(position)
            try:
                parts = [_Part(shard, file, path) for file, path in zip(files, paths, strict=True)]
                for block in blocks_in(entry):
                    block.data = _read(shard, parts, block.start, block.num_bytes)
            except OSError as error:
                hint = "did somebody delete files of the cache folder? They are fetched again when asked for again"
                raise CacheError(f"fetched tensors cannot be read: {error}", hint=hint) from error
        return realize(entry)

    def position(self, row: Row) -> int:
        """The position in the cache of a row's sample. SchemaError if it has none."""
        position = row.values.get(POSITION)
        if position is None:  # the query left it out
            position = self.cache.find(row.key)
        if position is None or not 0 <= position < len(self.cache):
            hint = f"a query over a tensor cache keeps the column of ids, or {POSITION}"
            raise SchemaError(f"row is of no sample of the cache: {row.key!r}", hint=hint)
        return int(position)

    def close(self) -> None:
        """Lets go of files and mappings; rows cannot be read after it."""
        self.cache.close()
        self._table.close()


class _Part:
    """A range of a shard, as a local file; or the whole shard, where a store gives no ranges."""

    def __init__(self, shard: Columns, file: File, path: str) -> None:
        assert file.span is not None
        self.start, self.stop = file.span
        self.path = path
        origin = origin_of(path)
        self.offset = 0 if origin is None else self.start  # of the file's first byte in the shard
        size = os.path.getsize(path) if origin is None else origin.size
        if size != shard.num_bytes:
            raise corrupt(shard.name, f"{size} bytes, not the {shard.num_bytes} that were written")


def _read(shard: Columns, parts: Sequence[_Part], start: int, num_bytes: int) -> torch.Tensor:
    """Bytes of a shard's data: [n] uint8."""
    if not num_bytes:
        return torch.empty(0, dtype=torch.uint8)
    start += shard.data_start
    part = next(each for each in parts if each.start <= start and start + num_bytes <= each.stop)
    data = np.fromfile(part.path, np.uint8, num_bytes, offset=start - part.offset)
    if len(data) != num_bytes:
        raise corrupt(shard.name, f"it ends at byte {start + len(data)} of {shard.num_bytes}")
    return torch.from_numpy(data)
