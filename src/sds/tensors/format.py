"""The files of a tensor cache: names, safetensors headers, hashes. docs/reference/tensor-cache.md is the specification.

Comes in: entries or bytes of a header. Goes out: bytes or entries. What was read is checked before it is believed: no
name leads out of the folder, no length beyond the file.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable
from typing import Any

import msgspec

from sds.errors import ShardCorrupt

__all__ = [
    "ALIGNMENT",
    "FORMAT",
    "MAX_HEADER",
    "PAGE",
    "VERSION",
    "Entry",
    "check_name",
    "corrupt",
    "digest",
    "encode_header",
    "is_name",
    "order_of",
    "parse_header",
    "shard_name",
    "to_json",
]

FORMAT = "sds.tensors"
VERSION = 1
ALIGNMENT = 8
PAGE = 4096  # where a shard's data begin: what is as large as pages lies on as few of them as it can
MAX_HEADER = 100_000_000  # safetensors itself refuses more

_NAME = re.compile(r"shard-(\d{5,9})-([0-9a-f]{16})", re.ASCII)


class Entry(msgspec.Struct, frozen=True):
    """One tensor of a safetensors file; offsets count from the end of the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def digest(data: Any) -> bytes:
    """What stands for a key or a block: the first 16 bytes of its sha256."""
    return hashlib.sha256(data).digest()[:16]


def shard_name(number: int, header_sha256: str) -> str:
    """Name of a shard, without suffix."""
    return f"shard-{number:05d}-{header_sha256[:16]}"


def is_name(name: str) -> bool:
    """Whether a file could be a shard of ours, going by its name without suffix."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """The name, or an error: it comes from a file, and must not lead anywhere else."""
    if not is_name(name):
        raise corrupt("index.json", f"no name of a shard: {name!r}")
    return name


def order_of(generation: int, name: str) -> tuple[int, int, str]:
    """Where a shard stands among the others."""
    match = _NAME.fullmatch(name)
    assert match is not None
    return generation, int(match[1]), match[2]


def corrupt(name: str, fact: str) -> ShardCorrupt:
    """The error for a file that is not what was written."""
    hint = "the file was cut short, changed or made by somebody else: copy it again, or build this shard anew"
    return ShardCorrupt(f"tensor cache is damaged: {name}: {fact}", hint=hint, url=name)


def to_json(value: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return msgspec.json.encode(value)


def encode_header(metadata: dict[str, str], entries: Iterable[tuple[str, Entry]], alignment: int = ALIGNMENT) -> bytes:
    """The first bytes of a safetensors file: length and JSON, padded so that the data begin at such a multiple."""
    body = to_json({"__metadata__": metadata, **dict(entries)})
    body += b" " * (-(8 + len(body)) % alignment)
    return struct.pack("<Q", len(body)) + body


def parse_header(name: str, head: bytes, num_bytes: int) -> tuple[dict[str, str], dict[str, Entry]]:
    """Metadata and entries of a header, checked against the size of its file.

    Args:
        name: what an error names.
        head: the file's bytes, at least up to the end of the header.
        num_bytes: the file's size.

    Raises:
        ShardCorrupt: it is no header, or names bytes that are not there.
    """
    (length,) = struct.unpack("<Q", head[:8]) if len(head) >= 8 else (-1,)
    if not 0 < length <= min(MAX_HEADER, num_bytes - 8, len(head) - 8):
        raise corrupt(name, f"a header of {length} bytes in a file of {num_bytes}")
    try:
        raw = msgspec.json.decode(head[8 : 8 + length], type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(raw.pop("__metadata__", b"{}"), type=dict[str, str])
        entries = {key: msgspec.json.decode(value, type=Entry) for key, value in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt(name, f"its header is no safetensors header: {error}") from error
    room = num_bytes - 8 - length
    for key, entry in entries.items():
        start, stop = entry.data_offsets
        if not 0 <= start <= stop <= room:
            raise corrupt(name, f"{key!r} lies at [{start}, {stop}) of {room} bytes")
    return metadata, entries
