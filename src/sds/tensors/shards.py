"""A part becomes a shard: header, data and columns, under names that vouch for what they hold.

Comes in: a part. Goes out: two files that appear whole, first the tensors, then the columns, which commit them; and
what index.json says of them. The same part gives the same bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from sds.tensors.catalog import replace_file, sync_folder
from sds.tensors.columns import Facts, Record, encode_columns
from sds.tensors.format import ALIGNMENT, FORMAT, PAGE, VERSION, Entry, encode_header, shard_name
from sds.tensors.journal import Part

__all__ = ["write_shard"]


def write_shard(folder: Path, number: int, part: Part) -> Facts:
    """Commits the samples of a part as a shard."""
    entries = _entries(part.records)
    metadata = {"format": FORMAT, "version": str(VERSION), "index_sha256": "0" * 64}
    data_start = len(encode_header(metadata, entries, PAGE))  # the hash will be as long
    num_bytes = data_start + part.num_bytes
    columns = encode_columns(
        part.records,
        {
            "samples": str(len(part.records)),
            "bytes": str(num_bytes),
            "data_start": str(data_start),
            "generation": str(part.beginning.generation),
            "fingerprint": part.beginning.fingerprint,
        },
    )
    metadata["index_sha256"] = hashlib.sha256(columns).hexdigest()
    header = encode_header(metadata, entries, PAGE)
    assert len(header) == data_start
    sha256 = hashlib.sha256(header[8:]).hexdigest()
    name = shard_name(number, sha256)
    _write_data(folder / f"{name}.safetensors", header, part)
    replace_file(folder / f"{name}.index", columns, part.draft("index"))  # from here on it is committed
    return Facts(
        name=name,
        samples=len(part.records),
        bytes=num_bytes,
        index_bytes=len(columns),
        sha256=sha256,
        index_sha256=metadata["index_sha256"],
        generation=part.beginning.generation,
        fingerprint=part.beginning.fingerprint,
    )


def _entries(records: Sequence[Record]) -> list[tuple[str, Entry]]:
    """The entries of a shard's header, gaps filled, for safetensors allows none."""
    entries: list[tuple[str, Entry]] = []
    end = 0
    for row, record in enumerate(records):
        num_gaps = 0
        for place in record.places:
            if place.name is None:
                continue
            if place.start > end:
                entries.append((f"{row:08d}.~{num_gaps}", Entry("U8", [place.start - end], (end, place.start))))
                num_gaps += 1
            end = place.start + place.num_bytes
            entries.append((place.name, Entry(place.dtype, list(place.shape), (place.start, end))))
    assert all(entry.data_offsets[0] % ALIGNMENT == 0 for name, entry in entries if ".~" not in name)
    return entries


def _write_data(path: Path, header: bytes, part: Part) -> None:
    draft = part.draft("safetensors")
    with open(draft, "wb", buffering=0) as file:
        view = memoryview(header)
        while len(view):
            view = view[file.write(view) :]
        part.copy_data(file.fileno())
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)
