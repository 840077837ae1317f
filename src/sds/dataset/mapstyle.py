"""Random access: row ids in, their samples out. Strict: the sample asked for, or its error; never another.

Several rows are fetched together and, outside of worker processes, decoded side by side in threads.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

from sds.dataset.delivery import Delivery
from sds.dataset.leases import Leases
from sds.dataset.workers import is_worker, worker_identity
from sds.errors import TransformError
from sds.fetch import Ticket
from sds.types import Sample

if TYPE_CHECKING:
    from sds.dataset.streaming import StreamingDataset

__all__ = ["MapView", "get_several"]


def get_several(delivery: Delivery, epoch: int, ids: Sequence[int], leases: Leases) -> list[Any]:
    """The samples of several rows, in the order asked for; a row that the transforms fan out is a list of samples."""
    worker_identity()  # in a worker: it ends with its parent
    row_ids = [_checked(i, len(delivery.pipeline.index)) for i in ids]
    pipeline = delivery.pipeline
    jobs = [pipeline.prepare(row, epoch, row.id) for row in pipeline.index.rows(row_ids)]
    tickets = delivery.client.submit([job.files for job in jobs])
    if len(jobs) > 1 and not pipeline.options.transforms:
        delivery.client.want(tickets)  # samples of paths: all files stay until all are here
    held: list[Ticket] = []

    def make(k: int) -> Any:
        return _single(delivery.exactly(jobs[k], tickets[k], held), jobs[k].row.key)

    try:
        if len(jobs) > 1 and pipeline.options.transforms and not is_worker():
            with ThreadPoolExecutor(min(len(jobs), len(os.sched_getaffinity(0)))) as pool:
                samples = list(pool.map(make, range(len(jobs))))
        else:
            samples = [make(k) for k in range(len(jobs))]
    except BaseException:
        for ticket in tickets:
            ticket.release()
        raise
    leases.hold(held)
    return samples


def _checked(i: int, length: int) -> int:
    try:
        row_id = operator.index(i)
    except TypeError:
        raise TypeError(f"a row is asked for by a whole number or a slice, not by {type(i).__name__}") from None
    if not -length <= row_id < length:
        raise IndexError(f"row {row_id} of a dataset of {length} rows")
    return row_id + length if row_id < 0 else row_id


def _single(samples: list[Sample], key: str) -> Any:
    if not samples:
        hint = "iteration leaves such samples out; random access has nothing to give instead"
        raise TransformError(f"a transform dropped the sample that was asked for: {key}", hint=hint, key=key)
    return samples[0] if len(samples) == 1 else samples


class MapView(Dataset[Sample]):
    """A map-style view of a streaming dataset: rows by number, for torch's samplers."""

    def __init__(self, dataset: StreamingDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset.delivery.pipeline.index)

    def __getitem__(self, i: int) -> Sample:
        return self.dataset[i]

    def __getitems__(self, ids: Sequence[int]) -> list[Sample]:
        """The samples of several rows."""
        return self.dataset.__getitems__(ids)
