"""Samples -> batches: one loader item is one step, built in order, in threads or worker processes.

Comes in: a dataset and a batch size. Goes out: collated batches, the same global ones for any number of ranks, workers
and threads whose product of ranks and batch size is equal; and a state of what was handed to the caller.
"""

from __future__ import annotations

from sds.loader.broadcast import BroadcastLoader
from sds.loader.collate import collate
from sds.loader.device import DevicePrefetcher
from sds.loader.multistream import MultiStreamDataLoader
from sds.loader.multistream_options import StreamOptions
from sds.loader.streaming import StreamingDataLoader

__all__ = [
    "StreamingDataLoader",
    "MultiStreamDataLoader",
    "StreamOptions",
    "DevicePrefetcher",
    "BroadcastLoader",
    "collate",
]
