"""The rooms joined: a source becomes samples, delivered exactly once, in order, resumable.

Comes in: a source and keywords. Goes out: StreamingDataset, a torch IterableDataset with random access and a state; and
mixes of them, which are datasets again.
"""

from __future__ import annotations

from sds.dataset.mapstyle import MapView
from sds.dataset.mixes import concatenate, interleave
from sds.dataset.streaming import StreamingDataset

__all__ = ["MapView", "StreamingDataset", "concatenate", "interleave"]
