"""Estimates: a dataset -> what going through it will cost, before a byte of it is read.

Comes in: a dataset, how many epochs, and how much the cache holds. Goes out: requests, bytes and dollars by bucket.
Some rows are looked at for their buckets, and some objects are asked for their size; the rest is multiplied.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sds.errors import OptionError, SdsError
from sds.observe.costs import Cost, priced
from sds.seeds import derive
from sds.stats import Traffic
from sds.units import format_bytes, parse_bytes
from sds.urls import is_remote, redact, root_of

if TYPE_CHECKING:
    from sds.dataset import StreamingDataset
    from sds.fetch.protocol import File

__all__ = ["Estimate", "estimate"]

_MAX_ROWS = 2000  # that are looked at
_NUM_CLUMPS = 50  # places that they are taken from: neighbours lie in one chunk of a lazy index
_MAX_SIZES = 64  # objects that are asked for their size
_AT_ONCE = 16


@dataclass(frozen=True)
class Estimate:
    """What going through a dataset will ask of stores.

    Attributes:
        rows: of an epoch.
        files: of an epoch that are remote.
        epochs: times to go through them.
        first_epoch: with an empty cache.
        later_epoch: each of the others, with what the cache could keep.
        total: all of it.
        num_sized: objects that were asked for their size.
        num_unknown: those that did not say.
    """

    rows: int
    files: int
    epochs: int
    first_epoch: Cost
    later_epoch: Cost
    total: Cost
    num_sized: int
    num_unknown: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        costs = {name: getattr(self, name).to_dict() for name in ("first_epoch", "later_epoch", "total")}
        sized = {"num_sized": self.num_sized, "num_unknown": self.num_unknown}
        return {"rows": self.rows, "files": self.files, "epochs": self.epochs, **sized, **costs}

    def __str__(self) -> str:
        lines = [f"rows: {self.rows}, remote files: {self.files} an epoch (sizes: {self.num_sized} objects were asked)"]
        if self.num_unknown:
            lines.append(f"unknown: {self.num_unknown} of those did not say how large they are")
        for name, each in (("first epoch", self.first_epoch), ("later epochs, each", self.later_epoch)):
            if name == "first epoch" or self.epochs > 1:
                lines.append(f"{name}: {each.requests} requests, {format_bytes(each.num_bytes)}")
        return "\n".join([*lines, *str(self.total).splitlines()])


def estimate(
    dataset: StreamingDataset,
    *,
    epochs: int = 1,
    cache_limit: str | int | None = "10gb",
    prices: Mapping[str, Any] | str | os.PathLike[str] | None = None,
) -> Estimate:
    """What going through a dataset will cost.

    Args:
        dataset: with the query and the columns of the run.
        epochs: times to go through it.
        cache_limit: how much the cache of the run holds; None: everything. The first epoch finds it empty.
        prices: see `read_prices`.

    Raises:
        OptionError: a number makes no sense, or it is about a mix.
    """
    from sds.dataset import StreamingDataset

    if not isinstance(dataset, StreamingDataset):
        hint = "give a StreamingDataset; of a mix, each of its datasets, with its share of the epochs"
        raise OptionError(f"dataset cannot be estimated: {type(dataset).__name__}", hint=hint)
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise OptionError(f"epochs is no number of epochs: {epochs!r}", hint="a whole number from 1 on")
    limit = None if cache_limit is None else parse_bytes(cache_limit, option="cache_limit")
    num_rows = len(dataset)
    files, num_looked = _some_files(dataset)
    scale = num_rows / max(1, num_looked)
    by_store = Counter(root_of(file.url) for file in files)
    sizes, num_sized, num_unknown = _sizes(dataset, files)
    traffic: list[tuple[str, float, float]] = []
    for store, number in by_store.items():
        found = sizes.get(store) or [size for some in sizes.values() for size in some]
        mean = sum(found) / len(found) if found else 0.0
        traffic.append((redact(store), number * scale, number * scale * mean))
    num_bytes = sum(each[2] for each in traffic)
    missed = 1.0 if not num_bytes else max(0.0, 1.0 - (num_bytes if limit is None else limit) / num_bytes)

    def costs(share: float) -> Cost:
        return priced(tuple(Traffic(s, "standard", round(n * share), round(b * share)) for s, n, b in traffic), prices)

    return Estimate(
        num_rows,
        round(sum(by_store.values()) * scale),
        epochs,
        costs(1.0),
        costs(missed),
        costs(1.0 + (epochs - 1) * missed),
        num_sized,
        num_unknown,
    )


def _some_files(dataset: StreamingDataset) -> tuple[list[File], int]:
    """The remote files of rows from all over the index, and how many rows those are."""
    pipeline = dataset.delivery.pipeline
    row_ids = _spread(len(pipeline.index))
    jobs = [pipeline.prepare(row, 0, 0) for row in pipeline.index.rows(row_ids)]
    return [file for job in jobs for file in job.files if is_remote(file.url)], len(row_ids)


def _spread(num_rows: int) -> list[int]:
    """Row ids from all over an index, in clumps; all of them, if there are few."""
    if num_rows <= _MAX_ROWS:
        return list(range(num_rows))
    size = _MAX_ROWS // _NUM_CLUMPS
    starts = [k * (num_rows - size) // (_NUM_CLUMPS - 1) for k in range(_NUM_CLUMPS)]
    return [start + k for start in starts for k in range(size)]


def _sizes(dataset: StreamingDataset, files: list[File]) -> tuple[dict[str, list[int]], int, int]:
    """Sizes of some of the files by store; how many were asked for, and how many did not say."""
    number = min(len(files), _MAX_SIZES)
    chosen = [files[k] for k in derive(0, "sizes").permutation(len(files))[:number]] if files else []
    client = dataset.delivery.client

    def size(file: File) -> int | None:
        if file.span is not None and not file.whole_up_to:
            return file.span[1] - file.span[0]
        try:
            return client.head(file.url).size
        except SdsError:
            return None

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sds-sizes") as pool:
        found = list(pool.map(size, chosen))
    sizes: dict[str, list[int]] = {}
    for file, each in zip(chosen, found, strict=True):
        if each is not None:
            sizes.setdefault(root_of(file.url), []).append(each)
    return sizes, number, found.count(None)
