"""The pass that counts the rows of a lazy index, divided among all who open it.

Comes in: a CountJob. Goes out: what is left of each chunk, as exact as one process alone would have it. Processes that
share a folder take shares of the files from there, those that wait for the builder too; ranks with folders of their own
exchange counts (but no weights: those are as many as rows). A pass that was killed goes on where it stopped.
"""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec
import numpy as np

from sds.errors import CacheError
from sds.index.lazy_count import Counted, count_rows
from sds.index.lazy_layout import Layout, Piece
from sds.index.lazy_query import QueryEngine, RowQuery, plan_query
from sds.index.lazy_shares import Board, FolderBoard, work_off
from sds.index.options import IndexOptions
from sds.index.remote import OpenRemote
from sds.index.store import Store

__all__ = ["CountJob", "Helper", "OpenBoard", "count_together", "row_query"]

OpenBoard: TypeAlias = Callable[[str], Board]

_MAX_PAUSE_S = 1.0
_SHARE_ROWS = 1 << 24  # seconds of work for eight threads: little is lost with a process, and claims cost nothing


@dataclass(frozen=True)
class CountJob:
    """What is to be counted: rows of a layout by options, with a query that is taken apart already."""

    layout: Layout
    pieces: list[Piece]
    options: IndexOptions
    query: RowQuery | None
    engine: QueryEngine
    open_remote: OpenRemote

    @cached_property
    def shares(self) -> list[list[Piece]]:
        """The pieces, divided: some millions of rows to read each."""
        must_read = self.query is not None or self.options.weight_col_name is not None
        shares: list[list[Piece]] = [[]]
        num_rows = 0
        for piece in self.pieces:
            if num_rows >= _SHARE_ROWS:
                shares.append([])
                num_rows = 0
            shares[-1].append(piece)
            num_rows += piece.stop - piece.start if piece.may_lack or must_read else 0
        return shares

    def count(self, pieces: Sequence[Piece], weights: BinaryIO | None) -> Counted:
        """Counts some pieces."""
        return count_rows(
            self.layout,
            pieces,
            self.options,
            self.query,
            engine=self.engine,
            open_remote=self.open_remote,
            weights=weights,
        )


class _Share(msgspec.Struct, frozen=True, array_like=True):
    """What is left of a share: counts of the chunks from `first_chunk` on, as int64, and weights as float64."""

    first_chunk: int
    counts: bytes
    rows_after_query: int
    rows_read: int
    has_weight: bool
    weights: bytes


class _Plan(msgspec.Struct, frozen=True, array_like=True):
    """What a helper must know."""

    layout: Layout
    pieces: list[Piece]
    num_shares: int


def row_query(layout: Layout, options: IndexOptions, engine: QueryEngine) -> RowQuery | None:
    """The query of the options, taken apart for parts of the rows; None: there is none."""
    if options.sql_query is None:
        return None
    downloads, keep = options.columns_to_download or (), options.index_cols_to_keep
    weights = () if options.weight_col_name is None else (options.weight_col_name,)
    kept = None if keep is None else {*keep, *downloads, options.id_column, *weights}
    return plan_query(options.sql_query, layout.schema, outputs=(*downloads, *weights), keep=kept, engine=engine)


def count_together(job: CountJob, store: Store, weights: BinaryIO | None, peers: OpenBoard | None) -> Counted:
    """Counts all pieces, with whoever comes to help; call it while building.

    Args:
        job: what to count.
        store: where results of shares are kept, until the index is.
        weights: gets the weights, in order.
        peers: gives the place where other ranks are found.

    Raises:
        CacheError: the folder cannot be written to.
    """
    shares = job.shares
    if len(shares) == 1:
        return job.count(job.pieces, weights)
    folder = store.path("shares")
    try:
        folder.mkdir(exist_ok=True)  # what a killed process counted is there already
        made = folder / "plan.part"
        made.write_bytes(msgspec.msgpack.encode(_Plan(job.layout, job.pieces, len(shares))))
        made.replace(folder / "plan")
    except OSError as e:
        hint = "make room there, or choose another dst"
        raise CacheError(f"counts cannot be written: {folder}: {e}", hint=hint, url=str(folder)) from e
    board = FolderBoard(folder)
    try:
        _work(job, board, peers, until_done=True)
        return _summed(job, board, len(shares), weights)
    except BaseException as error:
        if isinstance(error, Exception):
            shutil.rmtree(folder, ignore_errors=True)  # an interrupted pass can go on; one that failed begins anew
        raise


