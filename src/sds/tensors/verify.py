"""Whether a shard is what was written: its name vouches for the header, that for the columns, those for every block.

Comes in: a shard's columns and what index.json says of it. Goes out: nothing, or ShardCorrupt.
"""

from __future__ import annotations

import hashlib

from sds.tensors import skeleton
from sds.tensors.columns import Columns, Facts
from sds.tensors.format import corrupt, parse_header
from sds.tensors.places import Place

__all__ = ["verify_shard"]

_CHUNK = 8 << 20


def verify_shard(place: Place, columns: Columns, facts: Facts) -> None:
    """Reads a shard, all of it, a few megabytes at a time, and compares its hashes."""
    header = place.chunk(columns, 0, columns.data_start)
    sha256 = hashlib.sha256(header[8:]).hexdigest()
    if not facts.name.endswith(sha256[:16]) or (facts.sha256 and facts.sha256 != sha256):
        raise corrupt(facts.name, "its header has another hash")
    metadata, _ = parse_header(facts.name, header, columns.num_bytes)
    if columns.sha256() != metadata.get("index_sha256"):
        raise corrupt(facts.name, "its columns have another hash")
    seen: set[tuple[int, bytes]] = set()
    for row in range(columns.num_samples):
        bucket = columns.bucket_of(row)
        skeleton.decode(columns.name, columns.skeleton(row), len(bucket.slots), lambda *_: None)
        starts, digests = columns.blocks_of(row)
        for start, size, mark in zip(starts, bucket.blocks, digests, strict=True):
            if (start, mark) not in seen and _digest(place, columns, start, size) != mark:
                raise corrupt(columns.name, f"a tensor of sample {columns.key(row)!r} has another hash")
            seen.add((start, mark))


def _digest(place: Place, columns: Columns, start: int, size: int) -> bytes:
    sha256 = hashlib.sha256()
    for at in range(start, start + size, _CHUNK):
        data = bytearray(min(_CHUNK, start + size - at))
        place.read(columns, [(at, memoryview(data))])
        sha256.update(data)
    return sha256.digest()[:16]