def _work(job: CountJob, board: FolderBoard, peers: OpenBoard | None, *, until_done: bool) -> int:
    shares, options = job.shares, job.options
    boards: list[Board] = [board]
    if peers is not None and options.weight_col_name is None:
        boards.append(peers(job.layout.fingerprint(f"{len(shares)} shares of {astuple(options)}")))

    def work(number: int) -> bytes:
        pieces = shares[number]
        weights = None if options.weight_col_name is None else io.BytesIO()
        counted = job.count(pieces, weights)
        size = options.lazy_index_chunk_size or 1
        first, last = pieces[0].start // size, -(-pieces[-1].stop // size)
        share = _Share(
            first_chunk=first,
            counts=counted.counts[first:last].tobytes(),
            rows_after_query=counted.rows_after_query,
            rows_read=counted.rows_read,
            has_weight=counted.has_weight,
            weights=b"" if weights is None else weights.getvalue(),
        )
        return msgspec.msgpack.encode(share)

    return work_off(len(shares), work, boards, until_done=until_done)


def _summed(job: CountJob, board: FolderBoard, num_shares: int, weights: BinaryIO | None) -> Counted:
    counts = np.zeros(-(-job.layout.num_rows // (job.options.lazy_index_chunk_size or 1)), np.int64)
    rows_after_query, rows_read, has_weight = 0, 0, False
    for number in range(num_shares):
        found = board.find(number)
        if found is None:
            hint = "did somebody clear the folder? open the dataset again"
            raise CacheError(f"counts are gone that were there a moment ago: share {number}", hint=hint)
        share = msgspec.msgpack.decode(found, type=_Share)
        part = np.frombuffer(share.counts, np.int64)
        counts[share.first_chunk : share.first_chunk + len(part)] += part
        rows_after_query, rows_read = rows_after_query + share.rows_after_query, rows_read + share.rows_read
        has_weight = has_weight or share.has_weight
        if weights is not None:
            weights.write(share.weights)
    return Counted(counts, rows_after_query, rows_read, has_weight)


class Helper:
    """What a process does while another one builds the same index: shares of its count, if it divided that."""

    def __init__(self, store: Store, options: IndexOptions, open_remote: OpenRemote, peers: OpenBoard | None) -> None:
        self._folder: Path = store.path("shares")
        self._options, self._open_remote, self._peers = options, open_remote, peers
        self._job: CountJob | None = None
        self._pause_s, self._next = 0.0, 0.0

    def __call__(self) -> bool:
        """Helps; whether there was something to do."""
        if time.monotonic() < self._next or not (self._folder / "plan").exists():
            return False  # nothing is divided, or not yet, or no longer
        if self._job is None:
            self._job = self._read_job()
        if self._job is None:
            return False
        has_helped = _work(self._job, FolderBoard(self._folder), self._peers, until_done=False) > 0
        # all is in others' hands: many who ask for it again and again would be a load on their store
        self._pause_s = 0.0 if has_helped else min(_MAX_PAUSE_S, 2 * self._pause_s + 0.02)
        self._next = time.monotonic() + self._pause_s
        return has_helped

    def _read_job(self) -> CountJob | None:
        try:
            plan = msgspec.msgpack.decode((self._folder / "plan").read_bytes(), type=_Plan)
        except (OSError, msgspec.MsgspecError):
            return None
        engine = QueryEngine(self._folder)
        query = row_query(plan.layout, self._options, engine)
        job = CountJob(plan.layout, plan.pieces, self._options, query, engine, self._open_remote)
        return job if len(job.shares) == plan.num_shares else None  # another release divides otherwise
